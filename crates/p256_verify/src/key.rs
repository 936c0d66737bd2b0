//! Public keys: points that are known to be on the curve.

use crate::limbs::{self, Limbs, P};
use crate::residue::FieldElement;

/// Bytes of an uncompressed point: 4, x, y.
pub const POINT_BYTES: usize = 65;

/// A point of the curve, not infinity. Every such point has the prime order n.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PublicKey {
    pub(crate) x: Limbs,
    pub(crate) y: Limbs,
}

impl PublicKey {
    /// The group's generator.
    pub(crate) const GENERATOR: PublicKey = PublicKey { x: limbs::GX, y: limbs::GY };

    /// Reads an uncompressed point in the form of SEC 1, section 2.3.4. Returns nothing unless both coordinates are
    /// below p and fulfil the curve's equation; compressed and hybrid forms are not read.
    pub fn from_sec1(point: &[u8; POINT_BYTES]) -> Option<PublicKey> {
        let (&[form], coordinates) = point.split_first_chunk()?;
        let (x, y) = coordinates.split_first_chunk::<32>()?;
        let (x, y) = (limbs::from_bytes(x), limbs::from_bytes(y.first_chunk()?));
        let key = PublicKey { x, y };
        (form == 4 && key.is_on_curve()).then_some(key)
    }

    /// The uncompressed point.
    pub fn to_sec1(&self) -> [u8; POINT_BYTES] {
        let mut point = [4; POINT_BYTES];
        point[1..33].copy_from_slice(&limbs::to_bytes(&self.x));
        point[33..].copy_from_slice(&limbs::to_bytes(&self.y));
        point
    }

    /// Whether the coordinates are below p and y² = x³ − 3x + b.
    fn is_on_curve(&self) -> bool {
        if !limbs::is_less(&self.x, &P) || !limbs::is_less(&self.y, &P) {
            return false;
        }
        let (x, y) = (FieldElement::new(&self.x), FieldElement::new(&self.y));
        let three = FieldElement::new(&[3, 0, 0, 0]);
        y.squared() == x.squared().minus(&three).times(&x).plus(&FieldElement::new(&limbs::B))
    }
}
