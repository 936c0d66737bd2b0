//! The DER that this crate reads and writes by hand: ECDSA signatures and their canonical low-S form.
//!
//! An ECDSA signature is `SEQUENCE { INTEGER r, INTEGER s }`. For any valid (r, s) the pair (r, n − s) is valid too, so
//! a third party could change a signature's bytes without the key. Fabric therefore accepts only the pair whose s is at
//! most n/2. This module parses strictly (shortest lengths, positive minimal integers, no trailing bytes), decides
//! whether s is low, and replaces a high s by n − s.
//!
//! Left to others: whether r and s are in range, and whether the signature verifies ([`crate::key`]).
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

/// The widest group order in bytes that we know (P-384).
const ORDER_BYTES_MAX: usize = 48;

/// The longest DER signature: two 48-byte integers with a sign byte each, and the headers.
pub(crate) const SIGNATURE_BYTES_MAX: usize = 2 * (2 + 1 + ORDER_BYTES_MAX) + 2;

const TAG_INTEGER: u8 = 0x02;
const TAG_SEQUENCE: u8 = 0x30;
/// Lengths below this fit DER's short form, and all of ours do.
const SHORT_FORM_LIMIT: usize = 0x80;

const _: () = assert!(SIGNATURE_BYTES_MAX - 2 < SHORT_FORM_LIMIT);

/// The order of a curve's group and half of it, big-endian.
#[derive(Debug)]
pub(crate) struct CurveOrder<const N: usize> {
    n: [u8; N],
    half: [u8; N],
}

impl<const N: usize> CurveOrder<N> {
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    const fn new(n: [u8; N]) -> Self {
        let mut half = [0u8; N];
        let mut carry = 0u8;
        let mut i = 0;
        while i < N {
            half[i] = (n[i] >> 1) | (carry << 7);
            carry = n[i] & 1;
            i += 1;
        }
        CurveOrder { n, half }
    }

    /// Left-pads a magnitude to the order's width, or nothing when it is wider.
    fn widen(magnitude: &[u8]) -> Option<[u8; N]> {
        let mut wide = [0u8; N];
        wide.get_mut(N.checked_sub(magnitude.len())?..)?.copy_from_slice(magnitude);
        Some(wide)
    }

    fn is_low(&self, s: &[u8]) -> bool {
        // A magnitude wider than the order is out of range, hence not low.
        Self::widen(s).is_some_and(|s| s <= self.half)
    }

    /// n − s for 0 < s < n, or nothing.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    fn complement(&self, s: &[u8]) -> Option<[u8; N]> {
        let s = Self::widen(s)?;
        if s >= self.n {
            return None;
        }
        let mut difference = [0u8; N];
        let mut borrow = 0i16;
        for i in (0..N).rev() {
            let digit = i16::from(self.n[i]) - i16::from(s[i]) - borrow;
            borrow = i16::from(digit < 0);
            difference[i] = digit.rem_euclid(256) as u8;
        }
        assert_eq!(borrow, 0, "s is smaller than n");
        Some(difference)
    }
}

static P256: CurveOrder<32> = CurveOrder::new([
    0xff, 0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x00, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xbc, 0xe6, 0xfa,
    0xad, 0xa7, 0x17, 0x9e, 0x84, 0xf3, 0xb9, 0xca, 0xc2, 0xfc, 0x63, 0x25, 0x51,
]);

static P384: CurveOrder<48> = CurveOrder::new([
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
    0xff, 0xff, 0xff, 0xff, 0xff, 0xc7, 0x63, 0x4d, 0x81, 0xf4, 0x37, 0x2d, 0xdf, 0x58, 0x1a, 0x0d, 0xb2, 0x48, 0xb0,
    0xa7, 0x7a, 0xec, 0xec, 0x19, 0x6a, 0xcc, 0xc5, 0x29, 0x73,
]);

/// A curve whose signatures have a canonical half.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Curve {
    P256,
    P384,
}

