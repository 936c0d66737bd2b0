//! The cache: for each key in it, the key's value or the fact that the key has none, within a budget of bytes.
//!
//! 1. Keys wait in a queue, in the order in which they were added. A lookup or change of a key marks it. While the
//!    budget is exceeded, the cache takes the key at the front: an unmarked key is evicted; a marked key loses its mark
//!    and moves to a second queue. When the first queue is empty, the two are exchanged. So unused new keys leave soon,
//!    and keys in use are seldom examined (SIEVE: Zhang et al., NSDI 2024).
//! 2. An unapplied key (its version is greater than the index of the last applied entry) is never evicted, whatever the
//!    budget: it moves to the second queue like a marked key. The cache has the only answer for such a key, since the
//!    chains in remote memory do not have its newest entry yet.
//! 3. A short key is stored in its slot, beside the handle of its value, so that a lookup touches one place in memory.
//!
//! The slots are spread over [`SHARDS`] maps, since growing one large map takes long: some 50 ms for half a million
//! keys, which is longer than a lease.
//!
//! Bounded: by the budget, plus the unapplied keys, which the log bounds. One call examines at most [`STEPS_MAX`] keys.

use std::borrow::Borrow;
use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher as _, Hash, Hasher};

use base::collections::Hashing;
use base::{Bytes, Map};
use sift::WriteHandle;

use super::fault::{Mutant, mutant};

/// Keys that one call visits.
const STEPS_MAX: usize = 64;
/// Maps of slots.
const SHARDS: usize = 256;
/// Bytes that a slot takes besides key and value.
const SLOT_BYTES: usize = 160;
/// The longest key that is stored in its slot.
const INLINE_KEY_BYTES_MAX: usize = 23;

/// A key.
#[derive(Clone)]
enum CacheKey {
    Short(u8, [u8; INLINE_KEY_BYTES_MAX]),
    Long(Bytes),
}

// A short key must not make the slot larger than the handle of a long key does.
const _: () = assert!(size_of::<CacheKey>() == 32, "a short key takes no more than the handle of a long one");

impl CacheKey {
    fn new(key: &[u8]) -> CacheKey {
        let mut short = [0; INLINE_KEY_BYTES_MAX];
        match short.get_mut(..key.len()) {
            Some(place) => {
                place.copy_from_slice(key);
                CacheKey::Short(key.len() as u8, short)
            }
            None => CacheKey::Long(Bytes::copy_from_slice(key)),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            CacheKey::Short(length, bytes) => &bytes[..usize::from(*length)],
            CacheKey::Long(bytes) => bytes,
        }
    }
}

impl Borrow<[u8]> for CacheKey {
    fn borrow(&self) -> &[u8] {
        self.bytes()
    }
}

impl PartialEq for CacheKey {
    fn eq(&self, other: &CacheKey) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for CacheKey {}

impl Hash for CacheKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bytes().hash(state);
    }
}

/// The state of a key.
pub(super) struct CacheSlot {
    /// `None` if the key has no value.
    pub value: Option<Bytes>,
    pub version: u64,
    /// The write that must be confirmed before anybody sees this state.
    pub posted: WriteHandle,
    referenced: bool,
}

impl CacheSlot {
    pub(super) fn new(value: Option<Bytes>, version: u64, posted: WriteHandle) -> CacheSlot {
        CacheSlot { value, version, posted, referenced: false }
    }

    fn bytes(&self, key: &[u8]) -> usize {
        SLOT_BYTES + key.len() + self.value.as_ref().map_or(0, Bytes::len)
    }
}

/// See the module's description.
pub(super) struct KvCache {
    slots: Vec<Map<CacheKey, CacheSlot>>,
    /// Assigns keys to maps, under a hash key that clients do not know, so that they cannot fill one map with all keys.
    hashing: Hashing,
    /// Each key is in one of these two, once.
    queue: VecDeque<CacheKey>,
    passed: VecDeque<CacheKey>,
    bytes: usize,
    budget: usize,
}

