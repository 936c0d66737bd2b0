//! Raft: the second engine, for where no memory pool exists, and the baseline beside which the first is measured. The algorithm
//! is the `raft` crate's (Ongaro and Ousterhout, In search of an understandable consensus algorithm, 2014, with pre-vote,
//! check-quorum and learners as in Ongaro's thesis); time, disks, links, reads and the machine that entries change are here.
//!
//! ```text
//!  callers ── propose, barrier, change ──▶ engine (one task a node) ── frames ──▶ other nodes' engines
//!                                            │   │    ▲
//!                         Machine ◀─ apply ──┘   └────┴── records, group fsync: log-…, snapshot-…
//! ```
//!
//! 1. One task ([`engine`]) takes what has come (proposals, messages, ticks, syncs that returned) as much at once as there is, gives
//!    it to the crate, and does what the crate then wants. Many proposals become one step of the crate, one record on disk, one
//!    message to each member.
//! 2. A leader sends entries while it makes them durable itself; it counts itself only once they are (thesis, 10.2.1).
//!    Whoever follows confirms entries, and votes, once term, vote and entries are durable. Syncs follow one another; what is
//!    written during one is made durable by the next ([`disk`]).
//! 3. An entry that a majority has as durable is committed. It is applied to the [`Machine`], then its proposer is answered.
//! 4. Whoever loses the lead answers all that wait with [`Error::Ambiguous`].
//! 5. A read needs no entry: it is made of the machine of a leader whose *lease* stands ([`Raft::may_read`], asked after the read), or
//!    behind a [`Raft::barrier`].
//! 6. When the log on disk is long, the machine's snapshot replaces it. A member that lacks entries which are forgotten gets a
//!    snapshot over a link of its own ([`links`]).
//! 7. Members are added, first as learners, and removed, one at a time ([`RaftLog::admit`], [`Raft::remove`]). Who is a member, and
//!    where, is in log and snapshots; where a node was told that another has moved ([`Options::addresses`]), that counts.
//!
//! The lease. A leader sends heartbeats at its time t, and a majority of voters answers them. Each of these gives no vote, and
//! does not stand for election itself, for an election time-out of its own clock from when it heard; a tick that was just about to
//! come may make that one tick less. A node that has just started gives no vote for as long, since it may have promised before it
//! ended. An election needs one of them. So until t + (election - 1) ticks, less what clocks may drift apart
//! ([`Timing::drift_ppm_max`], of both), no other leader is elected and nothing is committed but by this one, whose machine has
//! everything that it has answered. A lease stands only once the leader has applied what was committed when that round of heartbeats
//! was answered, which includes all of earlier terms, since the crate takes no such round before an entry of its own term is
//! committed. It ends with every change of members and before any message is sent that follows the loss of the lead. Ticks are
//! never closer together than [`Timing::tick`], however late one was. Votes that would ignore a lease are not given: a leader that
//! hands over ([`Raft::hand_over`]) leads no more, does not stand for a while, and the others elect as if it had crashed.
//!
//! Chance. The crate draws election time-outs from a generator of its own. It is given a range of one value, and each node holds
//! its ticks back before it stands, by a number from `base::rt`: so a simulation's seed decides.
//!
//! Invariants (the simulation in `tests/consensus/raft_simulation` checks them under faults):
//! * A term has at most one leader.
//! * What is applied at an index is the same at every node and in every life of it, and was proposed.
//! * What was answered is never lost: while a majority of disks outlives what happens, or, without disks, a majority of nodes.
//! * Reads are linearizable.
//! * A log that is damaged before its last records ends its node; it is not taken for a short one ([`disk`]).
//! * A node whose log was lost has no vote, and confirms nothing, at members that have heard of it before ([`incarnations`]).
//! * A directory has one node at a time, of all processes.
//! * Bounded: proposals that wait ([`WAITING_MAX`]), reads and changes that wait ([`ASKING_MAX`]), entries that are not committed
//!   ([`Options::uncommitted_bytes_max`]), frames on their way, and entries in memory: [`Options::log_bytes`], four times that while a
//!   member lags, and at a node with a directory also those that its last snapshot has not: [`Options::snapshot_after_bytes`], and what
//!   is applied while the next one is made.
//!
//! [`RaftLog`] is an ordered log on it ([`crate::ordered`]), with each processor's entries in a journal of its own.
//!
//! Without a directory nothing is durable: the group lives as long as a majority of its nodes does. A node that ended has then lost
//! what it voted for, and must not come back under its number; it is removed, and added under another.

