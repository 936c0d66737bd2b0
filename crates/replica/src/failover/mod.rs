//! Several compute nodes of one peer in a channel. One of them is the primary and the others follow it. When the
//! primary fails, one of the followers takes over.
//!
//! The compute nodes need no coordinator besides the storage node. At most [`CANDIDATES_MAX`] of them are *candidates*:
//! nodes that may become the primary. A compute node knows the address of its storage node, and the address at which each
//! candidate would answer as the primary. The newest epoch at the storage node decides which node is the primary.
//! Any other node only follows: nobody needs to know it beforehand, so it may join and leave while the peer runs
//! ([`crate::followers`], steps 12 to 14).
//!
//! Following:
//! 1. The node asks the storage node for the newest epoch and connects to the addresses of the other compute nodes.
//!    Only a primary listens at its address, and it sends its epoch first on each link ([`PrimaryLocator`]). The node
//!    follows the primary that has the newest epoch, as [`crate::followers`] describes.
//! 2. Meanwhile the node runs proposals, for queries and for endorsements, on the state that it follows and on the
//!    blocks that the storage node keeps ([`PeerRoles::follow`]).
//!
//! Taking over:
//! 3. A candidate that follows waits until it has had no lease for one of the two times of [`FAILOVER_TIMEOUTS`]: the short time if
//!    every other node rejects the connection, the long time if one of them does not answer. The storage node must
//!    answer, and its newest epoch must not have changed for the short time. Then it asks the storage node to
//!    start the next epoch ([`begin_epoch`]), unless the storage node lacks the last block that this node has
//!    [noted](storage::watermark) as durable. If several followers ask, the storage node accepts one of them; the
//!    others return to step 1 and find the new primary. A peer's only candidate waits for nothing and asks at once; if it is
//!    fenced later, another process runs with its files, and it ends.
//! 4. From then on the storage node rejects writes of the old primary. The new primary listens at its address, so that
//!    the other nodes see that an epoch has started. It opens blocks, rows and memory under its epoch, replays the
//!    blocks above the savepoint, and receives blocks from the orderers ([`PeerRoles::open_primary`]).
//! 5. The new primary waits until every lease that the old primary can have granted or held has ended. Then it raises
//!    its height (the state enforces this order), admits followers, and shows its channel. The wait is needed even if
//!    there is nothing to replay: until the leases end, a follower of the old primary may answer from a height below
//!    that of the storage node.
//!
//! Serving:
//! 6. The primary commits blocks. It answers proposals only while it [holds its primary lease](PrimaryLease): the
//!    storage node has confirmed that no newer epoch exists, and less than one lease has passed since the primary
//!    asked. Hence a primary that resumes after a pause returns no stale answer, even if no message about the new
//!    primary has reached it.
//! 7. When the primary is fenced, or fails in a way that another start may repair, it ends its channel and returns to
//!    step 1.
//!
//! Invariants:
//! * Of the compute nodes of a peer, only the one with the newest epoch appends blocks. A failover loses no
//!   acknowledged block: a commit is acknowledged only once its block is durable at the storage node, and every primary
//!   starts with all durable blocks.
//! * After a client was notified of a commit, every compute node answers its later proposals from a state that contains
//!   the commit.
//!
//! During a failover, proposals may fail with `Retry` until new leases are granted. A client that waits for a commit
//! keeps waiting, and the new primary answers it.

mod addresses;
mod compute_node;
mod epoch;
mod peer;
mod primary_lease;
mod primary_locator;
mod primary_role;
mod primary_session;

pub use addresses::{CANDIDATES_MAX, NODES_MAX, PeerAddresses};
pub use compute_node::{ActiveRole, ComputeNode, ComputeRole, FailoverSample, ServingRole};
pub use epoch::begin_epoch;
pub use peer::{ComputeNodeConfig, FAILOVER_TIMEOUTS, FollowedPeer, PeerError, PeerRoles, PrimaryPeer};
pub use primary_lease::PrimaryLease;
pub use primary_locator::PrimaryLocator;
pub use primary_role::{PrimaryRole, ReplicatedState};
pub use primary_session::PrimarySession;
