//! Ordering: what puts blocks in order, F = 1: on passive memory nodes, on Raft, alone, in the same run and on the same disk.
//!
//! 1. Groups of each [kind](engines::Kind) are started one after the other, and one task appends blocks for as long as a run lasts, as
//!    fast as the engine takes them; for as many rounds as are wanted. Who goes first changes. Medians count.
//! 2. A block is opaque bytes: cutting, hashing and signing blocks is the same whatever orders them, and is no part of this.
//!    Its journal at each orderer is a block store, as an orderer's is.
//! 3. Before a run, so much is ordered that every log has been filled twice: memory that is used for the first time costs more.
//!    Throughput is of blocks that are safe at the leader. A run is over when its last block is safe at every orderer.
//!
//! *Processor time* is the kernel's for this whole process from a moment at which nothing is under way to the end of the run: all
//! orderers of the group run in it, with their disks' threads, and passive memory nodes have no thread. Whoever appends and notes
//! times runs in it too; what that takes is measured alone, without an engine, is shown in a row of its own and subtracted.
//! Of bytes that are written and not synced, the kernel's own threads pay for the way to the disk, and no process.
//!
//! *Equal durability*: a block is shown once a majority has it on disk, by group fsync, pipelined. Sift syncs the journals. Raft syncs
//! its logs, and writes its journals without a sync: what they lose in a crash is read again from the log.

pub mod engines;
mod journal;

use std::time::{Duration, Instant};

use base::Bytes;
use base::rt::{self, Stop};
use rustix::time::{ClockId, clock_gettime};

use crate::error::Error;
use crate::figure::{Bound, Figure};
use crate::progress::{Measuring, Tell};
use crate::random::Random;
use engines::{Kind, Nothing, System};

/// Raft's processor time times this is what Sift's should be at most.
const CPU_OVER_RAFT_MAX: f64 = 0.5;
/// Different blocks that are appended in turn.
const BLOCKS: usize = 16;
/// Blocks after which whoever appends lets others run.
const TURN: u64 = 4;
/// Blocks that are appended without an engine.
const GENERATED: u64 = 20_000;
/// Blocks that are ordered before a quick run.
const WARM_QUICK: u64 = 20;
/// Times that a group is started, where another orderer begins to lead meanwhile: machines with much else to do forget heartbeats.
const ATTEMPTS_MAX: usize = 3;
/// How long a group may take to do what is left, and to elect somebody.
const PATIENCE: Duration = Duration::from_secs(60);

/// How it is measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// Transactions of a block.
    pub transactions: u64,
    /// Bytes of a transaction.
    pub transaction_bytes: usize,
    /// Times that everything is measured, of which the median counts.
    pub rounds: usize,
    /// How long each run lasts.
    pub seconds: f64,
    /// A quick look: little is ordered before a run.
    pub is_quick: bool,
    /// Holds the journals while they are measured; the system's folder for such things without one.
    pub folder: Option<std::path::PathBuf>,
    /// Fixes the bytes.
    pub seed: u64,
}

/// What one run comes to.
#[derive(Clone, Debug, Default)]
struct Outcome {
    /// Blocks a second.
    rate: f64,
    /// Processor time of a block, whoever appends included, in microseconds.
    cpu_us: f64,
    /// From the call to when a block is safe, in microseconds, ascending.
    latencies_us: Vec<f64>,
}

impl Outcome {
    fn quantile_us(&self, thousandths: usize) -> f64 {
        let at = self.latencies_us.len().saturating_sub(1) * thousandths / 1000;
        self.latencies_us.get(at).copied().unwrap_or_default()
    }
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_unstable_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or_default()
}

/// Processor time of this process since it started, in microseconds.
fn processor_us() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

fn blocks(options: &Options) -> Vec<Bytes> {
    let mut random = Random::new(options.seed);
    let bytes = options.transactions as usize * options.transaction_bytes;
    let mut block =
        |_| (0..bytes.div_ceil(8)).flat_map(|_| random.draw().to_le_bytes()).take(bytes).collect::<Vec<u8>>();
    (0..BLOCKS).map(&mut block).map(Bytes::from).collect()
}

