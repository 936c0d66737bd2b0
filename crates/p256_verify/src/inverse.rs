//! Inverses modulo an odd prime, in variable time, by Bernstein and Yang's division steps.
//!
//! To invert a modulo m:
//!
//! 1. Keep f (always odd), g, d and e with d·a = f and e·a = g modulo m. Start with f = m, g = a, d = 0, e = 1.
//! 2. 62 division steps depend on the low 62 bits of f and g alone. [`steps`] does them on single words and returns a
//!    matrix of four words; [`Steps::apply`] applies it to f and g, and [`Steps::apply_modulo`] to d and e.
//! 3. When g is zero, f is ±gcd(m, a) = ±1, and ±d is the inverse.
//!
//! For 256-bit numbers, 741 steps always suffice (Bernstein and Yang, "Fast constant-time gcd computation and modular
//! inversion", section 11), so twelve rounds of step 2 suffice. The caller multiplies the result by a. If the product
//! is not 1, the caller computes the inverse as a power instead. So a mistake here costs time, but never changes a
//! verdict.
//!
//! Two techniques follow libsecp256k1's documentation of its own variant (doc/safegcd_implementation.md; Copyright (c)
//! 2013 Pieter Wuille, MIT licence): zeroes are shifted out together, and several bits are cancelled at once while the
//! sign of delta cannot change. The code is our own.

use crate::limbs::Limbs;

/// Steps in a round: the most that fit into signed 64-bit matrices.
const STEPS: u32 = 62;
const MASK: u64 = (1 << STEPS) - 1;
/// Rounds that suffice for every 256-bit number: 12 · 62 = 744 ≥ 741.
const ROUNDS_MAX: usize = 12;

/// A signed number as five digits of 62 bits, least significant first; the last digit carries the sign.
#[derive(Clone, Copy)]
struct SignedLimbs([i64; 5]);

impl SignedLimbs {
    fn new(n: &Limbs) -> SignedLimbs {
        let digit = |low: u64| (low & MASK) as i64;
        SignedLimbs([
            digit(n[0]),
            digit(n[0] >> 62 | n[1] << 2),
            digit(n[1] >> 60 | n[2] << 4),
            digit(n[2] >> 58 | n[3] << 6),
            (n[3] >> 56) as i64,
        ])
    }

    /// The number's limbs; it is not negative and below 2^256.
    fn limbs(&self) -> Limbs {
        let d = self.0.map(|digit| digit as u64);
        [d[0] | d[1] << 62, d[1] >> 2 | d[2] << 60, d[2] >> 4 | d[3] << 58, d[3] >> 6 | d[4] << 56]
    }

    fn is_zero(&self) -> bool {
        self.0 == [0; 5]
    }

    fn is_negative(&self) -> bool {
        self.0[4] < 0
    }

    /// self + factor·other, for a factor of −1, 0 or 1, with digits carried.
    fn plus(&self, factor: i64, other: &SignedLimbs) -> SignedLimbs {
        let mut sum = SignedLimbs([0; 5]);
        let mut carry = 0i64;
        for i in 0..5 {
            let digit = self.0[i].wrapping_add(factor.wrapping_mul(other.0[i])).wrapping_add(carry);
            sum.0[i] = if i < 4 { digit & MASK as i64 } else { digit };
            carry = digit >> STEPS;
        }
        sum
    }
}

/// 2^62 times what 62 division steps do: f' = (u·f + v·g)/2^62, g' = (q·f + r·g)/2^62. Each row's absolute values add
/// up to 2^62 at most, since a step at most doubles a row's sum.
struct Steps {
    u: i64,
    v: i64,
    q: i64,
    r: i64,
}

/// Does 62 division steps on the low words of f and g. Returns the new delta, which is 1 − (steps since the last swap)
/// or so.
fn steps(mut delta: i64, mut f: u64, mut g: u64) -> (i64, Steps) {
    let (mut u, mut v, mut q, mut r) = (1u64, 0u64, 0u64, 1u64);
    let mut left = STEPS;
    loop {
        // An even g is halved. The guard bit ends this at the round's end.
        let zeroes = (g | 1 << left).trailing_zeros();
        g >>= zeroes;
        u <<= zeroes;
        v <<= zeroes;
        delta = delta.wrapping_add(i64::from(zeroes));
        left = left.wrapping_sub(zeroes);
        if left == 0 {
            break;
        }
        if delta > 0 {
            delta = delta.wrapping_neg();
            (f, g) = (g, f.wrapping_neg());
            (u, q) = (q, u.wrapping_neg());
            (v, r) = (r, v.wrapping_neg());
        }
        // Delta is not above zero now, so the next −delta steps swap nothing either, and with them, the bits that they
        // clear can be cleared by one multiple of f. f·(f² − 2) = −f⁻¹ modulo 64 for odd f.
        let bits = (delta.wrapping_neg().wrapping_add(1)).min(i64::from(left)).min(6) as u32;
        let w = f.wrapping_mul(f).wrapping_sub(2).wrapping_mul(f).wrapping_mul(g) & ((1 << bits) - 1);
        g = g.wrapping_add(f.wrapping_mul(w));
        q = q.wrapping_add(u.wrapping_mul(w));
        r = r.wrapping_add(v.wrapping_mul(w));
    }
    (delta, Steps { u: u as i64, v: v as i64, q: q as i64, r: r as i64 })
}

fn product(a: i64, b: i64) -> i128 {
    i128::from(a).wrapping_mul(i128::from(b))
}

