//! [`StateStore`] over blocks and tables of this process.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::rt::channel::{WatchReceiver, WatchSender, watch};
use base::rt::sync::Mutex as AsyncMutex;
use base::{BlockNumber, Epoch, Version, rt};

use super::{
    MATERIALIZE_BLOCKS_MAX, MATERIALIZE_BYTES_SOFT_MAX, Materializer, StateStore, check_keys, check_savepoint,
};
use crate::Error;
use crate::blocks::Blocks;
use crate::tables::{RangePage, Row, RowBatch, Savepoint, Tables};

/// Rows that one call of [`StateStore::prune`] looks at.
const PRUNE_ROWS_MAX: usize = 65_536;

/// Blocks and tables side by side; see [the module](self).
pub struct LocalStateStore {
    blocks: Arc<dyn Blocks>,
    tables: Arc<dyn Tables>,
    materializer: Arc<dyn Materializer>,
    /// The reign under which savepoints are written.
    epoch: AtomicU64,
    savepoint: WatchSender<u64>,
    materializing: AsyncMutex<()>,
}

impl LocalStateStore {
    /// Puts the two together.
    ///
    /// # Errors
    /// [`Error::Mismatched`] for tables that were not made from these blocks; the block store's.
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
        })
    }

    /// From now on savepoints are written under this reign, if it is the newest.
    pub fn set_epoch(&self, epoch: Epoch) {
        self.epoch.fetch_max(epoch.get(), Ordering::AcqRel);
    }

    /// Makes some of the blocks below `height` into rows, written and not yet durable; false when there were none.
    async fn materialize_some(&self, height: u64) -> Result<bool, Error> {
        let from = self.tables.savepoint().height;
        let target = height.min(self.blocks.durable_height());
        if from >= target {
            return Ok(false);
        }
        let limit = usize::try_from(target - from).unwrap_or(usize::MAX).min(MATERIALIZE_BLOCKS_MAX);
        let page = self.blocks.read_page(BlockNumber(from), limit).await?;
        let materializer = Arc::clone(&self.materializer);
        let tables = Arc::clone(&self.tables);
        let epoch = Epoch(self.epoch.load(Ordering::Acquire));
        rt::blocking(move || {
            let mut blocks = page.into_iter();
            while blocks.len() > 0 {
                write_batch(&*materializer, &*tables, epoch, &mut blocks)?;
            }
            Ok(true)
        })
        .await
    }
}

/// Writes one batch: as many of the blocks as fit.
fn write_batch(
    materializer: &dyn Materializer,
    tables: &dyn Tables,
    epoch: Epoch,
    blocks: &mut std::vec::IntoIter<crate::blocks::StoredBlock>,
) -> Result<(), Error> {
    let Some(last) = blocks.as_slice().last() else { return Ok(()) };
    // Rows must lie below the savepoint that a batch is made with; the one it is written with is set at the end.
    let mut batch = RowBatch::new(Savepoint { height: last.number.get() + 1, epoch, block_hash: last.header_hash });
    let mut covered = batch.savepoint();
    for block in blocks.by_ref() {
        materializer.materialize(block.number, &block.payload, &mut batch)?;
        covered = Savepoint { height: block.number.get() + 1, epoch, block_hash: block.header_hash };
        if batch.bytes() >= MATERIALIZE_BYTES_SOFT_MAX {
            break;
        }
    }
    batch.cover(covered)?;
    tables.write(batch)
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

    async fn range(
        &self,
        namespace: &str,
        start: &[u8],
        end: &[u8],
        through: BlockNumber,
        limit: usize,
    ) -> Result<RangePage, Error> {
        self.tables.range(namespace, start, end, through, limit)
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
        let tables = Arc::clone(&self.tables);
        rt::blocking(move || tables.prune(oldest, PRUNE_ROWS_MAX)).await.map(drop)
    }
}

impl fmt::Debug for LocalStateStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalStateStore").field("savepoint", &self.savepoint()).finish_non_exhaustive()
    }
}
