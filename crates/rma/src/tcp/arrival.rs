//! How long the rest of a frame may take to come.
//!
//! A frame that a connection has begun and does not finish holds what came of it. So it has a deadline: it may pause for a
//! given time, and arrive no more slowly than [`BYTES_PER_SECOND_MIN`] once as much time has passed.

use std::time::{Duration, Instant};

/// A frame that arrives more slowly than this ends its connection.
const BYTES_PER_SECOND_MIN: u64 = 64 << 10;

/// A frame that is not whole.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    begun: Instant,
    last: Instant,
    /// What its connection had received when it was begun, and when it was last looked at.
    received_before: u64,
    received: u64,
}

impl Arrival {
    /// A frame that a part has come of, on a connection that has received so many bytes.
    pub fn begin(now: Instant, received: u64) -> Arrival {
        Arrival { begun: now, last: now, received_before: received, received }
    }

    /// The connection has received so many bytes by now, and the frame is still not whole.
    pub fn go_on(&mut self, now: Instant, received: u64) {
        if received != self.received {
            (self.last, self.received) = (now, received);
        }
    }

    /// Whether it ought to be whole by now.
    pub fn is_overdue(&self, now: Instant, pause_max: Duration) -> bool {
        let by_rate = Duration::from_secs(self.received.wrapping_sub(self.received_before) / BYTES_PER_SECOND_MIN);
        let (paused, taken) = (now.saturating_duration_since(self.last), now.saturating_duration_since(self.begun));
        paused >= pause_max || taken >= pause_max.saturating_add(by_rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(30);

    #[test]
    fn a_frame_that_pauses_or_trickles_is_overdue() {
        let start = crate::tcp::clock();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut silent = Arrival::begin(start, 7);
        assert!(!silent.is_overdue(at(29), PAUSE));
        silent.go_on(at(29), 7);
        assert!(silent.is_overdue(at(30), PAUSE), "nothing has come");

        // A byte a second.
        let mut trickling = Arrival::begin(start, 0);
        let ended = (1..).find(|second| {
            trickling.go_on(at(*second), *second);
            trickling.is_overdue(at(*second), PAUSE)
        });
        assert_eq!(ended, Some(30));
    }

    #[test]
    fn a_frame_at_the_least_rate_goes_on_until_it_pauses() {
        let start = crate::tcp::clock();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut steady = Arrival::begin(start, 1 << 40);
        for second in 1..1000 {
            steady.go_on(at(second), (1 << 40) + second * BYTES_PER_SECOND_MIN);
            assert!(!steady.is_overdue(at(second), PAUSE), "after {second} s");
        }
        assert!(!steady.is_overdue(at(1028), PAUSE));
        assert!(steady.is_overdue(at(1029), PAUSE), "it has paused");
    }
}
