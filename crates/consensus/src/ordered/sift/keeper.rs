//! The keeper of a processor's journal: the one task that changes it, for whoever leads, here or elsewhere.
//!
//! 1. It takes one command after another. All but [`Command::Look`] name a reign, and are refused unless it is the one that the
//!    keeper has promised to ([`Command::Fence`]): terms only grow, and a term has one holder. The promise is on disk before it
//!    is answered.
//! 2. A journal is *adopted* by the reign that has made it equal to its own ([`Command::Cut`], [`Command::Align`],
//!    [`Command::Adopt`]); the note says which one was the last. Only then are entries appended.
//! 3. Appends that wait at the same time are made durable with one sync, and answered after it. In a volatile log they are
//!    answered before it; whoever then asks without an entry is answered after it.
//!
//! Invariants:
//! * Promised and adopted terms only grow, whatever crashes; adopted ≤ promised.
//! * What was answered as durable is, until its reign or a later one cuts it off.
//! * Nothing below what may be shown here is ever cut off; in a volatile log, as long as this processor runs.
//! * Bounded: commands that wait, and the bytes of their entries ([`Queue`]).

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;

use base::Bytes;
use base::rt::Stop;
use base::rt::channel::{
    OneshotReceiver, OneshotSender, Receiver, Sender, TrySendError, WatchSender, bounded, oneshot,
};
use base::rt::sync::{Permit, Semaphore};
use futures_util::future::Either;
use twox_hash::{XxHash3_64, XxHash3_128};

use super::message::{Answer, Command, ENTRIES_MAX, MARKS_MAX, Mark, Reign};
use crate::ordered::fault::{Mutant, crash_point, mutant};
use crate::ordered::{Journal, Processor, Role};
use crate::{Error, Term};

/// Bytes of a note: promised term, its holder, adopted term, how many entries could be shown then, and a checksum of those.
const NOTE_BYTES: usize = 40;
const NOTE_WORDS_BYTES: usize = NOTE_BYTES - 8;

/// A command and whoever waits for what becomes of it.
pub(super) struct Asked {
    pub reign: Reign,
    pub command: Command,
    pub answer: OneshotSender<Result<Answer, Error>>,
    /// What its entries take of the queue's room, until they are in the journal.
    pub room: Option<Permit>,
}

/// The way into a keeper's queue, which is bounded by commands and by the bytes of their entries.
#[derive(Clone)]
pub(super) struct Queue {
    commands: Sender<Asked>,
    room: Arc<Semaphore>,
    bytes_max: usize,
}

impl Queue {
    /// A queue for so many commands, whose entries have so many bytes; one command always fits.
    pub fn new(commands_max: usize, bytes_max: usize) -> (Queue, Receiver<Asked>) {
        let (commands, queued) = bounded(commands_max);
        (Queue { commands, room: Arc::new(Semaphore::new(bytes_max)), bytes_max }, queued)
    }

    fn bytes(&self, command: &Command) -> u32 {
        let bytes = command.entries().iter().map(|entry| entry.len()).sum::<usize>();
        u32::try_from(bytes.min(self.bytes_max)).unwrap_or(u32::MAX)
    }

    /// Puts a command behind the others. Waits for room.
    ///
    /// # Errors
    /// [`Error::Closed`] when the keeper has ended.
    pub async fn put(&self, reign: Reign, command: Command) -> Result<Answered, Error> {
        let (answer, answered) = oneshot();
        let room = match self.bytes(&command) {
            0 => None,
            bytes => match futures_util::future::select(pin!(self.room.acquire_many(bytes)), pin!(self.closed())).await
            {
                Either::Left((room, _)) => Some(room),
                Either::Right(_) => return Err(Error::Closed),
            },
        };
        self.commands.send(Asked { reign, command, answer, room }).await.map_err(|_| Error::Closed)?;
        Ok(answered)
    }

