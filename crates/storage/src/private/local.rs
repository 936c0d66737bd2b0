//! Private rows in the tables of this process.

use std::fmt;
use std::sync::{Arc, Mutex};

use base::rt::sync::Mutex as AsyncMutex;
use base::{BlockNumber, Epoch, rt};

use super::interface::{PrivateRow, PrivateRows, PrivateTable, RowsPage};
use crate::state_store::check_keys;
use crate::tables::{RangePage, RangeQuery, ReadableFrom, Row, RowBatch, Savepoint, Tables, TablesEngine};
use crate::{Error, lock};

/// Rows that one call of [`PrivateRows::prune`] examines.
const PRUNE_ROWS_MAX: usize = 16_384;

/// [`PrivateRows`] over tables of the same process.
///
/// The tables' savepoint covers the blocks of all rows. It may be ahead of the channel, since a block's rows are written before
/// the block is appended. So it does not bound what can be read: after a crash, readers at the channel's last block
/// still find what they found before, even while the next block cannot be had. Rows are pruned only for readers at blocks that
/// were visible, and so on disk. In place of a block's hash it carries the number of writes, by which a
/// writer sees whether its rows are durable, and the number that the writer of several copies gave its last write.
pub struct LocalPrivateRows {
    tables: Arc<dyn Tables>,
    writing: Arc<Mutex<()>>,
    syncing: AsyncMutex<()>,
}

impl LocalPrivateRows {
    /// The private rows of a channel; empty if the channel has none yet. `height` is the number of its blocks on disk.
    ///
    /// # Errors
    /// Those of [`TablesEngine::tables`].
    pub async fn open(
        engine: &dyn TablesEngine,
        channel: &str,
        table: PrivateTable,
        height: u64,
    ) -> Result<LocalPrivateRows, Error> {
        let name = format!("{channel}{}", table.suffix());
        let tables = engine.open(&name, ReadableFrom::Block(BlockNumber(height.saturating_sub(1)))).await?;
        Ok(LocalPrivateRows { tables, writing: Arc::default(), syncing: AsyncMutex::new(()) })
    }

    /// As [`PrivateRows::write`], under an epoch. The writes of one that writes several copies carry its own numbers.
    ///
    /// # Errors
    /// [`Error::Fenced`] if rows were written under a newer epoch; those of [`PrivateRows::write`].
    pub async fn write_under(&self, epoch: Epoch, number: Option<u64>, rows: Vec<PrivateRow>) -> Result<(), Error> {
        self.write_some(epoch, number, rows, |_, _| Ok(true)).await
    }

    /// Writes those of the rows that are not here yet.
    ///
    /// # Errors
    /// As [`LocalPrivateRows::write_under`].
    pub async fn write_missing(&self, epoch: Epoch, rows: Vec<PrivateRow>) -> Result<(), Error> {
        let is_missing = |tables: &dyn Tables, row: &PrivateRow| {
            // The mutant of the simulation: a row that was copied late replaces what was written since.
            if rt::fault_point("storage.copies.mutant.copy_overwrites") {
                return Ok(true);
            }
            Ok(!tables.has_row(&row.namespace, &row.key, row.version, row.value.is_some())?)
        };
        self.write_some(epoch, None, rows, is_missing).await
    }

    /// The epoch and the number of the newest write that had a number.
    pub fn last_write(&self) -> (Epoch, u64) {
        let savepoint = self.tables.savepoint();
        (savepoint.epoch, numbered(&savepoint))
    }

    /// All rows in the order of their keys, from a place on; see [`Tables::scan`].
    ///
    /// # Errors
    /// Those of the engine.
    pub fn scan(&self, from: &[u8], limit: usize) -> Result<RowsPage, Error> {
        self.tables.scan(from, limit)
    }

    async fn write_some(
        &self,
        epoch: Epoch,
        given: Option<u64>,
        rows: Vec<PrivateRow>,
        is_wanted: impl Fn(&dyn Tables, &PrivateRow) -> Result<bool, Error> + Send + 'static,
    ) -> Result<(), Error> {
        let (tables, writing) = (Arc::clone(&self.tables), Arc::clone(&self.writing));
        // The engine may stall a write.
        let mine = rt::blocking(move || {
            let _one_at_a_time = lock(&writing);
            let current = tables.savepoint();
            let mut wanted = Vec::with_capacity(rows.len());
            for row in rows {
                if is_wanted(tables.as_ref(), &row)? {
                    wanted.push(row);
                }
            }
            let rows = wanted;
            let above = rows.iter().map(|row| row.version.block.saturating_add(1)).max().unwrap_or_default();
            let number = writes(&current).saturating_add(1);
            let mut block_hash = [0; 32];
            block_hash[..8].copy_from_slice(&number.to_le_bytes());
            block_hash[8..16].copy_from_slice(&given.unwrap_or(numbered(&current)).to_le_bytes());
            let mut batch = RowBatch::new(Savepoint { height: above.max(current.height), epoch, block_hash });
            for PrivateRow { namespace, key, version, value } in rows {
                batch.put(&namespace, &key, version, value)?;
            }
            tables.write(batch).map(|()| number)
        })
        .await?;
        let _shared_sync = self.syncing.lock().await;
        if writes(&self.tables.durable_savepoint()) < mine {
            self.tables.persist().await?;
        }
        Ok(())
    }
}

/// The number of writes that led to a savepoint.
fn writes(savepoint: &Savepoint) -> u64 {
    let (number, _) = savepoint.block_hash.split_first_chunk().expect("a hash has more than eight bytes");
    u64::from_le_bytes(*number)
}

/// The number that the last numbered write carried.
fn numbered(savepoint: &Savepoint) -> u64 {
    wire::u64_at(&savepoint.block_hash, 8)
}

#[async_trait::async_trait]
impl PrivateRows for LocalPrivateRows {
    async fn write(&self, rows: Vec<PrivateRow>) -> Result<(), Error> {
        self.write_under(self.tables.savepoint().epoch, None, rows).await
    }

    async fn get_many(&self, keys: &[(&str, &[u8])], through: BlockNumber) -> Result<Vec<Option<Row>>, Error> {
        check_keys(keys.len())?;
        keys.iter().map(|(namespace, key)| self.tables.get(namespace, key, through)).collect()
    }

    async fn range(&self, query: RangeQuery<'_>) -> Result<RangePage, Error> {
        self.tables.range(query)
    }

    async fn prune(&self, oldest: BlockNumber) -> Result<bool, Error> {
        let tables = Arc::clone(&self.tables);
        Ok(rt::blocking(move || tables.prune(oldest, PRUNE_ROWS_MAX)).await?.finished)
    }
}

impl fmt::Debug for LocalPrivateRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalPrivateRows").field("savepoint", &self.tables.savepoint()).finish_non_exhaustive()
    }
}
