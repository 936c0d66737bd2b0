//! Figure 12: the coordinator is killed with full logs, and another CPU node takes over.
//!
//! 1. Memory nodes and CPU nodes are separate processes. Each CPU node has clients, which work while it serves. The
//!    clients of the killed CPU node end with it.
//! 2. Throughput is measured under a read-heavy load. Then the coordinator stops freeing space in the group's log
//!    ([`Coordinator::stop_reclaiming`](sift::Coordinator::stop_reclaiming)), and all clients put. The group's log
//!    fills up; therefore the store stops applying its own log, which fills up too. When both are full, the process is
//!    killed (SIGKILL). If the coordinator went on freeing space, the logs would never fill, because puts are applied
//!    as fast as they arrive.
//! 3. The other CPU node notices the missing heartbeats and is elected. It takes over the memory, then the store, and
//!    serves. From then on its clients run a read-heavy load.
//! 4. Another CPU node is started as the next standby. Then the CPU node that serves now is killed in turn.
//!
//! Heartbeats are as in the paper's section 6.5: a standby checks the heartbeat every 7 ms, and suspects the
//! coordinator after three checks without a change. Here the time-out is two periods, randomly prolonged by up to a
//! half, so the third check is the first one after the time-out.

use std::time::Duration;

use base::rt::{self, CancellationToken};
use sift::SiftTimeouts;

use super::child_processes::{
    ChildProcess, GroupTimeouts, ProcessGroup, ProcessMessage, ProcessRole, ProcessTask, Program, now_ns,
};
use super::systems::{GROUP_LOG_BYTES, KvGeometry, SystemKind};
use super::timeline::Timeline;
use super::{READ_HEAVY, THETA};
use measurement::error::Error;
use measurement::figure::{CurvePlot, Figure, RatioBound};
use measurement::interval::median;
use measurement::progress::{MeasurementFuture, ReportProgress};

const HEARTBEAT_MS: u64 = 7;
const ELECTION_MS: u64 = 14;
const DETECTED_MS_MAX: f64 = 35.0;
const HALF_RECOVERED_MS_MAX: f64 = 150.0;
const RECOVERED_MS_MAX: f64 = 1000.0;
/// Length of the windows in which half of the throughput is to be reached, and all of it.
const HALF_WINDOW_MS: u64 = 20;
const WHOLE_WINDOW_MS: u64 = 100;
/// Windows vary; this part of the throughput counts as all of it.
const WHOLE: f64 = 0.97;
/// Stands for a throughput that was not reached during the measurement.
const NEVER_MS: f64 = 60_000.0;
/// CPU nodes that replace one that lost its lease have numbers above this.
const REPLACEMENT_CPU_NODES: u64 = 1_000;
/// Intervals of the plot.
const INTERVAL_MS: u64 = 20;
/// The time before a kill that the plot shows.
const PLOT_BEFORE_KILL_NS: u64 = 500_000_000;

/// How it is measured.
#[derive(Clone, Debug)]
pub struct Fig12Config {
    /// Keys.
    pub keys: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Bytes of the store's log.
    pub log_bytes: u64,
    /// How many of a hundred pairs fit into the coordinator's cache.
    pub cache_percent: u64,
    /// How long a coordinator may serve after a heartbeat.
    pub lease_ms: u64,
    /// Number of kills; the median counts.
    pub kills: u64,
    /// Seconds before a kill that count, and after it.
    pub seconds: f64,
}

/// One kill, in milliseconds from it.
struct KillMeasurement {
    detected: f64,
    elected: f64,
    taken_over: f64,
    serves: f64,
    half: f64,
    whole: f64,
    before: f64,
    after: f64,
    full: FullLogs,
    recovered: u64,
}

/// Bytes in use of the store's log, and of the group's.
#[derive(Clone, Copy)]
struct FullLogs {
    used_bytes: u64,
    group_used_bytes: u64,
}

/// Runs it.
///
/// # Errors
/// A process cannot be started or fails, or the run was stopped.
pub fn run<'a>(
    program: &'a Program,
    options: &'a Fig12Config,
    stop: &'a CancellationToken,
    tell: ReportProgress<'a>,
) -> MeasurementFuture<'a> {
    Box::pin(run_all(program, options, stop, tell))
}

