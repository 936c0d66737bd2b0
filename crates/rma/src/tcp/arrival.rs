//! The deadline for the rest of a frame that has arrived in part.
//!
//! An unfinished frame occupies memory for the part that has arrived. Therefore it may pause for less than a given time P, and
//! its age must stay below P plus the time that the bytes received so far take at [`BYTES_PER_SECOND_MIN`].

use std::time::{Duration, Instant};

/// A frame that arrives more slowly than this ends its connection.
const BYTES_PER_SECOND_MIN: u64 = 64 << 10;

/// A partly received frame.
#[derive(Clone, Copy, Debug)]
pub struct FrameArrival {
    begun: Instant,
    last: Instant,
    /// What its connection had received when the frame started, and when it was last checked.
    received_before: u64,
    received: u64,
}

impl FrameArrival {
    /// A frame of which a part has arrived, on a connection that has received `received` bytes.
    pub fn start(now: Instant, received: u64) -> FrameArrival {
        FrameArrival { begun: now, last: now, received_before: received, received }
    }

    /// Notes that the connection has received `received` bytes by now, and that the frame is still incomplete.
    pub fn extend(&mut self, now: Instant, received: u64) {
        if received != self.received {
            (self.last, self.received) = (now, received);
        }
    }

    /// Whether it should be complete by now.
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
        let mut silent = FrameArrival::start(start, 7);
        assert!(!silent.is_overdue(at(29), PAUSE));
        silent.extend(at(29), 7);
        assert!(silent.is_overdue(at(30), PAUSE), "nothing has come");

        // A byte a second.
        let mut trickling = FrameArrival::start(start, 0);
        let ended = (1..).find(|second| {
            trickling.extend(at(*second), *second);
            trickling.is_overdue(at(*second), PAUSE)
        });
        assert_eq!(ended, Some(30));
    }

    #[test]
    fn a_frame_at_the_least_rate_goes_on_until_it_pauses() {
        let start = crate::tcp::clock();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut steady = FrameArrival::start(start, 1 << 40);
        for second in 1..1000 {
            steady.extend(at(second), (1 << 40) + second * BYTES_PER_SECOND_MIN);
            assert!(!steady.is_overdue(at(second), PAUSE), "after {second} s");
        }
        assert!(!steady.is_overdue(at(1028), PAUSE));
        assert!(steady.is_overdue(at(1029), PAUSE), "it has paused");
    }
}
