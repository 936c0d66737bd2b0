//! Figure 8 (a): how many reads the local caches, remote memory and storage answer, for several sizes of the caches and
//! skews of the keys.
//!
//! YCSB-A on the world state alone, in blocks of [`TRANSACTIONS`] transactions. Half of the transactions read a record
//! through the newest snapshot; the others write a record without reading it.
//! 1. The reads are made as contracts make them. The state's event counters show how many reads each source answered.
//! 2. The versions of the keys are looked up, as in validation. The metadata cache answers if it has the key, otherwise
//!    the index.
//! 3. The writes are applied.
//!
//! The monolithic form runs the same load, with an equally large cache over tables of the storage engine. It moves its
//! savepoint after every block.
//!
//! Hits are computed as reads minus misses, because the events count every miss at once, but hits only from time to
//! time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::Bytes;
use base::rt::CancellationToken;
use state::{Monolithic, WorldState, events};
use storage::tables::{FjallConfig, FjallEngine, Tables, TablesEngine as _};

use super::{VALUE_BYTES, check, shuffled};
use crate::state::PERSIST_BLOCKS;
use crate::state::peer::PeerMemoryConfig;
use crate::state::setup::{NAMESPACE, PooledState, block, failed, keys, value};
use measurement::error::Error;
use measurement::figure::{CurvePlot, Figure};
use measurement::progress::{MeasurementFuture, ReportProgress};
use measurement::random::Random;
use measurement::zipf::Zipf;

/// Transactions of a block.
const TRANSACTIONS: usize = 200;
/// The least time from the start of one block to the next. Without contracts and signatures the state would be written so fast
/// that superseded versions, whose memory is reused only after followers' leases, took more of it than the data.
const BLOCK_EVERY: Duration = Duration::from_millis(10);
/// Writes of a block while loading.
const LOAD_WRITES: usize = 500;
/// How many of a hundred transactions write: YCSB-A.
const WRITES_PERCENT: u64 = 50;
/// Values that writes choose from.
const VALUES: usize = 64;
const SECTION_BYTES: u64 = 1 << 20;
/// The least cache.
const CACHE_BYTES_MIN: u64 = 64 << 10;
/// How long fills that the warm-up started may take to end.
const QUIESCE: Duration = Duration::from_millis(20);

/// How to measure.
#[derive(Clone, Debug)]
pub struct Fig8aConfig {
    /// Bytes of values.
    pub data_bytes: u64,
    /// Local caches in percent of the data.
    pub cache_percents: Vec<f64>,
    /// Exponents of Zipf's law; 0 is uniform.
    pub skews: Vec<f64>,
    /// Remote memory in percent of the data.
    pub memory_percents: Vec<f64>,
    /// Transactions that are counted for each combination; as many warm up before them.
    pub transactions: usize,
    /// Fixes the choice of keys.
    pub seed: u64,
}

impl Default for Fig8aConfig {
    fn default() -> Fig8aConfig {
        Fig8aConfig {
            data_bytes: 64 << 20,
            cache_percents: vec![1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0],
            skews: vec![0.0, 0.6, 0.99, 1.2],
            memory_percents: vec![200.0, 50.0],
            transactions: 10_000,
            seed: 1,
        }
    }
}

/// The sources that answered the reads of a run, each as a fraction of the reads.
#[derive(Clone, Copy, Default)]
struct ReadRatios {
    metadata: f64,
    data: f64,
    remote: f64,
    storage: f64,
    delta: f64,
    /// The fraction of validation's look-ups that the metadata cache answered.
    validation: f64,
}

/// Counts of the state's events.
#[derive(Clone, Copy)]
struct ReadCounts {
    metadata_misses: u64,
    data_misses: u64,
    storage: u64,
    delta: u64,
    table_misses: u64,
}

impl ReadCounts {
    fn now() -> ReadCounts {
        ReadCounts {
            metadata_misses: events::MetadataCacheMisses.value(),
            data_misses: events::DataCacheMisses.value(),
            storage: events::StorageReads.value(),
            delta: events::DeltaHits.value(),
            table_misses: events::CacheMisses.value(),
        }
    }

    /// Adds the counts since `before` to `self`.
    fn add_since(&mut self, before: ReadCounts) {
        let now = ReadCounts::now();
        self.metadata_misses += now.metadata_misses - before.metadata_misses;
        self.data_misses += now.data_misses - before.data_misses;
        self.storage += now.storage - before.storage;
        self.delta += now.delta - before.delta;
        self.table_misses += now.table_misses - before.table_misses;
    }