    /// As [`Queue::put`], without waiting.
    ///
    /// # Errors
    /// And [`Error::Busy`] when there is no room.
    pub fn try_put(&self, reign: Reign, command: Command) -> Result<Answered, Error> {
        let (answer, answered) = oneshot();
        let room = match self.bytes(&command) {
            0 => None,
            bytes => Some(self.room.try_acquire_many(bytes).ok_or(Error::Busy)?),
        };
        match self.commands.try_send(Asked { reign, command, answer, room }) {
            Ok(()) => Ok(answered),
            Err(TrySendError::Full(_)) => Err(Error::Busy),
            Err(TrySendError::Closed(_)) => Err(Error::Closed),
        }
    }

    /// Completes when the keeper has ended.
    pub async fn closed(&self) {
        self.commands.closed().await;
    }
}

/// See [the module](self).
pub(super) struct Keeper {
    journal: Arc<dyn Journal>,
    me: Processor,
    volatile: bool,
    promised: Reign,
    adopted: Term,
    role: Arc<WatchSender<Role>>,
    safe: Arc<WatchSender<u64>>,
}

type Answered = OneshotReceiver<Result<Answer, Error>>;

/// What a journal is compared by.
pub(super) fn mark_of(entry: &Bytes) -> Mark {
    XxHash3_128::oneshot(entry)
}

/// Reads entries until they have so many bytes, one at least; fewer where the journal ends.
pub(super) fn read(journal: &dyn Journal, from: u64, until: u64, bytes: u64) -> Result<Vec<Bytes>, Error> {
    let (mut entries, mut held) = (Vec::new(), 0);
    for position in from..until.min(from.saturating_add(ENTRIES_MAX as u64)) {
        let Some(entry) = journal.read(position)? else { break };
        held += entry.len() as u64;
        if !entries.is_empty() && held > bytes {
            break;
        }
        entries.push(entry);
    }
    Ok(entries)
}

/// Marks of some entries; fewer where the journal ends.
pub(super) fn marks(journal: &dyn Journal, from: u64, count: u64) -> Result<Vec<Mark>, Error> {
    let mut marks = Vec::new();
    for position in from..from.saturating_add(count.min(MARKS_MAX)) {
        let Some(entry) = journal.read(position)? else { break };
        marks.push(mark_of(&entry));
    }
    Ok(marks)
}

impl Keeper {
    /// The keeper of a journal, whose note it reads.
    pub fn new(
        journal: Arc<dyn Journal>,
        me: Processor,
        volatile: bool,
        role: Arc<WatchSender<Role>>,
        safe: Arc<WatchSender<u64>>,
    ) -> Result<Keeper, Error> {
        let note = journal.note()?;
        let (promised, adopted, shown) = match note.len() {
            0 => (Reign::default(), Term(0), 1),
            NOTE_BYTES => {
                let word = |at: usize| u64::from_le_bytes(note[at..at + 8].try_into().expect("eight bytes"));
                if XxHash3_64::oneshot(&note[..NOTE_WORDS_BYTES]) != word(NOTE_WORDS_BYTES) {
                    return Err(Error::Corrupt("the note of a journal does not have its checksum"));
                }
                (Reign { term: Term(word(0)), holder: word(8) }, Term(word(16)), word(24))
            }
            _ => return Err(Error::Corrupt("the note of a journal is of another engine")),
        };
        // Power that was lost everywhere takes what a volatile log has shown: it may have to be given up.
        safe.send(if volatile { 1 } else { shown }.min(journal.height()));
        Ok(Keeper { journal, me, volatile, promised, adopted, role, safe })
    }

