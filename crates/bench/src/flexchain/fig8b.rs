//! Figure 8 (b): throughput while the memory node's processor is limited.
//!
//! Two memory nodes run in separate processes. One is our passive memory node. The other is two-sided: as in the paper,
//! the compute node asks it for addresses and buffers. A compute node in this process runs YCSB-A and YCSB-B with
//! values of 10 KB against each, in blocks of [`TRANSACTIONS`] transactions. Every transaction reads a record; 50 % (A)
//! or 5 % (B) also write it.
//!
//! Remote memory holds all data, so storage, which keeps its blocks in the memory of this process, is normally not
//! read. It is read only if the memory node has not granted a section in time; a note of the figure reports these
//! reads.
//!
//! A round goes through both memory nodes, both mixes and all limits of the processor. The rate under a limit is
//! compared with the unlimited rate of the same round.

use measurement::interval::median;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::Bytes;
use base::rt::CancellationToken;
use pool::Donor;
use state::disaggregated::DisaggregatedConfig;
use state::{Disaggregated, WorldState as _};
use storage::MemoryStateStore;

use super::limiter::{LimiterKind, PERCENT_MIN};
use super::memory_process::{MemoryNodeMode, MemoryProcess};
use super::{VALUE_BYTES, check};
use crate::state::PERSIST_BLOCKS;
use crate::state::setup::{self, NAMESPACE, block, failed, keys, stored, value};
use crate::state::two_sided::TwoSided;
use measurement::error::Error;
use measurement::figure::{CurvePlot, Figure, RatioBound};
use measurement::progress::{MeasurementFuture, ReportProgress};
use measurement::random::Random;

/// Transactions of a block.
const TRANSACTIONS: usize = 500;
/// Contracts that read at once: their requests to a two-sided memory node travel in one message.
const CONTRACTS_AT_ONCE: usize = 16;
/// Values that writes choose from.
const VALUES: usize = 64;
/// Remote memory beside the data: for our form the index and versions that wait to be reclaimed.
const MEMORY_BESIDE_BYTES: u64 = 512 << 20;
/// One key in this many has its address cached, and one byte of the data in this many is cached: 500 MB of 4 GB in the paper.
const CACHE_DIVISOR: u64 = 8;
/// The approximate charge of the metadata cache for a key.
const METADATA_ENTRY_BYTES: u64 = 128;
/// The least cache.
const CACHE_BYTES_MIN: u64 = 64 << 10;
/// Stands for no limit along the axis.
const UNLIMITED_PERCENT: f64 = 200.0;
const MIXES: [(&str, u64); 2] = [("ycsb-a", 50), ("ycsb-b", 5)];

/// How to measure.
#[derive(Clone, Debug)]
pub struct Fig8bConfig {
    /// This program, and the arguments that make it a memory node, before those of [`super::memory_process`].
    pub program: PathBuf,
    /// The arguments that make the program a memory node.
    pub arguments: Vec<&'static str>,
    /// How the memory node's processor is limited.
    pub limit: LimiterKind,
    /// Bytes of values.
    pub data_bytes: u64,
    /// Percentages of one core.
    pub percents: Vec<u32>,
    /// Rounds; the median of their ratios counts.
    pub rounds: usize,
    /// How long each run takes.
    pub window: Duration,
    /// Fixes the choice of keys.
    pub seed: u64,
}

impl Fig8bConfig {
    /// The defaults, with a program that can be a memory node.
    pub fn new(program: PathBuf, arguments: Vec<&'static str>) -> Fig8bConfig {
        Fig8bConfig {
            program,
            arguments,
            limit: LimiterKind::Any,
            data_bytes: 64 << 20,
            percents: vec![PERCENT_MIN, 25, 50, 100],
            rounds: 15,
            window: Duration::from_millis(250),
            seed: 1,
        }
    }
}

/// A compute node and its memory node.
struct MeasuredSystem {
    name: &'static str,
    /// A description of the memory node's limiter.
    limiter: &'static str,
    compute: ComputeUnderTest,
    memory: MemoryProcess,
}

