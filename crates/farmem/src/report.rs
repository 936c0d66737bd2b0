//! Messages of the threads that serve page faults.
//!
//! A thread of the program may hold the lock of standard error, or one of its logger, while it waits for a page. So a thread
//! that serves faults takes none of these locks: it hands its message to a thread for which nobody waits, and drops it when
//! too many wait. A message before the end of the process goes to the descriptor of standard error itself.

#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use base::rt::{self, Instant};

use crate::error::Error;

/// Messages that wait for the logger; one more is dropped.
const REPORTS_MAX: usize = 64;
/// The pause between two messages of one kind.
const PAUSE: Duration = Duration::from_secs(1);
/// For how long the last message waits for a reader of standard error, in milliseconds.
const LAST_MESSAGE_MILLIS: libc::c_int = 1000;

enum Report {
    Warning(String),
    Error(String),
}

static REPORTS: OnceLock<SyncSender<Report>> = OnceLock::new();

/// Starts the thread that logs, with the first region of the process.
///
/// # Errors
/// [`Error::System`].
#[allow(clippy::disallowed_methods)] // A task would share its thread with others, which this one may block for as long as it likes.
pub(crate) fn start() -> Result<(), Error> {
    if REPORTS.get().is_some() {
        return Ok(());
    }
    let (sender, receiver) = sync_channel(REPORTS_MAX);
    let thread = std::thread::Builder::new().name("farmem-reports".to_owned());
    let started = thread.spawn(move || run(&receiver));
    started.map_err(|error| Error::from_io("cannot start a thread of far memory", &error))?;
    // If another region was faster, this sender is dropped, and its thread ends.
    let _ = REPORTS.set(sender);
    Ok(())
}

fn run(receiver: &Receiver<Report>) {
    for report in receiver {
        match report {
            Report::Warning(text) => tracing::warn!("{text}"),
            Report::Error(text) => tracing::error!("{text}"),
        }
    }
}

fn send(report: Report) {
    if let Some(reports) = REPORTS.get() {
        // The message is of less worth than the fault that would wait for it.
        let _ = reports.try_send(report);
    }
}

/// Logs an error that comes seldom.
pub(crate) fn error(text: String) {
    send(Report::Error(text));
}

/// Messages of one kind: one a second, with the number of those between.
#[derive(Default)]
pub(crate) struct Messages {
    last: Option<Instant>,
    skipped: u64,
}

impl Messages {
    pub(crate) fn warn(&mut self, text: impl FnOnce() -> String) {
        self.next(text).map(Report::Warning).into_iter().for_each(send);
    }

    pub(crate) fn error(&mut self, text: impl FnOnce() -> String) {
        self.next(text).map(Report::Error).into_iter().for_each(send);
    }

    fn next(&mut self, text: impl FnOnce() -> String) -> Option<String> {
        if self.last.is_some_and(|last| last.elapsed() < PAUSE) {
            self.skipped += 1;
            return None;
        }
        self.last = Some(rt::now());
        Some(match std::mem::take(&mut self.skipped) {
            0 => text(),
            skipped => format!("{} ({skipped} more such messages before)", text()),
        })
    }
}

/// Writes a message to standard error without a lock, unless nobody reads it within a second, and ends the process.
pub(crate) fn end(text: &str) -> ! {
    let mut ready = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
    // A pipe that is ready takes this many bytes without blocking.
    let bytes = &text.as_bytes()[..text.len().min(libc::PIPE_BUF)];
    // SAFETY: the kernel writes to one structure, and reads as many bytes as there are.
    unsafe {
        if libc::poll(&mut ready, 1, LAST_MESSAGE_MILLIS) > 0 {
            let _ = libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len());
        }
    }
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_one_kind_come_once_a_second() {
        let mut messages = Messages::default();
        assert_eq!(messages.next(|| "one".to_owned()).as_deref(), Some("one"));
        assert_eq!(messages.next(|| panic!("nobody reads it")), None);
        // As if the second were over.
        messages.last = None;
        assert_eq!(messages.next(|| "two".to_owned()).as_deref(), Some("two (1 more such messages before)"));
    }
}
