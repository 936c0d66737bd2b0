//! Locking without poisoning.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The guarded state is consistent between any two statements, so a poisoned lock is as good as another.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
