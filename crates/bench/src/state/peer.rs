//! A peer's state with its block store, both on disk, on which YCSB and SmallBank run without a network.
//!
//! The peer appends a block's writes to the block store, and applies them while the block store is synced. After a
//! fixed number of blocks the savepoint moves in the background. The monolithic state then writes the rows that it has
//! kept in memory. For the disaggregated state, storage materialises the rows from the blocks.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::rt;
use base::rt::disk::Directory;
use base::rt::net::GatherList;
use base::{BlockNumber, Bytes, BytesMut, Epoch, TxId, Version};
use state::disaggregated::DisaggregatedConfig;
use state::{Disaggregated, Monolithic, WorldState};
use storage::blocks::{BlockStore, BlockStoreConfig, NO_PREVIOUS, NewBlock};
use storage::tables::{FjallConfig, FjallEngine, RowBatch, Tables, TablesEngine as _};
use storage::{GroupSync, LocalStateStore, Materializer, StateStore};

use super::setup::{BenchmarkPool, NAMESPACE, block, failed};
use measurement::error::Error;

/// Wraps the storage of a disaggregated peer.
pub type WrapStore = Box<dyn FnOnce(Arc<dyn StateStore>) -> Arc<dyn StateStore> + Send>;

/// The sizes of a peer's parts.
#[derive(Clone, Debug)]
pub struct PeerMemoryConfig {
    /// Remote memory of the disaggregated form.
    pub memory_bytes: u64,
    /// The bytes of a section.
    pub section_bytes: u64,
    /// Caches of either form, in total.
    pub cache_bytes: usize,
    /// The disaggregated form's metadata cache, a part of these.
    pub metadata_bytes: usize,
    /// The bound on unpersisted writes; above it, a block waits until they are persisted.
    pub delta_bytes_max: usize,
    /// The number of blocks after which the savepoint moves in the background; `None`: only once [`PeerMemoryConfig::delta_bytes_max`] is
    /// reached, like a memtable that is written out once it is full.
    pub persist_blocks: Option<u64>,
}

impl PeerMemoryConfig {
    /// The caches of the disaggregated form, which together are as large as the monolithic form's.
    pub fn disaggregated(&self) -> DisaggregatedConfig {
        DisaggregatedConfig {
            metadata_cache_bytes: self.metadata_bytes,
            data_cache_bytes: self.cache_bytes - self.metadata_bytes,
            delta_bytes_max: self.delta_bytes_max,
            ..DisaggregatedConfig::default()
        }
    }

    /// The same for the monolithic form.
    pub fn monolithic(&self) -> state::MonolithicConfig {
        let (cache_bytes, delta_bytes_max) = (self.cache_bytes, self.delta_bytes_max);
        state::MonolithicConfig { cache_bytes, delta_bytes_max, ..state::MonolithicConfig::default() }
    }
}

/// A state with its block store, and its chain's position.
pub struct BenchmarkPeer {
    pub state: Arc<dyn WorldState>,
    /// The storage that materialises the disaggregated form's rows.
    store: Option<Arc<LocalStateStore>>,
    blocks: BlockStore,
    tip: [u8; 32],
    persist_blocks: Option<u64>,
    persisting: Option<rt::Task<Result<(), state::Error>>>,
    /// How often a block caused the savepoint to move.
    pub savepoints: usize,
    _pool: Option<BenchmarkPool>,
}

/// Rows of a block as this benchmark writes them: `key length:u16 | value length:u32 | key | value`, one transaction each.
struct BenchmarkMaterializer;

impl Materializer for BenchmarkMaterializer {
    fn materialize(&self, number: BlockNumber, block: &GatherList, batch: &mut RowBatch) -> Result<(), storage::Error> {
        // The block consists almost only of values.
        let block = block.clone().concat();
        let shares = batch.shares(block.len(), block.len());
        let (mut at, mut transaction) = (0, 0);
        while at < block.len() {
            let key_bytes = usize::from(u16::from_le_bytes([block[at], block[at + 1]]));
            let value_bytes = u32::from_le_bytes([block[at + 2], block[at + 3], block[at + 4], block[at + 5]]) as usize;
            let key = at + 6;
            let value = key + key_bytes;
            let end = value + value_bytes;
            let version = Version::new(number.get(), transaction);
            let own = if shares { block.slice(value..end) } else { Bytes::copy_from_slice(&block[value..end]) };
            batch.put(NAMESPACE, &block[key..value], version, Some(own))?;
            (at, transaction) = (end, transaction + 1);
        }
        Ok(())
    }
}

impl BenchmarkPeer {
    pub async fn monolithic(folder: &Path, sizes: &PeerMemoryConfig) -> Result<BenchmarkPeer, Error> {
        let (blocks, tables) = stores(folder).await?;
        let state = Arc::new(Monolithic::open(tables, sizes.monolithic()));
        let persist_blocks = sizes.persist_blocks;
        Ok(BenchmarkPeer {
            state,
            store: None,
            blocks,
            tip: NO_PREVIOUS,
            persist_blocks,
            persisting: None,
            savepoints: 0,
            _pool: None,
        })
    }

