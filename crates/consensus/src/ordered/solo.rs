//! The engine of one processor: its journal is the log.
//!
//! 1. It leads from the beginning, in a term above that of every earlier start, which its note keeps.
//! 2. An entry that is appended goes into the journal at once; a second task makes all that came meanwhile durable with one sync,
//!    and moves `safe`.
//!
//! It survives crashes and lost power with the disk that it has; with the disk everything is gone.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use base::Bytes;
use base::rt::channel::{WatchReceiver, WatchSender, watch};
use base::rt::sync::{Notify, Semaphore};
use base::rt::{self, Stop, Task};

use super::fault::{Mutant, crash_point, mutant};
use super::{Journal, OrderedLog, Role};
use crate::{Error, Term};

/// Entries that are appended and not durable.
pub const UNSAFE_MAX: usize = 8;

/// See [the module](self).
pub struct Solo {
    shared: Arc<Shared>,
    task: Mutex<Option<Task<()>>>,
}

struct Shared {
    journal: Arc<dyn Journal>,
    entry_bytes_max: usize,
    term: Term,
    role: WatchSender<Role>,
    safe: WatchSender<u64>,
    room: Semaphore,
    work: Notify,
    ended: Mutex<Option<Error>>,
    stop: Stop,
}

impl Solo {
    /// Opens the log that a journal holds; on return this processor leads.
    ///
    /// # Errors
    /// The journal's.
    pub async fn open(journal: Arc<dyn Journal>, entry_bytes_max: usize) -> Result<Solo, Error> {
        let height = journal.sync().await?;
        let note = journal.note()?;
        let before = match note.len() {
            0 => 0,
            8 => u64::from_le_bytes(note[..].try_into().expect("eight bytes")),
            _ => return Err(Error::Corrupt("the note of a solo log is a term, of eight bytes")),
        };
        let term = Term(before.checked_add(1).ok_or(Error::Corrupt("a term at the end of all terms"))?);
        journal.set_note(Bytes::copy_from_slice(&term.0.to_le_bytes())).await?;
        let shared = Arc::new(Shared {
            journal,
            entry_bytes_max,
            term,
            role: watch(Role::Leading { term, next: height }).0,
            safe: watch(height).0,
            room: Semaphore::new(UNSAFE_MAX),
            work: Notify::new(),
            ended: Mutex::default(),
            stop: Stop::new(),
        });
        let task = rt::spawn(run(Arc::clone(&shared)));
        Ok(Solo { shared, task: Mutex::new(Some(task)) })
    }
}

async fn run(shared: Arc<Shared>) {
    while let Some(()) = shared.stop.or_stopped(shared.work.notified()).await {
        if let Err(error) = shared.sync().await {
            return shared.end(error);
        }
    }
    // Those that have their place are made durable on the way out: nobody else would.
    if let Err(error) = shared.sync().await {
        shared.end(error);
    }
}

impl Shared {
    async fn sync(&self) -> Result<(), Error> {
        crash_point("consensus.solo.appended").await;
        let durable = match mutant(Mutant::ShowUnsynced) {
            true => self.journal.height(),
            false => self.journal.sync().await?,
        };
        crash_point("consensus.solo.durable").await;
        let mut shown = 0;
        self.safe.send_if_modified(|safe| {
            shown = durable.saturating_sub(*safe);
            *safe = durable.max(*safe);
            shown > 0
        });
        self.room.add_permits(shown as usize);
        Ok(())
    }

    fn end(&self, error: Error) {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.role.send(Role::Following { leader: None });
        self.stop.stop();
    }
}

#[async_trait]
impl OrderedLog for Solo {
    fn role(&self) -> WatchReceiver<Role> {
        self.shared.role.subscribe()
    }

    fn safe(&self) -> WatchReceiver<u64> {
        self.shared.safe.subscribe()
    }

    async fn append(&self, term: Term, position: u64, entry: Bytes) -> Result<(), Error> {
        let shared = &self.shared;
        if term != shared.term {
            return Err(Error::Fenced(term));
        }
        super::check(&entry, shared.entry_bytes_max)?;
        let room = shared.stop.or_stopped(shared.room.acquire()).await.ok_or(Error::Closed)?;
        let height = shared.journal.height();
        if position != height {
            return Err(Error::Invalid(format!("position {position}: the next one is {height}")));
        }
        if let Err(error) = shared.journal.append(position, entry).await {
            shared.end(error.clone());
            return Err(error);
        }
        room.forget();
        shared.work.notify_one();
        Ok(())
    }

    fn entry_bytes_max(&self) -> usize {
        self.shared.entry_bytes_max
    }

    async fn ended(&self) -> Error {
        self.shared.stop.stopped().await;
        self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or(Error::Closed)
    }

    async fn stop(&self) {
        self.shared.stop.stop();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            // It is aborted only together with the runtime.
            let _ = task.await;
        }
        self.shared.role.send(Role::Following { leader: None });
    }
}

impl fmt::Debug for Solo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Solo({})", self.shared.term)
    }
}
