//! The data cache: versions with their values, by tag. Evicted by a clock, as the metadata cache; a version that has a successor
//! leaves at once, since only readers of older heights still want it, and those find it in remote memory.
//!
//! Versions of older heights may stay for long after their buffers were used again, until their incarnations have come round
//! to the same pointer. So a version is found by a part of its key's hash as well, which keeps it from being taken for one of
//! another key; from one of the same key its number keeps it.
//!
//! The metadata entry of a key has the value of its newest version at hand, for as long as that is here: the version knows
//! its owner's place, and takes the value back when it leaves. So a warm read has no need to look here.

use base::{Bytes, Version};

use super::metadata::{Entry, Metadata};
use super::places::{CELL_BYTES, Places};
use super::{Kept, Tag};
use crate::disaggregated::index::KeyHash;
use crate::disaggregated::pointer::Pointer;
use crate::events;

/// A version with its value.
pub struct Slot {
    tag: Tag,
    /// Empty for a deletion.
    value: Bytes,
    prev: Pointer,
    block: u64,
    tx: u32,
    /// Of the key.
    fingerprint: Fingerprint,
    /// The entry in the metadata cache that has the value at hand.
    owner: u32,
    /// Bytes that keeping it costs, and flags.
    bytes: u32,
}

const USED: u32 = 1 << 31;
const DELETED: u32 = 1 << 30;
/// What a version may cost.
const BYTES_MAX: usize = DELETED as usize - 1;

/// What a version costs besides its buffer: its place in the slab with the slab's spare room, its cell, and what shared
/// bytes and their allocation add.
pub const SLOT_BYTES: usize = size_of::<Slot>() * 9 / 8 + CELL_BYTES + 48 + 16;

impl Slot {
    fn bytes(&self) -> usize {
        SLOT_BYTES + (self.bytes & !(USED | DELETED)) as usize
    }

    fn version(&self) -> Version {
        Version { block: self.block, tx: self.tx }
    }

    pub fn kept(&self) -> Kept {
        let value = (self.bytes & DELETED == 0).then(|| self.value.clone());
        Kept { version: self.version(), value, prev: self.prev, bytes: (self.bytes & !(USED | DELETED)) as usize }
    }
}

/// See [the module](self).
#[derive(Default)]
pub struct Data {
    table: Places,
    slab: Vec<Option<Slot>>,
    vacant: Vec<u32>,
    hand: usize,
    bytes: usize,
    budget_bytes: usize,
}

const _: () = assert!(size_of::<Slot>() == 72, "the fingerprint lies where there was room");

/// A part of the hash of a version's key.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Fingerprint(u32);

impl Fingerprint {
    #[inline]
    fn of(key: KeyHash) -> Fingerprint {
        Fingerprint((key.0 >> 32) as u32)
    }
}

fn hash(tag: Tag) -> u64 {
    tag.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Data {
    pub fn new(budget_bytes: usize) -> Data {
        Data { budget_bytes, ..Data::default() }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether another version with so many bytes has room without any leaving.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.bytes + SLOT_BYTES + bytes <= self.budget_bytes
    }

    /// The version of a key with this tag; counts as used.
    pub fn find(&mut self, key: KeyHash, tag: Tag) -> Option<&Slot> {
        let at = self.place(key, tag)?;
        let slot = self.slab[at as usize].as_mut()?;
        slot.bytes |= USED;
        Some(slot)
    }

    /// Whether the version of a key with this tag is here; that does not count as a use.
    pub fn has(&self, key: KeyHash, tag: Tag) -> bool {
        self.place(key, tag).is_some()
    }

    /// Gives the entry at `owner` the value of its version, if that is the one at `at`.
    pub fn hand_to(&mut self, owner: u32, at: Option<u32>, tag: Tag, metadata: &mut Metadata) {
        if let Some(slot) = at.and_then(|at| self.slab[at as usize].as_mut())
            && let Some(entry) = metadata.of_version(owner, tag)
            && entry.known().version == slot.version()
        {
            slot.owner = owner;
            entry.set_value((slot.bytes & DELETED == 0).then(|| slot.value.clone()));
        }
    }

    pub fn remove(&mut self, key: KeyHash, tag: Tag, metadata: &mut Metadata) {
        if let Some(at) = self.place(key, tag) {
            self.remove_at(at, metadata);
        }
    }

    pub fn place(&self, key: KeyHash, tag: Tag) -> Option<u32> {
        let (slab, fingerprint) = (&self.slab, Fingerprint::of(key));
        let is_it = |slot: &Slot| slot.tag == tag && slot.fingerprint == fingerprint;
        self.table.find(hash(tag), |at| slab[at as usize].as_ref().is_some_and(is_it))
    }

    /// Keeps a version, if it is no longer than the whole cache, and says where; others leave until there is room.
    pub fn put(&mut self, key: KeyHash, tag: Tag, kept: Kept, metadata: &mut Metadata) -> Option<u32> {
        self.remove(key, tag, metadata);
        let bytes = SLOT_BYTES + kept.bytes;
        if bytes > self.budget_bytes || kept.bytes > BYTES_MAX {
            return None;
        }
        while self.bytes + bytes > self.budget_bytes {
            self.evict_one(metadata);
        }
        let Kept { version: Version { block, tx }, value, prev, bytes: kept_bytes } = kept;
        let flags = if value.is_none() { DELETED } else { 0 };
        let slot = Slot {
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
        self.table.insert(hash(tag), at);
        Some(at)
    }

    fn evict_one(&mut self, metadata: &mut Metadata) {
        loop {
            self.hand = if self.hand + 1 >= self.slab.len() { 0 } else { self.hand + 1 };
            let Some(slot) = &mut self.slab[self.hand] else { continue };
            let owner = metadata.of_version(slot.owner, slot.tag);
            let used = slot.bytes & USED != 0 || owner.is_some_and(Entry::take_value_used);
            slot.bytes &= !USED;
            if !used {
                self.remove_at(self.hand as u32, metadata);
                return;
            }
        }
    }

    fn remove_at(&mut self, at: u32, metadata: &mut Metadata) {
        let slot = self.slab[at as usize].take().expect("only versions are removed");
        if let Some(entry) = metadata.of_version(slot.owner, slot.tag) {
            entry.set_value(None);
        }
        let bytes = slot.bytes();
        self.bytes -= bytes;
        events::DataCacheBytes.add(-(bytes as i64));
        self.table.remove(hash(slot.tag), at);
        self.vacant.push(at);
    }
}
