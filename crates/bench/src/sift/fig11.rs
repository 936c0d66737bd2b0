//! Figure 11: a memory node is killed under load and comes back empty.
//!
//! 1. Memory nodes and the coordinator are separate processes. The clients run in the coordinator's process; their load is
//!    read-heavy.
//! 2. One memory node's process is killed (SIGKILL). After [`PAUSE`] another process is started at its address.
//! 3. The coordinator copies all data to the new process, region by region, at a bounded rate. Then it counts the
//!    process among the live memory nodes again. The figure shows the clients' throughput from the kill to this moment,
//!    in intervals of 100 ms, as in the paper.

use std::time::Duration;

use base::rt::{self, CancellationToken};

use super::child_processes::{GroupTimeouts, ProcessGroup, ProcessRole, ProcessTask, Program, now_ns};
use super::systems::{KvGeometry, SystemKind};
use super::timeline::Timeline;
use super::{READ_HEAVY, THETA};
use measurement::error::Error;
use measurement::figure::{CurvePlot, Figure, RatioBound};
use measurement::progress::{MeasurementFuture, ReportProgress};

/// How long the machine of the memory node is gone.
const PAUSE: Duration = Duration::from_millis(500);
const INTERVAL_MS: u64 = 100;
const LOWEST_OVER_BEFORE_MIN: f64 = 0.7;
const READMITTED_S_MAX: f64 = 60.0;
/// Which of them is killed.
const KILLED: u32 = 1;

/// How it is measured.
#[derive(Clone, Debug)]
pub struct Fig11Config {
    /// Keys.
    pub keys: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Of a hundred pairs, how many the coordinator's cache has room for.
    pub cache_percent: u64,
    /// Bytes a second that are copied to a re-admitted node.
    pub copy_bytes_per_second: u64,
    /// Seconds before the kill that count, as many before those, and after the return.
    pub seconds: f64,
    /// Whether blocks are coded.
    pub is_erasure_coded: bool,
}

/// Runs it.
///
/// # Errors
/// A process cannot be started or fails, or somebody stopped the run.
pub fn run<'a>(
    program: &'a Program,
    options: &'a Fig11Config,
    stop: &'a CancellationToken,
    tell: ReportProgress<'a>,
) -> MeasurementFuture<'a> {
    Box::pin(run_all(program, options, stop, tell))
}

async fn run_all(
    program: &Program,
    options: &Fig11Config,
    stop: &CancellationToken,
    tell: ReportProgress<'_>,
) -> Result<Figure, Error> {
    let kind = if options.is_erasure_coded { SystemKind::SiftErasureCoded } else { SystemKind::Sift };
    let cache_bytes = super::cache_bytes(options.keys, options.value_bytes, options.cache_percent);
    let shape = KvGeometry { cache_bytes, ..KvGeometry::new(kind, 1, options.keys, options.value_bytes) };
    let times = GroupTimeouts { copy_bytes_per_second: options.copy_bytes_per_second, ..GroupTimeouts::relaxed() };
    let family = ProcessGroup::new(program, shape, times)?;
    tell("starting three memory nodes and a processor");
    let (mut memory, mut cpu_node) = family.start_serving(stop).await?;
    tell("putting all keys");
    cpu_node.run_task_on_child(ProcessTask::Fill, stop).await?;
    tell("loading it");
    cpu_node.send_task(ProcessTask::Load { puts_of_100: READ_HEAVY.puts_of_100 })?;
    let span = Duration::from_secs_f64(options.seconds);
    rt::sleep(span).await;
    let from = now_ns();
    rt::sleep(span).await;

    tell("a memory node is gone");
    let killed = memory[KILLED as usize].kill();
    cpu_node.until(stop, |heard| heard.counts.last().filter(|count| count.live < 3).map(drop)).await?;
    rt::sleep(PAUSE).await;
    memory[KILLED as usize] = family.start(ProcessRole::Memory(KILLED), stop).await?;
    tell("a memory node comes back");
    let readmitted = cpu_node.until(stop, |heard| heard.counts.last().filter(|count| count.live == 3).copied()).await?;
    rt::sleep(span).await;
    let until = now_ns();

    let mut timeline = Timeline::default();
    timeline.add(&cpu_node.received().counts);
    let before = timeline.rate(from, killed);
    let during = timeline.intervals(killed, readmitted.at_ns, INTERVAL_MS);
    let lowest = during.iter().map(|one| one.ops_per_second).fold(f64::INFINITY, f64::min);
    // How much intervals differ where nothing happens.
    let calm = timeline.intervals(from, killed, INTERVAL_MS);
    let lowest_calm = calm.iter().map(|one| one.ops_per_second).fold(f64::INFINITY, f64::min);
    let lowest_reads = during.iter().map(|one| one.reads_per_second).fold(f64::INFINITY, f64::min);
    let mean = timeline.rate(killed, readmitted.at_ns).ops_per_second;
    let readmitted_s = (readmitted.at_ns - killed) as f64 / 1e9;

    let mut figure =
        Figure::new("sift-fig11", "Sift, figure 11: a memory node is killed and comes back, read-heavy load");
    figure.setting("system", kind.name());
    figure.setting("keys", options.keys);
    figure.setting("value_bytes", options.value_bytes as u64);
    figure.setting("cache_percent", options.cache_percent);
    figure.setting("copy_bytes_per_second", options.copy_bytes_per_second);
    figure.setting("clients", program.clients);
    figure.setting("theta", THETA);
    for one in timeline.intervals(from, until, INTERVAL_MS) {
        let numbers = [
            ("seconds", one.from_ms / 1e3),
            ("ops_per_second", one.ops_per_second),
            ("reads_per_second", one.reads_per_second),
            ("over_before", one.ops_per_second / before.ops_per_second),
        ];
        figure.row(&[("system", kind.name())], &numbers);
    }
    figure.curves(CurvePlot { x: "seconds", x_log: false, y: "ops_per_second" });
    let bound = Some(RatioBound::AtLeast(LOWEST_OVER_BEFORE_MIN));
    figure.ratio("lowest_over_before", lowest / before.ops_per_second, bound);
    figure.ratio("lowest_reads_over_before", lowest_reads / before.reads_per_second, bound);
    figure.ratio("lowest_calm_over_before", lowest_calm / before.ops_per_second, None);
    figure.ratio("mean_over_before", mean / before.ops_per_second, None);
    figure.ratio("longest_without_reads_ms", timeline.longest_without_reads_ms(killed, readmitted.at_ns), None);
    figure.ratio("readmitted_s", readmitted_s, Some(RatioBound::AtMost(READMITTED_S_MAX)));
    figure.note(format!(
        "killed {:.1} s after the first interval, started again {:.1} s later, counted again {readmitted_s:.1} s after the kill",
        (killed - from) as f64 / 1e9,
        PAUSE.as_secs_f64()
    ));
    figure.note(
        "ratios are of the intervals between the kill and the return, over the mean before the kill; lowest_calm_over_before of \
         those before it",
    );
    figure.note("memory nodes, which stand for other machines, have a low priority: what they do is to take memory when they start");
    let ended = cpu_node.received().ended;
    if ended > 0 {
        figure.note(format!("the coordinator lost its lease {ended} times, and took over again"));
    }
    Ok(figure)
}
