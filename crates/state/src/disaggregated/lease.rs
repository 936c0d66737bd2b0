//! Leases: for how long a reader may use an address that it has learnt.
//!
//! A reader uses addresses only within [`LEASE`] of the moment at which it began to look, by its own clock. Whatever it has
//! read when that time is over it throws away, and begins anew: it is fenced, and nobody waits for it. The primary uses a
//! buffer again only [`REUSE_AFTER`] after nothing has led to it any more, by its own clock.
//!
//! Why that suffices: let nothing lead to the buffer from time `t` on. A reader that holds its address began before `t`, so
//! its lease ends before `t + LEASE` by its clock. Clocks run at most [`DRIFT_PPM_MAX`] faster or slower than true time. So in
//! true time the lease takes at most `LEASE / (1 - d)`; the primary waits at least `REUSE_AFTER / (1 + d)`, which is no less.
//!
//! A compute node that serves from its caches holds a lease from the primary, which renews it ([`Grantor`]). The primary
//! answers a block as applied once every holder has acknowledged its invalidation or its lease has run out. The primary's
//! own reads need no such lease: its caches change before the height does.

use std::collections::BTreeMap;
use std::time::Duration;

use base::rt::Instant;

/// How long a lease lasts by its holder's clock.
pub const LEASE: Duration = Duration::from_millis(50);
/// How much faster or slower than true time clocks may run.
pub const DRIFT_PPM_MAX: u64 = 10_000;
/// How long the primary waits, by its clock, for every lease granted before to have ended.
pub const REUSE_AFTER: Duration =
    Duration::from_nanos((LEASE.as_nanos() as u64 * (1_000_000 + DRIFT_PPM_MAX)).div_ceil(1_000_000 - DRIFT_PPM_MAX));
/// Holders that one primary has at most.
pub const HOLDERS_MAX: usize = 256;

const _: () = assert!(REUSE_AFTER.as_nanos() > LEASE.as_nanos());

/// The right to use what one learns, until it ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    ends: Instant,
}

impl Lease {
    /// One that begins now, or has begun already, by the clock of who holds it.
    #[inline]
    pub fn begin(begun: Instant) -> Lease {
        Lease { ends: begun + LEASE }
    }

    /// Whether what was learnt under it may still be used.
    #[inline]
    pub fn is_live(&self, now: Instant) -> bool {
        now < self.ends
    }
}

/// A compute node that holds leases.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HolderId(pub u32);

/// The primary's record of who may be serving from caches.
///
/// 1. A holder asks at its time `a`; its lease ends at `a + LEASE` by its clock. 2. The primary grants at its time `g`, which
///    is truly later than `a`. 3. So from `g + REUSE_AFTER` on, by the primary's clock, that lease has ended.
#[derive(Debug, Default)]
pub struct Grantor {
    granted: BTreeMap<HolderId, Instant>,
}

impl Grantor {
    /// Grants or renews; false when there are too many holders.
    pub fn grant(&mut self, holder: HolderId, now: Instant) -> bool {
        if self.granted.len() >= HOLDERS_MAX && !self.granted.contains_key(&holder) {
            return false;
        }
        self.granted.insert(holder, now);
        true
    }

    /// Gives no further lease to a holder; says when its last one has ended.
    pub fn fence(&mut self, holder: HolderId, now: Instant) -> Instant {
        self.granted.remove(&holder).map_or(now, |granted| granted + REUSE_AFTER)
    }

    /// When a holder's last lease has ended; `None` where it was never granted any.
    pub fn ends(&self, holder: HolderId) -> Option<Instant> {
        self.granted.get(&holder).map(|granted| *granted + REUSE_AFTER)
    }

    /// Forgets holders whose leases have ended.
    pub fn expire(&mut self, now: Instant) {
        self.granted.retain(|_, granted| *granted + REUSE_AFTER > now);
    }

    /// Whether anybody's lease may still be live.
    pub fn holders(&self) -> impl Iterator<Item = HolderId> + '_ {
        self.granted.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use base::rt;

    use super::*;

    #[test]
    fn a_buffer_is_used_again_only_after_the_slowest_lease_by_the_fastest_clock() {
        let true_time = |nanos: u64, ppm: i64| nanos as f64 / (1.0 + ppm as f64 / 1e6);
        let drift = DRIFT_PPM_MAX as i64;
        let lease = true_time(LEASE.as_nanos() as u64, -drift);
        assert!(true_time(REUSE_AFTER.as_nanos() as u64, drift) >= lease);
        assert!(true_time(REUSE_AFTER.as_nanos() as u64, drift) < lease * 1.001, "and hardly later");
    }

    #[test]
    fn a_holder_that_is_fenced_is_waited_for_as_long_as_its_lease_and_no_longer() {
        rt::production::run(async {
            let now = rt::now();
            let mut grantor = Grantor::default();
            let lease = Lease::begin(now);
            assert!(grantor.grant(HolderId(1), now));
            let ended = grantor.fence(HolderId(1), now + Duration::from_millis(1));
            assert_eq!(ended, now + REUSE_AFTER);
            assert!(lease.is_live(now) && !lease.is_live(now + LEASE));
            assert_eq!(grantor.fence(HolderId(1), now), now, "nothing is left to wait for");
            grantor.grant(HolderId(2), now);
            grantor.expire(now + REUSE_AFTER);
            assert_eq!(grantor.holders().count(), 0);
        });
    }
}
