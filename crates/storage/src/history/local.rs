//! The history of a channel over its blocks, and its index.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base::rt::Task;
use base::rt::sync::Mutex as AsyncMutex;
use base::{BlockNumber, Bytes, Epoch, Version, rt};
use twox_hash::XxHash3_128;

use crate::blocks::{Blocks, StoredBlock};
use crate::history::interface::{HISTORY_BLOCKS_MAX, History, HistoryQuery};
use crate::state_store::{MATERIALIZE_BLOCKS_MAX, Materializer, check_savepoint};
use crate::tables::{RangeQuery, RowBatch, Savepoint, Tables, TablesEngine, check_key, row_prefix};
use crate::{Error, events};

/// The suffix of the index's name after the channel's name. No channel's name contains it.
pub const SUFFIX: &str = "_history";

/// How long one question may catch up: well below the time that a client waits for an answer.
pub const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(4);
/// The version of the index, in place of the epoch of its savepoint. Version 0 had no entries for writes that leave no row.
const INDEX_VERSION: Epoch = Epoch(1);
/// The namespace of all entries.
const NAMESPACE: &str = "h";
const HASH_BYTES: usize = 16;
/// Bytes of an entry's key.
const ENTRY_BYTES: usize = HASH_BYTES + 8;

/// [`History`] over local blocks and tables; see [the module](self).
pub struct LocalHistory {
    channel: String,
    blocks: Arc<dyn Blocks>,
    engine: Arc<dyn TablesEngine>,
    materializer: Arc<dyn Materializer>,
    /// Locked while catching up.
    index: AsyncMutex<OpenIndex>,
}

/// The index as far as it is open.
#[derive(Default)]
struct OpenIndex {
    /// Opened at the first question.
    tables: Option<Arc<dyn Tables>>,
    /// Removes an index of another version. It goes on when a question ends.
    removal: Option<Task<Result<(), Error>>>,
}

impl LocalHistory {
    /// The history of a channel. Does not open or build the index yet.
    pub fn new(
        channel: &str,
        blocks: Arc<dyn Blocks>,
        engine: Arc<dyn TablesEngine>,
        materializer: Arc<dyn Materializer>,
    ) -> LocalHistory {
        LocalHistory { channel: channel.to_owned(), blocks, engine, materializer, index: AsyncMutex::default() }
    }

    /// Steps 1 and 2, within [`CATCH_UP_TIMEOUT`] or a page more.
    async fn caught_up(&self, height: u64) -> Result<Arc<dyn Tables>, Error> {
        let started = rt::now();
        let mut index = self.index.lock().await;
        let tables = match &index.tables {
            Some(tables) => Arc::clone(tables),
            None => {
                let tables = self.open(&mut index).await?;
                Arc::clone(index.tables.insert(tables))
            }
        };
        let target = height.min(self.blocks.durable_height());
        while tables.savepoint().height < target {
            let from = tables.savepoint().height;
            if started.elapsed() >= CATCH_UP_TIMEOUT {
                return Err(self.not_yet(&format!("it has {from} of {height} blocks")));
            }
            if rt::fault_point("storage.history.page") {
                rt::sleep(Duration::from_millis(100)).await;
            }
            let limit = usize::try_from(target - from).unwrap_or(usize::MAX).min(MATERIALIZE_BLOCKS_MAX);
            let page = self.blocks.read_page(BlockNumber(from), limit).await?;
            let (materializer, into) = (Arc::clone(&self.materializer), Arc::clone(&tables));
            let blocks = page.len() as u64;
            rt::blocking(move || into.write(entries(&*materializer, &page)?)).await?;
            events::BlocksIndexed.add(blocks);
        }
        match tables.savepoint().height >= height {
            true => Ok(tables),
            false => Err(self.not_yet(&format!("block {} is not durable yet", height - 1))),
        }
    }

