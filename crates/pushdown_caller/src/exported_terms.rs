//! The interface for C, as far as it concerns the terms of calls: `include/heddle_pushdown.h`.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::num::NonZeroU32;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use bare::PAGE_BYTES;

use crate::call::{is_in_call, last_killed, push_down_with};
use crate::cancel::{CancelOutcome, close_ticket, open_ticket, torn_pages, try_cancel};
use crate::failure::{DECLINED, Failure, LOST, OK, REFUSED, tell};
use crate::outcome::Outcome;
use crate::statistics::{Statistics, statistics};
use crate::synchronise::mode_of;
use crate::terms::Terms;
use crate::wait::is_open;

/// Flags of `struct heddle_pushdown_terms`.
const OR_HERE: u32 = 1 << 8;
const AGAIN: u32 = 1 << 9;
/// The pages of the thread's last killed call are not remembered.
const TORN_UNKNOWN: usize = usize::MAX;

/// The limit of functions whose terms have none, in milliseconds; 0 is none.
static LIMIT_MS: AtomicU32 = AtomicU32::new(0);

/// `struct heddle_pushdown_terms`.
#[repr(C)]
pub struct CallTerms {
    size: usize,
    flags: u32,
    timeout_ms: u32,
    limit_ms: u32,
    ticket: *mut AtomicU64,
}

/// `struct heddle_pushdown_range`.
#[repr(C)]
pub struct MemoryRange {
    start: *mut c_void,
    bytes: usize,
}

/// The limit, in milliseconds, of functions whose terms have none; 0: they may run for ever.
pub(crate) fn set_limit(milliseconds: u32) {
    LIMIT_MS.store(milliseconds, Ordering::Relaxed);
}

/// The terms of `heddle_pushdown()`.
pub(crate) fn usual_terms() -> Terms {
    if is_in_call() {
        // This variable is out of reach, and the call will be refused.
        return Terms::default();
    }
    Terms { limit: NonZeroU32::new(LIMIT_MS.load(Ordering::Relaxed)), ..Terms::default() }
}

/// `heddle_pushdown_with`.
///
/// # Safety
/// The function takes the argument, and may be run on this thread. The terms are null, or a structure whose size is in it, with a ticket that is null or
/// can be written; the failure is null, or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_pushdown_with(
    function: Option<extern "C" fn(*mut c_void)>,
    argument: *mut c_void,
    terms: *const CallTerms,
    failure: *mut Failure,
) -> i32 {
    let mut wanted = usual_terms();
    let (mut flags, mut ticket) = (0, ptr::null_mut());
    // SAFETY: as the caller answers for.
    if let Some(terms) = unsafe { terms.as_ref() } {
        if terms.size < size_of::<CallTerms>() {
            // SAFETY: as the caller answers for.
            return unsafe { tell(None, failure) };
        }
        wanted.timeout = (terms.timeout_ms > 0).then(|| Duration::from_millis(terms.timeout_ms.into()));
        wanted.limit = NonZeroU32::new(terms.limit_ms).or(wanted.limit);
        (flags, ticket) = (terms.flags, terms.ticket);
    }
    let mode = mode_of(flags & !(OR_HERE | AGAIN)).filter(|_| !is_in_call() && is_open());
    let Some(mode) = mode else {
        // SAFETY: as the caller answers for.
        return unsafe { tell(None, failure) };
    };
    wanted.mode = mode;
    wanted.again = flags & AGAIN != 0;
    // SAFETY: as the caller answers for.
    if let Some(ticket) = unsafe { ticket.as_ref() } {
        wanted.ticket = open_ticket();
        ticket.store(wanted.ticket.unwrap_or(0), Ordering::Release);
    }
    let address = function.map_or(0, |function| function as usize as u64);
    let outcome = push_down_with(address, argument as u64, &wanted);
    if let Some(ticket) = wanted.ticket {
        close_ticket(ticket);
    }
    if let Some(function) = function.filter(|_| flags & OR_HERE != 0)
        && outcome.is_some_and(Outcome::has_not_run)
    {
        function(argument);
        // SAFETY: as the caller answers for.
        return unsafe { tell(Some(Outcome::Ended(pushdown::Ended::default())), failure) };
    }
    // SAFETY: as the caller answers for.
    unsafe { tell(outcome, failure) }
}

/// `heddle_try_cancel`.
///
/// # Safety
/// The ticket is null, or can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_try_cancel(ticket: *const AtomicU64) -> i32 {
    // SAFETY: as the caller answers for.
    let Some(ticket) = (unsafe { ticket.as_ref() }) else { return REFUSED };
    if is_in_call() || !is_open() {
        return REFUSED;
    }
    match try_cancel(ticket.load(Ordering::Acquire)) {
        CancelOutcome::Removed => OK,
        CancelOutcome::Declined => DECLINED,
        CancelOutcome::Lost => LOST,
        CancelOutcome::Unknown => REFUSED,
    }
}

/// `heddle_pushdown_torn`.
///
/// # Safety
/// So many ranges can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_pushdown_torn(ranges: *mut MemoryRange, count: usize) -> usize {
    let Some(call) = last_killed().filter(|_| !is_in_call() && is_open()) else { return 0 };
    let Some(pages) = torn_pages(call) else { return TORN_UNKNOWN };
    let places = (0..count).map(|at| ranges.wrapping_add(at));
    for (pages, place) in pages.iter().zip(places) {
        let start = (pages.start as usize * PAGE_BYTES) as *mut c_void;
        let bytes = (pages.end - pages.start) as usize * PAGE_BYTES;
        // SAFETY: as the caller answers for.
        unsafe { place.write(MemoryRange { start, bytes }) };
    }
    pages.len()
}

/// `heddle_pushdown_statistics`.
///
/// # Safety
/// The structure's size is in it, and its bytes can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_pushdown_statistics(target: *mut Statistics) -> i32 {
    if target.is_null() || is_in_call() || !is_open() {
        return REFUSED;
    }
    // SAFETY: as the caller answers for.
    let bytes = unsafe { (*target).size };
    match statistics() {
        Some(mut statistics) if bytes >= size_of::<Statistics>() => {
            statistics.size = bytes;
            // SAFETY: as the caller answers for.
            unsafe { target.write(statistics) };
            OK
        }
        _ => REFUSED,
    }
}

const _: () = assert!(size_of::<CallTerms>() == 32 && size_of::<MemoryRange>() == 16, "as the header says");
