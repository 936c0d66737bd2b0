//! Faults that the faulting thread serves itself.
//!
//! The kernel reports no fault. An access to an absent page, or a write to a protected one, is a SIGBUS of the thread,
//! whose handler ([`guard`](crate::guard)) calls [`serve`]. Nobody has to be woken, which is most of what a
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
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use base::BytesMut;
use base::rt;

use super::core::PagerCore;
use super::faulting_threads::FaultingThreads;
use super::read_ahead::ReadAheadRequest;
use crate::kernel::userfault::PageFault;
use crate::page::{PAGE_BYTES, PageNumber, PageRange};
use crate::store::StoreError;
use crate::table::{FaultPlan, PageAccess};

/// How long a thread polls the store for a page: about as long as it takes to be woken.
const PATIENCE: Duration = Duration::from_micros(50);
/// Fills that are handed over after one for which the store took longer.
const FILLS_HANDED_OVER: u32 = 64;

/// Serves a fault of the calling thread, or waits until it is worth another try. False if the page is lost.
pub(crate) fn serve(threads: &FaultingThreads, core: &PagerCore, address: u64, is_write: bool) -> bool {
    let Some(page) = core.page_at(address) else { return false };
    let fault = PageFault { address, is_write, thread: 0 };
    let access = if is_write { PageAccess::Write } else { PageAccess::Read };
    let seen = threads.changes();
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
            // Not before it was given up: that is a change.
            if !fill(threads, core, page, writable, ahead) {
                threads.hand_over(fault);
            }
        }
        FaultPlan::Wait => threads.wait(seen),
        FaultPlan::NoRoom => threads.hand_over(fault),
        FaultPlan::Lost => return false,
    }
    if core.table().wants_eviction() {
        core.ask_for_room();
    }
    true
}

/// Fills a page; false if the store does not answer at once, or fails: then nothing has happened.
fn fill(threads: &FaultingThreads, core: &PagerCore, page: PageNumber, writable: bool, ahead: Vec<PageRange>) -> bool {
    let range = PageRange::of(page);
    let read = read_at_once(threads, core, range);
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

fn read_at_once(threads: &FaultingThreads, core: &PagerCore, range: PageRange) -> Option<BytesMut> {
    let is_slow = threads.is_slow.load(Ordering::Relaxed);
    if is_slow > 0 {
        threads.is_slow.store(is_slow - 1, Ordering::Relaxed);
        return None;
    }
    let outcome = poll(threads, core, range);
    if outcome.is_none() {
        threads.is_slow.store(FILLS_HANDED_OVER, Ordering::Relaxed);
    }
    // The handler finds out what a failure means, and reports it.
    outcome.and_then(Result::ok)
}

fn poll(threads: &FaultingThreads, core: &PagerCore, range: PageRange) -> Option<Result<BytesMut, StoreError>> {
    let _runtime = threads.runtime.get()?.enter();
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
