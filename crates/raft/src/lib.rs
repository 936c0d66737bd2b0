//! Raft: the consensus engine for networks without a memory pool, and the baseline against which Sift is measured. The `raft`
//! crate, below *the crate*, implements the algorithm (Ongaro and Ousterhout, In search of an understandable consensus
//! algorithm, 2014, with pre-vote, check-quorum and learners as in Ongaro's thesis). This module adds time, disks, links, reads
//! and the state machine.
//!
//! ```
//! use base::rt::{self, net::BoxFuture, simulation::Simulation};
//! use base::Bytes;
//! use raft::{AppliedEntry, Error, Raft, RaftConfig, RaftMember, StateMachine};
//! use std::time::Duration;
//!
//! /// Counts entries.
//! struct Counter(u64);
//!
//! impl StateMachine for Counter {
//!     type Output = u64;
//!
//!     fn apply(&mut self, entries: Vec<AppliedEntry>) -> Vec<u64> {
//!         (self.0 + 1..).zip(&entries).map(|(count, _)| (self.0 = count, count).1).collect()
//!     }
//!
//!     fn snapshot(&mut self) -> BoxFuture<'static, Result<Bytes, Error>> {
//!         let count = Bytes::copy_from_slice(&self.0.to_le_bytes());
//!         Box::pin(async move { Ok(count) })
//!     }
//!
//!     fn restore(&mut self, _index: u64, snapshot: Bytes) -> Result<(), Error> {
//!         let count = snapshot[..].try_into().map_err(|_| Error::Corrupt("a count has eight bytes"))?;
//!         self.0 = u64::from_le_bytes(count);
//!         Ok(())
//!     }
//! }
//!
//! let report = Simulation::new(7).run(|_| async {
//!     let member = |id| RaftMember { id, address: format!("node-{id}"), is_learner: false };
//!     let mut nodes = Vec::new();
//!     for id in 1..=3 {
//!         nodes.push(Raft::start(RaftConfig::new(1, id, (1..=3).map(member).collect()), Counter(0)).await?);
//!     }
//!     // One node is elected. A proposal completes once its entry is committed and applied there.
//!     loop {
//!         for node in &nodes {
//!             match node.propose(Bytes::from_static(b"an entry")).await {
//!                 Err(Error::NotLeading(_) | Error::Busy) => {}
//!                 outcome => return outcome.map(|done| done.output),
//!             }
//!         }
//!         rt::sleep(Duration::from_millis(10)).await;
//!     }
//! });
//! assert_eq!(report.expect("the run succeeds").value, Ok(1));
//! ```
//!
//! # Protocol
//!
//! ```text
//!  callers ── propose, barrier, change ──▶ engine (one task a node) ── frames ──▶ other nodes' engines
//!                                            │   │    ▲
//!                         Machine ◀─ apply ──┘   └────┴── records, group fsync: log-…, snapshot-…
//! ```
//!
//! 1. One task ([`engine`]) takes all events that have arrived (proposals, messages, ticks, completed syncs) at once, gives
//!    them to the crate, and does what the crate then asks for. So many proposals share one step of the crate, one record on
//!    disk, and one message to each member.
//! 2. A leader sends entries while it writes them to its own disk; it counts itself into the majority only once they are
//!    durable there (thesis, 10.2.1). A follower confirms entries, and votes, once term, vote and entries are durable. Only one
//!    sync runs at a time; records that are written during a sync are made durable by the next one ([`disk`]).
//! 3. An entry that a majority has made durable is committed. It is then applied to the [`StateMachine`], and its proposer gets
//!    the result.
//! 4. A leader that loses its leadership answers all waiting callers with [`Error::Ambiguous`].
//! 5. A read needs no entry. Either it reads the machine of a leader and then checks that the leader's *lease* stands
//!    ([`Raft::may_read`]), or it passes a [`Raft::barrier`] and then reads the machine.
//! 6. When the log on disk is long, a snapshot of the machine replaces it. If a member lacks entries that the leader has
//!    dropped, the leader sends it a snapshot, over a separate link ([`links`]).
//! 7. Members change one at a time: a new member starts as a learner and then gets a vote (`ordered_log::raft::RaftLog::admit`), or a member is
//!    removed ([`Raft::remove`]). The log and the snapshots contain the members and their addresses; [`RaftConfig::addresses`]
//!    overrides these addresses.
//!
//! The lease. A leader sends a round of heartbeats at time t by its clock, and a majority of voters answers them. While the
//! lease from that round stands, no other leader is elected. Only this leader then commits entries, and its machine has every
//! entry whose proposer it has answered, so a read of the machine is current.
//!
//! Why no other leader is elected. From the moment at which a voter receives the heartbeat, it abstains (neither votes nor
//! stands for election) for one election time-out by its own clock. The time-out is counted in ticks, and the first tick may be
//! due at once, so only (election - 1) full ticks are certain. Ticks are never closer together than [`RaftTimeouts::tick`],
//! even after a late tick. A node that has just started abstains for a full election time-out, since it may have answered a
//! heartbeat before it ended. An election needs the vote of at least one voter of that majority. Hence no other leader is
//! elected before t + (election - 1) ticks, less the drift of both clocks ([`base::lease`]). Nodes also ignore
//! requests for a vote that would override a lease. Therefore a leader that hands over ([`Raft::transfer_leadership`]) steps
//! down and does not stand for election for a while, and the others elect a leader as if it had crashed.
//!
//! When the lease stands: from the moment at which the leader has applied all entries that were committed when the round
//! started. These include all entries of earlier terms, since the crate starts a round only after an entry of the leader's own
//! term is committed. The lease ends with every change of members. When a leader loses its leadership, the lease ends before
//! the node sends any message that follows from the loss.
//!
//! Randomness. The crate draws election time-outs from a random generator of its own. This module gives it a range of a single
//! value instead, and delays each node's candidacy by a random number of ticks from `base::rt`. So in a simulation the seed
//! determines the elections too.
//!
//! # Guarantees
//!
//! The simulation in `kv`'s `tests/kv/raft_simulation` checks them under faults:
//! * A term has at most one leader.
//! * Every node, also after each of its restarts, applies the same entry at an index; that entry was proposed.
//! * An entry whose proposer got its result is never lost while a majority of the disks survives (without directories: a
//!   majority of the nodes).
//! * Reads are linearizable.
//! * Damage before the last records of a log ends the node; it is told apart from a torn tail ([`disk`]).
//! * After a node has lost its log, members that have heard of it before accept neither its votes nor its confirmations
//!   ([`incarnations`]).
//! * At most one node, of all processes, uses a directory at a time.
//! * Bounded: waiting proposals ([`WAITING_MAX`]), waiting reads and changes ([`REQUESTS_MAX`]), uncommitted entries
//!   ([`RaftConfig::uncommitted_bytes_max`]), frames in flight, and entries in memory. The applied entries in memory are
//!   [`RaftConfig::log_bytes`], up to four times as much while a member lags. A node with a directory also keeps the entries
//!   since its last snapshot: [`RaftConfig::snapshot_after_bytes`], and the entries that are applied while the next snapshot is
//!   made.
//!
//! Without a directory nothing is durable: the group lasts as long as a majority of its nodes. A node that ends has then lost
//! the record of its votes. It must not start again under its number: it is removed, and added under another number.
//!
//! # What it needs around it
//!
//! * `storage` locks a node's directory. Links are those of [`base::rt::net`], whose transport authenticates the members; all
//!   of them trust one another. Clocks drift by at most [`base::lease::CLOCK_DRIFT_PPM_MAX`].
//! * `ordered_log` has an ordered log on this engine, in which each CPU node keeps the entries in a log store of its own; `kv`
//!   has a key-value store on it as the baseline of its own.
//! * The layers above decide what entries mean, and who becomes a member.
#![deny(missing_docs)]

