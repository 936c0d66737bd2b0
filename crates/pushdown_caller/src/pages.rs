//! What is done with pages of this process.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ops::Range;

use bare::PAGE_BYTES;
use bare::memory::bare_memory_copy;
use bare::system_call::{Errno, advise, system_call, yield_processor};
use bare::userfault::{Event, UserFaults};
use page_coherence::{PageNumber, RunMap};

use crate::outgoing::OutgoingAreas;

/// The bytes of a page.
pub(crate) type PageContents = [u8; PAGE_BYTES];

/// Pages of fresh memory that one fault fills.
const ZEROS_AHEAD: u64 = 32;

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
    /// Where pages on their way out go.
    outgoing: OutgoingAreas,
    /// An open `/proc/self/mem`, through which pages can be read that the program may not read.
    memory: i32,
    /// Memory whose faults are reported.
    registered: RunMap<()>,
    /// Pages that are write-protected.
    protected: RunMap<()>,
    /// Pages that the program may still be dropping: the kernel has said that it would.
    unsteady: RunMap<()>,
    /// Contents that are about to be mapped.
    arrived: Option<(PageNumber, Box<PageContents>)>,
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
    pub(crate) fn new(faults: UserFaults, outgoing_faults: UserFaults, memory: i32) -> Result<Pages, Errno> {
        Ok(Pages {
            faults,
            outgoing: OutgoingAreas::map(outgoing_faults)?,
            memory,
            registered: RunMap::default(),
            protected: RunMap::default(),
            unsteady: RunMap::default(),
            arrived: None,
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

    /// Where a page lies, as the kernel has said so far; `None` if it is gone.
    fn place(&self, page: PageNumber) -> Option<u64> {
        match self.announced(page) {
            Announced::Nothing => Some(self.address(page)),
            Announced::Moved(address) => Some(address),
            Announced::Gone => None,
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
        let unsteady: Vec<Range<u64>> = self.unsteady.runs_in(pages.clone()).map(|(run, ())| run).collect();
        unsteady.into_iter().for_each(|run| self.unsteady.insert(new(run), ()));
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
        match self.faults.read() {
            Ok(Some(event)) => self.unhandled.push_back(event),
            // The thread that makes it has to run.
            _ => yield_processor(),
        }
    }

    /// Has the kernel change a page, where it is now. It refuses changes while an event is unread; one that was read lets the program go
    /// on, so it counts at once. `ENOENT` if the page is gone.
    ///
    /// The kernel looks for the mapping first, and only then whether an event is unread: of a page that was moved after the call had begun
    /// it says that there is none. So that is true only once no event is on its way.
    fn change(
        &mut self,
        page: PageNumber,
        mut call: impl FnMut(UserFaults, u64) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        loop {
            let address = self.place(page).ok_or(Errno(libc::ENOENT))?;
            match call(self.faults, address) {
                Err(Errno(libc::EAGAIN)) => self.read_event(),
                Err(Errno(libc::ENOENT)) if self.is_changing() => self.read_event(),
                outcome => return outcome,
            }
        }
    }

    /// Has the faults of a mapping reported. It counts once [`registered`](Pages::registered) says so.
    ///
    /// # Errors
    /// Of the operating system: it is memory of another kind.
    pub(crate) fn register(&mut self, start: u64, end: u64) -> Result<(), Errno> {
        let pages = start / PAGE_BYTES as u64..end / PAGE_BYTES as u64;
        let known: u64 = self.registered.runs_in(pages.clone()).map(|(run, ())| run.end - run.start).sum();
        match known < pages.end - pages.start {
            true => self.faults.register(start, end - start),
            false => Ok(()),
        }
    }

    /// The faults of all of a mapping are reported.
    pub(crate) fn registered(&mut self, start: u64, end: u64) {
        self.registered.insert(start / PAGE_BYTES as u64..end / PAGE_BYTES as u64, ());
    }

    /// Whether faults are reported anywhere in a range.
    pub(crate) fn has_registered(&self, pages: Range<u64>) -> bool {
        self.registered.runs_in(pages).next().is_some()
    }

    /// The parts of a range whose faults are reported.
    pub(crate) fn registered_in(&self, pages: Range<u64>) -> Vec<Range<u64>> {
        self.registered.runs_in(pages).map(|(run, ())| run).collect()
    }

    /// The parts of a range whose faults are not reported.
    pub(crate) fn unregistered_in(&self, pages: Range<u64>) -> Vec<Range<u64>> {
        let mut rest = RunMap::default();
        rest.insert(pages.clone(), ());
        self.registered.runs_in(pages).for_each(|(run, ())| rest.remove(run));
        rest.runs().map(|(run, ())| run).collect()
    }

    /// Memory is gone.
    pub(crate) fn unmapped(&mut self, pages: Range<u64>) {
        self.registered.remove(pages.clone());
        self.unsteady.remove(pages);
    }

    /// Pages are dropped now, or at any later time.
    pub(crate) fn may_be_dropped(&mut self, pages: Range<u64>) {
        self.unsteady.insert(pages, ());
    }

    /// Nobody drops pages any more.
    pub(crate) fn dropped_for_good(&mut self, pages: Range<u64>) {
        self.unsteady.remove(pages);
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
            return unless_gone(self.change(page, |faults, address| faults.protect(address, PAGE_BYTES as u64, false)));
        }
        self.fill(page, owned.clamp(1, ZEROS_AHEAD))
    }

    /// Maps contents, where the page is now.
    fn install(&mut self, page: PageNumber, contents: &PageContents, is_writable: bool) -> Result<(), Errno> {
        self.protected.take(page);
        loop {
            match self.change(page, |faults, address| faults.copy(address, contents, !is_writable)) {
                // An older copy is there, which threads read until now (partial store order).
                Err(Errno(libc::EEXIST)) => _ = self.take(page)?,
                outcome => {
                    if !is_writable {
                        self.protected.set(page, ());
                    }
                    return unless_gone(outcome);
                }
            }
        }
    }

    /// Changes the contents of a page that the program may be using. It finds the page absent meanwhile.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn rewrite(
        &mut self,
        page: PageNumber,
        is_writable: bool,
        change: impl FnOnce(&mut PageContents),
    ) -> Result<(), Errno> {
        let mut contents = self.take(page)?;
        change(&mut contents);
        self.install(page, &contents, is_writable)
    }

    /// The contents of a page that the program is about to write: those that have arrived, or those that it can read.
    ///
    /// # Errors
    /// As [`Pages::contents`].
    pub(crate) fn contents_to_write(&mut self, page: PageNumber) -> Result<Box<PageContents>, Errno> {
        match self.arrived.as_ref().filter(|(arrived, _)| *arrived == page) {
            Some((_, contents)) => Ok(contents.clone()),
            None => self.contents(page),
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
        let run = self.registered.runs_in(page.0..page.0 + pages).next().filter(|(run, ())| run.start == page.0);
        let bytes = run.map_or(1, |(run, ())| run.end - page.0) * PAGE_BYTES as u64;
        // What lies behind a page that has moved, or what has moved there, is another's: only where all events were handled are neighbours
        // by number neighbours in memory.
        let is_settled = self.unhandled.is_empty() && self.redirected.0.is_empty();
        if bytes > PAGE_BYTES as u64 && is_settled {
            match self.faults.zero(page.0 * PAGE_BYTES as u64, bytes) {
                Ok(()) | Err(Errno(libc::EEXIST)) => return Ok(()),
                // An event is unread, or the range is in two mappings, which the kernel keeps apart.
                Err(_) => {}
            }
        }
        self.fill_absent(page).map(|_| ())
    }

    /// Makes a page zero if it is not there. Whether it was absent.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn fill_absent(&mut self, page: PageNumber) -> Result<bool, Errno> {
        match self.change(page, |faults, address| faults.zero(address, PAGE_BYTES as u64)) {
            Ok(()) => Ok(true),
            Err(Errno(libc::EEXIST)) => Ok(false),
            outcome => unless_gone(outcome).map(|()| false),
        }
    }

    /// Lets the program only read a page, which it owns. One that may be dropped is protected when its contents are taken.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn protect(&mut self, page: PageNumber) -> Result<(), Errno> {
        match self.unsteady.contains(page) {
            true => Ok(()),
            false => self.protect_now(page),
        }
    }

    fn protect_now(&mut self, page: PageNumber) -> Result<(), Errno> {
        if !self.protected.contains(page) && self.registered.contains(page) {
            self.fill(page, 1)?;
            unless_gone(self.change(page, |faults, address| faults.protect(address, PAGE_BYTES as u64, true)))?;
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
        if self.unsteady.contains(page) && self.registered.contains(page) {
            // To read a page that is dropped at that moment would be to wait for this thread.
            if let Ok(copy) = self.take(page) {
                self.install(page, &copy, false)?;
                return Ok(copy);
            }
            self.protect_now(page)?;
        }
        let mut copy = Box::new([0; PAGE_BYTES]);
        while self.registered.contains(page)
            && let Some(address) = self.place(page)
        {
            if self.read(address, &mut copy) {
                return Ok(copy);
            }
            if !self.is_changing() {
                return Err(Errno(libc::EFAULT));
            }
            self.read_event();
        }
        Ok(Box::new([0; PAGE_BYTES]))
    }

    /// Copies a page, whatever the program may do with it. Whether it is there.
    fn read(&self, address: u64, copy: &mut PageContents) -> bool {
        let arguments = [self.memory as usize, copy.as_mut_ptr() as usize, PAGE_BYTES, address as usize];
        // SAFETY: the kernel writes at most a page to the array.
        unsafe { system_call(libc::SYS_pread64, arguments) == Ok(PAGE_BYTES) }
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
            let Some(source) = self.place(page) else { break Err(Errno(libc::ENOENT)) };
            match self.move_out(page, source) {
                // It is gone, or elsewhere: the event says which.
                Err(Errno(libc::ENOENT | libc::EINVAL)) if self.is_changing() => self.read_event(),
                outcome => break outcome,
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
    fn move_out(&mut self, page: PageNumber, source: u64) -> Result<u64, Errno> {
        match self.outgoing.take(source) {
            Err(Errno(libc::EBUSY)) => {
                // Parent and child of a fork share it. What this access makes is the process's own. It must not wait for this thread.
                if self.protected.take(page) {
                    self.change(page, |faults, address| faults.protect(address, PAGE_BYTES as u64, false))?;
                }
                // SAFETY: the advice changes no content.
                let _ = unsafe { advise(source as usize, PAGE_BYTES, libc::MADV_POPULATE_WRITE) };
                self.outgoing.take(source)
            }
            outcome => outcome,
        }
    }

    /// Lets threads that wait for a page try again.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn wake(&mut self, page: PageNumber) -> Result<(), Errno> {
        match self.place(page) {
            Some(address) => unless_gone(self.faults.wake(address, PAGE_BYTES as u64)),
            None => Ok(()),
        }
    }
}
