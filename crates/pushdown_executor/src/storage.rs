//! Pages for which this process's memory has no room, in a file.
//!
//! A page keeps its place once it was written, so that one that is clean is evicted without a write, and read again from there. What is read is
//! compared with a checksum: a page that storage has damaged ends this process, and is never used.
//!
//! A page that cannot be written, because the disk is full or sick, stays in memory, which nothing but the machine bounds. Under the role *executors*
//! memory and file have bounds: there a page that has no room in the file ends this process, with a status that says so. The kernel would
//! end it a little later, with less to say.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ops::Range;

use bare::PAGE_BYTES;
use bare::system_call::{Errno, exit_group, system_call};
use page_coherence::PageNumber;
use pushdown::{STORAGE_FAILED_STATUS, STORAGE_FILE, STORAGE_FULL_STATUS};
use twox_hash::XxHash3_64;

use crate::pages::PageContents;

/// How many pages are where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StorageBounds {
    /// Most pages that are kept in memory.
    pub(crate) memory_pages: u64,
    /// Most pages of the file, if it is the role's; `None`: the program's, without a bound.
    pub(crate) file_pages: Option<u64>,
}

/// Where a stored page is.
enum StoredPage {
    /// At this page of the file, with this checksum.
    Slot(u64, u64),
    /// In memory, since it could not be written.
    Memory(Box<PageContents>),
}

/// All of them.
pub(crate) struct Storage {
    file_pages: Option<u64>,
    pages: BTreeMap<PageNumber, StoredPage>,
    /// Pages of the file that nobody has, and the first one that nobody ever had.
    free: Vec<u64>,
    end: u64,
}

impl Storage {
    /// Without pages.
    pub(crate) fn new(bounds: Option<StorageBounds>) -> Storage {
        let file_pages = bounds.and_then(|bounds| bounds.file_pages);
        Storage { file_pages, pages: BTreeMap::new(), free: Vec::new(), end: 0 }
    }

    /// Stores a page. If it has no room and may not stay in memory, this process ends.
    pub(crate) fn store(&mut self, page: PageNumber, contents: Box<PageContents>) {
        let slot = match self.pages.get(&page) {
            Some(StoredPage::Slot(slot, _)) => *slot,
            _ => self.free.pop().unwrap_or_else(|| self.next_slot()),
        };
        let stored = match transfer(libc::SYS_pwrite64, slot, contents.as_ptr() as usize) {
            Ok(()) => StoredPage::Slot(slot, checksum(page, &contents)),
            Err(_) if self.file_pages.is_some() => exit_group(STORAGE_FAILED_STATUS),
            Err(_) => {
                self.free.push(slot);
                StoredPage::Memory(contents)
            }
        };
        self.pages.insert(page, stored);
    }

    /// A page of the file that nobody ever had.
    fn next_slot(&mut self) -> u64 {
        if self.file_pages == Some(self.end) {
            exit_group(STORAGE_FULL_STATUS);
        }
        self.end += 1;
        self.end - 1
    }

    /// The contents of a page; `None` if it was never stored. If it cannot be read, or is damaged, this process ends.
    pub(crate) fn load(&self, page: PageNumber) -> Option<Box<PageContents>> {
        let (slot, expected) = match self.pages.get(&page)? {
            StoredPage::Memory(contents) => return Some(contents.clone()),
            StoredPage::Slot(slot, expected) => (*slot, *expected),
        };
        let mut contents = Box::new([0; PAGE_BYTES]);
        let read = transfer(libc::SYS_pread64, slot, contents.as_mut_ptr() as usize);
        if read.is_err() || checksum(page, &contents) != expected {
            exit_group(STORAGE_FAILED_STATUS);
        }
        Some(contents)
    }

    /// Forgets pages.
    pub(crate) fn drop(&mut self, pages: Range<u64>) {
        let dropped = self.pages.range(PageNumber(pages.start)..PageNumber(pages.end)).map(|(page, _)| *page);
        for page in dropped.collect::<Vec<_>>() {
            if let Some(StoredPage::Slot(slot, _)) = self.pages.remove(&page) {
                self.free.push(slot);
            }
        }
    }
}

/// The page's number is part of it, so that a page at the wrong place is found as well.
fn checksum(page: PageNumber, contents: &PageContents) -> u64 {
    XxHash3_64::oneshot_with_seed(page.0, contents)
}

/// Reads or writes a page of the file.
fn transfer(call: libc::c_long, slot: u64, memory: usize) -> Result<(), Errno> {
    let offset = slot as usize * PAGE_BYTES;
    // SAFETY: the kernel reads or writes a page of this program's own.
    match unsafe { system_call(call, [STORAGE_FILE as usize, memory, PAGE_BYTES, offset]) } {
        Ok(PAGE_BYTES) => Ok(()),
        Ok(_) => Err(Errno(libc::EIO)),
        Err(error) => Err(error),
    }
}
