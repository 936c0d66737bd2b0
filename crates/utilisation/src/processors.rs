//! Measures how busy the processors of this process are.
//!
//! 1. If the process runs under a quota of processor time (a cgroup's, v1 or v2), what counts is the time that its cgroup
//!    has used, as a share of the quota: the rest of the machine says nothing about it.
//! 2. Otherwise it may use the whole machine. Linux counts in `/proc/stat` how long the processors have worked and idled
//!    since boot, and two readings give the busy share of the time between them. In a container the values are the host's,
//!    which is the right measure for processes that share the host.
//!
//! Which of the two applies is found when the meter is made; a quota is read again with each measurement, since it may be
//! changed while the process runs.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base::rt::{self, Instant};
use cgroup::CpuGroup;
use replica::load::{LoadMeter, NodeLoad, UNKNOWN_PERCENT};

/// How often the processors are read.
const PERIOD: Duration = Duration::from_millis(20);
/// The time over which their use is measured: a few periods of a quota, and of readings. A load that rises is seen with the
/// next reading, and one period that a process used more fully than others is not taken for a load.
const WINDOW: Duration = Duration::from_millis(60);
/// The longest name of processors.
const PROCESSORS_BYTES_MAX: usize = 512;

/// Processor time in the system's ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct CpuTicks {
    all: u64,
    idle: u64,
}

