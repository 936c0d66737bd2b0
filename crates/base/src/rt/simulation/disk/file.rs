//! A simulated file: its current bytes, its durable bytes, and the unsynced changes between the two.

use std::collections::VecDeque;
use std::io;

use bytes::Bytes;

use super::super::rng::Prng;
use super::SECTOR_BYTES;

/// A file, independent of its names.
#[derive(Default)]
pub(super) struct Inode {
    /// The bytes that reads return.
    pub current: Vec<u8>,
    /// The bytes that are certain to survive a crash.
    pub durable: Vec<u8>,
    /// The changes from `durable` to `current`, each with its number.
    unsynced: VecDeque<(u64, FileChange)>,
    changes_made: u64,
    pub handles: u64,
    /// The handle that holds the lock.
    pub locked_by: Option<u64>,
}

enum FileChange {
    Write { offset: u64, bytes: Bytes },
    SetLength { length: u64 },
}

/// The fate of unsynced changes at a crash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CrashSurvival {
    All,
    None,
    /// Each is randomly kept, lost or torn.
    Mixed,
}

/// Where a write of `length` bytes at `offset` ends, as an index into memory.
fn end_of(offset: u64, length: usize) -> io::Result<usize> {
    let end = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(length));
    end.filter(|end| *end <= isize::MAX as usize)
        .ok_or_else(|| io::Error::new(io::ErrorKind::FileTooLarge, "the offset lies beyond any file's end"))
}

fn write(bytes: &mut Vec<u8>, offset: usize, part: &[u8]) {
    let end = offset + part.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[offset..end].copy_from_slice(part);
}

impl FileChange {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            FileChange::Write { offset, bytes: part } => write(bytes, *offset as usize, part),
            FileChange::SetLength { length } => bytes.resize(*length as usize, 0),
        }
    }

    /// Applies some sectors of a write and not others.
    fn apply_torn(&self, bytes: &mut Vec<u8>, rng: &mut Prng) {
        let FileChange::Write { offset, bytes: part } = self else { return self.apply(bytes) };
        let offset = *offset as usize;
        if rng.one_in(2) && bytes.len() < offset + part.len() {
            bytes.resize(offset + part.len(), 0); // The length came before the bytes.
        }
        // Either only the first sectors, or any of them.
        let kept_first = rng.one_in(2).then(|| rng.index(part.len() / SECTOR_BYTES + 2));
        let mut start = 0;
        let mut sector = 0;
        while start < part.len() {
            let end = part.len().min((offset + start) / SECTOR_BYTES * SECTOR_BYTES + SECTOR_BYTES - offset);
            let kept = match kept_first {
                Some(first) => sector < first,
                None => rng.one_in(2),
            };
            if kept {
                write(bytes, offset + start, &part[start..end]);
            }
            start = end;
            sector += 1;
        }
    }
}

impl Inode {
    /// A file with these bytes, all of them durable.
    pub fn holding(bytes: &[u8]) -> Inode {
        Inode { current: bytes.to_vec(), durable: bytes.to_vec(), ..Inode::default() }
    }

    pub(super) fn read(&self, offset: u64, length: usize) -> Bytes {
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(self.current.len());
        let end = start.saturating_add(length).min(self.current.len());
        Bytes::copy_from_slice(&self.current[start..end])
    }

    /// The bytes by which a write would extend the file.
    pub(super) fn growth(&self, offset: u64, length: usize) -> io::Result<u64> {
        Ok(end_of(offset, length)?.saturating_sub(self.current.len()) as u64)
    }

    pub(super) fn write(&mut self, offset: u64, bytes: Bytes) {
        self.change(FileChange::Write { offset, bytes });
    }

    pub(super) fn set_length(&mut self, length: u64) {
        self.change(FileChange::SetLength { length });
    }

    fn change(&mut self, change: FileChange) {
        change.apply(&mut self.current);
        self.changes_made += 1;
        self.unsynced.push_back((self.changes_made, change));
    }

    /// The number of the last change, up to which a sync that starts now reaches.
    pub(super) fn last_change(&self) -> u64 {
        self.changes_made
    }

