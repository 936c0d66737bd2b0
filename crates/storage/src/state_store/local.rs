//! [`StateStore`] over local blocks and tables.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use base::rt::channel::{WatchReceiver, WatchSender, watch};
use base::rt::net::GatherList;
use base::rt::sync::Mutex as AsyncMutex;
use base::{BlockNumber, Epoch, Version, rt};

use super::{
    MATERIALIZE_BLOCKS_MAX, MATERIALIZE_BYTES_SOFT_MAX, Materializer, SHARED_BYTES_SOFT_MAX, StateStore, check_keys,
    check_savepoint,
};
use crate::blocks::{Blocks, NO_PREVIOUS};
use crate::tables::{RangePage, RangeQuery, Row, RowBatch, Savepoint, Tables};
use crate::{Error, lock};

/// Rows that one call of [`StateStore::prune`] examines, at most.
const PRUNE_ROWS_MAX: usize = 65_536;
/// Rows that pruning examines for each row that was written. With two, a sweep over all rows completes before writing has
/// superseded as many rows again, whatever their number and however often pruning is asked for.
const PRUNE_ROWS_FOR_EACH: u64 = 2;

/// Blocks and tables of the same process; see [the module](self).
pub struct LocalStateStore {
    blocks: Arc<dyn Blocks>,
    tables: Arc<dyn Tables>,
    materializer: Arc<dyn Materializer>,
    /// The epoch under which savepoints are written.
    epoch: AtomicU64,
    savepoint: WatchSender<u64>,
    materializing: AsyncMutex<()>,
    /// Rows that were written since pruning last examined some.
    pub(super) written: Arc<AtomicU64>,
    /// No reader asks for an older block than this one; it may lie above the savepoint.
    oldest: AtomicU64,
    ahead: Mutex<PreparedRows>,
}

/// Rows of the blocks `from..next`, made while the bytes of each block were at hand.
struct PreparedRows {
    from: u64,
    next: u64,
    /// Header hash of the last of them.
    block_hash: [u8; 32],
    batch: RowBatch,
}

impl PreparedRows {
    fn new(from: u64) -> PreparedRows {
        // The savepoint is known only when the batch is written.
        let batch = RowBatch::new(Savepoint { height: u64::MAX, ..Savepoint::default() });
        PreparedRows { from, next: from, block_hash: NO_PREVIOUS, batch }
    }
}

impl LocalStateStore {
    /// Opens a store over blocks and tables.
    ///
    /// # Errors
    /// [`Error::Mismatched`] for tables that were not made from these blocks; errors of the block store.
    pub async fn open(
        blocks: Arc<dyn Blocks>,
        tables: Arc<dyn Tables>,
        materializer: Arc<dyn Materializer>,
    ) -> Result<LocalStateStore, Error> {
        let savepoint = tables.savepoint();
        check_savepoint(blocks.as_ref(), &savepoint).await?;
        let (watched, _) = watch(tables.durable_savepoint().height);
        let epoch = AtomicU64::new(savepoint.epoch.get());
        Ok(LocalStateStore {
            blocks,
            tables,
            materializer,
            epoch,
            savepoint: watched,
            materializing: AsyncMutex::new(()),
            written: Arc::default(),
            oldest: AtomicU64::new(0),
            ahead: Mutex::new(PreparedRows::new(savepoint.height)),
        })
    }

    /// From now on savepoints are written under this epoch, if it is the newest.
    pub fn set_epoch(&self, epoch: Epoch) {
        if self.epoch.fetch_max(epoch.get(), Ordering::AcqRel) < epoch.get() {
            // What the previous primary declared about its readers does not bind this primary's.
            self.oldest.store(0, Ordering::Relaxed);
        }
    }

