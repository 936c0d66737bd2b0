//! Figure 7: throughput with more or less of a processor, for F = 1 and 2.
//!
//! 1. Each part of a store is a process of its own. A node of Raft is limited, whether it leads or follows, as is the one processor
//!    that coordinates Sift; memory nodes are passive, and need no limit.
//! 2. Clients are tasks of whoever leads or coordinates, within its limit, the same on all sides.
//! 3. Each store is filled without a limit, then loaded under each limit in turn, for as many rounds as are wanted. Medians count.
//!
//! The paper has machines of several cores; here they are shares of one, which every node has to itself as far as this machine has
//! processors for all of them.

use std::time::Duration;

use base::rt::{self, Stop};

use super::processes::{Child, Family, Program, Role, Said, Task, Times};
use super::systems::{Kind, Shape};
use super::{READ_HEAVY, THETA, median};
use crate::error::Error;
use crate::figure::{Curves, Figure};
use crate::flexchain::limiter::{self, Limiter};
use crate::progress::{Measuring, Tell};

/// How often nodes of Raft are asked who leads.
const LOOK: Duration = Duration::from_millis(10);

/// How it is measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// How processes are limited.
    pub limit: limiter::Kind,
    /// Failures that stores survive.
    pub failures: Vec<u32>,
    /// Shares of a processor, in percent, ascending.
    pub percents: Vec<u32>,
    /// Keys.
    pub keys: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Of a hundred pairs, how many the coordinator's cache has room for.
    pub cache_percent: u64,
    /// Times that each is measured, of which the median counts.
    pub rounds: u64,
    /// How long each time takes.
    pub seconds: f64,
}

/// Throughput of one kind of store over the share of a processor.
#[derive(Clone, Debug)]
pub struct Curve {
    pub kind: Kind,
    pub failures: u32,
    /// Shares of a processor in percent, ascending, and operations a second.
    pub points: Vec<(f64, f64)>,
}

impl Curve {
    /// Operations a second with a share, between the points that were measured.
    pub fn rate(&self, percent: f64) -> f64 {
        along(&self.points, percent)
    }

    /// The share that so many operations a second need. Beyond what was measured the last two points lead on.
    pub fn percent(&self, ops_per_second: f64) -> f64 {
        let turned: Vec<(f64, f64)> = self.points.iter().map(|(percent, rate)| (*rate, *percent)).collect();
        along(&turned, ops_per_second)
    }
}

