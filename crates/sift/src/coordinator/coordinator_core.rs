//! The state that a coordinator's handle and tasks share.

use std::future::poll_fn;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use base::rt::CancellationToken;
use base::rt::sync::Notify;
use base::{BytesMut, rt};
use rma::Completion;

use super::limits::READ_TIMEOUT_HEARTBEATS;
use super::state::{CoordinatorState, PublishedProgress, ShardRead, StepOutcome};
use crate::entry::LogEntry;
use crate::link::FencedNode;
use crate::{Error, SiftGroup, Term};

pub(crate) struct CoordinatorCore {
    pub(super) group: Arc<SiftGroup>,
    pub(super) node: u64,
    pub(super) term: Term,
    pub(super) nonce: u64,
    /// The generation of the group: copies of another generation do not count here.
    pub(super) format_term: Term,
    pub(super) state: Mutex<CoordinatorState>,
    pub(super) published: Arc<PublishedProgress>,
    /// One per node: its phase has changed.
    pub(super) changed: Vec<Notify>,
    pub(super) stop: CancellationToken,
    pub(super) recovered: Vec<LogEntry>,
    /// The unlogged region is repaired: nodes may be copied from any live node.
    pub(super) is_unlogged_recovered: AtomicBool,
}

pub(super) fn lock(state: &Mutex<CoordinatorState>) -> MutexGuard<'_, CoordinatorState> {
    // A panic under this lock fails the process's tests; the state is then used only to end the coordinator.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CoordinatorCore {
    pub(super) fn end(&self, error: Error) {
        lock(&self.state).end(error);
        self.stop.cancel();
    }

    pub(super) async fn read(&self, address: u64, length: usize) -> Result<BytesMut, Error> {
        loop {
            let (held, read) = self.step(|state| state.read(address, length)).await?;
            let outcome = match read.now() {
                Ok(outcome) => outcome,
                Err(read) => match rt::timeout(self.read_timeout(), read).await {
                    Ok(outcome) => outcome,
                    Err(rt::Elapsed) => {
                        lock(&self.state).note_slow(&held);
                        continue;
                    }
                },
            };
            let mut state = lock(&self.state);
            match outcome {
                Ok(bytes) => {
                    state.check_lease()?;
                    return Ok(bytes);
                }
                Err(error) => state.lose(&held, &error),
            }
            drop(state);
            self.notify_changed();
        }
    }

    /// Reads the unlogged region directly, and the logged memory from shards.
    pub(super) async fn read_erasure_coded(&self, address: u64, length: usize) -> Result<BytesMut, Error> {
        let direct = self.group.layout.unlogged_bytes.saturating_sub(address).min(length as u64) as usize;
        if length == 0 {
            return lock(&self.state).check_lease().map(|()| BytesMut::new());
        }
        let mut bytes = if direct > 0 { self.read(address, direct).await? } else { BytesMut::new() };
        if direct < length {
            bytes.extend_from_slice(&self.read_shards(address + direct as u64, length - direct, false).await?);
        }
        Ok(bytes)
    }

    /// Reads bytes of an erasure-coded group's memory, whose blocks the caller may hold.
    pub(super) async fn read_shards(&self, address: u64, length: usize, is_held: bool) -> Result<BytesMut, Error> {
        loop {
            let fetch = self.step(|state| state.read_shards(address, length, is_held)).await?;
            if let Some(bytes) = self.gather_shards(fetch, self.read_timeout()).await {
                lock(&self.state).check_lease()?;
                return Ok(bytes);
            }
        }
    }

    /// The bytes that a fetch's shards decode to; `None` when a node that was read from failed or was slow.
    pub(super) async fn gather_shards(&self, mut fetch: ShardRead, timeout: Duration) -> Option<BytesMut> {
        let mut given = Vec::with_capacity(fetch.reads.len());
        for (held, read) in std::mem::take(&mut fetch.reads) {
            given.push((held.link.slot, self.finish_read(&held, read, timeout).await?));
        }
        Some(fetch.decode(&given))
    }

    /// A node's answer; `None` when the node failed, and is now lost, or took too long.
    pub(super) async fn finish_read(
        &self,
        held: &FencedNode,
        read: Completion<BytesMut>,
        timeout: Duration,
    ) -> Option<BytesMut> {
        match rt::timeout(timeout, read).await {
            Ok(Ok(bytes)) => return Some(bytes),
            Ok(Err(error)) => lock(&self.state).lose(held, &error),
            Err(rt::Elapsed) => lock(&self.state).note_slow(held),
        }
        self.notify_changed();
        None
    }

    fn read_timeout(&self) -> Duration {
        self.group.timing.heartbeat * READ_TIMEOUT_HEARTBEATS
    }

    /// Runs a step on the state as soon as the step can be done.
    pub(super) async fn step<T>(
        &self,
        mut step: impl FnMut(&mut CoordinatorState) -> Result<StepOutcome<T>, Error>,
    ) -> Result<T, Error> {
        poll_fn(|cx| {
            let mut state = lock(&self.state);
            match step(&mut state)? {
                StepOutcome::Done(done) => return Poll::Ready(Ok(done)),
                StepOutcome::Blocked => {}
            }
            // The step may be blocked only by verbs that have completed, or by entries that are ready to be applied.
            let woken = state.advance(cx);
            let outcome = step(&mut state).and_then(|outcome| match outcome {
                StepOutcome::Done(done) => Ok(Poll::Ready(done)),
                StepOutcome::Blocked => state.wait(cx).map(|()| Poll::Pending),
            });
            drop(state);
            // Also when this attempt has failed: these callers have been taken from the queue, so no other task wakes
            // them.
            woken.wake();
            outcome.map_or_else(|error| Poll::Ready(Err(error)), |waits| waits.map(Ok))
        })
        .await
    }

    /// Wakes the background tasks of nodes whose phase has changed, and every task when the coordinator has ended.
    pub(super) fn notify_changed(&self) {
        if !self.published.take_changed() {
            return;
        }
        self.changed.iter().for_each(Notify::notify_one);
        if lock(&self.state).has_ended() {
            self.stop.cancel();
        }
    }
}
