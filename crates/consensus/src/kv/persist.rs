//! What a coordinator keeps in tables of the storage engine (Sift, section 3.5).
//!
//! 1. Whoever takes over looks whether the tables are those of this group and this store, and touches them only then. It writes
//!    an *epoch* of its own into them. From then on no earlier coordinator changes them, however long it was paused; one that was in the
//!    midst of a batch may still have come in between, and then it looks again.
//!    An epoch is a *base* and the coordinator's term. Terms begin anew when a group is formatted anew, and tables do not: so the base
//!    stands in the group's logged memory, and is raised to what the tables have seen by whoever finds them ahead, before it writes into
//!    them. Only whoever coordinates can do that, so that epochs grow from each coordinator to the next.
//! 2. Entries of the store's log that a majority has are written to the tables, in order, many at a time, and synced: a row a key,
//!    whose version is the entry's index, and a savepoint that says up to which entry. An entry is applied only after that,
//!    so that what the tables lack is in the log, and the log's length bounds it.
//! 3. With [`Persistent::is_synchronous`] a change is answered when the tables have it, and nothing is told before; else a
//!    majority of memories is enough, and a loss of all of them takes with it what the tables lacked: always the last entries,
//!    never one in between.
//! 4. After the loss of all memories the group is formatted anew, and the first to take it over finds no store in it, and rows
//!    in the tables: it writes them as records, chains and bitmap, and last the superblock with a cursor that says up
//!    to which entry. Whoever is interrupted does it again, the same way: the seed of the index is kept in the tables too.
//!
//! Invariants:
//! * The tables are what the store was after some entry, and never ahead of a majority.
//! * The cursor of the store never passes what is durable in the tables.
//!
//! The tables must be the same whichever processor coordinates: storage that all of them reach. A coordinator with others is
//! refused ([`Error::Invalid`]).

use std::pin::pin;
use std::sync::Arc;

use base::rt::Task;
use base::{BlockNumber, Bytes, Epoch, Version, rt};
use futures_util::future::select;
use storage::tables::{Pruned, RowBatch, Savepoint, Tables};

use super::fault::{Mutant, crash_point, mutant};
use super::layout::{LINE_BLOCKS, LINE_BYTES, PART_BYTES, Sizes, encode_base, encode_cursor, pointer, record_writes};
use super::{Pending, Shared, lock};
use crate::layout::{Cursor, word};
use crate::{Coordinator, Error, GroupId, Term, WRITES_MAX, Write};

/// Entries, and about so many bytes of them, that are written at once.
const BATCH_ENTRIES: usize = 4096;
const BATCH_BYTES: usize = 4 << 20;
/// Entries between two looks for versions that nobody reads any more, and rows of one look: of every four rows at most one is such a
/// version in the long run.
const PRUNE_EVERY: usize = 4 << 10;
const PRUNE_ROWS: usize = 16 << 10;
/// Rows that are restored at once.
const PAGE_ROWS: usize = 1024;
/// Bytes of index or bitmap that are written at once.
const PIECE_BYTES: usize = 2048;
const NAMESPACE: &str = "kv";
const WRITING: &str = "writing the tables of a key-value store";
/// How often the tables may have changed before an epoch is written into them.
const ATTEMPTS_MAX: usize = 100;

/// Where a store is kept, and when a change counts.
#[derive(Clone)]
pub struct Persistent {
    /// Tables of its own.
    pub tables: Arc<dyn Tables>,
    /// Nothing is told that the tables have not.
    pub is_synchronous: bool,
}

fn failed(doing: &'static str, term: Term) -> impl Fn(storage::Error) -> Error {
    move |error| match error {
        storage::Error::Fenced { .. } => Error::Fenced(term),
        error => Error::Disk { doing, reason: error.to_string() },
    }
}

/// What the tables have, whose they are, and who writes them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Kept {
    /// The last entry; 0 for none.
    pub index: u64,
    pub seed: u64,
    group: GroupId,
    epoch: Epoch,
}

impl Kept {
    /// What tables have, if they are those of a group and of the store that its memory holds, if it holds one.
    fn of(tables: &Savepoint, group: GroupId, made_with: Option<u64>) -> Result<Kept, Error> {
        let epoch = tables.epoch;
        let Some(index) = tables.height.checked_sub(1) else {
            return Ok(Kept { index: 0, seed: made_with.unwrap_or_else(rt::random_u64), group, epoch });
        };
        let (seed, owner) = (word(&tables.block_hash, 0), word(&tables.block_hash, 8));
        if owner != group.0 {
            return Err(Error::Invalid(format!(
                "these tables are those of group {owner}, and not of group {}: give each group tables of its own",
                group.0
            )));
        }
        match made_with {
            // No entry came into them before another coordinator made the store.
            Some(seed) if index == 0 => Ok(Kept { index, seed, group, epoch }),
            Some(other) if other != seed => Err(Error::Invalid(
                "these tables are not those of the store that the memory nodes hold: give it tables of its own"
                    .to_owned(),
            )),
            _ => Ok(Kept { index, seed, group, epoch }),
        }
    }

    fn savepoint(&self) -> Savepoint {
        let mut block_hash = [0; 32];
        block_hash[..8].copy_from_slice(&self.seed.to_le_bytes());
        block_hash[8..16].copy_from_slice(&self.group.0.to_le_bytes());
        Savepoint { height: self.index + 1, epoch: self.epoch, block_hash }
    }
}

