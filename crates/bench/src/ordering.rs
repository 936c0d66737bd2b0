//! Compares ordering engines with F = 1, in the same run and on the same disk: on passive memory nodes, on Raft, and
//! solo.
//!
//! 1. In every round a group of each [kind](engines::EngineKind) is started, one after the other. During a run, one
//!    task appends blocks as fast as the engine takes them. Successive rounds begin with different kinds. The reported
//!    values are medians over the rounds.
//! 2. A block is opaque bytes: cutting, hashing and signing blocks do not depend on the engine and are not measured
//!    here. The log store of each orderer is a block store, as in production.
//! 3. Before a run every log is filled twice, because the first use of memory costs more. Throughput counts the blocks
//!    committed at the leader. A run ends when its last block is committed at every orderer.
//!
//! *Processor time* is the kernel's count for this whole process, from an idle moment to the end of the run. It
//! includes all orderers of the group, with the threads of their disks; passive memory nodes have no thread. It also
//! includes the task that appends blocks and records times. The cost of this task is measured without an engine, shown
//! in a separate row, and subtracted. Processor time does not include the kernel's own threads, which write unsynced
//! bytes to the disk.
//!
//! *Equal durability*: with every engine a block counts as committed once a majority has it on disk, by pipelined group
//! fsyncs. Sift syncs the log stores. Raft syncs its logs, and writes its log stores without a sync. If a log store
//! loses blocks in a crash, its orderer reads them from the log again.

pub mod engines;
mod log_store;

use std::time::{Duration, Instant};

use base::rt::CancellationToken;
use base::{Bytes, rt};
use rustix::time::{ClockId, clock_gettime};

use engines::{EngineKind, NoOpLog, OrderingSystem};
use measurement::error::Error;
use measurement::figure::{Figure, RatioBound};
use measurement::interval::median;
use measurement::progress::{MeasurementFuture, ReportProgress};
use measurement::random::Random;

/// The most processor time of Sift, over Raft's.
const CPU_OVER_RAFT_MAX: f64 = 0.5;
/// Different blocks that are appended in turn.
const BLOCKS: usize = 16;
/// Blocks after which the appending task yields.
const TURN: u64 = 4;
/// Blocks that are appended without an engine.
const GENERATED: u64 = 20_000;
/// Blocks that are ordered before a quick run.
const WARM_QUICK: u64 = 20;
/// The most starts of a group whose leader changes during a run: on busy machines heartbeats are late.
const ATTEMPTS_MAX: usize = 3;
/// How long a group may take to complete its work, and to elect a leader.
const LEADER_TIMEOUT: Duration = Duration::from_secs(60);

/// How it is measured.
#[derive(Clone, Debug)]
pub struct OrderingConfig {
    /// Transactions of a block.
    pub transactions: u64,
    /// Bytes of a transaction.
    pub transaction_bytes: usize,
    /// Repetitions of all measurements; the median counts.
    pub rounds: usize,
    /// How long each run lasts.
    pub seconds: f64,
    /// A quick run: little is ordered before it.
    pub is_quick: bool,
    /// Holds the log stores during the measurement; without it, the system's temporary folder does.
    pub folder: Option<std::path::PathBuf>,
    /// Fixes the bytes.
    pub seed: u64,
}

/// The result of one run.
#[derive(Clone, Debug, Default)]
struct OrderingOutcome {
    /// Blocks a second.
    rate: f64,
    /// Processor time of a block, including the appending task, in microseconds.
    cpu_us: f64,
    /// From the call to the commit of a block, in microseconds, ascending.
    latencies_us: Vec<f64>,
}

impl OrderingOutcome {
    fn quantile_us(&self, thousandths: usize) -> f64 {
        let at = self.latencies_us.len().saturating_sub(1) * thousandths / 1000;
        self.latencies_us.get(at).copied().unwrap_or_default()
    }
}

/// Processor time of this process since it started, in microseconds.
fn process_cpu_us() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

fn blocks(options: &OrderingConfig) -> Vec<Bytes> {
    let mut random = Random::new(options.seed);
    let bytes = options.transactions as usize * options.transaction_bytes;
    let mut block =
        |_| (0..bytes.div_ceil(8)).flat_map(|_| random.draw().to_le_bytes()).take(bytes).collect::<Vec<u8>>();
    (0..BLOCKS).map(&mut block).map(Bytes::from).collect()
}

