//! A cancellation token, shared by all tasks that must stop.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::sync::Notify;

/// A token that is stopped once and stays stopped. Clones share one state.
#[derive(Clone, Default)]
pub struct CancellationToken {
    shared: Arc<CancellationTokenCore>,
}

#[derive(Default)]
struct CancellationTokenCore {
    cancelled: AtomicBool,
    notify: Notify,
}

impl CancellationToken {
    /// A token that has not been stopped.
    pub fn new() -> CancellationToken {
        CancellationToken::default()
    }

    /// Stops the token. Doing so again changes nothing.
    pub fn cancel(&self) {
        if !self.shared.cancelled.swap(true, Ordering::SeqCst) {
            self.shared.notify.notify_waiters();
        }
    }

    /// Whether [`CancellationToken::cancel`] was called.
    pub fn is_cancelled(&self) -> bool {
        self.shared.cancelled.load(Ordering::SeqCst)
    }

    /// Completes when [`CancellationToken::cancel`] is called, or at once if it was. Dropping the future is safe.
    pub async fn cancelled(&self) {
        // Registered before the check, so that a stop between the two is not missed.
        let heard = self.shared.notify.notified();
        if !self.is_cancelled() {
            heard.await;
        }
    }

    /// Runs `future` until it completes (`Some`) or this token is stopped (`None`, and the future is dropped).
    pub async fn run_until_cancelled<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut stopped = std::pin::pin!(self.cancelled());
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

impl fmt::Debug for CancellationToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stop").field("stopped", &self.is_cancelled()).finish()
    }
}