impl KvCache {
    pub(super) fn new(budget: usize) -> KvCache {
        let slots = std::iter::repeat_with(Map::default).take(SHARDS).collect();
        let (queue, passed) = Default::default();
        KvCache { slots, hashing: Hashing::default(), queue, passed, bytes: 0, budget }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The map of a key. It is taken from the middle bits of the hash: the map itself uses both ends of the same hash.
    #[inline]
    fn shard(&self, key: &[u8]) -> usize {
        (self.hashing.hash_one(key) >> 32) as usize % SHARDS
    }

    #[inline]
    pub(super) fn get(&mut self, key: &[u8]) -> Option<&CacheSlot> {
        let shard = self.shard(key);
        let slot = self.slots[shard].get_mut(key)?;
        slot.referenced = true;
        Some(slot)
    }

    /// Sets the current state of a key; entries up to `applied` are applied.
    pub(super) fn put(&mut self, key: &[u8], slot: CacheSlot, applied: u64) {
        self.bytes += slot.bytes(key);
        let shard = self.shard(key);
        let slots = &mut self.slots[shard];
        match slots.get_mut(key) {
            Some(place) => self.bytes -= std::mem::replace(place, CacheSlot { referenced: true, ..slot }).bytes(key),
            None => {
                let key = CacheKey::new(key);
                self.queue.push_back(key.clone());
                slots.insert(key, slot);
            }
        }
        self.evict(applied);
    }

    /// Evicts keys while the budget is exceeded.
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
            if is_pending || std::mem::take(&mut slot.get_mut().referenced) {
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

    fn put(cache: &mut KvCache, key: u8, version: u64, applied: u64) {
        let value = Some(Bytes::from(vec![key; 100]));
        cache.put(&[key], CacheSlot::new(value, version, WriteHandle::default()), applied);
    }

    #[test]
    fn what_is_not_applied_is_never_evicted() {
        let mut cache = KvCache::new(1000);
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
        let mut cache = KvCache::new(usize::MAX);
        for number in 0..50_000 {
            // Also keys that have their beginnings or ends in common.
            for key in [format!("key-{number:012}"), format!("{number:012}/of-a-profile")] {
                cache.put(key.as_bytes(), CacheSlot::new(None, 0, WriteHandle::default()), 0);
            }
        }
        let largest = cache.slots.iter().map(Map::len).max().expect("there are maps");
        assert!(largest < 3 * 100_000 / SHARDS, "{largest}");
        assert!(cache.get(b"key-000000000000").is_some() && cache.get(b"").is_none() && cache.get(b"k").is_none());
    }

    #[test]
    fn what_is_looked_up_stays_longer() {
        let mut cache = KvCache::new(10 * (SLOT_BYTES + 101));
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
        let mut cache = KvCache::new(20 * (SLOT_BYTES + 101));
        (0..10).for_each(|key| put(&mut cache, key, 0, 0));
        // Looked up once while twice as many others pass as fit into the budget.
        for round in 0..6 {
            (0..10).for_each(|key| assert!(cache.get(&[key]).is_some(), "{key} in round {round}"));
            (0..40).for_each(|other| put(&mut cache, 10 + 40 * round + other, 0, 0));
        }
        assert_eq!(cache.queue.len() + cache.passed.len(), cache.slots.iter().map(Map::len).sum::<usize>());
    }

    #[test]
    fn keys_of_any_length_are_told_apart() {
        let mut cache = KvCache::new(1 << 20);
        let key = |length: usize| vec![b'k'; length];
        for length in 1..60 {
            cache.put(&key(length), CacheSlot::new(None, length as u64, WriteHandle::default()), 0);
            cache.put(&[&key(length)[..], &[0]].concat(), CacheSlot::new(None, 1000, WriteHandle::default()), 0);
        }
        for length in 1..60 {
            assert_eq!(cache.get(&key(length)).map(|slot| slot.version), Some(length as u64));
        }
        assert!(cache.get(&key(60)).is_none());
    }
}
