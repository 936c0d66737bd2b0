//! Eight field elements side by side: five limbs of 52 bits, Montgomery form.
//!
//! An element a is represented by a·2^260 mod p. Two types distinguish reduced elements from the results of additions:
//!
//! - [`Tight`]: every limb is in [0, 2^52) and the value is below 2^258. Only tight elements are multiplied, since the
//!   multiply-add takes the low 52 bits of its operands and ignores the others.
//! - [`Loose`]: limbs are signed 64-bit numbers below 2^60 in absolute value. Loose elements are added and subtracted limb by
//!   limb; nothing is carried until [`Field::reduce`] makes the result tight.
//!
//! # Bounds
//! Write M = 2^52 and v(a) for a value Σ aᵢ·Mⁱ.
//!
//! **Columns.** A product has ten columns. Column k sums the low halves of aᵢ·bⱼ with i + j = k and the high halves with
//! i + j = k − 1. Each half is below M, and at most five of either kind meet in a column, so a column is below 10·M.
//! The columns of a difference of two products are between −10·M and 10·M.
//!
//! **Montgomery reduction.** p ≡ −1 mod 2^96. So −p⁻¹ mod M is 1, and the factor that clears column i is q = cᵢ mod M.
//! Write p + 1 = 2^96 + p₃·M³ + p₄·M⁴ with p₃ = 2^36 and p₄ = 2^48 − 2^16. Adding q·p to the columns does four things:
//!
//! - column i becomes cᵢ − q, a multiple of M, which is carried into column i + 1;
//! - q·2^96 is added at columns i + 1 and i + 2;
//! - q·p₃ is added at columns i + 3 and i + 4;
//! - q·p₄ is added at columns i + 4 and i + 5.
//!
//! A column receives six such halves, each below M, and one carry cᵢ/M, whose absolute value is below 2^7. So a column
//! stays between −11·M and 17·M, far inside 64 bits. The five remaining columns are the result: limbs below 2^57 in
//! absolute value. The value of a product is (v(a)·v(b) + q·p)/2^260 with q < 2^260. It is not negative, and for tight
//! operands below 2^516/2^260 + p < 2^257.
//!
//! **[`Field::carry`]** takes a product (not negative, value below 2^257). Carrying from the lowest limb up leaves four
//! limbs in [0, M) and a top limb ⌊v/2^208⌋, which is not negative and below 2^49: tight.
//!
//! **[`Field::reduce`]** takes any loose element c. Let h = ⌊c₄/2^48⌋, so that |h| ≤ 2^12, and let f = c₄ − h·2^48,
//! which is in [0, 2^48).
//!
//! 1. v(c) − h·2^256 = f·2^208 + Σ_{i<4} cᵢ·Mⁱ. The sum's absolute value is below 2^60·(2^156 + 2^104 + 2^52 + 1), hence
//!    below 2^217. So v(c) − h·2^256 is between −2^217 and 2^256 + 2^217.
//! 2. The result is v(c) − (h − 1)·p = (v(c) − h·2^256) + h·(2^256 − p) + p. Since 0 < 2^256 − p < 2^224, the absolute
//!    value of h·(2^256 − p) is below 2^236.
//! 3. So the result is above p − 2^217 − 2^236 > 0 and below p + 2^256 + 2^217 + 2^236 < 2^258: tight, once carried.
//! 4. The limbs that are carried are at most 2^60 + 2^13·2^48 < 2^62 in absolute value.
//!
//! **What callers add up.** The largest sums in this crate are r² − h³ − 2v and α² − 8β: at most nine products with limbs
//! below 17·M each, together below 153·M < 2^60.
//!
//! **The check.** `tests/bounds.rs` runs every operation, and every addition and doubling of points, on lanes whose
//! words are intervals. It shows that no addition leaves 64 bits, and that every sum that is reduced has limbs of at
//! most 2^60. Intervals cannot show that a value is below 2^258 after a carry. Therefore the scalar model of the lanes
//! checks this bound at each of its carries, in all tests.

use crate::lanes::{Lanes, Words};
use crate::limbs::Limbs;

/// Bits of a limb.
const BITS: u32 = 52;
const MASK: u64 = (1 << BITS) - 1;
/// Limb 3 of p + 1.
const P3: u64 = 1 << 36;
/// Limb 4 of p + 1.
const P4: u64 = (1 << 48) - (1 << 16);
/// 2^260 mod p.
const ONE: Limbs = crate::residue::power_of_two(&crate::limbs::P, 260);

/// A number below 2^256 in limbs of 52 bits.
pub(crate) const fn split(n: &Limbs) -> [u64; 5] {
    [
        n[0] & MASK,
        (n[0] >> 52 | n[1] << 12) & MASK,
        (n[1] >> 40 | n[2] << 24) & MASK,
        (n[2] >> 28 | n[3] << 36) & MASK,
        n[3] >> 16,
    ]
}

