//! The engine of a single CPU node: its log store is the log.
//!
//! 1. The node leads from the start, in a term above that of every earlier start; its hard state keeps the term.
//! 2. An appended entry is written to the log store at once. A separate task syncs the log store. One sync covers all entries
//!    that were written since the previous one; then the task advances `deliverable`, the number of entries that clients may
//!    see.
//!
//! The log survives crashes and power failures as long as the disk survives; if the disk is lost, the log is lost.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use base::Bytes;
use base::rt::channel::{WatchReceiver, WatchSender, watch};
use base::rt::sync::{Notify, Semaphore};
use base::rt::{self, CancellationToken, Task};

use super::fault::{Mutant, crash_point, mutant};
use super::{Leadership, LogStore, OrderedLog};
use crate::{Error, Term};

/// Entries that are appended and not durable.
pub const IN_FLIGHT_MAX: usize = 8;

/// See [the module](self).
pub struct SoloLog {
    shared: Arc<SoloCore>,
    task: Mutex<Option<Task<()>>>,
}

struct SoloCore {
    log_store: Arc<dyn LogStore>,
    entry_bytes_max: usize,
    term: Term,
    leadership: WatchSender<Leadership>,
    deliverable: WatchSender<u64>,
    in_flight: Semaphore,
    work: Notify,
    ended: Mutex<Option<Error>>,
    stop: CancellationToken,
}

impl SoloLog {
    /// Opens the log that a log store holds; on return this CPU node leads.
    ///
    /// # Errors
    /// Those of the log store.
    pub async fn open(log_store: Arc<dyn LogStore>, entry_bytes_max: usize) -> Result<SoloLog, Error> {
        let height = log_store.sync().await?;
        let note = log_store.hard_state()?;
        let before = match note.len() {
            0 => 0,
            8 => wire::u64_at(&note, 0),
            _ => return Err(Error::Corrupt("the hard state of a solo log is not a term of eight bytes")),
        };
        let term = Term(before.checked_add(1).ok_or(Error::Corrupt("a term at the end of all terms"))?);
        log_store.set_hard_state(Bytes::copy_from_slice(&term.0.to_le_bytes())).await?;
        let shared = Arc::new(SoloCore {
            log_store,
            entry_bytes_max,
            term,
            leadership: watch(Leadership::Leading { term, next: height }).0,
            deliverable: watch(height).0,
            in_flight: Semaphore::new(IN_FLIGHT_MAX),
            work: Notify::new(),
            ended: Mutex::default(),
            stop: CancellationToken::new(),
        });
        let task = rt::spawn(run(Arc::clone(&shared)));
        Ok(SoloLog { shared, task: Mutex::new(Some(task)) })
    }
}

async fn run(shared: Arc<SoloCore>) {
    while let Some(()) = shared.stop.run_until_cancelled(shared.work.notified()).await {
        if let Err(error) = shared.sync().await {
            return shared.end(error);
        }
    }
    // Entries that have their position are made durable before the task ends: nobody else would do it.
    if let Err(error) = shared.sync().await {
        shared.end(error);
    }
}

impl SoloCore {
    async fn sync(&self) -> Result<(), Error> {
        crash_point("consensus.solo.appended").await;
        let durable = match mutant(Mutant::ShowUnsynced) {
            true => self.log_store.height(),
            false => self.log_store.sync().await?,
        };
        crash_point("consensus.solo.durable").await;
        let mut shown = 0;
        self.deliverable.send_if_modified(|safe| {
            shown = durable.saturating_sub(*safe);
            *safe = durable.max(*safe);
            shown > 0
        });
        self.in_flight.add_permits(shown as usize);
        Ok(())
    }

    fn end(&self, error: Error) {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.leadership.send(Leadership::Following { leader: None });
        self.stop.cancel();
    }
}

#[async_trait]
impl OrderedLog for SoloLog {
    fn leadership(&self) -> WatchReceiver<Leadership> {
        self.shared.leadership.subscribe()
    }

    fn deliverable(&self) -> WatchReceiver<u64> {
        self.shared.deliverable.subscribe()
    }

    async fn append(&self, term: Term, position: u64, entry: Bytes) -> Result<(), Error> {
        let shared = &self.shared;
        if term != shared.term {
            return Err(Error::Fenced(term));
        }
        super::check(&entry, shared.entry_bytes_max)?;
        let room = shared.stop.run_until_cancelled(shared.in_flight.acquire()).await.ok_or(Error::Closed)?;
        let height = shared.log_store.height();
        if position != height {
            return Err(Error::Invalid(format!("position {position}: the next one is {height}")));
        }
        if let Err(error) = shared.log_store.append(position, entry).await {
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
        self.shared.stop.cancelled().await;
        self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or(Error::Closed)
    }

    async fn stop(&self) {
        self.shared.stop.cancel();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            // A task is aborted only together with the runtime.
            let _ = task.await;
        }
        self.shared.leadership.send(Leadership::Following { leader: None });
    }
}

impl fmt::Debug for SoloLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Solo({})", self.shared.term)
    }
}
