//! The functions of the library that concern the terms of calls.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::coherence::Coherence;
use super::failure::Failure;
use super::terms::{PushdownStatistics, PushdownTerms, milliseconds};

const OR_HERE: c_uint = 1 << 8;
const AGAIN: c_uint = 1 << 9;
/// The kind of an attempt to cancel a call whose function has begun.
pub(super) const DECLINED: c_int = 7;
/// Ranges of torn memory that are asked for at a time: the library lists no more.
const RANGES_MAX: usize = 1 << 16;

/// `struct heddle_pushdown_terms`.
#[repr(C)]
pub(super) struct LibraryTerms {
    size: usize,
    flags: c_uint,
    timeout_ms: c_uint,
    limit_ms: c_uint,
    ticket: *const AtomicU64,
}

impl LibraryTerms {
    /// The same terms. They are valid as long as the ticket is.
    pub(super) fn of(terms: &PushdownTerms<'_>, coherence: Coherence) -> LibraryTerms {
        let flag = |is_set: bool, flag: c_uint| if is_set { flag } else { 0 };
        LibraryTerms {
            size: size_of::<LibraryTerms>(),
            flags: coherence.flags() | flag(terms.or_here, OR_HERE) | flag(terms.again, AGAIN),
            timeout_ms: milliseconds(terms.timeout),
            limit_ms: milliseconds(terms.limit),
            ticket: terms.ticket.map_or(ptr::null(), |ticket| ticket.address()),
        }
    }
}

/// `struct heddle_pushdown_range`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct LibraryRange {
    start: *const c_void,
    bytes: usize,
}

/// `struct heddle_pushdown_statistics`.
#[repr(C)]
pub(super) struct LibraryStatistics {
    size: usize,
    /// Calls, those that returned, were signalled, killed, cancelled, busy, lost; attempts that were declined; nanoseconds in the queue.
    counts: [c_ulonglong; 9],
    open: c_uint,
    running: c_uint,
}

const _: () =
    assert!(size_of::<LibraryTerms>() == 32 && size_of::<LibraryRange>() == 16 && size_of::<LibraryStatistics>() == 88);

pub(super) type PushdownWith =
    unsafe extern "C" fn(Option<extern "C" fn(*mut c_void)>, *mut c_void, *const LibraryTerms, *mut Failure) -> c_int;
pub(super) type TryCancel = unsafe extern "C" fn(*const AtomicU64) -> c_int;
pub(super) type Torn = unsafe extern "C" fn(*mut LibraryRange, usize) -> usize;
pub(super) type Statistics = unsafe extern "C" fn(*mut LibraryStatistics) -> c_int;

/// The memory that this thread's last killed call may have left torn. It was killed just now, so the library knows.
pub(super) fn torn_ranges(torn: Torn) -> Vec<Range<usize>> {
    // SAFETY: no range is written.
    let count = unsafe { torn(ptr::null_mut(), 0) }.min(RANGES_MAX);
    let mut ranges = vec![LibraryRange { start: ptr::null(), bytes: 0 }; count];
    // SAFETY: there is room for this number of ranges.
    let count = unsafe { torn(ranges.as_mut_ptr(), count) }.min(count);
    ranges.iter().take(count).map(|range| range.start.addr()..range.start.addr().saturating_add(range.bytes)).collect()
}

/// What the library has counted; `None` if it refuses.
pub(super) fn statistics(function: Statistics) -> Option<PushdownStatistics> {
    let size = size_of::<LibraryStatistics>();
    let mut counted = LibraryStatistics { size, counts: [0; 9], open: 0, running: 0 };
    // SAFETY: the structure's size is in it.
    let kind = unsafe { function(&raw mut counted) };
    let LibraryStatistics { counts, open, running, .. } = counted;
    let [calls, returned, signalled, killed, cancelled, busy, lost, declined, queued_ns] = counts;
    let queued = Duration::from_nanos(queued_ns);
    (kind == 0).then_some(PushdownStatistics {
        calls,
        returned,
        signalled,
        killed,
        cancelled,
        busy,
        lost,
        declined,
        queued,
        open,
        running,
    })
}
