//! The acceptor of a CPU node's log store: the only task that changes the log store. It acts for the current leader,
//! which may be this node or another one.
//!
//! 1. The acceptor handles one request after another. Every request but [`AcceptorRequest::GetStatus`] names a fence
//!    token. [`AcceptorRequest::Fence`] makes the acceptor promise to accept requests under this token only: promised
//!    terms only grow, and a term has one nonce. The promise is on disk before it is acknowledged. The acceptor rejects
//!    every other request whose token is not the promised one.
//! 2. A term has *adopted* a log store when its leader has made the log store equal to the leader's own
//!    ([`AcceptorRequest::Truncate`], [`AcceptorRequest::Align`], [`AcceptorRequest::Adopt`]); the hard state contains
//!    the term that adopted the log store last. New entries ([`AcceptorRequest::Append`]) are accepted only after the
//!    adoption.
//! 3. All appends that wait at the same time are made durable with one sync, and acknowledged after the sync. In a
//!    volatile log they are acknowledged before the sync, and a later request without entries is answered after it.
//!
//! Invariants:
//! * Promised and adopted terms only grow, also across crashes; adopted ≤ promised.
//! * Entries that were acknowledged as durable stay durable until a leader of the same or a later term truncates them.
//! * Entries that are deliverable here are never truncated (in a volatile log: while this CPU node runs).
//! * Bounded: waiting requests, and the bytes of their entries ([`AcceptorQueue`]).

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;

use base::rt::CancellationToken;
use base::rt::channel::{
    OneshotReceiver, OneshotSender, Receiver, Sender, TrySendError, WatchSender, bounded, oneshot,
};
use base::rt::sync::{Semaphore, SemaphorePermit};
use base::{Bytes, FenceToken};
use futures_util::future::Either;
use twox_hash::{XxHash3_64, XxHash3_128};

use super::message::{AcceptorRequest, AcceptorResponse, DIGESTS_MAX, ENTRIES_MAX, EntryDigest};
use crate::fault::{Mutant, crash_point, mutant};
use crate::{CpuNodeId, Error, Leadership, LogStore, Term};

/// Bytes of the hard state: promised term, its nonce, adopted term, how many entries were deliverable then, and a checksum of
/// those.
const HARD_STATE_BYTES: usize = 40;
const HARD_STATE_WORDS_BYTES: usize = HARD_STATE_BYTES - 8;

/// A command and the channel for its answer.
pub(super) struct QueuedRequest {
    pub token: FenceToken,
    pub request: AcceptorRequest,
    pub response: OneshotSender<Result<AcceptorResponse, Error>>,
    /// The capacity of the queue that its entries take, until they are in the log store.
    pub permit: Option<SemaphorePermit>,
}

/// The sending end of an acceptor's queue, which is bounded by commands and by the bytes of their entries.
#[derive(Clone)]
pub(super) struct AcceptorQueue {
    requests: Sender<QueuedRequest>,
    capacity: Arc<Semaphore>,
    bytes_max: usize,
}

impl AcceptorQueue {
    /// A queue for `commands_max` commands, whose entries have at most `bytes_max` bytes; one command always fits.
    pub fn new(commands_max: usize, bytes_max: usize) -> (AcceptorQueue, Receiver<QueuedRequest>) {
        let (commands, queued) = bounded(commands_max);
        (AcceptorQueue { requests: commands, capacity: Arc::new(Semaphore::new(bytes_max)), bytes_max }, queued)
    }

    fn bytes(&self, command: &AcceptorRequest) -> u32 {
        let bytes = command.entries().iter().map(|entry| entry.len()).sum::<usize>();
        u32::try_from(bytes.min(self.bytes_max)).unwrap_or(u32::MAX)
    }

    /// Appends a command to the queue. Waits for capacity.
    ///
    /// # Errors
    /// [`Error::Closed`] when the acceptor has ended.
    pub async fn send(&self, token: FenceToken, command: AcceptorRequest) -> Result<ResponseReceiver, Error> {
        let (answer, answered) = oneshot();
        let room = match self.bytes(&command) {
            0 => None,
            bytes => {
                match futures_util::future::select(pin!(self.capacity.acquire_many(bytes)), pin!(self.closed())).await {
                    Either::Left((room, _)) => Some(room),
                    Either::Right(_) => return Err(Error::Closed),
                }
            }
        };
        self.requests
            .send(QueuedRequest { token, request: command, response: answer, permit: room })
            .await
            .map_err(|_| Error::Closed)?;
        Ok(answered)
    }

