//! Eight points side by side, and the additions that a verification consists of.
//!
//! Sums are in XYZZ coordinates: (X, Y, ZZ, ZZZ) stands for x = X/ZZ, y = Y/ZZZ with ZZ³ = ZZZ². Without doublings they
//! are cheaper than Jacobian coordinates: the addition of an affine point takes eight products and two squares, and its
//! longest chain of dependent products has four. Points that are doubled are Jacobian: x = X/Z², y = Y/Z³.
//!
//! # Exceptional cases
//! No formula here handles infinity, P + P or P − P. Callers detect these cases by one look at ZZ (or Z) at the end:
//!
//! * Up to a non-zero factor, each addition multiplies ZZ by the square of x₂ − x₁, or Z by x₂ − x₁. In an exceptional
//!   addition of two finite points x₂ − x₁ is zero, so ZZ becomes zero.
//! * A ZZ that is zero once stays zero, through every later addition and doubling. Since p is a prime, a product is
//!   zero only if a factor is zero, so ZZ becomes zero in no other way.
//! * Therefore a ZZ that is not zero at the end proves that no addition was exceptional.
//!
//! Doubling has no exceptional case: 2·P is infinite only for a point of even order, and the group's order is an odd
//! prime.
//!
//! Formulas: the Explicit-Formulas Database's madd-2008-s and add-2008-s (XYZZ), dbl-2001-b and madd (Jacobian, a =
//! −3).

use crate::field::{Field, Tight};
use crate::lanes::{Lanes, Words};

/// Eight affine points.
pub(crate) struct Affine<L: Lanes> {
    pub(crate) x: Tight<L>,
    pub(crate) y: Tight<L>,
}

/// Eight points as sums: XYZZ coordinates.
pub(crate) struct Sum<L: Lanes> {
    pub(crate) x: Tight<L>,
    pub(crate) y: Tight<L>,
    pub(crate) zz: Tight<L>,
    pub(crate) zzz: Tight<L>,
}

/// Eight points in Jacobian coordinates.
pub(crate) struct Jacobian<L: Lanes> {
    pub(crate) x: Tight<L>,
    pub(crate) y: Tight<L>,
    pub(crate) z: Tight<L>,
}

impl<L: Lanes> Affine<L> {
    /// Reads an entry of a table for each lane.
    #[inline(always)]
    pub(crate) fn load(f: &Field<L>, rows: [&Words; 8]) -> Self {
        let (x, y) = f.load_pairs(rows);
        Affine { x, y }
    }

    /// The points, negated where the mask's bit is set, as the first of a sum.
    #[inline(always)]
    pub(crate) fn to_sum(&self, f: &Field<L>, negative: u8) -> Sum<L> {
        let y = f.reduce(&f.negate_where(negative, &self.y.loose()));
        Sum { x: self.x, y, zz: f.one(), zzz: f.one() }
    }

    /// The same as a Jacobian point.
    #[inline(always)]
    pub(crate) fn to_jacobian(&self, f: &Field<L>, negative: u8) -> Jacobian<L> {
        let y = f.reduce(&f.negate_where(negative, &self.y.loose()));
        Jacobian { x: self.x, y, z: f.one() }
    }
}

impl<L: Lanes> Sum<L> {
    /// Adds an affine point, negated where the mask's bit is set.
    #[inline(always)]
    pub(crate) fn plus_affine(&self, f: &Field<L>, other: &Affine<L>, negative: u8) -> Self {
        let u2 = f.product(&other.x, &self.zz);
        let s2 = f.negate_where(negative, &f.product(&other.y, &self.zzz));
        let h = f.reduce(&f.difference(&u2, &self.x.loose()));
        let r = f.reduce(&f.difference(&s2, &self.y.loose()));
        let hh = f.squared(&h);
        let hhh = f.times(&h, &hh);
        let v = f.product(&self.x, &hh);
        let (x, y) = finish(f, &r, &v, &hhh, &self.y);
        Sum { x, y, zz: f.times(&self.zz, &hh), zzz: f.times(&self.zzz, &hhh) }
    }

    /// Adds another sum.
    #[inline(always)]
    pub(crate) fn plus(&self, f: &Field<L>, other: &Self) -> Self {
        let u1 = f.times(&self.x, &other.zz);
        let u2 = f.product(&other.x, &self.zz);
        let s1 = f.times(&self.y, &other.zzz);
        let s2 = f.product(&other.y, &self.zzz);
        let h = f.reduce(&f.difference(&u2, &u1.loose()));
        let r = f.reduce(&f.difference(&s2, &s1.loose()));
        let hh = f.squared(&h);
        let hhh = f.times(&h, &hh);
        let v = f.product(&u1, &hh);
        let (x, y) = finish(f, &r, &v, &hhh, &s1);
        let zz = f.times(&f.times(&self.zz, &other.zz), &hh);
        let zzz = f.times(&f.times(&self.zzz, &other.zzz), &hhh);
        Sum { x, y, zz, zzz }
    }

