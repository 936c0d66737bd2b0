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
            eprintln!("{test} has not ended within {} s: a thread waits for a page that nobody fills", LIMIT.as_secs());
            std::process::abort();
        }
    });
    TimeLimit { _end: end }
}