/// Appends blocks until `until` is reached, and waits until all of them are committed at all orderers.
async fn append(
    system: &OrderingSystem,
    blocks: &[Bytes],
    until: RunUntil,
    stop: &CancellationToken,
) -> Result<OrderingOutcome, Error> {
    let (leader, term, mut position) = system.wait_for_leader(LEADER_TIMEOUT).await?;
    let log = &system.logs[leader];
    let first = position;
    let begun = std::sync::Arc::new(std::sync::Mutex::new(Vec::<Instant>::new()));
    let (noted, mut committed) = (begun.clone(), log.deliverable());
    let (done, mut is_done) = rt::channel::watch(None::<u64>);
    let noting = rt::spawn(async move {
        let (mut latencies, mut next) = (Vec::new(), first);
        loop {
            let height = *committed.borrow_and_update();
            let now = Instant::now();
            {
                let begun = noted.lock().expect("no holder panics");
                while next < height {
                    latencies
                        .extend(begun.get((next - first) as usize).map(|begun| (now - *begun).as_secs_f64() * 1e6));
                    next += 1;
                }
            }
            if is_done.borrow().is_some_and(|last| next >= last) {
                return latencies;
            }
            let (more, end) = (std::pin::pin!(committed.changed()), std::pin::pin!(is_done.changed()));
            futures_util::future::select(more, end).await;
        }
    });
    let (start, before) = (Instant::now(), process_cpu_us());
    while !until.is_over(position - first, start) {
        if stop.is_cancelled() {
            return Err(Error::Interrupted);
        }
        begun.lock().expect("no holder panics").push(Instant::now());
        let block = blocks[position as usize % blocks.len()].clone();
        log.append(term, position, block).await.map_err(engines::failed("appending a block"))?;
        position += 1;
        if position.is_multiple_of(TURN) {
            rt::yield_now().await;
        }
    }
    let mut elapsed = Duration::ZERO;
    for (which, log) in std::iter::once((leader, log)).chain(system.logs.iter().enumerate()) {
        let mut safe = log.deliverable();
        let all = safe.wait_for(|safe| *safe >= position);
        if !matches!(rt::timeout(LEADER_TIMEOUT, all).await, Ok(Ok(_))) {
            let reason = format!("orderer {} does not have all blocks after {LEADER_TIMEOUT:?}", which + 1);
            return Err(Error::Part { what: "ordering", reason });
        }
        if elapsed.is_zero() {
            elapsed = start.elapsed();
        }
    }
    let cpu_us = process_cpu_us() - before;
    done.send(Some(position));
    let mut latencies_us = noting.await.map_err(|_| Error::Interrupted)?;
    latencies_us.sort_unstable_by(f64::total_cmp);
    let count = (position - first).max(1) as f64;
    Ok(OrderingOutcome { rate: count / elapsed.as_secs_f64(), cpu_us: cpu_us / count, latencies_us })
}

/// The end of a run.
#[derive(Clone, Copy)]
enum RunUntil {
    Time(Duration),
    Count(u64),
}

impl RunUntil {
    fn is_over(self, count: u64, start: Instant) -> bool {
        match self {
            RunUntil::Time(time) => start.elapsed() >= time,
            RunUntil::Count(most) => count >= most,
        }
    }
}

/// One run of one kind.
async fn measure(
    kind: EngineKind,
    options: &OrderingConfig,
    blocks: &[Bytes],
    stop: &CancellationToken,
) -> Result<OrderingOutcome, Error> {
    let system = OrderingSystem::start(kind, options.folder.as_deref()).await?;
    let warm = match options.is_quick {
        true => WARM_QUICK,
        false => 2 * engines::LOG_BYTES / (blocks[0].len() as u64).max(1),
    };
    append(&system, blocks, RunUntil::Count(warm), stop).await?;
    let outcome = append(&system, blocks, RunUntil::Time(Duration::from_secs_f64(options.seconds)), stop).await?;
    system.stop().await;
    Ok(outcome)
}

