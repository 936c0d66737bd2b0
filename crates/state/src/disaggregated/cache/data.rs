//! The data cache: versions with their values, by tag. Evicted by a clock, as the metadata cache.

use base::{Bytes, Version};

use super::places::{CELL_BYTES, Places};
use super::{Kept, Tag};
use crate::Versioned;
use crate::disaggregated::pointer::Pointer;
use crate::events;

/// A version with its value. One cache line.
#[repr(align(64))]
pub struct Slot {
    tag: Tag,
    /// Empty for a deletion.
    value: Bytes,
    prev: Pointer,
    block: u64,
    tx: u32,
    /// Bytes that keeping it costs, and flags.
    bytes: u32,
}

const USED: u32 = 1 << 31;
const DELETED: u32 = 1 << 30;
/// What a version may cost.
const BYTES_MAX: usize = DELETED as usize - 1;

const _: () = assert!(size_of::<Option<Slot>>() == 64);

/// What a version costs besides its buffer: its place in the slab with the slab's spare room, its cell, and what shared
/// bytes and their allocation add.
pub const SLOT_BYTES: usize = size_of::<Slot>() * 9 / 8 + CELL_BYTES + 24 + 16;

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

    #[inline]
    pub fn versioned(&self) -> Option<Versioned> {
        (self.bytes & DELETED == 0).then(|| Versioned { value: self.value.clone(), version: self.version() })
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

    /// The version with this tag, expected at `hint`, which is corrected; counts as used.
    #[inline]
    pub fn get(&mut self, tag: Tag, hint: &mut u32) -> Option<&Slot> {
        if !matches!(self.slab.get(*hint as usize), Some(Some(slot)) if slot.tag == tag) {
            *hint = self.place(tag)?;
        }
        let slot = self.slab[*hint as usize].as_mut()?;
        slot.bytes |= USED;
        Some(slot)
    }

    /// The version with this tag; counts as used.
    pub fn find(&mut self, tag: Tag) -> Option<&Slot> {
        let mut hint = u32::MAX;
        self.get(tag, &mut hint)
    }

    pub fn remove(&mut self, tag: Tag) {
        if let Some(at) = self.place(tag) {
            self.remove_at(at);
        }
    }

    /// Where the version with this tag is.
    pub fn place(&self, tag: Tag) -> Option<u32> {
        let slab = &self.slab;
        let is_it = |at: u32| slab[at as usize].as_ref().is_some_and(|slot| slot.tag == tag);
        self.table.find(hash(tag), is_it)
    }

    /// Keeps a version; others leave until there is room. Says where, unless it is longer than the whole cache.
    pub fn put(&mut self, tag: Tag, kept: Kept) -> Option<u32> {
        if let Some(at) = self.place(tag) {
            self.remove_at(at);
        }
        let bytes = SLOT_BYTES + kept.bytes;
        if bytes > self.budget_bytes || kept.bytes > BYTES_MAX {
            return None;
        }
        while self.bytes + bytes > self.budget_bytes {
            self.evict_one();
        }
        let Kept { version: Version { block, tx }, value, prev, bytes: kept_bytes } = kept;
        let flags = if value.is_none() { DELETED } else { 0 };
        let slot = Slot { tag, value: value.unwrap_or_default(), prev, block, tx, bytes: kept_bytes as u32 | flags };
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

    fn evict_one(&mut self) {
        loop {
            self.hand = if self.hand + 1 >= self.slab.len() { 0 } else { self.hand + 1 };
            match &mut self.slab[self.hand] {
                Some(slot) if slot.bytes & USED != 0 => slot.bytes &= !USED,
                Some(_) => return self.remove_at(self.hand as u32),
                None => {}
            }
        }
    }

    fn remove_at(&mut self, at: u32) {
        let slot = self.slab[at as usize].take().expect("only versions are removed");
        let bytes = slot.bytes();
        self.bytes -= bytes;
        events::DataCacheBytes.add(-(bytes as i64));
        self.table.remove(hash(slot.tag), at);
        self.vacant.push(at);
    }
}
