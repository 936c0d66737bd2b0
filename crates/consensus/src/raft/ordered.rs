//! The ordered log on the Raft engine: what [`crate::ordered`] promises, with each processor's entries in its own journal.
//!
//! ```text
//!  append ─▶ proposal (position | entry) ─▶ Raft ─▶ machine: is it the next position? ─▶ writer ─▶ Journal ─▶ safe
//!                                                                     gap? ─▶ entries of other processors' journals
//! ```
//!
//! 1. An entry is proposed with its position. The machine, the same at all nodes, counts positions: an entry counts if its
//!    position is the next one, and is nothing otherwise. So one that an earlier leader proposed, and that comes late, takes
//!    nobody's place.
//! 2. What counts goes to the writer, which appends it to the journal, and moves `safe`: it is committed, so a majority of the nodes
//!    has it in durable logs, and can be read here. The journal itself is synced when a snapshot is made, and not before: after a
//!    crash what it lacks is read again from the engine's log. An entry that the journal has already then must be the same there.
//! 3. The engine's snapshot is the count alone, and is made once the journal has all that is counted on disk. A node that takes
//!    one over lacks entries; it gets them from the journals of other members, over a link that begins with the hello of kind 3
//!    ([`super::links`]), before it goes on. One that gives what cannot follow is passed over for the next.
//! 4. Whoever leads is told so behind a barrier, when its journal has all that is counted: nothing that is agreed on is missing, and
//!    nobody but it proposes in its term. It goes on at the count.
//! 5. A position that was taken for an entry which is then not proposed, or not taken by the engine, or does not count, would be a
//!    hole, behind which nothing ever counts. So the node then resigns ([`Raft::resign`]): whoever leads next, in another term,
//!    begins at the count again.
//!
//! Why an entry below `safe` stays: it was committed, so a majority of logs has it, or what they have of it is in journals, durable,
//! since a snapshot that lets the log go waits for that.
//!
//! Invariants: a journal holds committed entries alone and is never cut; entries that a leader has appended and that are not safe
//! are bounded, here ([`Bounds`]); so are those that a node which follows has counted and not written: with too many it takes none from
//! its leader ([`Machine::has_room`]).

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
use base::rt::sync::{Notify, Permit, Semaphore};
use base::rt::{self, Stop, Task};
use base::{Bytes, BytesMut};
use futures_util::future::{Either, select};

use super::codec::Reader;
use super::{Applied, Machine, Options, Proposed, Raft, links};
use crate::guard::guarded;
use crate::ordered::fault::{Mutant, mutant};
use crate::ordered::{self, Journal, OrderedLog, Processor, Role};
use crate::{Error, Term};

/// Bytes of one entry.
const ENTRY_BYTES_MAX: usize = 32 << 20;
/// Entries that are written before `safe` moves.
const BATCH_MAX: usize = 256;
/// With more entries than these to go, a processor is not given a vote.
const BEHIND_MAX: u64 = 64;
/// How long to wait before something is tried again.
const PAUSE: Duration = Duration::from_millis(20);

/// How much there may be that is not safe.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// Bytes of entries that a leader has appended and that are not safe; and of those that are counted and not written, beyond
    /// which a node that follows takes no more.
    bytes: usize,
    /// Entries that a leader has appended and that are not safe.
    entries: usize,
}

const BOUNDS: Bounds = Bounds { bytes: 48 << 20, entries: 1024 };

const _: () = assert!(BOUNDS.bytes >= ENTRY_BYTES_MAX && BOUNDS.entries <= super::WAITING_MAX);

/// What the writer is to do.
enum Work {
    Entry(u64, Bytes),
    /// Entries up to this position are in journals of others.
    Gap(u64),
}

/// What the machine counts, and hands to the writer.
#[derive(Default)]
struct Counted {
    next: u64,
    work: VecDeque<Work>,
    /// Bytes of its entries.
    bytes: usize,
    /// Bytes of those that the writer has taken and not written yet.
    writing: usize,
}

/// Where a leader is.
struct Appending {
    term: Term,
    next: u64,
    /// What is appended and not safe, and the room that it takes.
    unsafe_entries: VecDeque<(u64, [Permit; 2])>,
}

