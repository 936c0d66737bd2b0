//! How long functions may run (section 3.2: one that runs for too long is ended, so that others are not blocked).
//!
//! 1. A thread that begins a function with a limit notes when its time is over, and sets the alarm if nobody has set it to an earlier time.
//! 2. The alarm wakes the service thread. It marks the function as over, sends its thread a signal, and wakes those that wait for a message.
//! 3. A function that computes is ended by the signal's handler. One that waits in a handler, where signals are blocked, sees the mark
//!    and ends there.
//! 4. The signal may find the thread within this program: before its function, behind it, or under the lock. It is ignored there, and
//!    sent again after a while.
//!
//! So a function ends between two of its own instructions, never while its thread has the lock. What it has written is charged to it, and
//! what other functions could write meanwhile too.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bare::alarm::{Alarm, now};
use bare::system_call::{Errno, system_call};
use page_coherence::{CallId, PageNumber, Right, RunMap};
use pushdown::{Area, CONTEXTS_MAX, CallEnd, EXITS, Ended};

use crate::context::Context;

/// The signal. No other process can send it: the handler looks at where it comes from.
pub(crate) const LIMIT_SIGNAL: i32 = libc::SIGXCPU;
/// When a signal that found its thread within this program is sent again.
const AGAIN: Duration = Duration::from_millis(10);

/// The call of each context whose time is over; 0 if there is none. Handlers look here.
static OVER: [AtomicU64; CONTEXTS_MAX as usize] = [const { AtomicU64::new(0) }; CONTEXTS_MAX as usize];

/// Whether the time of the function that runs in a context is over.
pub(crate) fn is_over(context: &Context) -> bool {
    let over = OVER.get(context.number as usize);
    over.is_some_and(|over| over.load(Ordering::SeqCst) == context.call.0 && context.call.0 != 0)
}

/// A function that runs.
#[derive(Clone, Copy)]
struct Running {
    call: CallId,
    /// The kernel's number of its thread.
    thread: u32,
    /// When its time is over.
    end: Option<Duration>,
}

/// What runs, what waits, and for how long.
pub(crate) struct Limits {
    alarm: Alarm,
    /// To when the alarm is set.
    alarm_at: Option<Duration>,
    /// The number of this process.
    process: u32,
    running: [Option<Running>; CONTEXTS_MAX as usize],
    /// When the calls came that wait for their turn.
    queued: BTreeMap<CallId, Duration>,
    /// Pages that functions could write when this context began, and cannot any more: the coherence protocol does not know that they
    /// were written.
    written: RunMap<()>,
    area: Area,
}

impl Limits {
    pub(crate) fn new(area: Area, alarm: Alarm, process: u32) -> Limits {
        Limits {
            alarm,
            alarm_at: None,
            process,
            running: [None; CONTEXTS_MAX as usize],
            queued: BTreeMap::new(),
            written: RunMap::default(),
            area,
        }
    }

    /// What wakes the service thread.
    pub(crate) fn alarm(&self) -> Alarm {
        self.alarm
    }

    /// Wakes the service thread at this time, if nothing wakes it earlier.
    pub(crate) fn wake_at(&mut self, at: Duration) {
        if self.alarm_at.is_none_or(|set| at < set) {
            self.set_alarm(Some(at));
        }
    }

    fn set_alarm(&mut self, at: Option<Duration>) {
        self.alarm_at = at;
        // The descriptor is open as long as this process lives.
        let _ = self.alarm.set(at);
    }

    /// A call waits for its turn.
    pub(crate) fn queue(&mut self, call: CallId) {
        self.queued.insert(call, now());
        self.area.set_waiting(self.queued.len() as u32);
    }

    /// A call does not wait any more: its turn has come, or it was cancelled.
    pub(crate) fn leave_queue(&mut self, call: CallId) {
        if let Some(since) = self.queued.remove(&call) {
            self.area.add_queued(now().saturating_sub(since));
            self.area.set_waiting(self.queued.len() as u32);
        }
    }

    /// A thread begins the function of a call.
    pub(crate) fn begin(&mut self, context: u32, thread: u32, call: CallId, limit: Option<NonZeroU32>) {
        self.leave_queue(call);
        self.area.count_begin();
        let end = limit.map(|limit| now().saturating_add(Duration::from_millis(limit.get().into())));
        if let Some(running) = self.running.get_mut(context as usize) {
            *running = Some(Running { call, thread, end });
        }
        self.count();
        if let Some(end) = end {
            self.wake_at(end);
        }
    }

    /// A call has ended whose function has not run.
    pub(crate) fn end_unrun(&mut self, call: CallId, end: CallEnd) {
        self.leave_queue(call);
        self.area.count_end(end);
    }

    /// The function of a context has ended, perhaps because its time was over.
    pub(crate) fn end(&mut self, context: u32, ended: &Ended, is_killed: bool) {
        self.area.count_end(match ended.signal {
            _ if is_killed => CallEnd::Killed,
            0 | EXITS => CallEnd::Returned,
            _ => CallEnd::Signalled,
        });
        if let Some(running) = self.running.get_mut(context as usize) {
            *running = None;
            OVER[context as usize].store(0, Ordering::SeqCst);
        }
        self.count();
    }

    fn count(&self) {
        self.area.set_running(self.running.iter().flatten().count() as u32);
    }

    /// Whether the function of a call runs.
    pub(crate) fn runs(&self, call: CallId) -> bool {
        self.running.iter().flatten().any(|running| running.call == call)
    }

    /// Marks functions whose time is over, and signals their threads; whether there are any. Sets the alarm to when there is more to do. For
    /// the service thread.
    pub(crate) fn keep(&mut self) -> bool {
        let (mut is_any_over, mut next) = (false, None::<Duration>);
        if self.running.iter().flatten().any(|running| running.end.is_some()) {
            let now = now();
            for (running, over) in self.running.iter().zip(&OVER) {
                let Some(Running { call, thread, end: Some(mut end) }) = *running else { continue };
                if end <= now {
                    over.store(call.0, Ordering::SeqCst);
                    // It runs, so its thread is there.
                    let _ = self.signal(thread);
                    is_any_over = true;
                    end = now.saturating_add(AGAIN);
                }
                next = Some(next.map_or(end, |next| next.min(end)));
            }
        }
        if next != self.alarm_at {
            self.set_alarm(next);
        }
        is_any_over
    }

    fn signal(&self, thread: u32) -> Result<usize, Errno> {
        let arguments = [self.process as usize, thread as usize, LIMIT_SIGNAL as usize];
        // SAFETY: the call has no memory argument. The thread is one of this process, whose handler expects the signal.
        unsafe { system_call(libc::SYS_tgkill, arguments) }
    }

    /// A page is being taken from the functions, or protected.
    pub(crate) fn note(&mut self, page: PageNumber, access: Right) {
        if access == Right::Write {
            self.written.set(page, ());
        }
    }

    /// The program has dropped pages: nothing of them is left that could be torn.
    pub(crate) fn forget(&mut self, pages: Range<u64>) {
        self.written.remove(pages);
    }

    /// The context has ended.
    pub(crate) fn end_context(&mut self) {
        self.written = RunMap::default();
    }

    /// The pages of [`Limits::note`].
    pub(crate) fn written(&self) -> &RunMap<()> {
        &self.written
    }
}