    const ZERO: ReadCounts = ReadCounts { metadata_misses: 0, data_misses: 0, storage: 0, delta: 0, table_misses: 0 };
}

/// The two forms, as far as they differ here.
enum MeasuredState<'a> {
    Disaggregated(&'a PooledState),
    Monolithic(&'a Monolithic),
}

impl MeasuredState<'_> {
    fn state(&self) -> &dyn WorldState {
        match self {
            MeasuredState::Disaggregated(remote) => &remote.state,
            MeasuredState::Monolithic(monolithic) => *monolithic,
        }
    }

    async fn apply(&self, writes: &[(Arc<str>, Bytes)]) -> Result<(), Error> {
        match self {
            MeasuredState::Disaggregated(remote) => remote.apply(writes).await?,
            MeasuredState::Monolithic(monolithic) => {
                let number = monolithic.height();
                let (batch, _) = block(number, writes);
                monolithic.apply(number, batch).await.map_err(|error| failed("a block", error))?;
            }
        }
        // Until its next savepoint the monolithic form keeps the writes of blocks outside the cache, and the cache is to be
        // measured.
        let persist_blocks = if matches!(self, MeasuredState::Monolithic(_)) { 1 } else { PERSIST_BLOCKS };
        if self.state().height().is_multiple_of(persist_blocks) {
            self.persist().await?;
        }
        Ok(())
    }

    async fn persist(&self) -> Result<(), Error> {
        self.state().persist().await.map(drop).map_err(|error| failed("a savepoint", error))
    }
}

/// Keys, values, and the order of the keys' popularity.
struct Data {
    keys: Vec<Arc<str>>,
    values: Vec<Bytes>,
    popular: Vec<usize>,
    transactions: usize,
    seed: u64,
}

/// Measures. `tell` gets a description of each next step.
///
/// # Errors
/// A part cannot be set up, or `stop` was stopped.
pub fn run<'a>(
    options: &'a Fig8aConfig,
    stop: &'a CancellationToken,
    tell: ReportProgress<'a>,
) -> MeasurementFuture<'a> {
    Box::pin(run_all(options, stop, tell))
}

async fn run_all(options: &Fig8aConfig, stop: &CancellationToken, tell: ReportProgress<'_>) -> Result<Figure, Error> {
    let mut figure = Figure::new("flexchain-fig8a", "FlexChain, figure 8 (a): local caches and skew");
    let mut random = Random::new(options.seed);
    let records = (options.data_bytes / VALUE_BYTES as u64).max(2) as usize;
    let data = Data {
        keys: keys(records),
        values: (0..VALUES).map(|_| value(&mut random, VALUE_BYTES)).collect(),
        popular: shuffled(records, &mut random),
        transactions: options.transactions,
        seed: options.seed,
    };
    figure.setting("data_bytes", options.data_bytes);
    figure.setting("value_bytes", VALUE_BYTES);
    figure.setting("transactions", options.transactions);
    figure.setting("seed", options.seed);

    let folder = tempfile::tempdir().map_err(|error| failed("a temporary folder", error))?;
    let engine = FjallEngine::open(folder.path(), FjallConfig::default()).await;
    let engine = engine.map_err(|error| failed("the storage engine", error))?;
    let tables = engine.tables("monolithic").await.map_err(|error| failed("the storage engine", error))?;
    tell("loading the monolithic form");
    let loading = Monolithic::open(tables.clone(), state::MonolithicConfig::default());
    data.load(&MeasuredState::Monolithic(&loading)).await?;
    drop(loading);
    let mut monolithic = Vec::new();
    for cache in &options.cache_percents {
        monolithic.push(data.monolithic(options, *cache, &tables, stop, tell).await?);
    }
    let mut over_monolithic = f64::INFINITY;
    let mut storage_over_absent: f64 = 0.0;
    for memory in &options.memory_percents {
        for (cache, monolithic) in options.cache_percents.iter().zip(&monolithic) {
            let answers = data.disaggregated(options, *cache, *memory, stop, tell).await?;
            for (skew, (ours, theirs)) in options.skews.iter().zip(answers.iter().zip(monolithic)) {
                add(&mut figure, *memory, *skew, *cache, ours, theirs);
                if *memory >= 100.0 {
                    over_monolithic = over_monolithic.min(ours.data / theirs.data);
                } else if *skew == 0.0 {
                    storage_over_absent = storage_over_absent.max(ours.storage / (1.0 - memory / 100.0));
                }
            }
        }
    }
    if over_monolithic.is_finite() {
        figure.ratio("data_hits_over_monolithic_min", over_monolithic, None);
    }
    if storage_over_absent > 0.0 {
        figure.ratio("uniform_storage_reads_over_absent_max", storage_over_absent, None);
    }
    for y in ["data_hit_percent", "storage_percent"] {
        figure.curves(CurvePlot { x: "cache_percent", x_log: true, y });
    }
    figure.note(
        "Hits are of the reads that contracts make; validation reads again, only versions. An eighth of the caches is for \
         metadata. storage_percent, remote_percent and delta_percent are reads that missed the data cache; the delta has the \
         writes since the savepoint for which remote memory had no space.",
    );
    figure.note(format!(
        "At most {} transactions a second: the figure compares the sources of answers, not their speed.",
        TRANSACTIONS as u128 * 1_000 / BLOCK_EVERY.as_millis()
    ));
    Ok(figure)
}

