//! Figure 8 (a): what answers reads, over the size of the local caches and the skew of keys.
//!
//! YCSB-A on the state alone. A block is [`TRANSACTIONS`] transactions; half of them read a record through the newest
//! snapshot, the others write one unread.
//! 1. The reads, as contracts make them. What the caches, remote memory and storage answered is told by the state's events.
//! 2. The versions of what was read are asked for, as validation does: the metadata cache answers, or the index.
//! 3. The writes are applied.
//!
//! The monolithic form runs the same with a cache of the same size over tables of the storage engine. It moves its savepoint
//! after every block.
//!
//! Hits are what is left of reads after misses: those are counted one by one, hits only every so often.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::Bytes;
use base::rt::Stop;
use state::{Monolithic, WorldState, events};
use storage::tables::{FjallEngine, FjallOptions, Tables, TablesEngine as _};

use super::{VALUE_BYTES, check, shuffled};
use crate::error::Error;
use crate::figure::{Curves, Figure};
use crate::progress::{Measuring, Tell};
use crate::random::Random;
use crate::state::PERSIST_BLOCKS;
use crate::state::peer::Sizes;
use crate::state::setup::{NAMESPACE, Remote, block, failed, keys, value};
use crate::zipf::Zipf;

/// Transactions of a block.
const TRANSACTIONS: usize = 200;
/// A block begins no sooner after the one before. Without contracts and signatures the state would be written so fast that
/// superseded versions, whose memory is used again only after readers' leases, took more of it than the data.
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
/// How long fills that the warm-up began may take to end.
const SETTLE: Duration = Duration::from_millis(20);

/// How to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of values.
    pub data_bytes: u64,
    /// Local caches in percent of them.
    pub cache_percents: Vec<f64>,
    /// Exponents of Zipf's law; 0 is uniform.
    pub skews: Vec<f64>,
    /// Remote memory in percent of the data.
    pub memory_percents: Vec<f64>,
    /// Transactions that are counted for each of these, and as many before them.
    pub transactions: usize,
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            data_bytes: 64 << 20,
            cache_percents: vec![1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0],
            skews: vec![0.0, 0.6, 0.99, 1.2],
            memory_percents: vec![200.0, 50.0],
            transactions: 10_000,
            seed: 1,
        }
    }
}

/// What answered the reads of a run, each in a share of them.
#[derive(Clone, Copy, Default)]
struct Answers {
    metadata: f64,
    data: f64,
    remote: f64,
    storage: f64,
    delta: f64,
    /// Of validation's questions, the share that the metadata cache answered.
    validation: f64,
}

/// Counts of the state's events.
#[derive(Clone, Copy)]
struct Counts {
    metadata_misses: u64,
    data_misses: u64,
    storage: u64,
    delta: u64,
    table_misses: u64,
}

impl Counts {
    fn now() -> Counts {
        Counts {
            metadata_misses: events::MetadataCacheMisses.value(),
            data_misses: events::DataCacheMisses.value(),
            storage: events::StorageReads.value(),
            delta: events::DeltaHits.value(),
            table_misses: events::CacheMisses.value(),
        }
    }

    /// What was added since `before` is added to `self`.
    fn add_since(&mut self, before: Counts) {
        let now = Counts::now();
        self.metadata_misses += now.metadata_misses - before.metadata_misses;
        self.data_misses += now.data_misses - before.data_misses;
        self.storage += now.storage - before.storage;
        self.delta += now.delta - before.delta;
        self.table_misses += now.table_misses - before.table_misses;
    }

    const ZERO: Counts = Counts { metadata_misses: 0, data_misses: 0, storage: 0, delta: 0, table_misses: 0 };
}

