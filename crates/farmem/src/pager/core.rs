//! What the threads of a region have in common.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::read_ahead::ReadAheadQueue;
use super::room::LastObstacle;
use crate::error::Error;
use crate::guard::FaultSite;
use crate::kernel::mapping::Mapping;
use crate::kernel::userfault::UserFaults;
use crate::page::{PAGE_BYTES, PageNumber, PageRange};
use crate::report;
use crate::store::PageStore;
use crate::table::RegionTable;

/// How long a thread waits before it looks again whether something has changed that nobody announces.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// A region's memory, table and store.
pub(crate) struct PagerCore {
    pub(crate) name: String,
    /// Dropped before the memory, whose addresses another mapping may have then.
    pub(crate) site: FaultSite,
    pub(crate) memory: Mapping,
    doorbell: Mapping,
    pub(crate) faults: UserFaults,
    pub(crate) store: Arc<dyn PageStore>,
    /// What the prefetcher has to do.
    pub(super) ahead: ReadAheadQueue,
    table: Mutex<RegionTable>,
    /// Pages were evicted.
    room: Condvar,
    /// Why there may be no room.
    pub(super) obstacle: LastObstacle,
    /// The evictor has something to do, or the region ends.
    work: Condvar,
    stopping: AtomicBool,
    /// A thread waits for the end of an eviction.
    pub(crate) has_waiting: AtomicBool,
}

impl PagerCore {
    pub(crate) fn new(name: String, table: RegionTable, pages: u32, store: Arc<dyn PageStore>) -> Result<Self, Error> {
        report::start()?;
        let faults = UserFaults::open()?;
        faults.check_moves()?;
        let memory = Mapping::reserve(pages as usize * PAGE_BYTES)?;
        let doorbell = Mapping::reserve(PAGE_BYTES)?;
        faults.register(&memory, true)?;
        faults.register(&doorbell, false)?;
        let site = FaultSite::new(memory.address(), memory.len() as u64, &name)?;
        Ok(PagerCore {
            name,
            memory,
            doorbell,
            faults,
            store,
            site,
            ahead: ReadAheadQueue::default(),
            table: Mutex::new(table),
            room: Condvar::new(),
            obstacle: LastObstacle::default(),
            work: Condvar::new(),
            stopping: AtomicBool::new(false),
            has_waiting: AtomicBool::new(false),
        })
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, RegionTable> {
        // A panic of a thread of the region ends the process (`or_end`), so nobody meets a table that is inconsistent.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address of a range's first byte.
    pub(crate) fn address(&self, range: PageRange) -> u64 {
        self.memory.address() + range.first.offset()
    }

    /// The page at an address, if it is one of the region.
    pub(crate) fn page_at(&self, address: u64) -> Option<PageNumber> {
        let offset = address.checked_sub(self.memory.address())?;
        (offset < self.memory.len() as u64).then_some(PageNumber((offset / PAGE_BYTES as u64) as u32))
    }

    /// Maps the bytes of pages that are filling, and wakes their threads.
    pub(super) fn map(&self, range: PageRange, bytes: &[u8], writable: bool) {
        assert_eq!(bytes.len(), range.bytes(), "a store returns the pages that it was asked for");
        self.or_end("cannot map a page", self.faults.copy(self.address(range), bytes, !writable));
        self.table().filled(range);
    }

    /// Leaves pages remote that were filling; their threads fault again.
    pub(super) fn give_up_filling(&self, range: PageRange) {
        self.table().not_filled(range);
        self.wake(range);
    }

    /// Has the threads that wait for these pages try again.
    pub(super) fn wake(&self, range: PageRange) {
        self.or_end("cannot wake a thread", self.faults.wake(self.address(range), range.bytes() as u64));
    }

    /// Has the evictor look whether pages should leave.
    pub(crate) fn ask_for_room(&self) {
        self.work.notify_one();
    }

    /// Waits until the evictor has made room, for a short time.
    pub(crate) fn wait_for_room(&self) {
        self.work.notify_one();
        let table = self.table();
        if table.free() == 0 {
            drop(self.room.wait_timeout(table, LOOK_AGAIN));
        }
    }

    /// Tells the handler that pages were evicted.
    pub(crate) fn announce_room(&self) {
        self.room.notify_all();
    }

    /// Waits until pages should leave; false when the region ends.
    pub(crate) fn wait_for_work(&self) -> bool {
        let mut table = self.table();
        while !self.is_stopping() {
            if table.wants_eviction() {
                return true;
            }
            table = self.work.wait(table).unwrap_or_else(PoisonError::into_inner);
        }
        false
    }

    /// Waits a little, because no page can leave now.
    pub(crate) fn wait_for_change(&self) {
        drop(self.work.wait_timeout(self.table(), LOOK_AGAIN));
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Whether a fault is the one that ends the handler.
    pub(crate) fn is_doorbell(&self, address: u64) -> bool {
        address == self.doorbell.address()
    }

    /// Lets the thread go on that rang. True if the region ends; others ring too (`mlockall`, a reader of the whole process).
    pub(crate) fn answer_doorbell(&self) -> io::Result<bool> {
        let is_stopping = self.is_stopping();
        self.faults.zero(self.doorbell.address(), PAGE_BYTES as u64)?;
        if is_stopping {
            return Ok(true);
        }
        self.doorbell.unlock();
        self.doorbell.drop_range(0, PAGE_BYTES)?;
        // The thread that ends the region may have found the page before it was dropped.
        Ok(self.is_stopping())
    }

    /// Ends the threads that were started, the handler first. Returns when the handler takes no more faults.
    pub(crate) fn stop(&self, threads: usize) {
        {
            let _table = self.table();
            self.stopping.store(true, Ordering::Release);
        }
        self.work.notify_all();
        self.room.notify_all();
        self.ahead.close();
        if threads > 0 {
            self.doorbell.touch(0);
        }
    }

    /// The value, or the end of the process: see [the module](super).
    pub(crate) fn or_end<T>(&self, doing: &str, outcome: io::Result<T>) -> T {
        outcome.unwrap_or_else(|error| {
            report::end(&format!(
                "farmem: the region {}: {doing}: {error}. Its page faults cannot be served any more, so this program ends. Was \
                 its memory unmapped, locked, or discarded with madvise?\n",
                self.name
            ))
        })
    }
}
