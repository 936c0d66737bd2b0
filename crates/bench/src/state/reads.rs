//! Measures the cost of reads from the world state: warm, cold and of ranges.

use measurement::interval::median;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{BlockNumber, Bytes, BytesMut, Epoch, Map, Version};
use state::disaggregated::DisaggregatedConfig;
use state::{Snapshot as _, Versioned};
use storage::tables::{FjallConfig, FjallEngine, RangeQuery, RowBatch, Savepoint, TablesEngine as _};

use super::StateConfig;
use super::setup::{NAMESPACE, PooledState, each_ns, failed, keys, provider_name, value};
use super::two_sided::TwoSided;
use measurement::error::Error;
use measurement::figure::Figure;
use measurement::random::Random;

/// Records that warm reads go to.
const WARM_RECORDS: usize = 10_000;
/// Reads of one batch.
const BATCH: usize = 2_000;
/// Batches of each kind of read.
const BATCHES: usize = 41;
/// Batches of those that cost many microseconds each.
const SLOW_BATCHES: usize = 7;
const SLOW_BATCH: usize = 400;
/// Records of one range.
const RANGE: usize = 100;
/// Bytes of two buckets of the index.
const BUCKETS_BYTES: usize = 128;
/// Writes of a block that loads the data set.
const BLOCK_WRITES: usize = 500;

/// The results from which the ratios are computed.
pub struct ReadTimes {
    pub warm_over_hashmap: f64,
    pub cold_us: f64,
    /// The time of a cold read, in verbs that read as many bytes as a record has.
    pub cold_over_verb: f64,
    pub record_overhead_bytes: f64,
}

/// Runs batches of reads of random keys by each of the methods, in turns; returns the median nanoseconds of a read, for each
/// method. A read returns the length of its value, which is checked. Its key exists already, like a key of a proposal or block.
macro_rules! in_turns {
    ($random:expr, $keys:expr, $batches:expr, $batch:expr, $value_bytes:expr, $($read:expr),+ $(,)?) => {{
        let mut times = Vec::new();
        for _ in 0..$batches {
            let chosen = choose(&mut $random, $keys, $batch);
            let round = [$({
                let begin = Instant::now();
                let mut bytes = 0;
                for key in &chosen {
                    bytes += black_box($read(key).await);
                }
                let took = each_ns(begin, chosen.len());
                if bytes != chosen.len() * $value_bytes {
                    return Err(failed("a read", "a record was not found, or has another length"));
                }
                took
            }),+];
            times.push(round);
        }
        std::array::from_fn(|way| median(times.iter().map(|round| round[way])))
    }};
}

/// Some of the keys, drawn at random.
fn choose(random: &mut Random, keys: &[Arc<str>], count: usize) -> Vec<String> {
    (0..count).map(|_| keys[random.below(keys.len() as u64) as usize].to_string()).collect()
}

/// The length of the value that a read found.
fn length(found: Option<Versioned>) -> usize {
    found.map_or(0, |found| found.value.len())
}