/// The two forms, as far as they differ here.
enum Form<'a> {
    Disaggregated(&'a Remote),
    Monolithic(&'a Monolithic),
}

impl Form<'_> {
    fn state(&self) -> &dyn WorldState {
        match self {
            Form::Disaggregated(remote) => &remote.state,
            Form::Monolithic(monolithic) => *monolithic,
        }
    }

    async fn apply(&self, writes: &[(Arc<str>, Bytes)]) -> Result<(), Error> {
        match self {
            Form::Disaggregated(remote) => remote.apply(writes).await?,
            Form::Monolithic(monolithic) => {
                let number = monolithic.height();
                let (batch, _) = block(number, writes);
                monolithic.apply(number, batch).await.map_err(|error| failed("a block", error))?;
            }
        }
        // Until its next savepoint the monolithic form keeps what blocks wrote beside its cache, which is what is measured.
        let persist_blocks = if matches!(self, Form::Monolithic(_)) { 1 } else { PERSIST_BLOCKS };
        if self.state().height().is_multiple_of(persist_blocks) {
            self.persist().await?;
        }
        Ok(())
    }

    async fn persist(&self) -> Result<(), Error> {
        self.state().persist().await.map(drop).map_err(|error| failed("a savepoint", error))
    }
}

/// Keys, values, and in which order keys are popular.
struct Data {
    keys: Vec<Arc<str>>,
    values: Vec<Bytes>,
    popular: Vec<usize>,
    transactions: usize,
    seed: u64,
}

/// Measures. `tell` is told what is done next.
///
/// # Errors
/// A part cannot be set up, or `stop` was stopped.
pub fn run<'a>(options: &'a Options, stop: &'a Stop, tell: Tell<'a>) -> Measuring<'a> {
    Box::pin(run_all(options, stop, tell))
}

async fn run_all(options: &Options, stop: &Stop, tell: Tell<'_>) -> Result<Figure, Error> {
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
    let engine = FjallEngine::open(folder.path(), FjallOptions::default()).await;
    let engine = engine.map_err(|error| failed("the storage engine", error))?;
    let tables = engine.tables("monolithic").await.map_err(|error| failed("the storage engine", error))?;
    tell("loading the monolithic form");
    let loading = Monolithic::open(tables.clone(), state::Settings::default());
    data.load(&Form::Monolithic(&loading)).await?;
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
        figure.curves(Curves { x: "cache_percent", x_log: true, y });
    }
    figure.note(
        "Hits are of the reads that contracts make; validation asks again, for versions alone. Of the caches an eighth is for \
         metadata. storage_percent, remote_percent and delta_percent are reads that missed the data cache; the delta is what \
         blocks since the savepoint wrote and remote memory had no room for.",
    );
    figure.note(format!(
        "At most {} transactions a second: what is compared here is what answers, not how fast.",
        TRANSACTIONS as u128 * 1_000 / BLOCK_EVERY.as_millis()
    ));
    Ok(figure)
}