    /// Takes a durable block while its bytes are at hand, so that they need not be read back later: makes its rows now;
    /// materialising later writes them with those of other blocks. Blocks come in order. Materialising reads back the
    /// blocks that were not passed to this function, or whose rows were too many to keep.
    pub fn prepare(&self, number: BlockNumber, header_hash: [u8; 32], block: &GatherList) {
        let mut ahead = lock(&self.ahead);
        if ahead.batch.shared_bytes() >= SHARED_BYTES_SOFT_MAX {
            return;
        }
        if ahead.batch.bytes() >= MATERIALIZE_BYTES_SOFT_MAX {
            ahead.batch.thin(self.oldest.load(Ordering::Relaxed));
            if ahead.batch.bytes() >= MATERIALIZE_BYTES_SOFT_MAX {
                return;
            }
        }
        if ahead.next != number.get() {
            *ahead = PreparedRows::new(number.get());
        }
        match self.materializer.materialize(number, block, &mut ahead.batch) {
            Ok(()) => (ahead.next, ahead.block_hash) = (number.get() + 1, header_hash),
            // The error occurs again, and is reported, when the block is read back.
            Err(_) => *ahead = PreparedRows::new(number.get()),
        }
    }

    /// The height up to which blocks above the tables' savepoint are prepared, if any are; otherwise the durable height.
    pub fn prepared_height(&self) -> u64 {
        let durable = self.blocks.durable_height();
        let next = lock(&self.ahead).next;
        if next > self.tables.savepoint().height { next.min(durable) } else { durable }
    }

    /// The prepared rows of the blocks above the tables' savepoint. Some may be in the tables already, where reading back
    /// overtook the preparation: writing them again changes nothing.
    fn take_prepared(&self, from: u64) -> Option<PreparedRows> {
        let mut ahead = lock(&self.ahead);
        if ahead.from > from || ahead.next <= from || ahead.next > self.blocks.durable_height() {
            return None;
        }
        let next = ahead.next;
        Some(std::mem::replace(&mut *ahead, PreparedRows::new(next)))
    }

    /// Materialises some of the blocks below `height`, written and not yet durable; false if there were none.
    async fn materialize_some(&self, height: u64) -> Result<bool, Error> {
        let from = self.tables.savepoint().height;
        let target = height.min(self.blocks.durable_height());
        if from >= target {
            return Ok(false);
        }
        let epoch = Epoch(self.epoch.load(Ordering::Acquire));
        let tables = Arc::clone(&self.tables);
        let written = Arc::clone(&self.written);
        let oldest = self.oldest.load(Ordering::Relaxed);
        if let Some(PreparedRows { next, block_hash, mut batch, .. }) = self.take_prepared(from) {
            batch.cover(Savepoint { height: next, epoch, block_hash })?;
            return rt::blocking(move || {
                written.fetch_add(write_seen(&*tables, batch, oldest)? as u64, Ordering::Relaxed);
                Ok(true)
            })
            .await;
        }
        // Only up to the first prepared block, if some are prepared.
        let prepared = lock(&self.ahead).from;
        let target = if prepared > from { target.min(prepared) } else { target };
        let limit = usize::try_from(target - from).unwrap_or(usize::MAX).min(MATERIALIZE_BLOCKS_MAX);
        let page = self.blocks.read_page(BlockNumber(from), limit).await?;
        let materializer = Arc::clone(&self.materializer);
        rt::blocking(move || {
            let mut blocks = page.into_iter();
            while blocks.len() > 0 {
                let rows = write_batch(&*materializer, &*tables, epoch, oldest, &mut blocks)?;
                written.fetch_add(rows as u64, Ordering::Relaxed);
            }
            Ok(true)
        })
        .await
    }
}

