//! What each organisation's proposals take of an endorser: places and bytes.
//!
//! A proposal counts from when its creator's signature is checked until it is answered, also while it waits for its
//! [turn](super::turns). While the peer has plenty, an organisation may use nearly all of it; what it may always have is an equal
//! share:
//!
//! 1. Of the places, the last eighth ([`KEPT_PARTS`]) is for organisations that are below their equal share.
//! 2. Of the bytes, each organisation has its equal share. A single proposal that is larger than the share is taken while its
//!    organisation has no other at work, and all proposals together are below the limit.
//!
//! Invariants: no organisation is turned away below its equal share of the places that are still free; proposals at work have
//! at most twice as many bytes as the limit.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::MspId;

/// One part in so many of the places is kept for organisations below their share.
const KEPT_PARTS: usize = 8;

/// The accounts of one endorser.
#[derive(Debug)]
pub struct Shares {
    places: usize,
    bytes_max: usize,
    held: Mutex<Held>,
}

#[derive(Default, Debug)]
struct Held {
    all: Use,
    by_organization: BTreeMap<MspId, Use>,
}

/// What proposals take.
#[derive(Clone, Copy, Default, Debug)]
struct Use {
    proposals: usize,
    bytes: usize,
}

/// A proposal's part of its organisation's share, until it is dropped.
#[derive(Debug)]
pub struct Share {
    shares: Arc<Shares>,
    organization: MspId,
    bytes: usize,
}

impl Shares {
    /// Accounts of so many proposals and bytes.
    pub fn new(places: usize, bytes_max: usize) -> Arc<Shares> {
        Arc::new(Shares { places, bytes_max, held: Mutex::default() })
    }

    /// Room for a proposal of so many bytes, of one of so many organisations; nothing while its organisation has its share.
    pub fn take(self: &Arc<Self>, organization: &MspId, bytes: usize, organizations: usize) -> Option<Share> {
        let mut held = self.held();
        let of = held.by_organization.get(organization).copied().unwrap_or_default();
        let organizations = organizations.max(1);
        let free = self.places.saturating_sub(held.all.proposals);
        let is_below_its_places = of.proposals < (self.places / organizations).max(1);
        let has_place = free > 0 && (organizations == 1 || is_below_its_places || free > self.places / KEPT_PARTS);
        let is_alone = of.proposals == 0 && held.all.bytes <= self.bytes_max;
        let has_bytes = is_alone || of.bytes.saturating_add(bytes) <= self.bytes_max / organizations;
        if !has_place || !has_bytes {
            return None;
        }
        held.add(organization, bytes);
        Some(Share { shares: Arc::clone(self), organization: organization.clone(), bytes })
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
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

impl Drop for Share {
    fn drop(&mut self) {
        self.shares.held().remove(&self.organization, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(shares: &Arc<Shares>, organization: &str, bytes: usize, organizations: usize) -> Vec<Share> {
        let organization = MspId::from(organization);
        std::iter::from_fn(|| shares.take(&organization, bytes, organizations)).collect()
    }

    #[test]
    fn an_organisation_that_takes_all_it_can_leaves_the_others_theirs() {
        let shares = Shares::new(256, 1 << 30);
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
        let shares = Shares::new(256, 1000);
        let of_a = take_all(&shares, "A", 100, 2);
        assert_eq!(of_a.len(), 5, "half of the bytes");
        assert_eq!(take_all(&shares, "B", 250, 2).len(), 2);
        drop(of_a);
        // Larger than a share: one at a time.
        assert_eq!(take_all(&shares, "A", 900, 2).len(), 1);
        assert_eq!(take_all(&shares, "A", usize::MAX / 4, 2).len(), 1, "whatever its size");
    }

    #[test]
    fn a_single_place_serves_anybody() {
        let shares = Shares::new(1, 1000);
        let one = take_all(&shares, "A", 1, 3);
        assert_eq!((one.len(), take_all(&shares, "B", 1, 3).len()), (1, 0));
        drop(one);
        assert_eq!(take_all(&shares, "B", 1, 3).len(), 1);
    }
}
