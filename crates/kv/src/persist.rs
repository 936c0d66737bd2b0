//! Keeps a copy of a store in tables of the storage engine (Sift, section 3.5).
//!
//! 1. A coordinator that takes over checks that the tables belong to this group and this store, and then writes an
//!    *epoch* (of the tables, not of a logical peer) into them. From then on no earlier coordinator can change the
//!    tables, however long it was paused. If an earlier coordinator finishes a batch between the check and the write,
//!    the new coordinator repeats both. An epoch is the sum of a *base* and the coordinator's term. The base is stored
//!    in the group's logged memory. It is needed since terms start again when a group is reformatted, while the epoch
//!    in the tables stays. A coordinator whose epoch would not exceed the epoch in the tables first raises the base to
//!    the tables' epoch. Only the current coordinator can write the base, so epochs grow from each coordinator to the
//!    next.
//! 2. Entries of the store's log that a majority has are written to the tables, in order, in batches, and each batch is
//!    synced. A batch has one row per entry, whose version is the entry's index, and a savepoint with the index of the
//!    last entry. An entry is applied only once it is in the tables. So the log has every entry that the tables lack,
//!    and the log's length bounds their number.
//! 3. With [`PersistentTables::is_synchronous`] a change is acknowledged, and visible to callers, only once the tables
//!    have it; there is one exception: watchers may get entries that a takeover has found in the log before the tables
//!    have them. Without the option, a majority of the memory nodes is enough. Then the loss of all memories loses the
//!    entries that the tables lacked; these are always the last entries of the log.
//! 4. After the loss of all memories the group is reformatted. The first coordinator that takes the group over finds
//!    rows in the tables, but no store in the memory. It writes the rows as records, chains, index and bitmap, and last
//!    the superblock, with a cursor at the last entry that the tables have. If this coordinator is interrupted, the
//!    next one repeats the whole restoration; the tables also contain the seed of the index, so it places every key in
//!    the same bucket.
//!
//! Invariants:
//! * The tables contain the state of the store after some entry that a majority has.
//! * The cursor of the store never passes the last entry that is durable in the tables.
//!
//! Every CPU node that may coordinate must use the same tables, on storage that all of them can reach. A coordinator
//! with other tables is rejected ([`Error::Invalid`]).

use std::pin::pin;
use std::sync::Arc;

use base::rt::Task;
use base::{BlockNumber, Bytes, Epoch, Term, Version, rt};
use futures_util::FutureExt as _;
use futures_util::future::select;
use sift::layout::LogCursor;
use sift::{Coordinator, GroupId, MemoryWrite, WRITES_MAX};
use storage::tables::{PruneOutcome, RangeQuery, RowBatch, Savepoint, Tables};
use wire::u64_at;

use super::fault::{Mutant, crash_point, mutant};
use super::layout::{
    HEAD_BLOCK_BYTES, LINE_BLOCKS, LINE_BYTES, StoreGeometry, encode_base, encode_cursor, encode_pointer, record_writes,
};
use super::{KvCore, PendingEntry, lock};
use crate::Error;

/// The most entries of one batch, and about the most bytes of them.
const BATCH_ENTRIES: usize = 4096;
const BATCH_BYTES: usize = 4 << 20;
/// Entries between two passes that prune versions which nobody reads any more, and rows of one pass: in the long run at most
/// one of every four rows is such a version.
const PRUNE_EVERY: usize = 4 << 10;
const PRUNE_ROWS: usize = 16 << 10;
/// Rows that are restored at once.
const PAGE_ROWS: usize = 1024;
/// Bytes of index or bitmap that are written at once.
const CHUNK_BYTES: usize = 2048;
const NAMESPACE: &str = "kv";
const WRITING: &str = "writing the tables of a key-value store";
/// How often the tables may change while a coordinator tries to write its epoch into them.
const ATTEMPTS_MAX: usize = 100;

