//! The scalars of a verification: u₁ = e/s and u₂ = r/s modulo n, for many signatures with one inversion.

use crate::digits::Digits;
use crate::limbs::{self, Limbs, N, P};
use crate::residue::Scalar;
use crate::signature::Signature;

/// p − n: an r below it may stand for the x-coordinate r + n too.
const P_MINUS_N: Limbs = limbs::sub(&P, &N).0;

/// The input of the curve's part of a verification: R = u₁·G + u₂·Q has an x-coordinate that is r modulo n.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PreparedSignature {
    /// u₁ in the generator's windows.
    pub(crate) base: Digits,
    /// u₂ in the key's windows.
    pub(crate) key: Digits,
    /// The numbers below p that are r modulo n: r, and r + n if that is below p, else r again.
    pub(crate) candidates: [Limbs; 2],
}

/// A signature's numbers, in range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InRange {
    r: Limbs,
    s: Limbs,
    digest: Limbs,
}

impl InRange {
    /// Reads a signature over a digest. Returns nothing unless r and s are between 1 and n − 1.
    #[inline]
    pub(crate) fn new(digest: &[u8; 32], signature: &Signature) -> Option<InRange> {
        let (r, s) = (limbs::from_bytes(&signature.r), limbs::from_bytes(&signature.s));
        let in_range = |number: &Limbs| !limbs::is_zero(number) && limbs::is_less(number, &N);
        (in_range(&r) && in_range(&s)).then(|| InRange { r, s, digest: limbs::from_bytes(digest) })
    }

    /// The scalars, given s⁻¹.
    #[inline]
    fn prepare(&self, inverse: &Scalar, windows: WindowSizes) -> PreparedSignature {
        let (r_and_n, carry) = limbs::add(&self.r, &N);
        let fits = limbs::is_less(&self.r, &P_MINUS_N);
        debug_assert!(!fits || carry == 0, "p is below 2^256");
        PreparedSignature {
            base: Digits::new(&inverse.times_number(&self.digest), windows.base),
            key: Digits::new(&inverse.times_number(&self.r), windows.key),
            candidates: [self.r, if fits { r_and_n } else { self.r }],
        }
    }
}

/// Bits of a window of the generator's table and of the keys'.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WindowSizes {
    pub(crate) base: u32,
    pub(crate) key: u32,
}

/// Prepares one signature.
pub(crate) fn prepare_one(signature: &InRange, windows: WindowSizes) -> Option<PreparedSignature> {
    let inverse = Scalar::new(&signature.s).inverted()?;
    Some(signature.prepare(&inverse, windows))
}

/// Prepares signatures together. Returns nothing if an s has no inverse, which cannot happen for numbers in range.
pub(crate) fn prepare_many(
    signatures: &[InRange],
    windows: impl Fn(usize) -> WindowSizes,
) -> Option<Vec<PreparedSignature>> {
    // products[i] is the product of all s before i. Every s is taken for a Montgomery form, that is for s/2^256: this
    // saves bringing it there, and the inverses come out multiplied by 2^256 twice instead of once.
    let mut products = Vec::with_capacity(signatures.len());
    let mut product = Scalar::ONE;
    for signature in signatures {
        products.push(product);
        product = product.times(&Scalar::from_montgomery(signature.s));
    }
    // Dividing by 2^256 once more makes up for that.
    let mut inverse = Scalar::from_montgomery(product.inverted()?.number());
    let mut prepared = Vec::with_capacity(signatures.len());
    for (i, (signature, product)) in signatures.iter().zip(&products).enumerate().rev() {
        prepared.push(signature.prepare(&inverse.times(product), windows(i)));
        inverse = inverse.times(&Scalar::from_montgomery(signature.s));
    }
    prepared.reverse();
    Some(prepared)
}