mod codec;
mod disk;
mod engine;
mod entries;
mod error;
pub mod fault;
#[doc(hidden)]
pub mod fuzz;
mod incarnations;
pub mod links;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::Bytes;
use base::rt::channel::{OneshotReceiver, Sender, WatchReceiver, WatchSender, bounded, oneshot, watch};
use base::rt::disk::Directory;
use base::rt::net::{self, BoxFuture};
use base::rt::sync::Semaphore;
use base::rt::{self, CancellationToken, Instant, guarded};
use raft_rs::eraftpb::Snapshot;
use storage::DataDirectory;

pub use base::Term;
#[doc(hidden)]
use disk::DiskLog;
use engine::{EngineEvent, RaftEngine, RequestWaiter};
use entries::RaftEntries;
pub use error::Error;
use incarnations::Incarnations;

/// Proposals that are not answered yet.
pub const WAITING_MAX: usize = 4096;
/// Reads behind a barrier, and changes of members, that are not answered yet.
pub const REQUESTS_MAX: usize = 1024;
/// For how many election time-outs a node that hands over lets others go first.
const TRANSFER_ELECTIONS: u32 = 4;
/// Other events that are queued for the engine: messages, links, syncs.
const EVENTS_MAX: usize = 4096;
/// Bytes of one proposal.
pub const PROPOSAL_BYTES_MAX: usize = 64 << 20;