impl Curve {
    fn is_low(self, s: &[u8]) -> bool {
        match self {
            Curve::P256 => P256.is_low(s),
            Curve::P384 => P384.is_low(s),
        }
    }

    fn encode_complement(self, r: &[u8], s: &[u8]) -> Option<Vec<u8>> {
        match self {
            Curve::P256 => P256.complement(s).map(|s| encode(r, &s)),
            Curve::P384 => P384.complement(s).map(|s| encode(r, &s)),
        }
    }
}

/// The magnitudes of r and s, without leading zeroes, of a strictly encoded signature.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EcdsaSignature<'a> {
    r: &'a [u8],
    s: &'a [u8],
}

impl<'a> EcdsaSignature<'a> {
    /// Parses a signature, or nothing when it is not the DER encoding of two positive integers and no more.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        if bytes.len() > SIGNATURE_BYTES_MAX {
            return None;
        }
        let (body, rest) = element(bytes, TAG_SEQUENCE)?;
        let (r, body) = positive_integer(body)?;
        let (s, body) = positive_integer(body)?;
        (rest.is_empty() && body.is_empty()).then_some(EcdsaSignature { r, s })
    }

    /// r and s in 32 bytes each, or nothing when one is longer.
    pub(crate) fn words(&self) -> Option<p256_verify::Signature> {
        Some(p256_verify::Signature { r: CurveOrder::<32>::widen(self.r)?, s: CurveOrder::<32>::widen(self.s)? })
    }

    /// Whether s is at most half the group's order.
    pub(crate) fn is_low(&self, curve: Curve) -> bool {
        curve.is_low(self.s)
    }

    /// The encoding with s replaced by n − s, or nothing when s is already low or out of range.
    pub(crate) fn lowered(&self, curve: Curve) -> Option<Vec<u8>> {
        if self.is_low(curve) { None } else { curve.encode_complement(self.r, self.s) }
    }

    /// The encoding of the other signature of the pair, low or high.
    pub(crate) fn flipped(&self, curve: Curve) -> Option<Vec<u8>> {
        curve.encode_complement(self.r, self.s)
    }
}

/// One short-form element with this tag: its contents, and what follows it.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let [found, length, rest @ ..] = bytes else { return None };
    let length = usize::from(*length);
    (*found == tag && length < SHORT_FORM_LIMIT && length <= rest.len()).then(|| rest.split_at(length))
}

/// The magnitude of a minimal positive INTEGER, and what follows it.
fn positive_integer(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (integer, rest) = element(bytes, TAG_INTEGER)?;
    match integer {
        [] | [0] => None,
        [0, second, ..] if *second < 0x80 => None,
        [0, magnitude @ ..] => Some((magnitude, rest)),
        [first, ..] if *first >= 0x80 => None,
        magnitude => Some((magnitude, rest)),
    }
}

#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
fn encode(r: &[u8], s: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(SIGNATURE_BYTES_MAX);
    out.extend_from_slice(&[TAG_SEQUENCE, 0]);
    push_integer(&mut out, r);
    push_integer(&mut out, s);
    out[1] = u8::try_from(out.len() - 2).expect("a signature's body fits the short form");
    out
}

#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
fn push_integer(out: &mut Vec<u8>, magnitude: &[u8]) {
    let zeroes = magnitude.iter().take_while(|byte| **byte == 0).count();
    let magnitude = &magnitude[zeroes..];
    let sign = usize::from(magnitude.first().is_none_or(|first| *first >= 0x80));
    out.push(TAG_INTEGER);
    out.push(u8::try_from(magnitude.len() + sign).expect("an integer below the group order fits the short form"));
    out.extend_from_slice(&[0][..sign]);
    out.extend_from_slice(magnitude);
}

