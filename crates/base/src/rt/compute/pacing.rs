//! Keeps computations below the quota of processor time of their process.
//!
//! The kernel enforces a quota by period: once the threads of a process have used it up, all of them stand still until the
//! period ends, those with a high priority too. So the computations must leave a part of the quota to the other threads:
//!
//! 1. Credit accrues at [`SHARE`] of the quota, up to [`CREDIT_MAX`]. All processor time of the process is taken from it.
//! 2. Credit of the computations' own accrues at [`OWN_SHARE`] of the quota. Only their time is taken from it: however busy
//!    the other threads are, computations go on.
//! 3. Before each slice of a computation its thread waits until there is credit of either kind.
//! 4. If the quota is below one processor, one computation is in progress at a time: several would use the credit that each
//!    of them has seen, and the first would end later.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

use super::super::time::{Instant, now};

/// The part of the quota up to which the process computes.
const SHARE: f64 = 0.9;
/// The part of the quota that computations get in any case.
const OWN_SHARE: f64 = 0.5;
/// The credit of each kind that can be saved up, in processor time: about that of one slice.
const CREDIT_MAX: Duration = Duration::from_millis(1);
/// How often the quota is read: it may change while the process runs.
const QUOTA_PERIOD: Duration = Duration::from_millis(50);

type ReadQuota = Box<dyn Fn() -> Option<f64> + Send + Sync>;

static QUOTA: OnceLock<ReadQuota> = OnceLock::new();
static PACE: Mutex<Pace> = Mutex::new(Pace::NEW);

/// Says how to read the quota of this process, in processors; `None` is no quota. It is read twenty times a second while
/// something computes. Only the first call has an effect.
pub fn set_compute_quota(read: impl Fn() -> Option<f64> + Send + Sync + 'static) {
    let _ = QUOTA.set(Box::new(read));
}

/// Waits until a slice may run. Blocks this thread, whose only work are computations.
pub(super) fn wait_for_credit() {
    let Some(read) = QUOTA.get() else { return };
    let mut pace = PACE.lock().unwrap_or_else(PoisonError::into_inner);
    let at = now();
    let Some(quota) = pace.quota(at, read) else { return };
    let wait = pace.wait(at, processor_time(ClockId::ProcessCPUTime), quota);
    if !wait.is_zero() {
        // The others have to wait as well, also for this lock.
        #[allow(clippy::disallowed_methods, reason = "nothing but computations runs on this thread")]
        std::thread::sleep(wait);
    }
}

/// A slice has used this processor time.
pub(super) fn used(time: Duration) {
    if QUOTA.get().is_some() {
        PACE.lock().unwrap_or_else(PoisonError::into_inner).computed += time;
    }
}

/// Whether one computation is to be in progress at a time.
pub(super) fn is_below_one_processor() -> bool {
    let quota = QUOTA.get().and_then(|read| PACE.lock().unwrap_or_else(PoisonError::into_inner).quota(now(), read));
    quota.is_some_and(|quota| quota < 1.0)
}

/// The processor time of this thread or process.
pub(super) fn processor_time(clock: ClockId) -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(clock);
    Duration::from_secs(tv_sec.unsigned_abs()) + Duration::from_nanos(tv_nsec.unsigned_abs())
}

/// The credit of the computations.
#[derive(Debug)]
struct Pace {
    /// Both kinds, in nanoseconds of processor time; negative if more was used.
    common: f64,
    own: f64,
    /// When the credit was counted last, and the processor time of the process used by then.
    counted: Option<(Instant, Duration)>,
    /// The processor time of computations since then.
    computed: Duration,
    /// The quota, when it was read last.
    read: Option<(Instant, Option<f64>)>,
}

impl Pace {
    const NEW: Pace = Pace { common: 0.0, own: 0.0, counted: None, computed: Duration::ZERO, read: None };