    /// Lane i takes what lane i ^ DISTANCE has.
    #[inline(always)]
    pub(crate) fn exchange<const DISTANCE: usize>(&self, f: &Field<L>) -> Self {
        Sum {
            x: f.exchange::<DISTANCE>(&self.x),
            y: f.exchange::<DISTANCE>(&self.y),
            zz: f.exchange::<DISTANCE>(&self.zz),
            zzz: f.exchange::<DISTANCE>(&self.zzz),
        }
    }

    /// Lanes of `other` where the mask's bit is set.
    #[inline(always)]
    pub(crate) fn select(&self, f: &Field<L>, mask: u8, other: &Self) -> Self {
        Sum {
            x: f.select(mask, &self.x, &other.x),
            y: f.select(mask, &self.y, &other.y),
            zz: f.select(mask, &self.zz, &other.zz),
            zzz: f.select(mask, &self.zzz, &other.zzz),
        }
    }
}

/// x₃ = r² − h³ − 2v and y₃ = r·(v − x₃) − y₁·h³, as all additions end.
#[inline(always)]
fn finish<L: Lanes>(
    f: &Field<L>,
    r: &Tight<L>,
    v: &crate::field::Loose<L>,
    hhh: &Tight<L>,
    y1: &Tight<L>,
) -> (Tight<L>, Tight<L>) {
    let x = f.reduce(&f.difference(&f.difference(&f.square(r), &hhh.loose()), &f.sum(v, v)));
    let t = f.reduce(&f.difference(v, &x.loose()));
    let y = f.reduce(&f.product_difference(r, &t, y1, hhh));
    (x, y)
}

impl<L: Lanes> Jacobian<L> {
    /// Doubles the points.
    #[inline(always)]
    pub(crate) fn doubled(&self, f: &Field<L>) -> Self {
        let delta = f.squared(&self.z);
        let gamma_loose = f.square(&self.y);
        let gamma = f.carry(&gamma_loose);
        let beta = f.product(&self.x, &gamma);
        let minus = f.reduce(&f.difference(&self.x.loose(), &delta.loose()));
        let plus = f.reduce(&f.sum(&self.x.loose(), &delta.loose()));
        let alpha = f.product(&minus, &plus);
        let alpha = f.reduce(&f.sum(&f.sum(&alpha, &alpha), &alpha));
        let beta2 = f.sum(&beta, &beta);
        let beta4 = f.sum(&beta2, &beta2);
        let x = f.reduce(&f.difference(&f.square(&alpha), &f.sum(&beta4, &beta4)));
        let t = f.reduce(&f.difference(&beta4, &x.loose()));
        let gamma2 = f.sum(&gamma.loose(), &gamma.loose());
        let gamma4 = f.sum(&gamma2, &gamma2);
        let gamma8 = f.reduce(&f.sum(&gamma4, &gamma4));
        let y = f.reduce(&f.product_difference(&alpha, &t, &gamma8, &gamma));
        let yz = f.product(&self.y, &self.z);
        Jacobian { x, y, z: f.reduce(&f.sum(&yz, &yz)) }
    }

    /// Adds an affine point, negated where the mask's bit is set.
    #[inline(always)]
    pub(crate) fn plus_affine(&self, f: &Field<L>, other: &Affine<L>, negative: u8) -> Self {
        let zz = f.squared(&self.z);
        let zzz = f.times(&self.z, &zz);
        let u2 = f.product(&other.x, &zz);
        let s2 = f.negate_where(negative, &f.product(&other.y, &zzz));
        let h = f.reduce(&f.difference(&u2, &self.x.loose()));
        let r = f.reduce(&f.difference(&s2, &self.y.loose()));
        let hh = f.squared(&h);
        let hhh = f.times(&h, &hh);
        let v = f.product(&self.x, &hh);
        let (x, y) = finish(f, &r, &v, &hhh, &self.y);
        Jacobian { x, y, z: f.times(&self.z, &h) }
    }

    /// The same points as sums.
    #[inline(always)]
    pub(crate) fn to_sum(&self, f: &Field<L>) -> Sum<L> {
        let zz = f.squared(&self.z);
        Sum { x: self.x, y: self.y, zz, zzz: f.times(&self.z, &zz) }
    }
}