/// The tables of a store, and when a change counts as done.
#[derive(Clone)]
pub struct PersistentTables {
    /// Tables that belong to this store alone.
    pub tables: Arc<dyn Tables>,
    /// Callers see only changes that the tables have.
    pub is_synchronous: bool,
}

fn failed(doing: &'static str, term: Term) -> impl Fn(storage::Error) -> Error {
    move |error| match error {
        storage::Error::Fenced { .. } => Error::Fenced(term),
        error => Error::Disk { doing, reason: error.to_string() },
    }
}

/// What the tables contain: the last entry, their owner, and the epoch of their writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct KvSavepoint {
    /// The index of the last entry; 0 for none.
    pub index: u64,
    pub seed: u64,
    group: GroupId,
    epoch: Epoch,
}

impl KvSavepoint {
    /// The content of tables, if they belong to a group and to the store that the group's memory holds, if it holds one.
    fn from_tables(tables: &Savepoint, group: GroupId, memory_seed: Option<u64>) -> Result<KvSavepoint, Error> {
        let epoch = tables.epoch;
        let Some(index) = tables.height.checked_sub(1) else {
            return Ok(KvSavepoint { index: 0, seed: memory_seed.unwrap_or_else(rt::random_u64), group, epoch });
        };
        let (seed, owner) = (u64_at(&tables.block_hash, 0), u64_at(&tables.block_hash, 8));
        if owner != group.0 {
            return Err(Error::Invalid(format!(
                "these tables belong to group {owner}, not to group {}: give each group tables of its own",
                group.0
            )));
        }
        match memory_seed {
            // The tables got no entry before another coordinator created the store, so that the store's seed counts.
            Some(seed) if index == 0 => Ok(KvSavepoint { index, seed, group, epoch }),
            Some(other) if other != seed => Err(Error::Invalid(
                "these tables belong to another store than the one in the memory nodes: give each store tables of its own"
                    .to_owned(),
            )),
            _ => Ok(KvSavepoint { index, seed, group, epoch }),
        }
    }

    fn savepoint(&self) -> Savepoint {
        let mut block_hash = [0; 32];
        block_hash[..8].copy_from_slice(&self.seed.to_le_bytes());
        block_hash[8..16].copy_from_slice(&self.group.0.to_le_bytes());
        Savepoint { height: self.index + 1, epoch: self.epoch, block_hash }
    }
}

impl PersistentTables {
    /// Step 1: on return no earlier coordinator can change the tables, and the result is what they contain. `memory_seed` is
    /// the seed of the store that the memory holds, if it holds one.
    pub(super) async fn fence(
        &self,
        coordinator: &Coordinator,
        sizes: &StoreGeometry,
        memory_seed: Option<u64>,
    ) -> Result<KvSavepoint, Error> {
        let (group, term) = (coordinator.group(), coordinator.term());
        let mut base = u64_at(&coordinator.read(sizes.base_at(), HEAD_BLOCK_BYTES).await?, 0);
        for _ in 0..ATTEMPTS_MAX {
            let before = self.tables.savepoint();
            let mut kept = KvSavepoint::from_tables(&before, group, memory_seed)?;
            if base.saturating_add(term.0) <= before.epoch.0 && !mutant(Mutant::EpochOfTerm) {
                base = before.epoch.0;
                coordinator.write(sizes.base_at(), encode_base(base)).await?;
                crash_point("consensus.kv.based").await;
            }
            kept.epoch = Epoch(base.saturating_add(term.0));
            match self.write(RowBatch::new(kept.savepoint())).await {
                Ok(()) => return Ok(kept),
                // Another coordinator wrote in between.
                Err(storage::Error::Invalid(_) | storage::Error::Fenced { .. }) if !mutant(Mutant::FenceOnce) => {}
                Err(error) => return Err(failed(WRITING, term)(error)),
            }
        }
        Err(Error::Fenced(term))
    }

