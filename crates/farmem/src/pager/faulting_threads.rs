//! What threads that serve their own faults share with the region's handler: see [`faulting_thread`](super::faulting_thread).

use std::sync::atomic::AtomicU32;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use base::rt::production::RuntimeHandle;

use crate::kernel::userfault::{PageFault, UserEvent};

/// What faulting threads and the handler share.
#[derive(Default)]
pub(crate) struct FaultingThreads {
    shared: Mutex<SharedFaults>,
    /// A fault was handed over, or the region ends.
    handed_over: Condvar,
    changed: Condvar,
    /// Timers for the store's futures.
    pub(super) runtime: OnceLock<RuntimeHandle>,
    /// Fills to hand over without asking the store.
    pub(super) is_slow: AtomicU32,
}

#[derive(Default)]
struct SharedFaults {
    /// Each is of another thread, which waits.
    faults: Vec<UserEvent>,
    changes: u64,
    is_closed: bool,
}

impl FaultingThreads {
    fn shared(&self) -> MutexGuard<'_, SharedFaults> {
        // Consistent between any two statements.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The runtime of the handler.
    pub(super) fn set_runtime(&self, runtime: RuntimeHandle) {
        let _ = self.runtime.set(runtime);
    }

    /// Waits for faults that were handed over, and appends them. False when the region ends.
    pub(crate) fn take(&self, events: &mut Vec<UserEvent>) -> bool {
        let mut shared = self.shared();
        while shared.faults.is_empty() && !shared.is_closed {
            shared = self.handed_over.wait(shared).unwrap_or_else(PoisonError::into_inner);
        }
        events.append(&mut shared.faults);
        !shared.is_closed
    }

    /// Ends the handler. Nobody touches the region any more.
    pub(crate) fn close(&self) {
        self.shared().is_closed = true;
        self.handed_over.notify_all();
    }

    /// Has waiting threads try again.
    pub(super) fn announce(&self) {
        self.shared().changes += 1;
        self.changed.notify_all();
    }

    /// How many changes there were.
    pub(super) fn changes(&self) -> u64 {
        self.shared().changes
    }

    /// Waits until there were others than `seen`.
    pub(super) fn wait(&self, seen: u64) {
        let mut shared = self.shared();
        while shared.changes == seen {
            shared = self.changed.wait(shared).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Has the handler serve a fault, and waits for a change after that.
    pub(super) fn hand_over(&self, fault: PageFault) {
        let seen = {
            let mut shared = self.shared();
            shared.faults.push(UserEvent::Fault(fault));
            shared.changes
        };
        self.handed_over.notify_one();
        self.wait(seen);
    }
}