impl Persistent {
    /// Step 1: on return no earlier coordinator changes the tables any more, and this is what they have. `made_with` is the seed of
    /// the store that memory holds, if it holds one.
    pub(super) async fn fence(
        &self,
        coordinator: &Coordinator,
        sizes: &Sizes,
        made_with: Option<u64>,
    ) -> Result<Kept, Error> {
        let (group, term) = (coordinator.group(), coordinator.term());
        let mut base = word(&coordinator.read(sizes.base_at(), PART_BYTES).await?, 0);
        for _ in 0..ATTEMPTS_MAX {
            let before = self.tables.savepoint();
            let mut kept = Kept::of(&before, group, made_with)?;
            if base.saturating_add(term.0) <= before.epoch.0 && !mutant(Mutant::EpochOfTerm) {
                base = before.epoch.0;
                coordinator.write(sizes.base_at(), encode_base(base)).await?;
                crash_point("consensus.kv.based").await;
            }
            kept.epoch = Epoch(base.saturating_add(term.0));
            match self.write(RowBatch::new(kept.savepoint())).await {
                Ok(()) => return Ok(kept),
                // Somebody came in between.
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
    pub(super) async fn restore(&self, coordinator: &Coordinator, sizes: &Sizes, kept: Kept) -> Result<(), Error> {
        tracing::info!(to = kept.index, "a key-value store is restored from its tables");
        let mut writer = Writer { coordinator, writes: Vec::new(), bytes: 0 };
        let mut index = vec![0_u64; sizes.buckets as usize];
        let (mut taken, mut start) = (0_u64, Some(Bytes::new()));
        while let Some(from) = start {
            let through = BlockNumber(kept.index);
            let page = self.tables.range(NAMESPACE, &from, &[], through, PAGE_ROWS);
            let page = page.map_err(failed("reading the tables of a key-value store", coordinator.term()))?;
            for row in page.entries {
                sizes.check(&row.key, Some(&row.value))?;
                let count = sizes.record_blocks(row.key.len(), row.value.len()) as u64;
                if taken + count > sizes.blocks {
                    return Err(Error::Invalid(format!(
                        "the tables hold more than {} blocks have room for",
                        sizes.blocks
                    )));
                }
                let blocks: Vec<u32> = (taken..taken + count).map(|block| block as u32).collect();
                taken += count;
                let head = &mut index[sizes.bucket(kept.seed, &row.key) as usize];
                for write in record_writes(*head, row.version.block, &row.key, &row.value, &blocks, sizes) {
                    writer.add(write).await?;
                }
                *head = pointer(blocks[0]);
            }
            crash_point("consensus.kv.restoring").await;
            start = page.next;
        }
        for (piece, pointers) in index.chunks(PIECE_BYTES / 8).enumerate() {
            if pointers.iter().any(|pointer| *pointer != 0) {
                let bytes = pointers.iter().flat_map(|pointer| pointer.to_le_bytes()).collect();
                writer.add(Write { address: sizes.bucket_at((piece * PIECE_BYTES / 8) as u64), bytes }).await?;
            }
        }
        let lines = taken.div_ceil(LINE_BLOCKS);
        let mut bitmap = vec![0_u8; (lines * LINE_BYTES) as usize];
        (0..taken as usize).for_each(|block| bitmap[block / 8] |= 1 << (block % 8));
        for (piece, bytes) in bitmap.chunks(PIECE_BYTES).enumerate() {
            let address = sizes.line_at(0) + (piece * PIECE_BYTES) as u64;
            writer.add(Write { address, bytes: Bytes::copy_from_slice(bytes) }).await?;
        }
        writer.commit().await?;
        let cursor = Cursor { index: kept.index, position: 0, chain: kept.seed };
        let last = [
            Write { address: sizes.super_at(), bytes: sizes.encode(kept.seed) },
            Write { address: sizes.cursor_at(), bytes: encode_cursor(cursor) },
        ];
        coordinator.transact(last.to_vec()).await.map(drop)
    }
}

/// Writes many things, several in one transaction.
struct Writer<'a> {
    coordinator: &'a Coordinator,
    writes: Vec<Write>,
    bytes: u64,
}

impl Writer<'_> {
    async fn add(&mut self, write: Write) -> Result<(), Error> {
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
        match std::mem::take(&mut self.writes) {
            writes if writes.is_empty() => Ok(()),
            writes => self.coordinator.transact(writes).await.map(drop),
        }
    }
}

/// Step 2, until the coordinator ends.
pub(super) async fn persist(shared: Arc<Shared>, persistent: Persistent, kept: Kept) {
    let outcome = {
        let (work, ends) = (pin!(run(&shared, &persistent, kept)), pin!(shared.coordinator.ended()));
        let first = async { select(work, ends).await.factor_first().0 };
        shared.stop.or_stopped(first).await
    };
    if let Some(error) = outcome {
        let error = match error {
            Error::Ambiguous => shared.coordinator.check_serving().err().unwrap_or(Error::Closed),
            error => error,
        };
        if matches!(error, Error::Disk { .. }) {
            tracing::error!(%error, "a key-value store cannot be kept");
        }
        shared.fail(error);
    }
}

async fn run(shared: &Shared, persistent: &Persistent, mut kept: Kept) -> Error {
    let (mut unpruned, mut pruning) = (0, None::<Task<Result<Pruned, storage::Error>>>);
    loop {
        let batch: Vec<Pending> = {
            let state = lock(&shared.state);
            let first = state.pending.partition_point(|entry| entry.after.index <= state.persisted);
            let mut bytes = 0;
            let fits = |entry: &&Pending| {
                bytes += entry.key.len() + entry.value.as_ref().map_or(0, Bytes::len);
                bytes <= BATCH_BYTES
            };
            let mut batch: Vec<Pending> =
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
            // Beside the batches that follow: a look takes as long as many of them.
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

async fn write(shared: &Shared, persistent: &Persistent, kept: &Kept, entries: Vec<Pending>) -> Result<(), Error> {
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
