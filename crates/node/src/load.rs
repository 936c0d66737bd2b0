//! How busy this machine's processors are.
//!
//! Linux counts in `/proc/stat` how long they have worked and idled since it was started. Two looks at it give the share of the
//! time between them. In a container these are the host's, which is what counts for whoever shares it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use chain::validate::borrow::{BUSY_PERCENT, Meter};

/// How long a measurement is good for.
const PERIOD: Duration = Duration::from_millis(100);
/// Where nothing can be measured: neither idle nor in need.
const UNKNOWN: u8 = BUSY_PERCENT - 1;

/// Processors' time, in the system's ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ticks {
    all: u64,
    idle: u64,
}

impl Ticks {
    /// Of the first line of `/proc/stat`: `cpu`, then user, nice, system, idle, waiting for disks, interrupts (hard, soft), and
    /// what other guests took. Guests of this machine are in user and nice.
    fn parse(stat: &str) -> Option<Ticks> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> = line.split_whitespace().take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
        let idle = ticks.get(3)? + ticks.get(4)?;
        Some(Ticks { all: ticks.iter().sum(), idle })
    }

    fn now() -> Option<Ticks> {
        Ticks::parse(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    /// How busy the processors were since an earlier look; nothing where no tick has passed.
    fn percent_since(&self, earlier: &Ticks) -> Option<u8> {
        let all = self.all.checked_sub(earlier.all).filter(|all| *all > 0)?;
        // What waits for disks may be counted backwards.
        let idle = self.idle.saturating_sub(earlier.idle).min(all);
        Some((100 * (all - idle) / all) as u8)
    }
}

struct Measured {
    at: Instant,
    ticks: Option<Ticks>,
    percent: u8,
}

/// A meter of this machine. Cheap to ask: it looks ten times a second at most.
pub(crate) fn meter() -> Meter {
    let measured = Mutex::new(Measured { at: Instant::now(), ticks: Ticks::now(), percent: UNKNOWN });
    Meter::new(move || {
        let mut measured = measured.lock().unwrap_or_else(PoisonError::into_inner);
        if measured.at.elapsed() >= PERIOD {
            let ticks = Ticks::now();
            let percent = ticks.zip(measured.ticks).and_then(|(now, earlier)| now.percent_since(&earlier));
            *measured = Measured { at: Instant::now(), ticks, percent: percent.unwrap_or(UNKNOWN) };
        }
        measured.percent
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busy_share_of_the_time_between_two_looks() {
        let ticks = |line: &str| Ticks::parse(line).expect("it is well formed");
        let before = ticks("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3 4");
        assert_eq!(before, Ticks { all: 1000, idle: 850 });
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
            assert_eq!(Ticks::parse(line), None, "{line}");
        }
    }

    #[test]
    fn a_meter_says_a_percentage() {
        assert!(meter().percent() <= 100);
    }
}
