//! The cache: values of keys, and that a key has none, within a budget of bytes.
//!
//! 1. Keys stand in a queue. What is looked up or changed is marked. When the budget is exceeded the front of the queue is looked at:
//!    what is marked loses its mark and has passed, what is not marked is forgotten. Those that have passed are looked at again when
//!    the queue has come to its end, new ones included: these leave soon if nobody wants them, and what is wanted is seldom looked
//!    at (SIEVE: Zhang et al., NSDI 2024).
//! 2. What is not applied (its version is greater than the last applied entry) stays, whatever the budget: it is the overlay
//!    of the log, and the only answer for its key.
//! 3. A short key lies beside its value, so that a lookup touches one place of memory.
//!
//! Slots are in [`SHARDS`] maps, since a map that grows takes long: one of half a million keys some 50 ms, which is more than a lease.
//!
//! Bounded: the budget and what is not applied, which the log bounds. One call looks at [`STEPS_MAX`] keys at most.

use std::borrow::Borrow;
use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher as _, Hash, Hasher};

use base::collections::Hashing;
use base::{Bytes, Map};

use super::fault::{Mutant, mutant};
use crate::Posted;

/// Keys that are looked at in one call.
const STEPS_MAX: usize = 64;
/// Maps of slots.
const SHARDS: usize = 256;
/// What a slot takes besides key and value.
const SLOT_BYTES: usize = 160;
/// The longest key that lies in its slot.
const SHORT_BYTES_MAX: usize = 23;

/// A key.
#[derive(Clone)]
enum Key {
    Short(u8, [u8; SHORT_BYTES_MAX]),
    Long(Bytes),
}

// Where it has no more than that, a slot has no more than what it is about.
const _: () = assert!(size_of::<Key>() == 32, "a short key takes no more than the handle of a long one");

impl Key {
    fn new(key: &[u8]) -> Key {
        let mut short = [0; SHORT_BYTES_MAX];
        match short.get_mut(..key.len()) {
            Some(place) => {
                place.copy_from_slice(key);
                Key::Short(key.len() as u8, short)
            }
            None => Key::Long(Bytes::copy_from_slice(key)),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Key::Short(length, bytes) => &bytes[..usize::from(*length)],
            Key::Long(bytes) => bytes,
        }
    }
}

impl Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        self.bytes()
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bytes().hash(state);
    }
}

/// What is known of a key.
pub(super) struct Slot {
    /// None: it has none.
    pub value: Option<Bytes>,
    pub version: u64,
    /// To be confirmed before anybody hears of it.
    pub posted: Posted,
    marked: bool,
}

impl Slot {
    pub(super) fn new(value: Option<Bytes>, version: u64, posted: Posted) -> Slot {
        Slot { value, version, posted, marked: false }
    }

    fn bytes(&self, key: &[u8]) -> usize {
        SLOT_BYTES + key.len() + self.value.as_ref().map_or(0, Bytes::len)
    }
}

/// See the module's description.
pub(super) struct Cache {
    slots: Vec<Map<Key, Slot>>,
    /// Of keys to maps, with a key that clients do not know: they cannot have one map take all.
    hashing: Hashing,
    /// With those that have passed every key once.
    queue: VecDeque<Key>,
    passed: VecDeque<Key>,
    bytes: usize,
    budget: usize,
}

