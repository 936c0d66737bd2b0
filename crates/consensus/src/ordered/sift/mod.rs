//! Ordering on passive memory nodes: each entry is one record of a [`crate::Coordinator`]'s log, and is shown once a majority of
//! the processors has it on disk.
//!
//! ```text
//!  processors   Standby, or Coordinator and leader        keeper + journal (disk)   ◀── calls: fence, align, append
//!                    │ one record an entry                       ▲
//!  memory nodes      ▼                                           │ what is committed
//!               the group's log, in memory ──────────────────────┘
//! ```
//!
//! 1. Every processor has a [`keeper`] of its journal, and stands by as coordinator of the group. Whoever is elected begins to
//!    lead ([`lead`]), under the group's term:
//! 2. Fence: the keepers of a majority, its own among them, promise to take nothing from an earlier reign, and say how far their
//!    journals are and which reign has adopted them last.
//! 3. Choose: of those journals, the one that was adopted by the latest reign, and of these the longest. Its own journal is made
//!    equal to that; then the entries that the group's log has beyond it are appended.
//! 4. Adopt: each fenced journal is made equal to its own, on disk, and says that it is adopted. Once a majority is, all of that
//!    is safe, and it leads.
//! 5. An entry is posted to the group's log; when it is committed there, it goes to all adopted journals, in order and pipelined; each
//!    makes what it has got durable with one sync. What a majority of processors has on disk, and its own journal has, is safe.
//!    A reign under which entries are committed and none becomes safe for long is given up: another may reach more disks. Keepers that
//!    come later are fenced, made equal and adopted on the way. With every message they learn what may be shown.
//! 6. Records are trimmed from the group's log once they are on a majority of disks, but for the last one. So the log says how far a
//!    majority of disks once was: whoever is elected and hears of shorter journals alone, since disks were replaced or restored,
//!    ends instead of going on below what was shown.
//! 7. So many memory nodes may lose their memory that the group cannot tell what it held: lost power takes all of them. Then a
//!    processor has a majority of keepers promise the first term of the next era, which is greater than any that was ever used, under a
//!    number of its own, and makes the group anew with it, with an empty log, on a majority of its memory nodes: [`crate::format`]
//!    says how. Others are taken back as blank ones, whatever they hold. The same makes it the first time. Whoever ends amid that leaves
//!    keepers with a promise that no election comes up to; who is elected then and refused begins another era, by such a promise.
//!
//! Why what is safe stays, and nothing else is ever in its place. Journals are a log with views. Take an entry at a position that was
//! safe in term *t*: a majority of journals, adopted in *t*, had it on disk before any of them promised a greater term. By induction,
//! every journal that is adopted in a term from *t* on has it: the leader of such a term has heard of a majority, so of one that had it
//! when it promised; of the journals it heard of it takes the one with the latest adoption, which is of *t* or later, and so has it.
//! A journal that was being made equal to one that never was adopted by a majority still bears its old adoption, and holds a part of
//! what the leader of that reign chose, beginnings of which have whatever was safe. So nothing depends on the group's log being
//! there: it only makes what is committed and not on disks yet, survive the leader.
//!
//! Why the log's records continue the journal that was chosen. A leader posts records only after a majority has adopted. If the
//! group's memory was not lost since, the next leader finds all of them, and a journal that is adopted in that reign or a later one:
//! with every entry before the first record that is there, since only what a majority of disks has is trimmed. If it was lost, the log is
//! empty. What both have is compared.
//!
//! Why a group may be made anew without some of its memory nodes. What they hold is of no use to anybody: the keepers' promise came
//! first, so nothing of an earlier reign becomes safe any more, and what is safe is on disks. What they hold does no harm either. As a copy
//! it does not count, since it bears the number of another making. And whoever was elected with their votes, in a term that nobody
//! else here knows of, cannot begin to lead with what it found in that log: terms of elections stay within an era, the promise
//! is of the next one, and a new era is begun only by such a promise, of a majority of keepers, so that whoever hears a majority
//! knows the last one.
//!
//! What is lost with all memory at once: entries that were committed and not on a majority of disks. Nobody was shown any of
//! them. In a *volatile* log, what is committed in memory is shown at once, and this is what its users accept; a takeover
//! without such a loss loses nothing there either.
//!
//! Invariants:
//! * What is shown is in this processor's journal, and, unless the log is volatile, on a majority of disks.
//! * A keeper takes entries of one reign at a time, into a journal that this reign has adopted.
//! * What ends an engine is its own: its journal's failure, or a panic. What others say wrongly is no answer. One thing that a leader
//!   asks does: that something be given up which was shown here. Two processors then have two logs, and neither goes on as if it
//!   had not. (In a volatile log that can be after all others have lost their power; who starts anew follows them.)
//! * Bounded: entries on their way ([`UNSAFE_MAX`]), messages to a keeper ([`APPENDS_MAX`]) and the bytes that it holds of them,
//!   connections.