/// The state machine that the entries change. Every node of a group has one, and all of them reach the same state.
pub trait StateMachine: Send + 'static {
    /// The result of an entry, for its proposer.
    type Output: Default + Send + 'static;

    /// Applies entries, in order; returns an output for each. Its behaviour may depend only on these entries and the earlier
    /// ones.
    fn apply(&mut self, entries: Vec<AppliedEntry>) -> Vec<Self::Output>;

    /// A snapshot of the current state, which the future may complete later and on another thread.
    fn snapshot(&mut self) -> BoxFuture<'static, Result<Bytes, Error>>;

    /// Replaces the state by a snapshot, which has everything up to an index.
    ///
    /// # Errors
    /// [`Error::Corrupt`]; ends the node.
    fn restore(&mut self, index: u64, snapshot: Bytes) -> Result<(), Error>;

    /// Whether this node may start with the group's first snapshot: it has no log, and is one of the founders of the group.
    ///
    /// # Errors
    /// Evidence that this is not its first start; ends the node.
    fn check_bootstrap(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Whether it has capacity for more entries. While it has not, a follower accepts no entries from its leader. A leader
    /// proposes regardless, and must wait by itself.
    fn has_capacity(&self) -> bool {
        true
    }
}

/// A committed entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AppliedEntry {
    /// Its index. Indexes of entries that are no proposals are skipped.
    pub index: u64,
    /// The term of the leader that appended it.
    pub term: Term,
    /// The proposed bytes; never empty.
    pub data: Bytes,
}

/// The outcome of a proposal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProposalOutcome<O> {
    /// The entry's index.
    pub index: u64,
    /// The entry's term.
    pub term: Term,
    /// The machine's output.
    pub output: O,
}

/// A node of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RaftMember {
    /// Its number, never 0, and never the number of an earlier node.
    pub id: u64,
    /// Where it listens: an address of [`base::rt::net`].
    pub address: String,
    /// It gets entries and has no vote.
    pub is_learner: bool,
}

/// A member, and its state as the leader sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberHealth {
    /// The member.
    pub member: RaftMember,
    /// Entries of the leader's log that the member is not known to have. Only the leader knows.
    pub behind: Option<u64>,
    /// When the leader last heard from it, in this term; for the leader itself, now.
    pub heard: Option<Instant>,
}

/// What a node knows of its group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MembershipReport {
    /// The node's own role.
    pub status: RaftStatus,
    /// The members, by number, after the changes that the node has applied.
    pub members: Vec<MemberHealth>,
}

/// A change of the members.
#[derive(Clone, PartialEq, Eq, Debug)]
enum MembershipChange {
    Learn(RaftMember),
    Vote(RaftMember),
    Remove(u64),
}

/// Times of a group; the same at all its nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RaftTimeouts {
    /// The unit of all others.
    pub tick: Duration,
    /// Ticks between a leader's heartbeats.
    pub heartbeat_ticks: u32,
    /// Ticks without a heartbeat after which a node stands for election, plus up to as many again at random.
    pub election_ticks: u32,
}

impl Default for RaftTimeouts {
    fn default() -> RaftTimeouts {
        RaftTimeouts { tick: Duration::from_millis(10), heartbeat_ticks: 3, election_ticks: 20 }
    }
}

impl RaftTimeouts {
    /// For busy machines, such as those of orderers: another member leads within a second or so.
    pub fn of_busy_machines() -> RaftTimeouts {
        RaftTimeouts { tick: Duration::from_millis(25), ..RaftTimeouts::default() }
    }

