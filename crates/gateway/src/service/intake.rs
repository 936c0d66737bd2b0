//! Whether new transactions are taken.
//!
//! Who composes a node closes the intake while something is wrong that more work would make worse, such as a disk that
//! is nearly full. What is stored already can be read, and what was ordered goes on; proposals to endorse and envelopes
//! to order are refused with a reason.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::rpc::{Code, Status};

/// Open or closed. Clones share it.
#[derive(Clone, Default)]
pub struct Intake(Arc<State>);

#[derive(Default)]
struct State {
    is_closed: AtomicBool,
    reason: Mutex<String>,
}

const POISONED: &str = "no holder of this lock panics";

impl Intake {
    /// Refuses new transactions from now on. `reason` tells clients what is wrong and what to do.
    pub fn close(&self, reason: String) {
        *self.0.reason.lock().expect(POISONED) = reason;
        self.0.is_closed.store(true, Ordering::Release);
    }

    /// Takes new transactions again.
    pub fn open(&self) {
        self.0.is_closed.store(false, Ordering::Release);
    }

    /// Why new transactions are refused, if they are.
    pub fn problem(&self) -> Option<String> {
        let is_closed = self.0.is_closed.load(Ordering::Acquire);
        is_closed.then(|| self.0.reason.lock().expect(POISONED).clone())
    }

    /// Passes while it is open.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    pub(super) fn check(&self) -> Result<(), Status> {
        match self.problem() {
            None => Ok(()),
            Some(reason) => Err(Status::new(Code::Unavailable, reason)),
        }
    }
}

impl std::fmt::Debug for Intake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Intake({:?})", self.problem())
    }
}
