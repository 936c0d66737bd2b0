//! Scalars as signed odd digits, one for each window of a table.
//!
//! An odd number k below 2^(w·m) is Σ dᵢ·2^(w·i) over m windows of w bits, with every dᵢ odd and between −(2^w − 1) and
//! 2^w − 1. Take t = (k + 2^(w·m) − 1)/2 = ⌊k/2⌋ + 2^(w·m − 1), which is below 2^(w·m), and let bᵢ be its windows. Then
//! dᵢ = 2·bᵢ − (2^w − 1) are the digits, since Σ (2·bᵢ − (2^w − 1))·2^(w·i) = 2·t − (2^(w·m) − 1) = k. No digit is
//! zero, so no term of a sum is infinity.
//!
//! The order n of the group is odd. So an even k is replaced by the odd number n − k, and every digit then changes its
//! sign. In this way k = 0 becomes n, and the terms of n·P add up to infinity. If the sum also has the terms of the
//! other scalar, these terms cancel, and the sum is right. A sum of these terms alone ends in an exceptional addition,
//! which is detected.

use crate::limbs::{self, Limbs, N};

/// Bits of a number modulo n.
const SCALAR_BITS: u32 = 256;

/// Windows of `window` bits that a scalar has.
pub(crate) const fn windows(window: u32) -> usize {
    SCALAR_BITS.div_ceil(window) as usize
}

/// Entries of a table for each window: the odd multiples from 1 to 2^window − 1.
pub(crate) const fn entries(window: u32) -> usize {
    1 << (window - 1)
}

/// A scalar, ready to be read window by window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Digits {
    /// t, with a limb of zeroes above.
    t: [u64; 6],
    /// Whether every digit changes its sign.
    turned: bool,
}

/// One digit: the table's entry, and whether it is subtracted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Digit {
    pub(crate) entry: usize,
    pub(crate) negative: bool,
}

impl Digits {
    /// The digits of a scalar below n.
    #[inline]
    pub(crate) fn new(scalar: &Limbs, window: u32) -> Digits {
        let turned = scalar[0] & 1 == 0;
        let k = if turned { limbs::sub(&N, scalar).0 } else { *scalar };
        let mut t = [k[0] >> 1 | k[1] << 63, k[1] >> 1 | k[2] << 63, k[2] >> 1 | k[3] << 63, k[3] >> 1, 0, 0];
        // Nothing is carried: ⌊k/2⌋ is below 2^255, and the bit that is added is bit 255 or a higher one.
        let top = (windows(window) as u32).wrapping_mul(window).wrapping_sub(1);
        t[(top / 64) as usize] |= 1 << (top % 64);
        Digits { t, turned }
    }

    /// The digit of a window, which must be as wide as the windows that the scalar was made for.
    #[inline(always)]
    pub(crate) fn digit(&self, window: &Window) -> Digit {
        let Window { limb, shift, half } = *window;
        let bits = self.t[limb] >> shift | (self.t[limb + 1] << 1) << (63 - shift);
        // b ≥ 2^(w−1) is the digit 2·(b − 2^(w−1)) + 1. Below, the digit's absolute value is 2^w − 1 − 2·b, the entry
        // 2^(w−1) − 1 − b.
        let positive = bits & half != 0;
        let entry = if positive { bits } else { !bits } & (half - 1);
        Digit { entry: entry as usize, negative: positive == self.turned }
    }
}

/// Where a window lies in a scalar.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    limb: usize,
    shift: u32,
    /// 2^(w − 1).
    half: u64,
}

impl Window {
    /// Window `i` of those that are `window` bits wide.
    #[inline(always)]
    pub(crate) fn new(window: u32, i: usize) -> Window {
        let bit = (i as u32).wrapping_mul(window);
        // The highest window of any scalar begins below bit 256 and ends in limb 4.
        Window { limb: (bit / 64 % 8) as usize, shift: bit % 64, half: 1 << (window - 1) }
    }
}

#[cfg(test)]
mod tests {
    use num_bigint::{BigInt, BigUint, Sign};

    use super::*;

    fn big(limbs: &Limbs) -> BigInt {
        BigInt::from_bytes_be(Sign::Plus, &limbs::to_bytes(limbs))
    }

    #[test]
    fn digits_are_odd_and_sum_up_to_the_scalar() {
        let n = big(&N);
        let minus = |k: u64| limbs::sub(&N, &[k, 0, 0, 0]).0;
        let mut scalars =
            vec![[0; 4], [1, 0, 0, 0], [2, 0, 0, 0], minus(1), minus(2), minus(3), [u64::MAX; 4], [0, 0, 0, 1 << 63]];
        scalars[6] = [u64::MAX, u64::MAX, u64::MAX, 0xffff_fffe_ffff_ffff];
        let mut state = BigUint::from(3u8);
        for _ in 0..200 {
            state = (&state * &state + 7u8) % n.magnitude();
            let mut bytes = [0; 32];
            let spelled = state.to_bytes_be();
            bytes[32 - spelled.len()..].copy_from_slice(&spelled);
            scalars.push(limbs::from_bytes(&bytes));
        }
        for window in 1..=16 {
            for scalar in &scalars {
                let digits = Digits::new(scalar, window);
                let mut sum = BigInt::from(0);
                for i in (0..windows(window)).rev() {
                    let Digit { entry, negative } = digits.digit(&Window::new(window, i));
                    assert!(entry < entries(window));
                    let digit = BigInt::from(2 * entry + 1);
                    sum = (sum << window) + if negative { -digit } else { digit };
                }
                let difference: BigInt = sum - big(scalar);
                assert_eq!(difference % &n, BigInt::from(0), "window {window}, {scalar:x?}");
            }
        }
    }
}