    /// As [`AcceptorQueue::send`], without waiting.
    ///
    /// # Errors
    /// As [`AcceptorQueue::send`]; [`Error::Busy`] when the queue is full.
    pub fn try_send(&self, token: FenceToken, command: AcceptorRequest) -> Result<ResponseReceiver, Error> {
        let (answer, answered) = oneshot();
        let room = match self.bytes(&command) {
            0 => None,
            bytes => Some(self.capacity.try_acquire_many(bytes).ok_or(Error::Busy)?),
        };
        match self.requests.try_send(QueuedRequest { token, request: command, response: answer, permit: room }) {
            Ok(()) => Ok(answered),
            Err(TrySendError::Full(_)) => Err(Error::Busy),
            Err(TrySendError::Closed(_)) => Err(Error::Closed),
        }
    }

    /// Completes when the acceptor has ended.
    pub async fn closed(&self) {
        self.requests.closed().await;
    }
}

/// See [the module](self).
pub(super) struct Acceptor {
    log_store: Arc<dyn LogStore>,
    me: CpuNodeId,
    volatile: bool,
    promised: FenceToken,
    adopted: Term,
    leadership: Arc<WatchSender<Leadership>>,
    deliverable: Arc<WatchSender<u64>>,
}

type ResponseReceiver = OneshotReceiver<Result<AcceptorResponse, Error>>;

/// The digest by which log stores are compared.
pub(super) fn digest_of(entry: &Bytes) -> EntryDigest {
    XxHash3_128::oneshot(entry)
}

/// Reads entries until they have `bytes` bytes, one at least; fewer where the log store ends.
pub(super) fn read(log_store: &dyn LogStore, from: u64, until: u64, bytes: u64) -> Result<Vec<Bytes>, Error> {
    let (mut entries, mut held) = (Vec::new(), 0);
    for position in from..until.min(from.saturating_add(ENTRIES_MAX as u64)) {
        let Some(entry) = log_store.read(position)? else { break };
        held += entry.len() as u64;
        if !entries.is_empty() && held > bytes {
            break;
        }
        entries.push(entry);
    }
    Ok(entries)
}

/// Digests of some entries; fewer where the log store ends.
pub(super) fn digests(log_store: &dyn LogStore, from: u64, count: u64) -> Result<Vec<EntryDigest>, Error> {
    let mut marks = Vec::new();
    for position in from..from.saturating_add(count.min(DIGESTS_MAX)) {
        let Some(entry) = log_store.read(position)? else { break };
        marks.push(digest_of(&entry));
    }
    Ok(marks)
}

impl Acceptor {
    /// The acceptor of a log store; reads the log store's hard state.
    pub fn new(
        journal: Arc<dyn LogStore>,
        me: CpuNodeId,
        volatile: bool,
        role: Arc<WatchSender<Leadership>>,
        safe: Arc<WatchSender<u64>>,
    ) -> Result<Acceptor, Error> {
        let note = journal.hard_state()?;
        let (promised, adopted, shown) = match note.len() {
            0 => (FenceToken::default(), Term(0), 1),
            HARD_STATE_BYTES => {
                let word = |at| wire::u64_at(&note, at);
                if XxHash3_64::oneshot(&note[..HARD_STATE_WORDS_BYTES]) != word(HARD_STATE_WORDS_BYTES) {
                    return Err(Error::Corrupt("the hard state of a log store does not match its checksum"));
                }
                (FenceToken { term: Term(word(0)), nonce: word(8) }, Term(word(16)), word(24))
            }
            _ => return Err(Error::Corrupt("the hard state of a log store belongs to another engine")),
        };
        // After all nodes have lost power, entries that a volatile log delivered may have to be truncated.
        safe.send(if volatile { 1 } else { shown }.min(journal.height()));
        Ok(Acceptor { log_store: journal, me, volatile, promised, adopted, leadership: role, deliverable: safe })
    }

