//! Pages for which this process's memory has no room, in a file.
//!
//! A page keeps its place once it was written, so that one that is clean is evicted without a write, and read again from there. What is read is
//! compared with a checksum: a page that storage has damaged ends this process, and is never used. A page that cannot be written, because
//! the disk is full or sick, stays in memory.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ops::Range;

use bare::PAGE_BYTES;
use bare::system_call::{Errno, system_call};
use page_coherence::PageNumber;
use pushdown::STORAGE_FILE;
use twox_hash::XxHash3_64;

use crate::pages::PageContents;

/// Where a stored page is.
enum StoredPage {
    /// At this page of the file, with this checksum.
    Slot(u64, u64),
    /// In memory, since it could not be written.
    Memory(Box<PageContents>),
}

/// All of them.
#[derive(Default)]
pub(crate) struct Storage {
    pages: BTreeMap<PageNumber, StoredPage>,
    /// Pages of the file that nobody has, and the first one that nobody ever had.
    free: Vec<u64>,
    end: u64,
}

impl Storage {
    /// Stores a page.
    pub(crate) fn store(&mut self, page: PageNumber, contents: Box<PageContents>) {
        let slot = match self.pages.get(&page) {
            Some(StoredPage::Slot(slot, _)) => *slot,
            _ => self.free.pop().unwrap_or_else(|| {
                self.end += 1;
                self.end - 1
            }),
        };
        let stored = match transfer(libc::SYS_pwrite64, slot, contents.as_ptr() as usize) {
            Ok(()) => StoredPage::Slot(slot, checksum(page, &contents)),
            Err(_) => {
                self.free.push(slot);
                StoredPage::Memory(contents)
            }
        };
        self.pages.insert(page, stored);
    }

    /// The contents of a page; `None` if it was never stored.
    ///
    /// # Errors
    /// Of the operating system; `EBADMSG` if the page is damaged.
    pub(crate) fn load(&self, page: PageNumber) -> Result<Option<Box<PageContents>>, Errno> {
        let (slot, expected) = match self.pages.get(&page) {
            None => return Ok(None),
            Some(StoredPage::Memory(contents)) => return Ok(Some(contents.clone())),
            Some(StoredPage::Slot(slot, expected)) => (*slot, *expected),
        };
        let mut contents = Box::new([0; PAGE_BYTES]);
        transfer(libc::SYS_pread64, slot, contents.as_mut_ptr() as usize)?;
        if checksum(page, &contents) != expected {
            return Err(Errno(libc::EBADMSG));
        }
        Ok(Some(contents))
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
