//! A row of the oracle's state.

use base::Bytes;

/// Block and transaction.
pub type StateVersion = (u64, u64);
/// Namespace and key.
pub type StateKey = (String, String);

/// A key's value and the transaction that wrote it. An empty value means that the key is deleted, and in no state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateRow {
    /// The value; empty if the key is deleted.
    pub value: Bytes,
    /// The transaction that wrote it.
    pub version: StateVersion,
}
