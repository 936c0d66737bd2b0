//! Why bytes are not a read-write set.

use crate::wire::WireError;

/// Why bytes are not a read-write set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are not a `TxReadWriteSet`.
    #[error("read-write set: {0}")]
    Wire(#[from] WireError),
    /// The data model is not key-value, the only one that exists.
    #[error("read-write set: data model {0} does not exist")]
    DataModel(u64),
    /// A range summary whose degree no scan uses.
    #[error("read-write set: a range summary of degree {0} is not accepted")]
    Degree(u64),
    /// The set holds more entries or namespaces than any transaction may.
    #[error("read-write set: more than {max} {what}")]
    TooMany {
        /// What was counted, in the plural.
        what: &'static str,
        /// The largest accepted number.
        max: usize,
    },
    /// A range holds both results and a summary.
    #[error("read-write set: a range holds both results and a summary")]
    RangeReads,
}
