//! What is done with pages of this process.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ops::Range;

use bare::PAGE_BYTES;
use bare::memory::bare_memory_copy;
use bare::system_call::{Errno, advise};
use bare::userfault::{Event, UserFaults, persist};
use page_coherence::{PageNumber, RunMap};

use crate::places::OUTGOING;

/// The bytes of a page.
pub(crate) type PageContents = [u8; PAGE_BYTES];

/// Pages that may be on their way out before their memory is given back.
const OUTGOING_PAGES: u64 = 64;
/// Pages of fresh memory that one fault fills.
const ZEROS_AHEAD: u64 = 32;

/// The pages of this process, as the kernel has them.
pub(crate) struct Pages {
    faults: UserFaults,
    /// One without events, for the pages on their way out: the kernel would wait until somebody has read that they were dropped.
    outgoing_faults: UserFaults,
    /// Memory whose faults are reported.
    registered: RunMap<()>,
    /// Pages that are write-protected.
    protected: RunMap<()>,
    /// Contents that are about to be mapped.
    arrived: Option<(PageNumber, Box<PageContents>)>,
    taken_count: u64,
    /// Pages that have moved, and where the first of them is now.
    redirected: (Range<u64>, u64),
    /// Events that were read because the kernel refused changes until they were.
    unhandled: VecDeque<Event>,
}

/// What is never copied.
static PROBE: PageContents = [0; PAGE_BYTES];

/// What became of memory is found out by doing: it may be unmapped at any time.
fn unless_gone(outcome: Result<(), Errno>) -> Result<(), Errno> {
    match outcome {
        Err(Errno(libc::ENOENT | libc::ESRCH | libc::EINVAL)) => Ok(()),
        outcome => outcome,
    }
}

impl Pages {
    /// # Errors
    /// Of the operating system.
    pub(crate) fn new(faults: UserFaults, outgoing_faults: UserFaults) -> Result<Pages, Errno> {
        let bytes = OUTGOING_PAGES as usize * PAGE_BYTES;
        bare::system_call::map_anonymous_at(OUTGOING as usize, bytes)?;
        // SAFETY: the advice changes no content.
        let _ = unsafe { advise(OUTGOING as usize, bytes, libc::MADV_NOHUGEPAGE) };
        outgoing_faults.register(OUTGOING, bytes as u64)?;
        Ok(Pages {
            faults,
            outgoing_faults,
            registered: RunMap::default(),
            protected: RunMap::default(),
            arrived: None,
            taken_count: 0,
            redirected: (0..0, 0),
            unhandled: VecDeque::new(),
        })
    }

    /// Where a page lies.
    fn address(&self, page: PageNumber) -> u64 {
        let (from, to) = &self.redirected;
        match from.contains(&page.0) {
            true => (page.0 - from.start + to) * PAGE_BYTES as u64,
            false => page.0 * PAGE_BYTES as u64,
        }
    }

    /// Pages of a range lie elsewhere now, from the page `to` on.
    pub(crate) fn redirect(&mut self, pages: Range<u64>, to: u64) {
        self.redirected = (pages, to);
    }

    /// Memory has moved for good. Its faults are reported as before, and its pages are as protected as before.
    pub(crate) fn moved(&mut self, pages: Range<u64>, to: u64) {
        let new = |run: Range<u64>| run.start - pages.start + to..run.end - pages.start + to;
        let registered: Vec<Range<u64>> = self.registered.runs_in(pages.clone()).map(|(run, ())| run).collect();
        let protected: Vec<Range<u64>> = self.protected.runs_in(pages.clone()).map(|(run, ())| run).collect();
        self.protected.remove(new(pages.clone()));
        registered.into_iter().for_each(|run| self.registered.insert(new(run), ()));
        protected.into_iter().for_each(|run| self.protected.insert(new(run), ()));
    }

    pub(crate) fn descriptor(&self) -> i32 {
        self.faults.0
    }

    /// The next event that was read and not handled. Once it was read, the program goes on; so it has to be handled before the lock is
    /// released.
    pub(crate) fn next_unhandled(&mut self) -> Option<Event> {
        self.unhandled.pop_front()
    }

    /// The next event of the kernel.
    pub(crate) fn next_event(&mut self) -> Option<Event> {
        self.unhandled.pop_front().or_else(|| self.faults.read().ok().flatten())
    }

    /// Whether memory was unmapped or moved and the event has not come yet. The kernel refuses changes meanwhile, this one, which changes
    /// nothing, included.
    pub(crate) fn is_changing(&self) -> bool {
        let probe = self.registered.runs().next();
        probe.is_some_and(|(run, ())| {
            self.faults.copy(run.start * PAGE_BYTES as u64 + 1, &PROBE, false) == Err(Errno(libc::EAGAIN))
        })
    }

    /// Calls the kernel, which refuses changes while an event is unread.
    fn change(&mut self, mut call: impl FnMut(UserFaults) -> Result<(), Errno>) -> Result<(), Errno> {
        loop {
            match call(self.faults) {
                Err(Errno(libc::EAGAIN)) => self.unhandled.extend(self.faults.read().ok().flatten()),
                outcome => return outcome,
            }
        }
    }

    /// Has the faults of a mapping reported.
    ///
    /// # Errors
    /// Of the operating system: it is memory of another kind.
    pub(crate) fn register(&mut self, start: u64, end: u64) -> Result<(), Errno> {
        let pages = start / PAGE_BYTES as u64..end / PAGE_BYTES as u64;
        let known: u64 = self.registered.runs_in(pages.clone()).map(|(run, ())| run.end - run.start).sum();
        if known < pages.end - pages.start {
            self.faults.register(start, end - start)?;
            self.registered.insert(pages, ());
        }
        Ok(())
    }