/// Appends blocks until it is enough, and waits until all of them are safe everywhere.
async fn append(system: &System, blocks: &[Bytes], until: Until, stop: &Stop) -> Result<Outcome, Error> {
    let (leader, term, mut position) = system.leads(PATIENCE).await?;
    let log = &system.logs[leader];
    let first = position;
    let begun = std::sync::Arc::new(std::sync::Mutex::new(Vec::<Instant>::new()));
    let (noted, mut safe) = (begun.clone(), log.safe());
    let (done, mut is_done) = rt::channel::watch(None::<u64>);
    let noting = rt::spawn(async move {
        let (mut latencies, mut next) = (Vec::new(), first);
        loop {
            let height = *safe.borrow_and_update();
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
            let (more, end) = (std::pin::pin!(safe.changed()), std::pin::pin!(is_done.changed()));
            futures_util::future::select(more, end).await;
        }
    });
    let (start, before) = (Instant::now(), processor_us());
    while !until.is_over(position - first, start) {
        if stop.is_stopped() {
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
        let mut safe = log.safe();
        let all = safe.wait_for(|safe| *safe >= position);
        if !matches!(rt::timeout(PATIENCE, all).await, Ok(Ok(_))) {
            let reason = format!("orderer {} does not have all blocks after {PATIENCE:?}", which + 1);
            return Err(Error::Part { what: "ordering", reason });
        }
        if elapsed.is_zero() {
            elapsed = start.elapsed();
        }
    }
    let cpu_us = processor_us() - before;
    done.send(Some(position));
    let mut latencies_us = noting.await.map_err(|_| Error::Interrupted)?;
    latencies_us.sort_unstable_by(f64::total_cmp);
    let count = (position - first).max(1) as f64;
    Ok(Outcome { rate: count / elapsed.as_secs_f64(), cpu_us: cpu_us / count, latencies_us })
}

/// When it is enough.
#[derive(Clone, Copy)]
enum Until {
    Time(Duration),
    Count(u64),
}

impl Until {
    fn is_over(self, count: u64, start: Instant) -> bool {
        match self {
            Until::Time(time) => start.elapsed() >= time,
            Until::Count(most) => count >= most,
        }
    }
}

/// One run of one kind.
async fn measure(kind: Kind, options: &Options, blocks: &[Bytes], stop: &Stop) -> Result<Outcome, Error> {
    let system = System::start(kind, options.folder.as_deref()).await?;
    let warm = match options.is_quick {
        true => WARM_QUICK,
        false => 2 * engines::LOG_BYTES / (blocks[0].len() as u64).max(1),
    };
    append(&system, blocks, Until::Count(warm), stop).await?;
    let outcome = append(&system, blocks, Until::Time(Duration::from_secs_f64(options.seconds)), stop).await?;
    system.stop().await;
    Ok(outcome)
}

/// The figure.
///
/// # Errors
/// A group cannot be started or fails, or somebody stopped the run.
pub fn run<'a>(options: &'a Options, stop: &'a Stop, tell: Tell<'a>) -> Measuring<'a> {
    Box::pin(run_all(options, stop, tell))
}

async fn run_all(options: &Options, stop: &Stop, tell: Tell<'_>) -> Result<Figure, Error> {
    let blocks = blocks(options);
    let mut outcomes: Vec<(Kind, Vec<Outcome>)> = Kind::ALL.into_iter().map(|kind| (kind, Vec::new())).collect();
    let mut generated = Vec::new();
    for round in 0..options.rounds {
        tell(&format!("round {} of {}: no engine", round + 1, options.rounds));
        let nothing = System::of(Nothing::leading());
        generated.push(append(&nothing, &blocks, Until::Count(GENERATED), stop).await?);
        let mut kinds = Kind::ALL;
        kinds.rotate_left(round % Kind::ALL.len());
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
    let own = median(generated.iter().map(|outcome| outcome.cpu_us).collect());
    let mut figure = Figure::new("ordering", "Ordering of blocks, F = 1, on disk");
    figure.setting("transactions_per_block", options.transactions);
    figure.setting("transaction_bytes", options.transaction_bytes as u64);
    figure.setting("rounds", options.rounds as u64);
    figure.setting("seconds", options.seconds);
    figure.setting("durability", "a majority's disks, by group fsync; solo: its own");
    figure.note(
        "all orderers of a group run in this process, three of sift and raft; memory nodes are passive, over shm",
    );
    figure.note("processor time is the whole process's without what appending takes by itself (system: no engine)");
    for (kind, all) in &outcomes {
        let of = |number: &dyn Fn(&Outcome) -> f64| median(all.iter().map(number).collect());
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
    let ratio = |of: Kind, over: Kind, number: &dyn Fn(&Outcome) -> f64| {
        let all = |kind| outcomes.iter().find(|(known, _)| *known == kind).map(|(_, all)| &all[..]).unwrap_or_default();
        let pairs = all(of).iter().zip(all(over));
        median(pairs.map(|(of, over)| number(of) / number(over).max(f64::MIN_POSITIVE)).collect())
    };
    let cpu = |outcome: &Outcome| outcome.cpu_us - own;
    let rate = |outcome: &Outcome| outcome.rate;
    let bound = Some(Bound::AtMost(CPU_OVER_RAFT_MAX));
    figure.ratio("sift_cpu_over_raft", ratio(Kind::Sift, Kind::Raft, &cpu), bound);
    figure.ratio("sift_tps_over_raft", ratio(Kind::Sift, Kind::Raft, &rate), None);
    figure.ratio("sift_cpu_over_solo", ratio(Kind::Sift, Kind::Solo, &cpu), None);
    figure.ratio("raft_cpu_over_solo", ratio(Kind::Raft, Kind::Solo, &cpu), None);
    Ok(figure)
}
