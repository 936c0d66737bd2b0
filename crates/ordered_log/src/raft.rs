//! The ordered log on the Raft engine, with the guarantees of [the crate](crate). Each CPU node has the entries in its
//! own log store.
//!
//! ```text
//!  append ─▶ proposal (position | entry) ─▶ Raft ─▶ machine: the next position? ─▶ writer ─▶ log store ─▶ deliverable
//!                                                                gap? ─▶ entries from other log stores
//! ```
//!
//! 1. An entry is proposed with its position. The machine, which is the same at all nodes, counts positions: an entry
//!    *counts* if its position is the next one, and has no effect otherwise. So a late entry that an earlier leader
//!    proposed cannot take the position of another entry.
//! 2. The writer appends each entry that counts to the log store, and advances `deliverable`. The entry may be shown
//!    then: it is committed, so a majority of the nodes has it in durable logs, and this node can read it. The log
//!    store is synced only when a snapshot is made; after a crash, entries that the log store lacks are taken again
//!    from the engine's log. If the log store already has an entry at the position of an entry that counts, the two
//!    must be the same.
//! 3. The machine's snapshot contains only the count, and is made once the log store has all counted entries on disk. A
//!    node that installs a snapshot lacks entries. Before its writer continues, it fetches them from the log stores of
//!    other members, over a link of kind 3 ([`raft::links`]). If a member sends an entry that cannot follow, the node
//!    asks the next member.
//! 4. A new leader passes a barrier, waits until its log store has all counted entries, and only then reports that it
//!    leads. Its log store then has every committed entry, and only this node proposes in its term. The first entry
//!    that it proposes has the count as its position.
//! 5. A leader may assign a position to an entry that is then not proposed, or is rejected by the engine, or does not
//!    count. That position would be a hole, after which no entry ever counts. So the leader then resigns
//!    ([`Raft::resign`]), and the next leader, in another term, starts at the count again.
//!
//! Why an entry below `deliverable` stays. It was committed, so each node of a majority has it in its Raft log. A
//! snapshot that trims the Raft log is made only when the node's log store has the entry durably.
//!
//! Invariants: a log store holds only committed entries, and is never truncated. Bounded ([`AppendLimits`]): the
//! entries that a leader has appended and that are not deliverable; the entries that a follower has counted and not yet
//! written. A follower with too many unwritten entries accepts no entries from its leader
//! ([`StateMachine::has_capacity`]).

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use base::bytes::BufMut as _;
use base::rt::channel::{OneshotReceiver, Receiver, Sender, WatchReceiver, WatchSender, bounded, watch};
use base::rt::net::BoxFuture;
use base::rt::sync::{Notify, Semaphore, SemaphorePermit};
use base::rt::{self, CancellationToken, Task, guarded};
use base::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use futures_util::future::{Either, select};
use raft::{AppliedEntry, ProposalOutcome, Raft, RaftConfig, StateMachine, links};
use wire::Reader;

use crate::fault::{Mutant, mutant};
use crate::{CpuNodeId, Error, Leadership, LogStore, OrderedLog, Term};

/// Bytes of one entry.
const ENTRY_BYTES_MAX: usize = 32 << 20;
/// Entries that are written before `deliverable` advances.
const BATCH_MAX: usize = 256;
/// A CPU node that lacks more entries than these is not given a vote.
const LEARNER_LAG_MAX: u64 = 64;
/// The pause before a retry.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Bounds on the entries that are not deliverable.
#[derive(Clone, Copy, Debug)]
struct AppendLimits {
    /// Bytes of entries that a leader has appended and that are not deliverable; also the bytes of counted and unwritten
    /// entries beyond which a follower accepts no more.
    bytes: usize,
    /// Entries that a leader has appended and that are not deliverable.
    entries: usize,
}

const APPEND_LIMITS: AppendLimits = AppendLimits { bytes: 48 << 20, entries: 1024 };

const _: () = assert!(APPEND_LIMITS.bytes >= ENTRY_BYTES_MAX && APPEND_LIMITS.entries <= raft::WAITING_MAX);

/// A work item of the writer.
enum DeliveryWork {
    Entry(u64, Bytes),
    /// Entries up to this position are in the log stores of other members.
    Gap(u64),
}

/// The machine's count, and the work that it gives to the writer.
#[derive(Default)]
struct DeliveryQueue {
    next: u64,
    work: VecDeque<DeliveryWork>,
    /// Bytes of the entries in `work`.
    bytes: usize,
    /// Bytes of the entries that the writer has taken and not written yet.
    writing: usize,
}