    /// Handles commands until it is stopped; an error of the log store ends it.
    pub async fn run(mut self, mut commands: Receiver<QueuedRequest>, stop: CancellationToken) -> Error {
        let mut waiting = VecDeque::new();
        loop {
            let next = match commands.try_recv() {
                Ok(asked) => asked,
                Err(_) => {
                    // No other command waits: the appends that wait for the disk are synced and acknowledged now.
                    if let Err(error) = self.sync_and_acknowledge(&mut waiting).await {
                        return error;
                    }
                    match stop.run_until_cancelled(commands.recv()).await {
                        Some(Some(asked)) => asked,
                        _ => return self.save_hard_state().await.err().unwrap_or(Error::Closed),
                    }
                }
            };
            let QueuedRequest { token, request: command, response: answer, permit: _room } = next;
            let (appends, tells) = match &command {
                AcceptorRequest::Append { entries, .. } => (!entries.is_empty(), entries.is_empty()),
                _ => (false, false),
            };
            let goes_on = appends && waiting.len() < super::APPENDS_MAX || tells && !self.volatile;
            if !goes_on && let Err(error) = self.sync_and_acknowledge(&mut waiting).await {
                return error;
            }
            match self.handle(token, command).await {
                Ok(_) if appends && !self.volatile => waiting.push_back(answer),
                Ok(said) => {
                    // A caller that has gone does not need the answer.
                    let _ = answer.send(Ok(said));
                    if appends {
                        waiting.push_back(base::rt::channel::oneshot().0);
                    }
                }
                Err(error @ (Error::LogStore(_) | Error::Closed | Error::Corrupt(_))) => {
                    let _ = answer.send(Err(error.clone()));
                    return error;
                }
                Err(error) => drop(answer.send(Err(error))),
            }
        }
    }

    /// Makes the appended entries durable and acknowledges them.
    async fn sync_and_acknowledge(
        &mut self,
        waiting: &mut VecDeque<OneshotSender<Result<AcceptorResponse, Error>>>,
    ) -> Result<(), Error> {
        if waiting.is_empty() {
            return Ok(());
        }
        crash_point("consensus.acceptor.appended").await;
        if mutant(Mutant::AnswerUnsynced) {
            let height = self.log_store.height();
            waiting
                .drain(..)
                .for_each(|answer| drop(answer.send(Ok(AcceptorResponse::Progress { height, durable: height }))));
            return Ok(());
        }
        let durable = self.log_store.sync().await?;
        crash_point("consensus.acceptor.durable").await;
        let height = self.log_store.height();
        for answer in waiting.drain(..) {
            let _ = answer.send(Ok(AcceptorResponse::Progress { height, durable }));
        }
        Ok(())
    }

    async fn handle(&mut self, token: FenceToken, command: AcceptorRequest) -> Result<AcceptorResponse, Error> {
        let height = self.log_store.height();
        let holds = |journal: &dyn LogStore| AcceptorResponse::Progress {
            height: journal.height(),
            durable: journal.durable(),
        };
        match command {
            AcceptorRequest::GetStatus => return Ok(self.status()),
            AcceptorRequest::Fence { leader } => return self.promise(token, CpuNodeId(leader)).await,
            _ if token != self.promised => return Err(Error::Fenced(token.term)),
            AcceptorRequest::GetDigests { from, count } => {
                return Ok(AcceptorResponse::Digests(digests(&*self.log_store, from, count)?));
            }
            AcceptorRequest::Read { from, bytes } => {
                return Ok(AcceptorResponse::Entries(read(&*self.log_store, from, height, bytes)?));
            }
            AcceptorRequest::Truncate { height: left } => {
                // A command that was in flight when its leader closed the link.
                if self.adopted == token.term {
                    return Err(Error::Invalid("this term has adopted the log store already".to_owned()));
                }
                if left < *self.deliverable.borrow() {
                    // A leader that asks for this has another log than the one that was delivered here.
                    return Err(Error::Corrupt(
                        "a leader asked to truncate entries that were delivered here: the orderers have two different logs",
                    ));
                }
                if left < height {
                    tracing::info!(cpu_node = %self.me, from = left, until = height, "truncated entries that were never delivered");
                    self.log_store.truncate(left.max(1)).await?;
                    crash_point("consensus.acceptor.truncated").await;
                }
            }
            AcceptorRequest::Align { position, entries } => {
                if self.adopted == token.term {
                    return Err(Error::Invalid("this term has adopted the log store already".to_owned()));
                }
                self.append(position, entries).await?;
                self.log_store.sync().await?;
            }
            AcceptorRequest::Adopt { height: expected } => {
                if height != expected {
                    return Err(Error::Invalid(format!(
                        "the leader adopts {expected} entries, and the log store has {height}"
                    )));
                }
                self.log_store.sync().await?;
                self.adopted = token.term;
                self.save_hard_state().await?;
                crash_point("consensus.acceptor.adopted").await;
            }
            AcceptorRequest::Append { position, deliverable: safe, entries } => {
                if self.adopted != token.term {
                    return Err(Error::Invalid("this term has not adopted the log store".to_owned()));
                }
                if !entries.is_empty() {
                    self.append(position, entries).await?;
                }
                self.advance_deliverable(safe);
            }
        }
        Ok(holds(&*self.log_store))
    }