    /// Takes commands until it is stopped; an error of the journal ends it.
    pub async fn run(mut self, mut commands: Receiver<Asked>, stop: Stop) -> Error {
        let mut waiting = VecDeque::new();
        loop {
            let next = match commands.try_recv() {
                Ok(asked) => asked,
                Err(_) => {
                    // Nobody else waits: now those are answered whose entries wait for the disk.
                    if let Err(error) = self.answer_appends(&mut waiting).await {
                        return error;
                    }
                    match stop.or_stopped(commands.recv()).await {
                        Some(Some(asked)) => asked,
                        _ => return self.note().await.err().unwrap_or(Error::Closed),
                    }
                }
            };
            let Asked { reign, command, answer, room: _room } = next;
            let (appends, tells) = match &command {
                Command::Append { entries, .. } => (!entries.is_empty(), entries.is_empty()),
                _ => (false, false),
            };
            let goes_on = appends && waiting.len() < super::APPENDS_MAX || tells && !self.volatile;
            if !goes_on && let Err(error) = self.answer_appends(&mut waiting).await {
                return error;
            }
            match self.perform(reign, command).await {
                Ok(_) if appends && !self.volatile => waiting.push_back(answer),
                Ok(said) => {
                    // Whoever has gone does not want to know.
                    let _ = answer.send(Ok(said));
                    if appends {
                        waiting.push_back(base::rt::channel::oneshot().0);
                    }
                }
                Err(error @ (Error::Journal(_) | Error::Closed | Error::Corrupt(_))) => {
                    let _ = answer.send(Err(error.clone()));
                    return error;
                }
                Err(error) => drop(answer.send(Err(error))),
            }
        }
    }

    /// Makes what was appended durable and says so.
    async fn answer_appends(
        &mut self,
        waiting: &mut VecDeque<OneshotSender<Result<Answer, Error>>>,
    ) -> Result<(), Error> {
        if waiting.is_empty() {
            return Ok(());
        }
        crash_point("consensus.keeper.appended").await;
        if mutant(Mutant::AnswerUnsynced) {
            let height = self.journal.height();
            waiting.drain(..).for_each(|answer| drop(answer.send(Ok(Answer::Holds { height, durable: height }))));
            return Ok(());
        }
        let durable = self.journal.sync().await?;
        crash_point("consensus.keeper.durable").await;
        let height = self.journal.height();
        for answer in waiting.drain(..) {
            let _ = answer.send(Ok(Answer::Holds { height, durable }));
        }
        Ok(())
    }

    async fn perform(&mut self, reign: Reign, command: Command) -> Result<Answer, Error> {
        let height = self.journal.height();
        let holds = |journal: &dyn Journal| Answer::Holds { height: journal.height(), durable: journal.durable() };
        match command {
            Command::Look => return Ok(self.describe()),
            Command::Fence { leader } => return self.promise(reign, Processor(leader)).await,
            _ if reign != self.promised => return Err(Error::Fenced(reign.term)),
            Command::Marks { from, count } => {
                return Ok(Answer::Marks(marks(&*self.journal, from, count)?));
            }
            Command::Read { from, bytes } => {
                return Ok(Answer::Entries(read(&*self.journal, from, height, bytes)?));
            }
            Command::Cut { height: left } => {
                // One that was under way when its leader gave the link up.
                if self.adopted == reign.term {
                    return Err(Error::Invalid("the journal is adopted already".to_owned()));
                }
                if left < *self.safe.borrow() {
                    // Whoever asks for that has another log than the one that was shown here.
                    return Err(Error::Corrupt("entries that were shown are to be given up"));
                }
                if left < height {
                    tracing::info!(processor = %self.me, from = left, until = height, "entries that were never shown are given up");
                    self.journal.cut(left.max(1)).await?;
                    crash_point("consensus.keeper.cut").await;
                }
            }
            Command::Align { position, entries } => {
                if self.adopted == reign.term {
                    return Err(Error::Invalid("the journal is adopted already".to_owned()));
                }
                self.append(position, entries).await?;
                self.journal.sync().await?;
            }
            Command::Adopt { height: expected } => {
                if height != expected {
                    return Err(Error::Invalid(format!(
                        "{expected} entries are to be adopted, and there are {height}"
                    )));
                }
                self.journal.sync().await?;
                self.adopted = reign.term;
                self.note().await?;
                crash_point("consensus.keeper.adopted").await;
            }
            Command::Append { position, safe, entries } => {
                if self.adopted != reign.term {
                    return Err(Error::Invalid("the journal was not adopted".to_owned()));
                }
                if !entries.is_empty() {
                    self.append(position, entries).await?;
                }
                self.show(safe);
            }
        }
        Ok(holds(&*self.journal))
    }