/// The state of a leader's appends.
struct AppendWindow {
    term: Term,
    next: u64,
    /// The entries that are appended and not deliverable, with their permits.
    in_flight: VecDeque<(u64, [SemaphorePermit; 2])>,
}

struct RaftLogCore {
    limits: AppendLimits,
    delivery: Mutex<DeliveryQueue>,
    more: Notify,
    log_store: Arc<dyn LogStore>,
    deliverable: WatchSender<u64>,
    leadership: WatchSender<Leadership>,
    window: Mutex<Option<AppendWindow>>,
    failed: Mutex<Option<Error>>,
    stop: CancellationToken,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The error with which the engine ends when the log store fails.
fn of_log_store(error: Error) -> raft::Error {
    match error {
        Error::LogStore(reason) => raft::Error::LogStore(reason),
        Error::Invalid(reason) => raft::Error::Invalid(reason),
        Error::Corrupt(reason) => raft::Error::Corrupt(reason),
        Error::Closed => raft::Error::Closed,
        error => raft::Error::LogStore(error.to_string()),
    }
}

/// The machine: counts positions.
struct LogMachine(Arc<RaftLogCore>);

impl StateMachine for LogMachine {
    /// Whether the entry counted.
    type Output = bool;

    fn apply(&mut self, entries: Vec<AppliedEntry>) -> Vec<bool> {
        let mut counted = lock(&self.0.delivery);
        let apply = |entry: AppliedEntry| {
            let mut reader = Reader::new(entry.data);
            let counts = reader.u64().is_ok_and(|position| position == counted.next);
            if counts {
                let position = counted.next;
                counted.next += 1;
                counted.bytes += reader.left();
                counted.work.push_back(DeliveryWork::Entry(position, reader.rest()));
            }
            counts
        };
        let outputs = entries.into_iter().map(apply).collect();
        let next = counted.next;
        drop(counted);
        if mutant(Mutant::SafeUnwritten) {
            self.0.advance_deliverable(next);
        }
        self.0.more.notify_one();
        outputs
    }

    fn snapshot(&mut self) -> BoxFuture<'static, Result<Bytes, raft::Error>> {
        let next = lock(&self.0.delivery).next;
        let (mut safe, journal) = (self.0.deliverable.subscribe(), Arc::clone(&self.0.log_store));
        Box::pin(async move {
            if !mutant(Mutant::SnapshotAhead) {
                safe.wait_for(|safe| *safe >= next).await.map_err(|_| raft::Error::Closed)?;
                let durable = journal.sync().await.map_err(of_log_store)?;
                assert!(durable >= next, "a journal makes all that it has durable");
            }
            Ok(Bytes::copy_from_slice(&next.to_le_bytes()))
        })
    }

    fn restore(&mut self, _index: u64, snapshot: Bytes) -> Result<(), raft::Error> {
        let mut counted = lock(&self.0.delivery);
        counted.next = Reader::new(snapshot).u64()?;
        counted.work.clear();
        counted.bytes = 0;
        let next = counted.next;
        counted.work.push_back(DeliveryWork::Gap(next));
        drop(counted);
        self.0.more.notify_one();
        Ok(())
    }

    /// A founder's log starts with its first start, when the log store has the first entry, which is the same everywhere, and
    /// no more. If the log store has more, the log was lost, and with it the votes and confirmations of this node.
    fn check_bootstrap(&self) -> Result<(), raft::Error> {
        match lock(&self.0.delivery).next {
            0 | 1 => Ok(()),
            next => Err(raft::Error::Invalid(format!(
                "the orderer has {next} blocks and no log of the group: its log was lost, and with it what it has promised to the \
                 others; restore it, or remove this orderer from the group and add another one"
            ))),
        }
    }

    fn has_capacity(&self) -> bool {
        let counted = lock(&self.0.delivery);
        counted.bytes + counted.writing < self.0.limits.bytes
    }
}

/// A proposal that is not answered yet, with its term.
type InFlight = (Term, OneshotReceiver<Result<ProposalOutcome<bool>, raft::Error>>);

/// One CPU node's part in the log. See the module.
pub struct RaftLog {
    raft: Raft<bool>,
    group: u64,
    shared: Arc<RaftLogCore>,
    bytes: Semaphore,
    entries: Semaphore,
    answers: Sender<InFlight>,
    tasks: Mutex<Vec<Task<()>>>,
}

impl RaftLog {
    /// Opens the log. The log store has the same entries at all founders of the group; the nodes' numbers are those of the CPU
    /// nodes.
    ///
    /// # Errors
    /// As [`Raft::start`]; [`Error::LogStore`].
    pub async fn open(options: RaftConfig, log_store: Arc<dyn LogStore>) -> Result<RaftLog, Error> {
        RaftLog::open_within(APPEND_LIMITS, options, log_store).await
    }