struct Shared {
    bounds: Bounds,
    counted: Mutex<Counted>,
    more: Notify,
    journal: Arc<dyn Journal>,
    safe: WatchSender<u64>,
    role: WatchSender<Role>,
    appending: Mutex<Option<Appending>>,
    failed: Mutex<Option<Error>>,
    stop: Stop,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The machine: counts.
struct Count(Arc<Shared>);

impl Machine for Count {
    /// Whether it counted.
    type Output = bool;

    fn apply(&mut self, entries: Vec<Applied>) -> Vec<bool> {
        let mut counted = lock(&self.0.counted);
        let apply = |entry: Applied| {
            let mut reader = Reader(entry.data);
            let counts = reader.u64().is_ok_and(|position| position == counted.next);
            if counts {
                let position = counted.next;
                counted.next += 1;
                counted.bytes += reader.0.len();
                counted.work.push_back(Work::Entry(position, reader.0));
            }
            counts
        };
        let outputs = entries.into_iter().map(apply).collect();
        let next = counted.next;
        drop(counted);
        if mutant(Mutant::SafeUnwritten) {
            self.0.show(next);
        }
        self.0.more.notify_one();
        outputs
    }

    fn snapshot(&mut self) -> BoxFuture<'static, Result<Bytes, Error>> {
        let next = lock(&self.0.counted).next;
        let (mut safe, journal) = (self.0.safe.subscribe(), Arc::clone(&self.0.journal));
        Box::pin(async move {
            if !mutant(Mutant::SnapshotAhead) {
                safe.wait_for(|safe| *safe >= next).await.map_err(|_| Error::Closed)?;
                let durable = journal.sync().await?;
                assert!(durable >= next, "a journal makes all that it has durable");
            }
            Ok(Bytes::copy_from_slice(&next.to_le_bytes()))
        })
    }

    fn restore(&mut self, _index: u64, snapshot: Bytes) -> Result<(), Error> {
        let mut counted = lock(&self.0.counted);
        counted.next = Reader(snapshot).u64()?;
        counted.work.clear();
        counted.bytes = 0;
        let next = counted.next;
        counted.work.push_back(Work::Gap(next));
        drop(counted);
        self.0.more.notify_one();
        Ok(())
    }

    /// A founder's log begins with its first start, when the journal has the entry that all begin with and no more. Where it has
    /// more, the log was lost, and with it what this node has voted for and confirmed.
    fn may_found(&self) -> Result<(), Error> {
        match lock(&self.0.counted).next {
            0 | 1 => Ok(()),
            next => Err(Error::Invalid(format!(
                "the orderer has {next} blocks and no log of the group: its log was lost, and with it what it has promised to the \
                 others; restore it, or remove this orderer from the group and add another one"
            ))),
        }
    }

    fn has_room(&self) -> bool {
        let counted = lock(&self.0.counted);
        counted.bytes + counted.writing < self.0.bounds.bytes
    }
}

/// A proposal of a term that is not answered.
type InFlight = (Term, OneshotReceiver<Result<Proposed<bool>, Error>>);

/// One processor's part. See the module.
pub struct RaftLog {
    raft: Raft<bool>,
    group: u64,
    shared: Arc<Shared>,
    bytes: Semaphore,
    entries: Semaphore,
    answers: Sender<InFlight>,
    tasks: Mutex<Vec<Task<()>>>,
}

impl RaftLog {
    /// Opens it. The journal has the same entries at all founders of the group; the nodes' numbers are the processors'.
    ///
    /// # Errors
    /// As [`Raft::start`]; [`Error::Journal`].
    pub async fn open(options: Options, journal: Arc<dyn Journal>) -> Result<RaftLog, Error> {
        RaftLog::open_within(BOUNDS, options, journal).await
    }

