//! Tasks that nobody awaits, whose panic is the end of what they belong to.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::task::Poll;

use base::rt;

/// Runs a task; if it panics, drops it and then calls `end`. Nobody else would notice: what it is a part of would go on without it,
/// or be asked in vain.
pub(crate) async fn guarded(task: impl Future<Output = ()>, end: impl FnOnce()) {
    let mut task = Box::pin(task);
    // Of what it leaves behind half done nothing is used any more.
    let polled = std::future::poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(cx))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    });
    if let Err(panic) = polled.await {
        drop(task);
        end();
        if rt::is_simulation() {
            resume_unwind(panic);
        }
    }
}
