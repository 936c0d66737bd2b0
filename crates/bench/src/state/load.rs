//! YCSB on blocks of a state whose blocks and tables are on disk, disaggregated and monolithic in turn.
//!
//! A block is 500 transactions. Each reads a record through the newest snapshot; a part of them, the updates, also writes
//! it. The writes are appended to a block store as a block, which is synced, and then applied, in this order. Every 32
//! blocks the savepoint is moved, in the background: the monolithic state writes the rows that it kept, the storage of the
//! disaggregated one makes them from the blocks.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::rt::disk::Directory;
use base::rt::{self, Stop};
use base::{BlockNumber, Bytes, BytesMut, Epoch, TxId, Version};
use state::disaggregated::DisaggregatedSettings;
use state::{Disaggregated, Monolithic, WorldState};
use storage::blocks::{BlockOptions, BlockStore, NO_PREVIOUS, NewBlock};
use storage::tables::{FjallEngine, FjallOptions, RowBatch, TablesEngine as _};
use storage::{GroupSync, LocalStateStore, Materializer};

use super::Options;
use super::setup::{NAMESPACE, Pool, block, failed, keys, median, provider, value};
use crate::error::Error;
use crate::figure::Figure;
use crate::random::Random;

const TRANSACTIONS: usize = 500;
const RECORDS: usize = 10_000;
const VALUE_BYTES: usize = 10_240;
const PERSIST_BLOCKS: u64 = 32;
/// Remote memory: the data and room for versions that wait to be reclaimed.
const BUDGET_BYTES: u64 = 384 << 20;
/// Values that updates choose from: making them is not what is measured.
const VALUES: usize = 64;

/// A state with its block store, and where its blocks stand.
struct Peer {
    state: Arc<dyn WorldState>,
    /// Where the disaggregated form's rows are made.
    store: Option<Arc<LocalStateStore>>,
    blocks: BlockStore,
    tip: [u8; 32],
    persisting: Option<rt::Task<Result<(), state::Error>>>,
    _pool: Option<Pool>,
}

/// Rows of a block as this benchmark writes them: `key length:u16 | value length:u32 | key | value`, one transaction each.
struct Rows;

impl Materializer for Rows {
    fn materialize(&self, number: BlockNumber, block: &Bytes, batch: &mut RowBatch) -> Result<(), storage::Error> {
        let (mut at, mut transaction) = (0, 0);
        while at < block.len() {
            let key_bytes = usize::from(u16::from_le_bytes([block[at], block[at + 1]]));
            let value_bytes = u32::from_le_bytes([block[at + 2], block[at + 3], block[at + 4], block[at + 5]]) as usize;
            let key = at + 6;
            let value = key + key_bytes;
            let end = value + value_bytes;
            let version = Version::new(number.get(), transaction);
            batch.put(NAMESPACE, &block[key..value], version, Some(Bytes::copy_from_slice(&block[value..end])))?;
            (at, transaction) = (end, transaction + 1);
        }
        Ok(())
    }
}

impl Peer {
    async fn monolithic(folder: &Path) -> Result<Peer, Error> {
        let (blocks, tables) = stores(folder).await?;
        let state = Arc::new(Monolithic::open(tables, state::Settings::default()));
        Ok(Peer { state, store: None, blocks, tip: NO_PREVIOUS, persisting: None, _pool: None })
    }

    async fn disaggregated(folder: &Path, latency: Option<Duration>) -> Result<Peer, Error> {
        let (blocks, tables) = stores(folder).await?;
        let pool = Pool::start(latency, BUDGET_BYTES).await?;
        let store = LocalStateStore::open(Arc::new(blocks.clone()), tables, Arc::new(Rows)).await;
        let store = Arc::new(store.map_err(|error| failed("storage", error))?);
        // Its caches together are as large as the monolithic one's.
        let cache_bytes = state::Settings::default().cache_bytes;
        let settings = DisaggregatedSettings {
            metadata_cache_bytes: cache_bytes / 8,
            data_cache_bytes: cache_bytes - cache_bytes / 8,
            ..DisaggregatedSettings::default()
        };
        let state = Disaggregated::open(Arc::new(pool.space.clone()), store.clone(), settings).await;
        let state = Arc::new(state.map_err(|error| failed("the state", error))?);
        Ok(Peer { state, store: Some(store), blocks, tip: NO_PREVIOUS, persisting: None, _pool: Some(pool) })
    }

    async fn commit(&mut self, writes: &[(Arc<str>, Bytes)]) -> Result<(), Error> {
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
        self.blocks.sync().await.map_err(|error| failed("a block", error))?;
        self.tip = header_hash;
        if let Some(store) = &self.store {
            // As a storage node does with a block that it was given.
            store.prepare(BlockNumber(number), header_hash, &block_bytes);
        }
        if self.state.wants_persist() {
            self.state.persist().await.map_err(|error| failed("a savepoint", error))?;
        }
        let (batch, _) = block(number, writes);
        self.state.apply(number, batch).await.map_err(|error| failed("a block", error))?;
        if (number + 1).is_multiple_of(PERSIST_BLOCKS) {
            self.persisted().await?;
            let state = self.state.clone();
            self.persisting = Some(rt::spawn(async move { state.persist().await.map(drop) }));
        }
        Ok(())
    }

