//! What the threads of a region have in common.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{io, thread};

use super::faulting_threads::FaultingThreads;
use super::read_ahead::ReadAheadQueue;
use super::room::LastObstacle;
use crate::kernel::userfault::{UserEvent, UserFaults};
use crate::page::{PAGE_BYTES, PageNumber, PageRange};
use crate::store::PageStore;
use crate::table::RegionTable;

/// How long a thread waits before it looks again whether something has changed that nobody announces.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// A region's memory, table and store.
pub(crate) struct PagerCore {
    pub(crate) name: String,
    /// Dropped before the memory: then no fault is reported any more, and nobody waits for one.
    pub(crate) faults: UserFaults,
    pub(crate) home: Arc<dyn Home>,
    pub(crate) store: Arc<dyn PageStore>,
    /// The threads that serve their own faults, if they do.
    pub(crate) threads: Option<Arc<FaultingThreads>>,
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
    pub(crate) fn new(
        name: String,
        table: RegionTable,
        faults: UserFaults,
        home: Arc<dyn Home>,
        store: Arc<dyn PageStore>,
        threads: Option<Arc<FaultingThreads>>,
    ) -> PagerCore {
        PagerCore {
            name,
            faults,
            home,
            store,
            threads,
            ahead: ReadAheadQueue::default(),
            table: Mutex::new(table),
            room: Condvar::new(),
            obstacle: LastObstacle::default(),
            work: Condvar::new(),
            stopping: AtomicBool::new(false),
            has_waiting: AtomicBool::new(false),
        }
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, RegionTable> {
        // A panic of a thread of the region ends the process (`or_end`), so nobody meets a table that is inconsistent.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address of a range's first byte.
    pub(crate) fn address(&self, range: PageRange) -> u64 {
        self.home.address() + range.first.offset()
    }

    /// The page at an address, if it is one of the region.
    pub(crate) fn page_at(&self, address: u64) -> Option<PageNumber> {
        let offset = address.checked_sub(self.home.address())?;
        (offset < self.home.bytes()).then_some(PageNumber((offset / PAGE_BYTES as u64) as u32))
    }

    /// Maps the bytes of pages that are filling, and wakes their threads.
    pub(super) fn map(&self, range: PageRange, bytes: &[u8], writable: bool) {
        assert_eq!(bytes.len(), range.bytes(), "a store returns the pages that it was asked for");
        self.or_end("cannot map a page", self.faults.copy(self.address(range), bytes, !writable));
        self.table().filled(range);
        self.announce();
    }

    /// Maps zeros at pages that are filling, and wakes their threads.
    pub(super) fn map_zeros(&self, range: PageRange) {
        self.or_end("cannot map zeros", self.faults.zero(self.address(range), range.bytes() as u64));
        self.table().filled(range);
        self.announce();
    }

    /// Leaves pages remote that were filling; their threads fault again.
    pub(super) fn give_up_filling(&self, range: PageRange) {
        self.table().not_filled(range);
        self.wake(range);
    }

    /// Has the threads that wait for these pages try again.
    pub(crate) fn wake(&self, range: PageRange) {
        match &self.threads {
            Some(threads) => threads.announce(),
            None => self.or_end("cannot wake a thread", self.faults.wake(self.address(range), range.bytes() as u64)),
        }
    }

    /// Has threads that serve their own faults look whether they wait any longer. The kernel has woken all others.
    pub(super) fn announce(&self) {
        if let Some(threads) = &self.threads {
            threads.announce();
        }
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

    /// Ends the threads of the region that wait for one another. Its handler waits for faults.
    pub(crate) fn stop(&self) {
        {
            let _table = self.table();
            self.stopping.store(true, Ordering::Release);
        }
        self.work.notify_all();
        self.room.notify_all();
        self.ahead.close();
    }

    /// The value, or the end of the process: see [the module](super).
    pub(crate) fn or_end<T>(&self, doing: &str, outcome: io::Result<T>) -> T {
        outcome.unwrap_or_else(|error| {
            let name = &self.name;
            let text =
                format!("farmem: the region {name}: {doing}: {error}. Its page faults cannot be served any more");
            self.home.end(&self.faults, &text)
        })
    }
}

/// The process whose addresses a region has: this one ([`Region`](crate::Region)), or a program that this one serves
/// ([`program`](crate::program)).
pub(crate) trait Home: Send + Sync {
    /// The region's first address.
    fn address(&self) -> u64;

    /// How many bytes the region has.
    fn bytes(&self) -> u64;

    /// Waits for events, and appends them. False when the process has ended.
    ///
    /// # Errors
    /// Of the operating system.
    fn wait(&self, faults: &UserFaults, events: &mut Vec<UserEvent>) -> io::Result<bool>;

    /// Whether an address is the doorbell's: a page outside of the region whose fault means something else.
    fn is_doorbell(&self, address: u64) -> bool;

    /// Does what the thread that rang wants, and lets it go on. False when the region ends.
    ///
    /// # Errors
    /// Of the operating system.
    fn answer_doorbell(&self, core: &PagerCore, thread: u32) -> io::Result<bool>;

    /// Whether the fault of a thread has to wait, because another thread forks.
    fn is_postponed(&self, thread: u32) -> bool;

    /// The process has forked; the userfaultfd is that of the child.
    fn forked(&self, core: &PagerCore, child: UserFaults);

    /// A thread needs a page from the store, and waits at least until this has returned. `pages_ahead` more were asked for.
    fn note_remote_access(&self, thread: u32, pages_ahead: u64);

    /// Notes lost pages, before they are poisoned.
    fn note_loss(&self, range: PageRange, node: &str);

    /// Ends the fork that was begun, if there is one: the table is frozen no more.
    fn give_up_fork(&self, core: &PagerCore);

    /// Ends the process, whose faults cannot be served, and the calling thread. `text` says why.
    fn end(&self, faults: &UserFaults, text: &str) -> !;

    /// A thread of the region has ended, or has panicked.
    fn thread_ended(&self, core: &PagerCore, outcome: thread::Result<()>);
}