mod codec;
mod disk;
mod engine;
mod entries;
pub mod fault;
#[doc(hidden)]
pub mod fuzz;
mod incarnations;
pub mod kv;
mod links;
mod ordered;
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
use base::rt::{self, Instant, Stop};
use raft::eraftpb::Snapshot;

use crate::guard::guarded;
use crate::owned::own;
use crate::{Error, Term};
use disk::DiskLog;
use engine::{Asker, Engine, Event};
use entries::Entries;
use incarnations::Incarnations;
pub use ordered::{Admission, RaftLog};

/// Proposals that are not answered.
pub const WAITING_MAX: usize = 4096;
/// Reads behind a barrier, and changes of members, that are not answered.
pub const ASKING_MAX: usize = 1024;
/// For how many times of an election a node that hands over lets others go first.
const HAND_OVER_ELECTIONS: u32 = 4;
/// What else is on its way to the engine: messages, links, syncs.
const EVENTS_MAX: usize = 4096;
/// Bytes of one proposal.
pub const PROPOSAL_BYTES_MAX: usize = 64 << 20;

/// What entries change. Every node of a group has one, and all become the same.
pub trait Machine: Send + 'static {
    /// What comes of an entry, for whoever proposed it.
    type Output: Default + Send + 'static;

    /// Takes over entries, in order; gives an output for each. Only entries and what came before may decide what it does.
    fn apply(&mut self, entries: Vec<Applied>) -> Vec<Self::Output>;

    /// All of it as it is now, to be finished later and elsewhere.
    fn snapshot(&mut self) -> BoxFuture<'static, Result<Bytes, Error>>;

    /// Becomes what a snapshot says, which has everything up to an index.
    ///
    /// # Errors
    /// [`Error::Corrupt`]; ends the node.
    fn restore(&mut self, index: u64, snapshot: Bytes) -> Result<(), Error>;

    /// Whether this node may begin with the group's first snapshot: it has no log, and is one of those that found the group.
    ///
    /// # Errors
    /// What shows that it is not the first time; ends the node.
    fn may_found(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Whether it takes more. While it does not, a node that follows takes no entries from its leader; a leader proposes what it
    /// will, and must wait by itself.
    fn has_room(&self) -> bool {
        true
    }
}

/// An entry that is committed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Applied {
    /// Its index. Those of other entries than proposals are skipped.
    pub index: u64,
    /// The term of whoever appended it.
    pub term: Term,
    /// What was proposed; never empty.
    pub data: Bytes,
}

/// What came of a proposal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Proposed<O> {
    /// The entry's index.
    pub index: u64,
    /// The entry's term.
    pub term: Term,
    /// What the machine gave.
    pub output: O,
}

/// A node of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its number, never 0, and never that of another node before it.
    pub id: u64,
    /// Where it listens: an address of [`base::rt::net`].
    pub address: String,
    /// It gets entries and has no vote.
    pub learns: bool,
}

/// A member, and how it is as the leader sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Standing {
    /// Who.
    pub member: Member,
    /// Entries of the leader's log that it is not known to have. Only the leader knows.
    pub behind: Option<u64>,
    /// When the leader heard of it last, in this reign; itself, now.
    pub heard: Option<Instant>,
}

/// What a node knows of its group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// What it is itself.
    pub role: Role,
    /// The members, as far as it has applied changes, by their numbers.
    pub members: Vec<Standing>,
}

/// A change of the members.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Change {
    Learn(Member),
    Vote(Member),
    Remove(u64),
}

