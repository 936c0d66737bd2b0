//! The handle of a running Raft node.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use base::rt::channel::{OneshotReceiver, WatchReceiver, bounded, oneshot, watch};
use base::rt::disk::Directory;
use base::rt::sync::Semaphore;
use base::rt::{CancellationToken, guarded, net};
use base::{Bytes, Term, rt};
use raft_rs::eraftpb::Snapshot;
use storage::DataDirectory;

use crate::config::{
    EVENTS_MAX, PROPOSAL_BYTES_MAX, REQUESTS_MAX, RaftConfig, RaftTimeouts, TRANSFER_ELECTIONS, WAITING_MAX,
};
use crate::disk::DiskLog;
use crate::engine::{EngineEvent, RaftEngine, RequestWaiter};
use crate::entries::RaftEntries;
use crate::error::Error;
use crate::incarnations::Incarnations;
use crate::membership::{MembershipChange, MembershipReport, RaftMember, RaftStatus};
use crate::raft_core::RaftCore;
use crate::state_machine::{ProposalOutcome, StateMachine};

/// A node of a group. Clones are the same node; it ends when it is stopped, or the last clone is dropped.
pub struct Raft<O> {
    shared: Arc<RaftCore<O>>,
    alive: Arc<StopOnDrop>,
}

pub(crate) struct StopOnDrop(CancellationToken);

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
    /// them and [`crate::links::fetch`] them.
    ///
    /// # Errors
    /// As [`Raft::start`].
    pub async fn start_serving<M: StateMachine<Output = O>>(
        options: RaftConfig,
        mut machine: M,
        serve: Option<crate::links::ServeEntry>,
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
        let hall = crate::links::AcceptContext { group, node, snapshot_bytes_max, serve, incarnations, events };
        rt::spawn(crate::links::accept(listener, hall, stop.clone()));
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
        crate::fault::mutant(crate::fault::Mutant::ReadWithoutLease) && self.shared.role.borrow().is_leading
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
pub(super) async fn stored<M: StateMachine>(
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
    let snapshot = crate::engine::first_snapshot(&options.founders, &machine.snapshot().await?);
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
