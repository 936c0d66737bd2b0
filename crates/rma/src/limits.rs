//! Limits that every provider has.

/// The most bytes that one read or write moves.
pub const TRANSFER_BYTES_MAX: usize = 64 << 20;
/// Bytes of one message: a block of the ledger, with a reserve.
pub const MESSAGE_BYTES_MAX: usize = 128 << 20;
/// Verbs in flight on one endpoint; one more fails with [`Error::Busy`](crate::Error::Busy).
pub const IN_FLIGHT_MAX: usize = 4096;
/// Parts of one write or message.
pub const PARTS_MAX: usize = 16;
/// Bytes of a word, the unit of atomicity and of alignment.
pub const WORD_BYTES: usize = 8;
