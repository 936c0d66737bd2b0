//! The tier below the memory pool: storage for the pages that the pool has no room for.

use std::sync::{Mutex, PoisonError};

use base::rt::disk::{Directory, File};
use base::{Bytes, BytesMut};

use crate::page::{PageNumber, PageRange};
use crate::store::{StoreError, StoreFuture};

/// Storage of one region's pages. It is asked for pages of one [group](crate::PageGroup) at a time, in no order, each of
/// which it was given before: so a storage node can keep a group as one row under the region's name and the group's number,
/// and a local file can keep it at an offset ([`FileStorage`]).
///
/// A region ends with its process. So a write is acknowledged as soon as a read would return it, and need not survive a
/// loss of power; what storage returns is checked against checksums that the process keeps.
pub trait StorageTier: Send + Sync + 'static {
    /// Reads pages of one group, and appends them to `into`.
    fn read(&self, range: PageRange, into: BytesMut) -> StoreFuture<'_, BytesMut>;
    /// Writes pages of one group.
    fn write(&self, range: PageRange, bytes: Bytes) -> StoreFuture<'_, ()>;
}

/// Pages in one file, at their offsets, with their checksums in memory. The file is sparse: it takes as much room as pages
/// were written.
pub struct FileStorage {
    file: File,
    name: String,
    checksums: Mutex<Vec<u64>>,
}

impl FileStorage {
    /// In a new file of this folder. What an earlier file of this name held is gone.
    ///
    /// # Errors
    /// An error of the operating system.
    pub fn create(directory: &Directory, name: &str, pages: u32) -> std::io::Result<FileStorage> {
        let file = directory.open_file(name, true)?;
        file.truncate(0)?;
        let name = format!("the file {}", directory.path().join(name).display());
        Ok(FileStorage { file, name, checksums: Mutex::new(vec![0; pages as usize]) })
    }

    fn read_now(&self, range: PageRange, mut into: BytesMut) -> Result<BytesMut, StoreError> {
        let read = self.file.read_exact_at(range.first.offset(), range.bytes());
        let bytes = read.map_err(|error| StoreError::Unavailable(format!("{}: {error}", self.name)))?;
        let checksums = self.checksums.lock().unwrap_or_else(PoisonError::into_inner);
        for (page, content) in pages(range, &bytes) {
            if checksums[page.0 as usize] != checksum(page, content) {
                return Err(StoreError::Lost { range: PageRange::of(page), node: self.name.clone() });
            }
        }
        into.extend_from_slice(&bytes);
        Ok(into)
    }

    fn write_now(&self, range: PageRange, bytes: &Bytes) -> Result<(), StoreError> {
        let written = self.file.write_at(range.first.offset(), bytes);
        written.map_err(|error| StoreError::Unavailable(format!("{}: {error}", self.name)))?;
        let mut checksums = self.checksums.lock().unwrap_or_else(PoisonError::into_inner);
        for (page, content) in pages(range, bytes) {
            checksums[page.0 as usize] = checksum(page, content);
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