fn add(figure: &mut Figure, memory: f64, skew: f64, cache: f64, ours: &ReadRatios, theirs: &ReadRatios) {
    let (memory, skew) = (format!("memory {memory} %"), format!("s = {skew}"));
    let numbers = [
        ("cache_percent", cache),
        ("data_hit_percent", 100.0 * ours.data),
        ("metadata_hit_percent", 100.0 * ours.metadata),
        ("validation_hit_percent", 100.0 * ours.validation),
        ("remote_percent", 100.0 * ours.remote),
        ("storage_percent", 100.0 * ours.storage),
        ("delta_percent", 100.0 * ours.delta),
        ("monolithic_hit_percent", 100.0 * theirs.data),
    ];
    figure.row(&[("remote", &memory), ("skew", &skew)], &numbers);
}

impl Data {
    async fn load(&self, form: &MeasuredState<'_>) -> Result<(), Error> {
        for (number, chunk) in self.keys.chunks(LOAD_WRITES).enumerate() {
            let value = &self.values[number % VALUES];
            let writes: Vec<_> = chunk.iter().map(|key| (key.clone(), value.clone())).collect();
            form.apply(&writes).await?;
        }
        form.persist().await
    }

    /// Reads all records twice in random order: caches that are large enough then hold them.
    async fn look(&self, form: &MeasuredState<'_>) -> Result<(), Error> {
        let snapshot = form.state().snapshot();
        for number in self.popular.iter().chain(&self.popular) {
            let found = snapshot.get(NAMESPACE, &self.keys[*number]).await;
            found.map_err(|error| failed("a read", error))?.ok_or_else(|| failed("a read", "a record is missing"))?;
        }
        Ok(())
    }

    async fn monolithic(
        &self,
        options: &Fig8aConfig,
        cache: f64,
        tables: &Arc<dyn Tables>,
        stop: &CancellationToken,
        tell: ReportProgress<'_>,
    ) -> Result<Vec<ReadRatios>, Error> {
        let sizes = sizes(options, cache, 0.0);
        let mut answers = Vec::new();
        for skew in &options.skews {
            check(stop)?;
            tell(&format!("monolithic: caches of {cache} % of the data, skew {skew}"));
            let state = Monolithic::open(tables.clone(), sizes.monolithic());
            self.look(&MeasuredState::Monolithic(&state)).await?;
            answers.push(self.measure(&MeasuredState::Monolithic(&state), *skew).await?);
            MeasuredState::Monolithic(&state).persist().await?;
        }
        Ok(answers)
    }

    async fn disaggregated(
        &self,
        options: &Fig8aConfig,
        cache: f64,
        memory: f64,
        stop: &CancellationToken,
        tell: ReportProgress<'_>,
    ) -> Result<Vec<ReadRatios>, Error> {
        let sizes = sizes(options, cache, memory);
        let settings = sizes.disaggregated();
        let remote = PooledState::with_sections(None, sizes.memory_bytes, SECTION_BYTES, settings).await?;
        self.load(&MeasuredState::Disaggregated(&remote)).await?;
        self.look(&MeasuredState::Disaggregated(&remote)).await?;
        let mut answers = Vec::new();
        for skew in &options.skews {
            check(stop)?;
            tell(&format!("remote memory of {memory} % of the data, caches of {cache} %, skew {skew}"));
            answers.push(self.measure(&MeasuredState::Disaggregated(&remote), *skew).await?);
        }
        Ok(answers)
    }