    /// Whether faults are reported anywhere in a range.
    pub(crate) fn has_registered(&self, pages: Range<u64>) -> bool {
        self.registered.runs_in(pages).next().is_some()
    }

    /// The parts of a range whose faults are reported.
    pub(crate) fn registered_in(&self, pages: Range<u64>) -> Vec<Range<u64>> {
        self.registered.runs_in(pages).map(|(run, ())| run).collect()
    }

    /// Memory is gone.
    pub(crate) fn unmapped(&mut self, pages: Range<u64>) {
        self.registered.remove(pages);
    }

    /// Pages are gone, or are about to be.
    pub(crate) fn dropped(&mut self, pages: Range<u64>) {
        self.protected.remove(pages);
    }

    /// The next page to be mapped has these contents.
    pub(crate) fn arrived(&mut self, page: PageNumber, contents: Box<PageContents>) {
        self.arrived = Some((page, contents));
    }

    /// Lets the program access a page: with the contents that have arrived, or with those that it has. `owned` says how many
    /// pages from this one on the program owns, which are zero where they are absent.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn map(&mut self, page: PageNumber, is_writable: bool, owned: u64) -> Result<(), Errno> {
        let address = self.address(page);
        if let Some((_, contents)) = self.arrived.take_if(|(arrived, _)| *arrived == page) {
            let copied = self.change(|faults| faults.copy(address, &contents, !is_writable));
            match is_writable {
                true => _ = self.protected.take(page),
                false => self.protected.set(page, ()),
            }
            return unless_gone(copied);
        }
        if !is_writable {
            return Ok(());
        }
        if self.protected.take(page) {
            return unless_gone(self.change(|faults| faults.protect(address, PAGE_BYTES as u64, false)));
        }
        self.fill(page, owned.clamp(1, ZEROS_AHEAD))
    }

    /// Maps zeros where nothing is, up to the first page that is there.
    fn fill(&mut self, page: PageNumber, pages: u64) -> Result<(), Errno> {
        let address = self.address(page);
        let run = self.registered.runs_in(page.0..page.0 + pages).next();
        let bytes = run.map_or(1, |(run, ())| run.end - page.0) * PAGE_BYTES as u64;
        match self.change(|faults| faults.zero(address, bytes)) {
            Err(Errno(libc::EEXIST)) => Ok(()),
            outcome => unless_gone(outcome),
        }
    }

    /// Lets the program only read a page, which it owns.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn protect(&mut self, page: PageNumber) -> Result<(), Errno> {
        if !self.protected.contains(page) {
            self.fill(page, 1)?;
            let address = self.address(page);
            unless_gone(self.change(|faults| faults.protect(address, PAGE_BYTES as u64, true)))?;
            self.protected.set(page, ());
        }
        Ok(())
    }

    /// The contents of a page that the program can only read.
    pub(crate) fn contents(&mut self, page: PageNumber) -> Box<PageContents> {
        let mut copy = Box::new([0; PAGE_BYTES]);
        // SAFETY: the page was filled and protected; it stays until its event is handled, which needs the lock.
        unsafe { bare_memory_copy(copy.as_mut_ptr(), self.address(page) as *const u8, PAGE_BYTES) };
        copy
    }

    /// Takes a page from the program, which finds it absent from then on. Returns its contents; zeros if it had none.
    ///
    /// # Errors
    /// Of the operating system: `EBUSY` if a device is using the page.
    pub(crate) fn take(&mut self, page: PageNumber) -> Result<Box<PageContents>, Errno> {
        if self.taken_count == OUTGOING_PAGES {
            // SAFETY: the pages that were taken before were copied.
            unsafe { advise(OUTGOING as usize, OUTGOING_PAGES as usize * PAGE_BYTES, libc::MADV_DONTNEED) }?;
            self.taken_count = 0;
        }
        let (source, target) = (self.address(page), OUTGOING + self.taken_count * PAGE_BYTES as u64);
        let outgoing = self.outgoing_faults;
        let mut moved = persist(|| outgoing.move_page(target, source));
        if moved == Err(Errno(libc::EBUSY)) {
            // Parent and child of a fork share it. What this access makes is the process's own. It must not wait for this thread.
            if self.protected.take(page) {
                self.change(|faults| faults.protect(source, PAGE_BYTES as u64, false))?;
            }
            // SAFETY: the advice changes no content.
            let _ = unsafe { advise(source as usize, PAGE_BYTES, libc::MADV_POPULATE_WRITE) };
            moved = persist(|| outgoing.move_page(target, source));
        }
        let mut copy = Box::new([0; PAGE_BYTES]);
        match moved {
            Ok(()) => {
                self.taken_count += 1;
                // SAFETY: the page was just moved there.
                unsafe { bare_memory_copy(copy.as_mut_ptr(), target as *const u8, PAGE_BYTES) };
            }
            // It was never touched, or is gone.
            Err(Errno(libc::ENOENT | libc::EINVAL)) => {}
            Err(error) => return Err(error),
        }
        self.protected.take(page);
        Ok(copy)
    }

    /// Lets threads that wait for a page try again.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn wake(&mut self, page: PageNumber) -> Result<(), Errno> {
        unless_gone(self.faults.wake(self.address(page), PAGE_BYTES as u64))
    }
}
