//! Leases between two clocks: how long a holder may act, and how long others must wait.
//!
//! A **holder** acts under a lease for some time by its own clock; the **grantor**, or the node that acts after the
//! holder, waits by another clock until the lease has certainly ended. The rule does not depend on when messages
//! arrive. It needs only a bound on the drift of clocks: a working clock runs at most [`CLOCK_DRIFT_PPM_MAX`]
//! millionths faster or slower than true time. Call this bound d.
//!
//! 1. The holder records its time `a` and requests the lease. Once granted, it acts until `a + L`, however late the
//!    grant arrives.
//! 2. The grantor grants the lease at its time `g`. The request was sent after `a`, so `g` is no earlier than `a` in
//!    true time.
//! 3. The grantor waits until `g + W`.
//!
//! **Proof** that the lease has ended when the wait ends, if W ≥ L × (1 + d) / (1 − d). The holder's clock is slow by d
//! at worst, so in true time the lease ends at the latest L / (1 − d) after `a`. The grantor's clock is fast by d at
//! worst, so in true time the grantor waits at least W / (1 + d) after `g`. That is at least L / (1 − d) after `g`, and
//! `g` is not before `a`.
//!
//! [`waited`] calculates W from L. [`held`] calculates L from W, where the wait is given instead: a Raft voter promises
//! to abstain for W. Both round to the safe side. The users are the leases of a consensus group's coordinator
//! (`SiftTimeouts`), of a Raft leader (`RaftTimeouts`), and of a peer's primary and its followers (`replica::lease`).

use std::time::Duration;

/// How much faster or slower than true time a clock may run, in millionths: far more than any working clock does.
pub const CLOCK_DRIFT_PPM_MAX: u64 = 10_000;

const SLOW: u128 = 1_000_000 - CLOCK_DRIFT_PPM_MAX as u128;
const FAST: u128 = 1_000_000 + CLOCK_DRIFT_PPM_MAX as u128;

/// How long a grantor waits, by its clock, until a lease of length `held` by its holder's clock has certainly ended.
///
/// Panics if the result exceeds 584 years.
pub const fn waited(held: Duration) -> Duration {
    from_nanos((held.as_nanos() * FAST).div_ceil(SLOW))
}

/// How long a holder may act, by its clock, under a lease whose grantor waits for `waited` by its own clock.
///
/// Panics if the result exceeds 584 years.
pub const fn held(waited: Duration) -> Duration {
    from_nanos(waited.as_nanos() * SLOW / FAST)
}

const fn from_nanos(nanos: u128) -> Duration {
    assert!(nanos <= u64::MAX as u128, "no lease lasts for centuries");
    Duration::from_nanos(nanos as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// True time in which a clock that is fast by `ppm` shows `duration`.
    fn true_ns(duration: Duration, ppm: i64) -> f64 {
        duration.as_nanos() as f64 / (1.0 + ppm as f64 / 1e6)
    }

    #[test]
    fn the_slowest_holder_has_stopped_before_the_fastest_grantor_continues_and_hardly_earlier() {
        let drift = CLOCK_DRIFT_PPM_MAX as i64;
        for ms in [1, 18, 50, 190, 400, 475, 3_600_000] {
            let lease = Duration::from_millis(ms);
            let (stops, continues) = (true_ns(lease, -drift), true_ns(waited(lease), drift));
            assert!(stops <= continues && continues < stops * 1.000_01, "{lease:?}");
            let (stops, continues) = (true_ns(held(lease), -drift), true_ns(lease, drift));
            assert!(stops <= continues && continues < stops * 1.000_01, "{lease:?}");
        }
    }

    #[test]
    fn rounding_is_to_the_safe_side() {
        for ns in (0..1_000).chain(u64::MAX / 2..u64::MAX / 2 + 1_000) {
            let lease = Duration::from_nanos(ns);
            assert!(held(waited(lease)) >= lease, "a grantor waits for all of the lease");
            assert!(waited(held(lease)) <= lease, "a holder stops within the wait");
        }
    }
}
