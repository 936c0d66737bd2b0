//! The directory of the [index](super::index): from suffixes of hashes to subtables. It lives on the compute node.
//!
//! Every cold read looks into the directory, so it is read without a lock. One writer at a time changes an entry in
//! place, word by word. Growth builds a level of twice as many entries beside the current level, and then switches to
//! it. Earlier levels stay, since a reader may be using one of them; together they have fewer entries than the newest.
//!
//! A reader may therefore see a stale entry or level, or the address of one subtable with the header of another. If
//! the buckets at that address then have another header than the reader expects, the read finds nothing in them. That
//! is a miss like any other ([`super::read`]).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::index::{DEPTH_MAX, KeyHash, Subtable};

/// See [the module](self). Bounded by 2^[`DEPTH_MAX`] entries in use.
#[derive(Debug)]
pub struct SubtableDirectory {
    /// The depth of the current level, which exists.
    depth: AtomicU32,
    levels: [OnceLock<Box<[DirectoryEntry]>>; DEPTH_MAX as usize + 1],
    changes: Mutex<()>,
}

/// An address, 0 if there is no subtable, and the header of its buckets: four entries per cache line.
#[derive(Debug, Default)]
struct DirectoryEntry {
    address: AtomicU64,
    header: AtomicU64,
}

impl DirectoryEntry {
    #[inline]
    fn subtable(&self) -> Option<Subtable> {
        let address = self.address.load(Ordering::Acquire);
        Subtable::of_header(address, self.header.load(Ordering::Acquire))
    }

    fn put(&self, address: u64, header: u64) {
        self.header.store(header, Ordering::Release);
        self.address.store(address, Ordering::Release);
    }

    fn copy(&self) -> DirectoryEntry {
        let copy = DirectoryEntry::default();
        copy.put(self.address.load(Ordering::Acquire), self.header.load(Ordering::Acquire));
        copy
    }

    fn is_empty(&self) -> bool {
        self.address.load(Ordering::Acquire) == 0
    }
}

impl Default for SubtableDirectory {
    fn default() -> Self {
        let levels = [const { OnceLock::new() }; DEPTH_MAX as usize + 1];
        levels[0].get_or_init(|| Box::from([DirectoryEntry::default()]));
        SubtableDirectory { depth: AtomicU32::new(0), levels, changes: Mutex::default() }
    }
}

impl SubtableDirectory {
    fn level(&self) -> (u32, &[DirectoryEntry]) {
        let depth = self.depth.load(Ordering::Acquire);
        (depth, self.levels[depth as usize].get().expect("the level in use was made"))
    }

    fn change(&self) -> MutexGuard<'_, ()> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The subtable that serves a hash, if there is one.
    #[inline]
    pub fn find(&self, hash: KeyHash) -> Option<Subtable> {
        let (depth, entries) = self.level();
        entries[hash.suffix(depth) as usize].subtable()
    }

    /// Whether a buffer with this first word is a subtable of the directory at that address.
    pub fn has(&self, address: u64, header: u64) -> bool {
        let found = Subtable::suffix_of(header).and_then(|suffix| self.find(suffix));
        found.is_some_and(|one| one.address == address)
    }

    /// Makes a subtable serve the hashes of its suffix, replacing all subtables that did.
    pub fn set(&self, subtable: Subtable) {
        assert!(
            subtable.depth <= DEPTH_MAX && subtable.suffix < 1 << subtable.depth,
            "a suffix has as many bits as depth"
        );
        let _change = self.change();
        let (mut depth, mut entries) = self.level();
        while depth < subtable.depth {
            depth += 1;
            let twice = || entries.iter().chain(entries).map(DirectoryEntry::copy).collect();
            entries = self.levels[depth as usize].get_or_init(twice);
        }
        for entry in entries.iter().skip(subtable.suffix as usize).step_by(1 << subtable.depth) {
            entry.put(subtable.address, subtable.header());
        }
        self.depth.store(depth, Ordering::Release);
    }

