//! Limits how many permits and bytes of an endorser each organisation's proposals may hold.
//!
//! A proposal holds one permit and its bytes from the check of its creator's signature until its answer, including the wait
//! for its [turn](super::turns). An *equal part* is the limit divided by the number of organisations of the proposal's
//! channel.
//!
//! 1. Permits: the last eighth ([`RESERVED_PARTS`]) of all permits is for organisations that hold less than their equal
//!    part; the reserve does not apply to a channel with one organisation. One organisation may hold all permits outside
//!    the reserve. So an equal part of the permits is not guaranteed: a late organisation may find no free permit.
//! 2. Bytes: each organisation always has its equal part. A single proposal that is larger than this part is accepted if
//!    its organisation has no other in progress, and if all other proposals in progress hold at most the limit.
//!
//! Invariants: a free permit is granted to any organisation that holds less than its equal part and has the bytes. The
//! proposals of one channel hold less than twice the limit in bytes, plus one proposal.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::MspId;

/// One part in this many of the permits is kept for organisations below their equal part.
const RESERVED_PARTS: usize = 8;

/// The permits and bytes that each organisation holds at one endorser.
#[derive(Debug)]
pub struct OrganizationQuotas {
    proposals_max: usize,
    bytes_max: usize,
    held: Mutex<HeldPermits>,
}

#[derive(Default, Debug)]
struct HeldPermits {
    all: QuotaUse,
    by_organization: BTreeMap<MspId, QuotaUse>,
}

/// The capacity that proposals take.
#[derive(Clone, Copy, Default, Debug)]
struct QuotaUse {
    proposals: usize,
    bytes: usize,
}

/// A proposal's part of its organisation's capacity, until it is dropped.
#[derive(Debug)]
pub struct QuotaPermit {
    quotas: Arc<OrganizationQuotas>,
    organization: MspId,
    bytes: usize,
}

impl OrganizationQuotas {
    /// Accounts for this many proposals and bytes.
    pub fn new(places: usize, bytes_max: usize) -> Arc<OrganizationQuotas> {
        Arc::new(OrganizationQuotas { proposals_max: places, bytes_max, held: Mutex::default() })
    }

    /// Admits a proposal of `bytes` bytes from one of `organizations` organisations; `None` if its organisation's part
    /// is used up.
    pub fn take(self: &Arc<Self>, organization: &MspId, bytes: usize, organizations: usize) -> Option<QuotaPermit> {
        let mut held = self.held();
        let of = held.by_organization.get(organization).copied().unwrap_or_default();
        let organizations = organizations.max(1);
        let free = self.proposals_max.saturating_sub(held.all.proposals);
        let is_below_its_places = of.proposals < (self.proposals_max / organizations).max(1);
        let has_place =
            free > 0 && (organizations == 1 || is_below_its_places || free > self.proposals_max / RESERVED_PARTS);
        let is_alone = of.proposals == 0 && held.all.bytes <= self.bytes_max;
        let has_bytes = is_alone || of.bytes.saturating_add(bytes) <= self.bytes_max / organizations;
        if !has_place || !has_bytes {
            return None;
        }
        held.add(organization, bytes);
        Some(QuotaPermit { quotas: Arc::clone(self), organization: organization.clone(), bytes })
    }

    fn held(&self) -> MutexGuard<'_, HeldPermits> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldPermits {
    fn add(&mut self, organization: &MspId, bytes: usize) {
        for held in [&mut self.all, self.by_organization.entry(organization.clone()).or_default()] {
            held.proposals += 1;
            held.bytes += bytes;
        }
    }

    fn remove(&mut self, organization: &MspId, bytes: usize) {
        let of = self.by_organization.get_mut(organization).expect("its proposal is accounted");
        for held in [&mut self.all, &mut *of] {
            held.proposals -= 1;
            held.bytes -= bytes;
        }
        if of.proposals == 0 {
            self.by_organization.remove(organization);
        }
    }
}

impl Drop for QuotaPermit {
    fn drop(&mut self) {
        self.quotas.held().remove(&self.organization, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(
        shares: &Arc<OrganizationQuotas>,
        organization: &str,
        bytes: usize,
        organizations: usize,
    ) -> Vec<QuotaPermit> {
        let organization = MspId::from(organization);
        std::iter::from_fn(|| shares.take(&organization, bytes, organizations)).collect()
    }

    #[test]
    fn an_organisation_that_takes_all_it_can_leaves_the_others_theirs() {
        let shares = OrganizationQuotas::new(256, 1 << 30);
        let greedy = take_all(&shares, "A", 1, 2);
        assert_eq!(greedy.len(), 224, "all but an eighth");
        assert_eq!(take_all(&shares, "B", 1, 2).len(), 32);
        drop(greedy);
        let alone = take_all(&shares, "A", 1, 1);
        assert_eq!(alone.len(), 256, "nobody else is there to leave anything to");
        drop(alone);
        assert_eq!(shares.held().all.proposals, 0);
        assert!(shares.held().by_organization.is_empty());
    }

    #[test]
    fn the_bytes_of_one_organisation_are_not_those_of_another() {
        let shares = OrganizationQuotas::new(256, 1000);
        let of_a = take_all(&shares, "A", 100, 2);
        assert_eq!(of_a.len(), 5, "half of the bytes");
        assert_eq!(take_all(&shares, "B", 250, 2).len(), 2);
        drop(of_a);
        // Larger than an equal part: one at a time.
        assert_eq!(take_all(&shares, "A", 900, 2).len(), 1);
        assert_eq!(take_all(&shares, "A", usize::MAX / 4, 2).len(), 1, "whatever its size");
    }

    #[test]
    fn a_single_place_serves_anybody() {
        let shares = OrganizationQuotas::new(1, 1000);
        let one = take_all(&shares, "A", 1, 3);
        assert_eq!((one.len(), take_all(&shares, "B", 1, 3).len()), (1, 0));
        drop(one);
        assert_eq!(take_all(&shares, "B", 1, 3).len(), 1);
    }
}
