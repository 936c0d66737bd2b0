//! Figures of Sift (Kazhamiaka et al., CoNEXT 2019), section 6, each compared with Raft in the same run.
//!
//! 1. In every round a store of each [kind](systems::SystemKind) is started, filled, and measured under each
//!    [load](load::MIXES), one store after the other. Successive rounds begin with different kinds. The reported values are
//!    medians over the rounds.
//! 2. Figure 5 shows throughput, and processor time per operation. Figure 6 shows latency, with one client and at nine tenths
//!    of the throughput that was just measured.
//!
//! Keys follow Zipf's law with exponent 0.99. No system writes to disk. Clients are tasks of the process that runs the stores,
//! so no system pays for a network between clients and stores. Passive memory nodes use no core; the nodes of Raft share the
//! cores.
//!
//! The other figures have separate modules. Those that limit or kill processes start them with [`child_processes`]: [`fig7`]
//! (throughput by the percentage of a core), [`fig11`] (a memory node fails), [`fig12`] (a coordinator fails). [`fig8`]
//! simulates a pool of backups. [`costs`] computes table 2 and figures 9 and 10 from figure 7 and from prices.

pub mod child_processes;
pub mod costs;
pub mod fig11;
pub mod fig12;
pub mod fig7;
pub mod fig8;
pub mod load;
pub mod systems;
mod timeline;

use base::rt::CancellationToken;

use load::{KvLoad, LoadOutcome, MIXES, OperationMix};
use measurement::error::Error;
use measurement::figure::{Figure, RatioBound};
use measurement::interval::median;
use measurement::progress::{MeasurementFuture, ReportProgress};
use measurement::zipf::Zipf;
use systems::{KvGeometry, KvSystem, SystemKind};

/// Skew of the keys.
pub const THETA: f64 = 0.99;
/// The least write throughput of Sift, over Raft's.
const WRITE_OVER_RAFT_MIN: f64 = 2.0;
const READ_OVER_RAFT_MIN: f64 = 1.0;
const ERASURE_CODED_WRITE_OVER_PLAIN_MIN: f64 = 0.75;
/// The load for the latency under load, as a fraction of the throughput.
const LOADED: f64 = 0.9;

/// How it is measured.
#[derive(Clone, Debug)]
pub struct SiftConfig {
    /// Keys.
    pub keys: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Clients.
    pub clients: u64,
    /// Repetitions of all measurements; the median counts.
    pub rounds: usize,
    /// How long each load lasts.
    pub seconds: f64,
    /// Fixes which keys are chosen.
    pub seed: u64,
}

/// The load of figures 7, 11 and 12.
const READ_HEAVY: OperationMix = MIXES[2];

/// Bytes of a cache for this many of a hundred pairs.
fn cache_bytes(keys: u64, value_bytes: usize, percent: u64) -> usize {
    // A pair's key, and the overhead of the cache for the pair.
    const BESIDE_VALUE: u64 = 176;
    usize::try_from((value_bytes as u64 + BESIDE_VALUE) * keys * percent / 100).unwrap_or(usize::MAX)
}

/// All outcomes of one kind of store under one load.
struct SystemOutcomes {
    kind: SystemKind,
    mix: OperationMix,
    outcomes: Vec<LoadOutcome>,
}

impl SystemOutcomes {
    fn median(&self, number: impl Fn(&LoadOutcome) -> f64) -> f64 {
        median(self.outcomes.iter().map(number))
    }
}

fn cells(mixes: &[OperationMix]) -> Vec<SystemOutcomes> {
    let pairs = SystemKind::ALL.into_iter().flat_map(|kind| mixes.iter().map(move |mix| (kind, *mix)));
    pairs.map(|(kind, mix)| SystemOutcomes { kind, mix, outcomes: Vec::new() }).collect()
}

fn base_load(options: &SiftConfig) -> KvLoad {
    KvLoad {
        clients: options.clients,
        value_bytes: options.value_bytes,
        zipf: Zipf::new(options.keys, THETA),
        keys: options.keys,
        pace: None,
        seed: options.seed,
    }
}