    fn describe(&self) -> Answer {
        Answer::Is { promised: self.promised.term, adopted: self.adopted, height: self.journal.height() }
    }

    async fn promise(&mut self, reign: Reign, leader: Processor) -> Result<Answer, Error> {
        let Reign { term, holder } = self.promised;
        // Nobody could ever lead again.
        reign.term.next_era().map_err(|error| Error::Invalid(error.to_string()))?;
        if reign.term < term || reign.term == term && reign.holder != holder {
            return Err(Error::Fenced(reign.term));
        }
        self.journal.sync().await?;
        if reign != self.promised {
            self.promised = reign;
            self.note().await?;
            crash_point("consensus.keeper.promised").await;
            if leader != self.me {
                self.role.send(Role::Following { leader: Some(leader) });
            }
        }
        Ok(self.describe())
    }

    async fn note(&self) -> Result<(), Error> {
        let mut note = Vec::with_capacity(NOTE_BYTES);
        let adopted = if mutant(Mutant::ForgetAdoption) { Term(0) } else { self.adopted };
        for word in [self.promised.term.0, self.promised.holder, adopted.0, *self.safe.borrow()] {
            note.extend_from_slice(&word.to_le_bytes());
        }
        let checksum = XxHash3_64::oneshot(&note);
        note.extend_from_slice(&checksum.to_le_bytes());
        self.journal.set_note(note.into()).await
    }

    async fn append(&self, position: u64, entries: Vec<Bytes>) -> Result<(), Error> {
        let height = self.journal.height();
        if position != height {
            return Err(Error::Invalid(format!("position {position}: the next one is {height}")));
        }
        for (position, entry) in (position..).zip(entries) {
            self.journal.append(position, entry).await?;
        }
        Ok(())
    }

