//! A lock that works where that of the C library may not be used: inside `malloc`, in signal handlers, across a fork.
//!
//! Signals are blocked while it is held. So a handler that maps memory or forks never waits for the thread that it
//! has interrupted, and a holder is not kept from its work by a handler.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::system_call::{SignalsBlocked, wait_for_word, wake_word};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and a thread may be waiting.
const AWAITED: u32 = 2;

/// A value that one thread uses at a time.
pub(crate) struct Lock<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: only the thread that holds the lock reaches the value.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Lock<T> {
        Lock { word: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock.
    pub(crate) fn acquire(&self) -> Guard<'_, T> {
        let blocked = SignalsBlocked::new();
        if self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while self.word.swap(AWAITED, Ordering::Acquire) != FREE {
                wait_for_word(&self.word, AWAITED);
            }
        }
        Guard { lock: self, blocked }
    }

    /// Takes up a guard that [`Guard::keep`] has put aside: in the thread that forked, or in the child, where that
    /// thread is the only one.
    ///
    /// # Safety
    /// The calling thread holds the lock, and has no guard of it.
    pub(crate) unsafe fn resume(&self, signals: u64) -> Guard<'_, T> {
        Guard { lock: self, blocked: SignalsBlocked::resume(signals) }
    }
}

/// The lock is held while this exists.
pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// Dropped after the lock is released.
    blocked: SignalsBlocked,
}

impl<T> Guard<'_, T> {
    /// The signals that were blocked before the lock was taken.
    pub(crate) fn signals(&self) -> u64 {
        self.blocked.before()
    }

    /// Keeps the lock beyond the life of the guard, until [`Lock::resume`].
    pub(crate) fn keep(self) {
        mem::forget(self);
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the lock is held, and a shared borrow of the guard excludes an exclusive one.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, and the guard is borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        if self.lock.word.swap(FREE, Ordering::Release) == AWAITED {
            wake_word(&self.lock.word);
        }
    }
}