    async fn open_within(bounds: Bounds, mut options: Options, journal: Arc<dyn Journal>) -> Result<RaftLog, Error> {
        options.uncommitted_bytes_max = options.uncommitted_bytes_max.max(2 * bounds.bytes);
        let durable = journal.sync().await?;
        let shared = Arc::new(Shared {
            bounds,
            counted: Mutex::new(Counted { next: durable, ..Counted::default() }),
            more: Notify::new(),
            journal: Arc::clone(&journal),
            safe: watch(durable).0,
            role: watch(Role::Following { leader: None }).0,
            appending: Mutex::default(),
            failed: Mutex::default(),
            stop: Stop::new(),
        });
        let served = Arc::clone(&shared);
        // What is safe here is safe everywhere.
        let serve: links::Serve = Arc::new(move |position| {
            let is_safe = position < *served.safe.borrow();
            if is_safe { served.journal.read(position).ok().flatten() } else { None }
        });
        let (group, node) = (options.group, options.node);
        let raft = Raft::start_serving(options, Count(Arc::clone(&shared)), Some(serve)).await?;
        let (answers, waiting) = bounded(bounds.entries);
        let ends = |what| {
            let shared = Arc::clone(&shared);
            move || shared.fail(Error::Panicked(what))
        };
        let tasks = vec![
            rt::spawn(guarded(write(raft.clone(), Arc::clone(&shared), (group, node)), ends("its writer"))),
            rt::spawn(guarded(follow_role(raft.clone(), Arc::clone(&shared)), ends("what tells its role"))),
            rt::spawn(guarded(take_answers(raft.clone(), Arc::clone(&shared), waiting), ends("what takes answers"))),
        ];
        let (bytes, entries) = (Semaphore::new(bounds.bytes), Semaphore::new(bounds.entries));
        Ok(RaftLog { raft, group, shared, bytes, entries, answers, tasks: Mutex::new(tasks) })
    }

    /// The engine below, for changes of its members.
    pub fn raft(&self) -> &Raft<bool> {
        &self.raft
    }

    /// Goes one step towards making a processor a member with a vote: adds it as one that learns, looks whether it has what it needs, or
    /// gives it its vote. To be called again and again, of whichever processor leads, until it says [`Admission::Votes`]. What is done
    /// stays done when the leader changes in between.
    ///
    /// # Errors
    /// As [`Raft::add_learner`].
    pub async fn admit(&self, id: u64, address: &str) -> Result<Admission, Error> {
        // Another one may lead by now, and have other members.
        self.raft.barrier().await?;
        let report = self.raft.report().await?;
        let Some(standing) = report.members.iter().find(|standing| standing.member.id == id) else {
            self.raft.add_learner(id, address).await?;
            return Ok(Admission::Learns { behind: None });
        };
        if standing.member.address != address {
            let at = &standing.member.address;
            return Err(Error::Invalid(format!("node {id} is a member at {at}, and not at {address}")));
        }
        if !standing.member.learns {
            return Ok(Admission::Votes);
        }
        let is_near = standing.behind.is_some_and(|behind| behind <= BEHIND_MAX) && standing.heard.is_some();
        // Of what it took over with a snapshot, the engine knows that it has been told the count; the entries themselves it gets from
        // journals, and until it has them a majority of journals may be without it.
        let place = (self.group, self.raft.node());
        if mutant(Mutant::VoteBlank) || is_near && self.has(address, place, id).await {
            self.raft.add_voter(id, address).await?;
            return Ok(Admission::Votes);
        }
        Ok(Admission::Learns { behind: standing.behind })
    }

    /// Whether a processor has, in its journal, what is safe here.
    async fn has(&self, address: &str, place: (u64, u64), id: u64) -> bool {
        let Some(last) = self.shared.safe.borrow().checked_sub(1) else { return true };
        match links::fetch(address, place, id, last).await {
            Some(mut entries) => entries.next().await.is_some(),
            None => false,
        }
    }
}

/// How far a processor is that is to be a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// It has no vote yet: it gets what it lacks.
    Learns {
        /// Entries that it is not known to have.
        behind: Option<u64>,
    },
    /// It is a member with a vote.
    Votes,
}

