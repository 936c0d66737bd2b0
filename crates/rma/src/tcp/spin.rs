//! Decides whether a waiter spins before it sleeps: always while spinning succeeds, and after [`FAILURES_MAX`] failures in a
//! row only once in [`TRIALS`] waits.

use std::sync::atomic::{AtomicI32, Ordering};

/// Consecutive failures after which spinning is tried only now and then.
const FAILURES_MAX: i32 = 8;
/// From then on one wait in this many spins.
const TRIALS: i32 = 8;

/// The record of spinning so far.
#[derive(Default)]
pub struct AdaptiveSpin {
    /// Consecutive failures; the count continues beyond the bound.
    failures: AtomicI32,
}

impl AdaptiveSpin {
    /// Whether the next waiter should spin.
    pub fn is_worth_it(&self) -> bool {
        let failures = self.failures.load(Ordering::Relaxed);
        failures < FAILURES_MAX || self.failures.fetch_add(1, Ordering::Relaxed) % TRIALS == 0
    }

    /// Spinning succeeded: the awaited event came meanwhile.
    pub fn succeeded(&self) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// Spinning failed: it did not come.
    pub fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }
}