    async fn write(&self, batch: RowBatch) -> Result<(), storage::Error> {
        let tables = Arc::clone(&self.tables);
        rt::blocking(move || tables.write(batch)).await?;
        if mutant(Mutant::TellUnpersisted) {
            return Ok(());
        }
        self.tables.persist().await.map(drop)
    }

    /// Step 4.
    pub(super) async fn restore(
        &self,
        coordinator: &Coordinator,
        sizes: &StoreGeometry,
        kept: KvSavepoint,
    ) -> Result<(), Error> {
        tracing::info!(to = kept.index, "a key-value store is restored from its tables");
        let mut writer = RestoreWriter { coordinator, writes: Vec::new(), bytes: 0 };
        let mut index = vec![0_u64; sizes.buckets as usize];
        let (mut taken, mut start) = (0_u64, Some(Bytes::new()));
        while let Some(from) = start {
            let through = BlockNumber(kept.index);
            let page = self.tables.range(RangeQuery {
                namespace: NAMESPACE,
                start: &from,
                end: &[],
                through,
                limit: PAGE_ROWS,
            });
            let page = page.map_err(failed("reading the tables of a key-value store", coordinator.term()))?;
            for row in page.entries {
                sizes.check(&row.key, Some(&row.value))?;
                let count = sizes.record_blocks(row.key.len(), row.value.len()) as u64;
                if taken + count > sizes.blocks {
                    return Err(Error::Invalid(format!(
                        "the tables hold more than fits into the store's {} blocks: format the group for more blocks",
                        sizes.blocks
                    )));
                }
                let blocks: Vec<u32> = (taken..taken + count).map(|block| block as u32).collect();
                taken += count;
                let head = &mut index[sizes.bucket(kept.seed, &row.key) as usize];
                for write in record_writes(*head, row.version.block, &row.key, &row.value, &blocks, sizes) {
                    writer.add(write).await?;
                }
                *head = encode_pointer(blocks[0]);
            }
            crash_point("consensus.kv.restoring").await;
            start = page.next;
        }
        for (piece, pointers) in index.chunks(CHUNK_BYTES / 8).enumerate() {
            if pointers.iter().any(|pointer| *pointer != 0) {
                let bytes = pointers.iter().flat_map(|pointer| pointer.to_le_bytes()).collect();
                writer.add(MemoryWrite { address: sizes.bucket_at((piece * CHUNK_BYTES / 8) as u64), bytes }).await?;
            }
        }
        let lines = taken.div_ceil(LINE_BLOCKS);
        let mut bitmap = vec![0_u8; (lines * LINE_BYTES) as usize];
        (0..taken as usize).for_each(|block| bitmap[block / 8] |= 1 << (block % 8));
        for (piece, bytes) in bitmap.chunks(CHUNK_BYTES).enumerate() {
            let address = sizes.line_at(0) + (piece * CHUNK_BYTES) as u64;
            writer.add(MemoryWrite { address, bytes: Bytes::copy_from_slice(bytes) }).await?;
        }
        writer.commit().await?;
        let cursor = LogCursor { index: kept.index, position: 0, chain: kept.seed };
        let last = [
            MemoryWrite { address: sizes.super_at(), bytes: sizes.encode(kept.seed) },
            MemoryWrite { address: sizes.cursor_at(), bytes: encode_cursor(cursor) },
        ];
        coordinator.transact(last.to_vec()).await?;
        Ok(())
    }
}

/// Collects writes into transactions.
struct RestoreWriter<'a> {
    coordinator: &'a Coordinator,
    writes: Vec<MemoryWrite>,
    bytes: u64,
}

