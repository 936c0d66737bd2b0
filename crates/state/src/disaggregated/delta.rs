//! The delta: the keys that blocks after the savepoint wrote, all versions that these blocks wrote, and the location of
//! each version.
//!
//! If memory cannot hold a version, or has lost it, a reader finds the version through the delta or in storage. Values
//! stay in remote memory. The delta itself keeps a value only if apply could not write the version's record: memory was
//! full, the record was too long, or a step failed. The delta is bounded: the caller of apply persists when
//! [`crate::WorldState::wants_persist`] says so.
//!
//! The delta finds a key by its hash, and drops a block's versions by the list of the block's writes. Adding a block
//! inserts nothing into the sorted tree of keys: the delta sorts new keys into it only when a range is read
//! ([`Delta::order`]).
//!
//! Invariants:
//! * For each key the versions ascend.
//! * A version leaves the delta only once the durable savepoint covers it. So a reader that asks the delta first and
//!   storage second finds every version.
//! * If a block below `ordered_below` wrote a key that is still in the delta, the key is in the sorted tree, `order`.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use base::{Bytes, Version};
use hashbrown::HashTable;

use super::index::KeyHash;
use super::pointer::Pointer;
use super::record::KeyName;
use crate::events;

/// What a version costs besides its key and value: its line with the table's unused capacity, its entry in the block's
/// list, and its part of the order and of shared text.
const VERSION_BYTES: usize = 200;

/// Where a version is.
#[derive(Clone, Debug)]
pub enum ValueLocation {
    /// In remote memory: the pointer, and the bytes of the record.
    Remote(Pointer, u32),
    /// In the delta itself.
    Inline(Box<Bytes>),
    /// In storage, once the savepoint covers it.
    Storage,
    /// Nowhere: the key was deleted.
    Deleted,
}

/// One version of a key.
#[derive(Clone, Debug)]
pub struct DeltaVersion {
    pub version: Version,
    pub location: ValueLocation,
}

/// The result of a look-up of a key at a height.
#[derive(Clone, Debug)]
pub struct DeltaLookup {
    /// The newest visible version, if the delta has one.
    pub newest: Option<DeltaVersion>,
    /// Whether there is a version too new to be visible.
    pub newer: bool,
}

/// A key and its versions.
struct DeltaLine {
    hash: KeyHash,
    namespace: Arc<str>,
    key: Arc<str>,
    newest: DeltaVersion,
    /// The others, oldest first.
    older: Vec<DeltaVersion>,
    is_ordered: bool,
}

impl DeltaLine {
    fn is_of(&self, hash: KeyHash, name: KeyName<'_>) -> bool {
        self.hash == hash && *self.key == *name.key && *self.namespace == *name.namespace
    }

    fn oldest(&self) -> &DeltaVersion {
        self.older.first().unwrap_or(&self.newest)
    }

    /// The newest version below `height`.
    fn below(&self, height: u64) -> Option<&DeltaVersion> {
        if self.newest.version.block < height {
            return Some(&self.newest);
        }
        self.older.iter().rev().find(|written| written.version.block < height)
    }

    fn cost(&self, written: &DeltaVersion) -> usize {
        let value = if let ValueLocation::Inline(value) = &written.location { value.len() } else { 0 };
        VERSION_BYTES + self.key.len() + value
    }
}

#[derive(Default)]
pub struct Delta {
    lines: HashTable<DeltaLine>,
    /// The hashes of the keys that each block wrote.
    blocks: VecDeque<(u64, Vec<KeyHash>)>,
    /// The keys of each namespace in order, as far as it has been computed.
    order: BTreeMap<Arc<str>, BTreeMap<Arc<str>, KeyHash>>,
    ordered_below: u64,
    bytes: usize,
}

impl Delta {
    /// Bytes held, for back-pressure.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The namespaces with writes; the delta must be ordered.
    pub fn namespaces(&self) -> impl Iterator<Item = &Arc<str>> {
        self.order.keys()
    }

    /// Adds the writes of a block newer than all before: each key once, with a closure that creates the shared text of
    /// its name if the key is new here.
    pub fn add<'a, F: FnOnce() -> (Arc<str>, Arc<str>)>(
        &mut self,
        block: u64,
        writes: impl Iterator<Item = (KeyHash, KeyName<'a>, F, DeltaVersion)>,
    ) {
        assert!(self.blocks.back().is_none_or(|(last, _)| *last < block), "blocks are added in order");
        let before = self.bytes;
        let mut hashes = Vec::with_capacity(writes.size_hint().0);
        for (hash, name, shared, written) in writes {
            hashes.push(hash);
            let line = match self.lines.find_mut(hash.0, |line| line.is_of(hash, name)) {
                Some(line) => {
                    assert!(line.newest.version < written.version, "versions ascend");
                    line.older.push(std::mem::replace(&mut line.newest, written));
                    line
                }
                None => {
                    let (namespace, key) = shared();
                    let line =
                        DeltaLine { hash, namespace, key, newest: written, older: Vec::new(), is_ordered: false };
                    self.lines.insert_unique(hash.0, line, |line| line.hash.0).into_mut()
                }
            };
            self.bytes += line.cost(&line.newest);
        }
        self.blocks.push_back((block, hashes));
        events::DeltaBytes.add(self.bytes as i64 - before as i64);
    }