    /// Removes the subtables for which `gone` holds; returns them.
    pub fn forget(&self, gone: impl Fn(&Subtable) -> bool) -> Vec<Subtable> {
        let _change = self.change();
        let mut forgotten = Vec::new();
        for (at, entry) in self.level().1.iter().enumerate() {
            if let Some(subtable) = entry.subtable()
                && gone(&subtable)
            {
                entry.put(0, 0);
                // Several entries may lead to it; the first has its suffix.
                if at as u64 == subtable.suffix {
                    forgotten.push(subtable);
                }
            }
        }
        forgotten
    }

    /// The depth that a new subtable for this hash needs if there is none, and its suffix.
    pub fn missing(&self, hash: KeyHash) -> (u32, u64) {
        // As shallow as the neighbours allow, so that an empty part costs no more than one subtable.
        let (mut depth, entries) = self.level();
        while depth > 0 {
            let suffix = hash.suffix(depth - 1);
            if !entries.iter().skip(suffix as usize).step_by(1 << (depth - 1)).all(DirectoryEntry::is_empty) {
                break;
            }
            depth -= 1;
        }
        (depth, hash.suffix(depth))
    }

    /// Every subtable once.
    pub fn subtables(&self) -> impl Iterator<Item = Subtable> + '_ {
        let entries = self.level().1.iter().enumerate();
        entries.filter_map(|(at, entry)| entry.subtable().filter(|one| one.suffix == at as u64))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::super::pointer::Incarnation;
    use super::*;

    fn table(depth: u32, suffix: u64) -> Subtable {
        Subtable { address: 4096 * (1 + suffix + (1 << depth)), depth, suffix, incarnation: Incarnation::new(3) }
    }

    #[test]
    fn a_directory_leads_every_hash_to_the_subtable_of_its_suffix() {
        let directory = SubtableDirectory::default();
        assert_eq!(directory.missing(KeyHash(7)), (0, 0));
        directory.set(table(0, 0));
        for (depth, suffix) in [(1, 0), (1, 1), (2, 1), (2, 3), (3, 3), (3, 7)] {
            directory.set(table(depth, suffix));
        }
        let wanted = [(0, 1, 0), (1, 2, 1), (2, 1, 0), (3, 3, 3), (4, 1, 0), (5, 2, 1), (6, 1, 0), (7, 3, 7)];
        for (hash, depth, suffix) in wanted {
            assert_eq!(directory.find(KeyHash(hash)), Some(table(depth, suffix)), "{hash:b}");
            assert_eq!(directory.find(KeyHash(hash | 0xf0)), Some(table(depth, suffix)), "{hash:b}");
        }
        assert_eq!(directory.subtables().count(), 4);
        let gone = directory.forget(|one| one.depth == 3);
        assert_eq!(gone, [table(3, 3), table(3, 7)]);
        assert_eq!((directory.find(KeyHash(3)), directory.find(KeyHash(7))), (None, None));
        assert_eq!(directory.missing(KeyHash(3)), (2, 3), "one subtable will do for both");
        assert_eq!(directory.forget(|_| true).len(), 2);
        assert_eq!(directory.missing(KeyHash(3)), (0, 0));
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "a reader beside the writer is the matter")]
    fn a_read_while_it_grows_finds_a_subtable_that_served_the_hash() {
        let directory = SubtableDirectory::default();
        directory.set(table(0, 0));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for depth in 1..12 {
                    (0..1 << depth).for_each(|suffix| directory.set(table(depth, suffix)));
                }
                done.store(true, Ordering::Release);
            });
            let mut hash = 0u64;
            while !done.load(Ordering::Acquire) {
                hash = hash.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let found = directory.find(KeyHash(hash)).expect("some subtable always serves it");
                let whole = found.address == table(found.depth, found.suffix).address;
                assert!(!whole || found.suffix == KeyHash(hash).suffix(found.depth));
            }
        });
    }
}