    async fn persisted(&mut self) -> Result<(), Error> {
        let Some(persisting) = self.persisting.take() else { return Ok(()) };
        let persisted = persisting.await.map_err(|_| failed("a savepoint", "its task ended"))?;
        persisted.map_err(|error| failed("a savepoint", error))
    }

    /// Runs for a while; transactions a second.
    async fn run(
        &mut self,
        keys: &[Arc<str>],
        values: &[Bytes],
        updates_percent: u64,
        random: &mut Random,
        window: Duration,
    ) -> Result<f64, Error> {
        let begin = Instant::now();
        let mut transactions = 0;
        while begin.elapsed() < window {
            let snapshot = self.state.snapshot();
            let mut writes = Vec::with_capacity(TRANSACTIONS);
            for _ in 0..TRANSACTIONS {
                let key = &keys[random.below(keys.len() as u64) as usize];
                let found = snapshot.get(NAMESPACE, key).await.map_err(|error| failed("a read", error))?;
                let found = found.ok_or_else(|| failed("a read", "a record is missing"))?;
                if found.value.len() != VALUE_BYTES {
                    return Err(failed("a read", "a record has another length"));
                }
                if random.below(100) < updates_percent {
                    writes.push((key.clone(), values[random.below(VALUES as u64) as usize].clone()));
                }
            }
            self.commit(&writes).await?;
            transactions += TRANSACTIONS;
        }
        Ok(transactions as f64 / begin.elapsed().as_secs_f64())
    }
}

async fn stores(folder: &Path) -> Result<(BlockStore, Arc<dyn storage::tables::Tables>), Error> {
    let failed = |error: &dyn std::fmt::Display| failed("storage", error);
    let engine = FjallEngine::open(&folder.join("tables"), FjallOptions::default()).await;
    let tables = engine.map_err(|error| failed(&error))?.tables("load").await.map_err(|error| failed(&error))?;
    let directory = Directory::open(folder.join("blocks")).await.map_err(|error| failed(&error))?;
    let (blocks, _) =
        BlockStore::open(directory, GroupSync::new(), BlockOptions::default()).await.map_err(|error| failed(&error))?;
    Ok((blocks, tables))
}

/// Runs both forms in turns. The median over the pairs of disaggregated over monolithic throughput.
pub async fn compare(
    options: &Options,
    name: &str,
    updates_percent: u64,
    latency: Option<Duration>,
    stop: &Stop,
    figure: &mut Figure,
) -> Result<f64, Error> {
    let mut random = Random::new(options.seed);
    let keys = keys(RECORDS);
    let values: Vec<Bytes> = (0..VALUES).map(|_| value(&mut random, VALUE_BYTES)).collect();
    let folder = tempfile::tempdir().map_err(|error| failed("a temporary folder", error))?;
    let mut monolithic = Peer::monolithic(&folder.path().join("monolithic")).await?;
    let mut disaggregated = Peer::disaggregated(&folder.path().join("disaggregated"), latency).await?;
    for chunk in keys.chunks(TRANSACTIONS) {
        let writes: Vec<_> =
            chunk.iter().map(|key| (key.clone(), values[random.below(VALUES as u64) as usize].clone())).collect();
        monolithic.commit(&writes).await?;
        disaggregated.commit(&writes).await?;
    }
    let window = Duration::from_secs_f64(options.seconds);
    let (mut ratios, mut rates) = (Vec::new(), [Vec::new(), Vec::new()]);
    // The first pair warms up and is not counted.
    for pair in 0..=options.pairs {
        if stop.is_stopped() {
            return Err(Error::Interrupted);
        }
        let mut rate = [0.0; 2];
        // Who goes first changes, so that neither always has the warmer machine.
        for turn in 0..2 {
            let form = (pair + turn) % 2;
            let peer = if form == 0 { &mut disaggregated } else { &mut monolithic };
            rate[form] = peer.run(&keys, &values, updates_percent, &mut random, window).await?;
            // What one form still writes must not burden the other.
            peer.persisted().await?;
        }
        if pair > 0 {
            ratios.push(rate[0] / rate[1]);
            rates.iter_mut().zip(rate).for_each(|(rates, rate)| rates.push(rate));
        }
    }
    let ratio = median(ratios.clone());
    let [remote, local] = rates;
    let provider = provider(latency);
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    for (form, rates) in [("disaggregated", remote), ("monolithic", local)] {
        let labels = [("load", name), ("form", form), ("provider", provider.as_str())];
        figure.row(&labels, &[("median_tps", median(rates)), ("ratio_median", ratio), ("ratio_least", least)]);
    }
    Ok(ratio)
}
