//! The intake, which decides whether new transactions are accepted.
//!
//! `node` closes the intake while the process has a problem that more work would make worse, such as a nearly full
//! disk. Then proposals to endorse and envelopes to order are refused, with the reason. Stored data can still be read,
//! and ordered blocks are still committed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::grpc::{GrpcCode, GrpcStatus};

/// Open or closed. Clones share it.
#[derive(Clone, Default)]
pub struct TransactionIntake(Arc<IntakeState>);

#[derive(Default)]
struct IntakeState {
    is_closed: AtomicBool,
    reason: Mutex<String>,
}

const POISONED: &str = "no holder of this lock panics";

impl TransactionIntake {
    /// Refuses new transactions from now on. `reason` tells clients what is wrong and what to do.
    pub fn close(&self, reason: String) {
        *self.0.reason.lock().expect(POISONED) = reason;
        self.0.is_closed.store(true, Ordering::Release);
    }

    /// Accepts new transactions again.
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
    pub(super) fn check(&self) -> Result<(), GrpcStatus> {
        match self.problem() {
            None => Ok(()),
            Some(reason) => Err(GrpcStatus::new(GrpcCode::Unavailable, reason)),
        }
    }
}

impl std::fmt::Debug for TransactionIntake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Intake({:?})", self.problem())
    }
}