/// Times of a group; the same at all its nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// What all others are counted in.
    pub tick: Duration,
    /// Ticks between a leader's heartbeats.
    pub heartbeat_ticks: u32,
    /// Ticks without a heartbeat after which a node stands for election, and up to as many again by chance.
    pub election_ticks: u32,
    /// How fast or slow a clock may go, in millionths.
    pub drift_ppm_max: u32,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing { tick: Duration::from_millis(10), heartbeat_ticks: 3, election_ticks: 20, drift_ppm_max: 10_000 }
    }
}

impl Timing {
    /// Of machines with much else to do, as orderers have: another member leads within a second or so.
    pub fn of_busy_machines() -> Timing {
        Timing { tick: Duration::from_millis(25), ..Timing::default() }
    }

    /// For how long nobody else is elected after heartbeats were sent that a majority answered. See the module.
    fn lease(&self) -> Duration {
        let promised = self.tick * (self.election_ticks - 1);
        promised - promised.mul_f64(f64::from(self.drift_ppm_max) * 2.0 / 1e6)
    }

    fn check(&self) -> Result<(), Error> {
        let is_good = !self.tick.is_zero()
            && self.heartbeat_ticks > 0
            && self.election_ticks > 2 * self.heartbeat_ticks
            && self.election_ticks <= 10_000
            && self.drift_ppm_max < 100_000;
        is_good.then_some(()).ok_or_else(|| {
            Error::Invalid(
                "an election's time-out is more than two heartbeats, and clocks drift by less than a tenth".into(),
            )
        })
    }
}

/// What a node is to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// The group.
    pub group: u64,
    /// This node's number in it.
    pub node: u64,
    /// Where this node listens. Others connect to what the group's members say.
    pub listen: String,
    /// Where it keeps its log; without one nothing is durable.
    pub directory: Option<PathBuf>,
    /// The members that found the group, this node included and the same at each of them; used where the directory is blank.
    /// Empty for a node that is added to a group that exists.
    pub founders: Vec<Member>,
    /// Where members listen, by their numbers, if that is not where the group's log says: they have moved since it was written.
    pub addresses: BTreeMap<u64, String>,
    /// Times.
    pub timing: Timing,
    /// Those who follow may learn of a commit with the next entry, and not at once: fewer messages.
    pub is_commit_lazy: bool,
    /// Bytes of entries that are not committed.
    pub uncommitted_bytes_max: usize,
    /// Bytes of applied entries that are kept in memory for members that lag.
    pub log_bytes: usize,
    /// Bytes of entries after which the log on disk is replaced by a snapshot.
    pub snapshot_after_bytes: usize,
    /// Bytes of the log's segments on disk; as it is best, without a value.
    pub segment_bytes: Option<u64>,
    /// Bytes of a snapshot that this node takes.
    pub snapshot_bytes_max: usize,
}

impl Options {
    /// For a node that founds a group or goes on in it, with the sizes and times that suit most.
    pub fn new(group: u64, node: u64, founders: Vec<Member>) -> Options {
        let listen = founders.iter().find(|member| member.id == node).map(|member| member.address.clone());
        Options {
            group,
            node,
            listen: listen.unwrap_or_default(),
            directory: None,
            founders,
            addresses: BTreeMap::new(),
            timing: Timing::default(),
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
            return Err(Error::Invalid("groups and nodes are counted from 1".into()));
        }
        if self.founders.len() > codec::MEMBERS_MAX {
            return Err(Error::Invalid(format!("a Raft group has at most {} members", codec::MEMBERS_MAX)));
        }
        let ids: std::collections::BTreeSet<u64> = self.founders.iter().map(|member| member.id).collect();
        if ids.len() < self.founders.len() {
            return Err(Error::Invalid("two founders of a Raft group have one number".into()));
        }
        if !self.founders.is_empty() && self.founders.iter().all(|member| member.learns) {
            return Err(Error::Invalid("somebody in a Raft group has a vote".into()));
        }
        Ok(())
    }
}

/// What a node is at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Role {
    /// The newest term that it knows.
    pub term: Term,
    /// Who leads in it, as far as it knows.
    pub leader: Option<u64>,
    /// Whether that is this node.
    pub is_leading: bool,
}

