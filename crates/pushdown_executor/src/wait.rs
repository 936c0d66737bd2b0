//! Waiting for what a message brings.

use std::sync::atomic::{AtomicU32, Ordering};

use bare::lock::{RawGuard, RawLock};
use bare::system_call::{wait_for_word, wake_all};

use crate::executor::Executor;

/// The executor's state; there from the beginning on.
pub(crate) static EXECUTOR: RawLock<Option<Executor>> = RawLock::new(None);
/// Grows whenever a message was handled.
static PROGRESS: AtomicU32 = AtomicU32::new(0);
/// Threads that sleep until it does.
static SLEEPERS: AtomicU32 = AtomicU32::new(0);

/// How often a thread looks for messages before it sleeps: some 50 µs.
const TURNS: u32 = 1000;

/// The state, under its lock.
pub(crate) struct Held(RawGuard<'static, Option<Executor>>);

impl Held {
    pub(crate) fn new() -> Held {
        Held(EXECUTOR.acquire())
    }

    pub(crate) fn executor(&mut self) -> &mut Executor {
        match &mut *self.0 {
            Some(executor) => executor,
            None => bare::system_call::exit_group(1),
        }
    }
}

/// Handles all messages that have come, and tells those who wait.
pub(crate) fn handle_messages(executor: &mut Executor) {
    if executor.handle_messages() {
        PROGRESS.fetch_add(1, Ordering::SeqCst);
        if SLEEPERS.load(Ordering::SeqCst) > 0 {
            wake_all(&PROGRESS);
        }
    }
}

/// Waits until `ready` returns something. It is asked again after each message.
pub(crate) fn wait_until<T>(mut ready: impl FnMut(&mut Executor) -> Option<T>) -> T {
    loop {
        let (seen, link) = {
            let mut held = Held::new();
            let executor = held.executor();
            handle_messages(executor);
            if let Some(value) = ready(executor) {
                return value;
            }
            (PROGRESS.load(Ordering::SeqCst), executor.link())
        };
        if !link.attend(TURNS, || PROGRESS.load(Ordering::Relaxed) != seen) {
            SLEEPERS.fetch_add(1, Ordering::SeqCst);
            wait_for_word(&PROGRESS, seen);
            SLEEPERS.fetch_sub(1, Ordering::SeqCst);
        }
    }
}