    fn status(&self) -> AcceptorResponse {
        AcceptorResponse::Status {
            promised: self.promised.term,
            adopted: self.adopted,
            height: self.log_store.height(),
        }
    }

    async fn promise(&mut self, token: FenceToken, leader: CpuNodeId) -> Result<AcceptorResponse, Error> {
        // No node could ever lead again.
        token.term.next_generation().ok_or_else(|| Error::Invalid(crate::LAST_TERM.to_string()))?;
        if self.promised.admit(&token).is_err() {
            return Err(Error::Fenced(token.term));
        }
        self.log_store.sync().await?;
        if token != self.promised {
            self.promised = token;
            self.save_hard_state().await?;
            crash_point("consensus.acceptor.promised").await;
            if leader != self.me {
                self.leadership.send(Leadership::Following { leader: Some(leader) });
            }
        }
        Ok(self.status())
    }

    async fn save_hard_state(&self) -> Result<(), Error> {
        let mut note = Vec::with_capacity(HARD_STATE_BYTES);
        let adopted = if mutant(Mutant::ForgetAdoption) { Term(0) } else { self.adopted };
        for word in [self.promised.term.0, self.promised.nonce, adopted.0, *self.deliverable.borrow()] {
            note.extend_from_slice(&word.to_le_bytes());
        }
        let checksum = XxHash3_64::oneshot(&note);
        note.extend_from_slice(&checksum.to_le_bytes());
        self.log_store.set_hard_state(note.into()).await
    }

    async fn append(&self, position: u64, entries: Vec<Bytes>) -> Result<(), Error> {
        let height = self.log_store.height();
        if position != height {
            return Err(Error::Invalid(format!("position {position}: the next one is {height}")));
        }
        for (position, entry) in (position..).zip(entries) {
            self.log_store.append(position, entry).await?;
        }
        Ok(())
    }