    async fn open_within(
        limits: AppendLimits,
        mut options: RaftConfig,
        log_store: Arc<dyn LogStore>,
    ) -> Result<RaftLog, Error> {
        options.uncommitted_bytes_max = options.uncommitted_bytes_max.max(2 * limits.bytes);
        let durable = log_store.sync().await?;
        let shared = Arc::new(RaftLogCore {
            limits,
            delivery: Mutex::new(DeliveryQueue { next: durable, ..DeliveryQueue::default() }),
            more: Notify::new(),
            log_store: Arc::clone(&log_store),
            deliverable: watch(durable).0,
            leadership: watch(Leadership::Following { leader: None }).0,
            window: Mutex::default(),
            failed: Mutex::default(),
            stop: CancellationToken::new(),
        });
        let served = Arc::clone(&shared);
        // An entry that is deliverable here is deliverable everywhere.
        let serve: links::ServeEntry = Arc::new(move |position| {
            let is_safe = position < *served.deliverable.borrow();
            if is_safe { served.log_store.read(position).ok().flatten() } else { None }
        });
        let (group, node) = (options.group, options.node);
        let raft = Raft::start_serving(options, LogMachine(Arc::clone(&shared)), Some(serve)).await?;
        let (answers, waiting) = bounded(limits.entries);
        let ends = |what| {
            let shared = Arc::clone(&shared);
            move || shared.fail(Error::Panicked(what))
        };
        let tasks = vec![
            rt::spawn(guarded(write_entries(raft.clone(), Arc::clone(&shared), (group, node)), ends("the writer"))),
            rt::spawn(guarded(
                follow_leadership(raft.clone(), Arc::clone(&shared)),
                ends("the task that reports the role"),
            )),
            rt::spawn(guarded(
                await_proposals(raft.clone(), Arc::clone(&shared), waiting),
                ends("the task that takes answers"),
            )),
        ];
        let (bytes, entries) = (Semaphore::new(limits.bytes), Semaphore::new(limits.entries));
        Ok(RaftLog { raft, group, shared, bytes, entries, answers, tasks: Mutex::new(tasks) })
    }

    /// The engine below, for changes of its members.
    pub fn raft(&self) -> &Raft<bool> {
        &self.raft
    }

    /// Takes one step towards making a CPU node a member with a vote: adds it as a learner, checks whether it has the entries
    /// that it needs, or gives it its vote. Call this again and again, at whichever CPU node leads, until it returns
    /// [`AdmissionProgress::Voter`]. A step stays done when the leader changes in between.
    ///
    /// # Errors
    /// As [`Raft::add_learner`].
    pub async fn admit(&self, id: u64, address: &str) -> Result<AdmissionProgress, Error> {
        // Another node may lead by now, with other members.
        self.raft.barrier().await?;
        let report = self.raft.membership().await?;
        let Some(standing) = report.members.iter().find(|standing| standing.member.id == id) else {
            self.raft.add_learner(id, address).await?;
            return Ok(AdmissionProgress::Learner { behind: None });
        };
        if standing.member.address != address {
            let at = &standing.member.address;
            return Err(Error::Invalid(format!("node {id} is already a member at {at}, not at {address}")));
        }
        if !standing.member.is_learner {
            return Ok(AdmissionProgress::Voter);
        }
        let is_near = standing.behind.is_some_and(|behind| behind <= LEARNER_LAG_MAX) && standing.heard.is_some();
        // Of a member that installed a snapshot, the engine knows only that it has the count. The member fetches the entries
        // themselves from log stores, and until it has them a majority of log stores may lack them.
        let place = (self.group, self.raft.node());
        if mutant(Mutant::VoteBlank) || is_near && self.has(address, place, id).await {
            self.raft.add_voter(id, address).await?;
            return Ok(AdmissionProgress::Voter);
        }
        Ok(AdmissionProgress::Learner { behind: standing.behind })
    }

    /// Whether a CPU node has, in its log store, the entries that are deliverable here.
    async fn has(&self, address: &str, place: (u64, u64), id: u64) -> bool {
        let Some(last) = self.shared.deliverable.borrow().checked_sub(1) else { return true };
        match links::fetch(address, place, id, last).await {
            Some(mut entries) => entries.next().await.is_some(),
            None => false,
        }
    }
}

