//! Whether whoever waits spins first: only where that has helped.

use std::sync::atomic::{AtomicI32, Ordering};

/// How often spinning may fail in a row before it is tried only now and then.
const FAILURES_MAX: i32 = 8;
/// Then every so many times.
const TRIALS: i32 = 8;

/// How spinning has gone so far.
#[derive(Default)]
pub struct Spin {
    /// How many times in a row it has failed; counts on beyond the bound.
    failures: AtomicI32,
}

impl Spin {
    /// Whether the next waiter is to spin.
    pub fn is_worth_it(&self) -> bool {
        let failures = self.failures.load(Ordering::Relaxed);
        failures < FAILURES_MAX || self.failures.fetch_add(1, Ordering::Relaxed) % TRIALS == 0
    }

    /// What was waited for came meanwhile.
    pub fn succeeded(&self) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// It did not.
    pub fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }
}
