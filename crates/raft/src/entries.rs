//! The log in memory, as the `raft` crate reads it: a base (index and term of the last entry that is no longer in memory) and
//! the entries after the base.
//!
//! Invariants: the indexes of the entries have no gap; the entries up to [`RaftEntries::base`] are in a snapshot or in the
//! machine; a snapshot that is handed out is at least as new as the base.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use raft_rs::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft_rs::{GetEntriesContext, RaftState, Result, Storage, StorageError};

use super::codec::ENTRY_HEAD_BYTES;

/// See the module.
#[derive(Default)]
pub(super) struct RaftEntries {
    pub hard: HardState,
    pub members: ConfState,
    /// Index and term of the entry before the first.
    base: (u64, u64),
    entries: VecDeque<Entry>,
    /// Bytes of the entries.
    bytes: usize,
    /// For members that need more than the entries; dropped when it has been sent.
    pub snapshot: Option<Snapshot>,
    /// A member needs a snapshot.
    pub wanted: AtomicBool,
}

fn bytes_of(entry: &Entry) -> usize {
    ENTRY_HEAD_BYTES + entry.data.len()
}

impl RaftEntries {
    /// A log with nothing but a snapshot's point.
    pub fn at(index: u64, term: u64, members: ConfState) -> RaftEntries {
        RaftEntries { base: (index, term), members, ..RaftEntries::default() }
    }

    pub fn first(&self) -> u64 {
        self.base.0 + 1
    }

    pub fn last(&self) -> u64 {
        self.base.0 + self.entries.len() as u64
    }

    pub fn base(&self) -> (u64, u64) {
        self.base
    }

    pub fn term_of(&self, index: u64) -> Option<u64> {
        if index == self.base.0 {
            return Some(self.base.1);
        }
        let at = index.checked_sub(self.first())?;
        self.entries.get(at as usize).map(|entry| entry.term)
    }

    /// Appends consecutive entries; they replace the entries at their indexes and behind. Returns false, and does nothing,
    /// where there would be a gap. Entries up to the base are skipped.
    pub fn append(&mut self, entries: &[Entry]) -> bool {
        let Some(start) = entries.iter().position(|entry| entry.index >= self.first()) else { return true };
        let entries = &entries[start..];
        if entries[0].index > self.last() + 1 {
            return false;
        }
        while self.last() >= entries[0].index {
            let gone = self.entries.pop_back().expect("the last index is that of an entry");
            self.bytes -= bytes_of(&gone);
        }
        self.bytes += entries.iter().map(bytes_of).sum::<usize>();
        self.entries.extend(entries.iter().cloned());
        true
    }

    /// Drops the entries up to an index, which a snapshot or the machine has.
    pub fn compact(&mut self, index: u64) {
        assert!(index <= self.last(), "what is compacted is in the log");
        while self.base.0 < index {
            let gone = self.entries.pop_front().expect("the base is before the last index");
            self.bytes -= bytes_of(&gone);
            self.base = (gone.index, gone.term);
        }
    }

    /// Restarts the log behind a snapshot's point, unless the log has that point: then the entries behind it stay. A base with
    /// term 0 is one whose term is not known yet. Returns whether the log was restarted.
    pub fn restart(&mut self, index: u64, term: u64) -> bool {
        if self.base == (index, 0) {
            self.base.1 = term;
            return false;
        }
        if self.term_of(index) == Some(term) {
            self.compact(index);
            return false;
        }
        self.entries.clear();
        self.bytes = 0;
        self.base = (index, term);
        true
    }

    /// Up to which index to drop entries from the front, until the rest has at most `bytes_max` bytes; never beyond `until`.
    pub fn surplus(&self, bytes_max: usize, until: u64) -> u64 {
        let (mut bytes, mut index) = (self.bytes, self.base.0);
        for entry in &self.entries {
            if bytes <= bytes_max || entry.index > until {
                break;
            }
            bytes -= bytes_of(entry);
            index = entry.index;
        }
        index
    }
}

impl Storage for RaftEntries {
    fn initial_state(&self) -> Result<RaftState> {
        Ok(RaftState::new(self.hard.clone(), self.members.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> Result<Vec<Entry>> {
        if low < self.first() {
            return Err(StorageError::Compacted.into());
        }
        assert!(high <= self.last() + 1, "entries are asked for that are not there");
        let (max, mut bytes) = (max_size.into().unwrap_or(u64::MAX), 0);
        let from = (low - self.first()) as usize;
        let mut found = Vec::new();
        for entry in self.entries.range(from..(high - self.first()) as usize) {
            bytes += bytes_of(entry) as u64;
            if bytes > max && !found.is_empty() {
                break;
            }
            found.push(entry.clone());
        }
        Ok(found)
    }

    fn term(&self, index: u64) -> Result<u64> {
        if index < self.base.0 {
            return Err(StorageError::Compacted.into());
        }
        self.term_of(index).ok_or_else(|| StorageError::Unavailable.into())
    }

    fn first_index(&self) -> Result<u64> {
        Ok(self.first())
    }

    fn last_index(&self) -> Result<u64> {
        Ok(self.last())
    }

    fn snapshot(&self, request_index: u64, _to: u64) -> Result<Snapshot> {
        match &self.snapshot {
            Some(snapshot) if snapshot.get_metadata().index >= request_index.max(self.base.0) => Ok(snapshot.clone()),
            _ => {
                self.wanted.store(true, Ordering::Relaxed);
                Err(StorageError::SnapshotTemporarilyUnavailable.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(from: u64, to: u64, term: u64) -> Vec<Entry> {
        (from..=to).map(|index| Entry { index, term, ..Entry::default() }).collect()
    }

    #[test]
    fn appending_replaces_what_is_behind_and_leaves_no_gap() {
        let mut log = RaftEntries::at(10, 2, ConfState::default());
        assert!(log.append(&run(11, 20, 3)));
        assert!(!log.append(&run(22, 23, 3)));
        assert!(log.append(&run(15, 16, 4)));
        assert_eq!((log.first(), log.last(), log.term_of(14), log.term_of(15)), (11, 16, Some(3), Some(4)));
        assert_eq!(log.bytes, 6 * ENTRY_HEAD_BYTES);
        assert!(log.append(&run(9, 12, 2)), "what the base has passed is skipped");
        assert_eq!((log.first(), log.last()), (11, 12));
    }

    #[test]
    fn compacting_keeps_the_term_of_the_last_that_went() {
        let mut log = RaftEntries::at(0, 0, ConfState::default());
        assert!(log.append(&run(1, 9, 5)));
        log.compact(4);
        assert_eq!((log.base(), log.term_of(4), log.term_of(3)), ((4, 5), Some(5), None));
        log.restart(7, 5);
        assert_eq!((log.first(), log.last()), (8, 9));
        log.restart(9, 6);
        assert_eq!((log.first(), log.last(), log.bytes), (10, 9, 0));
    }
}