/// How far the admission of a CPU node is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AdmissionProgress {
    /// It has no vote yet: it is catching up.
    Learner {
        /// Entries that it is not known to have.
        behind: Option<u64>,
    },
    /// It is a member with a vote.
    Voter,
}

/// Step 5 at the head of this module: looks for entries that got no position.
async fn await_proposals(raft: Raft<bool>, shared: Arc<RaftLogCore>, mut waiting: Receiver<InFlight>) {
    let stop = shared.stop.clone();
    let taking = async {
        while let Some((term, answer)) = waiting.recv().await {
            let counts = matches!(answer.await, Ok(Ok(ProposalOutcome { output: true, .. })));
            if !counts {
                shared.end_term(&raft, term);
            }
        }
    };
    stop.run_until_cancelled(taking).await;
}

/// An entry whose position is taken. If it is dropped before the entry is proposed, the term is over.
struct ProposalGuard<'a>(Option<(&'a RaftLog, Term)>);

impl Drop for ProposalGuard<'_> {
    fn drop(&mut self) {
        if let Some((log, term)) = self.0 {
            log.shared.end_term(&log.raft, term);
        }
    }
}

impl RaftLogCore {
    fn fail(&self, error: Error) {
        lock(&self.failed).get_or_insert(error);
        self.stop.cancel();
    }

    /// Ends appending in a term.
    fn end_term(&self, raft: &Raft<bool>, term: Term) {
        let mut appending = lock(&self.window);
        if appending.as_ref().is_some_and(|appending| appending.term == term) {
            *appending = None;
        }
        drop(appending);
        raft.resign(term);
    }

    /// Advances `deliverable`, and releases the permits of the entries below it.
    fn advance_deliverable(&self, height: u64) {
        self.deliverable.send_if_modified(|safe| {
            let is_more = height > *safe;
            *safe = height.max(*safe);
            is_more
        });
        if let Some(appending) = &mut *lock(&self.window) {
            while appending.in_flight.front().is_some_and(|(position, _)| *position < height) {
                appending.in_flight.pop_front();
            }
        }
    }
}

/// Writes counted entries to the log store.
async fn write_entries(raft: Raft<bool>, shared: Arc<RaftLogCore>, place: (u64, u64)) {
    let stop = shared.stop.clone();
    let writing = async {
        loop {
            let more = shared.more.notified();
            let mut batch = Vec::new();
            {
                let mut counted = lock(&shared.delivery);
                while batch.len() < BATCH_MAX
                    && let Some(work) = counted.work.pop_front()
                {
                    if let DeliveryWork::Entry(_, entry) = &work {
                        counted.bytes -= entry.len();
                        counted.writing += entry.len();
                    }
                    batch.push(work);
                }
            }
            if batch.is_empty() {
                more.await;
                continue;
            }
            for work in batch {
                match work {
                    DeliveryWork::Entry(position, entry) => append(&shared.log_store, position, entry).await?,
                    DeliveryWork::Gap(until) => fetch(&raft, &shared.log_store, place, until).await?,
                }
            }
            lock(&shared.delivery).writing = 0;
            shared.advance_deliverable(shared.log_store.height());
        }
    };
    let outcome: Option<Result<(), Error>> = stop.run_until_cancelled(writing).await;
    if let Some(Err(error)) = outcome {
        shared.fail(error);
    }
}

async fn append(log_store: &Arc<dyn LogStore>, position: u64, entry: Bytes) -> Result<(), Error> {
    if position >= log_store.height() {
        return log_store.append(position, entry).await;
    }
    match log_store.read(position)? {
        Some(had) if had == entry => Ok(()),
        _ => Err(Error::Corrupt("the log store of this node has another entry than the committed one")),
    }
}

/// Fetches entries from other members until the log store has all below a position.
async fn fetch(
    raft: &Raft<bool>,
    log_store: &Arc<dyn LogStore>,
    group_and_node: (u64, u64),
    until: u64,
) -> Result<(), Error> {
    while log_store.height() < until {
        for member in raft.members().into_iter().filter(|member| member.id != raft.node()) {
            let mut from = match links::fetch(&member.address, group_and_node, member.id, log_store.height()).await {
                Some(from) => from,
                None => continue,
            };
            while log_store.height() < until
                && let Some(entry) = from.next().await
            {
                match log_store.append(log_store.height(), entry).await {
                    // The other member's fault.
                    Err(Error::Invalid(reason)) => {
                        tracing::warn!(
                            node = raft.node(),
                            from = member.id,
                            reason,
                            "an entry from another node does not extend this log"
                        );
                        break;
                    }
                    appended => appended?,
                }
            }
        }
        if log_store.height() < until {
            rt::sleep(RETRY_PAUSE).await;
        }
    }
    // No log has these entries that this CPU node could read again after a crash: they are durable before it reports that it
    // has them.
    log_store.sync().await?;
    Ok(())
}