fn settings(figure: &mut Figure, options: &SiftConfig) {
    figure.setting("keys", options.keys);
    figure.setting("value_bytes", options.value_bytes as u64);
    figure.setting("clients", options.clients);
    figure.setting("rounds", options.rounds as u64);
    figure.setting("seconds", options.seconds);
    figure.setting("theta", THETA);
    figure.setting("durability", "none on either side");
    figure
        .note("F = 1, over shm within one process; clients are tasks of the same process and count as processor time");
}

/// The ratio of two kinds under a load, as the median over rounds.
fn ratio(
    cells: &[SystemOutcomes],
    of: SystemKind,
    over: SystemKind,
    mix: &str,
    number: impl Fn(&LoadOutcome) -> f64,
) -> f64 {
    let find = |kind| cells.iter().find(|cell| cell.kind == kind && cell.mix.name == mix);
    let (Some(of), Some(over)) = (find(of), find(over)) else { return 0.0 };
    let pairs = of.outcomes.iter().zip(&over.outcomes);
    median(pairs.map(|(of, over)| number(of) / number(over).max(f64::MIN_POSITIVE)))
}

/// The systems in the order of a round: each round starts with another one.
fn in_turn(round: usize) -> impl Iterator<Item = SystemKind> {
    let mut kinds = SystemKind::ALL;
    kinds.rotate_left(round % SystemKind::ALL.len());
    kinds.into_iter()
}

/// Starts a system and puts all keys.
async fn start_filled(
    options: &SiftConfig,
    kind: SystemKind,
    load: &KvLoad,
    stop: &CancellationToken,
) -> Result<KvSystem, Error> {
    let system = KvSystem::start(&KvGeometry::new(kind, 1, options.keys, options.value_bytes)).await?;
    let filled = system.clone();
    load::fill(move || Some(filled.clone()), load, stop).await?;
    Ok(system)
}

/// Figure 5: throughput of four loads.
///
/// # Errors
/// A store cannot be started or fails, or the run was stopped.
pub fn fig5<'a>(
    options: &'a SiftConfig,
    stop: &'a CancellationToken,
    tell: ReportProgress<'a>,
) -> MeasurementFuture<'a> {
    Box::pin(run_fig5(options, stop, tell))
}

async fn run_fig5(options: &SiftConfig, stop: &CancellationToken, tell: ReportProgress<'_>) -> Result<Figure, Error> {
    let mut cells = cells(&MIXES);
    let load = base_load(options);
    for round in 0..options.rounds {
        for kind in in_turn(round) {
            tell(&format!("round {} of {}: {}", round + 1, options.rounds, kind.name()));
            let system = start_filled(options, kind, &load, stop).await?;
            for cell in cells.iter_mut().filter(|cell| cell.kind == kind) {
                cell.outcomes.push(load::run(&system, &load, cell.mix, options.seconds, stop).await?);
            }
        }
    }
    let mut figure = Figure::new("sift-fig5", "Sift, figure 5: throughput of a key-value store, F = 1, volatile");
    settings(&mut figure, options);
    for cell in &cells {
        let numbers = [
            ("ops_per_second", cell.median(|outcome| outcome.rate)),
            ("cpu_us_per_op", cell.median(|outcome| outcome.cpu_us)),
            ("p50_us", cell.median(|outcome| outcome.quantile_us(500))),
            ("p99_us", cell.median(|outcome| outcome.quantile_us(990))),
            ("retries", cell.outcomes.iter().map(|outcome| outcome.failed as f64).sum()),
        ];
        figure.row(&[("system", cell.kind.name()), ("load", cell.mix.name)], &numbers);
    }
    let rate = |outcome: &LoadOutcome| outcome.rate;
    let writes = ratio(&cells, SystemKind::Sift, SystemKind::Raft, "write-only", rate);
    figure.ratio("write_over_raft", writes, Some(RatioBound::AtLeast(WRITE_OVER_RAFT_MIN)));
    let reads = ratio(&cells, SystemKind::Sift, SystemKind::Raft, "read-only", rate);
    figure.ratio("read_over_raft", reads, Some(RatioBound::AtLeast(READ_OVER_RAFT_MIN)));
    let erasure_coded = ratio(&cells, SystemKind::SiftErasureCoded, SystemKind::Sift, "write-only", rate);
    figure.ratio(
        "coded_write_over_plain",
        erasure_coded,
        Some(RatioBound::AtLeast(ERASURE_CODED_WRITE_OVER_PLAIN_MIN)),
    );
    figure.ratio("mixed_over_raft", ratio(&cells, SystemKind::Sift, SystemKind::Raft, "mixed", rate), None);
    figure.ratio("read_heavy_over_raft", ratio(&cells, SystemKind::Sift, SystemKind::Raft, "read-heavy", rate), None);
    let erasure_coded = ratio(&cells, SystemKind::SiftErasureCoded, SystemKind::Raft, "write-only", rate);
    figure.ratio("coded_write_over_raft", erasure_coded, None);
    let cpu = ratio(&cells, SystemKind::Sift, SystemKind::Raft, "write-only", |outcome| outcome.cpu_us);
    figure.ratio("write_cpu_over_raft", cpu, None);
    Ok(figure)
}

