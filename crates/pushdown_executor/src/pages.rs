//! The pages that the executor has: mapped, or put aside.
//!
//! Pool memory, in the sense of the coherence protocol, is this process's own. A page whose contents arrive is put aside until a function
//! needs it. A page that is taken from the functions is moved out of their sight, and its contents are sent from there.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use bare::PAGE_BYTES;
use bare::memory::bare_memory_copy;
use bare::system_call::{Errno, advise, map_anonymous_at, system_call};
use bare::userfault::{UserFaults, persist};
use page_coherence::{PAGE_NUMBERS, PageNumber, Right, RunMap, WordChange};

use crate::mappings::bytes_of;
use crate::places::OUTGOING;

/// The bytes of a page.
pub(crate) type PageContents = [u8; PAGE_BYTES];

/// What ordinary memory has, and the pages on their way out.
const READ_WRITE: u32 = (libc::PROT_READ | libc::PROT_WRITE) as u32;

/// Whether a source is the page itself, rather than a copy of it.
fn is_mapped_here(source: *const u8, page: PageNumber) -> bool {
    source as u64 == page.0 * PAGE_BYTES as u64
}

/// Contents are never made up: every page that is here has come from the caller.
const LACKS_CONTENTS: Errno = Errno(libc::ENODATA);

/// Pages that may be on their way out before their memory is given back.
const OUTGOING_PAGES: u64 = 64;

/// All of them.
pub(crate) struct Pages {
    faults: UserFaults,
    /// The ordinary pages that functions can access, and how.
    mapped: RunMap<Right>,
    /// How many those are.
    mapped_count: u64,
    /// The pages of constant memory that are there.
    constant: RunMap<()>,
    /// Contents of pages that are not mapped.
    aside: BTreeMap<PageNumber, Box<PageContents>>,
    /// The page that was last taken from the functions, and how many were since memory was given back.
    taken: Option<PageNumber>,
    taken_count: u64,
}