async fn run_all(
    program: &Program,
    options: &Fig12Config,
    stop: &CancellationToken,
    tell: ReportProgress<'_>,
) -> Result<Figure, Error> {
    let cache_bytes = super::cache_bytes(options.keys, options.value_bytes, options.cache_percent);
    let shape = KvGeometry {
        cache_bytes,
        log_bytes: options.log_bytes,
        ..KvGeometry::new(SystemKind::Sift, 1, options.keys, options.value_bytes)
    };
    let times = GroupTimeouts {
        heartbeat_ms: HEARTBEAT_MS,
        lease_ms: options.lease_ms,
        election_ms: ELECTION_MS,
        copy_bytes_per_second: SiftTimeouts::UNLIMITED,
    };
    let family = ProcessGroup::new(program, shape, times)?;
    tell("starting three memory nodes and a processor");
    let (_memory, mut serving) = family.start_serving(stop).await?;
    tell("putting all keys");
    serving.run_task_on_child(ProcessTask::Fill, stop).await?;

    let mut figure =
        Figure::new("sift-fig12", "Sift, figure 12: the coordinator is killed, its logs full, read-heavy load");
    figure.setting("keys", options.keys);
    figure.setting("value_bytes", options.value_bytes as u64);
    figure.setting("log_bytes", options.log_bytes);
    figure.setting("group_log_bytes", GROUP_LOG_BYTES);
    figure.setting("cache_percent", options.cache_percent);
    figure.setting("heartbeat_ms", HEARTBEAT_MS);
    figure.setting("election_ms", ELECTION_MS);
    figure.setting("lease_ms", options.lease_ms);
    figure.setting("kills", options.kills);
    figure.setting("clients", program.clients);
    figure.setting("theta", THETA);

    let (mut kills, mut ended) = (Vec::new(), 0);
    for number in 1..=options.kills {
        tell(&format!("kill {number} of {}", options.kills));
        let mut next = family.start(ProcessRole::CpuNode(number + 1), stop).await?;
        let outcome = kill(&family, &mut figure, number, &mut serving, &mut next, options, stop).await?;
        ended += serving.received().ended;
        kills.push(outcome);
        serving = next;
    }
    for (number, kill) in (1..).zip(&kills) {
        let number: u64 = number;
        let numbers = [
            ("detected_ms", kill.detected),
            ("elected_ms", kill.elected),
            ("taken_over_ms", kill.taken_over),
            ("serves_ms", kill.serves),
            ("half_recovered_ms", kill.half),
            ("recovered_ms", kill.whole),
            ("ops_per_second_before", kill.before),
            ("ops_per_second_after", kill.after),
            ("log_used_bytes", kill.full.used_bytes as f64),
            ("group_log_used_bytes", kill.full.group_used_bytes as f64),
            ("entries_recovered", kill.recovered as f64),
        ];
        figure.row(&[("kill", &number.to_string())], &numbers);
    }
    let of = |number: fn(&KillMeasurement) -> f64| median(kills.iter().map(number));
    let most = |number: fn(&KillMeasurement) -> f64| kills.iter().map(number).fold(0.0, f64::max);
    figure.ratio("detected_ms", of(|kill| kill.detected), Some(RatioBound::AtMost(DETECTED_MS_MAX)));
    figure.ratio("serves_ms", of(|kill| kill.serves), None);
    figure.ratio("half_recovered_ms", of(|kill| kill.half), Some(RatioBound::AtMost(HALF_RECOVERED_MS_MAX)));
    figure.ratio("recovered_ms", of(|kill| kill.whole), Some(RatioBound::AtMost(RECOVERED_MS_MAX)));
    figure.ratio("half_recovered_ms_max", most(|kill| kill.half), None);
    figure.ratio("recovered_ms_max", most(|kill| kill.whole), None);
    let least =
        |bytes: fn(&FullLogs) -> u64| kills.iter().map(|kill| bytes(&kill.full)).min().unwrap_or_default() as f64;
    figure.ratio("log_full_min", least(|full| full.used_bytes) / options.log_bytes as f64, None);
    figure.ratio("group_log_full_min", least(|full| full.group_used_bytes) / GROUP_LOG_BYTES as f64, None);
    figure.curves(CurvePlot { x: "milliseconds", x_log: false, y: "ops_per_second" });
    figure.note(format!(
        "half: the end of the first {HALF_WINDOW_MS} ms with half of the throughput before; recovered: of the first \
         {WHOLE_WINDOW_MS} ms with {:.0} % of it; {NEVER_MS:.0}: not reached. Both are counted from the kill, which is at {} ms \
         in the plot",
        WHOLE * 100.0,
        PLOT_BEFORE_KILL_NS / 1_000_000
    ));
    figure.note(
        "before a kill the coordinator stops freeing space in the group's log, so that it and the store's log fill up; \
         otherwise puts are applied as fast as they arrive, and the logs never fill",
    );
    figure.note("clients are tasks of the CPU node that serves; those of the killed one end with it");
    if ended > 0 {
        figure
            .note(format!("coordinators lost their lease {ended} times before they were killed, and took over again"));
    }
    Ok(figure)
}

