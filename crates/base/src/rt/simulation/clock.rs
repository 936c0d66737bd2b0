//! Clocks of nodes, which run fast or slow at a rate that a run may change.

use super::ids::NodeId;
use super::world::WorldCore;

/// The most that a node's clock may drift either way, in millionths of true time: far more than any working clock does.
pub const CLOCK_DRIFT_PPM_MAX: i64 = crate::lease::CLOCK_DRIFT_PPM_MAX as i64;
/// Millionths.
const MILLION: u128 = 1_000_000;

/// A node's clock: its reading at some true time, and its rate since then.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct NodeClock {
    true_nanos: u64,
    shown_nanos: u64,
    drift_ppm: i64,
}

impl NodeClock {
    /// The nanoseconds that it counts in a million true ones.
    fn rate(&self) -> u128 {
        MILLION.saturating_add_signed(i128::from(self.drift_ppm))
    }

    /// Its reading at a true time that is not before the last change of its rate. Never goes back as time passes.
    pub(super) fn shown(&self, true_nanos: u64) -> u64 {
        let passed = u128::from(true_nanos.saturating_sub(self.true_nanos)) * self.rate() / MILLION;
        self.shown_nanos.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX))
    }

    /// The first true time at which it shows `shown_nanos` or more.
    pub(super) fn true_time(&self, shown_nanos: u64) -> u64 {
        let to_pass = u128::from(shown_nanos.saturating_sub(self.shown_nanos));
        let passed = (to_pass * MILLION).div_ceil(self.rate());
        self.true_nanos.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX))
    }

    /// Changes its rate. Returns false when it has that rate already.
    pub(super) fn set_drift(&mut self, now: u64, drift_ppm: i64) -> bool {
        if self.drift_ppm == drift_ppm {
            return false;
        }
        *self = NodeClock { true_nanos: now, shown_nanos: self.shown(now), drift_ppm };
        true
    }

    pub(super) fn drift_ppm(&self) -> i64 {
        self.drift_ppm
    }
}

impl WorldCore {
    /// The reading of a node's clock.
    pub(super) fn clock_of(&self, node: NodeId) -> u64 {
        self.nodes[node.index()].clock.shown(self.clock)
    }

    /// The true time at which the clock of a node will show `shown_nanos`, if its rate does not change.
    pub(super) fn true_time(&self, node: NodeId, shown_nanos: u64) -> u64 {
        self.nodes[node.index()].clock.true_time(shown_nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn clocks_never_go_back_and_deadlines_are_met_at_the_first_moment(
            changes in proptest::collection::vec((0u64..1 << 40, -CLOCK_DRIFT_PPM_MAX..=CLOCK_DRIFT_PPM_MAX), 0..20),
            ahead in 0u64..1 << 40,
        ) {
            let (mut clock, mut now) = (NodeClock::default(), 0);
            for (passed, drift_ppm) in changes {
                let before = clock.shown(now);
                now += passed;
                let shown = clock.shown(now);
                prop_assert!(shown >= before);
                clock.set_drift(now, drift_ppm);
                prop_assert_eq!(clock.shown(now), shown);
                let deadline = shown + ahead;
                let due = clock.true_time(deadline);
                prop_assert!(clock.shown(due) >= deadline);
                prop_assert!(due == now || clock.shown(due - 1) < deadline);
            }
        }
    }

    #[test]
    fn a_clock_without_drift_shows_the_true_time() {
        let clock = NodeClock::default();
        assert_eq!((clock.shown(u64::MAX), clock.true_time(u64::MAX)), (u64::MAX, u64::MAX));
    }
}
