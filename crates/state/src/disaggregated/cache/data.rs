//! The data cache has versions with their values. A version is found by its *tag*: its pointer or, if it has none, a
//! local number. The cache evicts by a clock, like the metadata cache. When a key gets a newer version, the version
//! before is removed at once: only readers at older heights still want it, and they find it in remote memory.
//!
//! A superseded version can nevertheless stay cached, for example if its key had no metadata entry any more when a
//! block replaced it. Long after its buffer was reused, the incarnations of the buffer may have wrapped around, and
//! another version then has the same tag. Therefore a look-up also compares a part of the key's hash, which excludes
//! versions of other keys; the caller compares the version number, which excludes other versions of the same key.
//!
//! While the newest version of a key is cached here, the key's metadata entry holds its value too, so a warm read need
//! not look here. Each cached version records which metadata entry holds its value too: its *owner*. When the version
//! leaves this cache, the value in the owner is cleared.

use base::{Bytes, Version};

use super::metadata::{MetadataCache, MetadataEntry};
use super::slot_table::{CELL_BYTES, SlotTable};
use super::{CachedValue, VersionTag};
use crate::disaggregated::index::KeyHash;
use crate::disaggregated::pointer::Pointer;
use crate::events;

/// A version with its value.
pub struct DataEntry {
    tag: VersionTag,
    /// Empty for a deletion.
    value: Bytes,
    prev: Pointer,
    block: u64,
    tx: u32,
    /// Fingerprint of the key.
    fingerprint: Fingerprint,
    /// The entry in the metadata cache that holds the value.
    owner: u32,
    /// Bytes that caching it costs, and flags.
    bytes: u32,
}

const USED: u32 = 1 << 31;
const DELETED: u32 = 1 << 30;
/// The most that a version may cost.
const BYTES_MAX: usize = DELETED as usize - 1;

/// What a version costs besides its buffer: its part of the slab with the slab's unused capacity, its cell, and the
/// overhead of shared bytes and their allocation.
pub const SLOT_BYTES: usize = size_of::<DataEntry>() * 9 / 8 + CELL_BYTES + 48 + 16;

impl DataEntry {
    fn bytes(&self) -> usize {
        SLOT_BYTES + (self.bytes & !(USED | DELETED)) as usize
    }

    fn version(&self) -> Version {
        Version { block: self.block, tx: self.tx }
    }

    pub fn cached_value(&self) -> CachedValue {
        let value = (self.bytes & DELETED == 0).then(|| self.value.clone());
        CachedValue {
            version: self.version(),
            value,
            prev: self.prev,
            bytes: (self.bytes & !(USED | DELETED)) as usize,
        }
    }
}

/// See [the module](self).
#[derive(Default)]
pub struct DataCache {
    slots: SlotTable,
    slab: Vec<Option<DataEntry>>,
    vacant: Vec<u32>,
    hand: usize,
    bytes: usize,
    budget_bytes: usize,
}

const _: () = assert!(size_of::<DataEntry>() == 72, "the fingerprint lies where there was room");

/// A part of the hash of a version's key.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Fingerprint(u32);

impl Fingerprint {
    #[inline]
    fn of(key: KeyHash) -> Fingerprint {
        Fingerprint((key.0 >> 32) as u32)
    }
}

