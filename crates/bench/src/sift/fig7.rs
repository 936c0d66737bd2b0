//! Figure 7: throughput of stores whose nodes are limited to a percentage of a core, for F = 1 and 2.
//!
//! 1. Each part of a store is a separate process. For Raft every node is limited, leader or follower. For Sift the coordinator
//!    is limited; memory nodes are passive and need no limit.
//! 2. Clients are tasks of the leader or coordinator and run within its limit; they are the same for all systems.
//! 3. Each store is filled without a limit. Then every round runs the load under each limit in turn. The reported
//!    values are medians over the rounds.
//!
//! The paper's machines have several cores. Here a node has a percentage of one core; each node has a separate core as long as
//! this machine has enough.

use std::time::Duration;

use base::rt::{self, CancellationToken};

use super::child_processes::{
    ChildProcess, GroupTimeouts, ProcessGroup, ProcessMessage, ProcessRole, ProcessTask, Program,
};
use super::systems::{KvGeometry, SystemKind};
use super::{READ_HEAVY, THETA};
use crate::flexchain::limiter::{self, CpuLimiter};
use measurement::error::Error;
use measurement::figure::{CurvePlot, Figure};
use measurement::interval::median;
use measurement::progress::{MeasurementFuture, ReportProgress};

/// How often nodes of Raft are asked for the leader.
const LOOK: Duration = Duration::from_millis(10);

/// How it is measured.
#[derive(Clone, Debug)]
pub struct Fig7Config {
    /// How processes are limited.
    pub limit: limiter::LimiterKind,
    /// Failures that stores survive.
    pub failures: Vec<u32>,
    /// Percentages of a core, ascending.
    pub percents: Vec<u32>,
    /// Keys.
    pub keys: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// How many of a hundred pairs fit into the coordinator's cache.
    pub cache_percent: u64,
    /// Repetitions of each measurement; the median counts.
    pub rounds: u64,
    /// The length of each measurement.
    pub seconds: f64,
}

/// Throughput of one kind of store by the percentage of a core.
#[derive(Clone, Debug)]
pub struct ThroughputCurve {
    /// The kind of store.
    pub kind: SystemKind,
    /// Failures that the store survives.
    pub failures: u32,
    /// Percentages of a core, ascending, and operations a second.
    pub points: Vec<(f64, f64)>,
}

impl ThroughputCurve {
    /// Operations a second at a percentage, interpolated between the measured points.
    pub fn rate(&self, percent: f64) -> f64 {
        along(&self.points, percent)
    }

    /// The percentage that this many operations a second need; extrapolated from the last two points beyond the measured ones.
    pub fn percent(&self, ops_per_second: f64) -> f64 {
        let turned: Vec<(f64, f64)> = self.points.iter().map(|(percent, rate)| (*rate, *percent)).collect();
        along(&turned, ops_per_second)
    }
}

/// Interpolates linearly between points, starting at the origin.
fn along(points: &[(f64, f64)], at: f64) -> f64 {
    let mut before = (0.0, 0.0);
    let mut line = (0.0, 0.0, 0.0, 0.0);
    for point in points {
        // A point that is not farther along gives no direction.
        if point.0 <= before.0 {
            continue;
        }
        line = (before.0, before.1, point.0, point.1);
        if at <= point.0 {
            break;
        }
        before = *point;
    }
    let (x0, y0, x1, y1) = line;
    if x1 <= x0 { y1 } else { y0 + (y1 - y0) * (at - x0) / (x1 - x0) }
}

/// Measures all curves; also returns the name of the limiter.
///
/// # Errors
/// A process cannot be started, limited, or fails, or the run was stopped.
pub async fn curves(
    program: &Program,
    options: &Fig7Config,
    stop: &CancellationToken,
    tell: ReportProgress<'_>,
) -> Result<(Vec<ThroughputCurve>, &'static str), Error> {
    let (mut curves, mut limited_by) = (Vec::new(), "");
    for failures in &options.failures {
        for kind in SystemKind::ALL {
            let what = format!("{}, F = {failures}", kind.name());
            tell(&format!("{what}: starting and filling it"));
            let RunningGroup { mut leader, others, limiters, _family } =
                start(program, options, kind, *failures, stop).await?;
            leader.run_task_on_child(ProcessTask::Fill, stop).await?;
            limited_by = limiters.first().map_or("", CpuLimiter::name);
            let mut rates = vec![Vec::new(); options.percents.len()];
            for round in 1..=options.rounds {
                for (percent, rates) in options.percents.iter().zip(&mut rates) {
                    tell(&format!("{what}: {percent} % of a processor, round {round} of {}", options.rounds));
                    for limiter in &limiters {
                        limiter.set(Some(*percent))?;
                    }
                    let run = ProcessTask::Run { puts_of_100: READ_HEAVY.puts_of_100, seconds: options.seconds };
                    let ProcessMessage::Rate { ops_per_second, .. } = leader.run_task_on_child(run, stop).await? else {
                        return Err(Error::Part { what: "a store", reason: "an unexpected answer".to_owned() });
                    };
                    rates.push(ops_per_second);
                    for limiter in &limiters {
                        limiter.set(None)?;
                    }
                }
            }
            let percents = options.percents.iter().map(|percent| f64::from(*percent));
            curves.push(ThroughputCurve {
                kind,
                failures: *failures,
                points: percents.zip(rates.into_iter().map(median)).collect(),
            });
            limiters.iter().for_each(CpuLimiter::end);
            // The processes must end before their groups are removed.
            drop((leader, others));
        }
    }
    Ok((curves, limited_by))
}