/// Reports the role of this CPU node, and that it leads only once it may append.
async fn follow_leadership(raft: Raft<bool>, shared: Arc<RaftLogCore>) {
    let mut role = raft.status();
    let stop = shared.stop.clone();
    let following = async {
        loop {
            let now = *role.borrow_and_update();
            if now.is_leading {
                let ready = async {
                    if mutant(Mutant::LeadAtOnce) {
                        return shared.log_store.height();
                    }
                    while raft.barrier().await.is_err() {
                        rt::sleep(RETRY_PAUSE).await;
                    }
                    let next = lock(&shared.delivery).next;
                    let _ = shared.deliverable.subscribe().wait_for(|safe| *safe >= next).await;
                    next
                };
                let mut ready = std::pin::pin!(ready);
                let mut changed = std::pin::pin!(role.changed());
                if let Either::Left((next, _)) = select(&mut ready, &mut changed).await {
                    let term = now.term;
                    *lock(&shared.window) = Some(AppendWindow { term, next, in_flight: VecDeque::new() });
                    shared.leadership.send(Leadership::Leading { term, next });
                    if changed.await.is_err() {
                        return;
                    }
                }
                *lock(&shared.window) = None;
                continue;
            }
            shared.leadership.send(Leadership::Following { leader: now.leader.map(CpuNodeId) });
            if role.changed().await.is_err() {
                return;
            }
        }
    };
    stop.run_until_cancelled(following).await;
    *lock(&shared.window) = None;
    shared.leadership.send(Leadership::Following { leader: None });
}

#[async_trait]
impl OrderedLog for RaftLog {
    fn leadership(&self) -> WatchReceiver<Leadership> {
        self.shared.leadership.subscribe()
    }

    fn deliverable(&self) -> WatchReceiver<u64> {
        self.shared.deliverable.subscribe()
    }

    async fn append(&self, term: Term, position: u64, entry: Bytes) -> Result<(), Error> {
        crate::check(&entry, ENTRY_BYTES_MAX.min(self.shared.limits.bytes))?;
        let is_leading = |appending: &Option<AppendWindow>| appending.as_ref().is_some_and(|now| now.term == term);
        if !is_leading(&lock(&self.shared.window)) {
            return Err(if self.shared.stop.is_cancelled() { Error::Closed } else { Error::Fenced(term) });
        }
        let bytes = u32::try_from(entry.len()).expect("it was just checked");
        let room = async { [self.entries.acquire().await, self.bytes.acquire_many(bytes).await] };
        let room = self.shared.stop.run_until_cancelled(room).await.ok_or(Error::Closed)?;
        {
            let mut appending = lock(&self.shared.window);
            let Some(appending) = appending.as_mut().filter(|appending| appending.term == term) else {
                return Err(Error::Fenced(term));
            };
            if appending.next != position {
                let next = appending.next;
                return Err(Error::Invalid(format!("position {position}: the next one is {next}")));
            }
            appending.next += 1;
            appending.in_flight.push_back((position, room));
        }
        let mut unproposed = ProposalGuard(Some((self, term)));
        let mut data = BytesMut::with_capacity(8 + entry.len());
        data.put_u64_le(position);
        data.put_slice(&entry);
        let answer = self.raft.propose_in_term(term, data.freeze()).await?;
        self.answers.send((term, answer)).await.map_err(|_| Error::Closed)?;
        unproposed.0 = None;
        Ok(())
    }

    fn entry_bytes_max(&self) -> usize {
        ENTRY_BYTES_MAX.min(self.shared.limits.bytes)
    }

    async fn ended(&self) -> Error {
        let failed = async {
            self.shared.stop.cancelled().await;
            lock(&self.shared.failed).clone().unwrap_or(Error::Closed)
        };
        let (mut ended, mut failed) = (std::pin::pin!(self.raft.ended().map(Error::from)), std::pin::pin!(failed));
        select(&mut ended, &mut failed).await.factor_first().0
    }

    async fn stop(&self) {
        self.shared.stop.cancel();
        self.raft.stop().await;
        let tasks = std::mem::take(&mut *lock(&self.tasks));
        for task in tasks {
            // A task is aborted only together with the runtime.
            let _ = task.await;
        }
    }
}

impl Drop for RaftLog {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

impl fmt::Debug for RaftLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RaftLog({:?})", self.raft)
    }
}