    /// How long after sending heartbeats that a majority answered no other leader is elected. See the module.
    fn lease(&self) -> Duration {
        base::lease::held(self.tick * (self.election_ticks - 1))
    }

    fn check(&self) -> Result<(), Error> {
        let is_good = !self.tick.is_zero()
            && self.heartbeat_ticks > 0
            && self.election_ticks > 2 * self.heartbeat_ticks
            && self.election_ticks <= 10_000;
        is_good.then_some(()).ok_or_else(|| {
            Error::Invalid("the Raft timing is invalid: an election time-out must exceed two heartbeats".into())
        })
    }
}

/// The configuration of a node.
#[derive(Clone, Debug)]
pub struct RaftConfig {
    /// The group.
    pub group: u64,
    /// This node's number in it.
    pub node: u64,
    /// The address at which this node listens. Other nodes connect to the address that the group's member list has.
    pub listen: String,
    /// The directory of its log; without one nothing is durable.
    pub directory: Option<PathBuf>,
    /// The founding members of the group, this node included and the same at each of them; used if the directory is blank.
    /// Empty for a node that is added to an existing group.
    pub founders: Vec<RaftMember>,
    /// Addresses of members, by number, that override those in the group's log, for members that have moved since.
    pub addresses: BTreeMap<u64, String>,
    /// Times.
    pub timing: RaftTimeouts,
    /// Followers may learn of a commit with the next entry instead of at once, which saves messages.
    pub is_commit_lazy: bool,
    /// The most bytes of uncommitted entries.
    pub uncommitted_bytes_max: usize,
    /// Bytes of applied entries that are kept in memory for members that lag.
    pub log_bytes: usize,
    /// Bytes of entries after which the log on disk is replaced by a snapshot.
    pub snapshot_after_bytes: usize,
    /// Bytes of the log's segments on disk; `None` for the default.
    pub segment_bytes: Option<u64>,
    /// The most bytes of a snapshot that this node accepts.
    pub snapshot_bytes_max: usize,
}

impl RaftConfig {
    /// For a node that founds a group or resumes in it, with sizes and times that suit most groups.
    pub fn new(group: u64, node: u64, founders: Vec<RaftMember>) -> RaftConfig {
        let listen = founders.iter().find(|member| member.id == node).map(|member| member.address.clone());
        RaftConfig {
            group,
            node,
            listen: listen.unwrap_or_default(),
            directory: None,
            founders,
            addresses: BTreeMap::new(),
            timing: RaftTimeouts::default(),
            is_commit_lazy: false,
            uncommitted_bytes_max: 64 << 20,
            log_bytes: 32 << 20,
            snapshot_after_bytes: 256 << 20,
            segment_bytes: None,
            snapshot_bytes_max: 4 << 30,
        }
    }

    fn check(&self) -> Result<(), Error> {
        self.timing.check()?;
        if self.group == 0 || self.node == 0 || self.founders.iter().any(|member| member.id == 0) {
            return Err(Error::Invalid("the numbers of Raft groups and nodes start at 1".into()));
        }
        if self.founders.len() > codec::MEMBERS_MAX {
            return Err(Error::Invalid(format!("a Raft group has at most {} members", codec::MEMBERS_MAX)));
        }
        let ids: std::collections::BTreeSet<u64> = self.founders.iter().map(|member| member.id).collect();
        if ids.len() < self.founders.len() {
            return Err(Error::Invalid("two founders of a Raft group have the same number".into()));
        }
        if !self.founders.is_empty() && self.founders.iter().all(|member| member.is_learner) {
            return Err(Error::Invalid("a Raft group needs at least one founder with a vote".into()));
        }
        Ok(())
    }
}

/// The current role of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RaftStatus {
    /// The newest term that it knows.
    pub term: Term,
    /// The leader of that term, as far as it knows.
    pub leader: Option<u64>,
    /// Whether this node is the leader.
    pub is_leading: bool,
}

/// State that callers and the task share.
struct RaftCore<O> {
    node: u64,
    /// The incarnation of its log.
    incarnation: u64,
    events: Sender<EngineEvent<O>>,
    permits: Semaphore,
    requests: Semaphore,
    /// Until when, by this node's clock, no other leader is elected; 0 without a lease.
    lease_until: AtomicU64,
    applied: AtomicU64,
    /// It does not lead in terms up to this one any more.
    resigned: AtomicU64,
    /// Until when, by this node's clock, it does not stand for election while there is no leader.
    abstains_until: AtomicU64,
    role: WatchSender<RaftStatus>,
    members: Mutex<Vec<RaftMember>>,
    ended: Mutex<Option<Error>>,
    /// The task has ended.
    stop: CancellationToken,
}

