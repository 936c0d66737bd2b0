//! Two locks that work where those of the C library may not be used: inside `malloc`, in signal handlers, across a fork.
//!
//! With [`Lock`], signals are blocked while it is held. So a handler that maps memory or forks never waits for the thread that it
//! has interrupted, and a holder is not kept from its work by a handler. [`RawLock`] is for threads that block all signals anyway.

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

fn take(word: &AtomicU32) {
    if word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
        while word.swap(AWAITED, Ordering::Acquire) != FREE {
            wait_for_word(word, AWAITED);
        }
    }
}

fn release(word: &AtomicU32) {
    if word.swap(FREE, Ordering::Release) == AWAITED {
        wake_word(word);
    }
}

/// A value that one thread uses at a time. A thread that holds it must not be interrupted by code that wants it.
pub struct RawLock<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: only the thread that holds the lock reaches the value.
unsafe impl<T: Send> Sync for RawLock<T> {}

impl<T> RawLock<T> {
    /// A lock that nobody holds.
    pub const fn new(value: T) -> RawLock<T> {
        RawLock { word: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock.
    pub fn acquire(&self) -> RawGuard<'_, T> {
        take(&self.word);
        RawGuard { lock: self }
    }

    /// Puts another value in, though the lock may be held, and releases it: for the child of a fork. The old value is not dropped.
    ///
    /// # Safety
    /// The calling thread is the only one, and has no guard of the lock.
    pub unsafe fn reset(&self, value: T) {
        // SAFETY: as the caller promises.
        unsafe { self.value.get().write(value) };
        self.word.store(FREE, Ordering::Release);
    }
}

/// The lock is held while this exists.
pub struct RawGuard<'a, T> {
    lock: &'a RawLock<T>,
}

impl<T> Deref for RawGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the lock is held, and a shared borrow of the guard excludes an exclusive one.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for RawGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, and the guard is borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for RawGuard<'_, T> {
    fn drop(&mut self) {
        release(&self.lock.word);
    }
}

/// A value that one thread uses at a time, with signals blocked.
pub struct Lock<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: only the thread that holds the lock reaches the value.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// A lock that nobody holds.
    pub const fn new(value: T) -> Lock<T> {
        Lock { word: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock.
    pub fn acquire(&self) -> Guard<'_, T> {
        let blocked = SignalsBlocked::new();
        take(&self.word);
        Guard { lock: self, blocked }
    }

    /// Takes up a guard that [`Guard::keep`] has put aside: in the thread that forked, or in the child, where that
    /// thread is the only one.
    ///
    /// # Safety
    /// The calling thread holds the lock, and has no guard of it.
    pub unsafe fn resume(&self, signals: u64) -> Guard<'_, T> {
        Guard { lock: self, blocked: SignalsBlocked::resume(signals) }
    }
}

/// The lock is held while this exists.
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// Dropped after the lock is released.
    blocked: SignalsBlocked,
}

impl<T> Guard<'_, T> {
    /// The signals that were blocked before the lock was taken.
    pub fn signals(&self) -> u64 {
        self.blocked.before()
    }

    /// Keeps the lock beyond the life of the guard, until [`Lock::resume`].
    pub fn keep(self) {
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
        release(&self.lock.word);
    }
}
