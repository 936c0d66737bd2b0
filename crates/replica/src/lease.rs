//! Leases: for how long a reader may use an address that it has learnt.
//!
//! A reader uses an address only within [`LEASE`] of the moment at which its read started, by the reader's own clock. A
//! read that takes longer discards what it has read and starts over. The reader thus fences itself, and nobody waits
//! for it. The primary reuses a buffer only [`REUSE_AFTER`] after the last reference to it disappeared, by the
//! primary's clock.
//!
//! Proof that this suffices: let `t` be the time from which on nothing leads to the buffer. A reader that holds the
//! buffer's address started before `t`, so its lease ends before `t + LEASE` by its clock. By [`base::lease`], with the
//! reader as the holder and the primary as the grantor, that lease has ended once the primary has waited for
//! [`REUSE_AFTER`] from `t` on.
//!
//! A compute node that serves from its caches holds a lease from the primary, which renews it ([`LeaseGrantor`]). The
//! primary acknowledges a block as applied once each lease holder has acknowledged the block's invalidations, or the
//! holder's lease has expired. The primary's own reads need no such lease: its caches change before the height does.

use std::collections::BTreeMap;
use std::time::Duration;

use base::rt::Instant;

/// How long a lease lasts by its holder's clock.
pub const LEASE: Duration = Duration::from_millis(50);
/// How long the primary waits, by its clock, until every lease granted before has ended.
pub const REUSE_AFTER: Duration = base::lease::waited(LEASE);
/// The most lease holders of one primary.
pub const HOLDERS_MAX: usize = 256;

const _: () = assert!(REUSE_AFTER.as_nanos() > LEASE.as_nanos());

/// The right to use addresses that a read learns, until the lease ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    ends: Instant,
}

impl Lease {
    /// A lease that starts at `begun`, now or in the past, by its holder's clock.
    #[inline]
    pub fn begin(begun: Instant) -> Lease {
        Lease { ends: begun + LEASE }
    }

    /// Whether an address learnt under the lease may still be used.
    #[inline]
    pub fn is_live(&self, now: Instant) -> bool {
        now < self.ends
    }
}

/// A compute node that holds leases.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FollowerId(pub u32);

/// The primary's record of the compute nodes that may be serving from their caches.
///
/// 1. A holder asks at its time `a`; its lease ends at `a + LEASE` by its clock. 2. The primary grants the lease at its
///    time `g`, which in true time is later than `a`. 3. So from `g + REUSE_AFTER` on, by the primary's clock, that
///    lease has ended.
#[derive(Debug, Default)]
pub struct LeaseGrantor {
    granted: BTreeMap<FollowerId, Instant>,
}

impl LeaseGrantor {
    /// Grants or renews a lease; false when there are too many holders.
    pub fn grant(&mut self, follower: FollowerId, now: Instant) -> bool {
        if self.granted.len() >= HOLDERS_MAX && !self.granted.contains_key(&follower) {
            return false;
        }
        self.granted.insert(follower, now);
        true
    }

    /// Stops granting leases to a holder; returns when its last one has ended.
    pub fn fence(&mut self, follower: FollowerId, now: Instant) -> Instant {
        self.granted.remove(&follower).map_or(now, |granted| granted + REUSE_AFTER)
    }

    /// When a holder's last lease has ended; `None` if it was never granted one.
    pub fn ends(&self, follower: FollowerId) -> Option<Instant> {
        self.granted.get(&follower).map(|granted| *granted + REUSE_AFTER)
    }

    /// Drops the holders whose leases have ended.
    pub fn expire(&mut self, now: Instant) {
        self.granted.retain(|_, granted| *granted + REUSE_AFTER > now);
    }

    /// The holders whose leases may still be live.
    pub fn followers(&self) -> impl Iterator<Item = FollowerId> + '_ {
        self.granted.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use base::rt;

    use super::*;

    #[test]
    fn a_holder_that_is_fenced_is_waited_for_as_long_as_its_lease_and_no_longer() {
        rt::production::run(async {
            let now = rt::now();
            let mut grantor = LeaseGrantor::default();
            let lease = Lease::begin(now);
            assert!(grantor.grant(FollowerId(1), now));
            let ended = grantor.fence(FollowerId(1), now + Duration::from_millis(1));
            assert_eq!(ended, now + REUSE_AFTER);
            assert!(lease.is_live(now) && !lease.is_live(now + LEASE));
            assert_eq!(grantor.fence(FollowerId(1), now), now, "nothing is left to wait for");
            grantor.grant(FollowerId(2), now);
            grantor.expire(now + REUSE_AFTER);
            assert_eq!(grantor.followers().count(), 0);
        });
    }
}
