//! What one rise and fall of the load showed: from its transactions and from the changes of the pool.

use std::time::{Duration, Instant};

use measurement::open_loop::OfferedTransaction;

/// The 99th percentile is back when it is at most this many times the calm one, ...
pub const P99_OVER_CALM: f64 = 2.0;
/// ... over transactions that are due within this time.
pub const P99_WINDOW: Duration = Duration::from_secs(2);
/// How long after its last change a pool counts as scaling.
const SETTLING: Duration = Duration::from_secs(1);
/// The steps in which a window is moved.
const STEP: Duration = Duration::from_millis(50);

/// When the load changed.
#[derive(Clone, Copy, Debug)]
pub struct LoadTimes {
    /// The low load begins.
    pub began: Instant,
    /// It rises.
    pub up: Instant,
    /// It falls.
    pub down: Instant,
    /// The last transaction is due.
    pub ended: Instant,
}

/// One rise and fall.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ScalingSample {
    pub p99_calm_ms: f64,
    /// Of the last seconds of the high load.
    pub p99_high_ms: f64,
    /// The whole time of the high load, if it never was.
    pub p99_back_seconds: f64,
    /// The longest gap while the peer grew, and in as long a time at the same load when nothing changed.
    pub gaps_up_ms: [f64; 2],
    /// The same while it shrank.
    pub gaps_down_ms: [f64; 2],
    /// When the longest gap of the growing peer began, after the rise of the load.
    pub gap_growing_at_seconds: f64,
    /// Transactions that did not become valid.
    pub failed: u64,
}

impl ScalingSample {
    /// The larger of what growing and shrinking added to the longest gap.
    pub fn pause_ms(&self) -> f64 {
        let added = |[scaling, calm]: [f64; 2]| scaling - calm;
        added(self.gaps_up_ms).max(added(self.gaps_down_ms))
    }
}

/// Evaluates the transactions of a load, and the times at which the manager changed something.
///
/// # Errors
/// The pool was still changing when it should have been calm: what was too short.
pub fn evaluate(
    transactions: &[OfferedTransaction],
    changes: &[Instant],
    times: &LoadTimes,
) -> Result<ScalingSample, String> {
    let mut ends: Vec<Instant> =
        transactions.iter().filter(|offered| offered.is_valid()).map(|offered| offered.ended).collect();
    ends.sort_unstable();
    let settled = |from: Instant, to: Instant| {
        let last = changes.iter().filter(|at| (from..to).contains(*at)).max();
        last.map_or(from, |last| (*last + SETTLING).min(to))
    };
    let p99 = |from: Instant, to: Instant| p99_ms(transactions, from, to);
    let (grown, shrunk) = (settled(times.up, times.down), settled(times.down, times.ended));
    if changes.iter().any(|at| (times.began..times.up).contains(at)) {
        return Err("the peer was scaled before the load rose".to_owned());
    }
    // As long a time at the same load, when nothing changed.
    let (growing, shrinking) = (grown - times.up, shrunk - times.down);
    if growing > times.down - grown || shrinking > times.up - times.began {
        let seconds = growing.max(shrinking).as_secs_f64();
        return Err(format!("the peer was scaled for {seconds:.1} s, and was calm for less: give it longer"));
    }
    let gap = |from: Instant, to: Instant| longest_gap(&ends, from, to);
    let gap_ms = |from: Instant, to: Instant| gap(from, to).1;
    let (gap_growing_at, gap_growing_ms) = gap(times.up, grown);
    let p99_calm_ms = p99(times.began, times.up);
    let starts = (0u32..).map(|number| times.up + STEP * number).take_while(|start| *start + P99_WINDOW <= times.down);
    let back = starts.into_iter().find(|start| p99(*start, *start + P99_WINDOW) <= P99_OVER_CALM * p99_calm_ms);
    Ok(ScalingSample {
        p99_calm_ms,
        p99_high_ms: p99(times.down - P99_WINDOW, times.down),
        p99_back_seconds: (back.unwrap_or(times.down) - times.up).as_secs_f64(),
        gaps_up_ms: [gap_growing_ms, gap_ms(times.down - growing, times.down)],
        gap_growing_at_seconds: (gap_growing_at - times.up).as_secs_f64(),
        gaps_down_ms: [gap_ms(times.down, shrunk), gap_ms(times.up - shrinking, times.up)],
        failed: transactions.iter().filter(|offered| !offered.is_valid()).count() as u64,
    })
}

