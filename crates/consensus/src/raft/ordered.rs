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
//! 2. What counts goes to the writer, which appends it to the journal, many at a time, syncs, and moves `safe`. An entry that the
//!    journal has already (the engine's log is read again at a start) must be the same there.
//! 3. The engine's snapshot is the count alone, and is made once the journal has all that is counted as durable. A node that takes
//!    one over lacks entries; it gets them from the journals of other members, over a link that begins with the hello of kind 3
//!    ([`super::links`]), before it goes on.
//! 4. Whoever leads is told so behind a barrier, when its journal has all that is counted: nothing that is agreed on is missing, and
//!    nobody but it proposes in its term. It goes on at the count.
//!
//! Why an entry below `safe` stays: it was committed, so a majority of logs has it, or what they have of it is in journals, durable,
//! since a snapshot that lets the log go waits for that.
//!
//! Invariants: a journal holds committed entries alone and is never cut; what is proposed and not answered is bounded
//! ([`IN_FLIGHT_BYTES_MAX`]).

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use base::bytes::BufMut as _;
use base::rt::channel::{OneshotReceiver, Receiver, Sender, WatchReceiver, WatchSender, bounded, watch};
use base::rt::net::BoxFuture;
use base::rt::sync::{Notify, Permit, Semaphore};
use base::rt::{self, Stop};
use base::{Bytes, BytesMut};

use super::codec::Reader;
use super::{Applied, Machine, Options, Proposed, Raft, links};
use crate::ordered::{Journal, OrderedLog, Processor, Role};
use crate::{Error, Term};

/// Bytes of entries that are proposed and not answered.
const IN_FLIGHT_BYTES_MAX: usize = 48 << 20;
/// Bytes of one entry.
const ENTRY_BYTES_MAX: usize = 32 << 20;
/// Entries that are proposed and not answered.
const IN_FLIGHT_MAX: usize = 1024;
/// Entries that are written before a sync.
const BATCH_MAX: usize = 256;
/// How long to wait before something is tried again.
const PAUSE: Duration = Duration::from_millis(20);

/// What the writer is to do.
enum Work {
    Entry(u64, Bytes),
    /// Entries up to this position are in journals of others.
    Gap(u64),
}

/// What the machine counts, and hands to the writer. The entries are those of the engine's log in memory, which keeps them
/// until a snapshot, so that this queue holds little of its own.
#[derive(Default)]
struct Counted {
    next: u64,
    work: VecDeque<Work>,
}

struct Shared {
    counted: Mutex<Counted>,
    more: Notify,
    journal: Arc<dyn Journal>,
    safe: WatchSender<u64>,
    role: WatchSender<Role>,
    /// The position that the leader appends next.
    appending: Mutex<Option<(Term, u64)>>,
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
                counted.work.push_back(Work::Entry(position, reader.0));
            }
            counts
        };
        let outputs = entries.into_iter().map(apply).collect();
        drop(counted);
        self.0.more.notify_one();
        outputs
    }

    fn snapshot(&mut self) -> BoxFuture<'static, Result<Bytes, Error>> {
        let next = lock(&self.0.counted).next;
        let mut safe = self.0.safe.subscribe();
        Box::pin(async move {
            safe.wait_for(|safe| *safe >= next).await.map_err(|_| Error::Closed)?;
            Ok(Bytes::copy_from_slice(&next.to_le_bytes()))
        })
    }

    fn restore(&mut self, _index: u64, snapshot: Bytes) -> Result<(), Error> {
        let mut counted = lock(&self.0.counted);
        counted.next = Reader(snapshot).u64()?;
        counted.work.clear();
        let next = counted.next;
        counted.work.push_back(Work::Gap(next));
        drop(counted);
        self.0.more.notify_one();
        Ok(())
    }
}

/// What is proposed and not answered, and the room that it takes.
type InFlight = (OneshotReceiver<Result<Proposed<bool>, Error>>, Permit);

/// One processor's part. See the module.
pub struct RaftLog {
    raft: Raft<bool>,
    shared: Arc<Shared>,
    bytes: Semaphore,
    answers: Sender<InFlight>,
}