/// Writes one batch: as many of the blocks as fit. Returns the number of rows.
fn write_batch(
    materializer: &dyn Materializer,
    tables: &dyn Tables,
    epoch: Epoch,
    oldest: u64,
    blocks: &mut std::vec::IntoIter<crate::blocks::StoredBlock>,
) -> Result<usize, Error> {
    let Some(last) = blocks.as_slice().last() else { return Ok(0) };
    // A batch accepts only rows below the savepoint that it was created with; the savepoint to write is set at the end.
    let mut batch = RowBatch::new(Savepoint { height: last.number.get() + 1, epoch, block_hash: last.header_hash });
    let mut covered = batch.savepoint();
    for block in blocks.by_ref() {
        materializer.materialize(block.number, &block.payload.into(), &mut batch)?;
        covered = Savepoint { height: block.number.get() + 1, epoch, block_hash: block.header_hash };
        if batch.bytes() >= MATERIALIZE_BYTES_SOFT_MAX {
            break;
        }
    }
    batch.cover(covered)?;
    write_seen(tables, batch, oldest)
}

/// Writes the rows of a batch that a reader at `oldest` or later can see; returns their number.
fn write_seen(tables: &dyn Tables, mut batch: RowBatch, oldest: u64) -> Result<usize, Error> {
    batch.thin(oldest);
    let rows = batch.len();
    tables.write(batch)?;
    // No reader knows yet that these blocks have rows: a reader that learns it, and would read below `oldest`, is refused.
    tables.prune(BlockNumber(oldest), 0)?;
    Ok(rows)
}

#[async_trait::async_trait]
impl StateStore for LocalStateStore {
    async fn get(&self, namespace: &str, key: &[u8], through: BlockNumber) -> Result<Option<Row>, Error> {
        self.tables.get(namespace, key, through)
    }

    async fn get_many(&self, keys: &[(&str, &[u8])], through: BlockNumber) -> Result<Vec<Option<Row>>, Error> {
        check_keys(keys.len())?;
        keys.iter().map(|(namespace, key)| self.tables.get(namespace, key, through)).collect()
    }

    async fn versions(
        &self,
        keys: &[(&str, &[u8])],
        through: BlockNumber,
    ) -> Result<Vec<Option<(Version, bool)>>, Error> {
        check_keys(keys.len())?;
        keys.iter().map(|(namespace, key)| self.tables.version(namespace, key, through)).collect()
    }

    async fn range(&self, query: RangeQuery<'_>) -> Result<RangePage, Error> {
        self.tables.range(query)
    }

    async fn namespaces(&self) -> Result<Vec<String>, Error> {
        self.tables.namespaces()
    }

    fn savepoint(&self) -> Savepoint {
        self.tables.durable_savepoint()
    }

    fn subscribe_savepoint(&self) -> WatchReceiver<u64> {
        self.savepoint.subscribe()
    }

    async fn materialize(&self, height: u64) -> Result<Savepoint, Error> {
        let _one_at_a_time = self.materializing.lock().await;
        let target = height.min(self.blocks.durable_height());
        while self.materialize_some(target).await? {}
        // The durable savepoint, not the written one: an earlier call may have written one and failed to persist it.
        if self.tables.durable_savepoint().height < target {
            self.tables.persist().await?;
        }
        let savepoint = self.tables.durable_savepoint();
        self.savepoint.send_if_modified(|height| {
            let newer = savepoint.height > *height;
            *height = savepoint.height.max(*height);
            newer
        });
        Ok(savepoint)
    }

    async fn prune(&self, oldest: BlockNumber) -> Result<(), Error> {
        self.oldest.fetch_max(oldest.get(), Ordering::Relaxed);
        let tables = Arc::clone(&self.tables);
        let written = self.written.swap(0, Ordering::Relaxed);
        let rows = usize::try_from(written.saturating_mul(PRUNE_ROWS_FOR_EACH)).unwrap_or(usize::MAX);
        rt::blocking(move || tables.prune(oldest, rows.min(PRUNE_ROWS_MAX))).await.map(drop)
    }
}

impl fmt::Debug for LocalStateStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalStateStore").field("savepoint", &self.savepoint()).finish_non_exhaustive()
    }
}