impl CpuTicks {
    /// Parses the first line of `/proc/stat`: `cpu`, then user, nice, system, idle, iowait, interrupts (hard, soft),
    /// and time stolen by other guests. The time of guests that this machine runs is part of user and nice.
    fn parse(stat: &str) -> Option<CpuTicks> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> = line.split_whitespace().take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
        let idle = ticks.get(3)? + ticks.get(4)?;
        Some(CpuTicks { all: ticks.iter().sum(), idle })
    }

    fn now() -> Option<CpuTicks> {
        CpuTicks::parse(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    /// How busy the processors were since an earlier reading; `None` if no tick has passed.
    fn percent_since(&self, earlier: &CpuTicks) -> Option<u8> {
        let all = self.all.checked_sub(earlier.all).filter(|all| *all > 0)?;
        // The iowait counter may go backwards.
        let idle = self.idle.saturating_sub(earlier.idle).min(all);
        Some((100 * (all - idle) / all) as u8)
    }
}

/// What a reading found.
#[derive(Clone, Copy, PartialEq, Debug)]
enum CpuReading {
    Cgroup { used: Duration, quota: f64 },
    Machine(CpuTicks),
}

impl CpuReading {
    fn now(cgroup: Option<&CpuGroup>) -> Option<CpuReading> {
        let limited =
            cgroup.and_then(|cgroup| Some(CpuReading::Cgroup { used: cgroup.used()?, quota: cgroup.quota()? }));
        limited.or_else(|| CpuTicks::now().map(CpuReading::Machine))
    }

    /// How busy the processors were since an earlier reading, this long ago.
    fn percent_since(&self, earlier: &CpuReading, passed: Duration) -> Option<u8> {
        match (self, earlier) {
            (CpuReading::Machine(now), CpuReading::Machine(earlier)) => now.percent_since(earlier),
            (CpuReading::Cgroup { used, quota }, CpuReading::Cgroup { used: earlier, .. }) => {
                let share = used.checked_sub(*earlier)?.as_secs_f64() / (passed.as_secs_f64() * quota);
                // A number in the range, or a saturated one.
                Some((100.0 * share).min(100.0) as u8)
            }
            _ => None,
        }
    }
}

/// What was read within the last [`WINDOW`].
struct LoadSamples {
    at: Instant,
    readings: VecDeque<(Instant, CpuReading)>,
    percent: u8,
}

impl LoadSamples {
    fn new(at: Instant, reading: Option<CpuReading>) -> LoadSamples {
        LoadSamples {
            at,
            readings: reading.map(|reading| (at, reading)).into_iter().collect(),
            percent: UNKNOWN_PERCENT,
        }
    }

    /// Takes a new reading, and measures since the oldest one of the window.
    fn take(&mut self, now: Instant, reading: Option<CpuReading>) {
        let Some(reading) = reading else {
            *self = LoadSamples::new(now, None);
            return;
        };
        // One that is older than the window covers all of it.
        while self.readings.get(1).is_some_and(|(at, _)| now.since(*at) >= WINDOW) {
            self.readings.pop_front();
        }
        let percent = self.readings.front().and_then(|(at, earlier)| reading.percent_since(earlier, now.since(*at)));
        self.at = now;
        self.percent = percent.unwrap_or(UNKNOWN_PERCENT);
        self.readings.push_back((now, reading));
    }
}

/// The load of this process. Cheap to ask: it reads files at most fifty times a second. Its processors have the name of the
/// machine's present run, and of the cgroup if there is a quota.
pub fn of_process() -> NodeLoad {
    let cgroup = CpuGroup::around_process();
    let machine = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let processors = match (machine.trim(), &cgroup) {
        ("", _) => String::new(),
        (machine, None) => machine.to_owned(),
        (machine, Some(cgroup)) => {
            let name = format!("{machine} {}", cgroup.folder().display());
            // Too long a path only keeps two nodes from noticing that they share it.
            if name.len() > PROCESSORS_BYTES_MAX { String::new() } else { name }
        }
    };
    NodeLoad::new(meter(cgroup), &processors)
}

/// Has the computations of contracts leave a part of this process's quota of processor time, if there is one, to
/// everything else ([`rt::compute`]).
pub fn pace_computations() {
    if let Some(cgroup) = CpuGroup::around_process() {
        rt::set_compute_quota(move || cgroup.quota());
    }
}

/// A meter of the processors of this process.
fn meter(cgroup: Option<CpuGroup>) -> LoadMeter {
    let measured = Mutex::new(LoadSamples::new(rt::now(), CpuReading::now(cgroup.as_ref())));
    LoadMeter::new(move || {
        let mut measured = measured.lock().unwrap_or_else(PoisonError::into_inner);
        if measured.at.elapsed() >= PERIOD {
            let reading = CpuReading::now(cgroup.as_ref());
            measured.take(rt::now(), reading);
        }
        measured.percent
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busy_share_of_the_time_between_two_looks() {
        let ticks = |line: &str| CpuTicks::parse(line).expect("it is well formed");
        let before = ticks("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3 4");
        assert_eq!(before, CpuTicks { all: 1000, idle: 850 });
        let cases = [
            ("cpu 175 0 50 800 75 0 0 0", Some(75)),
            ("cpu 100 0 50 900 50 0 0 0", Some(0)),
            ("cpu 200 0 50 800 50 0 0 0", Some(100)),
            ("cpu 150 0 50 850 40 0 0 10", Some(60)),
            ("cpu 100 0 50 800 50 0 0 0", None),
        ];
        for (line, percent) in cases {
            assert_eq!(ticks(line).percent_since(&before), percent, "{line}");
        }
        for line in ["", "cpu", "cpu 1 2 3", "cpu a b c d e", "intr 1 2 3 4 5"] {
            assert_eq!(CpuTicks::parse(line), None, "{line}");
        }
    }

    #[test]
    fn a_quota_is_what_a_process_is_measured_by() {
        let reading = |ms, quota| CpuReading::Cgroup { used: Duration::from_millis(ms), quota };
        let (earlier, second) = (reading(1000, 0.5), Duration::from_secs(1));
        assert_eq!(reading(1250, 0.5).percent_since(&earlier, second), Some(50));
        assert_eq!(reading(1250, 0.25).percent_since(&earlier, second), Some(100), "the quota was lowered");
        assert_eq!(reading(1700, 0.5).percent_since(&earlier, second), Some(100), "it ran ahead of its quota");
        assert_eq!(reading(900, 0.5).percent_since(&earlier, second), None);
    }

    #[test]
    fn a_load_that_rises_is_seen_at_once_and_one_busy_period_is_not_taken_for_one() {
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let reading = |used| Some(CpuReading::Cgroup { used: Duration::from_millis(used), quota: 0.5 });
        let mut samples = LoadSamples::new(at(0), reading(0));
        let mut used = 0;
        // A quota of 10 ms in each 20.
        let mut said = Vec::new();
        for (step, more) in [2, 2, 2, 10, 2, 2, 2, 10, 10, 10, 10].into_iter().enumerate() {
            used += more;
            samples.take(at(20 * (step as u64 + 1)), reading(used));
            said.push(samples.percent);
        }
        assert_eq!(said, [20, 20, 20, 46, 46, 46, 20, 46, 73, 100, 100]);
        samples.take(at(300), None);
        assert_eq!(samples.percent, UNKNOWN_PERCENT);
    }

    #[test]
    fn a_meter_says_a_percentage() {
        rt::production::run(async {
            let load = of_process();
            assert!(load.percent() <= 100);
            assert!(load.shares_with(of_process().processors()), "both run on this machine");
        });
    }
}