fn hash(tag: VersionTag) -> u64 {
    tag.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl DataCache {
    pub fn new(budget_bytes: usize) -> DataCache {
        DataCache { budget_bytes, ..DataCache::default() }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether another version with this many bytes fits without eviction.
    pub fn has_capacity(&self, bytes: usize) -> bool {
        self.bytes + SLOT_BYTES + bytes <= self.budget_bytes
    }

    /// The version of a key with this tag; counts as used.
    pub fn find(&mut self, key: KeyHash, tag: VersionTag) -> Option<&DataEntry> {
        let at = self.slot_of(key, tag)?;
        let slot = self.slab[at as usize].as_mut()?;
        slot.bytes |= USED;
        Some(slot)
    }

    /// Whether the version of a key with this tag is cached; does not count as a use.
    pub fn has(&self, key: KeyHash, tag: VersionTag) -> bool {
        self.slot_of(key, tag).is_some()
    }

    /// Gives the entry at `owner` the value of its version, if that is the one at `at`.
    pub fn hand_to(&mut self, owner: u32, at: Option<u32>, tag: VersionTag, metadata: &mut MetadataCache) {
        if let Some(slot) = at.and_then(|at| self.slab[at as usize].as_mut())
            && let Some(entry) = metadata.of_version(owner, tag)
            && entry.cached_version().version == slot.version()
        {
            slot.owner = owner;
            entry.set_value((slot.bytes & DELETED == 0).then(|| slot.value.clone()));
        }
    }

    pub fn remove(&mut self, key: KeyHash, tag: VersionTag, metadata: &mut MetadataCache) {
        if let Some(at) = self.slot_of(key, tag) {
            self.remove_at(at, metadata);
        }
    }

    pub fn slot_of(&self, key: KeyHash, tag: VersionTag) -> Option<u32> {
        let (slab, fingerprint) = (&self.slab, Fingerprint::of(key));
        let is_it = |slot: &DataEntry| slot.tag == tag && slot.fingerprint == fingerprint;
        self.slots.find(hash(tag), |at| slab[at as usize].as_ref().is_some_and(is_it))
    }

    /// Caches a version, if it is no longer than the whole cache, and returns its position; evicts others until there
    /// is space.
    pub fn put(
        &mut self,
        key: KeyHash,
        tag: VersionTag,
        kept: CachedValue,
        metadata: &mut MetadataCache,
    ) -> Option<u32> {
        self.remove(key, tag, metadata);
        let bytes = SLOT_BYTES + kept.bytes;
        if bytes > self.budget_bytes || kept.bytes > BYTES_MAX {
            return None;
        }
        while self.bytes + bytes > self.budget_bytes {
            self.evict_one(metadata);
        }
        let CachedValue { version: Version { block, tx }, value, prev, bytes: kept_bytes } = kept;
        let flags = if value.is_none() { DELETED } else { 0 };
        let slot = DataEntry {
            tag,
            value: value.unwrap_or_default(),
            prev,
            block,
            tx,
            fingerprint: Fingerprint::of(key),
            owner: u32::MAX,
            bytes: kept_bytes as u32 | flags,
        };
        let slot = Some(slot);
        let at = match self.vacant.pop() {
            Some(at) => {
                self.slab[at as usize] = slot;
                at
            }
            None => {
                if self.slab.len() == self.slab.capacity() {
                    self.slab.reserve_exact((self.slab.len() / 8).max(4));
                }
                self.slab.push(slot);
                u32::try_from(self.slab.len() - 1).expect("the byte budget keeps the versions below 2^32")
            }
        };
        self.bytes += bytes;
        events::DataCacheBytes.add(bytes as i64);
        self.slots.insert(hash(tag), at);
        Some(at)
    }

    fn evict_one(&mut self, metadata: &mut MetadataCache) {
        loop {
            self.hand = if self.hand + 1 >= self.slab.len() { 0 } else { self.hand + 1 };
            let Some(slot) = &mut self.slab[self.hand] else { continue };
            let owner = metadata.of_version(slot.owner, slot.tag);
            let used = slot.bytes & USED != 0 || owner.is_some_and(MetadataEntry::take_value_used);
            slot.bytes &= !USED;
            if !used {
                self.remove_at(self.hand as u32, metadata);
                return;
            }
        }
    }

    fn remove_at(&mut self, at: u32, metadata: &mut MetadataCache) {
        let slot = self.slab[at as usize].take().expect("only versions are removed");
        if let Some(entry) = metadata.of_version(slot.owner, slot.tag) {
            entry.set_value(None);
        }
        let bytes = slot.bytes();
        self.bytes -= bytes;
        events::DataCacheBytes.add(-(bytes as i64));
        self.slots.remove(hash(slot.tag), at);
        self.vacant.push(at);
    }
}
