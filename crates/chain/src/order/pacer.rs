//! Decides whether a block is cut before a limit of its channel requires it. It does no I/O and reads no clock; the caller
//! passes the time.
//!
//! The channel's limits (messages, bytes, time) are upper bounds. While the orderer is idle, a message gains nothing by
//! waiting for others. While a block is on its way to the disk, waiting costs nothing and makes the next block larger. So
//! waiting messages are cut as soon as both conditions hold:
//!
//! 1. No block is *in flight*, that is, cut and not yet committed.
//! 2. [`GAP`] times the usual *service time* has passed since the last cut. The service time is the time from a cut until
//!    its block is committed.
//!
//! Because of the first condition a lone message is cut at once, and blocks grow with the load. The second condition leaves
//! the disk and the cores as much time for everything else as for each block. Without it a busy orderer would cut small
//! blocks as fast as its disk takes them, and each block costs every peer of the channel a signature, an fsync and a dozen
//! hand-offs. A client that waits for its commit before it sends the next message is usually not delayed by the second
//! condition: its block was made durable first by the orderer and then by its peer. If the peer takes at least as long as the
//! orderer, [`GAP`] service times have passed.
//!
//! Invariants: the decision uses only the orderer's own log, so neither a slow or lying peer nor another organisation
//! influences when blocks are cut. No limit is ever exceeded: the [cutter](super::cutter) cuts at the limits whatever is in
//! flight. Whether a block is valid does not depend on when it was cut.

use std::collections::VecDeque;
use std::time::Duration;

use base::rt::Instant;

/// Service times between two cuts.
pub const GAP: u32 = 2;
/// The largest number of blocks in flight that are tracked; engines allow fewer.
const UNDER_WAY_MAX: usize = 64;
/// The usual service time is a moving average: each new one counts for one part in this many.
const SMOOTHING: u32 = 8;

/// The blocks of one term that are in flight.
#[derive(Debug, Default)]
pub struct CutPacer {
    /// Number and time of the cut, oldest first.
    under_way: VecDeque<(u64, Instant)>,
    /// The usual time from a cut until the block is committed.
    service: Duration,
    last_cut: Option<Instant>,
}

impl CutPacer {
    /// A block was cut.
    pub fn cut(&mut self, number: u64, now: Instant) {
        if self.under_way.len() == UNDER_WAY_MAX {
            self.under_way.pop_front();
        }
        self.under_way.push_back((number, now));
        self.last_cut = Some(now);
    }

    /// All blocks below `height` are committed.
    pub fn committed(&mut self, height: u64, now: Instant) {
        while let Some((number, cut)) = self.under_way.front()
            && *number < height
        {
            self.service = (self.service * (SMOOTHING - 1) + (now - *cut)) / SMOOTHING;
            self.under_way.pop_front();
        }
    }

    /// Whether a block is in flight.
    pub fn is_busy(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// The time from which waiting messages are cut; `None` while a block is in flight.
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

    /// A pace for which blocks usually take this long, and the time at which the last of them was committed.
    fn used_to(milliseconds: u64) -> (CutPacer, Instant) {
        let mut pace = CutPacer::default();
        let mut now = at(1_000);
        for number in 0..100 {
            pace.cut(number, now);
            now += Duration::from_millis(milliseconds);
            pace.committed(number + 1, now);
        }
        (pace, now)
    }

    #[test]
    fn messages_are_cut_at_once_while_nothing_is_under_way() {
        let mut pace = CutPacer::default();
        assert_eq!(pace.due(), Some(at(0)));
        pace.cut(5, at(10));
        assert_eq!(pace.due(), None);
        pace.committed(5, at(12));
        assert_eq!(pace.due(), None, "block 5 is not among the first five");
        pace.committed(6, at(18));
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
            pace.committed(number + 1, now);
        }
    }

    #[test]
    fn a_disk_that_gets_slow_or_fast_again_is_noticed_within_some_blocks() {
        let (mut pace, mut now) = used_to(1);
        for number in 100..130 {
            pace.cut(number, now);
            now += Duration::from_millis(100);
            pace.committed(number + 1, now);
        }
        assert!(pace.service > Duration::from_millis(95), "{pace:?}");
        for number in 130..190 {
            pace.cut(number, now);
            now += Duration::from_millis(1);
            pace.committed(number + 1, now);
        }
        assert!(pace.service < Duration::from_millis(2), "{pace:?}");
    }

    #[test]
    fn blocks_that_limits_cut_do_not_gather() {
        let mut pace = CutPacer::default();
        (0..1_000).for_each(|number| pace.cut(number, at(number)));
        assert_eq!(pace.under_way.len(), UNDER_WAY_MAX);
        pace.committed(999, at(1_000));
        assert!(pace.is_busy());
        pace.committed(1_000, at(1_001));
        assert!(!pace.is_busy());
    }
}