impl<O> RaftCore<O> {
    /// Called when the task has ended and no longer touches its directory.
    fn end(&self, error: Error, stop: &CancellationToken) {
        if error != Error::Closed {
            tracing::error!(%error, node = self.node, "a Raft node ends");
        }
        self.lease_until.store(0, Ordering::SeqCst);
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        let term = self.role.borrow().term;
        self.role.send(RaftStatus { term, leader: None, is_leading: false });
        stop.cancel();
        self.stop.cancel();
    }
}

/// A node of a group. Clones are the same node; it ends when it is stopped, or the last clone is dropped.
pub struct Raft<O> {
    shared: Arc<RaftCore<O>>,
    alive: Arc<StopOnDrop>,
}

struct StopOnDrop(CancellationToken);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl<O> Clone for Raft<O> {
    fn clone(&self) -> Raft<O> {
        Raft { shared: Arc::clone(&self.shared), alive: Arc::clone(&self.alive) }
    }
}

impl<O: Default + Send + 'static> Raft<O> {
    /// Starts a node: with the content of its directory, or as a founder, or as a node that waits to be added. The machine must
    /// be in a founder's initial state.
    ///
    /// # Errors
    /// [`Error::Invalid`] for inconsistent options or a directory of another node; [`Error::Locked`] for a directory in which
    /// another node runs; [`Error::Corrupt`] for a damaged log; [`Error::LogStore`].
    pub async fn start<M: StateMachine<Output = O>>(options: RaftConfig, machine: M) -> Result<Raft<O>, Error> {
        Raft::start_serving(options, machine, None).await
    }

    /// As [`Raft::start`], and serves entries of another log, such as an ordered log on this engine, to members that lack
    /// them and [`links::fetch`] them.
    ///
    /// # Errors
    /// As [`Raft::start`].
    pub async fn start_serving<M: StateMachine<Output = O>>(
        options: RaftConfig,
        mut machine: M,
        serve: Option<links::ServeEntry>,
    ) -> Result<Raft<O>, Error> {
        options.check()?;
        let (disk, incarnations, state) = stored(&options, &mut machine).await?;
        let incarnations = Arc::new(incarnations);
        let listener = net::listen(&options.listen)
            .await
            .map_err(|error| Error::Invalid(format!("cannot listen at {}: {error}", options.listen)))?;
        // All callers hold permits, so that they leave space in the queue for the messages of members.
        let (events, receiver) = bounded(EVENTS_MAX + WAITING_MAX + REQUESTS_MAX);
        let stop = CancellationToken::new();
        let role = RaftStatus { term: Term(state.0.hard.term), ..RaftStatus::default() };
        let shared = Arc::new(RaftCore {
            node: options.node,
            incarnation: incarnations.own(),
            events: events.clone(),
            permits: Semaphore::new(WAITING_MAX),
            requests: Semaphore::new(REQUESTS_MAX),
            lease_until: AtomicU64::new(0),
            applied: AtomicU64::new(state.0.base().0),
            resigned: AtomicU64::new(0),
            abstains_until: AtomicU64::new(0),
            role: watch(role).0,
            members: Mutex::default(),
            ended: Mutex::default(),
            stop: CancellationToken::new(),
        });
        let RaftConfig { group, node, snapshot_bytes_max, .. } = options;
        let engine = RaftEngine::new(options, Arc::clone(&shared), state, disk, machine, events.clone(), stop.clone())?;
        let hall = links::AcceptContext { group, node, snapshot_bytes_max, serve, incarnations, events };
        rt::spawn(links::accept(listener, hall, stop.clone()));
        let (ending, stopping) = (Arc::clone(&shared), stop.clone());
        rt::spawn(guarded(engine.run(receiver), move || ending.end(Error::Panicked("a Raft node"), &stopping)));
        Ok(Raft { shared, alive: Arc::new(StopOnDrop(stop)) })
    }

    /// Proposes an entry; completes when it is applied here, or will not be. If the future is dropped, the entry may still be
    /// applied.
    ///
    /// # Errors
    /// [`Error::NotLeading`] and [`Error::Busy`], in which case nothing was done; [`Error::Ambiguous`]; [`Error::Invalid`] for
    /// an empty or too long entry; [`Error::Closed`].
    pub async fn propose(&self, data: Bytes) -> Result<ProposalOutcome<O>, Error> {
        self.propose_if(None, data).await?.await.map_err(|_| Error::Ambiguous)?
    }

    /// As [`Raft::propose`], but only under a term; completes when the engine has the proposal. The returned receiver completes
    /// as [`Raft::propose`] does.
    ///
    /// # Errors
    /// As [`Raft::propose`]; [`Error::Fenced`] if this node does not lead in that term.
    pub async fn propose_in_term(
        &self,
        term: Term,
        data: Bytes,
    ) -> Result<OneshotReceiver<Result<ProposalOutcome<O>, Error>>, Error> {
        self.propose_if(Some(term), data).await
    }

    async fn propose_if(
        &self,
        term: Option<Term>,
        data: Bytes,
    ) -> Result<OneshotReceiver<Result<ProposalOutcome<O>, Error>>, Error> {
        if data.is_empty() || data.len() > PROPOSAL_BYTES_MAX {
            return Err(Error::Invalid(format!("a proposal has 1 to {PROPOSAL_BYTES_MAX} bytes")));
        }
        let permit = self.shared.permits.acquire().await;
        let (answer, answered) = oneshot();
        self.shared
            .events
            .send(EngineEvent::Propose { data, term, answer, permit })
            .await
            .map_err(|_| Error::Closed)?;
        Ok(answered)
    }

    /// Steps down if this node leads in the term or an earlier one; another election follows after a while. Returns at once.
    pub fn resign(&self, term: Term) {
        self.shared.resigned.fetch_max(term.0, Ordering::AcqRel);
    }

    /// Whether a read of this node's machine, made before this call, is linearizable. It costs a look at the clock.
    pub fn may_read(&self) -> bool {
        fault::mutant(fault::Mutant::ReadWithoutLease) && self.shared.role.borrow().is_leading
            || rt::now().nanos() < self.shared.lease_until.load(Ordering::SeqCst)
    }

    /// Completes when this node has been proved to lead after the call, and has applied everything that was committed before
    /// it: reads of its machine afterwards are linearizable.
    ///
    /// # Errors
    /// [`Error::NotLeading`]; [`Error::Busy`] when it has just been elected; [`Error::Closed`].
    pub async fn barrier(&self) -> Result<(), Error> {
        let permit = self.shared.requests.acquire().await;
        let (answer, answered) = oneshot();
        self.shared
            .events
            .send(EngineEvent::Barrier(RequestWaiter { answer, permit }))
            .await
            .map_err(|_| Error::Closed)?;
        answered.await.map_err(|_| Error::Closed)?
    }

    /// Adds a node that gets entries and has no vote.
    ///
    /// # Errors
    /// [`Error::NotLeading`]; [`Error::Busy`] while another change is under way; [`Error::Invalid`]; [`Error::Ambiguous`].
    pub async fn add_learner(&self, id: u64, address: &str) -> Result<(), Error> {
        self.change(MembershipChange::Learn(RaftMember { id, address: address.to_owned(), is_learner: true })).await
    }

    /// Gives a node a vote; it should have caught up as a learner before.
    ///
    /// # Errors
    /// As [`Raft::add_learner`].
    pub async fn add_voter(&self, id: u64, address: &str) -> Result<(), Error> {
        self.change(MembershipChange::Vote(RaftMember { id, address: address.to_owned(), is_learner: false })).await
    }

    /// Removes a node other than the leader itself. The node ends with [`Error::Removed`] if it learns of its removal, and
    /// never leads again in any case. Its number is not used again. Does nothing if the node is no member.
    ///
    /// # Errors
    /// As [`Raft::add_learner`]; [`Error::WouldStall`] when the leader hears from no majority of the voters that would be left.
    pub async fn remove(&self, id: u64) -> Result<(), Error> {
        self.change(MembershipChange::Remove(id)).await
    }

    async fn change(&self, change: MembershipChange) -> Result<(), Error> {
        if let MembershipChange::Learn(RaftMember { id: 0, .. }) | MembershipChange::Vote(RaftMember { id: 0, .. }) =
            &change
        {
            return Err(Error::Invalid("the numbers of Raft nodes start at 1".into()));
        }
        let permit = self.shared.requests.acquire().await;
        let (answer, answered) = oneshot();
        self.shared
            .events
            .send(EngineEvent::Change(change, RequestWaiter { answer, permit }))
            .await
            .map_err(|_| Error::Closed)?;
        answered.await.map_err(|_| Error::Ambiguous)?
    }

    /// Steps down, if this node leads, and lets others stand for election first. Returns at once. Another node leads after
    /// about as long as after a crash of this one, or this node again if no other can.
    pub fn transfer_leadership(&self, timing: &RaftTimeouts) {
        let abstains = timing.tick * timing.election_ticks * TRANSFER_ELECTIONS;
        self.shared.abstains_until.store((rt::now() + abstains).nanos(), Ordering::Release);
        self.resign(self.shared.role.borrow().term);
    }

    /// What this node knows of its group.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub async fn membership(&self) -> Result<MembershipReport, Error> {
        let permit = self.shared.requests.acquire().await;
        let (answer, answered) = oneshot();
        self.shared.events.send(EngineEvent::Report(answer, permit)).await.map_err(|_| Error::Closed)?;
        answered.await.map_err(|_| Error::Closed)
    }

    /// The role of this node. A receiver may miss short-lived ones.
    pub fn status(&self) -> WatchReceiver<RaftStatus> {
        self.shared.role.subscribe()
    }

    /// The index of the last entry that is applied here.
    pub fn applied(&self) -> u64 {
        self.shared.applied.load(Ordering::Acquire)
    }

    /// The members, after the changes that this node has applied.
    pub fn members(&self) -> Vec<RaftMember> {
        self.shared.members.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// This node's number.
    pub fn node(&self) -> u64 {
        self.shared.node
    }

    /// Completes when the node has ended, with the reason.
    pub async fn ended(&self) -> Error {
        self.shared.stop.cancelled().await;
        self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or(Error::Closed)
    }

    /// Stops the node. On return it no longer touches its directory, except for a sync that is in flight, and another node may
    /// use it.
    pub async fn stop(&self) {
        self.alive.0.cancel();
        self.shared.stop.cancelled().await;
    }
}

