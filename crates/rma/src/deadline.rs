//! A deadline that a task polls. The task sleeps first, then yields to other tasks, and spins at the end.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use base::rt::{self, Instant};

/// Waiting that is spun, because any other way would take longer.
const SPIN_MAX: Duration = Duration::from_micros(10);
/// The delay of a timer; this part of the time before a deadline is not slept.
const TIMER_GRAIN: Duration = Duration::from_millis(2);

/// A point in time for which a task waits.
pub(crate) struct Deadline {
    until: Instant,
    timer: Option<Pin<Box<rt::Sleep>>>,
}

impl Deadline {
    pub(crate) fn new(until: Instant) -> Deadline {
        Deadline { until, timer: None }
    }

    pub(crate) fn has_passed(&self) -> bool {
        rt::now() >= self.until
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let left = self.until.since(rt::now());
            if left.is_zero() {
                return Poll::Ready(());
            }
            let grain = if rt::is_simulation() { Duration::ZERO } else { TIMER_GRAIN };
            if left > grain {
                let timer = self.timer.get_or_insert_with(|| Box::pin(rt::sleep(left - grain)));
                if timer.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                self.timer = None;
            } else if left > SPIN_MAX {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            } else {
                std::hint::spin_loop();
            }
        }
    }
}
