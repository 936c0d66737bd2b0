//! Who is the primary of a logical peer: election, epoch, primary lease, followers, failover and offloaded work.
//!
//! ```text
//!  chain, state                       replica                                      storage node
//!  PeerRoles    ◀── follow, open ──── failover::ComputeNode ── newest epoch? ────▶ epochs: the newest one
//!  PrimaryState ◀── admit, log ────── followers::serve_follower ── confirm ──────▶ decides who is the primary
//!                                        │ link: updates, leases, work items
//!  Replica      ◀── apply ─────────── followers::Follower
//! ```
//!
//! A follower learns of the changes that its primary logs, and answers while it holds a lease:
//!
//! ```
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU64, Ordering};
//! use std::time::Duration;
//!
//! use base::rt::channel::WatchSender;
//! use base::rt::net::{self, Link};
//! use base::rt::{self, simulation::Simulation};
//! use base::{Bytes, bytes::BufMut as _};
//! use replica::followers::message::Candidate;
//! use replica::followers::{ReplicaError, send_heartbeats, serve_follower};
//! use replica::lease::FollowerId;
//! use replica::{
//!     Admission, ChangeBatches, EarlierLeases, Error, FindPrimary, Follower, FollowerTable, JoinedState, MissedState,
//!     PrimaryState, Replica, ReplicaFactory,
//! };
//! use storage::{MemoryStateStore, StateStore};
//! use wire::Malformed;
//!
//! /// The state of a primary: a number of blocks, and nothing in them.
//! struct Blocks {
//!     followers: Arc<FollowerTable>,
//!     store: MemoryStateStore,
//!     earlier_leases: EarlierLeases,
//!     height: AtomicU64,
//! }
//!
//! impl Blocks {
//!     /// Adds a block, and raises the height once every follower shows it or has no lease.
//!     async fn add(&self) {
//!         let number = self.height.load(Ordering::Acquire);
//!         self.followers.log(|bytes| bytes.put_u64_le(number));
//!         self.followers.notify(|| false).await;
//!         self.height.store(number + 1, Ordering::Release);
//!     }
//! }
//!
//! #[async_trait::async_trait]
//! impl PrimaryState for Blocks {
//!     fn followers(&self) -> &Arc<FollowerTable> {
//!         &self.followers
//!     }
//!     fn store(&self) -> &dyn StateStore {
//!         &self.store
//!     }
//!     fn is_fenced(&self) -> bool {
//!         false
//!     }
//!     fn note_fenced(&self) {}
//!     fn notes_uses(&self) -> bool {
//!         false
//!     }
//!     async fn admit(&self, admission: Admission<'_>) -> Result<MissedState, Error> {
//!         self.earlier_leases.admitted().await;
//!         let height = self.height.load(Ordering::Acquire);
//!         admission.enter(height)?;
//!         let basis = Bytes::copy_from_slice(&height.to_le_bytes());
//!         Ok(MissedState { basis, changes: ChangeBatches::default() })
//!     }
//!     fn handle_request(self: &Arc<Self>, _request: Bytes) -> Result<bool, Malformed> {
//!         Ok(true)
//!     }
//!     fn revoke_reads(&self, _follower: FollowerId) {}
//! }
//!
//! /// The state of a follower.
//! struct FollowedBlocks(AtomicU64, JoinedState);
//!
//! impl Replica for FollowedBlocks {
//!     fn joined(&self) -> &JoinedState {
//!         &self.1
//!     }
//!     fn apply(&self, changes: Bytes, heights: &WatchSender<u64>) -> Result<(), ReplicaError> {
//!         for block in changes.chunks(8) {
//!             self.0.store(u64::from_le_bytes(block.try_into()?) + 1, Ordering::Release);
//!             heights.send(self.height());
//!         }
//!         Ok(())
//!     }
//!     fn height(&self) -> u64 {
//!         self.0.load(Ordering::Acquire)
//!     }
//!     fn floor(&self) -> u64 {
//!         self.height()
//!     }
//!     fn reject_below(&self, _oldest: u64) {}
//!     fn note_uses(&self, _notes: bool) {}
//!     fn in_use(&self, candidates: &[Candidate]) -> Vec<bool> {
//!         vec![false; candidates.len()]
//!     }
//!     fn close(&self) {}
//! }
//!
//! struct Joining;
//!
//! #[async_trait::async_trait]
//! impl FindPrimary for Joining {
//!     async fn primary(&self) -> std::io::Result<Link> {
//!         net::connect("primary").await
//!     }
//! }
//!
//! #[async_trait::async_trait]
//! impl ReplicaFactory for Joining {
//!     type Prepared = ();
//!     type Replica = FollowedBlocks;
//!     async fn prepare(&self) -> Result<(), ReplicaError> {
//!         Ok(())
//!     }
//!     fn open(&self, _: (), basis: Bytes, joined: JoinedState) -> Result<Arc<FollowedBlocks>, ReplicaError> {
//!         let height = u64::from_le_bytes(basis[..].try_into()?);
//!         Ok(Arc::new(FollowedBlocks(AtomicU64::new(height), joined)))
//!     }
//! }
//!
//! let run = Simulation::new(1).run(|_| async {
//!     let state = Arc::new(Blocks {
//!         followers: Arc::default(),
//!         store: MemoryStateStore::new(),
//!         earlier_leases: EarlierLeases::new(),
//!         height: AtomicU64::new(0),
//!     });
//!     let (beating, serving) = (Arc::clone(&state), Arc::clone(&state));
//!     let _beating = rt::spawn(async move { send_heartbeats(&*beating).await }).abort_on_drop();
//!     let mut listener = net::listen("primary").await.expect("the address is free");
//!     let _serving = rt::spawn(async move {
//!         let link = listener.accept().await.expect("the listener is open");
//!         serve_follower(&serving, link).await
//!     })
//!     .abort_on_drop();
//!     let follower = Follower::start(Arc::new(Joining), Joining);
//!     state.earlier_leases.admit_followers().await;
//!     rt::sleep(Duration::from_millis(100)).await;
//!     assert!(follower.is_live(), "it holds a lease");
//!
//!     state.add().await;
//!     // A client that has seen the primary's height finds it at the follower too.
//!     assert_eq!(*follower.heights().borrow(), 1);
//! });
//! run.expect("the run succeeds");
//! ```
//!
//! # Parts
//! 1. [`failover`]: several compute nodes find out which of them is the primary. The newest epoch at the storage node
//!    decides (steps 1 to 7 there). [`failover::ComputeNode`] runs a node through its roles; [`PrimaryRole`] says
//!    whether a primary may answer, and who may work for it.
//! 2. [`followers`]: a primary keeps its followers up to date and grants them leases; a follower answers only under a
//!    lease (steps 1 to 11 there). [`FollowerTable`] is the primary's record, [`followers::serve_follower`] and
//!    [`Follower`] are the two ends of a link, and [`followers::message`] has the messages on it.
//! 3. [`followers::work`] and [`offload`]: work that followers do for the primary, and when the primary offloads it.
//! 4. [`load`]: how loaded a node is, by its own report.
//! 5. [`lease`]: how long a lease lasts, and how long others wait for its end. The head of the module has the proof.
//!
//! The layers above implement these traits:
//!
//! | trait | says | implemented by |
//! |---|---|---|
//! | [`failover::PeerRoles`] | what a node does as a follower and as the primary | `chain` |
//! | [`failover::PrimaryPeer`], [`failover::FollowedPeer`] | what such a node answers from | `chain` |
//! | [`ReplicatedState`], [`offload::WorkPlacement`] | how a primary admits followers and places work | `state` |
//! | [`PrimaryState`] | what a follower has missed, and a follower's requests | `state` |
//! | [`ReplicaFactory`], [`Replica`] | how a follower opens its state and applies updates | `state` |
//! | [`FindPrimary`] | where the primary is | `chain`, by [`failover::PrimaryLocator`] |
//! | [`WorkHandler`] | how a follower does work | `chain` |
//!
//! # Guarantees
//! * Of the compute nodes of a peer, only the one with the newest epoch acts as the primary: a follower that asks for
//!   an epoch names the newest one that it knows, and the storage node starts the next epoch only if that one is still
//!   the newest. The storage node rejects writes of every older epoch.
//! * Once a primary has raised a height, every answer at any compute node from then on is at this height or above.
//! * A follower or a primary answers only under a lease that it asked for less than [`lease::LEASE`] ago, by its own
//!   clock. A new primary shows nothing before every lease of the old one has ended.
//! * An answer to offloaded work counts only if its follower holds a lease and had reached the height of the work.
//! * Links, updates, requests and work items of a follower are bounded. A follower that exceeds a bound, or keeps
//!   delaying commits, is fenced and joins again.
//!
//! # What it needs around it
//! * `storage` compares and sets the epoch of a channel durably, and confirms it ([`storage::node`]).
//! * `state` keeps the records: it logs changes, applies them to caches and index, and retires buffers when
//!   [`FollowerTable::acknowledged_below`] allows it.
//! * `chain` commits blocks as the primary, answers proposals from either role, and verifies signatures.
//! * `node` gives addresses, credentials and memory. It starts a compute node, but does not tell it which role it has.
//!
//! The bytes of the messages are in docs/formats/followers.md.
#![deny(missing_docs)]

pub mod error;
pub mod events;
pub mod failover;
#[doc(hidden)]
pub mod fault;
pub mod followers;
pub mod lease;
pub mod load;
pub mod offload;

pub use error::Error;
pub use failover::{CANDIDATES_MAX, ComputeRole, FAILOVER_TIMEOUTS, NODES_MAX, PrimaryRole, ReplicatedState};
pub use followers::{
    Admission, ChangeBatches, EarlierLeases, FailoverTimeouts, FindPrimary, Follower, FollowerTable, JoinedState,
    MissedState, PrimaryState, Replica, ReplicaFactory, WorkHandler, WorkPermit,
};
