//! The state, its lock, and waiting for what a message brings.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

use bare::lock::RawLock;

use crate::caller::Caller;
use crate::progress::{so_far, wait_for_more};

/// The state; there once the library was opened.
pub(crate) static CALLER: RawLock<Option<Caller>> = RawLock::new(None);
/// Whether there is one, for threads that must not take the lock.
static IS_OPEN: AtomicBool = AtomicBool::new(false);
/// Whether the library was opened.
pub(crate) fn is_open() -> bool {
    IS_OPEN.load(Ordering::Acquire)
}

/// The library is open from now on.
pub(crate) fn set_open(caller: Caller) {
    *CALLER.acquire() = Some(caller);
    IS_OPEN.store(true, Ordering::Release);
}

/// Waits until `ready` returns something. It is asked again after each message. `None` if the library is not open.
pub(crate) fn wait_until<T>(mut ready: impl FnMut(&mut Caller) -> Option<T>) -> Option<T> {
    loop {
        let (seen, link) = {
            let mut held = CALLER.acquire();
            let caller = held.as_mut()?;
            caller.handle_messages();
            if let Some(value) = ready(caller) {
                return Some(value);
            }
            (so_far(), caller.link())
        };
        wait_for_more(link, seen);
    }
}

/// In the child of a fork: there is no executor, and the thread that held the lock is not there either.
pub(crate) fn abandon() {
    IS_OPEN.store(false, Ordering::Release);
    // SAFETY: the child has one thread, which is in `fork`.
    unsafe { CALLER.reset(None) };
}