/// What callers and the task share.
struct Shared<O> {
    node: u64,
    /// Which log it has.
    incarnation: u64,
    events: Sender<Event<O>>,
    permits: Semaphore,
    asking: Semaphore,
    /// Until when, by this node's clock, nobody else is elected; 0 without a lease.
    lease_until: AtomicU64,
    applied: AtomicU64,
    /// Up to this term it is to lead no more.
    resigned: AtomicU64,
    /// Until when, by this node's clock, it does not stand for election while nobody leads.
    abstains_until: AtomicU64,
    role: WatchSender<Role>,
    members: Mutex<Vec<Member>>,
    ended: Mutex<Option<Error>>,
    /// The task has ended.
    over: Stop,
}

impl<O> Shared<O> {
    /// The task has ended: nothing of it touches its directory any more.
    fn end(&self, error: Error, stop: &Stop) {
        if error != Error::Closed {
            tracing::error!(%error, node = self.node, "a Raft node ends");
        }
        self.lease_until.store(0, Ordering::SeqCst);
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        let term = self.role.borrow().term;
        self.role.send(Role { term, leader: None, is_leading: false });
        stop.stop();
        self.over.stop();
    }
}

/// A node of a group. Clones are the same one; it ends when it is stopped, or the last clone is dropped.
pub struct Raft<O> {
    shared: Arc<Shared<O>>,
    alive: Arc<Alive>,
}

struct Alive(Stop);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl<O> Clone for Raft<O> {
    fn clone(&self) -> Raft<O> {
        Raft { shared: Arc::clone(&self.shared), alive: Arc::clone(&self.alive) }
    }
}

