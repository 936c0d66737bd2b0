//! The metadata cache: for each key its newest version, that version's location, and whether it is live or deleted.
//!
//! Entries lie in a slab that is evicted by a clock: an entry that was used since the hand's last visit stays for
//! another round.

use base::{Bytes, Version};

use super::slot_table::{CELL_BYTES, SlotTable};
use super::{CachedVersion, VersionKind, VersionTag};
use crate::disaggregated::index::KeyHash;
use crate::disaggregated::pointer::Pointer;
use crate::disaggregated::record::KeyName;
use crate::events;

/// Namespace and key, inside the entry if they are short.
enum EntryName {
    Short([u8; SHORT_BYTES]),
    Long(Box<[u8]>),
}

const SHORT_BYTES: usize = 31;

/// The entry of a key. Two adjacent cache lines, so that a warm read touches these, a cell of the table and the
/// reference count of the value.
#[repr(align(128))]
pub struct MetadataEntry {
    hash: KeyHash,
    names: EntryName,
    names_bytes: u16,
    namespace_bytes: u16,
    kind: VersionKind,
    used: bool,
    /// The value was asked for since the last visit of the data cache's clock.
    value_used: bool,
    tx: u32,
    block: u64,
    pointer: Pointer,
    /// Tag of the newest version in the data cache, if it is there.
    tag: VersionTag,
    /// The value, while the data cache has it.
    value: Option<Bytes>,
    bytes: u32,
}

const _: () = assert!(size_of::<Option<MetadataEntry>>() == 128);

/// What an entry costs besides long names: its part of the slab with the slab's unused capacity, and its cell.
pub const ENTRY_BYTES: usize = size_of::<MetadataEntry>() * 9 / 8 + CELL_BYTES;

/// See [the module](self).
#[derive(Default)]
pub struct MetadataCache {
    slots: SlotTable,
    slab: Vec<Option<MetadataEntry>>,
    vacant: Vec<u32>,
    hand: usize,
    bytes: usize,
    budget_bytes: usize,
}

impl EntryName {
    fn new(name: KeyName<'_>) -> EntryName {
        let (namespace, key) = (name.namespace.as_bytes(), name.key.as_bytes());
        let bytes = namespace.len() + key.len();
        if bytes > SHORT_BYTES {
            return EntryName::Long([namespace, key].concat().into());
        }
        let mut short = [0; SHORT_BYTES];
        short[..namespace.len()].copy_from_slice(namespace);
        short[namespace.len()..bytes].copy_from_slice(key);
        EntryName::Short(short)
    }

    /// What the names cost besides the entry.
    fn cost(bytes: usize) -> usize {
        if bytes > SHORT_BYTES { bytes + 16 } else { 0 }
    }
}

impl MetadataEntry {
    fn bytes(&self) -> usize {
        ENTRY_BYTES + EntryName::cost(usize::from(self.names_bytes))
    }

    #[inline]
    pub fn tag(&self) -> VersionTag {
        self.tag
    }

    #[inline]
    pub fn cached_version(&self) -> CachedVersion {
        let version = Version { block: self.block, tx: self.tx };
        CachedVersion { pointer: self.pointer, version, kind: self.kind, bytes: self.bytes }
    }

    /// The value, if the data cache has it; counts as used.
    #[inline]
    pub fn value(&mut self) -> Option<Bytes> {
        self.value_used = true;
        self.value.clone()
    }

    fn set(&mut self, known: CachedVersion, tag: VersionTag) {
        let CachedVersion { pointer, version, kind, bytes } = known;
        (self.pointer, self.block, self.tx, self.kind, self.bytes) = (pointer, version.block, version.tx, kind, bytes);
        (self.tag, self.value, self.value_used) = (tag, None, false);
    }

    #[inline]
    fn is_of(&self, hash: KeyHash, name: KeyName<'_>) -> bool {
        let (namespace, all) = (usize::from(self.namespace_bytes), usize::from(self.names_bytes));
        if self.hash != hash || namespace != name.namespace.len() || all != namespace + name.key.len() {
            return false;
        }
        let names = match &self.names {
            EntryName::Short(names) => &names[..all],
            EntryName::Long(names) => names,
        };
        &names[namespace..] == name.key.as_bytes() && &names[..namespace] == name.namespace.as_bytes()
    }
}

impl MetadataEntry {
    /// Sets the value that the data cache has, or clears it.
    pub fn set_value(&mut self, value: Option<Bytes>) {
        self.value = value;
    }

    pub fn has_value(&self) -> bool {
        self.value.is_some()
    }

    /// Whether the value was asked for since the last call.
    pub fn take_value_used(&mut self) -> bool {
        std::mem::take(&mut self.value_used)
    }
}