/// Appends a definite-length element with these contents, in the shortest form, for certificates we re-encode.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
pub(crate) fn push_element(out: &mut Vec<u8>, tag: u8, contents: &[&[u8]]) {
    let length: usize = contents.iter().map(|part| part.len()).sum();
    out.push(tag);
    if length < SHORT_FORM_LIMIT {
        out.push(length as u8);
    } else {
        let bytes = length.to_be_bytes();
        let zeroes = bytes.iter().take_while(|byte| **byte == 0).count();
        out.push(0x80 | (bytes.len() - zeroes) as u8);
        out.extend_from_slice(&bytes[zeroes..]);
    }
    for part in contents {
        out.extend_from_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn half_of(curve: Curve) -> Vec<u8> {
        match curve {
            Curve::P256 => P256.half.to_vec(),
            Curve::P384 => P384.half.to_vec(),
        }
    }

    #[test]
    fn half_the_order_is_low_and_one_more_is_high() {
        for curve in [Curve::P256, Curve::P384] {
            let half = half_of(curve);
            let mut above = half.clone();
            *above.last_mut().expect("orders are not empty") += 1;
            let low = encode(&[1], &half);
            let high = encode(&[1], &above);
            assert!(EcdsaSignature::parse(&low).expect("well formed").is_low(curve));
            let high = EcdsaSignature::parse(&high).expect("well formed");
            assert!(!high.is_low(curve));
            // n is odd, so n − (half + 1) is half itself.
            assert_eq!(high.lowered(curve).expect("in range"), low);
        }
    }

    #[test]
    fn complement_is_an_involution() {
        let signature = encode(&[7; 32], &[3; 32]);
        let once = EcdsaSignature::parse(&signature).and_then(|s| s.flipped(Curve::P256)).expect("in range");
        let twice = EcdsaSignature::parse(&once).and_then(|s| s.flipped(Curve::P256)).expect("in range");
        assert_ne!(once, signature);
        assert_eq!(twice, signature);
    }

    #[test]
    fn an_s_beyond_the_order_is_neither_low_nor_lowered() {
        for s in [vec![0xff; 32], vec![1; 33]] {
            let bytes = encode(&[1], &s);
            let signature = EcdsaSignature::parse(&bytes).expect("well formed");
            assert!(!signature.is_low(Curve::P256));
            assert_eq!(signature.lowered(Curve::P256), None);
        }
    }

    #[test]
    fn loose_encodings_are_refused() {
        let good = [0x30, 6, 2, 1, 1, 2, 1, 1];
        assert!(EcdsaSignature::parse(&good).is_some());
        let cases: &[(&str, &[u8])] = &[
            ("empty", &[]),
            ("no body", &[0x30, 0]),
            ("trailing byte", &[0x30, 6, 2, 1, 1, 2, 1, 1, 0]),
            ("third integer", &[0x30, 9, 2, 1, 1, 2, 1, 1, 2, 1, 1]),
            ("one integer", &[0x30, 3, 2, 1, 1]),
            ("zero r", &[0x30, 6, 2, 1, 0, 2, 1, 1]),
            ("empty s", &[0x30, 5, 2, 1, 1, 2, 0]),
            ("negative s", &[0x30, 6, 2, 1, 1, 2, 1, 0x80]),
            ("padded r", &[0x30, 7, 2, 2, 0, 1, 2, 1, 1]),
            ("long form of a short length", &[0x30, 0x81, 6, 2, 1, 1, 2, 1, 1]),
            ("indefinite length", &[0x30, 0x80, 2, 1, 1, 2, 1, 1, 0, 0]),
            ("length past the end", &[0x30, 7, 2, 1, 1, 2, 1, 1]),
            ("set for sequence", &[0x31, 6, 2, 1, 1, 2, 1, 1]),
        ];
        for (name, bytes) in cases {
            assert_eq!(EcdsaSignature::parse(bytes), None, "{name}");
        }
    }

    #[test]
    fn elements_take_the_shortest_length() {
        for (length, header) in
            [(0usize, vec![4, 0]), (127, vec![4, 127]), (128, vec![4, 0x81, 128]), (300, vec![4, 0x82, 1, 44])]
        {
            let mut out = Vec::new();
            push_element(&mut out, 4, &[&vec![9; length]]);
            assert_eq!(out[..header.len()], header[..]);
            assert_eq!(out.len(), header.len() + length);
        }
    }
}
