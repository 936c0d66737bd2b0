//! What the executor has mapped, as far as it knows what the caller has.

#![allow(unsafe_code)]

use std::ops::Range;

use bare::PAGE_BYTES;
use bare::system_call::{Errno, system_call, unmap};
use bare::userfault::UserFaults;
use page_coherence::{Access, PageNumber, RunMap};
use pushdown::{MappingKind, PRIVATE};

/// Addresses that a program may have end here.
const ADDRESS_END: u64 = 1 << 47;

/// A mapping of the executor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mapping {
    /// Nobody writes it: its pages are copies.
    pub(crate) is_constant: bool,
    /// `PROT_*`, of the caller's mapping.
    pub(crate) protection: u32,
}

impl Mapping {
    /// Whether the caller's own threads could access it so.
    pub(crate) fn allows(self, access: Access) -> bool {
        let needed = match access {
            Access::Read => (libc::PROT_READ | libc::PROT_EXEC) as u32,
            Access::Write => libc::PROT_WRITE as u32,
        };
        self.protection & needed != 0
    }
}

/// All of them.
pub(crate) struct Mappings {
    faults: UserFaults,
    known: RunMap<Mapping>,
}

impl Mappings {
    pub(crate) fn new(faults: UserFaults) -> Mappings {
        Mappings { faults, known: RunMap::default() }
    }

    /// The mapping at a page.
    pub(crate) fn at(&self, page: PageNumber) -> Option<Mapping> {
        self.known.get(page)
    }

    /// The protection of a page's mapping; none if there is none.
    pub(crate) fn protection(&self, page: PageNumber) -> u32 {
        self.at(page).map_or(0, |mapping| mapping.protection)
    }

    /// The parts of a range that are constant.
    pub(crate) fn constant_in(&self, pages: Range<u64>) -> Vec<Range<u64>> {
        let constant = self.known.runs_in(pages).filter(|(_, mapping)| mapping.is_constant);
        constant.map(|(run, _)| run).collect()
    }

    /// Maps what the caller has there, where nothing is mapped yet, and changes the protection where something is.
    ///
    /// # Errors
    /// The caller named impossible addresses, or the operating system refuses.
    pub(crate) fn add(&mut self, start: u64, end: u64, protection: u32, kind: MappingKind) -> Result<(), Errno> {
        let (aligned, page) = (start | end, PAGE_BYTES as u64);
        if !aligned.is_multiple_of(page)
            || start >= end
            || end > ADDRESS_END
            || end > PRIVATE.start && start < PRIVATE.end
        {
            return Err(Errno(libc::EINVAL));
        }
        let pages = start / page..end / page;
        let mapping = Mapping { is_constant: kind == MappingKind::Constant, protection };
        self.protect(pages.clone(), protection)?;
        let mut at = pages.start;
        let there: Vec<Range<u64>> = self.known.runs_in(pages.clone()).map(|(run, _)| run).collect();
        for run in there.into_iter().chain(std::iter::once(pages.end..pages.end)) {
            if at < run.start {
                self.map(at..run.start, protection)?;
                self.known.insert(at..run.start, mapping);
            }
            at = run.end;
        }
        Ok(())
    }

    /// Maps memory whose pages are all absent. Other functions run meanwhile: none may access it before its faults are reported, since
    /// it would find zeros there.
    fn map(&self, pages: Range<u64>, protection: u32) -> Result<(), Errno> {
        let (start, bytes) = bytes_of(pages);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        let arguments = [start as usize, bytes as usize, libc::PROT_NONE as usize, flags as usize, usize::MAX, 0];
        // SAFETY: the kernel refuses to replace a mapping.
        unsafe { system_call(libc::SYS_mmap, arguments) }?;
        // A huge page would come without a fault for each of its pages.
        // SAFETY: the advice changes no content. A kernel without huge pages does not know it.
        let _ = unsafe { bare::system_call::advise(start as usize, bytes as usize, libc::MADV_NOHUGEPAGE) };
        self.faults.register(start, bytes)?;
        // SAFETY: the range is memory of the caller, which has this protection there.
        unsafe { system_call(libc::SYS_mprotect, [start as usize, bytes as usize, protection as usize]) }.map(|_| ())
    }

    /// The caller has changed the protection of memory.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn protect(&mut self, pages: Range<u64>, protection: u32) -> Result<(), Errno> {
        let changed: Vec<(Range<u64>, Mapping)> =
            self.known.runs_in(pages).filter(|(_, mapping)| mapping.protection != protection).collect();
        for (run, mapping) in changed {
            let (start, bytes) = bytes_of(run.clone());
            // SAFETY: the range is memory of the caller, which has this protection there.
            unsafe { system_call(libc::SYS_mprotect, [start as usize, bytes as usize, protection as usize]) }?;
            self.known.insert(run, Mapping { protection, ..mapping });
        }
        Ok(())
    }

    /// The caller has unmapped memory.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn remove(&mut self, pages: Range<u64>) -> Result<(), Errno> {
        let there: Vec<Range<u64>> = self.known.runs_in(pages).map(|(run, _)| run).collect();
        for run in there {
            let (start, bytes) = bytes_of(run.clone());
            // SAFETY: the range is memory of the caller, which has none there any more.
            unsafe { unmap(start as usize, bytes as usize) }?;
            self.known.remove(run);
        }
        Ok(())
    }
}

/// Address and bytes of a range of pages.
pub(crate) fn bytes_of(pages: Range<u64>) -> (u64, u64) {
    let page = PAGE_BYTES as u64;
    (pages.start * page, (pages.end - pages.start) * page)
}
