//! The limits on the entries, messages and connections of an orderer's log on memory nodes.

/// Entries that were appended and are not deliverable, or not durable in the leader's own log store.
pub const IN_FLIGHT_MAX: usize = 32;
/// Messages with entries in flight to one acceptor.
pub const APPENDS_MAX: usize = 4;
/// Requests in flight on one connection to an acceptor.
pub(super) const REQUESTS_MAX: usize = 16;
/// Connections to an acceptor.
pub(super) const CONNECTIONS_MAX: usize = 32;
/// Bytes that a record takes beside the entry.
pub(super) const RECORD_BYTES: u64 = 64;

/// Bytes of entries of one message; a longer entry is sent alone.
pub(super) const BATCH_BYTES: u64 = 4 << 20;