/// What lies over a place on the line through points, from nothing at all on.
fn along(points: &[(f64, f64)], at: f64) -> f64 {
    let mut before = (0.0, 0.0);
    let mut line = (0.0, 0.0, 0.0, 0.0);
    for point in points {
        // One that does not lie farther on leads nowhere.
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

/// Measures all curves; gives what limited the processes too.
///
/// # Errors
/// A process cannot be started, limited, or fails, or somebody stopped the run.
pub async fn curves(
    program: &Program,
    options: &Options,
    stop: &Stop,
    tell: Tell<'_>,
) -> Result<(Vec<Curve>, &'static str), Error> {
    let (mut curves, mut limited_by) = (Vec::new(), "");
    for failures in &options.failures {
        for kind in Kind::ALL {
            let what = format!("{}, F = {failures}", kind.name());
            tell(&format!("{what}: starting and filling it"));
            let Running { mut leader, others, limiters, _family } =
                start(program, options, kind, *failures, stop).await?;
            leader.ask(Task::Fill, stop).await?;
            limited_by = limiters.first().map_or("", Limiter::name);
            let mut rates = vec![Vec::new(); options.percents.len()];
            for round in 1..=options.rounds {
                for (percent, rates) in options.percents.iter().zip(&mut rates) {
                    tell(&format!("{what}: {percent} % of a processor, round {round} of {}", options.rounds));
                    for limiter in &limiters {
                        limiter.set(Some(*percent))?;
                    }
                    let run = Task::Run { puts_of_100: READ_HEAVY.puts_of_100, seconds: options.seconds };
                    let Said::Rate { ops_per_second, .. } = leader.ask(run, stop).await? else {
                        return Err(Error::Part { what: "a store", reason: "it says something else".to_owned() });
                    };
                    rates.push(ops_per_second);
                    for limiter in &limiters {
                        limiter.set(None)?;
                    }
                }
            }
            let percents = options.percents.iter().map(|percent| f64::from(*percent));
            curves.push(Curve {
                kind,
                failures: *failures,
                points: percents.zip(rates.into_iter().map(median)).collect(),
            });
            limiters.iter().for_each(Limiter::end);
            // The processes end before their groups go.
            drop((leader, others));
        }
    }
    Ok((curves, limited_by))
}

/// A store's processes, and what limits those that are.
struct Running {
    leader: Child,
    others: Vec<Child>,
    limiters: Vec<Limiter>,
    _family: Family,
}

async fn start(program: &Program, options: &Options, kind: Kind, failures: u32, stop: &Stop) -> Result<Running, Error> {
    let cache_bytes = super::cache_bytes(options.keys, options.value_bytes, options.cache_percent);
    let shape = Shape { cache_bytes, ..Shape::new(kind, failures, options.keys, options.value_bytes) };
    let family = Family::new(program, shape, Times::patient())?;
    if kind != Kind::Raft {
        let others = family.start_memory(stop).await?;
        let leader = family.start(Role::Processor(1), stop).await?;
        leader.until(stop, |heard| heard.serves).await?;
        let limiters = vec![Limiter::new(options.limit, leader.id())?];
        return Ok(Running { leader, others, limiters, _family: family });
    }
    let mut others = Vec::new();
    for id in 1..=u64::from(shape.nodes()) {
        others.push(family.start(Role::Raft(id), stop).await?);
    }
    let leader = loop {
        if let Some(leader) = others.iter().position(|child| child.heard().serves.is_some()) {
            break others.swap_remove(leader);
        }
        if stop.is_stopped() {
            return Err(Error::Interrupted);
        }
        rt::sleep(LOOK).await;
    };
    let mut limiters = Vec::new();
    for child in std::iter::once(&leader).chain(&others) {
        limiters.push(Limiter::new(options.limit, child.id())?);
    }
    Ok(Running { leader, others, limiters, _family: family })
}

/// What all figures that are made of these curves state.
pub(super) fn settings(figure: &mut Figure, program: &Program, options: &Options, limited_by: &str) {
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
pub fn run<'a>(program: &'a Program, options: &'a Options, stop: &'a Stop, tell: Tell<'a>) -> Measuring<'a> {
    Box::pin(run_all(program, options, stop, tell))
}

async fn run_all(program: &Program, options: &Options, stop: &Stop, tell: Tell<'_>) -> Result<Figure, Error> {
    let (curves, limited_by) = curves(program, options, stop, tell).await?;
    let mut figure = Figure::new("sift-fig7", "Sift, figure 7: throughput over processors, read-heavy load");
    settings(&mut figure, program, options, limited_by);
    for curve in &curves {
        let failures = format!("F = {}", curve.failures);
        for (percent, rate) in &curve.points {
            let numbers = [("processor_percent", *percent), ("ops_per_second", *rate)];
            figure.row(&[("system", curve.kind.name()), ("survives", &failures)], &numbers);
        }
    }
    let most = options.percents.last().map_or(100.0, |percent| f64::from(*percent));
    let find = |kind, failures| curves.iter().find(|curve| curve.kind == kind && curve.failures == failures);
    let over = |kind, failures| {
        let (Some(ours), Some(raft)) = (find(kind, failures), find(Kind::Raft, failures)) else { return 0.0 };
        ours.rate(most) / raft.rate(most).max(1.0)
    };
    for (failures, plain, coded) in
        [(1, "sift_over_raft_f1", "coded_over_raft_f1"), (2, "sift_over_raft_f2", "coded_over_raft_f2")]
    {
        if options.failures.contains(&failures) {
            figure.ratio(plain, over(Kind::Sift, failures), None);
            figure.ratio(coded, over(Kind::SiftCoded, failures), None);
        }
    }
    figure.curves(Curves { x: "processor_percent", x_log: false, y: "ops_per_second" });
    figure.note(
        "a share is of one processor, for each node of Raft and for the one processor of Sift, its clients included",
    );
    Ok(figure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_found_between_points_and_beyond_them() {
        let points = vec![(25.0, 100.0), (50.0, 200.0), (100.0, 300.0)];
        let curve = Curve { kind: Kind::Sift, failures: 1, points };
        let check = |rate: f64, percent: f64| assert!((curve.percent(rate) - percent).abs() < 1e-9, "{rate}");
        check(50.0, 12.5);
        check(150.0, 37.5);
        check(250.0, 75.0);
        check(400.0, 150.0);
        assert!((curve.rate(75.0) - 250.0).abs() < 1e-9);
    }

    #[test]
    fn a_curve_that_falls_is_not_taken_for_one_that_has_no_answer() {
        let curve = Curve { kind: Kind::Sift, failures: 1, points: vec![(50.0, 200.0), (100.0, 190.0)] };
        assert!(curve.percent(150.0).is_finite() && curve.percent(300.0).is_finite());
    }
}