enum ComputeUnderTest {
    Ours { state: Box<Disaggregated>, store: MemoryStateStore },
    TwoSided(Box<TwoSided>),
}

/// Rates and processor times of one side under one mix and one limit, one for each round.
#[derive(Default, Clone)]
struct Rates {
    tps: Vec<f64>,
    /// Processor time of the memory node, and elapsed time, over all rounds: the kernel reports the former in coarse ticks.
    busy_us: u64,
    took: Duration,
}

struct Data {
    keys: Vec<Arc<str>>,
    values: Vec<Bytes>,
    random: Random,
}

/// Measures. `tell` gets a description of each next step.
///
/// # Errors
/// A part cannot be set up, or `stop` was stopped.
pub fn run<'a>(
    options: &'a Fig8bConfig,
    stop: &'a CancellationToken,
    tell: ReportProgress<'a>,
) -> MeasurementFuture<'a> {
    Box::pin(run_all(options, stop, tell))
}

async fn run_all(options: &Fig8bConfig, stop: &CancellationToken, tell: ReportProgress<'_>) -> Result<Figure, Error> {
    let mut figure = Figure::new("flexchain-fig8b", "FlexChain, figure 8 (b): the memory node's processor");
    let mut random = Random::new(options.seed);
    let records = (options.data_bytes / VALUE_BYTES as u64).max(2) as usize;
    let values = (0..VALUES).map(|_| value(&mut random, VALUE_BYTES)).collect();
    let mut data = Data { keys: keys(records), values, random };
    tell("starting memory nodes, and loading");
    let mut sides = [ours(options).await?, two_sided(options).await?];
    for side in &mut sides {
        data.load(&mut side.compute).await?;
    }
    figure.setting("data_bytes", options.data_bytes);
    figure.setting("value_bytes", VALUE_BYTES);
    figure.setting("rounds", options.rounds);
    figure.setting("seconds", options.window.as_secs_f64());
    figure.setting("seed", options.seed);
    figure.setting("limiter", sides[0].limiter);

    // The unlimited run comes first: limited ones are compared with it.
    let percents: Vec<Option<u32>> = std::iter::once(None).chain(options.percents.iter().copied().map(Some)).collect();
    let mut rates = vec![vec![Rates::default(); percents.len()]; sides.len() * MIXES.len()];
    for round in 0..=options.rounds {
        let mut groups = rates.iter_mut();
        for side in &mut sides {
            for ((mix, updates_percent), group) in MIXES.into_iter().zip(&mut groups) {
                // The first limit changes.
                for share in (0..percents.len()).map(|at| (at + round) % percents.len()) {
                    check(stop)?;
                    let limit =
                        percents[share].map_or_else(|| "without limit".to_owned(), |share| format!("{share} %"));
                    let part = if round == 0 { "warming up".to_owned() } else { format!("round {round}") };
                    tell(&format!("{part} of {}: {}, {mix}, {limit}", options.rounds, side.name));
                    side.memory.limit(percents[share])?;
                    let measured = data.measure(side, updates_percent, options.window, &mut group[share]).await;
                    side.memory.limit(None)?;
                    measured?;
                    if round == 0 {
                        group[share] = Rates::default();
                    }
                }
            }
        }
    }
    let names =
        [("throttled_over_unlimited", Some(RatioBound::AtLeast(0.95))), ("two_sided_throttled_over_unlimited", None)];
    let mut groups = rates.iter();
    for (side, (name, bound)) in sides.iter().zip(names) {
        let mut least = f64::INFINITY;
        for (mix, _) in MIXES {
            let cells = groups.next().expect("one for each");
            let over: Vec<f64> = cells.iter().map(|cell| over_unlimited(cell, &cells[0])).collect();
            let rows = percents.iter().zip(cells).zip(&over);
            for ((share, cell), over) in rows.clone().skip(1).chain(rows.take(1)) {
                let limit = share.map_or_else(|| "no limit".to_owned(), |share| format!("{share} %"));
                let numbers = [
                    ("processor_percent", share.map_or(UNLIMITED_PERCENT, f64::from)),
                    ("median_tps", median(cell.tps.clone())),
                    ("over_unlimited", *over),
                    ("memory_node_busy_percent", cell.busy_us as f64 / 1e4 / cell.took.as_secs_f64()),
                ];
                figure.row(&[("memory node", side.name), ("load", mix), ("limit", &limit)], &numbers);
            }
            // The hardest limit is the figure's; the others are in the rows.
            let hardest = percents.iter().zip(&over).filter_map(|(share, over)| Some((((*share)?), *over)));
            least = least.min(hardest.min_by_key(|(share, _)| *share).map_or(f64::INFINITY, |(_, over)| over));
        }
        figure.ratio(name, least, bound);
    }
    figure.curves(CurvePlot { x: "processor_percent", x_log: true, y: "over_unlimited" });
    figure.note(format!(
        "The ratios are of {} % of a core, the lesser of both mixes. Along the axis {UNLIMITED_PERCENT} % is no limit.",
        options.percents.iter().min().unwrap_or(&PERCENT_MIN)
    ));
    if let ComputeUnderTest::Ours { store, .. } = &sides[0].compute
        && store.reads() > 0
    {
        figure.note(format!(
            "{} reads went to storage: the memory node had not granted a section in time.",
            store.reads()
        ));
    }
    figure.note(format!("Limited by {}; its period is {} ms.", sides[0].limiter, super::limiter::PERIOD.as_millis()));
    figure.note(format!(
        "The two-sided memory node answers from one thread; {CONTRACTS_AT_ONCE} reads are one message, all writes of a block \
         two. Both compute nodes cache an eighth of the addresses, and ours also an eighth of the records."
    ));
    Ok(figure)
}

