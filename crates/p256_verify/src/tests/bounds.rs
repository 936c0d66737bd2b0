//! Proves the bounds of the lanes' field arithmetic: the tests run the same code on lanes whose words are intervals
//! of numbers.
//!
//! A word of [`Intervals`] stands for every signed number from `low` to `high`. An operation returns the smallest
//! interval that contains all results, and fails if a result leaves 64 bits. So one run covers every input within the
//! intervals that it starts with.

use crate::field::{Field, Loose, Tight};
use crate::lanes::{LANES, Lanes, Mask, Operation, Words};
use crate::points::{Affine, Jacobian, Sum};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Interval {
    low: i128,
    high: i128,
}

#[derive(Clone, Copy, Debug)]
struct Intervals;

const MASK: i128 = (1 << 52) - 1;
/// A word about which nothing is known.
const ANY: Interval = Interval { low: i64::MIN as i128, high: i64::MAX as i128 };

impl Interval {
    fn new(low: i128, high: i128) -> Interval {
        assert!(low <= high && low >= ANY.low && high <= ANY.high, "{low} to {high} leaves 64 bits");
        Interval { low, high }
    }

    /// The low 52 bits: all of them, if the numbers are not within them already.
    fn low_bits(self) -> Interval {
        if self.low >= 0 && self.high <= MASK { self } else { Interval { low: 0, high: MASK } }
    }

    fn union(self, other: Interval) -> Interval {
        Interval { low: self.low.min(other.low), high: self.high.max(other.high) }
    }
}

impl Lanes for Intervals {
    type Vector = Interval;
    const INLINE: bool = false;

    fn run<O: Operation>(self, operation: O) -> O::Output {
        operation.run(self)
    }

    fn splat(self, word: u64) -> Interval {
        Interval { low: i128::from(word as i64), high: i128::from(word as i64) }
    }

    fn load(self, _words: &Words) -> Interval {
        ANY
    }

    fn store(self, _vector: Interval, _words: &mut Words) {
        unreachable!("an interval is not a word");
    }

    fn add(self, a: Interval, b: Interval) -> Interval {
        Interval::new(a.low + b.low, a.high + b.high)
    }

    fn sub(self, a: Interval, b: Interval) -> Interval {
        Interval::new(a.low - b.high, a.high - b.low)
    }

    fn and(self, a: Interval, b: Interval) -> Interval {
        assert_eq!(b, Interval::new(MASK, MASK), "only the mask is used so");
        a.low_bits()
    }

    fn or(self, a: Interval, b: Interval) -> Interval {
        assert!(a.low >= 0 && b.low >= 0);
        Interval::new(0, a.high + b.high)
    }

    fn shift_right<const BITS: u32>(self, a: Interval) -> Interval {
        assert!(a.low >= 0, "zeroes are shifted into a negative number");
        Interval::new(a.low >> BITS, a.high >> BITS)
    }

    fn shift_right_signed<const BITS: u32>(self, a: Interval) -> Interval {
        Interval::new(a.low >> BITS, a.high >> BITS)
    }

    /// Bits that are shifted out are lost: where that can happen nothing is known, and only a mask may follow.
    fn shift_left<const BITS: u32>(self, a: Interval) -> Interval {
        let (low, high) = (a.low << BITS, a.high << BITS);
        if low >= ANY.low && high <= ANY.high { Interval { low, high } } else { ANY }
    }

    fn multiply_add_low(self, sum: Interval, _a: Interval, _b: Interval) -> Interval {
        Interval::new(sum.low, sum.high + MASK)
    }

    fn multiply_add_high(self, sum: Interval, a: Interval, b: Interval) -> Interval {
        Interval::new(sum.low, sum.high + ((a.low_bits().high * b.low_bits().high) >> 52))
    }

    fn select(self, _mask: Mask, a: Interval, b: Interval) -> Interval {
        a.union(b)
    }

    fn equal(self, _a: Interval, _b: Interval) -> Mask {
        unreachable!("intervals are not compared");
    }

    fn exchange<const DISTANCE: usize>(self, a: Interval) -> Interval {
        a
    }

    fn transpose(self, _rows: [&Words; LANES]) -> [Interval; LANES] {
        [ANY; LANES]
    }

    fn transpose_back(self, _vectors: [Interval; LANES], _rows: &mut [Words; LANES]) {
        unreachable!("intervals are not stored");
    }

    fn known_below<const BITS: u32>(self, a: Interval) -> Interval {
        let limit = (1 << BITS) - 1;
        assert!(a.high >= 0, "no number is within the bound");
        Interval::new(a.low.max(0), a.high.min(limit))
    }

    fn require_within<const BITS: u32>(self, a: Interval) {
        assert!(a.low >= -(1 << BITS) && a.high <= 1 << BITS, "{a:?} is more than was allowed for");
    }

    fn prefetch(self, _row: &Words) {}
}

/// Any tight element.
fn tight() -> Tight<Intervals> {
    let limb = Interval::new(0, MASK);
    Tight([limb, limb, limb, limb, Interval::new(0, (1 << 50) - 1)])
}

/// Whether every tight element that these intervals have is one that the bounds allow.
fn is_tight(a: &Tight<Intervals>) -> bool {
    a.0.iter().zip(tight().0).all(|(limb, most)| most.low <= limb.low && limb.high <= most.high)
}

fn within(a: &Loose<Intervals>, low: i128, high: i128) -> bool {
    a.0.iter().all(|limb| low << 52 < limb.low && limb.high < high << 52)
}

#[test]
fn no_word_overflows_in_the_field() {
    let f = Field::new(Intervals);
    let a = tight();
    assert!(within(&f.product(&a, &a), -1, 17));
    assert!(within(&f.square(&a), -1, 17));
    let difference = f.product_difference(&a, &a, &a, &a);
    assert!(within(&difference, -11, 17), "{:?}", difference.0);
    assert!(is_tight(&f.carry(&f.product(&a, &a))));
    // All inputs that `reduce` accepts.
    let limb = Interval::new(-(1 << 60), 1 << 60);
    assert!(is_tight(&f.reduce(&Loose([limb; 5]))));
}

/// Points that may be anything that is tight.
fn sum() -> Sum<Intervals> {
    Sum { x: tight(), y: tight(), zz: tight(), zzz: tight() }
}

fn jacobian() -> Jacobian<Intervals> {
    Jacobian { x: tight(), y: tight(), z: tight() }
}

#[test]
fn no_word_overflows_in_additions_and_doublings() {
    let f = Field::new(Intervals);
    let affine = Affine { x: tight(), y: tight() };
    let mut sums = vec![affine.to_sum(&f, 1), jacobian().to_sum(&f)];
    sums.push(sum().plus_affine(&f, &affine, 1));
    sums.push(sum().plus(&f, &sum()));
    for sum in sums {
        assert!([sum.x, sum.y, sum.zz, sum.zzz].iter().all(is_tight));
    }
    for point in [affine.to_jacobian(&f, 1), jacobian().doubled(&f), jacobian().plus_affine(&f, &affine, 1)] {
        assert!([point.x, point.y, point.z].iter().all(is_tight));
    }
}

#[test]
#[should_panic(expected = "leaves 64 bits")]
fn an_overflow_would_be_noticed() {
    let f = Field::new(Intervals);
    let limb = Interval::new(-(1 << 62), 1 << 62);
    f.sum(&Loose([limb; 5]), &Loose([limb; 5]));
}
