//! Group fsync: one round of fsyncs serves all waiting writers of a disk.
//!
//! An fsync costs a trip to the device, whether it makes one block durable or ten. On a journaling file system,
//! concurrent fsyncs of several files share one commit of the journal. Therefore all channels and peers on one disk
//! share one [`GroupSync`]:
//!
//! 1. A caller registers its file once and calls [`SyncHandle::sync`]; the request joins the set of waiting files.
//! 2. A task runs as long as any caller waits. In each *round* it takes up to [`FILES_PER_ROUND_MAX`] files out of the
//!    set, syncs them concurrently, and answers every caller that waited for one of them.
//! 3. Requests that arrive during a round wait for a later round, because their bytes may have been written after the
//!    fsync of their file began.
//!
//! Invariants:
//! * The fsync that answers a caller began after the caller asked.
//! * The outcome of a file's fsync goes to exactly the callers of that file in that round.
//! * Dropping a caller's future cancels nothing for others.
//!
//! The owner of the file decides what a failed fsync means.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};

use base::rt;
use base::rt::channel::{OneshotSender, oneshot};
use base::rt::disk::File;
use base::rt::sync::Semaphore;

use crate::{events, lock};

/// Callers that may wait at once; further ones queue for a slot.
pub const WAITERS_MAX: usize = 4096;
/// Files synced concurrently in one round; the rest waits for the next one.
pub const FILES_PER_ROUND_MAX: usize = 64;

type SyncOutcome = Result<(), Arc<io::Error>>;

/// Coalesces requests to make files durable. Clones share the rounds; use one per disk.
#[derive(Clone)]
pub struct GroupSync {
    shared: Arc<GroupSyncCore>,
}

struct GroupSyncCore {
    state: Mutex<GroupSyncState>,
    permits: Semaphore,
}

#[derive(Default)]
struct GroupSyncState {
    next_file: u64,
    /// Whether a task is running rounds; it ends when no caller waits.
    running: bool,
    waiting: BTreeMap<u64, SyncRequest>,
}

struct SyncRequest {
    file: File,
    callers: Vec<OneshotSender<SyncOutcome>>,
}

/// A file that takes part in the rounds of a [`GroupSync`].
#[derive(Clone)]
pub struct SyncHandle {
    group: GroupSync,
    id: u64,
    file: File,
}

impl GroupSync {
    /// A group without files.
    pub fn new() -> GroupSync {
        GroupSync { shared: Arc::new(GroupSyncCore { state: Mutex::default(), permits: Semaphore::new(WAITERS_MAX) }) }
    }

    /// Adds a file to the rounds. Register each file once: requests are coalesced by handle.
    pub fn register(&self, file: File) -> SyncHandle {
        let mut state = lock(&self.shared.state);
        let id = state.next_file;
        state.next_file += 1;
        SyncHandle { group: self.clone(), id, file }
    }
}

impl Default for GroupSync {
    fn default() -> Self {
        GroupSync::new()
    }
}

impl SyncHandle {
    /// Makes everything written to the file before this call durable.
    ///
    /// Dropping the future is safe; the round continues.
    ///
    /// # Errors
    /// The error of the fsync, which every caller of that fsync gets: it is then unknown which bytes are durable, and
    /// syncing again does not show it.
    pub async fn sync(&self) -> SyncOutcome {
        events::SyncsRequested.add(1);
        let _place = self.group.shared.permits.acquire().await;
        let (answer, answered) = oneshot();
        let start = {
            let mut state = lock(&self.group.shared.state);
            let request = state
                .waiting
                .entry(self.id)
                .or_insert_with(|| SyncRequest { file: self.file.clone(), callers: Vec::with_capacity(1) });
            request.callers.push(answer);
            !std::mem::replace(&mut state.running, true)
        };
        if start {
            // A separate task, so that the first caller may be dropped.
            drop(rt::spawn(run_rounds(RunningRounds { shared: Arc::clone(&self.group.shared), finished: false })));
        }
        match answered.await {
            Ok(outcome) => outcome,
            Err(rt::channel::Closed) => Err(Arc::new(io::Error::other("the runtime stopped before the fsync"))),
        }
    }
}

/// Held by the task that runs rounds. If the task is aborted, its callers get an error, and the next request starts another
/// task.
struct RunningRounds {
    shared: Arc<GroupSyncCore>,
    finished: bool,
}

impl Drop for RunningRounds {
    fn drop(&mut self) {
        if self.finished {
            return; // Another task may be running rounds by now.
        }
        let mut state = lock(&self.shared.state);
        state.running = false;
        state.waiting.clear();
    }
}

async fn run_rounds(mut running: RunningRounds) {
    loop {
        let round = {
            let mut state = lock(&running.shared.state);
            if state.waiting.is_empty() {
                // Both under one lock: a later request finds `running` false and starts a task.
                state.running = false;
                running.finished = true;
                return;
            }
            match state.waiting.keys().nth(FILES_PER_ROUND_MAX).copied() {
                None => std::mem::take(&mut state.waiting),
                Some(first_of_rest) => {
                    let rest = state.waiting.split_off(&first_of_rest);
                    std::mem::replace(&mut state.waiting, rest)
                }
            }
        };
        run_round(round).await;
    }
}

async fn run_round(round: BTreeMap<u64, SyncRequest>) {
    let start = rt::now();
    events::SyncRounds.add(1);
    events::FilesSynced.add(round.len() as u64);
    let mut syncs = Vec::with_capacity(round.len());
    for request in round.into_values() {
        syncs.push(sync_one(request));
    }
    if syncs.len() == 1 {
        syncs.pop().expect("the length was just checked").await;
    } else {
        let tasks: Vec<_> = syncs.into_iter().map(rt::spawn).collect();
        for task in tasks {
            // An aborted task has dropped its callers' channels, which answers them with an error.
            let _ = task.await;
        }
    }
    events::SyncRoundTime.record_since(start);
}

async fn sync_one(request: SyncRequest) {
    let outcome = request.file.sync().await.map_err(Arc::new);
    for caller in request.callers {
        // A caller that has gone does not need the answer.
        let _ = caller.send(outcome.clone());
    }
}

impl fmt::Debug for GroupSync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.shared.state);
        f.debug_struct("GroupSync").field("running", &state.running).field("waiting", &state.waiting.len()).finish()
    }
}

impl fmt::Debug for SyncHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SyncHandle").field("id", &self.id).finish()
    }
}