    /// Changes the location of the newest version of a key.
    pub fn relocate(&mut self, hash: KeyHash, name: KeyName<'_>, written: DeltaVersion) {
        let line = self.lines.find_mut(hash.0, |line| line.is_of(hash, name)).expect("the newest block is here");
        assert_eq!(line.newest.version, written.version, "it is the version of the newest block");
        let before = line.cost(&line.newest);
        line.newest = written;
        let after = line.cost(&line.newest);
        self.bytes = self.bytes - before + after;
        events::DeltaBytes.add(after as i64 - before as i64);
    }

    /// The versions of a key that a reader at `height` finds.
    pub fn look_up(&self, hash: KeyHash, name: KeyName<'_>, height: u64) -> DeltaLookup {
        match self.lines.find(hash.0, |line| line.is_of(hash, name)) {
            Some(line) => {
                DeltaLookup { newest: line.below(height).cloned(), newer: line.newest.version.block >= height }
            }
            None => DeltaLookup { newest: None, newer: false },
        }
    }

    /// Whether every key is in order.
    pub fn is_ordered(&self) -> bool {
        self.blocks.back().is_none_or(|(last, _)| *last < self.ordered_below)
    }

    /// Orders the keys that were written since the last call.
    pub fn order(&mut self) {
        let first = self.blocks.partition_point(|(block, _)| *block < self.ordered_below);
        for (_, hashes) in self.blocks.range(first..) {
            for hash in hashes {
                for line in self.lines.iter_hash_mut(hash.0).filter(|line| line.hash == *hash && !line.is_ordered) {
                    line.is_ordered = true;
                    if !self.order.contains_key(&line.namespace) {
                        self.order.insert(line.namespace.clone(), BTreeMap::new());
                    }
                    let keys = self.order.get_mut(&line.namespace).expect("the namespace was just ensured");
                    keys.insert(line.key.clone(), line.hash);
                }
            }
        }
        if let Some((last, _)) = self.blocks.back() {
            self.ordered_below = last + 1;
        }
    }

    /// The newest writes below `height` of the keys in `start <= key < end`, including deletions, in key order. The
    /// blocks below `height` must be ordered.
    pub fn range<'a>(
        &'a self,
        namespace: &'a str,
        start: &'a str,
        end: &'a str,
        height: u64,
    ) -> impl Iterator<Item = (&'a Arc<str>, &'a DeltaVersion)> {
        let keys = self.order.get(namespace).into_iter();
        keys.flat_map(move |keys| keys.range::<str, _>((Bound::Included(start), Bound::Unbounded)))
            .take_while(move |(key, _)| end.is_empty() || key.as_ref() < end)
            .filter_map(move |(key, hash)| {
                let name = KeyName { namespace, key };
                let line = self.lines.find(hash.0, |line| line.is_of(*hash, name));
                Some((key, line.expect("what is in order is here").below(height)?))
            })
    }

    /// The first block whose writes are here, if there is one.
    pub fn first_block(&self) -> Option<u64> {
        self.blocks.front().map(|(block, _)| *block)
    }

    /// The writes of each block in the delta, with blocks and names in order.
    pub fn writes_by_block(&self) -> BTreeMap<u64, Vec<(KeyName<'_>, &DeltaVersion)>> {
        let mut blocks: BTreeMap<u64, Vec<(KeyName<'_>, &DeltaVersion)>> =
            self.blocks.iter().map(|(block, _)| (*block, Vec::new())).collect();
        for line in &self.lines {
            let name = KeyName { namespace: &line.namespace, key: &line.key };
            for written in line.older.iter().chain([&line.newest]) {
                let block = blocks.get_mut(&written.version.block).expect("a version is of a block that is here");
                block.push((name, written));
            }
        }
        blocks.values_mut().for_each(|writes| writes.sort_unstable_by_key(|(name, _)| *name));
        blocks
    }

    /// The pointers of the newest versions that remote memory holds.
    pub fn newest_in_memory(&self) -> Vec<Pointer> {
        let pointer = |line: &DeltaLine| match line.newest.location {
            ValueLocation::Remote(pointer, _) => Some(pointer),
            _ => None,
        };
        self.lines.iter().filter_map(pointer).collect()
    }

    /// Notes that the record of this version is gone from remote memory.
    pub fn detach(&mut self, hash: KeyHash, name: KeyName<'_>, pointer: Pointer) {
        let Some(line) = self.lines.find_mut(hash.0, |line| line.is_of(hash, name)) else { return };
        for written in line.older.iter_mut().chain([&mut line.newest]) {
            if matches!(written.location, ValueLocation::Remote(other, _) if other == pointer) {
                written.location = ValueLocation::Storage;
            }
        }
    }

    /// Drops every version below `height`; storage holds them durably.
    pub fn forget_below(&mut self, height: u64) {
        let before = self.bytes;
        while self.blocks.front().is_some_and(|(block, _)| *block < height) {
            let (_, hashes) = self.blocks.pop_front().expect("there is one");
            hashes.into_iter().for_each(|hash| self.forget(hash, height));
        }
        events::DeltaBytes.add(self.bytes as i64 - before as i64);
        assert!(!self.lines.is_empty() || self.bytes == 0, "an empty delta holds no bytes");
    }

    /// Drops the versions below `height` of the keys with this hash.
    fn forget(&mut self, hash: KeyHash, height: u64) {
        let is_due = |line: &DeltaLine| line.hash == hash && line.oldest().version.block < height;
        while let Ok(mut entry) = self.lines.find_entry(hash.0, is_due) {
            let line = entry.get_mut();
            let due = line.older.partition_point(|written| written.version.block < height);
            self.bytes -= line.older[..due].iter().map(|written| line.cost(written)).sum::<usize>();
            line.older.drain(..due);
            if line.newest.version.block >= height {
                continue;
            }
            self.bytes -= line.cost(&line.newest);
            let (line, _) = entry.remove();
            if line.is_ordered
                && let Some(keys) = self.order.get_mut(&line.namespace)
            {
                keys.remove(&line.key);
                if keys.is_empty() {
                    self.order.remove(&line.namespace);
                }
            }
        }
    }
}

