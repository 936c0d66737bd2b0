//! 256-bit numbers as four 64-bit limbs, least significant first, and the curve's constants.
//!
//! Overflow is expected here: operations wrap, and the code propagates carries and borrows explicitly.

/// Four 64-bit limbs, least significant first.
pub(crate) type Limbs = [u64; 4];

/// The field's prime p = 2^256 − 2^224 + 2^192 + 2^96 − 1.
pub(crate) const P: Limbs = [0xffff_ffff_ffff_ffff, 0x0000_0000_ffff_ffff, 0, 0xffff_ffff_0000_0001];
/// The order n of the group, a prime.
pub(crate) const N: Limbs =
    [0xf3b9_cac2_fc63_2551, 0xbce6_faad_a717_9e84, 0xffff_ffff_ffff_ffff, 0xffff_ffff_0000_0000];
/// The curve's constant b in y² = x³ − 3x + b.
pub(crate) const B: Limbs =
    [0x3bce_3c3e_27d2_604b, 0x651d_06b0_cc53_b0f6, 0xb3eb_bd55_7698_86bc, 0x5ac6_35d8_aa3a_93e7];
/// The generator's x.
pub(crate) const GX: Limbs =
    [0xf4a1_3945_d898_c296, 0x7703_7d81_2deb_33a0, 0xf8bc_e6e5_63a4_40f2, 0x6b17_d1f2_e12c_4247];
/// The generator's y.
pub(crate) const GY: Limbs =
    [0xcbb6_4068_37bf_51f5, 0x2bce_3357_6b31_5ece, 0x8ee7_eb4a_7c0f_9e16, 0x4fe3_42e2_fe1a_7f9b];

/// a + b + carry as a digit and the next carry, 0 or 1.
#[inline(always)]
pub(crate) const fn add_carry(a: u64, b: u64, carry: u64) -> (u64, u64) {
    let (sum, one) = a.overflowing_add(b);
    let (sum, two) = sum.overflowing_add(carry);
    (sum, one as u64 | two as u64)
}

/// a − b − borrow as a digit and the next borrow, 0 or 1.
#[inline(always)]
pub(crate) const fn sub_borrow(a: u64, b: u64, borrow: u64) -> (u64, u64) {
    let (difference, one) = a.overflowing_sub(b);
    let (difference, two) = difference.overflowing_sub(borrow);
    (difference, one as u64 | two as u64)
}

/// a·b + c + d as low and high digit. It fits: (2^64 − 1)² + 2·(2^64 − 1) = 2^128 − 1.
#[inline(always)]
pub(crate) const fn multiply_add(a: u64, b: u64, c: u64, d: u64) -> (u64, u64) {
    let wide = (a as u128).wrapping_mul(b as u128).wrapping_add(c as u128).wrapping_add(d as u128);
    (wide as u64, (wide >> 64) as u64)
}

/// a + b modulo 2^256, and the carry.
#[inline(always)]
pub(crate) const fn add(a: &Limbs, b: &Limbs) -> (Limbs, u64) {
    let (r0, c) = add_carry(a[0], b[0], 0);
    let (r1, c) = add_carry(a[1], b[1], c);
    let (r2, c) = add_carry(a[2], b[2], c);
    let (r3, c) = add_carry(a[3], b[3], c);
    ([r0, r1, r2, r3], c)
}

/// a − b modulo 2^256, and the borrow.
#[inline(always)]
pub(crate) const fn sub(a: &Limbs, b: &Limbs) -> (Limbs, u64) {
    let (r0, c) = sub_borrow(a[0], b[0], 0);
    let (r1, c) = sub_borrow(a[1], b[1], c);
    let (r2, c) = sub_borrow(a[2], b[2], c);
    let (r3, c) = sub_borrow(a[3], b[3], c);
    ([r0, r1, r2, r3], c)
}

/// Whether a < b.
#[inline(always)]
pub(crate) const fn is_less(a: &Limbs, b: &Limbs) -> bool {
    sub(a, b).1 == 1
}

/// Whether a is zero.
#[inline(always)]
pub(crate) const fn is_zero(a: &Limbs) -> bool {
    a[0] | a[1] | a[2] | a[3] == 0
}

/// The number that 32 bytes spell, most significant first.
#[inline(always)]
pub(crate) fn from_bytes(bytes: &[u8; 32]) -> Limbs {
    let limb = |at: usize| u64::from_be_bytes(std::array::from_fn(|i| bytes[at + i]));
    [limb(24), limb(16), limb(8), limb(0)]
}

/// The 32 bytes that spell a number, most significant first.
pub(crate) fn to_bytes(limbs: &Limbs) -> [u8; 32] {
    let mut bytes = [0; 32];
    for (chunk, limb) in bytes.chunks_exact_mut(8).zip(limbs.iter().rev()) {
        chunk.copy_from_slice(&limb.to_be_bytes());
    }
    bytes
}