#[doc(hidden)]
pub mod fuzz;
mod keeper;
mod lead;
mod message;
mod path;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use base::rt::channel::{Receiver, WatchReceiver, WatchSender, watch};
use base::rt::net::call::{self, Handler, Refusal};
use base::rt::net::{self, Door, Listener, Parties, Parts};
use base::rt::{self, Stop, Task};
use base::{Bytes, ErrorKind};

use super::{Journal, OrderedLog, Processor, Role};
use crate::fault::crash_point;
use crate::guard::guarded;
use crate::{Error, Group, Standby, Term};
use keeper::{Asked, Keeper, Queue};
use lead::Lead;
use message::{Command, Reign};

/// Entries that were appended and are not safe, or not in the leader's own journal.
pub const UNSAFE_MAX: usize = 32;
/// Messages with entries that are on their way to one keeper.
pub const APPENDS_MAX: usize = 4;
/// Requests of one connection to a keeper.
const REQUESTS_MAX: usize = 16;
/// Connections to a keeper.
const CONNECTIONS_MAX: usize = 32;
/// What a record takes beside the entry.
const RECORD_BYTES: u64 = 64;

/// A processor of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Neighbour {
    /// Which.
    pub processor: Processor,
    /// Where its keeper answers.
    pub address: String,
}

/// What a processor's part is made of.
pub struct SiftOptions {
    /// The memory nodes, as this processor reaches them.
    pub group: Group,
    /// Which processor this is.
    pub me: Processor,
    /// All processors, the same everywhere.
    pub processors: Vec<Neighbour>,
    /// Its journal.
    pub journal: Arc<dyn Journal>,
    /// Whether entries are shown once they are committed in memory, before they are on disks.
    pub volatile: bool,
    /// How long a keeper may take to answer, its disk included.
    pub disk_max: Duration,
}

/// One processor's part. See [the module](self).
pub struct Sift {
    shared: Arc<Shared>,
    tasks: Mutex<Vec<Task<()>>>,
}

struct Shared {
    group: Group,
    me: Processor,
    processors: Vec<Neighbour>,
    journal: Arc<dyn Journal>,
    volatile: bool,
    disk_max: Duration,
    queue: Queue,
    role: Arc<WatchSender<Role>>,
    safe: Arc<WatchSender<u64>>,
    leading: Mutex<Option<Arc<Lead>>>,
    ended: Mutex<Option<Error>>,
    /// Everything here ends.
    stop: Stop,
}

impl Sift {
    /// Starts a processor: its keeper answers on return.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a group or processors that make no sense; [`Error::Corrupt`] for a note of another engine;
    /// [`Error::NoAnswer`] when the keeper's address is taken.
    pub async fn open(options: SiftOptions) -> Result<Sift, Error> {
        let SiftOptions { group, me, processors, journal, volatile, disk_max } = options;
        let standby = Standby::new(group.clone(), me.0)?;
        let mine: Vec<&Neighbour> = processors.iter().filter(|neighbour| neighbour.processor == me).collect();
        let [mine] = mine[..] else {
            return Err(Error::Invalid(format!("processor {me} must be named once among the processors")));
        };
        let (role, safe) = (Arc::new(watch(Role::Following { leader: None }).0), Arc::new(watch(1).0));
        let entry_bytes_max = group.layout.entry_bytes_max() as usize;
        let queue_bytes_max = APPENDS_MAX * entry_bytes_max.max(lead::BATCH_BYTES as usize);
        let (queue, commands) = Queue::new(REQUESTS_MAX * CONNECTIONS_MAX, queue_bytes_max);
        let keeper = Keeper::new(Arc::clone(&journal), me, volatile, Arc::clone(&role), Arc::clone(&safe))?;
        let taken =
            |error: std::io::Error| Error::NoAnswer { address: mine.address.clone(), reason: error.to_string() };
        let listener = net::listen(&mine.address).await.map_err(taken)?;
        let shared = Arc::new(Shared {
            group,
            me,
            processors,
            journal,
            volatile,
            disk_max,
            queue,
            role,
            safe,
            leading: Mutex::default(),
            ended: Mutex::default(),
            stop: Stop::new(),
        });
        let ends = |what| {
            let shared = Arc::clone(&shared);
            move || shared.end(Error::Panicked(what))
        };
        let tasks = vec![
            rt::spawn(guarded(keep(Arc::clone(&shared), keeper, commands), ends("its keeper"))),
            rt::spawn(guarded(accept(Arc::clone(&shared), listener), ends("its port"))),
            rt::spawn(guarded(stand(Arc::clone(&shared), standby), ends("its standby"))),
        ];
        Ok(Sift { shared, tasks: Mutex::new(tasks) })
    }

