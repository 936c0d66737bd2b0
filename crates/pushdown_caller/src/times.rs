//! How long the parts of a thread's last call took (TELEPORT, section 7.5).
//!
//! Both sides read the processors' clock, which they have in common, at each boundary between two parts. The executor's readings come with the
//! message that its function has ended. How fast the clock runs is measured once.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use pushdown::{Stamps, cycles};

use crate::outcome::CallStamps;

thread_local! {
    /// When this thread's last call began and ended, and what happened in between; `None` if its function has not run.
    static LAST: Cell<Option<(u64, CallStamps, u64)>> = const { Cell::new(None) };
}

/// How many cycles the clock makes in 2^32 ns.
static RATE: AtomicU64 = AtomicU64::new(0);

/// `struct heddle_pushdown_times`, which has the members' meanings.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Times {
    pub(crate) size: usize,
    before_ns: u64,
    request_ns: u64,
    set_up_ns: u64,
    run_ns: u64,
    online_sync_ns: u64,
    response_ns: u64,
    after_ns: u64,
}

/// Sets the rate of the clock.
pub(crate) fn set_rate(cycles_per_nanosecond: f64) {
    RATE.store((cycles_per_nanosecond * (1_u64 << 32) as f64) as u64, Ordering::Relaxed);
}

/// How long a number of cycles takes. Zero before the clock was measured.
pub(crate) fn nanoseconds(cycles: u64) -> u64 {
    let rate = RATE.load(Ordering::Relaxed);
    let nanoseconds = ((u128::from(cycles) << 32) + u128::from(rate / 2)).checked_div(rate.into()).unwrap_or(0);
    u64::try_from(nanoseconds).unwrap_or(u64::MAX)
}

/// What an executor on another host has measured, by this host's clock, which says when its message came. The hosts' clocks begin at different
/// times, and are taken to run equally fast; the way of the message counts as part of the request.
pub(crate) fn stamps_from_elsewhere(stamps: Stamps, now: u64) -> Stamps {
    let Stamps { handled, begun, returned, waited } = stamps;
    let here = now.saturating_sub(returned.saturating_sub(begun));
    Stamps { handled: here.saturating_sub(begun.saturating_sub(handled)), begun: here, returned: now, waited }
}

/// This thread's call ends now.
pub(crate) fn keep_times(entered: u64, stamps: CallStamps) {
    let has_run = stamps.executor != Stamps::default();
    LAST.set(has_run.then(|| (entered, stamps, cycles())));
}

/// The parts of this thread's last call; `None` if it made none, or its function has not run to an end that the executor reported.
pub(crate) fn last_times() -> Option<Times> {
    let (entered, CallStamps { sent, executor, noticed }, left) = LAST.get()?;
    let Stamps { handled, begun, returned, waited } = executor;
    // The clocks of two processors may differ by some cycles.
    let between = |from: u64, to: u64| nanoseconds(to.saturating_sub(from));
    Some(Times {
        size: size_of::<Times>(),
        before_ns: between(entered, sent),
        request_ns: between(sent, handled),
        set_up_ns: between(handled, begun),
        run_ns: between(begun, returned),
        online_sync_ns: nanoseconds(waited),
        response_ns: between(returned, noticed),
        after_ns: between(noticed, left),
    })
}

const _: () = assert!(size_of::<Times>() == 64, "as the header says");