impl RaftLog {
    /// Opens it. The journal has the same entries at all founders of the group; the nodes' numbers are the processors'.
    ///
    /// # Errors
    /// As [`Raft::start`]; [`Error::Journal`].
    pub async fn open(mut options: Options, journal: Arc<dyn Journal>) -> Result<RaftLog, Error> {
        options.uncommitted_bytes_max = options.uncommitted_bytes_max.max(2 * IN_FLIGHT_BYTES_MAX);
        let durable = journal.sync().await?;
        let shared = Arc::new(Shared {
            counted: Mutex::new(Counted { next: durable, work: VecDeque::new() }),
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
        let (answers, waiting) = bounded(IN_FLIGHT_MAX);
        rt::spawn(write(raft.clone(), Arc::clone(&shared), (group, node)));
        rt::spawn(follow_role(raft.clone(), Arc::clone(&shared)));
        rt::spawn(take_answers(waiting));
        Ok(RaftLog { raft, shared, bytes: Semaphore::new(IN_FLIGHT_BYTES_MAX), answers })
    }

    /// The engine below, for changes of its members.
    pub fn raft(&self) -> &Raft<bool> {
        &self.raft
    }
}

/// Gives room back when entries are answered; what became of them is told by `safe`.
async fn take_answers(mut waiting: Receiver<InFlight>) {
    while let Some((answer, _permit)) = waiting.recv().await {
        let _ = answer.await;
    }
}

impl Shared {
    fn fail(&self, error: Error) {
        lock(&self.failed).get_or_insert(error);
        self.stop.stop();
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
            let durable = shared.journal.sync().await?;
            shared.safe.send_if_modified(|safe| {
                let is_more = durable > *safe;
                *safe = durable.max(*safe);
                is_more
            });
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
                journal.append(journal.height(), entry).await?;
            }
        }
        if journal.height() < until {
            rt::sleep(PAUSE).await;
        }
    }
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
                    while raft.barrier().await.is_err() {
                        rt::sleep(PAUSE).await;
                    }
                    let next = lock(&shared.counted).next;
                    let _ = shared.safe.subscribe().wait_for(|safe| *safe >= next).await;
                    next
                };
                let mut ready = std::pin::pin!(ready);
                let mut changed = std::pin::pin!(role.changed());
                if let futures_util::future::Either::Left((next, _)) =
                    futures_util::future::select(&mut ready, &mut changed).await
                {
                    *lock(&shared.appending) = Some((now.term, next));
                    shared.role.send(Role::Leading { term: now.term, next });
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
        if entry.len() > ENTRY_BYTES_MAX {
            return Err(Error::Invalid(format!("an entry has at most {ENTRY_BYTES_MAX} bytes")));
        }
        let permit = self.bytes.acquire_many(entry.len().max(1) as u32).await;
        {
            let mut appending = lock(&self.shared.appending);
            match &mut *appending {
                Some((leading, next)) if *leading == term => {
                    if *next != position {
                        return Err(Error::Invalid(format!("the next position is {next}, not {position}")));
                    }
                    *next += 1;
                }
                _ => return Err(Error::Fenced(term)),
            }
        }
        let mut data = BytesMut::with_capacity(8 + entry.len());
        data.put_u64_le(position);
        data.put_slice(&entry);
        let answer = match self.raft.propose_under(term, data.freeze()).await {
            Ok(answer) => answer,
            Err(error) => {
                // Its place is lost, and with it the term for this caller.
                *lock(&self.shared.appending) = None;
                return Err(error);
            }
        };
        self.answers.send((answer, permit)).await.map_err(|_| Error::Closed)
    }

    fn entry_bytes_max(&self) -> usize {
        ENTRY_BYTES_MAX
    }

    async fn ended(&self) -> Error {
        let failed = async {
            self.shared.stop.stopped().await;
            lock(&self.shared.failed).clone().unwrap_or(Error::Closed)
        };
        let (mut ended, mut failed) = (std::pin::pin!(self.raft.ended()), std::pin::pin!(failed));
        futures_util::future::select(&mut ended, &mut failed).await.factor_first().0
    }

    async fn stop(&self) {
        self.shared.stop.stop();
        self.raft.stop().await;
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