    /// How the memory nodes are, as the coordinator sees them; nothing while this processor does not lead.
    pub fn status(&self) -> Option<crate::Status> {
        self.shared.lead().map(|lead| lead.coordinator().status())
    }
}

impl Shared {
    /// How many journals are a majority.
    fn majority(&self) -> usize {
        self.processors.len() / 2 + 1
    }

    fn lead(&self) -> Option<Arc<Lead>> {
        self.leading.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_lead(&self, lead: Option<Arc<Lead>>) {
        *self.leading.lock().unwrap_or_else(PoisonError::into_inner) = lead;
    }

    fn end(&self, error: Error) {
        if !matches!(error, Error::Closed) {
            tracing::error!(processor = %self.me, %error, "ordering has ended here");
        }
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.stop.stop();
    }

    /// Says that it follows, unless it is known whom.
    fn follow(&self) {
        self.role.send_if_modified(|role| {
            let led = matches!(role, Role::Leading { .. });
            if led {
                *role = Role::Following { leader: None };
            }
            led
        });
    }
}

/// Runs the keeper.
async fn keep(shared: Arc<Shared>, keeper: Keeper, commands: Receiver<Asked>) {
    let error = keeper.run(commands, shared.stop.clone()).await;
    shared.end(error);
}

/// Connections to the keeper.
async fn accept(shared: Arc<Shared>, listener: Listener) {
    // The transport lets in the other processors and nobody else.
    let mut door = Door::new(listener, &Parties::anyone(), CONNECTIONS_MAX);
    let stop = shared.stop.clone();
    while let Some(Ok(accepted)) = stop.or_stopped(door.accept()).await {
        let handler = Arc::new(Port { queue: shared.queue.clone() });
        let serving = call::serve_in(accepted, handler, REQUESTS_MAX, stop.clone());
        drop(rt::spawn(async move {
            let ended = serving.await;
            tracing::debug!(?ended, "a link to a keeper ended");
        }));
    }
}

/// One connection.
struct Port {
    queue: Queue,
}

impl Handler for Port {
    fn request(&self, request: Parts) -> call::Answer {
        let queued = Command::decode(request.concat()).and_then(|(reign, command)| self.queue.try_put(reign, command));
        Box::pin(async move {
            let answered = match queued {
                Ok(answered) => answered,
                Err(Error::Busy) => return Err(Refusal::new(ErrorKind::Retry, "the keeper is busy")),
                Err(Error::Closed) => return Err(Refusal::new(ErrorKind::Closed, "the keeper has ended")),
                Err(error) => return Err(Refusal::new(ErrorKind::Rejected, error.to_string())),
            };
            match answered.await {
                Ok(Ok(answer)) => Ok(answer.encode()),
                Ok(Err(error)) => Err(Refusal::new(error.kind(), error.to_string())),
                Err(_) => Err(Refusal::new(ErrorKind::Closed, "the keeper has ended")),
            }
        })
    }
}

/// Stands by, leads, stands by again.
async fn stand(shared: Arc<Shared>, mut standby: Standby) {
    let stop = shared.stop.clone();
    if let Some(error) = stop.or_stopped(compete(&shared, &mut standby)).await {
        shared.end(error);
    }
    if let Some(lead) = shared.lead() {
        lead.end();
    }
    shared.set_lead(None);
    shared.follow();
}

/// Gives what it cannot go on after.
async fn compete(shared: &Arc<Shared>, standby: &mut Standby) -> Error {
    loop {
        let outcome = match standby.take_over().await {
            Ok(coordinator) => match lead::lead(shared, coordinator).await {
                Err(error @ Error::Fenced(_)) => surpass(shared).await.and(Err(error)),
                outcome => outcome,
            },
            Err(Error::MemoryLost { lost, nodes }) => {
                tracing::info!(processor = %shared.me, lost, nodes, "the group has no memory of what it held");
                make_anew(shared).await
            }
            Err(error) => Err(error),
        };
        shared.set_lead(None);
        shared.follow();
        match outcome {
            Ok(()) => {}
            Err(error @ (Error::Corrupt(_) | Error::Journal(_) | Error::Closed)) => return error,
            Err(error) => tracing::info!(processor = %shared.me, %error, "not this time"),
        }
        standby.back_off().await;
    }
}

/// Step 7 at the head of this module.
async fn make_anew(shared: &Arc<Shared>) -> Result<(), Error> {
    let nobody = Reign::default();
    let looked = lead::ask_all(shared, nobody, Command::Look).await?;
    let promised = looked.iter().map(|heard| heard.promised);
    let links = crate::format::reach(&shared.group).await?;
    // What stands at memory nodes is no greater, unless orderers were made anew on memory nodes that were not.
    let greatest = promised.chain(links.iter().map(|(_, words)| words.term)).max().unwrap_or_default();
    let term = greatest.next_era()?;
    let reign = Reign { term, holder: rt::random_u64() };
    lead::ask_all(shared, reign, Command::Fence { leader: shared.me.0 }).await?;
    crash_point("consensus.reform.promised").await;
    crate::format::reform(&shared.group, links, reign.term, reign.holder).await?;
    tracing::info!(processor = %shared.me, %term, "the group was made anew");
    Ok(())
}

/// Keepers refuse the term that this processor was elected in. Where no memory node has come as far as what they have promised, whoever
/// made the group anew ended amid that, and no election would ever get there: they go on in an era of their own.
async fn surpass(shared: &Arc<Shared>) -> Result<(), Error> {
    let looked = lead::ask_all(shared, Reign::default(), Command::Look).await?;
    let promised = looked.iter().map(|heard| heard.promised).max().unwrap_or_default();
    let links = crate::format::reach(&shared.group).await?;
    if links.iter().any(|(_, words)| words.term >= promised) {
        return Ok(());
    }
    // As for making it anew: an era begins with a promise of a majority.
    let reign = Reign { term: promised.next_era()?, holder: rt::random_u64() };
    lead::ask_all(shared, reign, Command::Fence { leader: shared.me.0 }).await?;
    crate::format::surpass(&shared.group, links, reign.term).await?;
    tracing::info!(processor = %shared.me, term = %reign.term, "elections go on above what keepers have promised");
    Ok(())
}

#[async_trait]
impl OrderedLog for Sift {
    fn role(&self) -> WatchReceiver<Role> {
        self.shared.role.subscribe()
    }

    fn safe(&self) -> WatchReceiver<u64> {
        self.shared.safe.subscribe()
    }

    async fn append(&self, term: Term, position: u64, entry: Bytes) -> Result<(), Error> {
        super::check(&entry, self.entry_bytes_max())?;
        match self.shared.lead() {
            Some(lead) => {
                let appended = self.shared.stop.or_stopped(lead.append(term, position, entry)).await;
                appended.unwrap_or(Err(Error::Closed))
            }
            None if self.shared.stop.is_stopped() => Err(Error::Closed),
            None => Err(Error::Fenced(term)),
        }
    }

    fn entry_bytes_max(&self) -> usize {
        (self.shared.group.layout.entry_bytes_max() - RECORD_BYTES) as usize
    }

    async fn ended(&self) -> Error {
        self.shared.stop.stopped().await;
        self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or(Error::Closed)
    }

    async fn stop(&self) {
        self.shared.stop.stop();
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        for task in tasks {
            // It is aborted only together with the runtime.
            let _ = task.await;
        }
    }
}

impl fmt::Debug for Sift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sift({} of {:?})", self.shared.me, self.shared.group)
    }
}

#[cfg(test)]
mod tests;
