//! How a host reports that a defect in its own code has ended it. Public, because providers in other crates use it as
//! well.

use std::any::Any;
use std::sync::{Mutex, PoisonError};

use base::rt::{CancellationToken, fault_point};

/// Panics where a test asks for it. Called by the parts of a host that serve no single connection.
pub fn may_panic() {
    assert!(!fault_point("rma.host.panics"), "a panic that a test has asked for");
}

/// The message of a panic.
pub fn reason_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without a message".to_owned())
}

/// Whether a host has failed, and why.
#[derive(Default)]
pub struct HostFailure {
    reason: Mutex<Option<String>>,
    happened: CancellationToken,
}

impl HostFailure {
    /// Records the first reason, and wakes the waiting callers.
    pub fn fail(&self, reason: String) {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(reason);
        self.happened.cancel();
    }

    /// See [`crate::Host::failed`].
    pub async fn wait(&self) -> String {
        self.happened.cancelled().await;
        let reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        reason.clone().expect("it is noted before anybody is told")
    }
}
