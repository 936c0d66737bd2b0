//! Which world the current thread is in.

use std::collections::BTreeMap;

use crate::event::Value;

/// Whether the caller runs inside a simulation.
pub fn is_simulation() -> bool {
    false
}

/// Runs `access` on the event values of the current simulation; `None` outside of one.
pub(crate) fn simulated_events<T>(access: impl FnOnce(&mut BTreeMap<&'static str, Value>) -> T) -> Option<T> {
    let _ = access;
    None
}
