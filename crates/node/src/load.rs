//! Measures how busy this machine's processors are.
//!
//! Linux counts in `/proc/stat` how long the processors have worked and idled since boot. Two readings give the busy
//! share of the time between them. In a container the values are the host's, which is the right measure for processes
//! that share the host.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use replica::offload::{BUSY_PERCENT, LoadMeter};

/// How long a measurement stays valid.
const PERIOD: Duration = Duration::from_millis(100);
/// The value where nothing can be measured: neither idle nor busy.
const UNKNOWN: u8 = BUSY_PERCENT - 1;

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

struct LoadSample {
    at: Instant,
    ticks: Option<CpuTicks>,
    percent: u8,
}

/// A meter of this machine. Cheap to call: it reads `/proc/stat` at most ten times a second.
pub(crate) fn meter() -> LoadMeter {
    let measured = Mutex::new(LoadSample { at: Instant::now(), ticks: CpuTicks::now(), percent: UNKNOWN });
    LoadMeter::new(move || {
        let mut measured = measured.lock().unwrap_or_else(PoisonError::into_inner);
        if measured.at.elapsed() >= PERIOD {
            let ticks = CpuTicks::now();
            let percent = ticks.zip(measured.ticks).and_then(|(now, earlier)| now.percent_since(&earlier));
            *measured = LoadSample { at: Instant::now(), ticks, percent: percent.unwrap_or(UNKNOWN) };
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
    fn a_meter_says_a_percentage() {
        assert!(meter().percent() <= 100);
    }
}