impl<O: Default + Send + 'static> Raft<O> {
    /// Starts a node: with what its directory has, or as a founder, or as one that waits to be added. The machine is as a founder's
    /// is at first.
    ///
    /// # Errors
    /// [`Error::Invalid`] for options that make no sense or a directory of another node; [`Error::Locked`] for one in which another
    /// node runs; [`Error::Corrupt`] for a damaged log; [`Error::Journal`].
    pub async fn start<M: Machine<Output = O>>(options: Options, machine: M) -> Result<Raft<O>, Error> {
        Raft::start_serving(options, machine, None).await
    }

    /// As [`Raft::start`], with entries for members that lack them.
    async fn start_serving<M: Machine<Output = O>>(
        options: Options,
        mut machine: M,
        serve: Option<links::Serve>,
    ) -> Result<Raft<O>, Error> {
        options.check()?;
        let (disk, incarnations, state) = stored(&options, &mut machine).await?;
        let incarnations = Arc::new(incarnations);
        let listener = net::listen(&options.listen)
            .await
            .map_err(|error| Error::Invalid(format!("listening at {}: {error}", options.listen)))?;
        // Callers of all kinds have permits, so that they leave room in the queue for what members send.
        let (events, receiver) = bounded(EVENTS_MAX + WAITING_MAX + ASKING_MAX);
        let stop = Stop::new();
        let role = Role { term: Term(state.0.hard.term), ..Role::default() };
        let shared = Arc::new(Shared {
            node: options.node,
            incarnation: incarnations.own(),
            events: events.clone(),
            permits: Semaphore::new(WAITING_MAX),
            asking: Semaphore::new(ASKING_MAX),
            lease_until: AtomicU64::new(0),
            applied: AtomicU64::new(state.0.base().0),
            resigned: AtomicU64::new(0),
            abstains_until: AtomicU64::new(0),
            role: watch(role).0,
            members: Mutex::default(),
            ended: Mutex::default(),
            over: Stop::new(),
        });
        let Options { group, node, snapshot_bytes_max, .. } = options;
        let engine = Engine::new(options, Arc::clone(&shared), state, disk, machine, events.clone(), stop.clone())?;
        let hall = links::Hall { group, node, snapshot_bytes_max, serve, incarnations, events };
        rt::spawn(links::accept(listener, hall, stop.clone()));
        let (ending, stopping) = (Arc::clone(&shared), stop.clone());
        rt::spawn(guarded(engine.run(receiver), move || ending.end(Error::Panicked("a Raft node"), &stopping)));
        Ok(Raft { shared, alive: Arc::new(Alive(stop)) })
    }

    /// Proposes an entry; completes when it is applied here, or will not be. When the future is dropped it may still be.
    ///
    /// # Errors
    /// [`Error::NotLeading`] and [`Error::Busy`], in which case nothing was done; [`Error::Ambiguous`]; [`Error::Invalid`] for
    /// an empty or too long one; [`Error::Closed`].
    pub async fn propose(&self, data: Bytes) -> Result<Proposed<O>, Error> {
        self.propose_if(None, data).await?.await.map_err(|_| Error::Ambiguous)?
    }

    /// As [`Raft::propose`], but only under a term; completes when the engine has it. What is given completes as that does.
    ///
    /// # Errors
    /// As there; [`Error::Fenced`] where this node does not lead in that term.
    pub async fn propose_under(
        &self,
        term: Term,
        data: Bytes,
    ) -> Result<OneshotReceiver<Result<Proposed<O>, Error>>, Error> {
        self.propose_if(Some(term), data).await
    }

    async fn propose_if(
        &self,
        term: Option<Term>,
        data: Bytes,
    ) -> Result<OneshotReceiver<Result<Proposed<O>, Error>>, Error> {
        if data.is_empty() || data.len() > PROPOSAL_BYTES_MAX {
            return Err(Error::Invalid(format!("a proposal has 1 to {PROPOSAL_BYTES_MAX} bytes")));
        }
        let permit = self.shared.permits.acquire().await;
        let (answer, answered) = oneshot();
        self.shared.events.send(Event::Propose { data, term, answer, permit }).await.map_err(|_| Error::Closed)?;
        Ok(answered)
    }

    /// Leads no more in a term, if it does; there is another election after a while. Returns at once.
    fn resign(&self, term: Term) {
        self.shared.resigned.fetch_max(term.0, Ordering::AcqRel);
    }

    /// Whether what was read of this node's machine before is what a linearizable read gives. It costs a look at the clock.
    pub fn may_read(&self) -> bool {
        fault::mutant(fault::Mutant::ReadWithoutLease) && self.shared.role.borrow().is_leading
            || rt::now().nanos() < self.shared.lease_until.load(Ordering::SeqCst)
    }

    /// Completes when this node has been proved to lead after the call, and has applied all that was committed before it: what
    /// is read of its machine afterwards is linearizable.
    ///
    /// # Errors
    /// [`Error::NotLeading`]; [`Error::Busy`] when it has just been elected; [`Error::Closed`].
    pub async fn barrier(&self) -> Result<(), Error> {
        let permit = self.shared.asking.acquire().await;
        let (answer, answered) = oneshot();
        self.shared.events.send(Event::Barrier(Asker { answer, permit })).await.map_err(|_| Error::Closed)?;
        answered.await.map_err(|_| Error::Closed)?
    }

    /// Adds a node that gets entries and has no vote.
    ///
    /// # Errors
    /// [`Error::NotLeading`]; [`Error::Busy`] while another change is under way; [`Error::Invalid`]; [`Error::Ambiguous`].
    pub async fn add_learner(&self, id: u64, address: &str) -> Result<(), Error> {
        self.change(Change::Learn(Member { id, address: address.to_owned(), learns: true })).await
    }

    /// Gives a node a vote: best one that has learned everything before.
    ///
    /// # Errors
    /// As [`Raft::add_learner`].
    pub async fn add_voter(&self, id: u64, address: &str) -> Result<(), Error> {
        self.change(Change::Vote(Member { id, address: address.to_owned(), learns: false })).await
    }

    /// Removes a node other than the leader itself; it ends with [`Error::Removed`] if it learns of it, and leads never again in any
    /// case. Its number is not used again. Nothing happens where it is no member.
    ///
    /// # Errors
    /// As [`Raft::add_learner`]; [`Error::WouldStall`] when those with a vote that would be left are not heard of by a majority of
    /// them.
    pub async fn remove(&self, id: u64) -> Result<(), Error> {
        self.change(Change::Remove(id)).await
    }

    async fn change(&self, change: Change) -> Result<(), Error> {
        if let Change::Learn(Member { id: 0, .. }) | Change::Vote(Member { id: 0, .. }) = &change {
            return Err(Error::Invalid("nodes are counted from 1".into()));
        }
        let permit = self.shared.asking.acquire().await;
        let (answer, answered) = oneshot();
        self.shared.events.send(Event::Change(change, Asker { answer, permit })).await.map_err(|_| Error::Closed)?;
        answered.await.map_err(|_| Error::Ambiguous)?
    }

    /// Leads no more, if it does, and lets others stand for election first. Returns at once; another node leads after about as
    /// long as if this one had crashed, or this one again where no other can.
    pub fn hand_over(&self, timing: &Timing) {
        let abstains = timing.tick * timing.election_ticks * HAND_OVER_ELECTIONS;
        self.shared.abstains_until.store((rt::now() + abstains).nanos(), Ordering::Release);
        self.resign(self.shared.role.borrow().term);
    }

    /// What this node knows of its group.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub async fn report(&self) -> Result<Report, Error> {
        let permit = self.shared.asking.acquire().await;
        let (answer, answered) = oneshot();
        self.shared.events.send(Event::Report(answer, permit)).await.map_err(|_| Error::Closed)?;
        answered.await.map_err(|_| Error::Closed)
    }

    /// What this node is. A receiver may miss what was over quickly.
    pub fn role(&self) -> WatchReceiver<Role> {
        self.shared.role.subscribe()
    }

    /// The index of the last entry that is applied here.
    pub fn applied(&self) -> u64 {
        self.shared.applied.load(Ordering::Acquire)
    }

    /// The members, as far as this node has applied changes.
    pub fn members(&self) -> Vec<Member> {
        self.shared.members.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// This node's number.
    pub fn node(&self) -> u64 {
        self.shared.node
    }

    /// Completes when the node has ended, with the reason.
    pub async fn ended(&self) -> Error {
        self.shared.over.stopped().await;
        self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or(Error::Closed)
    }

    /// Ends it. On return nothing of it touches its directory any more, but a sync that is under way, and another may have it.
    pub async fn stop(&self) {
        self.alive.0.stop();
        self.shared.over.stopped().await;
    }
}

