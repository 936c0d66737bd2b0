//! Numbers modulo p or n in Montgomery form, four 64-bit limbs: the portable arithmetic.
//!
//! A [`Residue`] holds a·2^256 mod m. Invariant: its limbs are always below m, so equality of limbs is equality of
//! residues, and zero has one form.

use std::marker::PhantomData;

use crate::inverse;
use crate::limbs::{self, Limbs, add_carry, multiply_add};

/// A prime modulus above 2^255 and below 2^256.
pub(crate) trait Modulus: Copy + Eq {
    const MODULUS: Limbs;
    /// −m⁻¹ mod 2^64.
    const NEGATED_INVERSE: u64 = negated_inverse(Self::MODULUS[0]);
    /// 2^512 mod m: multiplying by it brings a number into Montgomery form.
    const R_SQUARED: Limbs = power_of_two(&Self::MODULUS, 512);

    /// a·b/2^256 mod m, below m, where one of a and b is below m and the other below 2^256.
    #[inline(always)]
    fn product(a: &Limbs, b: &Limbs) -> Limbs {
        montgomery_product::<Self>(a, b)
    }
}

/// Modulo p, the field's prime.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FieldPrime {}

/// Modulo n, the group's order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GroupOrder {}

impl Modulus for FieldPrime {
    const MODULUS: Limbs = limbs::P;

    #[inline(always)]
    fn product(a: &Limbs, b: &Limbs) -> Limbs {
        field_product(a, b)
    }
}

impl Modulus for GroupOrder {
    const MODULUS: Limbs = limbs::N;
}

const fn negated_inverse(odd: u64) -> u64 {
    // Each step doubles the number of right bits, from three (odd² = 1 mod 8) to 96.
    let mut inverse = odd;
    let mut step = 0;
    while step < 5 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(inverse)));
        step += 1;
    }
    inverse.wrapping_neg()
}

/// 2^exponent mod m, for m above 2^255.
pub(crate) const fn power_of_two(modulus: &Limbs, exponent: u32) -> Limbs {
    let mut power = [1, 0, 0, 0];
    let mut i = 0;
    while i < exponent {
        let (doubled, carry) = limbs::add(&power, &power);
        // Twice a number below m is below 2m, so one subtraction suffices.
        power =
            if carry == 1 || !limbs::is_less(&doubled, modulus) { limbs::sub(&doubled, modulus).0 } else { doubled };
        i += 1;
    }
    power
}

/// a·2^256 mod m, below m.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Residue<M>(Limbs, PhantomData<M>);

/// A residue modulo p.
pub(crate) type FieldElement = Residue<FieldPrime>;
/// A residue modulo n.
pub(crate) type Scalar = Residue<GroupOrder>;

impl<M: Modulus> Residue<M> {
    pub(crate) const ZERO: Self = Self::from_montgomery([0; 4]);
    pub(crate) const ONE: Self = Self::from_montgomery(power_of_two(&M::MODULUS, 256));

    /// Takes limbs that are in Montgomery form already, and below m.
    #[inline(always)]
    pub(crate) const fn from_montgomery(limbs: Limbs) -> Self {
        Residue(limbs, PhantomData)
    }

    /// The limbs of the Montgomery form.
    #[inline(always)]
    pub(crate) const fn montgomery(&self) -> &Limbs {
        &self.0
    }

    /// The residue of any 256-bit number.
    #[inline(always)]
    pub(crate) fn new(number: &Limbs) -> Self {
        Residue(M::product(number, &M::R_SQUARED), PhantomData)
    }

    /// The residue as a number below m.
    #[inline(always)]
    pub(crate) fn number(&self) -> Limbs {
        M::product(&self.0, &[1, 0, 0, 0])
    }

    /// The number number·self mod m, below m, for any 256-bit number: one product, since the factor 2^256 in this
    /// residue and the 2^−256 of the product cancel.
    #[inline(always)]
    pub(crate) fn times_number(&self, number: &Limbs) -> Limbs {
        M::product(number, &self.0)
    }

    #[inline(always)]
    pub(crate) const fn is_zero(&self) -> bool {
        limbs::is_zero(&self.0)
    }

    #[inline(always)]
    pub(crate) fn times(&self, other: &Self) -> Self {
        Residue(M::product(&self.0, &other.0), PhantomData)
    }

    #[inline(always)]
    pub(crate) fn squared(&self) -> Self {
        self.times(self)
    }

    #[inline(always)]
    pub(crate) fn plus(&self, other: &Self) -> Self {
        let (sum, carry) = limbs::add(&self.0, &other.0);
        Residue(subtract_once::<M>(&sum, carry), PhantomData)
    }

    #[inline(always)]
    pub(crate) fn doubled(&self) -> Self {
        self.plus(self)
    }

    #[inline(always)]
    pub(crate) fn minus(&self, other: &Self) -> Self {
        let (difference, borrow) = limbs::sub(&self.0, &other.0);
        // A borrow means that the difference is 2^256 too large. Adding m carries out of the top and takes that back.
        let mask = 0u64.wrapping_sub(borrow);
        let m = M::MODULUS;
        Residue(limbs::add(&difference, &[m[0] & mask, m[1] & mask, m[2] & mask, m[3] & mask]).0, PhantomData)
    }