    /// Step 1.
    async fn open(&self, index: &mut OpenIndex) -> Result<Arc<dyn Tables>, Error> {
        let name = format!("{}{SUFFIX}", self.channel);
        if index.removal.is_none() {
            let tables = self.engine.tables(&name).await?;
            let savepoint = tables.savepoint();
            if savepoint.height == 0 || savepoint.epoch == INDEX_VERSION {
                check_savepoint(self.blocks.as_ref(), &savepoint).await?;
                return Ok(tables);
            }
            tracing::info!(channel = self.channel, "the history was built by another release, and is built again");
            let (engine, name) = (Arc::clone(&self.engine), name.clone());
            index.removal = Some(rt::spawn(async move { engine.clear(&name).await }));
        }
        let removal = index.removal.as_mut().expect("there is one");
        let Ok(removed) = rt::timeout(CATCH_UP_TIMEOUT, removal).await else {
            return Err(self.not_yet("an index of another release is being removed"));
        };
        index.removal = None;
        removed.map_err(|_| Error::Invalid("the removal of an index was ended"))??;
        self.engine.tables(&name).await
    }

    fn not_yet(&self, why: &str) -> Error {
        Error::HistoryBehind { channel: self.channel.as_str().into(), why: why.into() }
    }
}

/// The entries of some blocks, with the savepoint that they lead to.
fn entries(materializer: &dyn Materializer, page: &[StoredBlock]) -> Result<RowBatch, Error> {
    let last = page.last().ok_or(Error::Invalid("a page of blocks below the height is empty"))?;
    let (height, block_hash) = (last.number.get() + 1, last.header_hash);
    let mut batch = RowBatch::new(Savepoint { height, epoch: INDEX_VERSION, block_hash });
    for block in page {
        let (version, mut put) = (Version::new(block.number.get(), 0), Ok(()));
        materializer.visit_written(block.number, &block.payload.clone().into(), &mut |namespace, key| {
            let entry = entry(&row_prefix(namespace, key), block.number.get());
            if put.is_ok() {
                put = batch.put(NAMESPACE, &entry, version, Some(Bytes::new()));
            }
        })?;
        put?;
    }
    Ok(batch)
}

/// The key of an entry. `prefix` is the common prefix of all rows of the key.
fn entry(prefix: &[u8], block: u64) -> [u8; ENTRY_BYTES] {
    let mut entry = [0; ENTRY_BYTES];
    let (hash, number) = entry.split_at_mut(HASH_BYTES);
    hash.copy_from_slice(&XxHash3_128::oneshot(prefix).to_be_bytes());
    number.copy_from_slice(&(!block).to_be_bytes());
    entry
}

/// The block of an entry.
fn block_of(entry: &[u8]) -> Result<BlockNumber, Error> {
    let number = entry.get(HASH_BYTES..).and_then(|number| <[u8; 8]>::try_from(number).ok());
    let number = number.ok_or(Error::Invalid("the history holds a row that is not one of its entries"))?;
    Ok(BlockNumber(!u64::from_be_bytes(number)))
}

#[async_trait::async_trait]
impl History for LocalHistory {
    async fn blocks_of(&self, query: HistoryQuery<'_>) -> Result<Vec<BlockNumber>, Error> {
        let HistoryQuery { namespace, key, below, limit } = query;
        check_key(namespace, key)?;
        let Some(newest) = below.get().checked_sub(1) else { return Ok(Vec::new()) };
        let tables = self.caught_up(below.get()).await?;
        let prefix = row_prefix(namespace, key);
        // Block 0 is the channel's configuration, which writes no key.
        let (start, end) = (entry(&prefix, newest), entry(&prefix, 0));
        let limit = limit.min(HISTORY_BLOCKS_MAX);
        let page = tables.range(RangeQuery {
            namespace: NAMESPACE,
            start: &start,
            end: &end,
            through: BlockNumber(u64::MAX),
            limit,
        })?;
        page.entries.iter().map(|entry| block_of(&entry.key)).collect()
    }
}

impl fmt::Debug for LocalHistory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalHistory").field("channel", &self.channel).finish_non_exhaustive()
    }
}
