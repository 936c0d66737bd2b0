//! A region in the memory of this process.

use std::sync::Arc;
use std::{io, thread};

use crate::error::Error;
use crate::guard::FaultSite;
use crate::kernel::mapping::Mapping;
use crate::kernel::userfault::{UserEvent, UserFaults};
use crate::page::{PAGE_BYTES, PageRange};
use crate::pager::{FaultingThreads, Home, PagerCore};
use crate::report;

/// A region's memory, and the doorbell that ends its handler.
pub(crate) struct OwnMemory {
    /// Dropped before the memory, whose addresses another mapping may have then.
    pub(crate) site: FaultSite,
    pub(crate) memory: Mapping,
    doorbell: Mapping,
    /// Those that serve their own faults: then the kernel reports none, and nobody rings.
    threads: Option<Arc<FaultingThreads>>,
}

impl OwnMemory {
    /// Reserves and registers the memory.
    ///
    /// # Errors
    /// [`Error::System`], [`Error::Config`] when this process has too many regions.
    pub(crate) fn new(
        name: &str,
        bytes: usize,
        faults: &UserFaults,
        threads: Option<Arc<FaultingThreads>>,
    ) -> Result<OwnMemory, Error> {
        let memory = Mapping::reserve(bytes)?;
        let doorbell = Mapping::reserve(PAGE_BYTES)?;
        faults.register(memory.address(), memory.len() as u64, true)?;
        faults.register(doorbell.address(), doorbell.len() as u64, false)?;
        let site = FaultSite::new(memory.address(), memory.len() as u64, name)?;
        Ok(OwnMemory { site, memory, doorbell, threads })
    }

    /// Has the handler look whether the region ends. Returns when it has.
    pub(crate) fn ring(&self) {
        match &self.threads {
            Some(threads) => threads.close(),
            None => self.doorbell.touch(0),
        }
    }
}

impl Home for OwnMemory {
    fn address(&self) -> u64 {
        self.memory.address()
    }

    fn bytes(&self) -> u64 {
        self.memory.len() as u64
    }

    fn wait(&self, faults: &UserFaults, events: &mut Vec<UserEvent>) -> io::Result<bool> {
        match &self.threads {
            Some(threads) => Ok(threads.take(events)),
            None => faults.read(events).map(|()| true),
        }
    }

    fn is_doorbell(&self, address: u64) -> bool {
        address == self.doorbell.address()
    }

    /// Others ring too (`mlockall`, a reader of the whole process).
    fn answer_doorbell(&self, core: &PagerCore, _: u32) -> io::Result<bool> {
        let is_stopping = core.is_stopping();
        core.faults.zero(self.doorbell.address(), PAGE_BYTES as u64)?;
        if is_stopping {
            return Ok(false);
        }
        self.doorbell.unlock();
        self.doorbell.drop_range(0, PAGE_BYTES)?;
        // The thread that ends the region may have found the page before it was dropped.
        Ok(!core.is_stopping())
    }

    fn is_postponed(&self, _: u32) -> bool {
        false
    }

    fn forked(&self, _: &PagerCore, _: UserFaults) {
        unreachable!("no event but the page fault is asked for");
    }

    fn note_remote_access(&self, _: u32, _: u64) {}

    fn note_loss(&self, range: PageRange, node: &str) {
        self.site.note(range, node);
    }

    fn give_up_fork(&self, _: &PagerCore) {}

    fn end(&self, _: &UserFaults, text: &str) -> ! {
        report::end(&format!(
            "{text}, so this program ends. Was its memory unmapped, locked, or discarded with madvise?\n"
        ))
    }

    /// Others would wait for their pages for ever.
    fn thread_ended(&self, _: &PagerCore, outcome: thread::Result<()>) {
        if outcome.is_err() {
            report::end("farmem: a thread that serves page faults has panicked, so this program ends\n");
        }
    }
}