/// The 99th percentile of the latencies of what was due within a time. What failed took for ever.
fn p99_ms(transactions: &[OfferedTransaction], from: Instant, to: Instant) -> f64 {
    let due = transactions.iter().filter(|offered| (from..to).contains(&offered.due));
    let latency = |offered: &OfferedTransaction| match offered.is_valid() {
        true => offered.latency().as_secs_f64() * 1e3,
        false => f64::INFINITY,
    };
    let mut latencies: Vec<f64> = due.map(latency).collect();
    latencies.sort_unstable_by(f64::total_cmp);
    let rank = (latencies.len() * 99).div_ceil(100).saturating_sub(1);
    latencies.get(rank).copied().unwrap_or(f64::INFINITY)
}

/// The longest time without a commit, from one moment to another: when it begins, and its milliseconds.
fn longest_gap(ends: &[Instant], from: Instant, to: Instant) -> (Instant, f64) {
    let within = ends.iter().copied().filter(|at| (from..to).contains(at));
    let (mut last, mut longest) = (from, (from, Duration::ZERO));
    for end in within.chain([to]) {
        if end - last > longest.1 {
            longest = (last, end - last);
        }
        last = end;
    }
    (longest.0, longest.1.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use measurement::outcome::{CommittedTransaction, RejectedTransaction, TransactionStage};

    use super::*;

    /// Transactions that are due every 10 ms for 30 s and take 5 ms each, or what is said of them, by their number.
    fn offered(began: Instant, latency_ms: impl Fn(u64) -> Option<u64>) -> Vec<OfferedTransaction> {
        let offered = (0..3_000).map(|number| {
            let due = began + Duration::from_millis(10 * number);
            let outcome = match latency_ms(number) {
                Some(_) => Ok(CommittedTransaction { code: 0, block: 1, stages: Default::default() }),
                None => Err(RejectedTransaction {
                    stage: TransactionStage::Endorse,
                    status: "UNAVAILABLE",
                    message: String::new(),
                }),
            };
            OfferedTransaction { due, ended: due + Duration::from_millis(latency_ms(number).unwrap_or(1)), outcome }
        });
        offered.collect()
    }

    fn times(began: Instant) -> LoadTimes {
        let after = |seconds| began + Duration::from_secs(seconds);
        LoadTimes { began, up: after(10), down: after(20), ended: after(30) }
    }

    #[test]
    fn a_pause_is_what_scaling_adds_to_the_longest_gap() {
        let began = Instant::now();
        let (at, times) = (|ms| began + Duration::from_millis(ms), times(began));
        // Everything due in the 60 ms after 11 s commits at their end; 2 % are slow for three seconds.
        let latency = |number: u64| match number {
            1_100..1_106 => Some(65 - 10 * (number - 1_100)),
            1_000..1_300 if number.is_multiple_of(50) => Some(100),
            _ => Some(5),
        };
        let changes = [at(10_900), at(12_000), at(20_500), at(21_000)];
        let sample = evaluate(&offered(began, latency), &changes, &times).expect("there is calm");
        assert_eq!(sample.gaps_up_ms.map(f64::round), [70.0, 10.0]);
        assert_eq!((sample.gap_growing_at_seconds * 1e3).round(), 995.0);
        assert_eq!(sample.gaps_down_ms.map(f64::round), [10.0, 10.0]);
        assert_eq!(sample.pause_ms().round(), 60.0);
        assert_eq!((sample.p99_calm_ms.round(), sample.failed), (5.0, 0));
        // Of the two seconds from there on only two in two hundred are slow.
        assert!((1.5..=2.5).contains(&sample.p99_back_seconds), "{sample:?}");
    }

    #[test]
    fn what_fails_is_counted_and_is_never_fast() {
        let began = Instant::now();
        let failing = offered(began, |number| (number < 1_000 || number % 20 > 0).then_some(5));
        let sample = evaluate(&failing, &[], &times(began)).expect("there is calm");
        assert_eq!((sample.failed, sample.p99_back_seconds), (100, 10.0));
    }

    #[test]
    fn a_peer_that_is_never_calm_is_not_measured() {
        let (began, all) = (Instant::now(), |_| Some(5));
        let after = |seconds| began + Duration::from_secs(seconds);
        for changed in [5, 17, 29] {
            let changes = [after(changed)];
            let was_calm = changed == 29;
            let judged = evaluate(&offered(began, all), &changes, &times(began));
            assert_eq!(judged.is_ok(), was_calm, "{changed}: {judged:?}");
        }
    }
}