fn add(figure: &mut Figure, memory: f64, skew: f64, cache: f64, ours: &Answers, theirs: &Answers) {
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
    async fn load(&self, form: &Form<'_>) -> Result<(), Error> {
        for (number, chunk) in self.keys.chunks(LOAD_WRITES).enumerate() {
            let value = &self.values[number % VALUES];
            let writes: Vec<_> = chunk.iter().map(|key| (key.clone(), value.clone())).collect();
            form.apply(&writes).await?;
        }
        form.persist().await
    }

    /// Reads all records twice in no order: caches with room for them then have them.
    async fn look(&self, form: &Form<'_>) -> Result<(), Error> {
        let snapshot = form.state().snapshot();
        for number in self.popular.iter().chain(&self.popular) {
            let found = snapshot.get(NAMESPACE, &self.keys[*number]).await;
            found.map_err(|error| failed("a read", error))?.ok_or_else(|| failed("a read", "a record is missing"))?;
        }
        Ok(())
    }

    async fn monolithic(
        &self,
        options: &Options,
        cache: f64,
        tables: &Arc<dyn Tables>,
        stop: &Stop,
        tell: Tell<'_>,
    ) -> Result<Vec<Answers>, Error> {
        let sizes = sizes(options, cache, 0.0);
        let mut answers = Vec::new();
        for skew in &options.skews {
            check(stop)?;
            tell(&format!("monolithic: caches of {cache} % of the data, skew {skew}"));
            let state = Monolithic::open(tables.clone(), sizes.monolithic());
            self.look(&Form::Monolithic(&state)).await?;
            answers.push(self.measure(&Form::Monolithic(&state), *skew).await?);
            Form::Monolithic(&state).persist().await?;
        }
        Ok(answers)
    }

    async fn disaggregated(
        &self,
        options: &Options,
        cache: f64,
        memory: f64,
        stop: &Stop,
        tell: Tell<'_>,
    ) -> Result<Vec<Answers>, Error> {
        let sizes = sizes(options, cache, memory);
        let settings = sizes.disaggregated();
        let remote = Remote::with_sections(None, sizes.memory_bytes, SECTION_BYTES, settings).await?;
        self.load(&Form::Disaggregated(&remote)).await?;
        self.look(&Form::Disaggregated(&remote)).await?;
        let mut answers = Vec::new();
        for skew in &options.skews {
            check(stop)?;
            tell(&format!("remote memory of {memory} % of the data, caches of {cache} %, skew {skew}"));
            answers.push(self.measure(&Form::Disaggregated(&remote), *skew).await?);
        }
        Ok(answers)
    }

    async fn measure(&self, form: &Form<'_>, skew: f64) -> Result<Answers, Error> {
        let keys = Zipf::new(self.keys.len() as u64, skew);
        let mut random = Random::new(self.seed ^ skew.to_bits());
        for _ in 0..self.transactions.div_ceil(TRANSACTIONS) {
            self.block(form, &keys, &mut random, &mut Run::default()).await?;
        }
        tokio::time::sleep(SETTLE).await;
        let mut run = Run::default();
        for _ in 0..self.transactions.div_ceil(TRANSACTIONS) {
            self.block(form, &keys, &mut random, &mut run).await?;
        }
        Ok(run.answers(form))
    }

    async fn block(&self, form: &Form<'_>, keys: &Zipf, random: &mut Random, run: &mut Run) -> Result<(), Error> {
        let begin = Instant::now();
        let snapshot = form.state().snapshot();
        let (mut read, mut writes) = (Vec::new(), Vec::new());
        let before = Counts::now();
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
        let before = Counts::now();
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

/// What was counted.
struct Run {
    reads: u64,
    reading: Counts,
    validating: Counts,
}

impl Default for Run {
    fn default() -> Run {
        Run { reads: 0, reading: Counts::ZERO, validating: Counts::ZERO }
    }
}

impl Run {
    fn answers(&self, form: &Form<'_>) -> Answers {
        let share = |count: u64| count as f64 / self.reads.max(1) as f64;
        // A read that began anew because its lease ended counts twice: rare, and never more than all.
        let rest = |count: u64| (1.0 - share(count)).max(0.0);
        let Counts { metadata_misses, data_misses, storage, delta, table_misses } = self.reading;
        match form {
            Form::Disaggregated(_) => {
                let data = rest(metadata_misses + data_misses);
                Answers {
                    metadata: rest(metadata_misses),
                    data,
                    remote: (1.0 - data - share(storage + delta)).max(0.0),
                    storage: share(storage),
                    delta: share(delta),
                    validation: rest(self.validating.metadata_misses),
                }
            }
            Form::Monolithic(_) => {
                let data = rest(table_misses);
                Answers { data, storage: share(table_misses), ..Answers::default() }
            }
        }
    }
}

fn sizes(options: &Options, cache: f64, memory: f64) -> Sizes {
    let of_data = |percent: f64| (options.data_bytes as f64 * percent / 100.0) as u64;
    let cache_bytes = of_data(cache).max(CACHE_BYTES_MIN) as usize;
    Sizes {
        memory_bytes: of_data(memory).max(SECTION_BYTES),
        section_bytes: SECTION_BYTES,
        cache_bytes,
        metadata_bytes: cache_bytes / 8,
        delta_bytes_max: state::Settings::default().delta_bytes_max,
        persist_blocks: Some(PERSIST_BLOCKS),
    }
}
