//! An end for tests of regions: a region that hangs cannot be interrupted, and a run that hangs says nothing.

use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

/// Ends the process if it exists for longer than two minutes. A test takes one before its first region.
pub struct TimeLimit {
    _end: SyncSender<()>,
}

#[allow(clippy::disallowed_methods, reason = "it watches the threads of the test from outside")]
pub fn time_limit() -> TimeLimit {
    let (end, ended) = sync_channel::<()>(1);
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    std::thread::spawn(move || {
        if ended.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
            let text = format!("{test} has not ended within {} s: does a thread wait for a page?\n", LIMIT.as_secs());
            // The thread that hangs may hold the lock of standard error.
            // SAFETY: the kernel reads as many bytes as there are.
            let _ = unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
            std::process::abort();
        }
    });
    TimeLimit { _end: end }
}