impl Pages {
    /// Without pages.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn new(faults: UserFaults) -> Result<Pages, Errno> {
        let bytes = OUTGOING_PAGES as usize * PAGE_BYTES;
        map_anonymous_at(OUTGOING as usize, bytes)?;
        // SAFETY: the advice changes no content.
        let _ = unsafe { advise(OUTGOING as usize, bytes, libc::MADV_NOHUGEPAGE) };
        faults.register(OUTGOING, bytes as u64)?;
        Ok(Pages {
            faults,
            mapped: RunMap::default(),
            mapped_count: 0,
            constant: RunMap::default(),
            aside: BTreeMap::new(),
            taken: None,
            taken_count: 0,
        })
    }

    /// What functions can do with a page without a fault.
    pub(crate) fn access(&self, page: PageNumber) -> Right {
        self.mapped.get(page).unwrap_or(Right::None)
    }

    /// Whether the contents of a page are here.
    pub(crate) fn has(&self, page: PageNumber) -> bool {
        self.access(page) != Right::None || self.aside.contains_key(&page)
    }

    /// How many pages have their contents here.
    pub(crate) fn count(&self) -> u64 {
        self.mapped_count + self.aside.len() as u64
    }

    /// The first page from this one on whose contents are here.
    pub(crate) fn next(&self, from: PageNumber) -> Option<PageNumber> {
        let mapped = self.mapped.runs_in(from.0..PAGE_NUMBERS).next().map(|(run, _)| PageNumber(run.start));
        let aside = self.aside.range(from..).next().map(|(page, _)| *page);
        mapped.into_iter().chain(aside).min()
    }

    /// Whether a page of constant memory is there.
    pub(crate) fn has_constant(&self, page: PageNumber) -> bool {
        self.constant.contains(page)
    }

    /// Puts contents aside. They are newer than what is mapped there: the caller may have taken the page between two calls.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn put(&mut self, page: PageNumber, contents: Box<PageContents>) -> Result<(), Errno> {
        self.drop(page.0..page.0 + 1)?;
        self.aside.insert(page, contents);
        Ok(())
    }

    /// Replaces the contents of a page that functions may write, while none runs. Whether it was done: other pages are [`put`](Pages::put).
    ///
    /// The page has come from the caller, so the coherence protocol has it as written already, and nobody need notice that it is again.
    pub(crate) fn replace(&mut self, page: PageNumber, protection: u32, contents: &PageContents) -> bool {
        let is_writable = self.access(page) == Right::Write && protection & READ_WRITE == READ_WRITE;
        if is_writable && !self.aside.contains_key(&page) {
            let address = (page.0 as usize * PAGE_BYTES) as *mut u8;
            // SAFETY: the page is there and may be written as long as the state is locked, and no function uses it.
            unsafe { bare_memory_copy(address, contents.as_ptr(), PAGE_BYTES) };
            return true;
        }
        false
    }

    /// Maps a page whose contents are aside, for reading: a function that writes it says so by a fault.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn place(&mut self, page: PageNumber) -> Result<(), Errno> {
        if self.aside.contains_key(&page) { self.map(page, false) } else { Ok(()) }
    }

    /// Changes some bytes of a page, which functions may be using.
    ///
    /// # Errors
    /// Of the operating system, or the page's contents are not here.
    pub(crate) fn merge(&mut self, page: PageNumber, protection: u32, changes: &[WordChange]) -> Result<(), Errno> {
        let is_in_use = self.access(page) == Right::Write && protection & READ_WRITE == READ_WRITE;
        if is_in_use && !self.aside.contains_key(&page) {
            for change in changes {
                let word = (page.0 as usize * PAGE_BYTES + change.index() * size_of::<u64>()) as *mut u64;
                // SAFETY: the word is aligned, and lies in a page that is there and may be written as long as the state is locked.
                let word = unsafe { AtomicU64::from_ptr(word) };
                // The functions' own writes to other bytes of the word stay.
                let _ = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| Some(change.applied_to(word)));
            }
            return Ok(());
        }
        // Nobody can be writing the page: those who read it get it again, changed.
        let mut contents = self.contents(page, protection)?;
        changes.iter().for_each(|change| change.apply(&mut contents));
        self.put(page, contents)
    }

    /// Lets functions access a page.
    ///
    /// # Errors
    /// Of the operating system, or its contents are not here.
    pub(crate) fn map(&mut self, page: PageNumber, is_writable: bool) -> Result<(), Errno> {
        let (address, bytes) = bytes_of(page.0..page.0 + 1);
        let is_mapped = self.access(page) != Right::None;
        if let Some(contents) = self.aside.remove(&page) {
            if is_mapped {
                self.drop(page.0..page.0 + 1)?;
            }
            self.mapped_count += 1;
            persist(|| self.faults.copy(address, &contents, !is_writable))?;
        } else if !is_mapped {
            return Err(LACKS_CONTENTS);
        } else if is_writable {
            persist(|| self.faults.protect(address, bytes, false))?;
        }
        self.mapped.set(page, if is_writable { Right::Write } else { Right::Read });
        Ok(())
    }

    /// Maps a page of constant memory.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn map_constant(&mut self, page: PageNumber, contents: &PageContents) -> Result<(), Errno> {
        if !self.has_constant(page) {
            persist(|| self.faults.copy(page.0 * PAGE_BYTES as u64, contents, false))?;
            self.constant.set(page, ());
        }
        Ok(())
    }

    /// Lets functions only read a page.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn protect(&mut self, page: PageNumber) -> Result<(), Errno> {
        if self.access(page) == Right::Write {
            let (address, bytes) = bytes_of(page.0..page.0 + 1);
            persist(|| self.faults.protect(address, bytes, true))?;
            self.mapped.set(page, Right::Read);
        }
        Ok(())
    }

    /// Lets functions only read all pages.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn protect_all(&mut self) -> Result<(), Errno> {
        let writable = self.mapped.runs().filter(|(_, right)| *right == Right::Write).map(|(run, _)| run);
        for run in writable.collect::<Vec<Range<u64>>>() {
            let (start, bytes) = bytes_of(run.clone());
            persist(|| self.faults.protect(start, bytes, true))?;
            self.mapped.insert(run, Right::Read);
        }
        Ok(())
    }

    /// Takes a page from the functions. Its contents are there until the next page is taken. `protection` is that of its mapping.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn take(&mut self, page: PageNumber, protection: u32) -> Result<(), Errno> {
        if self.access(page) == Right::None {
            return Ok(());
        }
        if protection != READ_WRITE {
            // The kernel moves pages between mappings that are alike only.
            self.protect(page)?;
            let contents = self.contents(page, protection)?;
            return self.put(page, contents);
        }
        if self.taken_count == OUTGOING_PAGES {
            // SAFETY: the pages that were taken before are not needed any more.
            unsafe { advise(OUTGOING as usize, OUTGOING_PAGES as usize * PAGE_BYTES, libc::MADV_DONTNEED) }?;
            self.taken_count = 0;
        }
        self.taken_count += 1;
        persist(|| self.faults.move_page(self.outgoing(), page.0 * PAGE_BYTES as u64))?;
        self.mapped.take(page);
        self.mapped_count -= 1;
        self.taken = Some(page);
        Ok(())
    }

    /// Where the page that was last taken lies.
    fn outgoing(&self) -> u64 {
        OUTGOING + self.taken_count.saturating_sub(1) * PAGE_BYTES as u64
    }

    /// The contents of a page, which is mapped, was just taken, or is aside. `protection` is that of its mapping.
    ///
    /// # Errors
    /// It is not here.
    pub(crate) fn contents(&self, page: PageNumber, protection: u32) -> Result<Box<PageContents>, Errno> {
        let mut copy = Box::new([0; PAGE_BYTES]);
        let source = match self.aside.get(&page) {
            Some(contents) => contents.as_ptr(),
            None if self.taken == Some(page) && self.access(page) == Right::None => self.outgoing() as *const u8,
            None if self.access(page) != Right::None => (page.0 * PAGE_BYTES as u64) as *const u8,
            None => return Err(LACKS_CONTENTS),
        };
        let is_readable = protection & libc::PROT_READ as u32 != 0 || !is_mapped_here(source, page);
        let protect = |protection: u32| {
            let arguments = [source as usize, PAGE_BYTES, protection as usize];
            // SAFETY: the page is memory of the caller, whose protection is restored below.
            unsafe { system_call(libc::SYS_mprotect, arguments) }
        };
        if !is_readable {
            protect(libc::PROT_READ as u32)?;
        }
        if is_mapped_here(source, page) {
            // Functions may be writing it (with shared writes): no aligned number is copied half written.
            for (place, word) in copy.chunks_exact_mut(size_of::<u64>()).enumerate() {
                // SAFETY: the page is there, and stays as long as the state is locked; the word is aligned.
                let now = unsafe { AtomicU64::from_ptr(source.cast_mut().cast::<u64>().add(place)) };
                word.copy_from_slice(&now.load(Ordering::Acquire).to_le_bytes());
            }
        } else {
            // SAFETY: the contents are this program's own.
            unsafe { bare_memory_copy(copy.as_mut_ptr(), source, PAGE_BYTES) };
        }
        if !is_readable {
            protect(protection)?;
        }
        Ok(copy)
    }

    /// Forgets contents that are aside.
    pub(crate) fn forget(&mut self, page: PageNumber) {
        self.aside.remove(&page);
    }

    /// Gives pages up, with their contents: the caller has newer ones, or has dropped them.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn drop(&mut self, pages: Range<u64>) -> Result<(), Errno> {
        let mapped: Vec<Range<u64>> = self.mapped.runs_in(pages.clone()).map(|(run, _)| run).collect();
        for run in mapped {
            let (start, bytes) = bytes_of(run.clone());
            // SAFETY: the pages are not needed any more.
            unsafe { advise(start as usize, bytes as usize, libc::MADV_DONTNEED) }?;
            self.mapped_count -= run.end - run.start;
            self.mapped.remove(run);
        }
        let aside: Vec<PageNumber> =
            self.aside.range(PageNumber(pages.start)..PageNumber(pages.end)).map(|(page, _)| *page).collect();
        for page in aside {
            self.aside.remove(&page);
        }
        Ok(())
    }

    /// Memory is unmapped.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn unmapped(&mut self, pages: Range<u64>) -> Result<(), Errno> {
        self.constant.remove(pages.clone());
        self.drop(pages)
    }

    /// All pages that functions can write.
    pub(crate) fn writable(&self) -> RunMap<()> {
        let mut writable = RunMap::default();
        for (run, _) in self.mapped.runs().filter(|(_, right)| *right == Right::Write) {
            writable.insert(run, ());
        }
        writable
    }

    /// The pages of a range that functions can write.
    pub(crate) fn writable_in(&self, pages: Range<u64>) -> Vec<PageNumber> {
        let runs = self.mapped.runs_in(pages).filter(|(_, right)| *right == Right::Write);
        runs.flat_map(|(run, _)| run.map(PageNumber)).collect()
    }
}
