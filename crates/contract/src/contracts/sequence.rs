//! Pseudo-random numbers that are the same everywhere: SplitMix64.
//!
//! A contract has no source of randomness. Where a workload needs arbitrary data, every endorser derives the same data
//! from a seed among the arguments.

/// An endless sequence of 64-bit numbers, fixed by its seed.
#[derive(Debug, Clone)]
pub(crate) struct RandomSequence {
    state: u64,
}

impl RandomSequence {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// A sequence for item `number` of a set made with `seed`; different items have unrelated sequences.
    pub(crate) fn for_item(seed: u64, number: u64) -> Self {
        Self::new(mix(seed) ^ mix(number.wrapping_add(0xA076_1D64_78BD_642F)))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.state)
    }

    /// A number below `bound`, which is not 0. The bias is below one in 2^64 / `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        let product = u128::from(self.next()) * u128::from(bound);
        u64::try_from(product >> 64).expect("the high half of a product of two u64 is a u64")
    }

    /// A number from 0 up to but without 1, a multiple of 2^-53.
    pub(crate) fn unit(&mut self) -> f64 {
        const STEP: f64 = 1.0 / (1_u64 << 53) as f64;
        (self.next() >> 11) as f64 * STEP
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_is_splitmix64() {
        // The generator's published first outputs for seed 1234567.
        let mut sequence = RandomSequence::new(1_234_567);
        assert_eq!(sequence.next(), 6_457_827_717_110_365_317);
        assert_eq!(sequence.next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn numbers_stay_in_their_bounds() {
        let mut sequence = RandomSequence::for_item(7, 9);
        for bound in 1..1_000 {
            assert!(sequence.below(bound) < bound);
            assert!((0.0..1.0).contains(&sequence.unit()));
        }
    }
}
