//! Which world the current thread is in.

/// Whether the caller runs inside a simulation.
pub fn is_simulation() -> bool {
    false
}