    /// The oldest unsynced change, unless its number is above `last_change`.
    fn pop_change(&mut self, last_change: u64) -> Option<FileChange> {
        let reached = self.unsynced.front().is_some_and(|(number, _)| *number <= last_change);
        reached.then(|| self.unsynced.pop_front().expect("the front was just seen").1)
    }

    /// Makes the changes up to a number durable.
    pub(super) fn synced(&mut self, last_change: u64) {
        while let Some(change) = self.pop_change(last_change) {
            change.apply(&mut self.durable);
        }
    }

    /// Makes each of the changes up to a number either durable, or certain to be lost at the next crash whatever is synced
    /// until then.
    pub(super) fn sync_failed(&mut self, last_change: u64, rng: &mut Prng) {
        while let Some(change) = self.pop_change(last_change) {
            if rng.one_in(2) {
                change.apply(&mut self.durable);
            }
        }
    }

    /// Reduces the file to what a crash leaves.
    pub(super) fn crash(&mut self, survival: CrashSurvival, rng: &mut Prng) {
        for (_, change) in std::mem::take(&mut self.unsynced) {
            match survival {
                CrashSurvival::All => change.apply(&mut self.durable),
                CrashSurvival::None => {}
                CrashSurvival::Mixed => match rng.below(3) {
                    0 => {}
                    1 => change.apply(&mut self.durable),
                    _ => change.apply_torn(&mut self.durable, rng),
                },
            }
        }
        self.current = self.durable.clone();
        self.handles = 0;
        self.locked_by = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_crash_never_touches_synced_sectors_and_tears_only_at_sector_boundaries(
            seed: u64,
            synced in proptest::collection::vec(1u8..100, 1..3000),
            offset in 0usize..4000,
            later in proptest::collection::vec(100u8..200, 1..3000),
        ) {
            let mut rng = Prng::new(seed);
            let mut inode = Inode::default();
            inode.write(0, synced.clone().into());
            inode.synced(inode.last_change());
            inode.write(offset as u64, later.clone().into());
            let full = inode.current.clone();
            inode.crash(CrashSurvival::Mixed, &mut rng);
            let left = &inode.current;
            prop_assert!(left.len() >= synced.len() && left.len() <= full.len());
            for sector in (0..left.len()).step_by(SECTOR_BYTES) {
                let end = left.len().min(sector + SECTOR_BYTES);
                let mut old = synced.clone();
                old.resize(full.len(), 0);
                let is_old = left[sector..end] == old[sector..end];
                let is_new = left[sector..end] == full[sector..end];
                prop_assert!(is_old || is_new, "sector at {sector} is neither old nor new");
            }
        }

        #[test]
        fn what_was_synced_survives(seed: u64, writes in proptest::collection::vec((0u64..3000, 1usize..900), 1..20)) {
            let mut rng = Prng::new(seed);
            let mut inode = Inode::default();
            for (offset, length) in writes {
                inode.write(offset, vec![(offset % 251) as u8; length].into());
            }
            let before = inode.current.clone();
            inode.synced(inode.last_change());
            inode.crash(CrashSurvival::Mixed, &mut rng);
            prop_assert_eq!(&inode.current, &before);
        }
    }

    #[test]
    fn a_sync_leaves_changes_made_after_it_began() {
        let mut inode = Inode::default();
        inode.write(0, Bytes::from_static(b"early"));
        let began = inode.last_change();
        inode.write(5, Bytes::from_static(b" late"));
        inode.synced(began);
        inode.crash(CrashSurvival::None, &mut Prng::new(0));
        assert_eq!(inode.current, b"early");
    }

    #[test]
    fn a_failed_sync_is_not_repaired_by_a_second() {
        let lost = (0..20).any(|seed| {
            let mut inode = Inode::default();
            inode.write(0, Bytes::from_static(b"bytes"));
            inode.sync_failed(inode.last_change(), &mut Prng::new(seed));
            assert_eq!(inode.current, b"bytes");
            inode.synced(inode.last_change());
            inode.crash(CrashSurvival::All, &mut Prng::new(seed));
            inode.current.is_empty()
        });
        assert!(lost);
    }
}
