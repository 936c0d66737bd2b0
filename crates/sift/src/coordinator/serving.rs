//! A coordinator that serves: it accepts reads and writes, and runs the tasks that carry them out.

use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Context;
use std::time::Duration;

use base::rt::sync::Notify;
use base::rt::{CancellationToken, guarded};
use base::{Bytes, BytesMut, rt};

use super::coordinator_core::{CoordinatorCore, lock};
use super::state::{AppendedEntry, CoordinatorState, EntryWrites, Holding};
use super::status::{CoordinatorStatus, RecoveredState};
use crate::entry::{EntryKind, LogEntry, MemoryWrite};
use crate::layout::GroupLayout;
use crate::quorum::gather;
use crate::{Error, GroupId, SiftGroup, Term, entry};

/// A group's coordinator. Clones share one coordinator; it ends when the last clone is dropped, as if it had crashed.
#[derive(Clone)]
pub struct Coordinator {
    shared: Arc<CoordinatorCore>,
    _alive: Arc<StopOnDrop>,
}

pub(super) struct StopOnDrop(Arc<CoordinatorCore>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.end(Error::Closed);
    }
}

/// A posted write or record; later ones compare greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct WriteHandle(u64);

impl Coordinator {
    /// Step 6 of a takeover: gets a lease and starts to serve.
    pub(crate) async fn start(
        group: Arc<SiftGroup>,
        node: u64,
        term: Term,
        nonce: u64,
        recovered_state: RecoveredState,
    ) -> Result<Coordinator, Error> {
        let posted_at = rt::now();
        let probes = recovered_state.nodes.iter().map(|inherited| async {
            let probe = inherited.node.read(0, rma::WORD_BYTES);
            inherited.node.link.endpoint.flush();
            probe.await.ok().map(|_| inherited.node.link.slot)
        });
        let timing = &group.timing;
        let probed = gather(probes, group.majority(), timing.grace, timing.lease / 2).await;
        if probed.len() < group.majority() {
            return Err(Error::LeaseLost(term));
        }
        let recovered = recovered_state.entries.iter().map(|placed| placed.entry.clone()).collect();
        let (slots, made) = (group.nodes.len(), recovered_state.format_term);
        let is_unlogged_recovered = AtomicBool::new(group.layout.unlogged_bytes == 0);
        let state = CoordinatorState::new(&group, term, recovered_state, &probed, posted_at);
        let shared = Arc::new(CoordinatorCore {
            group,
            node,
            term,
            nonce,
            format_term: made,
            published: Arc::clone(&state.published),
            state: Mutex::new(state),
            changed: (0..slots).map(|_| Notify::new()).collect(),
            stop: CancellationToken::new(),
            recovered,
            is_unlogged_recovered,
        });
        let coordinator =
            Coordinator { _alive: Arc::new(StopOnDrop(Arc::clone(&shared))), shared: Arc::clone(&shared) };
        let ends = || {
            let shared = Arc::clone(&shared);
            move || shared.end(Error::Panicked("a task of a coordinator"))
        };
        rt::spawn(guarded(super::background::drive(Arc::clone(&shared)), ends()));
        for slot in 0..slots {
            rt::spawn(guarded(super::background::maintain_node(Arc::clone(&shared), slot), ends()));
            rt::spawn(guarded(super::background::run_persister(Arc::clone(&shared), slot), ends()));
        }
        Ok(coordinator)
    }

    /// Its term.
    pub fn term(&self) -> Term {
        self.shared.term
    }

    /// Its group.
    pub fn group(&self) -> GroupId {
        self.shared.group.id
    }

    /// The sizes of its group.
    pub fn layout(&self) -> &GroupLayout {
        &self.shared.group.layout
    }

    /// The entries that the takeover found in the log and that no majority's headers covered, in order. A log of
    /// records begins where it was trimmed.
    pub fn recovered(&self) -> &[LogEntry] {
        &self.shared.recovered
    }

    /// The coordinator's state.
    pub fn status(&self) -> CoordinatorStatus {
        lock(&self.shared.state).status()
    }

    /// Whether it serves now: it has not ended, and its lease stands.
    pub fn is_serving(&self) -> bool {
        self.check_serving().is_ok()
    }

    /// Completes when the coordinator has ended, with the reason.
    pub async fn ended(&self) -> Error {
        self.shared.stop.cancelled().await;
        lock(&self.shared.state).ended().unwrap_or(Error::Closed)
    }

    /// Ends it. Requests in flight become ambiguous to their callers.
    pub fn step_down(&self) {
        self.shared.end(Error::Closed);
    }

