//! The metadata cache: key → where its newest version is, which version that is, and whether it is live.
//!
//! Entries lie in a slab over which the hand of a clock goes round: an entry that was used since it last came by stays for
//! another round.

use base::{Bytes, Version};

use super::places::{CELL_BYTES, Places};
use super::{Kind, Known, Tag};
use crate::disaggregated::index::KeyHash;
use crate::disaggregated::pointer::Pointer;
use crate::disaggregated::record::Name;
use crate::events;

/// Namespace and key, in the entry where they are short.
enum Names {
    Short([u8; SHORT_BYTES]),
    Long(Box<[u8]>),
}

const SHORT_BYTES: usize = 31;

/// What is known of a key. Two cache lines side by side, so that a warm read touches these, a cell of the table and the
/// count of the value's holders.
#[repr(align(128))]
pub struct Entry {
    hash: KeyHash,
    names: Names,
    names_bytes: u16,
    namespace_bytes: u16,
    kind: Kind,
    used: bool,
    /// The value was asked for since the data cache's clock last came by.
    value_used: bool,
    tx: u32,
    block: u64,
    pointer: Pointer,
    /// Of the newest version in the data cache, if it is there.
    tag: Tag,
    /// The value, while the data cache has it.
    value: Option<Bytes>,
    bytes: u32,
}

const _: () = assert!(size_of::<Option<Entry>>() == 128);

/// What an entry costs besides long names: its place in the slab with the slab's spare room, and its cell.
pub const ENTRY_BYTES: usize = size_of::<Entry>() * 9 / 8 + CELL_BYTES;

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

impl Names {
    fn new(name: Name<'_>) -> Names {
        let (namespace, key) = (name.namespace.as_bytes(), name.key.as_bytes());
        let bytes = namespace.len() + key.len();
        if bytes > SHORT_BYTES {
            return Names::Long([namespace, key].concat().into());
        }
        let mut short = [0; SHORT_BYTES];
        short[..namespace.len()].copy_from_slice(namespace);
        short[namespace.len()..bytes].copy_from_slice(key);
        Names::Short(short)
    }

    /// What they cost besides the entry.
    fn cost(bytes: usize) -> usize {
        if bytes > SHORT_BYTES { bytes + 16 } else { 0 }
    }
}

impl Entry {
    fn bytes(&self) -> usize {
        ENTRY_BYTES + Names::cost(usize::from(self.names_bytes))
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

    /// The value, if the data cache has it; counts as used.
    #[inline]
    pub fn value(&mut self) -> Option<Bytes> {
        self.value_used = true;
        self.value.clone()
    }

    fn set(&mut self, known: Known, tag: Tag) {
        let Known { pointer, version, kind, bytes } = known;
        (self.pointer, self.block, self.tx, self.kind, self.bytes) = (pointer, version.block, version.tx, kind, bytes);
        (self.tag, self.value, self.value_used) = (tag, None, false);
    }

    #[inline]
    fn is_of(&self, hash: KeyHash, name: Name<'_>) -> bool {
        let (namespace, all) = (usize::from(self.namespace_bytes), usize::from(self.names_bytes));
        if self.hash != hash || namespace != name.namespace.len() || all != namespace + name.key.len() {
            return false;
        }
        let names = match &self.names {
            Names::Short(names) => &names[..all],
            Names::Long(names) => names,
        };
        &names[namespace..] == name.key.as_bytes() && &names[..namespace] == name.namespace.as_bytes()
    }
}

impl Entry {
    /// The data cache has the value.
    pub fn set_value(&mut self, value: Option<Bytes>) {
        self.value = value;
    }

    pub fn has_value(&self) -> bool {
        self.value.is_some()
    }

    /// Whether the value was asked for since this was last asked.
    pub fn take_value_used(&mut self) -> bool {
        std::mem::take(&mut self.value_used)
    }
}

impl Metadata {
    pub fn new(budget_bytes: usize) -> Metadata {
        Metadata { budget_bytes, ..Metadata::default() }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether another key has room without any leaving.
    pub fn has_room(&self, name: Name<'_>) -> bool {
        let names = name.namespace.len() + name.key.len();
        self.bytes + ENTRY_BYTES + Names::cost(names) <= self.budget_bytes
    }

    #[inline]
    pub fn place(&self, hash: KeyHash, name: Name<'_>) -> Option<u32> {
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

    /// The entry at a place, if it is that of this version.
    pub fn of_version(&mut self, at: u32, tag: Tag) -> Option<&mut Entry> {
        self.slab.get_mut(at as usize)?.as_mut().filter(|entry| entry.tag == tag)
    }

    /// Sets the entry of a key, without its value; others leave until there is room. Says where it is, if it had room.
    pub fn put(&mut self, hash: KeyHash, name: Name<'_>, known: Known, tag: Tag) -> Option<u32> {
        if let Some(at) = self.place(hash, name) {
            self.slab[at as usize].as_mut()?.set(known, tag);
            return Some(at);
        }
        let all = name.namespace.len() + name.key.len();
        let (Ok(namespace_bytes), Ok(names_bytes)) = (u16::try_from(name.namespace.len()), u16::try_from(all)) else {
            return None;
        };
        let bytes = ENTRY_BYTES + Names::cost(all);
        if bytes > self.budget_bytes {
            return None;
        }
        while self.bytes + bytes > self.budget_bytes {
            self.evict_one();
        }
        let Known { pointer, version: Version { block, tx }, kind, bytes: record_bytes } = known;
        let entry = Some(Entry {
            hash,
            names: Names::new(name),
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
        self.table.insert(hash.0, at);
        Some(at)
    }

    /// Forgets where a key's newest version is, if it is there.
    pub fn detach(&mut self, hash: KeyHash, name: Name<'_>, pointer: Pointer) {
        if let Some(at) = self.place(hash, name)
            && let Some(entry) = self.slab[at as usize].as_mut()
            && entry.pointer == pointer
        {
            entry.pointer = Pointer::NULL;
        }
    }

    pub fn remove(&mut self, hash: KeyHash, name: Name<'_>) {
        if let Some(at) = self.place(hash, name) {
            self.remove_at(at);
        }
    }

    /// Where the entries' versions are in remote memory.
    pub fn pointers(&self) -> impl Iterator<Item = Pointer> + '_ {
        self.slab.iter().flatten().map(|entry| entry.pointer).filter(|pointer| !pointer.is_null())
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
