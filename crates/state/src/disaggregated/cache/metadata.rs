//! The metadata cache: key → where its newest version is, which version that is, and whether it is live.
//!
//! Entries lie in a slab over which the hand of a clock goes round: an entry that was used since it last came by stays for
//! another round.

use base::Version;

use super::places::{CELL_BYTES, Places};
use super::{Kind, Known, Tag};
use crate::disaggregated::index::KeyHash;
use crate::disaggregated::pointer::Pointer;
use crate::disaggregated::record::Name;
use crate::events;

/// What is known of a key. One cache line.
#[repr(align(64))]
pub struct Entry {
    hash: KeyHash,
    /// Namespace and key.
    names: Box<[u8]>,
    /// Of the newest version in the data cache, if it is there; unless it is a local one, made from the version's pointer.
    tag: Tag,
    pointer: Pointer,
    block: u64,
    tx: u32,
    bytes: u32,
    /// Where the data cache had it last.
    pub hint: u32,
    namespace_bytes: u16,
    kind: Kind,
    used: bool,
}

const _: () = assert!(size_of::<Option<Entry>>() == 64);

/// What an entry costs besides its names: its place in the slab with the slab's spare room, its cell, and the allocation of
/// the names.
pub const ENTRY_BYTES: usize = size_of::<Entry>() * 9 / 8 + CELL_BYTES + 16;

/// See [the module](self).
#[derive(Default)]
pub struct Metadata {
    table: Places,
    slab: Vec<Option<Entry>>,
    vacant: Vec<u32>,
    hand: usize,
    bytes: usize,
    budget_bytes: usize,
}

impl Entry {
    fn bytes(&self) -> usize {
        ENTRY_BYTES + self.names.len()
    }

    #[inline]
    pub fn tag(&self) -> Tag {
        self.tag
    }

    #[inline]
    pub fn known(&self) -> Known {
        let version = Version { block: self.block, tx: self.tx };
        Known { pointer: self.pointer, version, kind: self.kind, bytes: self.bytes }
    }

    fn set(&mut self, known: Known, tag: Tag, hint: u32) {
        let Known { pointer, version, kind, bytes } = known;
        (self.pointer, self.block, self.tx, self.kind, self.bytes) = (pointer, version.block, version.tx, kind, bytes);
        (self.tag, self.hint) = (tag, hint);
    }

    #[inline]
    fn is_of(&self, hash: KeyHash, name: Name<'_>) -> bool {
        let namespace = usize::from(self.namespace_bytes);
        self.hash == hash
            && self.names.len() == name.namespace.len() + name.key.len()
            && namespace == name.namespace.len()
            && &self.names[namespace..] == name.key.as_bytes()
            && &self.names[..namespace] == name.namespace.as_bytes()
    }
}

impl Metadata {
    pub fn new(budget_bytes: usize) -> Metadata {
        Metadata { budget_bytes, ..Metadata::default() }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    #[inline]
    fn place(&self, hash: KeyHash, name: Name<'_>) -> Option<u32> {
        let slab = &self.slab;
        let is_it = |at: u32| slab[at as usize].as_ref().is_some_and(|entry| entry.is_of(hash, name));
        self.table.find(hash.0, is_it)
    }

    /// The entry of a key, which counts as used.
    #[inline]
    pub fn find(&mut self, hash: KeyHash, name: Name<'_>) -> Option<&mut Entry> {
        let at = self.place(hash, name)?;
        let entry = self.slab[at as usize].as_mut()?;
        entry.used = true;
        Some(entry)
    }

    /// Sets the entry of a key; others leave until there is room.
    pub fn put(&mut self, hash: KeyHash, name: Name<'_>, known: Known, tag: Tag, hint: u32) {
        if let Some(entry) = self.place(hash, name).and_then(|at| self.slab[at as usize].as_mut()) {
            entry.set(known, tag, hint);
            return;
        }
        let bytes = ENTRY_BYTES + name.namespace.len() + name.key.len();
        let Ok(namespace_bytes) = u16::try_from(name.namespace.len()) else { return };
        if bytes > self.budget_bytes {
            return;
        }
        while self.bytes + bytes > self.budget_bytes {
            self.evict_one();
        }
        let names = [name.namespace.as_bytes(), name.key.as_bytes()].concat().into();
        let Known { pointer, version: Version { block, tx }, kind, bytes: record_bytes } = known;
        let entry = Some(Entry {
            hash,
            names,
            tag,
            pointer,
            block,
            tx,
            bytes: record_bytes,
            hint,
            namespace_bytes,
            kind,
            used: false,
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
        self.table.insert(hash.0, at);
    }

    pub fn remove(&mut self, hash: KeyHash, name: Name<'_>) {
        if let Some(at) = self.place(hash, name) {
            self.remove_at(at);
        }
    }

    /// Removes every entry for which `keep` does not hold.
    pub fn retain(&mut self, keep: impl Fn(&Known) -> bool) {
        for at in 0..self.slab.len() {
            if self.slab[at].as_ref().is_some_and(|entry| !keep(&entry.known())) {
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
        self.table.remove(entry.hash.0, at);
        self.vacant.push(at);
    }
}