/// Fills the logs and returns the bytes in use; `None` if the coordinator does not serve any more.
async fn full(
    serving: &ChildProcess,
    next: &ChildProcess,
    stop: &CancellationToken,
) -> Result<Option<FullLogs>, Error> {
    loop {
        serving.received().check()?;
        match serving.answer() {
            Some(ProcessMessage::Full { used_bytes, group_used_bytes }) => {
                return Ok(Some(FullLogs { used_bytes, group_used_bytes }));
            }
            Some(_) => return Err(Error::Part { what: "a coordinator", reason: "an unexpected answer".to_owned() }),
            None if next.is_serving() => return Ok(None),
            None if stop.is_cancelled() => return Err(Error::Interrupted),
            None => rt::sleep(Duration::from_micros(500)).await,
        }
    }
}

/// Kills the serving process, with its log full.
async fn kill(
    family: &ProcessGroup,
    figure: &mut Figure,
    number: u64,
    serving: &mut ChildProcess,
    next: &mut ChildProcess,
    options: &Fig12Config,
    stop: &CancellationToken,
) -> Result<KillMeasurement, Error> {
    let span = Duration::from_secs_f64(options.seconds);
    let load = ProcessTask::Load { puts_of_100: READ_HEAVY.puts_of_100 };
    serving.send_task(load)?;
    next.send_task(load)?;
    let (from, loaded_until, full) = loop {
        rt::sleep(span).await;
        let from = now_ns();
        rt::sleep(span).await;
        let loaded_until = now_ns();
        serving.send_task(ProcessTask::FillLog)?;
        if let Some(full) = full(serving, next, stop).await? {
            break (from, loaded_until, full);
        }
        // The other one has taken over because heartbeats were missing, and has load already: it is the one to kill.
        std::mem::swap(serving, next);
        *next = family.start(ProcessRole::CpuNode(REPLACEMENT_CPU_NODES + number), stop).await?;
        next.send_task(load)?;
    };
    let killed = serving.kill();
    // Keep this takeover: on a busy machine the coordinator may lose its lease again during the measurement.
    let takeover = next.until(stop, |heard| heard.serves).await?;
    // It noticed before it served.
    rt::sleep(span).await;
    let until = now_ns();

    let mut timeline = Timeline::default();
    timeline.add(&serving.received().counts);
    timeline.add(&next.received().counts);
    let before = timeline.rate(from, loaded_until).ops_per_second;
    let since = |at: u64| at.saturating_sub(killed) as f64 / 1e6;
    let label = number.to_string();
    for one in timeline.intervals(killed - PLOT_BEFORE_KILL_NS, until, INTERVAL_MS) {
        let numbers = [
            ("milliseconds", one.from_ms),
            ("ops_per_second", one.ops_per_second),
            ("reads_per_second", one.reads_per_second),
        ];
        figure.row(&[("kill", &label)], &numbers);
    }
    let reached = |window, share| timeline.reached_ms(killed, until, window, before * share).unwrap_or(NEVER_MS);
    Ok(KillMeasurement {
        detected: takeover.detected_ns.map_or(NEVER_MS, since),
        elected: takeover.elected_ns.map_or(NEVER_MS, since),
        taken_over: takeover.taken_over_ns.map_or(NEVER_MS, since),
        serves: since(takeover.serves_ns),
        half: reached(HALF_WINDOW_MS, 0.5),
        whole: reached(WHOLE_WINDOW_MS, WHOLE),
        before,
        after: timeline.rate(until - (options.seconds * 5e8) as u64, until).ops_per_second,
        full,
        recovered: takeover.recovered,
    })
}
