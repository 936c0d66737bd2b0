//! Threads that wait until something has happened.

use std::sync::atomic::{AtomicU32, Ordering};

use bare::system_call::{wait_for_word, wake_all};
use pushdown::Link;

/// Grows whenever a message was handled.
static PROGRESS: AtomicU32 = AtomicU32::new(0);
/// Threads that sleep until it does.
static SLEEPERS: AtomicU32 = AtomicU32::new(0);

/// How often a thread looks for messages before it sleeps: some 50 µs.
const TURNS: u32 = 1000;

/// Tells those who wait that something has happened.
pub(crate) fn tell_waiting() {
    PROGRESS.fetch_add(1, Ordering::SeqCst);
    if SLEEPERS.load(Ordering::SeqCst) > 0 {
        wake_all(&PROGRESS);
    }
}

/// What has happened so far. To be asked under the lock.
pub(crate) fn so_far() -> u32 {
    PROGRESS.load(Ordering::SeqCst)
}

/// Waits until something has happened since, or a message has come. Returns early now and then.
pub(crate) fn wait_for_more(link: &Link, seen: u32) {
    if !link.attend(TURNS, || PROGRESS.load(Ordering::Relaxed) != seen) {
        SLEEPERS.fetch_add(1, Ordering::SeqCst);
        wait_for_word(&PROGRESS, seen);
        SLEEPERS.fetch_sub(1, Ordering::SeqCst);
    }
}
