//! What is done with pages of this process.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ops::Range;

use bare::PAGE_BYTES;
use bare::memory::bare_memory_copy;
use bare::system_call::{Errno, advise, map_anonymous_at, system_call};
use bare::userfault::{Event, UserFaults, persist};
use page_coherence::{PageNumber, RunMap};

use crate::places::OUTGOING;
use crate::variables::copy_of_this_process;

/// The bytes of a page.
pub(crate) type PageContents = [u8; PAGE_BYTES];

/// Pages that may be on their way out before their memory is given back.
const OUTGOING_PAGES: u64 = 64;
/// Pages of fresh memory that one fault fills.
const ZEROS_AHEAD: u64 = 32;

/// The protection of the areas for pages on their way out, and whether they are locked: that of any memory that programs write.
const AREAS: [(i32, bool); 4] = [
    (libc::PROT_READ | libc::PROT_WRITE, false),
    (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC, false),
    (libc::PROT_READ | libc::PROT_WRITE, true),
    (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC, true),
];
/// `MLOCK_ONFAULT`.
const LOCK_ON_FAULT: usize = 1;
/// `MADV_DONTNEED_LOCKED`.
const DROP_LOCKED: i32 = 24;

/// Memory for pages on their way out.
#[derive(Clone, Copy)]
struct OutgoingArea {
    start: u64,
    /// How many pages have come since its memory was given back.
    taken: u64,
}

impl OutgoingArea {
    /// # Errors
    /// Of the operating system.
    fn map(&self, faults: UserFaults, protection: i32, is_locked: bool) -> Result<(), Errno> {
        let (start, bytes) = (self.start as usize, OUTGOING_PAGES as usize * PAGE_BYTES);
        map_anonymous_at(start, bytes)?;
        // SAFETY: the range was just mapped, and nobody else knows of it.
        unsafe {
            let _ = advise(start, bytes, libc::MADV_NOHUGEPAGE);
            system_call(libc::SYS_mprotect, [start, bytes, protection as usize])?;
            faults.register(self.start, bytes as u64)?;
            if is_locked {
                // Without filling it. A process that may not lock memory has no locked pages to move.
                let _ = system_call(libc::SYS_mlock2, [start, bytes, LOCK_ON_FAULT]);
            }
        }
        Ok(())
    }

    /// Where the next page goes.
    fn next(&mut self) -> Result<u64, Errno> {
        if self.taken == OUTGOING_PAGES {
            // SAFETY: the pages that came before were copied.
            unsafe { advise(self.start as usize, OUTGOING_PAGES as usize * PAGE_BYTES, DROP_LOCKED) }?;
            self.taken = 0;
        }
        Ok(self.start + self.taken * PAGE_BYTES as u64)
    }
}