impl RestoreWriter<'_> {
    async fn add(&mut self, write: MemoryWrite) -> Result<(), Error> {
        let bytes = 16 + write.bytes.len() as u64;
        let bytes_max = self.coordinator.layout().entry_bytes_max();
        if self.writes.len() == WRITES_MAX || 40 + self.bytes + bytes > bytes_max {
            self.commit().await?;
        }
        self.bytes += bytes;
        self.writes.push(write);
        Ok(())
    }

    async fn commit(&mut self) -> Result<(), Error> {
        self.bytes = 0;
        let writes = std::mem::take(&mut self.writes);
        if !writes.is_empty() {
            self.coordinator.transact(writes).await?;
        }
        Ok(())
    }
}

/// Step 2, until the coordinator ends.
pub(super) async fn persist(shared: Arc<KvCore>, persistent: PersistentTables, kept: KvSavepoint) {
    let outcome = {
        let (work, ends) = (pin!(run(&shared, &persistent, kept)), pin!(shared.coordinator.ended().map(Error::from)));
        let first = async { select(work, ends).await.factor_first().0 };
        shared.stop.run_until_cancelled(first).await
    };
    if let Some(error) = outcome {
        let error = match error {
            Error::Ambiguous => shared.coordinator.check_serving().err().map_or(Error::Closed, Error::from),
            error => error,
        };
        if matches!(error, Error::Disk { .. }) {
            tracing::error!(%error, "a key-value store cannot be kept");
        }
        shared.fail(error);
    }
}

async fn run(shared: &KvCore, persistent: &PersistentTables, mut kept: KvSavepoint) -> Error {
    let (mut unpruned, mut pruning) = (0, None::<Task<Result<PruneOutcome, storage::Error>>>);
    loop {
        let batch: Vec<PendingEntry> = {
            let state = lock(&shared.state);
            let first = state.pending.partition_point(|entry| entry.after.index <= state.persisted);
            let mut bytes = 0;
            let fits = |entry: &&PendingEntry| {
                bytes += entry.key.len() + entry.value.as_ref().map_or(0, Bytes::len);
                bytes <= BATCH_BYTES
            };
            let mut batch: Vec<PendingEntry> =
                state.pending.range(first..).take(BATCH_ENTRIES).take_while(fits).cloned().collect();
            if batch.is_empty() {
                batch.extend(state.pending.get(first).cloned());
            }
            batch
        };
        let Some(last) = batch.last() else {
            shared.unpersisted.notified().await;
            continue;
        };
        let index = last.after.index;
        kept.index = index;
        unpruned += batch.len();
        if let Err(error) = write(shared, persistent, &kept, batch).await {
            return error;
        }
        lock(&shared.state).persisted = index;
        shared.persisted.notify_waiters();
        shared.work.notify_one();
        if unpruned >= PRUNE_EVERY && pruning.as_ref().is_none_or(Task::is_finished) {
            // In parallel with the batches that follow: one pass takes as long as many of them.
            if let Some(pruned) = pruning.take()
                && let Ok(Err(error)) = pruned.await
            {
                return failed("pruning the tables of a key-value store", shared.coordinator.term())(error);
            }
            let tables = Arc::clone(&persistent.tables);
            let look = rt::blocking(move || tables.prune(BlockNumber(index), PRUNE_ROWS));
            (unpruned, pruning) = (0, Some(rt::spawn(look)));
        }
    }
}

async fn write(
    shared: &KvCore,
    persistent: &PersistentTables,
    kept: &KvSavepoint,
    entries: Vec<PendingEntry>,
) -> Result<(), Error> {
    let (last, term) = (entries.last().expect("there is one"), shared.coordinator.term());
    shared.confirm(last.posted).await?;
    crash_point("consensus.kv.persisting").await;
    let mut batch = RowBatch::new(kept.savepoint());
    for entry in &entries {
        let version = Version::new(entry.after.index, 0);
        let put = batch.put(NAMESPACE, &entry.key, version, entry.value.clone());
        put.map_err(failed("gathering rows of a key-value store", term))?;
    }
    persistent.write(batch).await.map_err(failed(WRITING, term))?;
    crash_point("consensus.kv.persisted").await;
    Ok(())
}