    /// Opens a disaggregated peer; `wrap` is put between the state and its storage.
    pub async fn disaggregated(
        folder: &Path,
        latency: Option<Duration>,
        sizes: &PeerMemoryConfig,
        wrap: Option<WrapStore>,
    ) -> Result<BenchmarkPeer, Error> {
        let (blocks, tables) = stores(folder).await?;
        let pool = BenchmarkPool::start(latency, sizes.memory_bytes, sizes.section_bytes).await?;
        let store = LocalStateStore::open(Arc::new(blocks.clone()), tables, Arc::new(BenchmarkMaterializer)).await;
        let store = Arc::new(store.map_err(|error| failed("storage", error))?);
        let seen: Arc<dyn StateStore> = match wrap {
            Some(wrap) => wrap(store.clone()),
            None => store.clone(),
        };
        let state = Disaggregated::open(Arc::new(pool.space.clone()), seen, sizes.disaggregated()).await;
        let state = Arc::new(state.map_err(|error| failed("the state", error))?);
        let (persist_blocks, pool) = (sizes.persist_blocks, Some(pool));
        let (store, tip) = (Some(store), NO_PREVIOUS);
        Ok(BenchmarkPeer { state, store, blocks, tip, persist_blocks, persisting: None, savepoints: 0, _pool: pool })
    }

    /// Makes a block of these writes durable and applies it.
    pub async fn commit(&mut self, writes: &[(Arc<str>, Bytes)]) -> Result<(), Error> {
        let number = self.state.height();
        let bytes = writes.iter().map(|(key, value)| 6 + key.len() + value.len()).sum();
        let mut block_bytes = BytesMut::with_capacity(bytes);
        for (key, value) in writes {
            block_bytes.extend_from_slice(&(key.len() as u16).to_le_bytes());
            block_bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
            block_bytes.extend_from_slice(key.as_bytes());
            block_bytes.extend_from_slice(value);
        }
        let block_bytes = block_bytes.freeze();
        let mut header_hash = [0; 32];
        header_hash[..8].copy_from_slice(&(number + 1).to_le_bytes());
        let transactions: Vec<(TxId, u8)> = Vec::new();
        let appended = self.blocks.append(NewBlock {
            number: BlockNumber(number),
            header_hash,
            previous_hash: self.tip,
            epoch: Epoch(0),
            parts: std::slice::from_ref(&block_bytes),
            transactions: &transactions,
        });
        appended.await.map_err(|error| failed("a block", error))?;
        self.tip = header_hash;
        if self.state.wants_persist() {
            self.savepoints += 1;
            self.state.persist().await.map_err(|error| failed("a savepoint", error))?;
        }
        // Values are slices of the block that contains them, as in a real peer.
        let mut at = 0;
        let parts = writes.iter().map(|(key, value)| {
            let start = at + 6 + key.len();
            at = start + value.len();
            (key.clone(), block_bytes.slice(start..at))
        });
        let (batch, _) = block(number, &parts.collect::<Vec<_>>());
        let durable = async { Ok(self.blocks.sync().await.map(drop)?) };
        let applied = self.state.apply_when(number, batch, Box::pin(durable)).await;
        applied.map_err(|error| failed("a block", error))?;
        if let Some(store) = &self.store {
            // As a storage node does with an appended block.
            store.prepare(BlockNumber(number), header_hash, &block_bytes.into());
        }
        if self.persist_blocks.is_some_and(|blocks| (number + 1).is_multiple_of(blocks)) {
            self.persisted().await?;
            self.savepoints += 1;
            let state = self.state.clone();
            self.persisting = Some(rt::spawn(async move { state.persist().await.map(drop) }));
        }
        Ok(())
    }

    /// Waits until a moving savepoint has completed.
    pub async fn persisted(&mut self) -> Result<(), Error> {
        let Some(persisting) = self.persisting.take() else { return Ok(()) };
        let persisted = persisting.await.map_err(|_| failed("a savepoint", "its task ended"))?;
        persisted.map_err(|error| failed("a savepoint", error))
    }

    /// Moves the savepoint to the newest block.
    pub async fn persist(&mut self) -> Result<(), Error> {
        self.persisted().await?;
        self.state.persist().await.map(drop).map_err(|error| failed("a savepoint", error))
    }
}

async fn stores(folder: &Path) -> Result<(BlockStore, Arc<dyn Tables>), Error> {
    let failed = |error: &dyn std::fmt::Display| failed("storage", error);
    let engine = FjallEngine::open(&folder.join("tables"), FjallConfig::default()).await;
    let tables = engine.map_err(|error| failed(&error))?.tables("load").await.map_err(|error| failed(&error))?;
    let directory = Directory::open(folder.join("blocks")).await.map_err(|error| failed(&error))?;
    let (blocks, _) = BlockStore::open(directory, GroupSync::new(), BlockStoreConfig::default())
        .await
        .map_err(|error| failed(&error))?;
    Ok((blocks, tables))
}
