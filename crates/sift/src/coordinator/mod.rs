//! Coordinators: they serve the replicated memory while they hold a majority (Sift, sections 3.3 and 3.4.2).
//!
//! 1. A logged write locks its blocks. The coordinator appends it to the log of every live node as one entry: with its index,
//!    the checksum of the previous entry and its own checksum, in one verb per node. The write is committed when a majority has
//!    it and everything before it. Several writes can form one entry: they are committed together, and no conflicting access
//!    comes between them.
//! 2. Committed entries are applied in the background: the coordinator posts their bytes to every live node's memory and
//!    unlocks their blocks. A caller that needs a locked block, or free log space, applies the committed entries at once. When
//!    enough entries are applied, the coordinator writes a header to each node, with the position up to which the node's memory
//!    has all writes. Log space that the headers of a majority cover is free again.
//! 3. A read waits until its blocks are unlocked. It goes to one live node and takes effect there after the applied writes that
//!    were posted before, since verbs of one endpoint take effect in order. The coordinator answers the read if the lease still
//!    stands when the bytes have arrived.
//! 4. Heartbeat: every [`crate::SiftTimeouts::heartbeat`] the coordinator writes its node number and a timestamp into each
//!    node's administrative words, and reads the node's replicated region under the coordinator's own capability (the probe).
//!    The lease stands for [`crate::SiftTimeouts::lease`] from the moment at which the probes of a majority were posted. When
//!    the lease has run out, the coordinator ends.
//! 5. A node whose verb fails is lost: it has no part in commits any more. In the background the coordinator reconnects to the
//!    node and fences it under its own term; the fence ends all verbs that were still in flight to the node. Everything is
//!    copied to the node, with one exception. If the node still has its memory, and the log of a live node still leads on from
//!    the position that the node's header covers, the coordinator copies only the regions that the entries after that position
//!    write, the regions written since, and the unlogged region. Copying goes region by region, the least written regions
//!    first. While a region is copied, its blocks can be read, but are not written. The node gets every new entry from the
//!    start, and the applied writes of a region once that region is copied. When everything is copied, and at least
//!    [`crate::SiftTimeouts::attempt_max`] has passed, the coordinator probes F+1 *other* nodes and reads their terms. Then it
//!    writes the node's header, raises the node's term to the greatest of these terms, gives the node its vote back, and counts
//!    the node again.
//!
//! Why at most one coordinator serves. A probe that succeeded took effect before any newer coordinator fenced that node. A
//! newer coordinator has F+1 nodes fenced at its moment *t* ([`crate::takeover`]). One of them is among the F+1 nodes whose
//! probes the older coordinator's lease is based on, so these probes were posted before *t*. The lease ends one lease length
//! after that, by the older coordinator's clock, which may be slow by the drift bound. The newer coordinator waits longer than
//! that from *t* on before it serves, even if its clock is fast by the drift bound.
//!
//! Why a re-admitted node counts. It holds what any live node holds. It has each applied write, either from the copy or, if the
//! write was applied after the copy, from the coordinator directly; it has the other writes as entries. A write that was
//! appended before the node joined locks its blocks, so its region is copied only after the write is applied. Records have no
//! blocks. Therefore the coordinator first writes to the node all records that the log still needs, many at once.
//!
//! Why a lost node may keep its memory. The memory holds all writes that the node's header covers, and of later writes only
//! committed ones. The entries from the header's position up to the last entry that was applied when the node joined are in the
//! log of a live node, linked by their checksums. Writes that are applied after the node joined are recorded until the regions
//! to copy are chosen. Blocks that no such entry or write changes are the same at the node as at a live node.
//!
//! Ambiguous completions: a node whose verb is ambiguous is lost, as after any other failure, and the verb never counts as
//! acknowledged. After the fence of step 5, or the fence of the next coordinator, the verb can no longer take effect. If the
//! coordinator ends before a majority has a write, its caller gets [`Error::Ambiguous`]: the next takeover may or may not find
//! the write.
//!
//! # Erasure-coded groups
//!
//! With [`crate::GroupLayout::data_shards`] above one, each node holds one shard of every block of the logged memory, and
//! any F+1 shards give the block back (Sift, section 5.1). The log and the unlogged region are stored in full, so
//! elections, fences, commits and records work as above. The differences:
//! 1. Append: an entry has whole blocks. Partial writes are turned into whole blocks first ([`block_images`]).
//! 2. Apply: the coordinator posts to each live node that node's own shard of the block, in one verb.
//! 3. Read: the coordinator reads the data shards that contain the range, if their nodes are live and quick. Otherwise it reads
//!    the shards of the F+1 nodes that are least behind, and computes the missing data.
//! 4. Log space: a position of the log is reused once the headers of *all* live nodes cover it, and all of them have
//!    answered a heartbeat that was posted after the last loss of a node.
//! 5. A node that comes back gets its own shard of every block, computed from F+1 others, region by region. It is re-admitted
//!    when every live node's header covers the entries that were appended before it joined.
//!
//! Why F+1 shards are always of one version. *While a coordinator serves*: for an unlocked block, the same writes have been
//! posted to every live node, in the same order. The reads of its shards are posted together after these writes, and verbs of
//! one endpoint take effect in order. A node whose verb fails is not read any more. *When a coordinator has died*, a node's
//! shard may be of any version from the one that the node's header covers onwards. So a takeover does not compare shards at
//! all. The next coordinator brings every node that it adopts from *that node's* header up to the end of the log. The log has
//! every version in between as a whole block, from which any shard can be computed (steps 4 and 5 at the head of
//! [`crate::takeover`]). A block that no such entry writes is of the version that the header covers. Numbers or checksums
//! beside the shards would distinguish versions, but could not restore a version of which too few shards are left; with whole
//! blocks in the log they are not needed.
//!
//! Why F+1 nodes can be brought up to date. At most F nodes are lost, so it is enough that every remaining live node can be
//! brought up to date. By rule 4 and the second sentence of rule 5, every entry after such a node's header position is in the
//! log of each live node. A dropped node does not count until it is re-admitted, as if it had lost its memory, because the log
//! entries that it needs may be overwritten. That is the price of erasure coding. A group without erasure coding survives the
//! loss of any F memories, whichever nodes were partitioned; an erasure-coded group counts a node that was dropped after a
//! partition as one of its F failures. When a node is dropped, other nodes may already be gone without the coordinator's
//! knowledge. The heartbeats of rule 4 prevent the headers of such nodes from freeing log space.
//!
//! # Persistent memory nodes
//!
//! 1. The coordinator sends all writes that it posts to a persistent node also in messages, in the same order; each message
//!    contains the writes since the previous message. The node answers when the writes are on its disk ([`crate::disk`]).
//! 2. A persistent node has acknowledged a verb when the verb has completed *and* the write is on its disk. Commits, headers
//!    and free log space follow from acknowledgements, as for any node.
//! 3. When too many bytes wait for a disk ([`UNPERSISTED_BYTES_MAX`]), the coordinator appends nothing more until that disk
//!    has caught up or its node is lost.
//!
//! So a group with F+1 persistent nodes loses no committed entry when all nodes lose power at once. The other F nodes are then
//! blank, which is as many as a group survives, and the persistent nodes have everything that they acknowledged. Every
//! committed entry is at one persistent node at least, since a majority without a persistent node would need F+1 volatile
//! nodes. The next takeover needs all F+1 nodes that come back, so it reads that persistent node too. With fewer persistent
//! nodes, the group is lost when all nodes lose power, and reports the loss. In such a group persistence brings no advantage,
//! and no commit has to wait for a persistent node, since a majority of volatile nodes can commit.
//!
//! Invariants:
//! * Only committed entries are applied.
//! * The coordinator posts the same verbs in the same order to all live nodes.
//! * Only entries that the headers of a majority cover are overwritten.
//! * Bounded: outstanding verbs to one node ([`PENDING_VERBS_MAX`], beyond which it is lost), waiting callers
//!   ([`WAITING_MAX`]), and, by the log, entries.

