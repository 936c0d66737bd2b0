//! Unit tests, which compare fields, points and numbers with big integers.

mod bounds;
mod curve;
mod field;
mod numbers;

use num_bigint::BigUint;

use crate::limbs::{self, Limbs};

/// Numbers from a seed (splitmix64): the same in every run.
pub(crate) struct Prng(u64);

impl Prng {
    pub(crate) fn new(seed: u64) -> Prng {
        Prng(seed)
    }

    pub(crate) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub(crate) fn limbs(&mut self) -> Limbs {
        std::array::from_fn(|_| self.word())
    }
}

pub(crate) fn big(limbs: &Limbs) -> BigUint {
    BigUint::from_bytes_be(&limbs::to_bytes(limbs))
}

pub(crate) fn small(number: &BigUint) -> Limbs {
    let bytes = number.to_bytes_be();
    let mut padded = [0; 32];
    padded[32 - bytes.len()..].copy_from_slice(&bytes);
    limbs::from_bytes(&padded)
}

/// Numbers below 2^256 at which carries and reductions change, for a modulus; not all below it.
pub(crate) fn edges(modulus: &Limbs) -> Vec<Limbs> {
    let one = BigUint::from(1u8);
    let m = big(modulus);
    let mut numbers = vec![BigUint::ZERO, &m >> 1, (&m >> 1) + 1u8, (&one << 256u32) - 1u8];
    for delta in 0..4u8 {
        numbers.push(BigUint::from(delta));
        numbers.push(&m - delta);
        if delta > 0 {
            numbers.push(&m + delta);
        }
    }
    for bit in [31u32, 32, 51, 52, 63, 64, 95, 96, 104, 127, 128, 156, 191, 192, 208, 223, 224, 255] {
        numbers.push((&one << bit) - 1u8);
        numbers.push(&one << bit);
        numbers.push(&m - (&one << bit).min(m.clone()));
    }
    numbers.iter().map(small).collect()
}