    /// Advances the deliverable watermark; entries that the leader reports and this log store lacks follow later.
    fn advance_deliverable(&self, deliverable: u64) {
        let safe = deliverable.min(self.log_store.height());
        self.deliverable.send_if_modified(|shown| {
            let more = safe > *shown;
            *shown = safe.max(*shown);
            more
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;
    use base::rt::channel::watch;
    use base::rt::{self, production};

    use super::*;

    /// A log store in memory, which the test shares.
    #[derive(Default)]
    struct MemoryLogStore(Mutex<(Vec<Bytes>, Bytes)>);

    #[async_trait]
    impl LogStore for MemoryLogStore {
        fn height(&self) -> u64 {
            self.0.lock().expect("no holder panics").0.len() as u64
        }

        fn durable(&self) -> u64 {
            self.height()
        }

        fn read(&self, position: u64) -> Result<Option<Bytes>, Error> {
            Ok(self.0.lock().expect("no holder panics").0.get(position as usize).cloned())
        }

        async fn append(&self, position: u64, entry: Bytes) -> Result<(), Error> {
            assert_eq!(position, self.height());
            self.0.lock().expect("no holder panics").0.push(entry);
            Ok(())
        }

        async fn sync(&self) -> Result<u64, Error> {
            Ok(self.height())
        }

        async fn truncate(&self, height: u64) -> Result<(), Error> {
            self.0.lock().expect("no holder panics").0.truncate(height as usize);
            Ok(())
        }

        fn hard_state(&self) -> Result<Bytes, Error> {
            Ok(self.0.lock().expect("no holder panics").1.clone())
        }

        async fn set_hard_state(&self, note: Bytes) -> Result<(), Error> {
            self.0.lock().expect("no holder panics").1 = note;
            Ok(())
        }
    }

    /// A running acceptor, until the queue is dropped.
    struct RunningAcceptor {
        queue: AcceptorQueue,
        stop: CancellationToken,
        task: rt::Task<Error>,
    }

    fn start_acceptor(journal: &Arc<MemoryLogStore>) -> RunningAcceptor {
        let (role, safe) = (watch(Leadership::Following { leader: None }).0, watch(1).0);
        let journal: Arc<dyn LogStore> = journal.clone();
        let keeper = Acceptor::new(journal, CpuNodeId(1), false, role.into(), safe.into()).expect("a note of its own");
        let (queue, commands) = AcceptorQueue::new(4, 100);
        let stop = CancellationToken::new();
        let task = rt::spawn(keeper.run(commands, stop.clone()));
        RunningAcceptor { queue, stop, task }
    }

    impl RunningAcceptor {
        async fn ask(&self, term: u64, holder: u64, command: AcceptorRequest) -> Result<AcceptorResponse, Error> {
            let answered = self.queue.send(FenceToken { term: Term(term), nonce: holder }, command).await;
            answered.expect("it takes commands").await.expect("it answers")
        }

        async fn end(self) {
            self.stop.cancel();
            assert_eq!(self.task.await.expect("it does not panic"), Error::Closed);
        }
    }

    fn entry(text: &'static str) -> Vec<Bytes> {
        vec![Bytes::from_static(text.as_bytes())]
    }

    #[test]
    fn nothing_of_an_earlier_term_is_taken_also_after_a_restart() {
        production::run(async {
            let journal = Arc::new(MemoryLogStore::default());
            journal.append(0, Bytes::from_static(b"first")).await.expect("in memory");
            let keeper = start_acceptor(&journal);
            let append = |text| AcceptorRequest::Append { position: 1, deliverable: 1, entries: entry(text) };
            keeper.ask(3, 7, AcceptorRequest::Fence { leader: 1 }).await.expect("the first term");
            keeper.ask(3, 7, append("early")).await.expect_err("the journal is not adopted");
            keeper.ask(3, 7, AcceptorRequest::Adopt { height: 1 }).await.expect("it is equal");
            keeper.ask(5, 9, AcceptorRequest::Fence { leader: 2 }).await.expect("a later term");
            for (term, holder) in [(3, 7), (5, 8), (4, 9), (6, 9)] {
                let refused = keeper.ask(term, holder, append("late")).await;
                assert_eq!(refused, Err(Error::Fenced(Term(term))), "{term} {holder}");
            }
            for (term, holder) in [(3, 7), (5, 8), (4, 1)] {
                let refused = keeper.ask(term, holder, AcceptorRequest::Fence { leader: 3 }).await;
                assert_eq!(refused, Err(Error::Fenced(Term(term))), "{term} {holder}");
            }
            keeper.end().await;
            let keeper = start_acceptor(&journal);
            let refused = keeper.ask(4, 1, AcceptorRequest::Fence { leader: 3 }).await;
            assert_eq!(refused, Err(Error::Fenced(Term(4))), "the promise outlives the process");
            let is = AcceptorResponse::Status { promised: Term(5), adopted: Term(3), height: 1 };
            assert_eq!(keeper.ask(0, 0, AcceptorRequest::GetStatus).await, Ok(is));
            keeper.ask(5, 9, AcceptorRequest::Adopt { height: 1 }).await.expect("it is equal");
            let holds = AcceptorResponse::Progress { height: 2, durable: 2 };
            assert_eq!(keeper.ask(5, 9, append("timely")).await, Ok(holds));
            keeper.end().await;
        });
    }

    #[test]
    fn what_was_shown_is_not_given_up() {
        production::run(async {
            let journal = Arc::new(MemoryLogStore::default());
            journal.append(0, Bytes::from_static(b"first")).await.expect("in memory");
            let keeper = start_acceptor(&journal);
            keeper.ask(3, 7, AcceptorRequest::Fence { leader: 2 }).await.expect("the first term");
            keeper.ask(3, 7, AcceptorRequest::Align { position: 1, entries: entry("a") }).await.expect("it follows");
            keeper
                .ask(3, 7, AcceptorRequest::Align { position: 1, entries: entry("b") })
                .await
                .expect_err("it does not");
            keeper.ask(3, 7, AcceptorRequest::Truncate { height: 1 }).await.expect("it was never shown");
            keeper.ask(3, 7, AcceptorRequest::Align { position: 1, entries: entry("b") }).await.expect("it follows");
            keeper.ask(3, 7, AcceptorRequest::Adopt { height: 2 }).await.expect("it is equal");
            let safe = AcceptorRequest::Append { position: 2, deliverable: 2, entries: Vec::new() };
            keeper.ask(3, 7, safe).await.expect("it is adopted");
            let late = keeper.ask(3, 7, AcceptorRequest::Truncate { height: 1 }).await;
            assert!(matches!(late, Err(Error::Invalid(_))), "what was adopted counts in its term: {late:?}");
            keeper.ask(4, 8, AcceptorRequest::Fence { leader: 1 }).await.expect("a later term");
            let refused = keeper.ask(4, 8, AcceptorRequest::Truncate { height: 1 }).await;
            assert!(matches!(refused, Err(Error::Corrupt(_))), "{refused:?}");
            assert!(matches!(keeper.task.await, Ok(Error::Corrupt(_))), "it has ended");
        });
    }
}
