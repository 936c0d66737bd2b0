//! Several compute nodes of one peer in a channel. One of them is the primary and the others follow it. When the
//! primary fails, one of the followers takes over.
//!
//! The compute nodes need no coordinator besides the storage node. A compute node knows the address of its storage node,
//! and the address at which each other node would answer as the primary. The newest epoch at the storage node decides which
//! node is the primary.
//!
//! Following:
//! 1. The node asks the storage node for the newest epoch and connects to the addresses of the other compute nodes. Only
//!    the primary listens at its address, and it first sends its epoch ([`PrimaryLocator`]). The node follows the primary
//!    that has the newest epoch, as [`crate::followers`] describes.
//! 2. Meanwhile the node runs proposals, for queries and for endorsements, on the state that it follows and on the
//!    blocks that the storage node keeps ([`PeerRoles::follow`]).
//!
//! Taking over:
//! 3. A follower waits until it has had no lease for [`FAILOVER_TIMEOUTS`]: the short time if every other node rejects the
//!    connection, the long time if one of them does not answer. The storage node must answer, and its newest epoch must not
//!    have changed for the short time. Then the follower asks the storage node to start the next epoch ([`begin_epoch`]),
//!    unless the storage node has fewer blocks than this node has [noted](storage::watermark). If several followers ask,
//!    the storage node accepts one of them; the others return to step 1 and find the new primary.
//! 4. From then on the storage node rejects writes of the old primary. The new primary listens, so that the other nodes see
//!    that an epoch has started. It opens blocks, rows and memory under its epoch, replays the blocks above the savepoint,
//!    and receives blocks from the orderers ([`PeerRoles::open_primary`]).
//! 5. The new primary waits until every lease that the old primary can have granted or held has ended. Then it raises
//!    heights (the state enforces this order), admits followers, and shows its channel. The wait is needed even if there is
//!    nothing to replay: until the leases end, a follower of the old primary may answer from a height below that of the
//!    storage node.
//!
//! Serving:
//! 6. The primary commits blocks. It answers proposals only while it [holds its primary lease](PrimaryLease): the storage
//!    node has confirmed that no newer epoch exists, and less than one lease has passed since the primary asked. Hence a
//!    primary that resumes after a pause returns no stale answer, even if no message about the new primary has reached it.
//! 7. When the primary is fenced, or fails in a way that another start may repair, it ends its channel and returns to step
//!    1.
//!
//! Invariants:
//! * Of the compute nodes of a peer, only the one with the newest epoch appends blocks. A failover loses no
//!   acknowledged block: a commit is acknowledged only once its block is durable at the storage node, and every primary
//!   starts with all durable blocks.
//! * After a client was notified of a commit, every compute node answers its later proposals from a state that contains the
//!   commit.
//!
//! During a failover, proposals may fail with `Retry` until new leases are granted. A client that waits for a commit keeps
//! waiting, and the new primary answers it.

mod compute_node;
mod epoch;
mod primary_lease;
mod primary_locator;
mod primary_session;

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use base::rt::channel::WatchReceiver;
use base::rt::net::{Link, Parties};
use base::{Bytes, Epoch, ErrorKind};
use storage::node::RemoteStoreConfig;
use storage::{StateStore, WatermarkFile};

use crate::Error;
use crate::followers::{FOLLOWERS_MAX, FailoverTimeouts};
use crate::offload::WorkPlacement;
pub use compute_node::{ActiveRole, ComputeNode, ComputeRole, FailoverSample, ServingRole};
pub use epoch::begin_epoch;
pub use primary_lease::PrimaryLease;
pub use primary_locator::PrimaryLocator;
pub use primary_session::{PrimaryRole, PrimarySession};

/// How long a follower may be without a lease before it takes over.
pub const FAILOVER_TIMEOUTS: FailoverTimeouts =
    FailoverTimeouts { gone: Duration::from_millis(50), silent: Duration::from_secs(1) };
/// The largest number of compute nodes of one peer.
pub const NODES_MAX: usize = FOLLOWERS_MAX + 1;
/// Where the nodes of a peer answer.
#[derive(Clone)]
pub struct PeerAddresses {
    /// The peer's storage node.
    pub storage: String,
    /// The token that the storage node requires.
    pub token: Bytes,
    /// The one channel that the compute nodes commit.
    pub channel: String,
    /// Where this node answers the others while it is the primary.
    pub address: String,
    /// Where the other compute nodes answer while they are the primary.
    pub others: Vec<String>,
    /// The other compute nodes, by the names that their links prove. Only these may follow the state.
    pub parties: Parties,
}

impl PeerAddresses {
    /// How to ask the storage node under no epoch.
    pub fn storage_node(&self) -> RemoteStoreConfig {
        let PeerAddresses { storage, token, channel, .. } = self.clone();
        RemoteStoreConfig { address: storage, token, channel, epoch: Epoch(0) }
    }
}

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

/// The state of a peer at its primary.
#[async_trait]
pub trait ReplicatedState: WorkPlacement + Send + Sync + 'static {
    /// Lets followers join, once every lease that an earlier primary can have granted has ended. Until then that
    /// primary's followers may answer at lower heights, so the caller must not show this state to anybody. Call it
    /// after every durable block has been applied: otherwise a follower would show heights below those that an earlier
    /// primary has shown.
    async fn admit_followers(&self);

    /// Serves a follower over a link until the link ends ([`crate::followers`]). Dropping the future ends it.
    ///
    /// # Errors
    /// [`Error::Fenced`]; [`Error::Busy`] when there are too many followers, or joining took too long.
    async fn serve_follower(&self, link: Link) -> Result<(), Error>;
}
