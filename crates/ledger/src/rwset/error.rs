//! Why bytes are not a read-write set.

use crate::wire::WireError;

/// Why bytes are not a read-write set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are not such a message.
    #[error("read-write set: {0}")]
    Wire(#[from] WireError),
    /// Only key-value sets exist.
    #[error("read-write set: data model {0} does not exist")]
    DataModel(u64),
    /// A summary that no scan produces.
    #[error("read-write set: a range summary of degree {0} is not accepted")]
    Degree(u64),
    /// The set holds more than any transaction may.
    #[error("read-write set: more than {max} {what}")]
    TooMany {
        /// The counted things, in the plural.
        what: &'static str,
        /// The largest number of them.
        max: usize,
    },
    /// A range holds both results and a summary.
    #[error("read-write set: a range holds both results and a summary")]
    RangeReads,
}
