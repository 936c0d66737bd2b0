//! The interfaces that a peer implements so that this crate can run it as a follower or as the primary.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use base::rt::channel::WatchReceiver;
use base::{Epoch, ErrorKind};
use storage::{StateStore, WatermarkFile};

use super::addresses::PeerAddresses;
use super::primary_locator::PrimaryLocator;
use super::primary_role::ReplicatedState;
use crate::failover::primary_role::PrimaryRole;
use crate::followers::FailoverTimeouts;

/// How long a follower may be without a lease before it takes over.
pub const FAILOVER_TIMEOUTS: FailoverTimeouts =
    FailoverTimeouts { gone: Duration::from_millis(50), silent: Duration::from_secs(1) };
/// How a compute node finds its role.
#[derive(Clone)]
pub struct ComputeNodeConfig {
    /// For logs.
    pub name: String,
    /// Where the nodes of the peer answer.
    pub addresses: PeerAddresses,
    /// The node's durable note of how far the channel has come. The node does not take over if the storage node has
    /// less than the note.
    pub watermark: Option<Arc<WatermarkFile>>,
    /// How long the node may be without a lease before it takes over; see [`FAILOVER_TIMEOUTS`].
    pub failover_timeouts: FailoverTimeouts,
}

/// What a compute node does in each role. The layer that has blocks and states implements it.
#[async_trait]
pub trait PeerRoles: Send + Sync + 'static {
    /// Why a primary cannot start, or ends.
    type Error: PeerError;
    /// What a follower answers from.
    type Followed: FollowedPeer;
    /// What a primary commits with.
    type Primary: PrimaryPeer<Error = Self::Error>;

    /// Starts to follow the primaries that `locator` finds, until the value is dropped.
    fn follow(&self, locator: Arc<PrimaryLocator>) -> Arc<Self::Followed>;

    /// Opens blocks, rows and memory under an epoch, and replays the blocks above the savepoint. The peer answers only
    /// while `role` says that it may. If the future is dropped, what it has opened so far ends.
    ///
    /// # Errors
    /// If one of them cannot be opened.
    async fn open_primary(&self, epoch: Epoch, role: Arc<PrimaryRole>) -> Result<Self::Primary, Self::Error>;

    /// Closes the memory that was opened last.
    async fn close_memory(&self);
}

/// The errors of [`PeerRoles`].
pub trait PeerError: std::error::Error + From<storage::Error> + Send + Sync + 'static {
    /// What the caller is to do.
    fn kind(&self) -> ErrorKind;

    /// A newer primary has started.
    fn fenced() -> Self;

    /// The primary cannot listen at its address.
    fn cannot_listen(address: &str, error: &io::Error) -> Self;
}

/// What a follower answers from.
#[async_trait]
pub trait FollowedPeer: Send + Sync + 'static {
    /// Number of blocks that it shows; 0 before it has followed a primary.
    fn height(&self) -> u64;

    /// Whether it can answer now.
    fn is_live(&self) -> bool;

    /// As [`crate::Follower::orphaned`].
    async fn orphaned(&self, timeouts: FailoverTimeouts);
}

/// What a primary commits with.
#[async_trait]
pub trait PrimaryPeer: Send + Sync + 'static {
    /// Why it ends.
    type Error;

    /// Number of committed blocks.
    fn height(&self) -> u64;

    /// Follows [`PrimaryPeer::height`].
    fn committed(&self) -> WatchReceiver<u64>;

    /// The state that it applies blocks to, which it drops when it ends.
    fn state(&self) -> Weak<dyn ReplicatedState>;

    /// The rows at the storage node, opened under this epoch: they confirm that it is the newest.
    fn store(&self) -> Arc<dyn StateStore>;

    /// Whether it has ended because of an error.
    fn has_failed(&self) -> bool;

    /// Completes when it has ended by itself, with the reason.
    async fn stopped(&self) -> Self::Error;

    /// Finishes the blocks that were validated, makes them durable and ends it.
    ///
    /// # Errors
    /// The first error; it has ended nevertheless.
    async fn stop(&self) -> Result<(), Self::Error>;
}