    #[inline(always)]
    pub(crate) fn negated(&self) -> Self {
        Self::ZERO.minus(self)
    }

    /// The inverse, or nothing for zero.
    pub(crate) fn inverted(&self) -> Option<Self> {
        // The limbs spell a·R. Their inverse a⁻¹·R⁻¹ takes R² and another R to become a⁻¹·R.
        if let Some(inverse) = inverse::modulo(&M::MODULUS, &self.0) {
            let inverted = Self::new(&inverse);
            let inverted = Residue(M::product(&inverted.0, &M::R_SQUARED), PhantomData);
            if inverted.times(self) == Self::ONE {
                return Some(inverted);
            }
        }
        if self.is_zero() { None } else { Some(self.inverted_by_power()) }
    }

    /// The inverse by Fermat's little theorem, a^(m−2): 255 squares, but nothing that could go wrong.
    pub(crate) fn inverted_by_power(&self) -> Self {
        let exponent = limbs::sub(&M::MODULUS, &[2, 0, 0, 0]).0;
        let mut power = Self::ONE;
        for bit in (0..256).rev() {
            power = power.squared();
            if exponent[bit / 64] >> (bit % 64) & 1 == 1 {
                power = power.times(self);
            }
        }
        power
    }
}

/// number − m if number ≥ m, where `carry` stands for another 2^256. The number is below 2m.
#[inline(always)]
const fn subtract_once<M: Modulus>(number: &Limbs, carry: u64) -> Limbs {
    let (reduced, borrow) = limbs::sub(number, &M::MODULUS);
    // The number is below m exactly when the subtraction borrows and no carry pays for it.
    let keep = 0u64.wrapping_sub(borrow & (1 ^ carry));
    [
        (number[0] & keep) | (reduced[0] & !keep),
        (number[1] & keep) | (reduced[1] & !keep),
        (number[2] & keep) | (reduced[2] & !keep),
        (number[3] & keep) | (reduced[3] & !keep),
    ]
}

/// a·b/2^256 mod m, below m, for any a below 2^256 and any b below m, or the other way round.
///
/// Each of four steps adds a·bᵢ and the multiple of m that makes the lowest limb zero, and drops that limb. After a
/// step the sum is below a + m < 2^257: five limbs hold it, the fifth 0 or 1. At the end it is (a·b + q·m)/2^256 with q
/// < 2^256, hence below (2^256·m + 2^256·m)/2^256 = 2m, and one subtraction brings it below m.
#[inline(always)]
const fn montgomery_product<M: Modulus>(a: &Limbs, b: &Limbs) -> Limbs {
    let m = M::MODULUS;
    let mut t = [0u64; 5];
    let mut i = 0;
    while i < 4 {
        let (t0, c) = multiply_add(a[0], b[i], t[0], 0);
        let (t1, c) = multiply_add(a[1], b[i], t[1], c);
        let (t2, c) = multiply_add(a[2], b[i], t[2], c);
        let (t3, c) = multiply_add(a[3], b[i], t[3], c);
        let (t4, t5) = add_carry(t[4], c, 0);
        let q = t0.wrapping_mul(M::NEGATED_INVERSE);
        let (_, c) = multiply_add(q, m[0], t0, 0);
        let (r0, c) = multiply_add(q, m[1], t1, c);
        let (r1, c) = multiply_add(q, m[2], t2, c);
        let (r2, c) = multiply_add(q, m[3], t3, c);
        let (r3, c) = add_carry(t4, c, 0);
        t = [r0, r1, r2, r3, t5.wrapping_add(c)];
        i += 1;
    }
    subtract_once::<M>(&[t[0], t[1], t[2], t[3]], t[4])
}

/// The same for p, whose form saves most of the products. −p⁻¹ mod 2^64 is 1, so the multiple that clears the lowest
/// limb is that limb q itself, and q·p = q·(p + 1) − q, where −q is what clears it and p + 1 = 2^96 + (2^64 − 2^32 +
/// 1)·2^192. The bounds are those above.
#[inline(always)]
fn field_product(a: &Limbs, b: &Limbs) -> Limbs {
    const TOP: u64 = limbs::P[3];
    let mut t = [0u64; 5];
    for &digit in b {
        let (q, c) = multiply_add(a[0], digit, t[0], 0);
        let (t1, c) = multiply_add(a[1], digit, t[1], c);
        let (t2, c) = multiply_add(a[2], digit, t[2], c);
        let (t3, c) = multiply_add(a[3], digit, t[3], c);
        let (t4, t5) = add_carry(t[4], c, 0);
        let (low, high) = multiply_add(q, TOP, 0, 0);
        let (r0, c) = add_carry(t1, q << 32, 0);
        let (r1, c) = add_carry(t2, q >> 32, c);
        let (r2, c) = add_carry(t3, low, c);
        let (r3, c) = add_carry(t4, high, c);
        t = [r0, r1, r2, r3, t5.wrapping_add(c)];
    }
    subtract_once::<FieldPrime>(&[t[0], t[1], t[2], t[3]], t[4])
}
