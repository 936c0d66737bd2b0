//! The bytes of unfinished messages of links, by organisation.
//!
//! 1. A listener has one [`Arrivals`]; a link of it has an [`Arriving`], for the organisation that its other side proved to be
//!    of ([`super::Door`]).
//! 2. The receiving half of a link accounts the bytes of a message before it allocates them ([`Arriving::hold`]), and ends
//!    the link when the organisation's budget is used up.
//! 3. A message counts as arriving until the receiver asks for the next one, or releases it because another budget accounts for
//!    it.
//!
//! Invariants: no organisation holds more than [`ARRIVING_BYTES_MAX`], and none uses up what is another's. The longest
//! message fits where its organisation has nothing else on its way.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::door::LinkBytesArriving;
use crate::admission::OverBudget;

/// Bytes of one organisation's unfinished messages at one listener: the longest message of a link, and some.
pub const ARRIVING_BYTES_MAX: u64 = 144 << 20;

/// What arrives at one listener.
#[derive(Debug, Default)]
pub(super) struct Arrivals(Mutex<BTreeMap<Arc<str>, u64>>);

/// What arrives over one link. Dropping it gives everything back.
#[derive(Debug)]
pub struct Arriving {
    arrivals: Arc<Arrivals>,
    organization: Arc<str>,
    bytes: u64,
}

impl Arrivals {
    fn held(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Arriving {
    pub(super) fn new(arrivals: &Arc<Arrivals>, organization: &Arc<str>) -> Arriving {
        Arriving { arrivals: Arc::clone(arrivals), organization: Arc::clone(organization), bytes: 0 }
    }

    /// Says that the link holds `bytes` now, more or fewer than before.
    ///
    /// # Errors
    /// [`OverBudget`] when the organisation would hold too much; the link then holds what it did before.
    pub fn hold(&mut self, bytes: usize) -> Result<(), OverBudget> {
        let bytes = bytes as u64;
        if bytes == self.bytes {
            return Ok(());
        }
        let mut held = self.arrivals.held();
        let others = held.get(&self.organization).map_or(0, |all| all - self.bytes);
        if bytes > self.bytes && others.saturating_add(bytes) > ARRIVING_BYTES_MAX {
            let more = bytes - self.bytes;
            return Err(OverBudget {
                bytes: more,
                limit: ARRIVING_BYTES_MAX,
                holder: "unfinished messages of an organisation",
            });
        }
        // What nobody holds is not kept, so that the accounts do not grow with names.
        match others + bytes {
            0 => drop(held.remove(&self.organization)),
            all => drop(held.insert(Arc::clone(&self.organization), all)),
        }
        drop(held);
        LinkBytesArriving.add(bytes as i64 - self.bytes as i64);
        self.bytes = bytes;
        Ok(())
    }

    /// Whose messages they are.
    pub fn organization(&self) -> &str {
        &self.organization
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        self.hold(0).expect("giving back needs no budget");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_organisation_uses_up_its_own_budget_and_gets_it_back() {
        let arrivals = Arc::new(Arrivals::default());
        let of = |organization: &str| Arriving::new(&arrivals, &Arc::from(organization));
        let (mut one, mut two, mut other) = (of("A"), of("A"), of("B"));
        one.hold(100 << 20).expect("it is within the budget");
        let over = two.hold(45 << 20).expect_err("both links are of one organisation");
        assert_eq!((over.bytes, over.limit), (45 << 20, ARRIVING_BYTES_MAX));
        two.hold(44 << 20).expect("exactly the budget");
        other.hold(144 << 20).expect("another organisation has its own");
        one.hold(10 << 20).expect("less is always possible");
        two.hold(134 << 20).expect("what was given back");
        drop((one, two, other));
        assert!(arrivals.held().is_empty());
    }
}