    /// Moves what may be shown; what the leader knows of and this journal does not have comes later.
    fn show(&self, safe: u64) {
        let safe = safe.min(self.journal.height());
        self.safe.send_if_modified(|shown| {
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

    /// A journal in memory, which the test shares.
    #[derive(Default)]
    struct Held(Mutex<(Vec<Bytes>, Bytes)>);

    #[async_trait]
    impl Journal for Held {
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

        async fn cut(&self, height: u64) -> Result<(), Error> {
            self.0.lock().expect("no holder panics").0.truncate(height as usize);
            Ok(())
        }

        fn note(&self) -> Result<Bytes, Error> {
            Ok(self.0.lock().expect("no holder panics").1.clone())
        }

        async fn set_note(&self, note: Bytes) -> Result<(), Error> {
            self.0.lock().expect("no holder panics").1 = note;
            Ok(())
        }
    }

    /// A keeper's life, until the queue is dropped.
    struct Life {
        queue: Queue,
        stop: Stop,
        task: rt::Task<Error>,
    }

    fn live(journal: &Arc<Held>) -> Life {
        let (role, safe) = (watch(Role::Following { leader: None }).0, watch(1).0);
        let journal: Arc<dyn Journal> = journal.clone();
        let keeper = Keeper::new(journal, Processor(1), false, role.into(), safe.into()).expect("a note of its own");
        let (queue, commands) = Queue::new(4, 100);
        let stop = Stop::new();
        let task = rt::spawn(keeper.run(commands, stop.clone()));
        Life { queue, stop, task }
    }

    impl Life {
        async fn ask(&self, term: u64, holder: u64, command: Command) -> Result<Answer, Error> {
            let answered = self.queue.put(Reign { term: Term(term), holder }, command).await;
            answered.expect("it takes commands").await.expect("it answers")
        }

        async fn end(self) {
            self.stop.stop();
            assert_eq!(self.task.await.expect("it does not panic"), Error::Closed);
        }
    }

    fn entry(text: &'static str) -> Vec<Bytes> {
        vec![Bytes::from_static(text.as_bytes())]
    }

    #[test]
    fn nothing_of_an_earlier_reign_is_taken_also_after_a_restart() {
        production::run(async {
            let journal = Arc::new(Held::default());
            journal.append(0, Bytes::from_static(b"first")).await.expect("in memory");
            let keeper = live(&journal);
            let append = |text| Command::Append { position: 1, safe: 1, entries: entry(text) };
            keeper.ask(3, 7, Command::Fence { leader: 1 }).await.expect("the first reign");
            keeper.ask(3, 7, append("early")).await.expect_err("the journal is not adopted");
            keeper.ask(3, 7, Command::Adopt { height: 1 }).await.expect("it is equal");
            keeper.ask(5, 9, Command::Fence { leader: 2 }).await.expect("a later reign");
            for (term, holder) in [(3, 7), (5, 8), (4, 9), (6, 9)] {
                let refused = keeper.ask(term, holder, append("late")).await;
                assert_eq!(refused, Err(Error::Fenced(Term(term))), "{term} {holder}");
            }
            for (term, holder) in [(3, 7), (5, 8), (4, 1)] {
                let refused = keeper.ask(term, holder, Command::Fence { leader: 3 }).await;
                assert_eq!(refused, Err(Error::Fenced(Term(term))), "{term} {holder}");
            }
            keeper.end().await;
            let keeper = live(&journal);
            let refused = keeper.ask(4, 1, Command::Fence { leader: 3 }).await;
            assert_eq!(refused, Err(Error::Fenced(Term(4))), "the promise outlives the process");
            let is = Answer::Is { promised: Term(5), adopted: Term(3), height: 1 };
            assert_eq!(keeper.ask(0, 0, Command::Look).await, Ok(is));
            keeper.ask(5, 9, Command::Adopt { height: 1 }).await.expect("it is equal");
            let holds = Answer::Holds { height: 2, durable: 2 };
            assert_eq!(keeper.ask(5, 9, append("timely")).await, Ok(holds));
            keeper.end().await;
        });
    }

    #[test]
    fn what_was_shown_is_not_given_up() {
        production::run(async {
            let journal = Arc::new(Held::default());
            journal.append(0, Bytes::from_static(b"first")).await.expect("in memory");
            let keeper = live(&journal);
            keeper.ask(3, 7, Command::Fence { leader: 2 }).await.expect("the first reign");
            keeper.ask(3, 7, Command::Align { position: 1, entries: entry("a") }).await.expect("it follows");
            keeper.ask(3, 7, Command::Align { position: 1, entries: entry("b") }).await.expect_err("it does not");
            keeper.ask(3, 7, Command::Cut { height: 1 }).await.expect("it was never shown");
            keeper.ask(3, 7, Command::Align { position: 1, entries: entry("b") }).await.expect("it follows");
            keeper.ask(3, 7, Command::Adopt { height: 2 }).await.expect("it is equal");
            let safe = Command::Append { position: 2, safe: 2, entries: Vec::new() };
            keeper.ask(3, 7, safe).await.expect("it is adopted");
            let late = keeper.ask(3, 7, Command::Cut { height: 1 }).await;
            assert!(matches!(late, Err(Error::Invalid(_))), "what was adopted counts in its reign: {late:?}");
            keeper.ask(4, 8, Command::Fence { leader: 1 }).await.expect("a later reign");
            let refused = keeper.ask(4, 8, Command::Cut { height: 1 }).await;
            assert!(matches!(refused, Err(Error::Corrupt(_))), "{refused:?}");
            assert!(matches!(keeper.task.await, Ok(Error::Corrupt(_))), "it has ended");
        });
    }
}