pub async fn measure(
    options: &StateConfig,
    latency: Option<Duration>,
    figure: &mut Figure,
) -> Result<ReadTimes, Error> {
    let mut random = Random::new(options.seed);
    let records = (options.data_bytes / options.value_bytes as u64).max(WARM_RECORDS as u64) as usize;
    let keys = keys(records);
    let budget = options.data_bytes + options.data_bytes / 4 + (64 << 20);
    let provider = provider_name(latency);

    // Warm: everything fits into the caches of the compute node.
    let warm = PooledState::start(latency, budget, DisaggregatedConfig::default()).await?;
    let mut map: Map<Box<str>, Versioned> = Map::default();
    for chunk in keys[..WARM_RECORDS].chunks(BLOCK_WRITES) {
        let writes: Vec<_> = chunk.iter().map(|key| (key.clone(), value(&mut random, options.value_bytes))).collect();
        for (key, value) in &writes {
            let value = Bytes::copy_from_slice(value);
            map.insert(key.as_ref().into(), Versioned { value, version: Version::new(1, 0) });
        }
        warm.apply(&writes).await?;
    }
    let view = warm.state.view();
    for key in &keys[..WARM_RECORDS] {
        view.read(NAMESPACE, key).await.map_err(|error| failed("a warm read", error))?;
    }
    let by_map = |key: &str| std::future::ready(length(map.get(key).cloned()));
    let by_state = async |key: &str| length(view.read(NAMESPACE, key).await.ok().flatten());
    let by_trait = async |key: &str| length(view.get(NAMESPACE, key).await.ok().flatten());
    let [map_ns, warm_ns, trait_ns]: [f64; 3] =
        in_turns!(random, &keys[..WARM_RECORDS], BATCHES, BATCH, options.value_bytes, by_map, by_state, by_trait);
    let read_row = |figure: &mut Figure, read: &str, way: &str, ns: f64| {
        figure.row(&[("read", read), ("way", way), ("provider", &provider)], &[("median_ns", ns)]);
    };
    read_row(figure, "warm", "in-process hash map", map_ns);
    read_row(figure, "warm", "state", warm_ns);
    read_row(figure, "warm", "state, through its trait", trait_ns);
    drop(view);
    drop(warm);

    // Cold: almost nothing fits into the caches, so that each read goes to the index and to the record.
    let settings =
        DisaggregatedConfig { metadata_cache_bytes: 64 << 10, data_cache_bytes: 64 << 10, ..Default::default() };
    let cold = PooledState::start(latency, budget, settings).await?;
    let mut two_sided = TwoSided::start(latency, budget).await?;
    let folder = tempfile::tempdir().map_err(|error| failed("a temporary folder", error))?;
    let engine = FjallEngine::open(folder.path(), FjallConfig::default()).await;
    let engine = engine.map_err(|error| failed("the storage engine", error))?;
    let tables = engine.tables("bench").await.map_err(|error| failed("the storage engine", error))?;
    let (mut key_bytes, mut loaded, mut rows) = (0usize, 0usize, Vec::new());
    for (number, chunk) in (0u64..).zip(keys.chunks(BLOCK_WRITES)) {
        let writes: Vec<_> = chunk.iter().map(|key| (key.clone(), value(&mut random, options.value_bytes))).collect();
        let mut batch = RowBatch::new(Savepoint { height: number + 1, epoch: Epoch(0), block_hash: [0; 32] });
        for (transaction, (key, value)) in (0u32..).zip(&writes) {
            let put = batch.put(NAMESPACE, key.as_bytes(), Version::new(number, transaction), Some(value.clone()));
            put.map_err(|error| failed("a row", error))?;
            key_bytes += key.len() + NAMESPACE.len();
            loaded += 1;
        }
        rows.push(batch);
        cold.apply(&writes).await?;
        two_sided.put(&writes).await?;
    }
    // Later, because the engine's threads would delay the memory node's answers beyond what a block waits for.
    for batch in rows {
        tables.write(batch).map_err(|error| failed("rows", error))?;
    }
    tables.persist().await.map_err(|error| failed("rows", error))?;
    let audit = cold.state.audit().await.map_err(|error| failed("the audit", error))?;
    if audit.entries != loaded as u64 {
        let found = format!("{} of {loaded} records are in remote memory", audit.entries);
        return Err(failed("the cold data set", found));
    }
    let own = options.value_bytes as f64 + key_bytes as f64 / loaded as f64;
    let overhead = (audit.index + audit.records) as f64 / audit.entries as f64 - own;
    let view = cold.state.view();
    let before = cold.pool.space.verbs();
    let by_state = async |key: &str| length(view.read(NAMESPACE, key).await.ok().flatten());
    let (batches, batch) = if latency.is_none() { (BATCHES, BATCH) } else { (SLOW_BATCHES, SLOW_BATCH) };
    let [cold_ns]: [f64; 1] = in_turns!(random, &keys, batches, batch, options.value_bytes, by_state);
    let verbs = (cold.pool.space.verbs().total() - before.total()) as f64 / (batches * batch) as f64;
    let [verb_ns, two_verbs_ns] = verbs_alone(options, &cold, &mut random, batches, batch).await?;
    let through = BlockNumber(u64::MAX);
    let by_engine = |key: &str| {
        let row = tables.get(NAMESPACE, key.as_bytes(), through).ok().flatten();
        std::future::ready(row.and_then(|row| row.value).map_or(0, |value| value.len()))
    };
    let [engine_ns]: [f64; 1] = in_turns!(random, &keys, SLOW_BATCHES, SLOW_BATCH, options.value_bytes, by_engine);
    let mut two_sided_times = Vec::new();
    for _ in 0..SLOW_BATCHES {
        let chosen = choose(&mut random, &keys, SLOW_BATCH);
        let begin = Instant::now();
        for key in &chosen {
            if two_sided.get(key).await?.map(|value| value.len()) != Some(options.value_bytes) {
                return Err(failed("the two-sided baseline", "a record was not found"));
            }
        }
        two_sided_times.push(each_ns(begin, chosen.len()));
    }
    read_row(figure, "cold", "state", cold_ns);
    read_row(figure, "cold", "floor: a verb that reads a record", verb_ns);
    read_row(figure, "cold", "floor: verbs that read two buckets and a record", two_verbs_ns);
    read_row(figure, "cold", "look-up asked of the memory node", median(two_sided_times));
    read_row(figure, "cold", "storage engine alone", engine_ns);
    figure.row(
        &[("cold reads", "state"), ("provider", &provider)],
        &[("verbs_each", verbs), ("remote_bytes_each", own + overhead), ("overhead_bytes_each", overhead)],
    );

    // Ranges come from storage, merged with the writes since the savepoint.
    let mut ranges = Vec::new();
    let mut engine_ranges = Vec::new();
    for _ in 0..SLOW_BATCHES {
        let start = random.below((records - RANGE) as u64) as usize;
        let (from, to) = (&keys[start], &keys[start + RANGE]);
        let begin = Instant::now();
        let page = view.range(NAMESPACE, from, to, RANGE).await.map_err(|error| failed("a range", error))?;
        ranges.push(each_ns(begin, page.entries.len()));
        if page.entries.len() != RANGE {
            return Err(failed("a range", format!("{} of {RANGE} entries", page.entries.len())));
        }
        let begin = Instant::now();
        let page = tables.range(RangeQuery {
            namespace: NAMESPACE,
            start: from.as_bytes(),
            end: to.as_bytes(),
            through,
            limit: RANGE,
        });
        let page = page.map_err(|error| failed("a range", error))?;
        engine_ranges.push(each_ns(begin, page.entries.len()));
    }
    read_row(figure, "range, an entry", "state over tables in memory", median(ranges));
    read_row(figure, "range, an entry", "storage engine alone", median(engine_ranges));
    let cold_over_verb = cold_ns / verb_ns;
    Ok(ReadTimes {
        warm_over_hashmap: warm_ns / map_ns,
        cold_us: cold_ns / 1e3,
        cold_over_verb,
        record_overhead_bytes: overhead,
    })
}