/// A store's processes, and the limiters of those that are limited.
struct RunningGroup {
    leader: ChildProcess,
    others: Vec<ChildProcess>,
    limiters: Vec<CpuLimiter>,
    _family: ProcessGroup,
}

async fn start(
    program: &Program,
    options: &Fig7Config,
    kind: SystemKind,
    failures: u32,
    stop: &CancellationToken,
) -> Result<RunningGroup, Error> {
    let cache_bytes = super::cache_bytes(options.keys, options.value_bytes, options.cache_percent);
    let shape = KvGeometry { cache_bytes, ..KvGeometry::new(kind, failures, options.keys, options.value_bytes) };
    let family = ProcessGroup::new(program, shape, GroupTimeouts::relaxed())?;
    if kind != SystemKind::Raft {
        let (others, leader) = family.start_serving(stop).await?;
        let limiters = vec![CpuLimiter::new(options.limit, leader.id())?];
        return Ok(RunningGroup { leader, others, limiters, _family: family });
    }
    let mut others = Vec::new();
    for id in 1..=u64::from(shape.nodes()) {
        others.push(family.start(ProcessRole::Raft(id), stop).await?);
    }
    let leader = loop {
        if let Some(leader) = others.iter().position(|child| child.received().serves.is_some()) {
            break others.swap_remove(leader);
        }
        if stop.is_cancelled() {
            return Err(Error::Interrupted);
        }
        rt::sleep(LOOK).await;
    };
    let mut limiters = Vec::new();
    for child in std::iter::once(&leader).chain(&others) {
        limiters.push(CpuLimiter::new(options.limit, child.id())?);
    }
    Ok(RunningGroup { leader, others, limiters, _family: family })
}

/// The settings of all figures that are made of these curves.
pub(super) fn settings(figure: &mut Figure, program: &Program, options: &Fig7Config, limited_by: &str) {
    figure.setting("keys", options.keys);
    figure.setting("value_bytes", options.value_bytes as u64);
    figure.setting("cache_percent", options.cache_percent);
    figure.setting("clients", program.clients);
    figure.setting("rounds", options.rounds);
    figure.setting("seconds", options.seconds);
    figure.setting("theta", THETA);
    figure.setting("load", READ_HEAVY.name);
    figure.setting("limiter", limited_by);
}

/// Figure 7.
///
/// # Errors
/// As [`curves`].
pub fn run<'a>(
    program: &'a Program,
    options: &'a Fig7Config,
    stop: &'a CancellationToken,
    tell: ReportProgress<'a>,
) -> MeasurementFuture<'a> {
    Box::pin(async move {
        let (curves, limited_by) = curves(program, options, stop, tell).await?;
        Ok(figure(program, options, &curves, limited_by))
    })
}

fn figure(program: &Program, options: &Fig7Config, curves: &[ThroughputCurve], limited_by: &str) -> Figure {
    let mut figure = Figure::new("sift-fig7", "Sift, figure 7: throughput over processors, read-heavy load");
    settings(&mut figure, program, options, limited_by);
    for curve in curves {
        let failures = format!("F = {}", curve.failures);
        for (percent, rate) in &curve.points {
            let numbers = [("processor_percent", *percent), ("ops_per_second", *rate)];
            figure.row(&[("system", curve.kind.name()), ("survives", &failures)], &numbers);
        }
    }
    let most = options.percents.last().map_or(100.0, |percent| f64::from(*percent));
    let find = |kind, failures| curves.iter().find(|curve| curve.kind == kind && curve.failures == failures);
    let over = |kind, failures| {
        let (Some(ours), Some(raft)) = (find(kind, failures), find(SystemKind::Raft, failures)) else { return 0.0 };
        ours.rate(most) / raft.rate(most).max(1.0)
    };
    for (failures, plain, coded) in
        [(1, "sift_over_raft_f1", "coded_over_raft_f1"), (2, "sift_over_raft_f2", "coded_over_raft_f2")]
    {
        if options.failures.contains(&failures) {
            figure.ratio(plain, over(SystemKind::Sift, failures), None);
            figure.ratio(coded, over(SystemKind::SiftErasureCoded, failures), None);
        }
    }
    figure.curves(CurvePlot { x: "processor_percent", x_log: false, y: "ops_per_second" });
    figure.note(
        "a percentage is of one core, for each node of Raft and for the one CPU node of Sift, its clients included",
    );
    figure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_found_between_points_and_beyond_them() {
        let points = vec![(25.0, 100.0), (50.0, 200.0), (100.0, 300.0)];
        let curve = ThroughputCurve { kind: SystemKind::Sift, failures: 1, points };
        let check = |rate: f64, percent: f64| assert!((curve.percent(rate) - percent).abs() < 1e-9, "{rate}");
        check(50.0, 12.5);
        check(150.0, 37.5);
        check(250.0, 75.0);
        check(400.0, 150.0);
        assert!((curve.rate(75.0) - 250.0).abs() < 1e-9);
    }

    #[test]
    fn a_curve_that_falls_is_not_taken_for_one_that_has_no_answer() {
        let curve =
            ThroughputCurve { kind: SystemKind::Sift, failures: 1, points: vec![(50.0, 200.0), (100.0, 190.0)] };
        assert!(curve.percent(150.0).is_finite() && curve.percent(300.0).is_finite());
    }
}