/// Median over the rounds of the rate over that without limit.
fn over_unlimited(cell: &Rates, unlimited: &Rates) -> f64 {
    median(cell.tps.iter().zip(&unlimited.tps).map(|(limited, unlimited)| limited / unlimited))
}

fn start(options: &Fig8bConfig, form: MemoryNodeMode, bytes: u64) -> Result<(MemoryProcess, &'static str), Error> {
    let section_bytes = pool::SECTION_BYTES_DEFAULT;
    let bytes = bytes.next_multiple_of(section_bytes);
    let mut memory = MemoryProcess::start(&options.program, &options.arguments, form, bytes, section_bytes)?;
    let limiter = memory.limit_by(options.limit)?.name();
    Ok((memory, limiter))
}

async fn ours(options: &Fig8bConfig) -> Result<MeasuredSystem, Error> {
    let section_bytes = pool::SECTION_BYTES_DEFAULT;
    let bytes = (options.data_bytes * 5 / 4 + MEMORY_BESIDE_BYTES).next_multiple_of(section_bytes);
    let (memory, limiter) = start(options, MemoryNodeMode::Passive, bytes)?;
    let donor = Donor { address: memory.address.clone(), token: memory.token.clone() };
    let space = setup::space(None, donor, bytes, section_bytes).await?;
    let records = options.data_bytes / VALUE_BYTES as u64;
    let settings = DisaggregatedConfig {
        metadata_cache_bytes: (records / CACHE_DIVISOR * METADATA_ENTRY_BYTES).max(CACHE_BYTES_MIN) as usize,
        data_cache_bytes: (options.data_bytes / CACHE_DIVISOR).max(CACHE_BYTES_MIN) as usize,
        ..DisaggregatedConfig::default()
    };
    let store = MemoryStateStore::new();
    let state = Disaggregated::open(Arc::new(space), Arc::new(store.clone()), settings).await;
    let compute = ComputeUnderTest::Ours { state: Box::new(state.map_err(|error| failed("the state", error))?), store };
    Ok(MeasuredSystem { name: "passive", limiter, compute, memory })
}

