//! Whether a block is cut before a limit of its channel asks for it: pure state, told the time.
//!
//! The channel's limits (messages, bytes, time) are upper bounds. A message that waits for company while the orderer has nothing
//! to do waits for nothing; one that waits while a block is on its way to the disk costs nothing and makes the next block larger.
//! So messages that wait are cut
//!
//! 1. once no block is *under way*: cut and not yet safe;
//! 2. and not before [`GAP`] times the usual *service time*, from a cut until its block is safe, has passed since the last cut.
//!
//! The first rule lets a lone message go at once, and blocks grow with the load. The second one leaves the disk and the processors as
//! much time for everything else as for each block: without it a busy orderer would cut small blocks as fast as its disk takes
//! them, and each block costs every peer of the channel a signature, an fsync and a dozen hand-offs. A client that waits for its commit before it
//! sends the next message never meets it: by then its peer has made the block durable too.
//!
//! Invariants: an orderer asks nobody but its own log, so that no slow or lying peer and no other organisation changes when blocks
//! are cut. No limit is ever exceeded: the [cutter](super::cutter) cuts at them whatever is under way. Whether a block is valid depends on
//! none of this.

use std::collections::VecDeque;
use std::time::Duration;

use base::rt::Instant;

/// Service times between two cuts.
pub const GAP: u32 = 2;
/// Blocks under way that are remembered; engines allow fewer.
const UNDER_WAY_MAX: usize = 64;
/// The usual service time is a moving average: each new one counts for one part in this many.
const SMOOTHING: u32 = 8;

/// The blocks of one reign that are under way.
#[derive(Debug, Default)]
pub struct Pace {
    /// Number and cut, oldest first.
    under_way: VecDeque<(u64, Instant)>,
    /// The usual time from a cut until the block is safe.
    service: Duration,
    last_cut: Option<Instant>,
}

impl Pace {
    /// A block was cut.
    pub fn cut(&mut self, number: u64, now: Instant) {
        if self.under_way.len() == UNDER_WAY_MAX {
            self.under_way.pop_front();
        }
        self.under_way.push_back((number, now));
        self.last_cut = Some(now);
    }

    /// All blocks below `height` are safe.
    pub fn safe(&mut self, height: u64, now: Instant) {
        while let Some((number, cut)) = self.under_way.front()
            && *number < height
        {
            self.service = (self.service * (SMOOTHING - 1) + (now - *cut)) / SMOOTHING;
            self.under_way.pop_front();
        }
    }

    /// Whether a block is under way.
    pub fn is_busy(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// From when on waiting messages are cut; nothing while a block is under way.
    pub fn due(&self) -> Option<Instant> {
        let due = self.last_cut.map_or(Instant::default(), |cut| cut + self.service * GAP);
        (!self.is_busy()).then_some(due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Instant {
        Instant::from_nanos(milliseconds * 1_000_000)
    }

    /// A pace for which blocks usually take this long, and the time at which the last of them became safe.
    fn used_to(milliseconds: u64) -> (Pace, Instant) {
        let mut pace = Pace::default();
        let mut now = at(1_000);
        for number in 0..100 {
            pace.cut(number, now);
            now += Duration::from_millis(milliseconds);
            pace.safe(number + 1, now);
        }
        (pace, now)
    }

    #[test]
    fn messages_are_cut_at_once_while_nothing_is_under_way() {
        let mut pace = Pace::default();
        assert_eq!(pace.due(), Some(at(0)));
        pace.cut(5, at(10));
        assert_eq!(pace.due(), None);
        pace.safe(5, at(12));
        assert_eq!(pace.due(), None, "block 5 is not among the first five");
        pace.safe(6, at(18));
        assert!(pace.due().is_some_and(|due| due <= at(18)), "one slow block is not the usual one");
    }

    #[test]
    fn blocks_follow_one_another_at_twice_their_usual_time() {
        let (pace, now) = used_to(4);
        let due = pace.due().expect("nothing is under way");
        let cut = now - Duration::from_millis(4);
        let gap = due - cut;
        assert!((Duration::from_micros(7_900)..=Duration::from_millis(8)).contains(&gap), "{gap:?}");
    }

    #[test]
    fn a_client_that_waits_for_its_commit_is_never_held_up() {
        // Its peer takes as long as the orderer to make the block durable, and then it sends the next message.
        let (mut pace, mut now) = used_to(3);
        for number in 100..200 {
            now += Duration::from_millis(3);
            assert!(pace.due().is_some_and(|due| due <= now), "block {number}");
            pace.cut(number, now);
            now += Duration::from_millis(3);
            pace.safe(number + 1, now);
        }
    }

    #[test]
    fn a_disk_that_gets_slow_or_fast_again_is_noticed_within_some_blocks() {
        let (mut pace, mut now) = used_to(1);
        for number in 100..130 {
            pace.cut(number, now);
            now += Duration::from_millis(100);
            pace.safe(number + 1, now);
        }
        assert!(pace.service > Duration::from_millis(95), "{pace:?}");
        for number in 130..190 {
            pace.cut(number, now);
            now += Duration::from_millis(1);
            pace.safe(number + 1, now);
        }
        assert!(pace.service < Duration::from_millis(2), "{pace:?}");
    }

    #[test]
    fn blocks_that_limits_cut_do_not_gather() {
        let mut pace = Pace::default();
        (0..1_000).for_each(|number| pace.cut(number, at(number)));
        assert_eq!(pace.under_way.len(), UNDER_WAY_MAX);
        pace.safe(999, at(1_000));
        assert!(pace.is_busy());
        pace.safe(1_000, at(1_001));
        assert!(!pace.is_busy());
    }
}
