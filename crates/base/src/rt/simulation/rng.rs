//! A seeded random generator: xoshiro256++ (Blackman and Vigna), its state filled from the seed by splitmix64.
//!
//! Not for secrets. Every choice of a simulation comes from one such generator, so the seed decides all of them.

use std::ops::Range;
use std::time::Duration;

/// A random generator that depends only on its seed.
#[derive(Clone, Debug)]
pub struct Prng {
    state: [u64; 4],
}

impl Prng {
    /// A generator for `seed`; every seed is as good as another.
    pub fn new(seed: u64) -> Prng {
        let mut mixed = seed;
        let state = std::array::from_fn(|_| {
            mixed = mixed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = mixed;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        });
        Prng { state }
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.state;
        let result = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }

    /// A number in `0..bound`. Panics when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "a random number below zero does not exist");
        ((u128::from(self.number()) * u128::from(bound)) >> 64) as u64
    }

    /// An index into something of length `length`. Panics when `length` is 0.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// True once in `times` on average. Panics when `times` is 0.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// True with a probability from 0 to 1.
    pub fn with_probability(&mut self, probability: f64) -> bool {
        // 53 bits fill the fraction of a double exactly.
        ((self.number() >> 11) as f64) * (1.0 / (1u64 << 53) as f64) < probability
    }

    /// A duration in a range; the start of an empty range.
    pub fn duration(&mut self, range: &Range<Duration>) -> Duration {
        let width = range.end.saturating_sub(range.start).as_nanos();
        let width = u64::try_from(width).unwrap_or(u64::MAX);
        range.start + Duration::from_nanos(self.below(width.max(1)))
    }

    /// One of `choices`. Panics when there are none.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.index(choices.len())]
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let number = self.number().to_le_bytes();
            chunk.copy_from_slice(&number[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_stay_in_their_range_and_repeat_with_the_seed(seed: u64, bound in 1u64..) {
            let (mut one, mut two) = (Prng::new(seed), Prng::new(seed));
            for _ in 0..32 {
                let number = one.below(bound);
                prop_assert!(number < bound);
                prop_assert_eq!(number, two.below(bound));
            }
        }
    }

    #[test]
    fn choices_are_spread_evenly() {
        let mut rng = Prng::new(1);
        let mut counts = [0u32; 7];
        for _ in 0..70_000 {
            counts[rng.index(7)] += 1;
        }
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
        let heads = (0..10_000).filter(|_| rng.with_probability(0.25)).count();
        assert!((2_300..2_700).contains(&heads), "{heads}");
        assert!(!rng.with_probability(0.0) && rng.with_probability(1.0));
    }
}
