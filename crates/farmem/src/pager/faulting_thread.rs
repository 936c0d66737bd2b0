//! Faults that the faulting thread serves itself.
//!
//! The kernel reports no fault. An access to an absent page, or a write to a protected one, is a SIGBUS of the thread,
//! whose handler ([`guard`](crate::guard)) calls [`FaultingThreads::serve`]. Nobody has to be woken, which is most of what a
//! fault costs otherwise.
//!
//! 1. The thread notes how many changes there were so far, and asks the page table what to do.
//! 2. It executes the plan. A page is read from the store, which has to answer at once ([`PATIENCE`]), and mapped.
//! 3. For a page in flight it waits for the next change.
//! 4. What it cannot do, for want of room or because the store takes longer or fails, it undoes and hands over to the
//!    region's handler, which serves it like any fault. The thread waits for the next change.
//! 5. It returns from the signal, and the access is repeated. If the page is not there yet, all of this is too.
//!
//! A *change* is anything that a thread may wait for: pages were filled, given up or evicted, or the handler has served a
//! fault. It is announced after it was made, and a thread counts before it looks: so none sleeps past a change.
//!
//! The thread may be anywhere in the program, with any lock of it. So it takes only locks that are never held over an access
//! to far memory: those of the pager, the store and the memory allocator. The stack is the thread's own.

use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use base::BytesMut;
use base::rt;
use base::rt::production::RuntimeHandle;

use super::core::PagerCore;
use super::read_ahead::ReadAheadRequest;
use crate::kernel::userfault::{PageFault, UserEvent};
use crate::page::{PAGE_BYTES, PageNumber, PageRange};
use crate::store::StoreError;
use crate::table::{FaultPlan, PageAccess};

/// How long a thread polls the store for a page: about as long as it takes to be woken.
const PATIENCE: Duration = Duration::from_micros(50);
/// Fills that are handed over after one for which the store took longer.
const FILLS_HANDED_OVER: u32 = 64;

/// What faulting threads and the handler share.
#[derive(Default)]
pub(crate) struct FaultingThreads {
    shared: Mutex<SharedFaults>,
    /// A fault was handed over, or the region ends.
    handed_over: Condvar,
    changed: Condvar,
    /// Timers for the store's futures.
    runtime: OnceLock<RuntimeHandle>,
    /// Fills to hand over without asking the store.
    is_slow: AtomicU32,
}

#[derive(Default)]
struct SharedFaults {
    /// Each is of another thread, which waits.
    faults: Vec<UserEvent>,
    changes: u64,
    is_closed: bool,
}

impl FaultingThreads {
    fn shared(&self) -> MutexGuard<'_, SharedFaults> {
        // Consistent between any two statements.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The runtime of the handler.
    pub(super) fn set_runtime(&self, runtime: RuntimeHandle) {
        let _ = self.runtime.set(runtime);
    }

    /// Waits for faults that were handed over, and appends them. False when the region ends.
    pub(crate) fn take(&self, events: &mut Vec<UserEvent>) -> bool {
        let mut shared = self.shared();
        while shared.faults.is_empty() && !shared.is_closed {
            shared = self.handed_over.wait(shared).unwrap_or_else(PoisonError::into_inner);
        }
        events.append(&mut shared.faults);
        !shared.is_closed
    }

    /// Ends the handler. Nobody touches the region any more.
    pub(crate) fn close(&self) {
        self.shared().is_closed = true;
        self.handed_over.notify_all();
    }

    /// Has waiting threads try again.
    pub(super) fn announce(&self) {
        self.shared().changes += 1;
        self.changed.notify_all();
    }

    fn wait(&self, seen: u64) {
        let mut shared = self.shared();
        while shared.changes == seen {
            shared = self.changed.wait(shared).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn hand_over(&self, fault: PageFault, seen: u64) {
        self.shared().faults.push(UserEvent::Fault(fault));
        self.handed_over.notify_one();
        self.wait(seen);
    }

    /// Serves a fault of the calling thread, or waits until it is worth another try. False if the page is lost.
    pub(crate) fn serve(&self, core: &PagerCore, address: u64, is_write: bool) -> bool {
        let Some(page) = core.page_at(address) else { return false };
        let fault = PageFault { address, is_write, thread: 0 };
        let access = if is_write { PageAccess::Write } else { PageAccess::Read };
        let seen = self.shared().changes;
        let plan = {
            let mut table = core.table();
            let plan = table.fault(page, access);
            if plan == FaultPlan::Wait {
                core.has_waiting.store(true, Ordering::Relaxed);
            }
            plan
        };
        let address = core.address(PageRange::of(page));
        match plan {
            FaultPlan::Wake => {}
            FaultPlan::Unprotect => {
                core.or_end("cannot make a page writable", core.faults.unprotect(address, PAGE_BYTES as u64));
            }
            FaultPlan::Zero(range) => core.map_zeros(range),
            FaultPlan::Fill { writable, ahead } => {
                if !self.fill(core, page, writable, ahead) {
                    self.hand_over(fault, seen);
                }
            }
            FaultPlan::Wait => self.wait(seen),
            FaultPlan::NoRoom => self.hand_over(fault, seen),
            FaultPlan::Lost => return false,
        }
        if core.table().wants_eviction() {
            core.ask_for_room();
        }
        true
    }

    /// Fills a page; false if the store does not answer at once, or fails: then nothing has happened.
    fn fill(&self, core: &PagerCore, page: PageNumber, writable: bool, ahead: Vec<PageRange>) -> bool {
        let range = PageRange::of(page);
        let read = self.read_at_once(core, range);
        let is_filled = read.is_some();
        match read {
            Some(bytes) => core.map(range, &bytes, writable),
            None => core.give_up_filling(range),
        }
        if !ahead.is_empty() {
            let request = ReadAheadRequest { ranges: ahead, writable };
            let refused = if is_filled { core.ahead.push(request).err() } else { Some(request) };
            refused.iter().flat_map(|request| &request.ranges).for_each(|range| core.give_up_filling(*range));
        }
        is_filled
    }

    fn read_at_once(&self, core: &PagerCore, range: PageRange) -> Option<BytesMut> {
        let is_slow = self.is_slow.load(Ordering::Relaxed);
        if is_slow > 0 {
            self.is_slow.store(is_slow - 1, Ordering::Relaxed);
            return None;
        }
        let outcome = self.poll(core, range);
        if outcome.is_none() {
            self.is_slow.store(FILLS_HANDED_OVER, Ordering::Relaxed);
        }
        // The handler finds out what a failure means, and reports it.
        outcome.and_then(Result::ok)
    }

    fn poll(&self, core: &PagerCore, range: PageRange) -> Option<Result<BytesMut, StoreError>> {
        let _runtime = self.runtime.get()?.enter();
        let mut read = pin!(core.store.read(range, BytesMut::with_capacity(range.bytes())));
        let mut begun = None;
        loop {
            if let Poll::Ready(outcome) = read.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return Some(outcome);
            }
            if begun.get_or_insert_with(rt::now).elapsed() >= PATIENCE {
                return None;
            }
            std::hint::spin_loop();
        }
    }
}
