//! The delta: which keys the blocks after the savepoint wrote, every version of them, and where each is.
//!
//! What memory cannot hold, or has lost, is found here and in storage. Values stay in remote memory; the delta keeps them
//! itself only while there is no room for them there, within a bound that apply observes.
//!
//! Keys are found by their hash, and forgotten by the list of what each block wrote. The order of keys is made up for when
//! somebody asks for a range ([`Delta::order`]): a block that nobody ranges over pays for no tree.
//!
//! Invariants: for each key the versions ascend; a version leaves the delta only once the durable savepoint covers it. So a
//! reader that asks the delta first and storage second finds every version. Every key that a block below
//! `ordered_below` wrote, and that is still here, is in `order`.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use base::{Bytes, Version};
use hashbrown::HashTable;

use super::index::KeyHash;
use super::pointer::Pointer;
use super::record::Name;
use crate::events;

/// What a version costs besides its key and value: its line with the table's spare room, its place in the block's list, what
/// the order and shared text add.
const VERSION_BYTES: usize = 200;

/// Where a version is.
#[derive(Clone, Debug)]
pub enum Place {
    /// In remote memory: the pointer, and the bytes of the record.
    Remote(Pointer, u32),
    /// Here.
    Here(Box<Bytes>),
    /// In storage, once the savepoint covers it.
    Storage,
    /// Nowhere: the key was deleted.
    Deleted,
}

/// One version of a key.
#[derive(Clone, Debug)]
pub struct Written {
    pub version: Version,
    pub place: Place,
}

/// What the delta knows of a key at a height.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The newest version that is seen, if the delta has one.
    pub newest: Option<Written>,
    /// Whether there is a version too new to be seen.
    pub newer: bool,
}

/// A key and its versions.
struct Line {
    hash: KeyHash,
    namespace: Arc<str>,
    key: Arc<str>,
    newest: Written,
    /// The others, oldest first.
    older: Vec<Written>,
    is_ordered: bool,
}

impl Line {
    fn is_of(&self, hash: KeyHash, name: Name<'_>) -> bool {
        self.hash == hash && *self.key == *name.key && *self.namespace == *name.namespace
    }

    fn oldest(&self) -> &Written {
        self.older.first().unwrap_or(&self.newest)
    }

    /// The newest version below `height`.
    fn below(&self, height: u64) -> Option<&Written> {
        if self.newest.version.block < height {
            return Some(&self.newest);
        }
        self.older.iter().rev().find(|written| written.version.block < height)
    }

    fn cost(&self, written: &Written) -> usize {
        let value = if let Place::Here(value) = &written.place { value.len() } else { 0 };
        VERSION_BYTES + self.key.len() + value
    }
}

#[derive(Default)]
pub struct Delta {
    lines: HashTable<Line>,
    /// What each block wrote.
    blocks: VecDeque<(u64, Vec<KeyHash>)>,
    /// The keys of each namespace in order, as far as that is made up for.
    order: BTreeMap<Arc<str>, BTreeMap<Arc<str>, KeyHash>>,
    ordered_below: u64,
    bytes: usize,
}

impl Delta {
    /// Bytes held, for back-pressure.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The namespaces that hold writes; the delta is in order.
    pub fn namespaces(&self) -> impl Iterator<Item = &Arc<str>> {
        self.order.keys()
    }