impl MetadataCache {
    pub fn new(budget_bytes: usize) -> MetadataCache {
        MetadataCache { budget_bytes, ..MetadataCache::default() }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether another key fits without eviction.
    pub fn has_capacity(&self, name: KeyName<'_>) -> bool {
        let names = name.namespace.len() + name.key.len();
        self.bytes + ENTRY_BYTES + EntryName::cost(names) <= self.budget_bytes
    }

    #[inline]
    pub fn slot_of(&self, hash: KeyHash, name: KeyName<'_>) -> Option<u32> {
        let slab = &self.slab;
        let is_it = |at: u32| slab[at as usize].as_ref().is_some_and(|entry| entry.is_of(hash, name));
        self.slots.find(hash.0, is_it)
    }

    /// The entry of a key, which counts as used.
    #[inline]
    pub fn find(&mut self, hash: KeyHash, name: KeyName<'_>) -> Option<&mut MetadataEntry> {
        let at = self.slot_of(hash, name)?;
        let entry = self.slab[at as usize].as_mut()?;
        entry.used = true;
        Some(entry)
    }

    /// The entry at a position, if it is that of this version.
    pub fn of_version(&mut self, at: u32, tag: VersionTag) -> Option<&mut MetadataEntry> {
        self.slab.get_mut(at as usize)?.as_mut().filter(|entry| entry.tag == tag)
    }

    /// Sets the entry of a key, without its value; evicts others until there is space. Returns its position, if it fits
    /// at all.
    pub fn put(&mut self, hash: KeyHash, name: KeyName<'_>, known: CachedVersion, tag: VersionTag) -> Option<u32> {
        if let Some(at) = self.slot_of(hash, name) {
            self.slab[at as usize].as_mut()?.set(known, tag);
            return Some(at);
        }
        let all = name.namespace.len() + name.key.len();
        let (Ok(namespace_bytes), Ok(names_bytes)) = (u16::try_from(name.namespace.len()), u16::try_from(all)) else {
            return None;
        };
        let bytes = ENTRY_BYTES + EntryName::cost(all);
        if bytes > self.budget_bytes {
            return None;
        }
        while self.bytes + bytes > self.budget_bytes {
            self.evict_one();
        }
        let CachedVersion { pointer, version: Version { block, tx }, kind, bytes: record_bytes } = known;
        let entry = Some(MetadataEntry {
            hash,
            names: EntryName::new(name),
            names_bytes,
            namespace_bytes,
            kind,
            used: false,
            value_used: false,
            tx,
            block,
            pointer,
            tag,
            value: None,
            bytes: record_bytes,
        });
        let at = match self.vacant.pop() {
            Some(at) => {
                self.slab[at as usize] = entry;
                at
            }
            None => {
                if self.slab.len() == self.slab.capacity() {
                    self.slab.reserve_exact((self.slab.len() / 8).max(4));
                }
                self.slab.push(entry);
                u32::try_from(self.slab.len() - 1).expect("the byte budget keeps the entries below 2^32")
            }
        };
        self.bytes += bytes;
        events::MetadataCacheBytes.add(bytes as i64);
        self.slots.insert(hash.0, at);
        Some(at)
    }

    /// Clears the location of a key's newest version, if it is this pointer.
    pub fn detach(&mut self, hash: KeyHash, name: KeyName<'_>, pointer: Pointer) {
        if let Some(at) = self.slot_of(hash, name)
            && let Some(entry) = self.slab[at as usize].as_mut()
            && entry.pointer == pointer
        {
            entry.pointer = Pointer::NULL;
        }
    }

    pub fn remove(&mut self, hash: KeyHash, name: KeyName<'_>) {
        if let Some(at) = self.slot_of(hash, name) {
            self.remove_at(at);
        }
    }

    /// The pointers of the entries' versions in remote memory.
    pub fn pointers(&self) -> impl Iterator<Item = Pointer> + '_ {
        self.slab.iter().flatten().map(|entry| entry.pointer).filter(|pointer| !pointer.is_null())
    }

    /// Removes every entry for which `keep` does not hold.
    pub fn retain(&mut self, keep: impl Fn(&CachedVersion) -> bool) {
        for at in 0..self.slab.len() {
            if self.slab[at].as_ref().is_some_and(|entry| !keep(&entry.cached_version())) {
                self.remove_at(at as u32);
            }
        }
    }

    fn evict_one(&mut self) {
        loop {
            self.hand = if self.hand + 1 >= self.slab.len() { 0 } else { self.hand + 1 };
            match &mut self.slab[self.hand] {
                Some(entry) if entry.used => entry.used = false,
                Some(_) => return self.remove_at(self.hand as u32),
                None => {}
            }
        }
    }

    fn remove_at(&mut self, at: u32) {
        let entry = self.slab[at as usize].take().expect("only entries are removed");
        self.bytes -= entry.bytes();
        events::MetadataCacheBytes.add(-(entry.bytes() as i64));
        self.slots.remove(entry.hash.0, at);
        self.vacant.push(at);
    }
}
