//! A cache of recently used records of the tables, with LRU eviction and an exact byte budget.
//!
//! The cache holds clean records only: for each key the newest version in the tables, or the fact that the tables hold
//! none. Every entry is also in the tables, so an entry may be dropped at any time.
//!
//! A fill races with a writer that persists a newer version of the same key. Steps of a fill:
//! 1. take the current [`FillToken`];
//! 2. read the tables;
//! 3. call [`RecordCache::fill`] with the token; it does nothing if any record was replaced ([`RecordCache::replace`])
//!    since step 1.
//!
//! Invariants: the charged bytes of all entries never exceed the budget; a fill never undoes a replacement.

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;

use base::collections::Hashing;
use hashbrown::HashTable;

use crate::{Versioned, events};

/// What an entry costs besides its names and value: its slot, its cell in the table and the values' headers. The
/// namespace is charged to each entry, since a fill brings its own copy.
const ENTRY_OVERHEAD_BYTES: usize = 120;

/// The state of the cache at the start of a fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FillToken(u64);

const NONE: u32 = u32::MAX;

struct CacheEntry {
    hash: u64,
    namespace: Arc<str>,
    key: Arc<str>,
    /// The newest version in the tables; `None` if they hold no live one.
    record: Option<Versioned>,
    newer: u32,
    older: u32,
}

impl CacheEntry {
    fn bytes(&self) -> usize {
        ENTRY_OVERHEAD_BYTES
            + self.namespace.len()
            + self.key.len()
            + self.record.as_ref().map_or(0, |record| record.value.len())
    }
}

/// A map from (namespace, key) to the newest record in the tables.
pub struct RecordCache {
    hashing: Hashing,
    table: HashTable<u32>,
    entries: Vec<CacheEntry>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    bytes: usize,
    budget_bytes: usize,
    replacements: u64,
}

impl RecordCache {
    /// An empty cache that will hold at most `budget_bytes`.
    pub fn new(budget_bytes: usize) -> RecordCache {
        RecordCache {
            hashing: Hashing::default(),
            table: HashTable::new(),
            entries: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
            bytes: 0,
            budget_bytes,
            replacements: 0,
        }
    }

    /// The cached entry of a key: `None` is a miss, `Some(None)` a key that the tables do not hold.
    pub fn get(&mut self, namespace: &str, key: &str) -> Option<Option<Versioned>> {
        let hash = self.hash(namespace, key);
        let slot = self.find(hash, namespace, key)?;
        self.unlink(slot);
        self.link_newest(slot);
        Some(self.entries[slot as usize].record.clone())
    }

    /// Step 1 of a fill.
    pub fn token(&self) -> FillToken {
        FillToken(self.replacements)
    }

    /// Step 3 of a fill.
    pub fn fill(&mut self, token: FillToken, namespace: &Arc<str>, key: &Arc<str>, record: Option<Versioned>) {
        if token.0 == self.replacements {
            self.put(namespace, key, record);
        }
    }

    /// Enters `record`, which the tables now hold as the newest of its key.
    pub fn replace(&mut self, namespace: &Arc<str>, key: &Arc<str>, record: Option<Versioned>) {
        self.replacements += 1;
        self.put(namespace, key, record);
    }

    fn put(&mut self, namespace: &Arc<str>, key: &Arc<str>, record: Option<Versioned>) {
        let hash = self.hash(namespace, key);
        if let Some(slot) = self.find(hash, namespace, key) {
            self.remove(slot);
        }
        let entry =
            CacheEntry { hash, namespace: namespace.clone(), key: key.clone(), record, newer: NONE, older: NONE };
        let bytes = entry.bytes();
        if bytes > self.budget_bytes {
            return;
        }
        while self.bytes + bytes > self.budget_bytes {
            self.remove(self.oldest);
        }
        let slot = match self.free.pop() {
            Some(slot) => {
                self.entries[slot as usize] = entry;
                slot
            }
            None => {
                self.entries.push(entry);
                u32::try_from(self.entries.len() - 1).expect("the byte budget keeps the entries below 2^32")
            }
        };
        self.bytes += bytes;
        let entries = &self.entries;
        self.table.insert_unique(hash, slot, |slot| entries[*slot as usize].hash);
        self.link_newest(slot);
        assert!(self.bytes <= self.budget_bytes, "the cache keeps to its budget");
        events::CacheBytes.add(bytes as i64);
    }

