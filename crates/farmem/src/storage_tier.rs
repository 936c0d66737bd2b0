//! The tier below the memory pool: storage for the pages that the pool has no room for.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use base::rt::disk::{Directory, File};
use base::{Bytes, BytesMut};

use crate::page::{PageNumber, PageRange};
use crate::store::{StoreError, StoreFuture};

/// Storage for the pages of stores that share an address space. Its page numbers are not those of a region: a store chooses
/// for each [group](crate::PageGroup) of its pages a *slot*, the place of a group in storage, and slot *n* has the pages 16 *n* to
/// 16 *n* + 15. Slots are numbered from 0, and used again when nothing needs them: so a local file can keep a page at
/// its offset ([`FileStorage`]), and a storage node a slot as one row.
///
/// It is asked for pages of one slot at a time, in no order, each of which it was given before. Once a write has failed, or its
/// future was dropped, it must not take effect after a later write of the same pages.
///
/// It is called by the threads that serve page faults, as a [`PageStore`](crate::PageStore) is: it must not touch a region, nor
/// wait for a thread that may.
///
/// A region ends with its process. So a write is acknowledged as soon as a read would return it, and need not survive a
/// loss of power; what storage returns is checked against checksums that the process keeps.
pub trait StorageTier: Send + Sync + 'static {
    /// Reads pages of one slot, and appends them to `into`.
    fn read(&self, range: PageRange, into: BytesMut) -> StoreFuture<'_, BytesMut>;
    /// Writes pages of one slot.
    fn write(&self, range: PageRange, bytes: Bytes) -> StoreFuture<'_, ()>;
}

/// Attempts to read a page, after which it is lost. The region pauses between two of them.
const READ_ATTEMPTS: u32 = 100;

/// Pages in one file, at their offsets, with their checksums in memory. Both grow with the highest page that is written. The
/// file is sparse: it takes as much room as different pages were written, whether they are still needed or not.
pub struct FileStorage {
    file: File,
    name: String,
    /// By page number.
    checksums: Mutex<Vec<u64>>,
    /// How often pages could not be read in succession.
    failures: Mutex<BTreeMap<PageNumber, u32>>,
}

impl FileStorage {
    /// In a new file of this folder. What an earlier file of this name held is gone.
    ///
    /// # Errors
    /// An error of the operating system.
    pub fn create(directory: &Directory, name: &str) -> io::Result<FileStorage> {
        let file = directory.open_file(name, true)?;
        file.truncate(0)?;
        let name = format!("the file {}", directory.path().join(name).display());
        Ok(FileStorage { file, name, checksums: Mutex::default(), failures: Mutex::default() })
    }

    fn read_now(&self, range: PageRange, mut into: BytesMut) -> Result<BytesMut, StoreError> {
        let bytes = match self.file.read_exact_at(range.first.offset(), range.bytes()) {
            Ok(bytes) => bytes,
            // One page of them may be to blame.
            Err(_) if range.pages > 1 => {
                for page in range.iter() {
                    into = self.read_now(PageRange::of(page), into)?;
                }
                return Ok(into);
            }
            Err(error) => return Err(self.read_failed(range.first, &error)),
        };
        self.forget_failures(range);
        let checksums = self.checksums.lock().unwrap_or_else(PoisonError::into_inner);
        for (page, content) in pages(range, &bytes) {
            if checksums.get(page.index()) != Some(&checksum(page, content)) {
                return Err(StoreError::Lost { range: PageRange::of(page), node: self.name.clone() });
            }
        }
        into.extend_from_slice(&bytes);
        Ok(into)
    }

    fn read_failed(&self, page: PageNumber, error: &io::Error) -> StoreError {
        let mut failures = self.failures();
        let attempts = failures.entry(page).or_default();
        *attempts += 1;
        match *attempts {
            ..READ_ATTEMPTS => StoreError::Unavailable(format!("{}: {error}", self.name)),
            _ => StoreError::Lost { range: PageRange::of(page), node: format!("{} ({error})", self.name) },
        }
    }

    fn failures(&self) -> MutexGuard<'_, BTreeMap<PageNumber, u32>> {
        // Consistent between any two statements.
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget_failures(&self, range: PageRange) {
        let mut failures = self.failures();
        if !failures.is_empty() {
            failures.retain(|page, _| !(range.first.0..range.end()).contains(&page.0));
        }
    }

    fn failure(&self, error: &io::Error) -> StoreError {
        let text = format!("{}: {error}", self.name);
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::Full(text),
            _ => StoreError::Unavailable(text),
        }
    }

    fn write_now(&self, range: PageRange, bytes: &Bytes) -> Result<(), StoreError> {
        let written = self.file.write_at(range.first.offset(), bytes);
        written.map_err(|error| self.failure(&error))?;
        self.forget_failures(range);
        let mut checksums = self.checksums.lock().unwrap_or_else(PoisonError::into_inner);
        let pages_known = checksums.len().max(range.end() as usize);
        checksums.resize(pages_known, 0);
        for (page, content) in pages(range, bytes) {
            checksums[page.index()] = checksum(page, content);
        }
        Ok(())
    }
}

fn pages(range: PageRange, bytes: &[u8]) -> impl Iterator<Item = (PageNumber, &[u8])> {
    range.iter().zip(bytes.chunks_exact(crate::page::PAGE_BYTES))
}

/// The page's number is part of it, so that a page at the wrong place is found as well.
fn checksum(page: PageNumber, content: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot_with_seed(u64::from(page.0), content)
}

impl StorageTier for FileStorage {
    fn read(&self, range: PageRange, into: BytesMut) -> StoreFuture<'_, BytesMut> {
        Box::pin(std::future::ready(self.read_now(range, into)))
    }

    fn write(&self, range: PageRange, bytes: Bytes) -> StoreFuture<'_, ()> {
        Box::pin(std::future::ready(self.write_now(range, &bytes)))
    }
}
