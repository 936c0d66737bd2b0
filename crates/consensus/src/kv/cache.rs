//! The cache: values of keys, and that a key has none, within a budget of bytes.
//!
//! 1. What is looked up is marked. When the budget is exceeded a hand goes around: what is marked loses its mark, what is not
//!    marked goes.
//! 2. What is not applied (its version is greater than the last applied entry) stays, whatever the budget: it is the overlay
//!    of the log, and the only answer for its key.
//!
//! Bounded: the budget and what is not applied, which the log bounds. One call moves the hand by [`STEPS_MAX`] at most.

use base::{Bytes, Map};

use super::fault::{Mutant, mutant};
use crate::Posted;

/// How far the hand goes in one call.
const STEPS_MAX: usize = 64;
/// What a slot takes besides key and value.
const SLOT_BYTES: usize = 160;

/// What is known of a key.
pub(super) struct Slot {
    key: Bytes,
    /// None: it has none.
    pub value: Option<Bytes>,
    pub version: u64,
    /// To be confirmed before anybody hears of it.
    pub posted: Posted,
    marked: bool,
}

impl Slot {
    pub(super) fn new(key: Bytes, value: Option<Bytes>, version: u64, posted: Posted) -> Slot {
        Slot { key, value, version, posted, marked: false }
    }

    fn bytes(&self) -> usize {
        SLOT_BYTES + self.key.len() + self.value.as_ref().map_or(0, Bytes::len)
    }
}

/// See the module's description.
pub(super) struct Cache {
    places: Map<Bytes, u32>,
    slots: Vec<Option<Slot>>,
    vacant: Vec<u32>,
    hand: usize,
    bytes: usize,
    budget: usize,
}

impl Cache {
    pub(super) fn new(budget: usize) -> Cache {
        Cache { places: Map::default(), slots: Vec::new(), vacant: Vec::new(), hand: 0, bytes: 0, budget }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn get(&mut self, key: &[u8]) -> Option<&Slot> {
        let slot = self.slots[*self.places.get(key)? as usize].as_mut()?;
        slot.marked = true;
        Some(slot)
    }

    /// Puts what is known now; entries up to `applied` are applied.
    pub(super) fn put(&mut self, slot: Slot, applied: u64) {
        self.bytes += slot.bytes();
        match self.places.get(&slot.key) {
            Some(place) => {
                let before = self.slots[*place as usize].replace(slot).expect("a place that is named is taken");
                self.bytes -= before.bytes();
            }
            None => {
                let place = self.vacant.pop().unwrap_or_else(|| {
                    self.slots.push(None);
                    u32::try_from(self.slots.len() - 1).expect("fewer slots than bytes of a budget")
                });
                self.places.insert(slot.key.clone(), place);
                self.slots[place as usize] = Some(slot);
            }
        }
        self.evict(applied);
    }

    /// Lets go of what the budget has no room for.
    pub(super) fn evict(&mut self, applied: u64) {
        for _ in 0..STEPS_MAX {
            if self.bytes <= self.budget || self.slots.is_empty() {
                return;
            }
            self.hand = (self.hand + 1) % self.slots.len();
            let Some(slot) = &mut self.slots[self.hand] else { continue };
            if slot.version > applied && !mutant(Mutant::EvictPending) {
                continue;
            }
            if std::mem::take(&mut slot.marked) {
                continue;
            }
            let gone = self.slots[self.hand].take().expect("it was just seen");
            self.bytes -= gone.bytes();
            self.places.remove(&gone.key);
            self.vacant.push(self.hand as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(key: u8, version: u64) -> Slot {
        let value = Some(Bytes::from(vec![key; 100]));
        Slot::new(Bytes::copy_from_slice(&[key]), value, version, Posted::default())
    }

    #[test]
    fn what_is_not_applied_is_never_evicted() {
        let mut cache = Cache::new(1000);
        for key in 0..100 {
            cache.put(slot(key, 1 + u64::from(key)), 50);
        }
        assert!((50..100).all(|key| cache.get(&[key]).is_some()), "versions 51 to 100 are not applied");
        for _ in 0..20 {
            cache.evict(100);
        }
        assert!(cache.bytes() <= 1000);
        assert!((0..100).filter(|key| cache.get(&[*key]).is_some()).count() >= 3);
    }

    #[test]
    fn what_is_looked_up_stays_longer() {
        let mut cache = Cache::new(10 * (SLOT_BYTES + 101));
        (0..10).for_each(|key| cache.put(slot(key, 0), 0));
        for key in 10..30 {
            cache.get(&[3]);
            cache.put(slot(key, 0), 0);
        }
        assert!(cache.get(&[3]).is_some());
        assert!(cache.bytes() <= 10 * (SLOT_BYTES + 101));
    }
}
