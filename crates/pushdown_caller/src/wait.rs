//! The state, its lock, and waiting for what a message brings.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

use bare::lock::RawLock;

use crate::caller::Caller;

/// The state; there once the library was opened.
pub(crate) static CALLER: RawLock<Option<Caller>> = RawLock::new(None);
/// Whether there is one, for threads that must not take the lock.
static IS_OPEN: AtomicBool = AtomicBool::new(false);
/// How often a thread looks for messages before it sleeps: some 120 µs, about as long as it takes to put a processor to sleep and wake it.
pub(crate) const TURNS: u32 = 4000;

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
    let link = CALLER.acquire().as_ref()?.link();
    let attending = link.attend();
    let value = loop {
        let seen = {
            let mut held = CALLER.acquire();
            let caller = held.as_mut()?;
            caller.handle_messages(true);
            if let Some(value) = ready(caller) {
                break value;
            }
            link.so_far()
        };
        attending.wait(TURNS, seen);
    };
    drop(attending);
    while link.is_message_coming() {
        let mut held = CALLER.acquire();
        let caller = held.as_mut()?;
        if caller.is_lost() || caller.forks.is_holding() {
            break;
        }
        caller.handle_messages(false);
    }
    Some(value)
}

/// In the child of a fork: there is no executor, and the thread that held the lock is not there either.
pub(crate) fn abandon() {
    IS_OPEN.store(false, Ordering::Release);
    // SAFETY: the child has one thread, which is in `fork`.
    unsafe { CALLER.reset(None) };
}