mod background;
mod block_images;
mod state;

use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use base::rt::sync::Notify;
use base::rt::{self, CancellationToken};
use base::{Bytes, BytesMut};
use rma::Completion;

use crate::entry::{self, EntryKind, LogEntry, MemoryWrite};
use crate::layout::{GroupLayout, LogCursor};
use crate::link::FencedNode;
use crate::quorum::gather;
use crate::scan::LocatedEntry;
use crate::{Error, GroupId, SiftGroup, Term};
use base::rt::guarded;
pub(crate) use state::covers_whole_blocks;
use state::{AppendedEntry, CoordinatorState, EntryWrites, Holding, PublishedProgress, ShardRead, StepOutcome};

/// Outstanding verbs to one node.
pub const PENDING_VERBS_MAX: usize = 2048;
/// Callers that wait for a lock or for free log space.
pub const WAITING_MAX: usize = 1 << 16;
/// Bytes that wait for the disk of one persistent node.
pub const UNPERSISTED_BYTES_MAX: u64 = 16 << 20;
/// Heartbeat periods that a read waits for one node before it asks another.
const READ_TIMEOUT_HEARTBEATS: u32 = 4;

/// What a takeover hands over to the coordinator.
pub(crate) struct RecoveredState {
    /// The generation of the group: the term under which it was formatted.
    pub format_term: Term,
    /// The last entry.
    pub end: LogCursor,
    /// The log is needed after this position.
    pub log_start: LogCursor,
    /// The log entries that were not applied everywhere, with the entries after `log_start`.
    pub entries: Vec<LocatedEntry>,
    /// The nodes that are up to date.
    pub nodes: Vec<RecoveredNode>,
}

