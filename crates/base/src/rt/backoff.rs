//! Back-off: growing pauses between the attempts of an operation that fails.

use std::time::Duration;

use super::{Sleep, random_below, sleep};

/// The pauses between the attempts of one operation: the first is the shortest, and each is twice the one before, up to the
/// longest.
///
/// ```
/// # use base::rt::Backoff;
/// # use std::time::Duration;
/// # base::rt::production::run(async {
/// let mut backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(3));
/// assert_eq!(backoff.next_pause(), Duration::from_millis(1));
/// assert_eq!(backoff.next_pause(), Duration::from_millis(2));
/// backoff.wait().await; // 3 ms: no pause is longer.
/// backoff.reset(); // An attempt has succeeded.
/// assert_eq!(backoff.next_pause(), Duration::from_millis(1));
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct Backoff {
    pause: Duration,
    pause_min: Duration,
    pause_max: Duration,
    is_spread: bool,
}

impl Backoff {
    /// A back-off whose pauses grow from `pause_min` to `pause_max`.
    pub const fn new(pause_min: Duration, pause_max: Duration) -> Backoff {
        Backoff { pause: pause_min, pause_min, pause_max, is_spread: false }
    }

    /// A back-off with jitter: each pause is drawn between half of its length and all of it, so that clients that have lost
    /// the same server do not return to it all at once.
    pub const fn spread(pause_min: Duration, pause_max: Duration) -> Backoff {
        Backoff { is_spread: true, ..Backoff::new(pause_min, pause_max) }
    }

    /// The pause before the next attempt; the pause after it is twice as long.
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = pause.saturating_mul(2).min(self.pause_max);
        if !self.is_spread {
            return pause;
        }
        let half = pause / 2;
        let half_ns = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX - 1);
        half + Duration::from_nanos(random_below(half_ns + 1))
    }

    /// Sleeps for [`Backoff::next_pause`]. Dropping the sleep is safe; its pause counts as taken.
    pub fn wait(&mut self) -> Sleep {
        sleep(self.next_pause())
    }

    /// Starts over with the shortest pause, after an attempt has succeeded.
    pub const fn reset(&mut self) {
        self.pause = self.pause_min;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rt::simulation::Simulation;

    #[test]
    fn pauses_double_up_to_the_longest_until_an_attempt_succeeds() {
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(100));
        let pauses: Vec<u128> = (0..5).map(|_| backoff.next_pause().as_millis()).collect();
        assert_eq!(pauses, [20, 40, 80, 100, 100]);
        backoff.reset();
        assert_eq!(backoff.next_pause(), Duration::from_millis(20));
    }

    #[test]
    fn a_spread_pause_is_between_half_and_all_of_its_length() {
        let run = Simulation::new(3).run(|_| async {
            let mut backoff = Backoff::spread(Duration::from_millis(20), Duration::from_millis(40));
            let first = backoff.next_pause();
            assert!((Duration::from_millis(10)..=Duration::from_millis(20)).contains(&first), "{first:?}");
            let later: Vec<Duration> = (0..64).map(|_| backoff.next_pause()).collect();
            assert!(later.iter().all(|pause| (Duration::from_millis(20)..=Duration::from_millis(40)).contains(pause)));
            assert!(later.iter().min() < later.iter().max(), "and they differ");
        });
        run.expect("the run succeeds");
    }
}