/// Medians in nanoseconds, at random addresses of the same memory, of one verb that reads as many bytes as a record has, and of
/// a verb that reads two buckets followed by such a verb. The latter is the floor of a cold read.
async fn verbs_alone(
    options: &StateConfig,
    cold: &PooledState,
    random: &mut Random,
    batches: usize,
    batch: usize,
) -> Result<[f64; 2], Error> {
    let space = &cold.pool.space;
    let sections = space.sections();
    let section_bytes = space.section_bytes();
    let record_bytes = options.value_bytes + 64;
    let mut times = [Vec::new(), Vec::new()];
    let mut buffer = BytesMut::with_capacity(record_bytes);
    for _ in 0..batches {
        for (way, lengths) in [&[record_bytes][..], &[BUCKETS_BYTES, record_bytes]].into_iter().enumerate() {
            let places: Vec<u64> = (0..batch * lengths.len())
                .map(|at| {
                    let section = &sections[random.below(sections.len() as u64) as usize];
                    let room = section_bytes - lengths[at % lengths.len()] as u64;
                    section.address + random.below(room / 16) * 16
                })
                .collect();
            let begin = Instant::now();
            for (address, length) in places.iter().zip(lengths.iter().cycle()) {
                buffer.clear();
                let read = space.read(*address, *length, buffer);
                buffer = read.await.map_err(|error| failed("a verb", error))?;
            }
            times[way].push(each_ns(begin, batch));
        }
    }
    Ok(times.map(median))
}