    fn quota(&mut self, now: Instant, read: &ReadQuota) -> Option<f64> {
        match self.read {
            Some((at, quota)) if now.since(at.min(now)) < QUOTA_PERIOD => quota,
            _ => self.read.insert((now, read())).1,
        }
    }

    /// How long to wait before the next slice. The process has `used` this processor time so far.
    fn wait(&mut self, now: Instant, used: Duration, quota: f64) -> Duration {
        let (since, used_then) = self.counted.replace((now, used)).unwrap_or((now, used));
        let nanos = |duration: Duration| duration.as_nanos() as f64;
        let passed = nanos(now.since(since.min(now)));
        let computed = std::mem::take(&mut self.computed);
        let count = |credit: f64, share: f64, used: Duration| {
            (credit + share * quota * passed - nanos(used)).clamp(-nanos(CREDIT_MAX), nanos(CREDIT_MAX))
        };
        // Neither what the other threads use too much, nor what computations use beyond their own share while the others are
        // idle, is owed later.
        self.common = count(self.common, SHARE, used.saturating_sub(used_then));
        self.own = count(self.own, OWN_SHARE, computed);
        let waits = [(self.common, SHARE), (self.own, OWN_SHARE)].map(|(credit, share)| -credit / (share * quota));
        Duration::from_nanos(waits[0].min(waits[1]).max(0.0) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    struct Computing {
        pace: Pace,
        at: Duration,
        used: Duration,
    }

    impl Computing {
        fn new() -> Computing {
            Computing { pace: Pace::NEW, at: Duration::ZERO, used: Duration::ZERO }
        }

        /// Computes in slices of a millisecond for a second. Before each slice other threads use this processor time. Returns
        /// the processor time of the computations.
        fn for_a_second(&mut self, quota: f64, others: Duration) -> Duration {
            let (end, mut computed) = (self.at + Duration::from_secs(1), Duration::ZERO);
            while self.at < end {
                self.at += others;
                self.used += others;
                self.at += self.pace.wait(Instant::from_nanos(self.at.as_nanos() as u64), self.used, quota);
                self.at += MS;
                self.used += MS;
                self.pace.computed += MS;
                computed += MS;
            }
            computed
        }
    }

    fn computed(quota: f64, others: Duration) -> Duration {
        Computing::new().for_a_second(quota, others)
    }

    #[test]
    fn computations_use_their_share_of_the_quota() {
        for quota in [0.1, 0.3, 0.7] {
            let share = computed(quota, Duration::ZERO).as_secs_f64() / quota;
            assert!((SHARE - 0.05..SHARE + 0.05).contains(&share), "{quota}: {share}");
        }
    }

    #[test]
    fn a_quota_of_several_processors_delays_nothing() {
        assert_eq!(computed(2.0, Duration::ZERO), Duration::from_secs(1));
    }

    #[test]
    fn the_time_of_other_threads_is_taken_from_the_computations() {
        let (alone, beside) = (computed(0.5, Duration::ZERO), computed(0.5, MS / 2));
        assert!(beside < alone * 3 / 4, "{beside:?} of {alone:?}");
    }

    #[test]
    fn computations_go_on_however_busy_the_others_are() {
        let mut computing = Computing::new();
        for _ in 0..2 {
            let share = computing.for_a_second(0.2, 4 * MS).as_secs_f64() / 0.2;
            assert!((OWN_SHARE - 0.05..OWN_SHARE + 0.05).contains(&share), "{share}");
            // They owe nothing for what they use while the others are idle.
            computing.for_a_second(0.2, Duration::ZERO);
        }
    }

    #[test]
    fn a_quota_is_read_again_after_a_while() {
        let mut pace = Pace::NEW;
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let quota = |quota| -> ReadQuota { Box::new(move || quota) };
        assert_eq!(pace.quota(at(0), &quota(Some(0.3))), Some(0.3));
        assert_eq!(pace.quota(at(49), &quota(None)), Some(0.3));
        assert_eq!(pace.quota(at(50), &quota(None)), None);
    }
}
