//! The limits on the verbs, callers and bytes that a coordinator has in flight.

/// Outstanding verbs to one node.
pub const PENDING_VERBS_MAX: usize = 2048;
/// Callers that wait for a lock or for free log space.
pub const WAITING_MAX: usize = 1 << 16;
/// Bytes that wait for the disk of one persistent node.
pub const UNPERSISTED_BYTES_MAX: u64 = 16 << 20;
/// Heartbeat periods that a read waits for one node before it asks another.
pub(super) const READ_TIMEOUT_HEARTBEATS: u32 = 4;