/// Step 5 at the head of this module: looks for entries that got no place.
async fn take_answers(raft: Raft<bool>, shared: Arc<Shared>, mut waiting: Receiver<InFlight>) {
    let stop = shared.stop.clone();
    let taking = async {
        while let Some((term, answer)) = waiting.recv().await {
            let counts = matches!(answer.await, Ok(Ok(Proposed { output: true, .. })));
            if !counts {
                shared.give_up(&raft, term);
            }
        }
    };
    stop.or_stopped(taking).await;
}

/// An entry whose position is taken. Unless it is proposed, the term is over.
struct Unproposed<'a>(Option<(&'a RaftLog, Term)>);

impl Drop for Unproposed<'_> {
    fn drop(&mut self) {
        if let Some((log, term)) = self.0 {
            log.shared.give_up(&log.raft, term);
        }
    }
}

impl Shared {
    fn fail(&self, error: Error) {
        lock(&self.failed).get_or_insert(error);
        self.stop.stop();
    }

    /// Nothing more is appended in a term.
    fn give_up(&self, raft: &Raft<bool>, term: Term) {
        let mut appending = lock(&self.appending);
        if appending.as_ref().is_some_and(|appending| appending.term == term) {
            *appending = None;
        }
        drop(appending);
        raft.resign(term);
    }

    /// Moves `safe`, and gives the room back of what is.
    fn show(&self, height: u64) {
        self.safe.send_if_modified(|safe| {
            let is_more = height > *safe;
            *safe = height.max(*safe);
            is_more
        });
        if let Some(appending) = &mut *lock(&self.appending) {
            while appending.unsafe_entries.front().is_some_and(|(position, _)| *position < height) {
                appending.unsafe_entries.pop_front();
            }
        }
    }
}