/// The figure.
///
/// # Errors
/// A group cannot be started or fails, or the run was stopped.
pub fn run<'a>(
    options: &'a OrderingConfig,
    stop: &'a CancellationToken,
    tell: ReportProgress<'a>,
) -> MeasurementFuture<'a> {
    Box::pin(run_all(options, stop, tell))
}

async fn run_all(
    options: &OrderingConfig,
    stop: &CancellationToken,
    tell: ReportProgress<'_>,
) -> Result<Figure, Error> {
    let blocks = blocks(options);
    let mut outcomes: Vec<(EngineKind, Vec<OrderingOutcome>)> =
        EngineKind::ALL.into_iter().map(|kind| (kind, Vec::new())).collect();
    let mut generated = Vec::new();
    for round in 0..options.rounds {
        tell(&format!("round {} of {}: no engine", round + 1, options.rounds));
        let nothing = OrderingSystem::of(NoOpLog::leading());
        generated.push(append(&nothing, &blocks, RunUntil::Count(GENERATED), stop).await?);
        let mut kinds = EngineKind::ALL;
        kinds.rotate_left(round % EngineKind::ALL.len());
        for kind in kinds {
            tell(&format!("round {} of {}: {}", round + 1, options.rounds, kind.name()));
            let mut attempts = 1;
            let outcome = loop {
                match measure(kind, options, &blocks, stop).await {
                    Err(Error::Part { .. }) if attempts < ATTEMPTS_MAX => attempts += 1,
                    outcome => break outcome?,
                }
            };
            outcomes.iter_mut().filter(|(of, _)| *of == kind).for_each(|(_, all)| all.push(outcome.clone()));
        }
    }
    let each = options.transactions as f64;
    let own = median(generated.iter().map(|outcome| outcome.cpu_us));
    let mut figure = Figure::new("ordering", "Ordering of blocks, F = 1, on disk");
    figure.setting("transactions_per_block", options.transactions);
    figure.setting("transaction_bytes", options.transaction_bytes as u64);
    figure.setting("rounds", options.rounds as u64);
    figure.setting("seconds", options.seconds);
    figure.setting("durability", "a majority's disks, by group fsync; solo: its own");
    figure.note(
        "all orderers of a group run in this process, three of sift and raft; memory nodes are passive, over shm",
    );
    figure.note("processor time is the whole process's, without the cost of appending itself (system: no engine)");
    for (kind, all) in &outcomes {
        let of = |number: &dyn Fn(&OrderingOutcome) -> f64| median(all.iter().map(number));
        let numbers = [
            ("tps", of(&|outcome| outcome.rate * each)),
            ("cpu_us_per_tx", of(&|outcome| (outcome.cpu_us - own) / each)),
            ("blocks_per_second", of(&|outcome| outcome.rate)),
            ("p50_us", of(&|outcome| outcome.quantile_us(500))),
            ("p99_us", of(&|outcome| outcome.quantile_us(990))),
        ];
        figure.row(&[("system", kind.name())], &numbers);
    }
    figure.row(&[("system", "no engine")], &[("cpu_us_per_tx", own / each)]);
    let ratio = |of: EngineKind, over: EngineKind, number: &dyn Fn(&OrderingOutcome) -> f64| {
        let all = |kind| outcomes.iter().find(|(known, _)| *known == kind).map(|(_, all)| &all[..]).unwrap_or_default();
        let pairs = all(of).iter().zip(all(over));
        median(pairs.map(|(of, over)| number(of) / number(over).max(f64::MIN_POSITIVE)))
    };
    let cpu = |outcome: &OrderingOutcome| outcome.cpu_us - own;
    let rate = |outcome: &OrderingOutcome| outcome.rate;
    let bound = Some(RatioBound::AtMost(CPU_OVER_RAFT_MAX));
    figure.ratio("sift_cpu_over_raft", ratio(EngineKind::Sift, EngineKind::Raft, &cpu), bound);
    figure.ratio("sift_tps_over_raft", ratio(EngineKind::Sift, EngineKind::Raft, &rate), None);
    figure.ratio("sift_cpu_over_solo", ratio(EngineKind::Sift, EngineKind::Solo, &cpu), None);
    figure.ratio("raft_cpu_over_solo", ratio(EngineKind::Raft, EngineKind::Solo, &cpu), None);
    Ok(figure)
}