impl Cache {
    pub(super) fn new(budget: usize) -> Cache {
        let slots = std::iter::repeat_with(Map::default).take(SHARDS).collect();
        let (queue, passed) = Default::default();
        Cache { slots, hashing: Hashing::default(), queue, passed, bytes: 0, budget }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Which map has a key. Bits amid the hash: the map itself looks at both ends of the same one.
    #[inline]
    fn shard(&self, key: &[u8]) -> usize {
        (self.hashing.hash_one(key) >> 32) as usize % SHARDS
    }

    #[inline]
    pub(super) fn get(&mut self, key: &[u8]) -> Option<&Slot> {
        let shard = self.shard(key);
        let slot = self.slots[shard].get_mut(key)?;
        slot.marked = true;
        Some(slot)
    }

    /// Puts what is known now; entries up to `applied` are applied.
    pub(super) fn put(&mut self, key: &[u8], slot: Slot, applied: u64) {
        self.bytes += slot.bytes(key);
        let shard = self.shard(key);
        let slots = &mut self.slots[shard];
        match slots.get_mut(key) {
            Some(place) => self.bytes -= std::mem::replace(place, Slot { marked: true, ..slot }).bytes(key),
            None => {
                let key = Key::new(key);
                self.queue.push_back(key.clone());
                slots.insert(key, slot);
            }
        }
        self.evict(applied);
    }

    /// Lets go of what the budget has no room for.
    pub(super) fn evict(&mut self, applied: u64) {
        for _ in 0..STEPS_MAX {
            if self.bytes <= self.budget {
                return;
            }
            if self.queue.is_empty() {
                std::mem::swap(&mut self.queue, &mut self.passed);
            }
            let Some(key) = self.queue.pop_front() else { return };
            let shard = self.shard(key.bytes());
            let Entry::Occupied(mut slot) = self.slots[shard].entry(key) else {
                unreachable!("keys in the queue have slots")
            };
            let is_pending = slot.get().version > applied && !mutant(Mutant::EvictPending);
            if is_pending || std::mem::take(&mut slot.get_mut().marked) {
                self.passed.push_back(slot.key().clone());
                continue;
            }
            let (key, gone) = slot.remove_entry();
            self.bytes -= gone.bytes(key.bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(cache: &mut Cache, key: u8, version: u64, applied: u64) {
        let value = Some(Bytes::from(vec![key; 100]));
        cache.put(&[key], Slot::new(value, version, Posted::default()), applied);
    }

    #[test]
    fn what_is_not_applied_is_never_evicted() {
        let mut cache = Cache::new(1000);
        for key in 0..100 {
            put(&mut cache, key, 1 + u64::from(key), 50);
        }
        assert!((50..100).all(|key| cache.get(&[key]).is_some()), "versions 51 to 100 are not applied");
        for _ in 0..20 {
            cache.evict(100);
        }
        assert!(cache.bytes() <= 1000);
        assert!((0..100).filter(|key| cache.get(&[*key]).is_some()).count() >= 3);
    }

    #[test]
    fn keys_are_spread_over_the_maps() {
        let mut cache = Cache::new(usize::MAX);
        for number in 0..50_000 {
            // Also those whose beginnings or ends are the same.
            for key in [format!("key-{number:012}"), format!("{number:012}/of-a-profile")] {
                cache.put(key.as_bytes(), Slot::new(None, 0, Posted::default()), 0);
            }
        }
        let largest = cache.slots.iter().map(Map::len).max().expect("there are maps");
        assert!(largest < 3 * 100_000 / SHARDS, "{largest}");
        assert!(cache.get(b"key-000000000000").is_some() && cache.get(b"").is_none() && cache.get(b"k").is_none());
    }

    #[test]
    fn what_is_looked_up_stays_longer() {
        let mut cache = Cache::new(10 * (SLOT_BYTES + 101));
        (0..10).for_each(|key| put(&mut cache, key, 0, 0));
        for key in 10..30 {
            cache.get(&[3]);
            put(&mut cache, key, 0, 0);
        }
        assert!(cache.get(&[3]).is_some());
        assert!(cache.bytes() <= 10 * (SLOT_BYTES + 101));
    }

    #[test]
    fn what_is_wanted_survives_many_that_are_not() {
        let mut cache = Cache::new(20 * (SLOT_BYTES + 101));
        (0..10).for_each(|key| put(&mut cache, key, 0, 0));
        // Looked up once while twice as many pass by as there is room for.
        for round in 0..6 {
            (0..10).for_each(|key| assert!(cache.get(&[key]).is_some(), "{key} in round {round}"));
            (0..40).for_each(|other| put(&mut cache, 10 + 40 * round + other, 0, 0));
        }
        assert_eq!(cache.queue.len() + cache.passed.len(), cache.slots.iter().map(Map::len).sum::<usize>());
    }

    #[test]
    fn keys_of_any_length_are_told_apart() {
        let mut cache = Cache::new(1 << 20);
        let key = |length: usize| vec![b'k'; length];
        for length in 1..60 {
            cache.put(&key(length), Slot::new(None, length as u64, Posted::default()), 0);
            cache.put(&[&key(length)[..], &[0]].concat(), Slot::new(None, 1000, Posted::default()), 0);
        }
        for length in 1..60 {
            assert_eq!(cache.get(&key(length)).map(|slot| slot.version), Some(length as u64));
        }
        assert!(cache.get(&key(60)).is_none());
    }
}