    async fn measure(&self, form: &MeasuredState<'_>, skew: f64) -> Result<ReadRatios, Error> {
        let keys = Zipf::new(self.keys.len() as u64, skew);
        let mut random = Random::new(self.seed ^ skew.to_bits());
        for _ in 0..self.transactions.div_ceil(TRANSACTIONS) {
            self.block(form, &keys, &mut random, &mut RunCounts::default()).await?;
        }
        tokio::time::sleep(QUIESCE).await;
        let mut run = RunCounts::default();
        for _ in 0..self.transactions.div_ceil(TRANSACTIONS) {
            self.block(form, &keys, &mut random, &mut run).await?;
        }
        Ok(run.answers(form))
    }

    async fn block(
        &self,
        form: &MeasuredState<'_>,
        keys: &Zipf,
        random: &mut Random,
        run: &mut RunCounts,
    ) -> Result<(), Error> {
        let begin = Instant::now();
        let snapshot = form.state().snapshot();
        let (mut read, mut writes) = (Vec::new(), Vec::new());
        let before = ReadCounts::now();
        for _ in 0..TRANSACTIONS {
            let key = &self.keys[self.popular[keys.draw(random) as usize]];
            if random.percent(WRITES_PERCENT) {
                writes.push((key.clone(), self.values[random.below(VALUES as u64) as usize].clone()));
                continue;
            }
            let found = snapshot.get(NAMESPACE, key).await.map_err(|error| failed("a read", error))?;
            let found = found.filter(|found| found.value.len() == VALUE_BYTES);
            found.ok_or_else(|| failed("a read", "a record is missing, or has another length"))?;
            read.push((NAMESPACE, key.as_ref()));
        }
        run.reads += read.len() as u64;
        run.reading.add_since(before);
        let before = ReadCounts::now();
        let versions = snapshot.versions(&read).await.map_err(|error| failed("a check of versions", error))?;
        if versions.iter().any(Option::is_none) {
            return Err(failed("a check of versions", "a record is missing"));
        }
        run.validating.add_since(before);
        drop(snapshot);
        form.apply(&writes).await?;
        if let Some(left) = BLOCK_EVERY.checked_sub(begin.elapsed()) {
            tokio::time::sleep(left).await;
        }
        Ok(())
    }
}

/// The counts of a run.
struct RunCounts {
    reads: u64,
    reading: ReadCounts,
    validating: ReadCounts,
}

impl Default for RunCounts {
    fn default() -> RunCounts {
        RunCounts { reads: 0, reading: ReadCounts::ZERO, validating: ReadCounts::ZERO }
    }
}

impl RunCounts {
    fn answers(&self, form: &MeasuredState<'_>) -> ReadRatios {
        let ratio = |count: u64| count as f64 / self.reads.max(1) as f64;
        // A read that started again because its lease ended counts twice; this is rare, and the rest is kept from falling below
        // zero.
        let rest = |count: u64| (1.0 - ratio(count)).max(0.0);
        let ReadCounts { metadata_misses, data_misses, storage, delta, table_misses } = self.reading;
        match form {
            MeasuredState::Disaggregated(_) => {
                let data = rest(metadata_misses + data_misses);
                ReadRatios {
                    metadata: rest(metadata_misses),
                    data,
                    remote: (1.0 - data - ratio(storage + delta)).max(0.0),
                    storage: ratio(storage),
                    delta: ratio(delta),
                    validation: rest(self.validating.metadata_misses),
                }
            }
            MeasuredState::Monolithic(_) => {
                let data = rest(table_misses);
                ReadRatios { data, storage: ratio(table_misses), ..ReadRatios::default() }
            }
        }
    }
}

fn sizes(options: &Fig8aConfig, cache: f64, memory: f64) -> PeerMemoryConfig {
    let of_data = |percent: f64| (options.data_bytes as f64 * percent / 100.0) as u64;
    let cache_bytes = of_data(cache).max(CACHE_BYTES_MIN) as usize;
    PeerMemoryConfig {
        memory_bytes: of_data(memory).max(SECTION_BYTES),
        section_bytes: SECTION_BYTES,
        cache_bytes,
        metadata_bytes: cache_bytes / 8,
        delta_bytes_max: state::MonolithicConfig::default().delta_bytes_max,
        persist_blocks: Some(PERSIST_BLOCKS),
    }
}
