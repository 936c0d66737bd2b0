//! Guards background tasks that no caller awaits: a panic of the task ends the component that owns the task.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::task::Poll;

use super::is_simulation;

/// Runs a task; if it panics, drops it and then calls `end`. Otherwise the panic would go unnoticed: the rest of the
/// component would continue without the task, or wait for it in vain.
pub async fn guarded(task: impl Future<Output = ()>, end: impl FnOnce()) {
    let mut task = Box::pin(task);
    // State that the task leaves half changed is not used any more.
    let polled = std::future::poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(cx))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    });
    if let Err(panic) = polled.await {
        drop(task);
        end();
        if is_simulation() {
            resume_unwind(panic);
        }
    }
}