/// Figure 6: latency of writes and reads, of one client and under load.
///
/// # Errors
/// As [`fig5`].
pub fn fig6<'a>(
    options: &'a SiftConfig,
    stop: &'a CancellationToken,
    tell: ReportProgress<'a>,
) -> MeasurementFuture<'a> {
    Box::pin(run_fig6(options, stop, tell))
}

async fn run_fig6(options: &SiftConfig, stop: &CancellationToken, tell: ReportProgress<'_>) -> Result<Figure, Error> {
    let mixes = [MIXES[0], MIXES[3]];
    let (mut alone, mut loaded) = (cells(&mixes), cells(&mixes));
    let load = base_load(options);
    for round in 0..options.rounds {
        for kind in in_turn(round) {
            tell(&format!("round {} of {}: {}", round + 1, options.rounds, kind.name()));
            let system = start_filled(options, kind, &load, stop).await?;
            for (one, many) in alone.iter_mut().zip(&mut loaded).filter(|(cell, _)| cell.kind == kind) {
                let single = KvLoad { clients: 1, ..load.clone() };
                one.outcomes.push(load::run(&system, &single, one.mix, options.seconds, stop).await?);
                let most = load::run(&system, &load, many.mix, options.seconds, stop).await?;
                let paced = KvLoad { pace: Some(most.rate * LOADED), ..load.clone() };
                many.outcomes.push(load::run(&system, &paced, many.mix, options.seconds, stop).await?);
            }
        }
    }
    let mut figure = Figure::new("sift-fig6", "Sift, figure 6: latency of a key-value store, F = 1, volatile");
    settings(&mut figure, options);
    figure.note(
        "under load: at nine tenths of the throughput that was measured just before, one operation a client at a time",
    );
    for (what, cells) in [("one client", &alone), ("90 % load", &loaded)] {
        for cell in cells {
            let numbers = [
                ("p50_us", cell.median(|outcome| outcome.quantile_us(500))),
                ("p99_us", cell.median(|outcome| outcome.quantile_us(990))),
                ("ops_per_second", cell.median(|outcome| outcome.rate)),
                ("cpu_us_per_op", cell.median(|outcome| outcome.cpu_us)),
            ];
            let labels = [("system", cell.kind.name()), ("load", cell.mix.name), ("at", what)];
            figure.row(&labels, &numbers);
        }
    }
    let half = |outcome: &LoadOutcome| outcome.quantile_us(500);
    figure.ratio("write_p50_over_raft", ratio(&alone, SystemKind::Sift, SystemKind::Raft, "write-only", half), None);
    figure.ratio("read_p50_over_raft", ratio(&alone, SystemKind::Sift, SystemKind::Raft, "read-only", half), None);
    Ok(figure)
}
