//! How a host tells that a defect of its own has ended it.

use std::any::Any;
use std::sync::{Mutex, PoisonError};

use base::rt::{Stop, fault_point};

/// Panics where a test has asked for it: what a host does for nobody in particular calls this.
pub(crate) fn may_panic() {
    assert!(!fault_point("rma.host.panics"), "a panic that a test has asked for");
}

/// What a panic said.
pub(crate) fn reason_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without words".to_owned())
}

/// Whether a host has failed, and why.
#[derive(Default)]
pub(crate) struct Failure {
    reason: Mutex<Option<String>>,
    happened: Stop,
}

impl Failure {
    /// Notes the first reason, and tells it to whoever waits.
    pub(crate) fn fail(&self, reason: String) {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(reason);
        self.happened.stop();
    }

    /// See [`crate::Host::failed`].
    pub(crate) async fn wait(&self) -> String {
        self.happened.stopped().await;
        let reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        reason.clone().expect("it is noted before anybody is told")
    }
}