async fn two_sided(options: &Fig8bConfig) -> Result<MeasuredSystem, Error> {
    let (memory, limiter) = start(options, MemoryNodeMode::TwoSided, options.data_bytes * 5 / 4 + MEMORY_BESIDE_BYTES)?;
    let known_max = (options.data_bytes / VALUE_BYTES as u64 / CACHE_DIVISOR).max(1) as usize;
    let two_sided = TwoSided::connect(None, &memory.address, memory.token.clone(), known_max).await?;
    Ok(MeasuredSystem { name: "two-sided", limiter, compute: ComputeUnderTest::TwoSided(Box::new(two_sided)), memory })
}

impl ComputeUnderTest {
    async fn read(&mut self, keys: &[Arc<str>]) -> Result<(), Error> {
        let lacking = || failed("a read", "a record is missing, or has another length");
        match self {
            ComputeUnderTest::Ours { state, .. } => {
                let view = state.view();
                for key in keys {
                    let found = view.read(NAMESPACE, key).await.map_err(|error| failed("a read", error))?;
                    found.filter(|found| found.value.len() == VALUE_BYTES).ok_or_else(lacking)?;
                }
            }
            ComputeUnderTest::TwoSided(two_sided) => {
                for keys in keys.chunks(CONTRACTS_AT_ONCE) {
                    let keys: Vec<&str> = keys.iter().map(AsRef::as_ref).collect();
                    let found = two_sided.get_many(&keys).await?;
                    if found.iter().any(|found| found.as_ref().is_none_or(|value| value.len() != VALUE_BYTES)) {
                        return Err(lacking());
                    }
                }
            }
        }
        Ok(())
    }

    async fn write(&mut self, writes: &[(Arc<str>, Bytes)]) -> Result<(), Error> {
        match self {
            ComputeUnderTest::Ours { state, store } => {
                let number = state.height();
                if number.is_multiple_of(PERSIST_BLOCKS) || state.wants_persist() {
                    state.persist().await.map_err(|error| failed("a savepoint", error))?;
                }
                let (batch, rows) = block(number, writes);
                store.add_block(stored(rows));
                state.apply(number, batch).await.map_err(|error| failed("a block", error))
            }
            ComputeUnderTest::TwoSided(two_sided) => two_sided.put(writes).await,
        }
    }
}

impl Data {
    fn write(&mut self, key: Arc<str>) -> (Arc<str>, Bytes) {
        (key, self.values[self.random.below(VALUES as u64) as usize].clone())
    }

    async fn load(&mut self, compute: &mut ComputeUnderTest) -> Result<(), Error> {
        for chunk in self.keys.clone().chunks(TRANSACTIONS) {
            let writes: Vec<_> = chunk.iter().map(|key| self.write(key.clone())).collect();
            compute.write(&writes).await?;
        }
        Ok(())
    }

    async fn measure(
        &mut self,
        side: &mut MeasuredSystem,
        updates_percent: u64,
        window: Duration,
        rates: &mut Rates,
    ) -> Result<(), Error> {
        let before = side.memory.cpu_us()?;
        let begin = Instant::now();
        let mut transactions = 0;
        while begin.elapsed() < window {
            let (mut reads, mut writes) = (Vec::with_capacity(TRANSACTIONS), Vec::new());
            for _ in 0..TRANSACTIONS {
                let key = self.keys[self.random.below(self.keys.len() as u64) as usize].clone();
                if self.random.percent(updates_percent) {
                    writes.push(self.write(key.clone()));
                }
                reads.push(key);
            }
            side.compute.read(&reads).await?;
            side.compute.write(&writes).await?;
            transactions += TRANSACTIONS;
        }
        let took = begin.elapsed();
        rates.tps.push(transactions as f64 / took.as_secs_f64());
        rates.busy_us += side.memory.cpu_us()?.saturating_sub(before);
        rates.took += took;
        Ok(())
    }
}
