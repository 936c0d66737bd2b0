//! A request to stop, shared by all who must hear it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::sync::Notify;

/// A token that is stopped once and stays so. Clones share one state.
#[derive(Clone, Default)]
pub struct Stop {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    stopped: AtomicBool,
    heard: Notify,
}

impl Stop {
    /// A token that has not been stopped.
    pub fn new() -> Stop {
        Stop::default()
    }

    /// Asks everyone to stop. Doing so again changes nothing.
    pub fn stop(&self) {
        if !self.shared.stopped.swap(true, Ordering::SeqCst) {
            self.shared.heard.notify_waiters();
        }
    }

    /// Whether [`Stop::stop`] was called.
    pub fn is_stopped(&self) -> bool {
        self.shared.stopped.load(Ordering::SeqCst)
    }

    /// Completes when [`Stop::stop`] is called, or at once when it was. Dropping the future is safe.
    pub async fn stopped(&self) {
        // Registered before the check, so that a stop between the two is not missed.
        let heard = self.shared.heard.notified();
        if !self.is_stopped() {
            heard.await;
        }
    }

    /// Runs `future` until it completes (`Some`) or this token is stopped (`None`, and the future is dropped).
    pub async fn or_stopped<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut stopped = std::pin::pin!(self.stopped());
        let mut future = std::pin::pin!(future);
        std::future::poll_fn(|cx| {
            if stopped.as_mut().poll(cx).is_ready() {
                return std::task::Poll::Ready(None);
            }
            future.as_mut().poll(cx).map(Some)
        })
        .await
    }
}

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stop").field("stopped", &self.is_stopped()).finish()
    }
}
