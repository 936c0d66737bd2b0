//! The configuration of a memory node, and its limits.

use std::sync::Arc;
use std::time::Duration;

use base::rt::CancellationToken;
use rma::Host;

/// Owners that a node remembers; one more is rejected unless an owner without sections and connections can be dropped.
pub const OWNERS_MAX: usize = 4096;
/// Connections at once that have completed their hello, as many as sixteen owners may have; one more is rejected.
pub const CONNECTIONS_MAX: usize = 2048;
/// Connections at once that have not completed it; one more is closed. As many as any host has, which limits the part
/// of each name.
pub(super) const HANDSHAKES_MAX: usize = 4096;
/// How long an owner must be without a connection before other owners may get its memory.
pub const ABANDONED_AFTER: Duration = Duration::from_secs(60);
/// Connections of one owner at once: two of each compute node of a peer of 64, since the end of one may go unnoticed for
/// a while.
pub const CONNECTIONS_PER_OWNER_MAX: usize = 128;
/// Read grants of one section: two of each such node that follows.
pub const READ_GRANTS_MAX: usize = 128;
/// How long a connection may take until its hello is answered.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The configuration of a memory node.
#[derive(Clone)]
pub struct MemoryNodeConfig {
    /// Where its memory is registered and who may connect. The node closes the host when it ends.
    pub host: Arc<dyn Host>,
    /// Bytes that it may grant.
    pub budget_bytes: u64,
    /// Bytes of each section: a power of two, the same in the whole pool.
    pub section_bytes: u64,
    /// Ends the node.
    pub stop: CancellationToken,
}