    /// Reads `length` bytes at an address. Linearizable for logged memory. Dropping the future is safe.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a range outside the memory, or longer than [`rma::TRANSFER_BYTES_MAX`];
    /// [`Error::Fenced`], [`Error::LeaseLost`], [`Error::Closed`] when it no longer serves.
    pub async fn read(&self, address: u64, length: usize) -> Result<BytesMut, Error> {
        match self.shared.group.layout.is_erasure_coded() {
            true => self.shared.read_erasure_coded(address, length).await,
            false => self.shared.read(address, length).await,
        }
    }

    /// Writes bytes at an address of the logged memory. Committed on return; returns the entry's index. If the future
    /// is dropped, the write may still be committed.
    ///
    /// # Errors
    /// [`Error::Invalid`]; [`Error::Busy`] when too many callers wait; [`Error::Ambiguous`]; and the errors of
    /// [`Coordinator::read`], after which nothing was written.
    pub async fn write(&self, address: u64, bytes: Bytes) -> Result<u64, Error> {
        self.append(EntryWrites::One(MemoryWrite { address, bytes }), EntryKind::Writes).await
    }

    /// Writes several ranges at once: either all are committed or none, and no conflicting write or read comes between
    /// them.
    ///
    /// # Errors
    /// As [`Coordinator::write`].
    pub async fn transact(&self, writes: Vec<MemoryWrite>) -> Result<u64, Error> {
        self.append(EntryWrites::Many(writes), EntryKind::Writes).await
    }

    /// Appends a record, which stays in the log until it is trimmed. Committed on return; returns its index.
    ///
    /// # Errors
    /// As [`Coordinator::write`]. While the log is full of records, this waits for [`Coordinator::trim`].
    pub async fn append_record(&self, bytes: Bytes) -> Result<u64, Error> {
        self.append(EntryWrites::One(MemoryWrite { address: 0, bytes }), EntryKind::Record).await
    }

    /// As [`Coordinator::append_record`], but returns the index as soon as the record has its position in the log and
    /// is posted. Records are committed in the order of their positions, and [`Coordinator::confirm`] waits for that.
    /// The `tag` is kept with the record, as the address of its only write. If the future is dropped before it
    /// completes, nothing was posted.
    ///
    /// # Errors
    /// As [`Coordinator::read`], after which nothing was written; [`Error::Invalid`]; [`Error::Busy`].
    pub async fn post_record(&self, tag: u64, bytes: Bytes) -> Result<(WriteHandle, u64), Error> {
        let AppendedEntry { sequence, index, .. } =
            self.post(EntryWrites::One(MemoryWrite { address: tag, bytes }), EntryKind::Record).await?;
        Ok((WriteHandle(sequence), index))
    }

    /// As [`Coordinator::transact`], but returns when the writes are posted. Posted writes are committed in that order,
    /// and [`Coordinator::confirm`] waits for it; reads wait by themselves. If the future is dropped before it
    /// completes, nothing was posted.
    ///
    /// # Errors
    /// As [`Coordinator::read`], after which nothing was written; [`Error::Invalid`]; [`Error::Busy`].
    pub async fn post_transaction(&self, writes: Vec<MemoryWrite>) -> Result<WriteHandle, Error> {
        Ok(WriteHandle(self.post(EntryWrites::Many(writes), EntryKind::Writes).await?.sequence))
    }

    /// Trims the records up to and including an index.
    pub fn trim(&self, index: u64) {
        lock(&self.shared.state).trim(index);
        self.shared.notify_changed();
    }

    /// Stops freeing log space from now on, as if memory nodes received their headers late: the log fills up, appends
    /// wait, and entries that a store has not applied fill up the store's own log. For measurements of what the next
    /// takeover finds; nothing undoes it.
    pub fn stop_reclaiming(&self) {
        lock(&self.shared.state).reclaims_log = false;
    }

    /// Declares the unlogged region repaired. Writes that an earlier coordinator left there may be on some nodes and
    /// not on others. So a user of the region reads it with [`Coordinator::read_each`], writes back the bytes that
    /// count, and then calls this. Until then no memory node is re-admitted, since it might be copied from a node that
    /// lacks some of the bytes. Groups without an unlogged region need not call it.
    pub fn set_unlogged_recovered(&self) {
        self.shared.is_unlogged_recovered.store(true, Ordering::Release);
        self.shared.changed.iter().for_each(Notify::notify_one);
    }

    /// Writes bytes into the unlogged region: a majority has them on return. [`Coordinator::set_unlogged_recovered`] says what
    /// happens to them when the coordinator ends.
    ///
    /// # Errors
    /// As [`Coordinator::write`].
    pub async fn write_unlogged(&self, address: u64, bytes: Bytes) -> Result<(), Error> {
        let posted = self.post_unlogged(address, bytes).await?;
        self.confirm(posted).await
    }

