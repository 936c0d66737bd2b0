//! On what terms closures are pushed down, and what is counted of calls.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The terms of a call. Times are taken as whole milliseconds, and at least one.
#[derive(Clone, Copy, Debug, Default)]
pub struct PushdownTerms<'a> {
    /// After which time the call is cancelled. If the closure has not begun then, it is removed from the executor's queue. If it has, the
    /// call goes on.
    pub timeout: Option<Duration>,
    /// How long the closure may run; `None`: the limit of the options.
    pub limit: Option<Duration>,
    /// Whether the closure is pushed down again if its call was cancelled or is busy: up to ten times in all, with pauses of 1 to 64 ms,
    /// each time with the whole time-out.
    pub again: bool,
    /// Whether the closure runs here, on this thread, if it has not run in the executor.
    pub or_here: bool,
    /// By which another thread can cancel the call.
    pub ticket: Option<&'a PushdownTicket>,
}

/// Names a call of another thread, so that it can be cancelled. It is that of the call that was made with it last.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct PushdownTicket {
    number: AtomicU64,
}

impl PushdownTicket {
    /// A ticket of no call.
    pub fn new() -> PushdownTicket {
        PushdownTicket::default()
    }

    /// Whether a call has been made with it.
    pub fn is_used(&self) -> bool {
        self.number.load(Ordering::Acquire) != 0
    }

    pub(super) fn address(&self) -> *const AtomicU64 {
        &raw const self.number
    }
}

/// What was counted since the executor was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PushdownStatistics {
    /// Calls that were made; each push counts.
    pub calls: u64,
    /// Of these, those whose closure returned or panicked.
    pub returned: u64,
    /// Those that a signal ended.
    pub signalled: u64,
    /// Those that a limit ended.
    pub killed: u64,
    /// Those that were cancelled.
    pub cancelled: u64,
    /// Those that found too many others waiting.
    pub busy: u64,
    /// Those whose executor was lost.
    pub lost: u64,
    /// Attempts to cancel a call that ran, or had ended.
    pub declined: u64,
    /// How long calls have waited for their turn, all together.
    pub queued: Duration,
    /// Calls that have not ended.
    pub open: u32,
    /// Closures that run.
    pub running: u32,
}

/// As the library has it, in milliseconds; 0 is no time at all.
pub(super) fn milliseconds(time: Option<Duration>) -> u32 {
    time.map_or(0, |time| u32::try_from(time.as_millis().max(1)).unwrap_or(u32::MAX))
}
