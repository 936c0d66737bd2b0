//! The data cache: versions with their values, by tag. Evicted by a clock, as the metadata cache.

use hashbrown::HashTable;

use super::{Kept, Tag};
use crate::events;

struct Slot {
    tag: Tag,
    used: bool,
    kept: Kept,
}

/// What a version costs besides its buffer: its place in the slab with the slab's spare room, its place in a table that
/// may be half empty, and what shared bytes and their allocation add.
pub const SLOT_BYTES: usize = size_of::<Slot>() * 9 / 8 + 2 * (size_of::<u32>() + 1) + 24 + 16;

/// See [the module](self).
#[derive(Default)]
pub struct Data {
    table: HashTable<u32>,
    slab: Vec<Option<Slot>>,
    vacant: Vec<u32>,
    hand: usize,
    bytes: usize,
    budget_bytes: usize,
}

fn hash(tag: Tag) -> u64 {
    tag.0.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
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
    pub fn get(&mut self, tag: Tag, hint: &mut u32) -> Option<&Kept> {
        if !matches!(self.slab.get(*hint as usize), Some(Some(slot)) if slot.tag == tag) {
            *hint = self.place(tag)?;
        }
        let slot = self.slab[*hint as usize].as_mut()?;
        slot.used = true;
        Some(&slot.kept)
    }

    /// The version with this tag; counts as used.
    pub fn find(&mut self, tag: Tag) -> Option<&Kept> {
        self.get(tag, &mut u32::MAX.clone())
    }

    pub fn remove(&mut self, tag: Tag) {
        if let Some(at) = self.place(tag) {
            self.remove_at(at);
        }
    }

    /// Where the version with this tag is.
    pub fn place(&self, tag: Tag) -> Option<u32> {
        let slab = &self.slab;
        let is_it = |at: &u32| slab[*at as usize].as_ref().is_some_and(|slot| slot.tag == tag);
        self.table.find(hash(tag), is_it).copied()
    }

    /// Keeps a version; others leave until there is room. Says where, unless it is longer than the whole cache.
    pub fn put(&mut self, tag: Tag, kept: Kept) -> Option<u32> {
        if let Some(at) = self.place(tag) {
            self.remove_at(at);
        }
        let bytes = SLOT_BYTES + kept.bytes;
        if bytes > self.budget_bytes {
            return None;
        }
        while self.bytes + bytes > self.budget_bytes {
            self.evict_one();
        }
        let slot = Some(Slot { tag, used: false, kept });
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
        let slab = &self.slab;
        self.table.insert_unique(hash(tag), at, |at| slab[*at as usize].as_ref().map_or(0, |slot| hash(slot.tag)));
        Some(at)
    }

    fn evict_one(&mut self) {
        loop {
            self.hand = if self.hand + 1 >= self.slab.len() { 0 } else { self.hand + 1 };
            match &mut self.slab[self.hand] {
                Some(slot) if slot.used => slot.used = false,
                Some(_) => return self.remove_at(self.hand as u32),
                None => {}
            }
        }
    }

    fn remove_at(&mut self, at: u32) {
        let slot = self.slab[at as usize].take().expect("only versions are removed");
        let bytes = SLOT_BYTES + slot.kept.bytes;
        self.bytes -= bytes;
        events::DataCacheBytes.add(-(bytes as i64));
        let found = self.table.find_entry(hash(slot.tag), |other| *other == at);
        found.expect("every version is in the table").remove();
        self.vacant.push(at);
    }
}