    fn hash(&self, namespace: &str, key: &str) -> u64 {
        let mut hasher = self.hashing.build_hasher();
        namespace.hash(&mut hasher);
        key.hash(&mut hasher);
        hasher.finish()
    }

    fn find(&self, hash: u64, namespace: &str, key: &str) -> Option<u32> {
        let matches = |slot: &u32| {
            let entry = &self.entries[*slot as usize];
            *entry.key == *key && *entry.namespace == *namespace
        };
        self.table.find(hash, matches).copied()
    }

    fn remove(&mut self, slot: u32) {
        self.unlink(slot);
        let entry = &mut self.entries[slot as usize];
        let (hash, bytes) = (entry.hash, entry.bytes());
        entry.record = None;
        self.bytes -= bytes;
        events::CacheBytes.add(-(bytes as i64));
        let found = self.table.find_entry(hash, |other| *other == slot);
        found.expect("every live slot is in the table").remove();
        self.free.push(slot);
    }

    fn unlink(&mut self, slot: u32) {
        let CacheEntry { newer, older, .. } = self.entries[slot as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.entries[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.entries[older as usize].newer = newer,
        }
    }

    fn link_newest(&mut self, slot: u32) {
        let next = self.newest;
        self.entries[slot as usize].newer = NONE;
        self.entries[slot as usize].older = next;
        match next {
            NONE => self.oldest = slot,
            next => self.entries[next as usize].newer = slot,
        }
        self.newest = slot;
    }
}

impl Drop for RecordCache {
    fn drop(&mut self) {
        events::CacheBytes.add(-(self.bytes as i64));
    }
}

#[cfg(test)]
mod tests {
    use base::{Bytes, Version};

    use super::*;

    fn name(text: &str) -> Arc<str> {
        Arc::from(text)
    }

    fn record(block: u64, bytes: usize) -> Option<Versioned> {
        Some(Versioned { value: Bytes::from(vec![7; bytes]), version: Version { block, tx: 0 } })
    }

    #[test]
    fn the_least_recently_used_entry_leaves_first() {
        let mut cache = RecordCache::new(3 * (ENTRY_OVERHEAD_BYTES + 1 + 1 + 10));
        for key in ["a", "b", "c"] {
            cache.replace(&name("n"), &name(key), record(1, 10));
        }
        assert_eq!(cache.get("n", "a"), Some(record(1, 10)));
        cache.replace(&name("n"), &name("d"), record(1, 10));
        assert_eq!(cache.get("n", "b"), None);
        for key in ["a", "c", "d"] {
            assert_eq!(cache.get("n", key), Some(record(1, 10)), "{key}");
        }
    }

    #[test]
    fn a_fill_that_began_before_a_replacement_is_dropped() {
        let mut cache = RecordCache::new(10_000);
        let ticket = cache.token();
        cache.replace(&name("n"), &name("a"), record(5, 3));
        cache.fill(ticket, &name("n"), &name("a"), record(4, 3));
        assert_eq!(cache.get("n", "a"), Some(record(5, 3)));
    }

    #[test]
    fn bytes_follow_a_model_through_random_operations() {
        let budget = 2_000;
        let mut cache = RecordCache::new(budget);
        let mut random = 1u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let key = name(&format!("k{}", (random >> 33) % 40));
            let value = record(random >> 60, (random >> 40) as usize % 300);
            match random >> 62 {
                0 => drop(cache.get("n", &key)),
                1 => cache.replace(&name("n"), &key, None),
                _ => cache.replace(&name("n"), &key, value),
            }
            let live = cache.entries.len() - cache.free.len();
            assert_eq!(live, cache.table.len());
            let charged: usize = cache.table.iter().map(|slot| cache.entries[*slot as usize].bytes()).sum();
            assert_eq!(charged, cache.bytes);
            assert!(charged <= budget);
        }
    }

    #[test]
    fn a_record_larger_than_the_budget_is_not_kept_and_forgets_its_older_version() {
        let mut cache = RecordCache::new(500);
        cache.replace(&name("n"), &name("a"), record(1, 10));
        cache.replace(&name("n"), &name("a"), record(2, 1_000));
        assert_eq!(cache.get("n", "a"), None);
        assert_eq!(cache.bytes, 0);
    }
}