    /// Adds the writes of a block newer than all before: each key once, with what makes shared text of its name where it is
    /// new here.
    pub fn add<'a, F: FnOnce() -> (Arc<str>, Arc<str>)>(
        &mut self,
        block: u64,
        writes: impl Iterator<Item = (KeyHash, Name<'a>, F, Written)>,
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
                    let line = Line { hash, namespace, key, newest: written, older: Vec::new(), is_ordered: false };
                    self.lines.insert_unique(hash.0, line, |line| line.hash.0).into_mut()
                }
            };
            self.bytes += line.cost(&line.newest);
        }
        self.blocks.push_back((block, hashes));
        events::DeltaBytes.add(self.bytes as i64 - before as i64);
    }

    /// What a reader at `height` sees of a key.
    pub fn see(&self, hash: KeyHash, name: Name<'_>, height: u64) -> Seen {
        match self.lines.find(hash.0, |line| line.is_of(hash, name)) {
            Some(line) => Seen { newest: line.below(height).cloned(), newer: line.newest.version.block >= height },
            None => Seen { newest: None, newer: false },
        }
    }

    /// Whether every key is in order.
    pub fn is_ordered(&self) -> bool {
        self.blocks.back().is_none_or(|(last, _)| *last < self.ordered_below)
    }

    /// Brings the keys into order that were written since this was last called.
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

    /// The newest writes below `height` of the keys in `start <= key < end`, deletions included, in key order. The blocks
    /// below `height` are in order.
    pub fn range<'a>(
        &'a self,
        namespace: &'a str,
        start: &'a str,
        end: &'a str,
        height: u64,
    ) -> impl Iterator<Item = (&'a Arc<str>, &'a Written)> {
        let keys = self.order.get(namespace).into_iter();
        keys.flat_map(move |keys| keys.range::<str, _>((Bound::Included(start), Bound::Unbounded)))
            .take_while(move |(key, _)| end.is_empty() || key.as_ref() < end)
            .filter_map(move |(key, hash)| {
                let name = Name { namespace, key };
                let line = self.lines.find(hash.0, |line| line.is_of(*hash, name));
                Some((key, line.expect("what is in order is here").below(height)?))
            })
    }

    /// The first block whose writes are here, if any is.
    pub fn first_block(&self) -> Option<u64> {
        self.blocks.front().map(|(block, _)| *block)
    }

    /// What each block wrote that is here, blocks and the names within each in order.
    pub fn writes_by_block(&self) -> BTreeMap<u64, Vec<(Name<'_>, &Written)>> {
        let mut blocks: BTreeMap<u64, Vec<(Name<'_>, &Written)>> =
            self.blocks.iter().map(|(block, _)| (*block, Vec::new())).collect();
        for line in &self.lines {
            let name = Name { namespace: &line.namespace, key: &line.key };
            for written in line.older.iter().chain([&line.newest]) {
                let block = blocks.get_mut(&written.version.block).expect("a version is of a block that is here");
                block.push((name, written));
            }
        }
        blocks.values_mut().for_each(|writes| writes.sort_unstable_by_key(|(name, _)| *name));
        blocks
    }

    /// Where the newest versions are that remote memory holds.
    pub fn newest_in_memory(&self) -> Vec<Pointer> {
        let pointer = |line: &Line| match line.newest.place {
            Place::Remote(pointer, _) => Some(pointer),
            _ => None,
        };
        self.lines.iter().filter_map(pointer).collect()
    }

    /// The record that held this version is gone from remote memory.
    pub fn detach(&mut self, hash: KeyHash, name: Name<'_>, pointer: Pointer) {
        let Some(line) = self.lines.find_mut(hash.0, |line| line.is_of(hash, name)) else { return };
        for written in line.older.iter_mut().chain([&mut line.newest]) {
            if matches!(written.place, Place::Remote(other, _) if other == pointer) {
                written.place = Place::Storage;
            }
        }
    }

    /// Forgets every version below `height`, which storage holds durably.
    pub fn forget_below(&mut self, height: u64) {
        let before = self.bytes;
        while self.blocks.front().is_some_and(|(block, _)| *block < height) {
            let (_, hashes) = self.blocks.pop_front().expect("there is one");
            hashes.into_iter().for_each(|hash| self.forget(hash, height));
        }
        events::DeltaBytes.add(self.bytes as i64 - before as i64);
        assert!(!self.lines.is_empty() || self.bytes == 0, "an empty delta holds no bytes");
    }

    /// Forgets the versions below `height` of the keys with this hash.
    fn forget(&mut self, hash: KeyHash, height: u64) {
        let is_due = |line: &Line| line.hash == hash && line.oldest().version.block < height;
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

    /// Of few values, so that keys collide.
    fn hash(key: &str) -> KeyHash {
        KeyHash(u64::from(key.bytes().last().unwrap_or_default() % 3) << 50)
    }

    fn see(delta: &Delta, key: &str, height: u64) -> Option<Version> {
        let name = Name { namespace: "cc", key };
        delta.see(hash(key), name, height).newest.map(|written| written.version)
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
            let written = |version: &Version| Written { version: *version, place: Place::Storage };
            let written = writes.iter().map(|(key, version)| {
                let name = Name { namespace: &namespace, key };
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
