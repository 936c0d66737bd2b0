//! Locking without poisoning.

/// Locks a standard mutex and ignores poisoning: the contents are consistent between any two statements.
pub(crate) fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