/// A node that is up to date, and the number of its last header.
pub(crate) struct RecoveredNode {
    pub node: FencedNode,
    pub sequence: u64,
}

/// A group's coordinator. Clones share one coordinator; it ends when the last clone is dropped, as if it had crashed.
#[derive(Clone)]
pub struct Coordinator {
    shared: Arc<CoordinatorCore>,
    _alive: Arc<StopOnDrop>,
}

struct StopOnDrop(Arc<CoordinatorCore>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.end(Error::Closed);
    }
}

pub(crate) struct CoordinatorCore {
    group: Arc<SiftGroup>,
    node: u64,
    term: Term,
    nonce: u64,
    /// The generation of the group: copies of another generation do not count here.
    format_term: Term,
    state: Mutex<CoordinatorState>,
    published: Arc<PublishedProgress>,
    /// One per node: its phase has changed.
    changed: Vec<Notify>,
    stop: CancellationToken,
    recovered: Vec<LogEntry>,
    /// The unlogged region is repaired: nodes may be copied from any live node.
    is_unlogged_recovered: AtomicBool,
}

/// A posted write or record; later ones compare greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct WriteHandle(u64);

/// The state of a coordinator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CoordinatorStatus {
    /// Its term.
    pub term: Term,
    /// Memory nodes that are complete and have their vote.
    pub live: usize,
    /// Memory nodes that are being copied to, or that are about to get their vote.
    pub joining: usize,
    /// Memory nodes that are lost.
    pub lost: usize,
    /// How many more may be lost before the group can commit nothing.
    pub spare: usize,
    /// The last entry that was committed.
    pub committed: u64,
    /// The last entry that was applied.
    pub applied: u64,
    /// Bytes of the log that are in use.
    pub log_used_bytes: u64,
    /// Bytes of memory that this coordinator has copied to memory nodes that came back.
    pub copied_bytes: u64,
}

fn lock(state: &Mutex<CoordinatorState>) -> MutexGuard<'_, CoordinatorState> {
    // A panic under this lock fails the process's tests; the state is then used only to end the coordinator.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

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
        rt::spawn(guarded(background::drive(Arc::clone(&shared)), ends()));
        for slot in 0..slots {
            rt::spawn(guarded(background::maintain_node(Arc::clone(&shared), slot), ends()));
            rt::spawn(guarded(background::run_persister(Arc::clone(&shared), slot), ends()));
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
            held = block_images::full_blocks(&self.shared, writes.as_slice()).await?;
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

impl CoordinatorCore {
    fn end(&self, error: Error) {
        lock(&self.state).end(error);
        self.stop.cancel();
    }

    async fn read(&self, address: u64, length: usize) -> Result<BytesMut, Error> {
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
    async fn read_erasure_coded(&self, address: u64, length: usize) -> Result<BytesMut, Error> {
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
    async fn read_shards(&self, address: u64, length: usize, is_held: bool) -> Result<BytesMut, Error> {
        loop {
            let fetch = self.step(|state| state.read_shards(address, length, is_held)).await?;
            if let Some(bytes) = self.gather_shards(fetch, self.read_timeout()).await {
                lock(&self.state).check_lease()?;
                return Ok(bytes);
            }
        }
    }

    /// The bytes that a fetch's shards decode to; `None` when a node that was read from failed or was slow.
    async fn gather_shards(&self, mut fetch: ShardRead, timeout: Duration) -> Option<BytesMut> {
        let mut given = Vec::with_capacity(fetch.reads.len());
        for (held, read) in std::mem::take(&mut fetch.reads) {
            given.push((held.link.slot, self.finish_read(&held, read, timeout).await?));
        }
        Some(fetch.decode(&given))
    }

    /// A node's answer; `None` when the node failed, and is now lost, or took too long.
    async fn finish_read(&self, held: &FencedNode, read: Completion<BytesMut>, timeout: Duration) -> Option<BytesMut> {
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
    async fn step<T>(
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
    fn notify_changed(&self) {
        if !self.published.take_changed() {
            return;
        }
        self.changed.iter().for_each(Notify::notify_one);
        if lock(&self.state).has_ended() {
            self.stop.cancel();
        }
    }
}

impl fmt::Debug for Coordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Coordinator({:?}, term {})", self.shared.group.id, self.shared.term)
    }
}