impl Drop for Delta {
    fn drop(&mut self) {
        events::DeltaBytes.add(-(self.bytes as i64));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// A hash with few values, so that keys collide.
    fn hash(key: &str) -> KeyHash {
        KeyHash(u64::from(key.bytes().last().unwrap_or_default() % 3) << 50)
    }

    fn see(delta: &Delta, key: &str, height: u64) -> Option<Version> {
        let name = KeyName { namespace: "cc", key };
        delta.look_up(hash(key), name, height).newest.map(|written| written.version)
    }

    #[test]
    fn a_version_that_is_kept_here_after_all_counts_with_its_value() {
        let mut delta = Delta::default();
        let name = KeyName { namespace: "cc", key: "key" };
        let version = Version { block: 3, tx: 1 };
        let written = |location| DeltaVersion { version, location };
        let shared = || ("cc".into(), "key".into());
        delta.add(3, [(hash("key"), name, shared, written(ValueLocation::Storage))].into_iter());
        let before = delta.bytes();
        delta.relocate(
            hash("key"),
            name,
            written(ValueLocation::Inline(Box::new(Bytes::from_static(b"twelve bytes")))),
        );
        assert_eq!(delta.bytes(), before + 12);
        let found = delta.look_up(hash("key"), name, 4).newest.expect("it is visible");
        assert!(matches!(found.location, ValueLocation::Inline(value) if **value == *b"twelve bytes"));
        delta.forget_below(4);
        assert_eq!(delta.bytes(), 0);
    }

    #[test]
    fn keys_are_seen_ranged_over_and_forgotten_as_in_a_plain_map() {
        let mut delta = Delta::default();
        let mut plain: BTreeMap<String, Vec<Version>> = BTreeMap::new();
        let namespace: Arc<str> = "cc".into();
        let mut random = 5u64;
        let mut floor = 0;
        for block in 0..400u64 {
            let mut writes: BTreeMap<Arc<str>, Version> = BTreeMap::new();
            for tx in 0..20 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                writes.insert(format!("key{:02}", (random >> 33) % 60).into(), Version { block, tx });
            }
            let written = |version: &Version| DeltaVersion { version: *version, location: ValueLocation::Storage };
            let written = writes.iter().map(|(key, version)| {
                let name = KeyName { namespace: &namespace, key };
                (hash(key), name, || (namespace.clone(), key.clone()), written(version))
            });
            delta.add(block, written);
            for (key, version) in writes {
                plain.entry(key.to_string()).or_default().push(version);
            }
            let height = block + 1 - (random >> 40) % 5.min(block + 1 - floor).max(1);
            if (random >> 20).is_multiple_of(3) {
                delta.order();
                assert!(delta.is_ordered());
                let expected: Vec<(String, Version)> = plain
                    .range("key10".to_owned().."key50".to_owned())
                    .filter_map(|(key, versions)| {
                        let seen = versions.iter().rev().find(|version| version.block < height)?;
                        Some((key.clone(), *seen))
                    })
                    .collect();
                let found: Vec<(String, Version)> = delta
                    .range("cc", "key10", "key50", height)
                    .map(|(key, written)| (key.to_string(), written.version))
                    .collect();
                assert_eq!(found, expected, "at {height} after block {block}");
            }
            for (key, versions) in &plain {
                let seen = versions.iter().rev().find(|version| version.block < height);
                assert_eq!(see(&delta, key, height), seen.copied());
            }
            if (random >> 25).is_multiple_of(4) {
                floor = block.saturating_sub((random >> 45) % 8).max(floor);
                delta.forget_below(floor);
                plain.values_mut().for_each(|versions| versions.retain(|version| version.block >= floor));
                plain.retain(|_, versions| !versions.is_empty());
            }
        }
        delta.forget_below(400);
        assert!(delta.bytes() == 0 && delta.lines.is_empty() && delta.order.is_empty() && delta.blocks.is_empty());
    }
}
