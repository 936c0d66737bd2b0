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

use crate::fault::{Mutant, mutant};

/// How long a lease lasts by its holder's clock.
pub const LEASE: Duration = Duration::from_millis(50);
/// How long the primary waits, by its clock, until every lease granted before has ended.
pub const REUSE_AFTER: Duration = base::lease::waited(LEASE);
/// How long a lease of a compute node lasts that has just joined. It is slow to acknowledge blocks while it takes on its first
/// work, and each block waits for it until its lease ends. A lease counts from the acknowledgement that asks for it and is
/// granted with the next heartbeat, so without blocks the next grant comes two heartbeats and two confirmations of storage later:
/// with three heartbeats it is renewed before it ends, if storage confirms within 5 ms. Otherwise the node serves nothing between
/// two leases, for [`FIRST_LEASES_FOR`].
pub const FIRST_LEASE: Duration = Duration::from_millis(30);
/// For how long after its first acknowledgement a node gets such leases.
pub const FIRST_LEASES_FOR: Duration = Duration::from_millis(500);
/// The most lease holders of one primary.
pub const HOLDERS_MAX: usize = 256;

const _: () = assert!(REUSE_AFTER.as_nanos() > LEASE.as_nanos() && FIRST_LEASE.as_nanos() < LEASE.as_nanos());

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
/// 1. A holder asks at its time `a`; its lease of length `l` ends at `a + l` by its clock. 2. The primary grants the lease
///    at its time `g`, which in true time is later than `a`. 3. So from `g + waited(l)` on, by the primary's clock, that
///    lease has ended.
///
/// A holder counts [`LEASE`] from the time that the grant names. A shorter lease names an earlier time than `a`
/// ([`LeaseGrantor::grant`]).
#[derive(Debug, Default)]
pub struct LeaseGrantor {
    /// When the last lease of each holder has ended.
    ends: BTreeMap<FollowerId, Instant>,
}

impl LeaseGrantor {
    /// Grants or renews a lease of this length, at most [`LEASE`], to a holder that has asked for it at `asked` by its own
    /// clock. Returns the time by that clock from which the holder counts [`LEASE`]; `None` when there are too many
    /// holders, or when that time would lie before the zero of the holder's clock.
    pub fn grant(&mut self, follower: FollowerId, asked: u64, length: Duration, now: Instant) -> Option<u64> {
        if self.ends.len() >= HOLDERS_MAX && !self.ends.contains_key(&follower) {
            return None;
        }
        let shorter = if mutant(Mutant::WholeFirstLease) { Duration::ZERO } else { LEASE.saturating_sub(length) };
        let counted_from = asked.checked_sub(shorter.as_nanos() as u64).filter(|from| *from > 0)?;
        let ends = self.ends.entry(follower).or_insert(now);
        *ends = (*ends).max(now + base::lease::waited(length));
        Some(counted_from)
    }

    /// Stops granting leases to a holder; returns when its last one has ended.
    pub fn fence(&mut self, follower: FollowerId, now: Instant) -> Instant {
        self.ends.remove(&follower).unwrap_or(now)
    }

    /// When a holder's last lease has ended; `None` if it was never granted one.
    pub fn ends(&self, follower: FollowerId) -> Option<Instant> {
        self.ends.get(&follower).copied()
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
            let asked = now.nanos() + LEASE.as_nanos() as u64;
            assert_eq!(grantor.grant(FollowerId(1), asked, LEASE, now), Some(asked));
            let ended = grantor.fence(FollowerId(1), now + Duration::from_millis(1));
            assert_eq!(ended, now + REUSE_AFTER);
            assert!(lease.is_live(now) && !lease.is_live(now + LEASE));
            assert_eq!(grantor.fence(FollowerId(1), now), now, "nothing is left to wait for");
        });
    }

    #[test]
    fn a_shorter_lease_is_a_whole_one_that_was_asked_for_earlier() {
        rt::production::run(async {
            let (now, id) = (rt::now(), FollowerId(1));
            let mut grantor = LeaseGrantor::default();
            let asked = 3 * LEASE.as_nanos() as u64;
            let from = grantor.grant(id, asked, FIRST_LEASE, now).expect("there is room");
            assert_eq!(Duration::from_nanos(from) + LEASE, Duration::from_nanos(asked) + FIRST_LEASE);
            assert_eq!(grantor.ends(id), Some(now + base::lease::waited(FIRST_LEASE)));
            grantor.grant(id, asked, LEASE, now).expect("it is known");
            grantor.grant(id, asked, FIRST_LEASE, now).expect("it is known");
            assert_eq!(grantor.ends(id), Some(now + REUSE_AFTER), "the longer one is still held");
            // By a clock that began after the time from which the holder would count.
            assert_eq!(grantor.grant(FollowerId(2), 1_000, FIRST_LEASE, now), None);
            assert_eq!(grantor.ends(FollowerId(2)), None);
        });
    }
}
