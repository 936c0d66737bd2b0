//! Random numbers (cryptographically secure in production, seeded in simulation), and fault points: named places in the
//! code where a test may inject a fault.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::context;

/// The faults that a test of a whole process has requested; each happens once.
static REQUESTED_FAULTS: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// Whether there are any: the only check in production.
static HAS_REQUESTED_FAULTS: AtomicBool = AtomicBool::new(false);

/// Fills `bytes` with randomness: cryptographically secure in production, from the seed in simulation.
///
/// Panics when the operating system has no randomness to give, after which no secret could be made.
pub fn fill_random(bytes: &mut [u8]) {
    match context::world() {
        Some(world) => world.fill_random(bytes),
        None => fill_from_system(bytes),
    }
}

fn fill_from_system(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the operating system gives randomness");
}

/// A random number, from the same source as [`fill_random`].
pub fn random_u64() -> u64 {
    let mut bytes = [0; 8];
    fill_random(&mut bytes);
    u64::from_le_bytes(bytes)
}

/// A random number in `0..bound`, without bias worth naming. Panics when `bound` is 0.
pub fn random_below(bound: u64) -> u64 {
    assert!(bound > 0, "a random number below zero does not exist");
    ((u128::from(random_u64()) * u128::from(bound)) >> 64) as u64
}

/// A named place where a simulation may inject a fault: true when the caller is to behave as if the fault happened.
///
/// False in production, unless [`inject_fault`] has asked for it. A simulation counts how often each name was reached and how
/// often it was injected.
#[inline]
pub fn fault_point(name: &'static str) -> bool {
    (context::is_simulation() && reached(name))
        || (HAS_REQUESTED_FAULTS.load(Ordering::Relaxed) && take_requested(name))
}

/// Has the fault of this name happen once in this process, where it is reached next. For tests of real processes; simulations
/// inject their own.
pub fn inject_fault(name: &str) {
    REQUESTED_FAULTS.lock().unwrap_or_else(PoisonError::into_inner).push(name.to_owned());
    HAS_REQUESTED_FAULTS.store(true, Ordering::Relaxed);
}

#[cold]
fn take_requested(name: &str) -> bool {
    let mut asked = REQUESTED_FAULTS.lock().unwrap_or_else(PoisonError::into_inner);
    let place = asked.iter().position(|fault| fault == name);
    place.map(|place| asked.swap_remove(place)).is_some()
}

#[cold]
fn reached(name: &'static str) -> bool {
    context::world().is_some_and(|world| world.fault_point(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_that_was_asked_for_happens_once_and_no_other_does() {
        assert!(!fault_point("base.test.asked"));
        inject_fault("base.test.asked");
        assert!(!fault_point("base.test.other"));
        assert!(fault_point("base.test.asked"));
        assert!(!fault_point("base.test.asked"));
    }
}