    /// As [`Coordinator::write_unlogged`], but returns when the write is posted. Unlogged writes take effect in the order
    /// in which they were posted: when one is confirmed, the same majority has all those before it. If the future is
    /// dropped before it completes, nothing was posted.
    ///
    /// # Errors
    /// As [`Coordinator::read`], after which nothing was written; [`Error::Busy`].
    pub async fn post_unlogged(&self, address: u64, bytes: Bytes) -> Result<WriteHandle, Error> {
        let sequence = self.shared.step(|state| state.write_unlogged(address, &bytes)).await?;
        self.shared.notify_changed();
        Ok(WriteHandle(sequence))
    }

    /// Waits until a majority has a posted write. Dropping the future is safe.
    ///
    /// # Errors
    /// [`Error::Ambiguous`].
    pub async fn confirm(&self, posted: WriteHandle) -> Result<(), Error> {
        self.wait_committed(posted.0).await
    }

    /// As [`Coordinator::is_serving`]; if it may not answer, returns the reason.
    ///
    /// # Errors
    /// [`Error::Fenced`], [`Error::LeaseLost`], [`Error::Closed`].
    #[inline]
    pub fn check_serving(&self) -> Result<(), Error> {
        if self.shared.published.is_leased() {
            return Ok(());
        }
        lock(&self.shared.state).check_lease()
    }

    /// Reads the same bytes from every live node that answers soon, a majority at least: for bytes of the unlogged
    /// region.
    ///
    /// # Errors
    /// As [`Coordinator::read`]; [`Error::NoMajority`].
    pub async fn read_each(&self, address: u64, length: usize) -> Result<Vec<BytesMut>, Error> {
        let (group, reads) = (&self.shared.group, self.shared.step(|state| state.read_each(address, length)).await?);
        let reads = reads.into_iter().map(|read| async move { read.await.ok() });
        let timing = &group.timing;
        let copies = gather(reads, group.majority(), timing.grace, timing.answer_max).await;
        lock(&self.shared.state).check_lease()?;
        if copies.len() < group.majority() {
            let (answering, needed, nodes) = (copies.len(), group.majority(), group.nodes.len());
            return Err(Error::NoMajority { answering, needed, nodes });
        }
        Ok(copies)
    }

    async fn append(&self, writes: EntryWrites, kind: EntryKind) -> Result<u64, Error> {
        let AppendedEntry { sequence, index, committed } = self.post(writes, kind).await?;
        if !committed {
            self.wait_committed(sequence).await?;
        }
        Ok(index)
    }

    async fn post(&self, writes: EntryWrites, kind: EntryKind) -> Result<AppendedEntry, Error> {
        let layout = &self.shared.group.layout;
        entry::check(writes.as_slice(), layout.entry_bytes_max())?;
        let mut held = None;
        let mut writes = writes;
        if kind == EntryKind::Writes && layout.is_erasure_coded() {
            held = super::block_images::full_blocks(&self.shared, writes.as_slice()).await?;
        }
        if let Some(held) = &mut held {
            writes = EntryWrites::Many(std::mem::take(&mut held.images));
        }
        let mut unheld = Holding(false);
        let holds = held.as_mut().map_or(&mut unheld, |held| &mut held.locks);
        let posting = self.shared.step(|state| state.append(&writes, kind, holds)).await?;
        self.shared.notify_changed();
        Ok(posting)
    }

    /// Whether a majority has a posted write.
    #[inline]
    pub fn is_confirmed(&self, posted: WriteHandle) -> bool {
        self.shared.published.is_committed(posted.0)
    }

    /// Waits until a majority has every posted verb up to a sequence number.
    async fn wait_committed(&self, sequence: u64) -> Result<(), Error> {
        if self.shared.published.is_committed(sequence) {
            return Ok(());
        }
        poll_fn(|cx: &mut Context<'_>| {
            let mut state = lock(&self.shared.state);
            let woken = state.poll_completions(sequence, cx);
            let outcome = state.poll_committed(sequence, cx);
            drop(state);
            woken.wake();
            outcome
        })
        .await
    }

    /// Waits until every committed entry is applied and covered by the header of every live node; for tests.
    ///
    /// # Errors
    /// As [`Coordinator::read`].
    pub async fn wait_applied(&self) -> Result<(), Error> {
        loop {
            let settled = {
                let mut state = lock(&self.shared.state);
                state.apply_all();
                state.check_lease()?;
                state.is_fully_applied()
            };
            self.shared.notify_changed();
            if settled {
                return Ok(());
            }
            rt::sleep(Duration::from_millis(1)).await;
        }
    }
}

impl fmt::Debug for Coordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Coordinator({:?}, term {})", self.shared.group.id, self.shared.term)
    }
}