/// The stored state of a node: its log, the members that it knows, and the snapshot to start with.
async fn stored<M: StateMachine>(
    options: &RaftConfig,
    machine: &mut M,
) -> Result<(Option<DiskLog>, Incarnations, (RaftEntries, Snapshot)), Error> {
    let (mut disk, mut incarnations) = (None, Incarnations::volatile());
    if let Some(path) = &options.directory {
        let journal = |error: &dyn fmt::Display| Error::LogStore(format!("{}: {error}", path.display()));
        let directory = Directory::open(path).await.map_err(|error| journal(&error))?;
        let owned = DataDirectory::lock(directory).await.map_err(|error| match error {
            storage::Error::Locked { path } => Error::Locked(path),
            error @ storage::Error::Version { .. } => Error::Invalid(error.to_string()),
            error => journal(&format_args!("taking a node's directory: {error}")),
        })?;
        let kept = owned.clone();
        let (opened, found) = DiskLog::open(owned, options.group, options.node, options.segment_bytes).await?;
        if let Some(found) = found {
            return Ok((Some(opened), Incarnations::open(kept, false).await?, found));
        }
        if options.founders.iter().any(|founder| founder.id == options.node) {
            machine.check_bootstrap()?;
        }
        incarnations = Incarnations::open(kept, true).await?;
        disk = Some(opened);
    }
    let snapshot = engine::first_snapshot(&options.founders, &machine.snapshot().await?);
    if let Some(disk) = &disk {
        // From here on the directory is not blank: the node remembers its votes.
        disk.snapshots().save(&snapshot).await?;
    }
    let metadata = snapshot.get_metadata();
    let mut entries = RaftEntries::at(metadata.index, metadata.term, metadata.get_conf_state().clone());
    (entries.hard.term, entries.hard.commit) = (metadata.term, metadata.index);
    Ok((disk, incarnations, (entries, snapshot)))
}

impl<O> fmt::Debug for Raft<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Raft({} {:?})", self.shared.node, *self.shared.role.borrow())
    }
}