impl Steps {
    /// (u·f + v·g)/2^62 and (q·f + r·g)/2^62; the divisions leave no remainder.
    fn apply(&self, f: &SignedLimbs, g: &SignedLimbs) -> (SignedLimbs, SignedLimbs) {
        let (mut next_f, mut next_g) = (SignedLimbs([0; 5]), SignedLimbs([0; 5]));
        let (mut sum_f, mut sum_g) = (0i128, 0i128);
        for i in 0..5 {
            sum_f = sum_f.wrapping_add(product(self.u, f.0[i])).wrapping_add(product(self.v, g.0[i]));
            sum_g = sum_g.wrapping_add(product(self.q, f.0[i])).wrapping_add(product(self.r, g.0[i]));
            if i > 0 {
                next_f.0[i - 1] = sum_f as i64 & MASK as i64;
                next_g.0[i - 1] = sum_g as i64 & MASK as i64;
            }
            sum_f >>= STEPS;
            sum_g >>= STEPS;
        }
        next_f.0[4] = sum_f as i64;
        next_g.0[4] = sum_g as i64;
        (next_f, next_g)
    }

    /// The same modulo m: a multiple of m makes the divisions exact. Takes and returns numbers in (−2m, m).
    fn apply_modulo(
        &self,
        d: &SignedLimbs,
        e: &SignedLimbs,
        modulus: &SignedLimbs,
        inverse: u64,
    ) -> (SignedLimbs, SignedLimbs) {
        // Negative numbers count as increased by m, which keeps the results in range: with d, e in (−m, m) then,
        // |u·d + v·e| < 2^62·m, and a multiple below 2^62 of m is taken away.
        let (mask_d, mask_e) = (d.0[4] >> 63, e.0[4] >> 63);
        let mut multiple_d = (self.u & mask_d).wrapping_add(self.v & mask_e);
        let mut multiple_e = (self.q & mask_d).wrapping_add(self.r & mask_e);
        let mut sum_d = product(self.u, d.0[0]).wrapping_add(product(self.v, e.0[0]));
        let mut sum_e = product(self.q, d.0[0]).wrapping_add(product(self.r, e.0[0]));
        let low =
            |sum: i128, multiple: i64| (inverse.wrapping_mul(sum as u64).wrapping_add(multiple as u64) & MASK) as i64;
        multiple_d = multiple_d.wrapping_sub(low(sum_d, multiple_d));
        multiple_e = multiple_e.wrapping_sub(low(sum_e, multiple_e));
        sum_d = sum_d.wrapping_add(product(modulus.0[0], multiple_d)) >> STEPS;
        sum_e = sum_e.wrapping_add(product(modulus.0[0], multiple_e)) >> STEPS;
        let (mut next_d, mut next_e) = (SignedLimbs([0; 5]), SignedLimbs([0; 5]));
        for i in 1..5 {
            let with_d = product(self.u, d.0[i]).wrapping_add(product(self.v, e.0[i]));
            let with_e = product(self.q, d.0[i]).wrapping_add(product(self.r, e.0[i]));
            sum_d = sum_d.wrapping_add(with_d).wrapping_add(product(modulus.0[i], multiple_d));
            sum_e = sum_e.wrapping_add(with_e).wrapping_add(product(modulus.0[i], multiple_e));
            next_d.0[i - 1] = sum_d as i64 & MASK as i64;
            next_e.0[i - 1] = sum_e as i64 & MASK as i64;
            sum_d >>= STEPS;
            sum_e >>= STEPS;
        }
        next_d.0[4] = sum_d as i64;
        next_e.0[4] = sum_e as i64;
        (next_d, next_e)
    }
}

/// m⁻¹ mod 2^62 for odd m.
fn inverse_of_low(m: u64) -> u64 {
    let mut inverse = m;
    for _ in 0..5 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(m.wrapping_mul(inverse)));
    }
    inverse & MASK
}

/// The inverse of `number` modulo an odd prime above 2^255, below it, or nothing for a multiple of the prime.
pub(crate) fn modulo(prime: &Limbs, number: &Limbs) -> Option<Limbs> {
    let modulus = SignedLimbs::new(prime);
    let low_inverse = inverse_of_low(prime[0]);
    let (mut f, mut g) = (modulus, SignedLimbs::new(number));
    let (mut d, mut e) = (SignedLimbs([0; 5]), SignedLimbs([1, 0, 0, 0, 0]));
    let mut delta = 1i64;
    for _ in 0..ROUNDS_MAX {
        let word = |n: &SignedLimbs| (n.0[0] as u64) | (n.0[1] as u64) << STEPS;
        let (next, matrix) = steps(delta, word(&f), word(&g));
        delta = next;
        (d, e) = matrix.apply_modulo(&d, &e, &modulus, low_inverse);
        (f, g) = matrix.apply(&f, &g);
        if !g.is_zero() {
            continue;
        }
        // f is the greatest common divisor or its negative; d·a = f.
        let is_unit = if f.is_negative() {
            f.0 == [MASK as i64, MASK as i64, MASK as i64, MASK as i64, -1]
        } else {
            f.0 == [1, 0, 0, 0, 0]
        };
        if !is_unit {
            return None;
        }
        let mut inverse = if f.is_negative() { SignedLimbs([0; 5]).plus(-1, &d) } else { d };
        // In (−2m, 2m): at most two additions or one subtraction.
        for _ in 0..2 {
            if inverse.is_negative() {
                inverse = inverse.plus(1, &modulus);
            }
        }
        let reduced = inverse.plus(-1, &modulus);
        let inverse = if reduced.is_negative() { inverse } else { reduced };
        return Some(inverse.limbs());
    }
    None
}
