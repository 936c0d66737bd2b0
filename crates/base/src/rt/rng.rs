//! Random numbers: cryptographically secure in production, seeded in simulation.

use super::context;

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