/// What the program has done with a page, as events say that were not handled yet.
#[derive(Clone, Copy)]
enum Announced {
    Nothing,
    /// It lies there now.
    Moved(u64),
    /// It was dropped or unmapped.
    Gone,
}

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
    /// Where pages on their way out go.
    areas: [OutgoingArea; AREAS.len()],
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
        let mut areas = [OutgoingArea { start: 0, taken: 0 }; AREAS.len()];
        for (number, ((protection, is_locked), area)) in (0..).zip(AREAS.into_iter().zip(&mut areas)) {
            area.start = OUTGOING + number * 2 * OUTGOING_PAGES * PAGE_BYTES as u64;
            area.map(outgoing_faults, protection, is_locked)?;
        }
        Ok(Pages {
            faults,
            outgoing_faults,
            registered: RunMap::default(),
            protected: RunMap::default(),
            arrived: None,
            areas,
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

    /// Reads an event, if there is one, and leaves it to be handled.
    fn read_event(&mut self) {
        self.unhandled.extend(self.faults.read().ok().flatten());
    }

    /// Calls the kernel, which refuses changes while an event is unread.
    fn change(&mut self, mut call: impl FnMut(UserFaults) -> Result<(), Errno>) -> Result<(), Errno> {
        loop {
            match call(self.faults) {
                Err(Errno(libc::EAGAIN)) => self.read_event(),
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
        if let Some((_, contents)) = self.arrived.take_if(|(arrived, _)| *arrived == page) {
            return self.install(page, &contents, is_writable);
        }
        if !is_writable {
            return Ok(());
        }
        if self.protected.take(page) {
            let address = self.address(page);
            return unless_gone(self.change(|faults| faults.protect(address, PAGE_BYTES as u64, false)));
        }
        self.fill(page, owned.clamp(1, ZEROS_AHEAD))
    }

    /// Maps contents, where the page is now.
    fn install(&mut self, page: PageNumber, contents: &PageContents, is_writable: bool) -> Result<(), Errno> {
        match is_writable {
            true => _ = self.protected.take(page),
            false => self.protected.set(page, ()),
        }
        loop {
            // An event that was read lets the program go on, so it counts at once.
            let address = match self.announced(page) {
                Announced::Nothing => self.address(page),
                Announced::Moved(address) => address,
                Announced::Gone => return Ok(()),
            };
            match self.faults.copy(address, contents, !is_writable) {
                Err(Errno(libc::EAGAIN)) => self.read_event(),
                outcome => return unless_gone(outcome),
            }
        }
    }

    /// What events that were read, and not handled yet, say of a page.
    fn announced(&self, page: PageNumber) -> Announced {
        let address = self.address(page);
        let mut announced = Announced::Nothing;
        for event in &self.unhandled {
            let at = if let Announced::Moved(at) = announced { at } else { address };
            match *event {
                Event::Dropped(start, end) | Event::Unmapped(start, end) if (start..end).contains(&at) => {
                    return Announced::Gone;
                }
                Event::Remapped(from, to, bytes) if (from..from + bytes).contains(&at) => {
                    announced = Announced::Moved(at - from + to);
                }
                _ => {}
            }
        }
        announced
    }

    /// Maps zeros where nothing is, up to the first page that is there.
    fn fill(&mut self, page: PageNumber, pages: u64) -> Result<(), Errno> {
        let address = self.address(page);
        let run = self.registered.runs_in(page.0..page.0 + pages).next();
        let bytes = run.map_or(1, |(run, ())| run.end - page.0) * PAGE_BYTES as u64;
        let mut filled = self.change(|faults| faults.zero(address, bytes));
        if filled == Err(Errno(libc::ENOENT)) && bytes > PAGE_BYTES as u64 {
            // The range is in two mappings, which the kernel keeps apart.
            filled = self.change(|faults| faults.zero(address, PAGE_BYTES as u64));
        }
        match filled {
            Err(Errno(libc::EEXIST)) => Ok(()),
            outcome => unless_gone(outcome),
        }
    }

    /// Lets the program only read a page, which it owns.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn protect(&mut self, page: PageNumber) -> Result<(), Errno> {
        if !self.protected.contains(page) && self.registered.contains(page) {
            self.fill(page, 1)?;
            let address = self.address(page);
            unless_gone(self.change(|faults| faults.protect(address, PAGE_BYTES as u64, true)))?;
            self.protected.set(page, ());
        }
        Ok(())
    }

    /// The kernel says that a page is write-protected.
    pub(crate) fn note_protected(&mut self, page: PageNumber) {
        self.protected.set(page, ());
    }

    /// The contents of a page that the program can only read; zeros if it is gone.
    ///
    /// # Errors
    /// It is there, and cannot be read.
    pub(crate) fn contents(&mut self, page: PageNumber) -> Result<Box<PageContents>, Errno> {
        let mut copy = Box::new([0; PAGE_BYTES]);
        while self.registered.contains(page) {
            if copy_of_this_process(self.address(page), &mut copy[..]) == PAGE_BYTES {
                break;
            }
            if !self.is_changing() {
                return Err(Errno(libc::EFAULT));
            }
            self.read_event();
            if matches!(self.announced(page), Announced::Gone | Announced::Moved(_)) {
                return Ok(Box::new([0; PAGE_BYTES]));
            }
        }
        Ok(copy)
    }

    /// Takes a page from the program, which finds it absent from then on. Returns its contents; zeros if it had none.
    ///
    /// # Errors
    /// Of the operating system: `EBUSY` if a device is using the page.
    pub(crate) fn take(&mut self, page: PageNumber) -> Result<Box<PageContents>, Errno> {
        let mut copy = Box::new([0; PAGE_BYTES]);
        if !self.registered.contains(page) {
            return Ok(copy);
        }
        let moved = loop {
            let moved = self.move_out(page);
            match moved {
                // It is gone, or elsewhere: the event says which.
                Err(Errno(libc::ENOENT | libc::EINVAL)) if self.is_changing() => self.read_event(),
                outcome => break outcome,
            }
            match self.announced(page) {
                Announced::Gone => break Err(Errno(libc::ENOENT)),
                Announced::Moved(_) | Announced::Nothing => {}
            }
        };
        match moved {
            // SAFETY: the page was just moved there.
            Ok(target) => unsafe { bare_memory_copy(copy.as_mut_ptr(), target as *const u8, PAGE_BYTES) },
            // It was never touched, or is gone.
            Err(Errno(libc::ENOENT)) => {
                self.protected.take(page);
                return Ok(copy);
            }
            Err(error) => return Err(error),
        };
        self.protected.take(page);
        Ok(copy)
    }

    /// Moves a page out of the program's sight; where it lies then.
    fn move_out(&mut self, page: PageNumber) -> Result<u64, Errno> {
        let source = match self.announced(page) {
            Announced::Moved(address) => address,
            Announced::Nothing | Announced::Gone => self.address(page),
        };
        match self.move_to_some_area(source) {
            Err(Errno(libc::EBUSY)) => {
                // Parent and child of a fork share it. What this access makes is the process's own. It must not wait for this thread.
                if self.protected.take(page) {
                    self.change(|faults| faults.protect(source, PAGE_BYTES as u64, false))?;
                }
                // SAFETY: the advice changes no content.
                let _ = unsafe { advise(source as usize, PAGE_BYTES, libc::MADV_POPULATE_WRITE) };
                self.move_to_some_area(source)
            }
            outcome => outcome,
        }
    }

    /// The kernel moves pages between mappings that are alike only.
    fn move_to_some_area(&mut self, source: u64) -> Result<u64, Errno> {
        let outgoing = self.outgoing_faults;
        for area in &mut self.areas {
            let target = area.next()?;
            match persist(|| outgoing.move_page(target, source)) {
                Err(Errno(libc::EINVAL)) => {}
                outcome => {
                    area.taken += u64::from(outcome.is_ok());
                    return outcome.map(|()| target);
                }
            }
        }
        Err(Errno(libc::EINVAL))
    }

    /// Lets threads that wait for a page try again.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn wake(&mut self, page: PageNumber) -> Result<(), Errno> {
        unless_gone(self.faults.wake(self.address(page), PAGE_BYTES as u64))
    }
}