/// Elements that may be multiplied: limbs in [0, 2^52), value below 2^258.
pub(crate) struct Tight<L: Lanes>(pub(crate) [L::Vector; 5]);

/// Elements that may be added and subtracted: limbs below 2^60 in absolute value.
pub(crate) struct Loose<L: Lanes>(pub(crate) [L::Vector; 5]);

impl<L: Lanes> Clone for Tight<L> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<L: Lanes> Copy for Tight<L> {}

impl<L: Lanes> Clone for Loose<L> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<L: Lanes> Copy for Loose<L> {}

impl<L: Lanes> Tight<L> {
    /// The same elements, to add and subtract.
    #[inline(always)]
    pub(crate) fn loose(&self) -> Loose<L> {
        Loose(self.0)
    }
}

/// Defines a step of the arithmetic: inlined or called, as the lanes want it.
macro_rules! step {
    (
        $(#[$about:meta])*
        fn $name:ident / $called:ident(&$self:ident, $($a:ident: &$kind:ty),*) -> $out:ty $body:block
    ) => {
        $(#[$about])*
        #[inline(always)]
        pub(crate) fn $name(&$self, $($a: &$kind),*) -> $out {
            if L::INLINE { $body } else { $self.$called($($a),*) }
        }

        #[inline(never)]
        fn $called(&$self, $($a: &$kind),*) -> $out $body
    };
}

/// The arithmetic, with its constants in vectors.
pub(crate) struct Field<L: Lanes> {
    pub(crate) lanes: L,
    mask: L::Vector,
    p3: L::Vector,
    p4: L::Vector,
}

impl<L: Lanes> Field<L> {
    #[inline(always)]
    pub(crate) fn new(lanes: L) -> Self {
        Field { lanes, mask: lanes.splat(MASK), p3: lanes.splat(P3), p4: lanes.splat(P4) }
    }

    /// The same number in every lane, without a change of form.
    #[inline(always)]
    pub(crate) fn splat(&self, number: &Limbs) -> Tight<L> {
        let limbs = split(number);
        let l = self.lanes;
        Tight([l.splat(limbs[0]), l.splat(limbs[1]), l.splat(limbs[2]), l.splat(limbs[3]), l.splat(limbs[4])])
    }

    #[inline(always)]
    pub(crate) fn zero(&self) -> Tight<L> {
        Tight([self.lanes.splat(0); 5])
    }

    /// The element one: 2^260 mod p.
    #[inline(always)]
    pub(crate) fn one(&self) -> Tight<L> {
        self.splat(&ONE)
    }

    /// a·b as columns, added to `c`.
    #[inline(always)]
    fn add_product(&self, mut c: [L::Vector; 10], a: &Tight<L>, b: &Tight<L>) -> [L::Vector; 10] {
        let l = self.lanes;
        for i in 0..5 {
            for j in 0..5 {
                c[i + j] = l.multiply_add_low(c[i + j], a.0[i], b.0[j]);
                c[i + j + 1] = l.multiply_add_high(c[i + j + 1], a.0[i], b.0[j]);
            }
        }
        c
    }

    /// Montgomery reduction of ten columns.
    #[inline(always)]
    fn reduce_columns(&self, mut c: [L::Vector; 10]) -> Loose<L> {
        let l = self.lanes;
        for i in 0..5 {
            // q = c[i] mod M. The multiply-add takes the low 52 bits by itself.
            let q = l.and(c[i], self.mask);
            // q·2^96 is q·2^44 one column up: its low eight bits there, the others one further.
            let low = l.and(l.shift_left::<44>(c[i]), self.mask);
            c[i + 1] = l.add(c[i + 1], l.add(l.shift_right_signed::<52>(c[i]), low));
            c[i + 2] = l.add(c[i + 2], l.shift_right::<8>(q));
            c[i + 3] = l.multiply_add_low(c[i + 3], c[i], self.p3);
            c[i + 4] = l.multiply_add_high(c[i + 4], c[i], self.p3);
            c[i + 4] = l.multiply_add_low(c[i + 4], c[i], self.p4);
            c[i + 5] = l.multiply_add_high(c[i + 5], c[i], self.p4);
        }
        Loose([c[5], c[6], c[7], c[8], c[9]])
    }

    step! {
        /// a·b, not carried.
        fn product / product_called(&self, a: &Tight<L>, b: &Tight<L>) -> Loose<L> {
            self.reduce_columns(self.add_product([self.lanes.splat(0); 10], a, b))
        }
    }

    step! {
        /// a·b − c·d, not carried, with one Montgomery reduction.
        fn product_difference / product_difference_called(
            &self, a: &Tight<L>, b: &Tight<L>, c: &Tight<L>, d: &Tight<L>
        ) -> Loose<L> {
            let zero = self.lanes.splat(0);
            let mut columns = self.add_product([zero; 10], c, d);
            for column in &mut columns {
                *column = self.lanes.sub(zero, *column);
            }
            self.reduce_columns(self.add_product(columns, a, b))
        }
    }

    step! {
        /// a², not carried.
        fn square / square_called(&self, a: &Tight<L>) -> Loose<L> {
            let l = self.lanes;
            let mut c = [l.splat(0); 10];
            // The products of different limbs occur twice. Doubling the columns, not the limbs, keeps limbs at 52 bits.
            for i in 0..5 {
                for j in i + 1..5 {
                    c[i + j] = l.multiply_add_low(c[i + j], a.0[i], a.0[j]);
                    c[i + j + 1] = l.multiply_add_high(c[i + j + 1], a.0[i], a.0[j]);
                }
            }
            for column in &mut c {
                *column = l.add(*column, *column);
            }
            for i in 0..5 {
                c[2 * i] = l.multiply_add_low(c[2 * i], a.0[i], a.0[i]);
                c[2 * i + 1] = l.multiply_add_high(c[2 * i + 1], a.0[i], a.0[i]);
            }
            self.reduce_columns(c)
        }
    }

    /// Carries from each limb to the next. The last limb takes what is left, and the sign.
    #[inline(always)]
    fn propagate(&self, a: &Loose<L>) -> [L::Vector; 5] {
        let l = self.lanes;
        let mut c = a.0;
        for i in 0..4 {
            c[i + 1] = l.add(c[i + 1], l.shift_right_signed::<BITS>(c[i]));
            c[i] = l.and(c[i], self.mask);
        }
        c
    }

    step! {
        /// Makes a product tight; see the module's bounds.
        fn carry / carry_called(&self, a: &Loose<L>) -> Tight<L> {
            let [c0, c1, c2, c3, c4] = self.propagate(a);
            // The value is below 2^258.
            Tight([c0, c1, c2, c3, self.lanes.known_below::<50>(c4)])
        }
    }

    step! {
        /// Makes any loose element tight, by a multiple of p that its top limb gives; see the module's bounds.
        fn reduce / reduce_called(&self, a: &Loose<L>) -> Tight<L> {
            let l = self.lanes;
            let c = a.0;
            for limb in c {
                l.require_within::<60>(limb);
            }
            // k = h − 1. Subtracting k·p = k·(2^256 − 2^224 + 2^192 + 2^96 − 1): bit 256 is bit 48 of limb 4, 224 is 16 of
            // limb 4, 192 is 36 of limb 3, 96 is 44 of limb 1.
            let k = l.add(l.shift_right_signed::<48>(c[4]), l.splat(u64::MAX));
            self.carry(&Loose([
                l.add(c[0], k),
                l.sub(c[1], l.shift_left::<44>(k)),
                c[2],
                l.sub(c[3], l.shift_left::<36>(k)),
                l.add(c[4], l.sub(l.shift_left::<16>(k), l.shift_left::<48>(k))),
            ]))
        }
    }

    #[inline(always)]
    pub(crate) fn times(&self, a: &Tight<L>, b: &Tight<L>) -> Tight<L> {
        self.carry(&self.product(a, b))
    }

    #[inline(always)]
    pub(crate) fn squared(&self, a: &Tight<L>) -> Tight<L> {
        self.carry(&self.square(a))
    }

    #[inline(always)]
    pub(crate) fn sum(&self, a: &Loose<L>, b: &Loose<L>) -> Loose<L> {
        let (l, a, b) = (self.lanes, &a.0, &b.0);
        Loose([l.add(a[0], b[0]), l.add(a[1], b[1]), l.add(a[2], b[2]), l.add(a[3], b[3]), l.add(a[4], b[4])])
    }

    #[inline(always)]
    pub(crate) fn difference(&self, a: &Loose<L>, b: &Loose<L>) -> Loose<L> {
        let (l, a, b) = (self.lanes, &a.0, &b.0);
        Loose([l.sub(a[0], b[0]), l.sub(a[1], b[1]), l.sub(a[2], b[2]), l.sub(a[3], b[3]), l.sub(a[4], b[4])])
    }

    /// Lanes of `b` where the mask's bit is set, else of `a`.
    #[inline(always)]
    pub(crate) fn select(&self, mask: u8, a: &Tight<L>, b: &Tight<L>) -> Tight<L> {
        let (l, a, b) = (self.lanes, &a.0, &b.0);
        Tight([
            l.select(mask, a[0], b[0]),
            l.select(mask, a[1], b[1]),
            l.select(mask, a[2], b[2]),
            l.select(mask, a[3], b[3]),
            l.select(mask, a[4], b[4]),
        ])
    }

    /// −a where the mask's bit is set, else a.
    #[inline(always)]
    pub(crate) fn negate_where(&self, mask: u8, a: &Loose<L>) -> Loose<L> {
        let l = self.lanes;
        let zero = l.splat(0);
        let mut c = a.0;
        for limb in &mut c {
            *limb = l.select(mask, *limb, l.sub(zero, *limb));
        }
        Loose(c)
    }

    step! {
        /// The one representative in [0, p).
        fn canonical / canonical_called(&self, a: &Tight<L>) -> Tight<L> {
            let l = self.lanes;
            // The value is below 2^258, so k = ⌊v/2^256⌋ is at most 3 and v − k·p below 2^256 + 3·2^224 < 2·p.
            let c = &a.0;
            let k = l.shift_right::<48>(c[4]);
            let below = self.carry(&Loose([
                l.add(c[0], k),
                l.sub(c[1], l.shift_left::<44>(k)),
                c[2],
                l.sub(c[3], l.shift_left::<36>(k)),
                l.add(c[4], l.sub(l.shift_left::<16>(k), l.shift_left::<48>(k))),
            ]));
            // The sign of v − p is in its top limb.
            let reduced = Tight(self.propagate(&self.difference(&below.loose(), &self.splat(&crate::limbs::P).loose())));
            let negative = l.equal(l.shift_right_signed::<63>(reduced.0[4]), l.splat(u64::MAX));
            self.select(negative, &reduced, &below)
        }
    }

    /// The lanes whose element is zero modulo p.
    #[inline(always)]
    pub(crate) fn zeroes(&self, a: &Tight<L>) -> u8 {
        let l = self.lanes;
        let c = self.canonical(a).0;
        l.equal(l.or(l.or(c[0], c[1]), l.or(c[2], l.or(c[3], c[4]))), l.splat(0))
    }

    /// Lane i takes what lane i ^ DISTANCE has.
    #[inline(always)]
    pub(crate) fn exchange<const DISTANCE: usize>(&self, a: &Tight<L>) -> Tight<L> {
        let (l, a) = (self.lanes, &a.0);
        Tight([
            l.exchange::<DISTANCE>(a[0]),
            l.exchange::<DISTANCE>(a[1]),
            l.exchange::<DISTANCE>(a[2]),
            l.exchange::<DISTANCE>(a[3]),
            l.exchange::<DISTANCE>(a[4]),
        ])
    }

    /// Four vectors of 64-bit limbs as five of 52 bits.
    #[inline(always)]
    pub(crate) fn unpack(&self, n: [L::Vector; 4]) -> Tight<L> {
        let (l, m) = (self.lanes, self.mask);
        Tight([
            l.and(n[0], m),
            l.and(l.or(l.shift_right::<52>(n[0]), l.shift_left::<12>(n[1])), m),
            l.and(l.or(l.shift_right::<40>(n[1]), l.shift_left::<24>(n[2])), m),
            l.and(l.or(l.shift_right::<28>(n[2]), l.shift_left::<36>(n[3])), m),
            l.shift_right::<16>(n[3]),
        ])
    }

    /// Five limbs of 52 bits, of a value below 2^256, as four of 64 bits.
    #[inline(always)]
    pub(crate) fn pack(&self, a: &Tight<L>) -> [L::Vector; 4] {
        let (l, c) = (self.lanes, &a.0);
        [
            l.or(c[0], l.shift_left::<52>(c[1])),
            l.or(l.shift_right::<12>(c[1]), l.shift_left::<40>(c[2])),
            l.or(l.shift_right::<24>(c[2]), l.shift_left::<28>(c[3])),
            l.or(l.shift_right::<36>(c[3]), l.shift_left::<16>(c[4])),
        ]
    }

    /// Reads eight rows of two numbers of four limbs each.
    #[inline(always)]
    pub(crate) fn load_pairs(&self, rows: [&Words; 8]) -> (Tight<L>, Tight<L>) {
        let w = self.lanes.transpose(rows);
        (self.unpack([w[0], w[1], w[2], w[3]]), self.unpack([w[4], w[5], w[6], w[7]]))
    }

    /// Two elements of each lane as eight rows of words; the elements are canonical.
    #[inline(always)]
    pub(crate) fn store_pairs(&self, x: &Tight<L>, y: &Tight<L>, rows: &mut [Words; 8]) {
        let (x, y) = (self.pack(x), self.pack(y));
        self.lanes.transpose_back([x[0], x[1], x[2], x[3], y[0], y[1], y[2], y[3]], rows);
    }
}