/// What a node has: its log, whom it knows, and the snapshot to begin with.
async fn stored<M: Machine>(
    options: &Options,
    machine: &mut M,
) -> Result<(Option<DiskLog>, Incarnations, (Entries, Snapshot)), Error> {
    let (mut disk, mut incarnations) = (None, Incarnations::volatile());
    if let Some(path) = &options.directory {
        let journal = |error: &dyn fmt::Display| Error::Journal(format!("{}: {error}", path.display()));
        let directory = Directory::open(path).await.map_err(|error| journal(&error))?;
        let owned = own(directory).await.map_err(|error| match error {
            Error::Disk { .. } => journal(&error),
            error => error,
        })?;
        let kept = owned.clone();
        let (opened, found) = DiskLog::open(owned, options.group, options.node, options.segment_bytes).await?;
        if let Some(found) = found {
            return Ok((Some(opened), Incarnations::open(kept, false).await?, found));
        }
        if options.founders.iter().any(|founder| founder.id == options.node) {
            machine.may_found()?;
        }
        incarnations = Incarnations::open(kept, true).await?;
        disk = Some(opened);
    }
    let snapshot = engine::first_snapshot(&options.founders, &machine.snapshot().await?);
    if let Some(disk) = &disk {
        // From here on the directory is not blank: what this node votes for is remembered.
        disk.snapshots().save(&snapshot).await?;
    }
    let metadata = snapshot.get_metadata();
    let mut entries = Entries::at(metadata.index, metadata.term, metadata.get_conf_state().clone());
    (entries.hard.term, entries.hard.commit) = (metadata.term, metadata.index);
    Ok((disk, incarnations, (entries, snapshot)))
}

impl<O> fmt::Debug for Raft<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Raft({} {:?})", self.shared.node, *self.shared.role.borrow())
    }
}
