//! What is measured of calls: how long their parts took, and how many messages were sent for them.

use std::ffi::{c_int, c_ulonglong};
use std::time::Duration;

/// How long the parts of a call took (TELEPORT, section 7.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CallTimes {
    /// From the beginning of the call until its message was sent.
    pub before: Duration,
    /// From there until the executor handled the message.
    pub request: Duration,
    /// From there until the closure began; it may have waited for its turn.
    pub set_up: Duration,
    /// From there until the closure had ended.
    pub run: Duration,
    /// For how long of [`run`](CallTimes::run) the closure waited for pages and mappings.
    pub online_sync: Duration,
    /// From the closure's end until the calling thread noticed it.
    pub response: Duration,
    /// From there until the end of the call.
    pub after: Duration,
}

/// `struct heddle_pushdown_counts`.
#[repr(C)]
pub(super) struct LibraryCounts {
    size: usize,
    sent: c_ulonglong,
    received: c_ulonglong,
}

/// `struct heddle_pushdown_times`.
#[repr(C)]
pub(super) struct LibraryTimes {
    size: usize,
    /// Nanoseconds of the parts, in the order of [`CallTimes`].
    parts: [c_ulonglong; 7],
}

const _: () = assert!(size_of::<LibraryCounts>() == 24 && size_of::<LibraryTimes>() == 64);

pub(super) type Counts = unsafe extern "C" fn(*mut LibraryCounts) -> c_int;
pub(super) type Times = unsafe extern "C" fn(*mut LibraryTimes) -> c_int;
pub(super) type LinkLatency = unsafe extern "C" fn() -> c_ulonglong;

/// Messages in both directions; `None` if the library refuses.
#[allow(unsafe_code)]
pub(super) fn messages(function: Counts) -> Option<u64> {
    let mut counts = LibraryCounts { size: size_of::<LibraryCounts>(), sent: 0, received: 0 };
    // SAFETY: the structure's size is in it.
    let kind = unsafe { function(&raw mut counts) };
    (kind == 0).then(|| counts.sent.saturating_add(counts.received))
}

/// The parts of this thread's last call; `None` if the library refuses.
#[allow(unsafe_code)]
pub(super) fn times(function: Times) -> Option<CallTimes> {
    let mut times = LibraryTimes { size: size_of::<LibraryTimes>(), parts: [0; 7] };
    // SAFETY: the structure's size is in it.
    let kind = unsafe { function(&raw mut times) };
    let [before, request, set_up, run, online_sync, response, after] = times.parts.map(Duration::from_nanos);
    (kind == 0).then_some(CallTimes { before, request, set_up, run, online_sync, response, after })
}
