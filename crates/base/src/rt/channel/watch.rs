//! A watch channel: one value with many watchers, which are notified when it changes.
//!
//! It replaces tokio's watch channel, which wakes its receivers in an order that tokio's own random generator chooses.
//! In simulation the seed alone must determine that order.
//!
//! Invariants: The version grows with every change. If the value has changed since a receiver last saw it, the receiver
//! is notified; it may miss intermediate versions.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard};

use super::Closed;
use crate::rt::sync::Notify;

/// A value, and a receiver that is notified of its changes.
pub fn watch<T>(initial: T) -> (WatchSender<T>, WatchReceiver<T>) {
    let shared = Arc::new(WatchCore {
        value: RwLock::new(initial),
        version: AtomicU64::new(0),
        receivers: AtomicUsize::new(1),
        closed: AtomicBool::new(false),
        changed: Notify::new(),
    });
    (WatchSender { shared: Arc::clone(&shared) }, WatchReceiver { shared, seen: 0 })
}

struct WatchCore<T> {
    value: RwLock<T>,
    version: AtomicU64,
    receivers: AtomicUsize,
    closed: AtomicBool,
    changed: Notify,
}

const POISONED: &str = "no watcher panics while it holds the value";

/// The end that changes the value. Dropping it closes the channel.
pub struct WatchSender<T> {
    shared: Arc<WatchCore<T>>,
}

/// A watcher. A clone has seen what the original has seen.
pub struct WatchReceiver<T> {
    shared: Arc<WatchCore<T>>,
    seen: u64,
}

/// The value, borrowed. Hold it briefly and never across an await: the sender waits for it.
pub struct WatchRef<'a, T> {
    guard: RwLockReadGuard<'a, T>,
}

impl<T> Deref for WatchRef<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> WatchSender<T> {
    /// Replaces the value and wakes the watchers. Does so even when there are none.
    pub fn send(&self, value: T) {
        self.send_modify(|current| *current = value);
    }

    /// Changes the value in place and wakes the watchers.
    pub fn send_modify(&self, modify: impl FnOnce(&mut T)) {
        self.send_if_modified(|current| {
            modify(current);
            true
        });
    }

    /// Changes the value in place; wakes the watchers when `modify` returns true. Returns the same.
    pub fn send_if_modified(&self, modify: impl FnOnce(&mut T) -> bool) -> bool {
        let modified = {
            let mut value = self.shared.value.write().expect(POISONED);
            let modified = modify(&mut value);
            if modified {
                self.shared.version.fetch_add(1, Ordering::SeqCst);
            }
            modified
        };
        if modified {
            self.shared.changed.notify_waiters();
        }
        modified
    }

    /// The current value.
    pub fn borrow(&self) -> WatchRef<'_, T> {
        WatchRef { guard: self.shared.value.read().expect(POISONED) }
    }

    /// A new watcher that has seen the current value.
    pub fn subscribe(&self) -> WatchReceiver<T> {
        self.shared.receivers.fetch_add(1, Ordering::SeqCst);
        WatchReceiver { shared: Arc::clone(&self.shared), seen: self.shared.version.load(Ordering::SeqCst) }
    }

    /// The number of watchers.
    pub fn receivers(&self) -> usize {
        self.shared.receivers.load(Ordering::SeqCst)
    }
}

impl<T> WatchReceiver<T> {
    /// The current value, without marking it as seen.
    pub fn borrow(&self) -> WatchRef<'_, T> {
        WatchRef { guard: self.shared.value.read().expect(POISONED) }
    }

    /// The current value, marked as seen.
    pub fn borrow_and_update(&mut self) -> WatchRef<'_, T> {
        let guard = self.shared.value.read().expect(POISONED);
        self.seen = self.shared.version.load(Ordering::SeqCst);
        WatchRef { guard }
    }

    /// Whether the value changed since it was last seen.
    pub fn has_changed(&self) -> bool {
        self.shared.version.load(Ordering::SeqCst) != self.seen
    }

    /// Waits until the value differs from what was last seen, and marks it as seen. Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`Closed`] when the sender was dropped and the last value was seen.
    pub async fn changed(&mut self) -> Result<(), Closed> {
        loop {
            // Registered before the check, so that a change between the two is not missed.
            let changed = self.shared.changed.notified();
            // Closing comes after the last change, so it is read first.
            let closed = self.shared.closed.load(Ordering::SeqCst);
            let version = self.shared.version.load(Ordering::SeqCst);
            if version != self.seen {
                self.seen = version;
                return Ok(());
            }
            if closed {
                return Err(Closed);
            }
            changed.await;
        }
    }

    /// Waits until the value satisfies `predicate`, marks it as seen and returns a copy of it; completes at once when it
    /// does already.
    ///
    /// # Errors
    /// [`Closed`] when the sender was dropped and the last value does not satisfy it.
    pub async fn wait_for(&mut self, mut predicate: impl FnMut(&T) -> bool) -> Result<T, Closed>
    where
        T: Clone,
    {
        loop {
            {
                let value = self.borrow_and_update();
                if predicate(&value) {
                    return Ok(value.clone());
                }
            }
            self.changed().await?;
        }
    }
}

impl<T> Clone for WatchReceiver<T> {
    fn clone(&self) -> Self {
        self.shared.receivers.fetch_add(1, Ordering::SeqCst);
        WatchReceiver { shared: Arc::clone(&self.shared), seen: self.seen }
    }
}

impl<T> Drop for WatchReceiver<T> {
    fn drop(&mut self) {
        self.shared.receivers.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<T> Drop for WatchSender<T> {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        self.shared.changed.notify_waiters();
    }
}

impl<T> fmt::Debug for WatchSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WatchSender")
    }
}

impl<T> fmt::Debug for WatchReceiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WatchReceiver")
    }
}