/// Brings what is counted into the journal.
async fn write(raft: Raft<bool>, shared: Arc<Shared>, place: (u64, u64)) {
    let stop = shared.stop.clone();
    let writing = async {
        loop {
            let more = shared.more.notified();
            let mut batch = Vec::new();
            {
                let mut counted = lock(&shared.counted);
                while batch.len() < BATCH_MAX
                    && let Some(work) = counted.work.pop_front()
                {
                    if let Work::Entry(_, entry) = &work {
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
                    Work::Entry(position, entry) => append(&shared.journal, position, entry).await?,
                    Work::Gap(until) => fetch(&raft, &shared.journal, place, until).await?,
                }
            }
            lock(&shared.counted).writing = 0;
            shared.show(shared.journal.height());
        }
    };
    let outcome: Option<Result<(), Error>> = stop.or_stopped(writing).await;
    if let Some(Err(error)) = outcome {
        shared.fail(error);
    }
}

async fn append(journal: &Arc<dyn Journal>, position: u64, entry: Bytes) -> Result<(), Error> {
    if position >= journal.height() {
        return journal.append(position, entry).await;
    }
    match journal.read(position)? {
        Some(had) if had == entry => Ok(()),
        _ => Err(Error::Corrupt("a processor's journal has another entry than was agreed on")),
    }
}

/// Gets entries from other members until the journal has all below a position.
async fn fetch(raft: &Raft<bool>, journal: &Arc<dyn Journal>, place: (u64, u64), until: u64) -> Result<(), Error> {
    while journal.height() < until {
        for member in raft.members().into_iter().filter(|member| member.id != raft.node()) {
            let mut from = match links::fetch(&member.address, place, member.id, journal.height()).await {
                Some(from) => from,
                None => continue,
            };
            while journal.height() < until
                && let Some(entry) = from.next().await
            {
                match journal.append(journal.height(), entry).await {
                    // It is the other's that is wrong.
                    Err(Error::Invalid(reason)) => {
                        tracing::warn!(node = raft.node(), from = member.id, reason, "another's entry cannot follow");
                        break;
                    }
                    appended => appended?,
                }
            }
        }
        if journal.height() < until {
            rt::sleep(PAUSE).await;
        }
    }
    // No log has these entries that this processor could read again after a crash: whoever asks for them is told that they are here
    // only once they stay.
    journal.sync().await?;
    Ok(())
}

/// Tells what this processor is, and that it leads only once it may append.
async fn follow_role(raft: Raft<bool>, shared: Arc<Shared>) {
    let mut role = raft.role();
    let stop = shared.stop.clone();
    let following = async {
        loop {
            let now = *role.borrow_and_update();
            if now.is_leading {
                let ready = async {
                    if mutant(Mutant::LeadAtOnce) {
                        return shared.journal.height();
                    }
                    while raft.barrier().await.is_err() {
                        rt::sleep(PAUSE).await;
                    }
                    let next = lock(&shared.counted).next;
                    let _ = shared.safe.subscribe().wait_for(|safe| *safe >= next).await;
                    next
                };
                let mut ready = std::pin::pin!(ready);
                let mut changed = std::pin::pin!(role.changed());
                if let Either::Left((next, _)) = select(&mut ready, &mut changed).await {
                    let term = now.term;
                    *lock(&shared.appending) = Some(Appending { term, next, unsafe_entries: VecDeque::new() });
                    shared.role.send(Role::Leading { term, next });
                    if changed.await.is_err() {
                        return;
                    }
                }
                *lock(&shared.appending) = None;
                continue;
            }
            shared.role.send(Role::Following { leader: now.leader.map(Processor) });
            if role.changed().await.is_err() {
                return;
            }
        }
    };
    stop.or_stopped(following).await;
    *lock(&shared.appending) = None;
    shared.role.send(Role::Following { leader: None });
}

#[async_trait]
impl OrderedLog for RaftLog {
    fn role(&self) -> WatchReceiver<Role> {
        self.shared.role.subscribe()
    }

    fn safe(&self) -> WatchReceiver<u64> {
        self.shared.safe.subscribe()
    }

    async fn append(&self, term: Term, position: u64, entry: Bytes) -> Result<(), Error> {
        ordered::check(&entry, ENTRY_BYTES_MAX.min(self.shared.bounds.bytes))?;
        let is_leading = |appending: &Option<Appending>| appending.as_ref().is_some_and(|now| now.term == term);
        if !is_leading(&lock(&self.shared.appending)) {
            return Err(if self.shared.stop.is_stopped() { Error::Closed } else { Error::Fenced(term) });
        }
        let bytes = u32::try_from(entry.len()).expect("it was just checked");
        let room = async { [self.entries.acquire().await, self.bytes.acquire_many(bytes).await] };
        let room = self.shared.stop.or_stopped(room).await.ok_or(Error::Closed)?;
        {
            let mut appending = lock(&self.shared.appending);
            let Some(appending) = appending.as_mut().filter(|appending| appending.term == term) else {
                return Err(Error::Fenced(term));
            };
            if appending.next != position {
                let next = appending.next;
                return Err(Error::Invalid(format!("position {position}: the next one is {next}")));
            }
            appending.next += 1;
            appending.unsafe_entries.push_back((position, room));
        }
        let mut unproposed = Unproposed(Some((self, term)));
        let mut data = BytesMut::with_capacity(8 + entry.len());
        data.put_u64_le(position);
        data.put_slice(&entry);
        let answer = self.raft.propose_under(term, data.freeze()).await?;
        self.answers.send((term, answer)).await.map_err(|_| Error::Closed)?;
        unproposed.0 = None;
        Ok(())
    }

    fn entry_bytes_max(&self) -> usize {
        ENTRY_BYTES_MAX.min(self.shared.bounds.bytes)
    }

    async fn ended(&self) -> Error {
        let failed = async {
            self.shared.stop.stopped().await;
            lock(&self.shared.failed).clone().unwrap_or(Error::Closed)
        };
        let (mut ended, mut failed) = (std::pin::pin!(self.raft.ended()), std::pin::pin!(failed));
        select(&mut ended, &mut failed).await.factor_first().0
    }

    async fn stop(&self) {
        self.shared.stop.stop();
        self.raft.stop().await;
        let tasks = std::mem::take(&mut *lock(&self.tasks));
        for task in tasks {
            // It is aborted only together with the runtime.
            let _ = task.await;
        }
    }
}

impl Drop for RaftLog {
    fn drop(&mut self) {
        self.shared.stop.stop();
    }
}

impl fmt::Debug for RaftLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RaftLog({:?})", self.raft)
    }
}
