//! Synchronisation between tasks: permits, wake-ups and a lock that may be held across an await.
//!
//! All of them are fair (first come, first served) and independent of the executor, so they behave the same in
//! simulation. For a lock that is not held across an await, use `std::sync::Mutex`.

use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

/// A number of permits, granted in the order of the requests. Clones share the permits.
#[derive(Clone, Debug)]
pub struct Semaphore {
    inner: Arc<tokio::sync::Semaphore>,
}

impl Semaphore {
    /// A semaphore with `permits` permits. Panics if there are more than an eighth of `usize::MAX`.
    pub fn new(permits: usize) -> Semaphore {
        Semaphore { inner: Arc::new(tokio::sync::Semaphore::new(permits)) }
    }

    /// Waits for a permit. Dropping the future only gives up the position in the queue.
    pub async fn acquire(&self) -> SemaphorePermit {
        self.acquire_many(1).await
    }

    /// Waits for `count` permits at once.
    pub async fn acquire_many(&self, count: u32) -> SemaphorePermit {
        let permit = Arc::clone(&self.inner).acquire_many_owned(count).await;
        SemaphorePermit { inner: permit.expect("our semaphores are never closed") }
    }

    /// A permit, if one is free now.
    pub fn try_acquire(&self) -> Option<SemaphorePermit> {
        self.try_acquire_many(1)
    }

    /// `count` permits, if they are free now.
    pub fn try_acquire_many(&self, count: u32) -> Option<SemaphorePermit> {
        Arc::clone(&self.inner).try_acquire_many_owned(count).ok().map(|inner| SemaphorePermit { inner })
    }

    /// Permits that are free now.
    pub fn available(&self) -> usize {
        self.inner.available_permits()
    }

    /// Adds permits.
    pub fn add_permits(&self, count: usize) {
        self.inner.add_permits(count);
    }
}

/// Permits held; dropping returns them. Owned, so they can be sent along with the work they cover.
#[derive(Debug)]
#[must_use = "dropping a permit gives it back"]
pub struct SemaphorePermit {
    inner: tokio::sync::OwnedSemaphorePermit,
}

impl SemaphorePermit {
    /// Destroys the permits instead of returning them.
    pub fn forget(self) {
        self.inner.forget();
    }
}

/// Wakes tasks that wait for a change.
#[derive(Debug, Default)]
pub struct Notify {
    inner: tokio::sync::Notify,
}

impl Notify {
    /// A notifier without waiters and without a stored wake-up.
    pub const fn new() -> Notify {
        Notify { inner: tokio::sync::Notify::const_new() }
    }

    /// Wakes one waiter, or stores one wake-up for the next waiter.
    pub fn notify_one(&self) {
        self.inner.notify_one();
    }

    /// Wakes all tasks that have called [`Notify::notified`]; stores nothing.
    pub fn notify_waiters(&self) {
        self.inner.notify_waiters();
    }

    /// Waits for a wake-up. Call it, then check the condition, then await it: a `notify_waiters` in between is seen.
    /// Dropping the future passes a wake-up of `notify_one` on to another waiter.
    pub fn notified(&self) -> Notified<'_> {
        Notified { inner: self.inner.notified() }
    }
}

pin_project! {
    /// Completes at a wake-up. Created by [`Notify::notified`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless awaited"]
    pub struct Notified<'a> {
        #[pin]
        inner: tokio::sync::futures::Notified<'a>,
    }
}

impl Notified<'_> {
    /// Enters the queue without awaiting, so that a later `notify_one` counts for this future. Returns whether a wake-up has
    /// already come.
    pub fn enable(self: Pin<&mut Self>) -> bool {
        self.project().inner.enable()
    }
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.project().inner.poll(cx)
    }
}

/// A lock that may be held across an await.
#[derive(Default)]
pub struct Mutex<T> {
    inner: tokio::sync::Mutex<T>,
}

impl<T> Mutex<T> {
    /// An unlocked lock around `value`.
    pub fn new(value: T) -> Mutex<T> {
        Mutex { inner: tokio::sync::Mutex::new(value) }
    }

    /// Waits for the lock. Dropping the future only gives up the position in the queue.
    pub async fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { inner: self.inner.lock().await }
    }

    /// The lock, if it is free now.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.inner.try_lock().ok().map(|inner| MutexGuard { inner })
    }

    /// The value, without locking: the caller has the only reference.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mutex")
    }
}

/// The held lock; dropping frees it.
#[must_use = "dropping a guard frees the lock"]
pub struct MutexGuard<'a, T> {
    inner: tokio::sync::MutexGuard<'a, T>,
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}
