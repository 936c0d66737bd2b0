//! Tests of point arithmetic against textbook affine arithmetic on big integers:
//! * All builders make the textbook's tables of multiples, whether tables are built together or alone.
//! * Additions have the textbook's results, and exceptional additions are detected.
//! * Bytes that are no point of the curve are refused.

use num_bigint::BigUint;

use super::{Prng, big, small};
use crate::builder;
use crate::digits::{entries, windows};
use crate::field::{Field, Tight};
#[cfg(target_arch = "x86_64")]
use crate::ifma::Ifma;
use crate::key::PublicKey;
use crate::lanes::{LANES, Lanes, Model, Operation, Words};
use crate::limbs::{N, P};
use crate::points::{Affine, Jacobian, Sum};
use crate::portable;

type Point = Option<(BigUint, BigUint)>;

fn p() -> BigUint {
    big(&P)
}

/// a − b modulo p.
fn minus(a: &BigUint, b: &BigUint) -> BigUint {
    (a + p() - b % p()) % p()
}

/// The textbook's addition, with every case.
fn add(one: &Point, other: &Point) -> Point {
    let (Some((x1, y1)), Some((x2, y2))) = (one, other) else { return one.clone().or_else(|| other.clone()) };
    let (rise, run) = if x1 == x2 {
        if (y1 + y2) % p() == BigUint::ZERO {
            return None;
        }
        (minus(&(x1 * x1 * 3u8), &BigUint::from(3u8)), y1 * 2u8)
    } else {
        (minus(y2, y1), minus(x2, x1))
    };
    let slope = rise * (run % p()).modinv(&p()).expect("not zero modulo a prime") % p();
    let x = minus(&minus(&(&slope * &slope), x1), x2);
    let y = minus(&(&slope * minus(x1, &x)), y1);
    Some((x, y))
}

fn times(k: &BigUint, point: &Point) -> Point {
    (0..k.bits()).rev().fold(None, |sum, bit| {
        let doubled = add(&sum, &sum);
        if k.bit(bit) { add(&doubled, point) } else { doubled }
    })
}

fn point(key: &PublicKey) -> Point {
    Some((big(&key.x), big(&key.y)))
}

fn key(point: &Point) -> PublicKey {
    let (x, y) = point.as_ref().expect("not infinity");
    PublicKey { x: small(x), y: small(y) }
}

fn some_key(seed: u64) -> PublicKey {
    let scalar = big(&Prng::new(seed).limbs()) % big(&N);
    key(&times(&scalar, &point(&PublicKey::GENERATOR)))
}

#[test]
fn the_generator_has_order_n() {
    let g = point(&PublicKey::GENERATOR);
    assert_eq!(times(&big(&N), &g), None);
    assert!(PublicKey::from_sec1(&PublicKey::GENERATOR.to_sec1()).is_some());
}

/// The entries as numbers: a table of the lanes has x·2^260 and y·2^260.
fn numbers(table: &[Words]) -> Vec<(BigUint, BigUint)> {
    let inverse = (BigUint::from(1u8) << 260u32).modinv(&p()).expect("p is odd");
    let number = |limbs: &[u64]| {
        let number = big(limbs.try_into().expect("four limbs"));
        assert!(number < p(), "an entry is not canonical");
        number * &inverse % p()
    };
    table.iter().map(|words| (number(&words.0[..4]), number(&words.0[4..]))).collect()
}

/// The table by definition, each entry from the one before.
fn textbook(key: &PublicKey, window: u32) -> Vec<(BigUint, BigUint)> {
    let mut table = Vec::new();
    let mut base = point(key);
    for _ in 0..windows(window) {
        let twice = add(&base, &base);
        let mut entry = base.clone();
        for _ in 0..entries(window) {
            table.push(entry.clone().expect("not infinity"));
            entry = add(&entry, &twice);
        }
        base = (0..window).fold(base, |base, _| add(&base, &base));
    }
    table
}

#[test]
fn tables_of_all_builders_are_the_textbooks() {
    for window in [1, 2, 3, 5, 8] {
        let key = some_key(u64::from(window));
        let expected = textbook(&key, window);
        let portable: Vec<_> =
            portable::build(&key, window).iter().map(portable::entry_point).map(|(x, y)| (big(&x), big(&y))).collect();
        assert!(portable == expected, "window {window}");
        let on_model = builder::build(Model, &[key], window).pop().expect("one");
        assert!(numbers(&on_model) == expected, "window {window}");
        #[cfg(target_arch = "x86_64")]
        if let Some(lanes) = Ifma::detect() {
            assert!(builder::build(lanes, &[key], window).pop().expect("one") == on_model);
        }
    }
}

#[test]
fn tables_built_together_are_those_built_alone() {
    let keys: Vec<PublicKey> = (0..11).map(|i| some_key(100 + i)).collect();
    for window in [4, 5] {
        let together = builder::build(Model, &keys, window);
        assert_eq!(together.len(), keys.len());
        for (key, table) in keys.iter().zip(&together) {
            assert!(builder::build(Model, &[*key], window).first() == Some(table));
        }
        let first = builder::build_first_windows(Model, &keys, window);
        assert_eq!(first.len(), keys.len() * entries(window));
        for (first, table) in first.chunks_exact(entries(window)).zip(&together) {
            assert!(first == &table[..entries(window)]);
        }
    }
}

/// The results of one + other, in all coordinates, lane by lane; and the ZZ, after more additions, where the sum was
/// exceptional.
struct Additions {
    one: [Words; LANES],
    other: [Words; LANES],
    third: [Words; LANES],
}

#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    /// x and y of one + other by an affine addition to a sum, to a Jacobian point, and by an addition of sums.
    sums: [[Words; LANES]; 3],
    /// Lanes where that is exceptional.
    exceptional: [u8; 3],
    /// The same after further additions and doublings.
    still: [u8; 3],
    doubled: [Words; LANES],
}

#[inline(always)]
fn rows(words: &[Words; LANES]) -> [&Words; LANES] {
    let [a, b, c, d, e, f, g, h] = words;
    [a, b, c, d, e, f, g, h]
}

/// a^(p − 2).
#[inline(always)]
fn inverse<L: Lanes>(f: &Field<L>, a: &Tight<L>) -> Tight<L> {
    let exponent = crate::limbs::sub(&P, &[2, 0, 0, 0]).0;
    let mut power = f.one();
    for bit in (0..256).rev() {
        power = f.squared(&power);
        if exponent[bit / 64] >> (bit % 64) & 1 == 1 {
            power = f.times(&power, a);
        }
    }
    power
}

#[inline(always)]
fn affine<L: Lanes>(f: &Field<L>, sum: &Sum<L>) -> [Words; LANES] {
    let x = f.canonical(&f.times(&sum.x, &inverse(f, &sum.zz)));
    let y = f.canonical(&f.times(&sum.y, &inverse(f, &sum.zzz)));
    let mut words = [Words::default(); LANES];
    f.store_pairs(&x, &y, &mut words);
    words
}

impl Operation for Additions {
    type Output = Outcome;

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> Outcome {
        let f = Field::new(lanes);
        let one = Affine::load(&f, rows(&self.one));
        let other = Affine::load(&f, rows(&self.other));
        let third = Affine::load(&f, rows(&self.third));
        // Scaled so that no Z is one: the doubled point minus itself.
        let scaled = one.to_jacobian(&f, 0).doubled(&f).plus_affine(&f, &one, u8::MAX);
        let to_sum = scaled.to_sum(&f).plus_affine(&f, &other, 0);
        let to_jacobian: Jacobian<L> = scaled.plus_affine(&f, &other, 0);
        let other_scaled = other.to_jacobian(&f, 0).doubled(&f).plus_affine(&f, &other, u8::MAX).to_sum(&f);
        let of_sums = scaled.to_sum(&f).plus(&f, &other_scaled);
        let later = to_jacobian.doubled(&f).plus_affine(&f, &third, 0).doubled(&f);
        let later_sum = to_sum.plus_affine(&f, &third, u8::MAX).plus_affine(&f, &one, 0);
        let later_of_sums = of_sums.plus(&f, &scaled.to_sum(&f)).plus_affine(&f, &third, 0);
        Outcome {
            sums: [affine(&f, &to_sum), affine(&f, &to_jacobian.to_sum(&f)), affine(&f, &of_sums)],
            exceptional: [f.zeroes(&to_sum.zz), f.zeroes(&to_jacobian.z), f.zeroes(&of_sums.zz)],
            still: [f.zeroes(&later_sum.zz), f.zeroes(&later.z), f.zeroes(&later_of_sums.zz)],
            doubled: affine(&f, &one.to_jacobian(&f, 0).doubled(&f).to_sum(&f)),
        }
    }
}

#[test]
fn additions_are_the_textbooks_and_exceptional_ones_are_noticed_for_good() {
    let form = |point: &Point| {
        let (x, y) = point.as_ref().expect("not infinity");
        let limbs = |n: &BigUint| small(&((n << 260u32) % p()));
        let ([a, b, c, d], [e, f, g, h]) = (limbs(x), limbs(y));
        Words([a, b, c, d, e, f, g, h])
    };
    let negated = |point: &Point| point.as_ref().map(|(x, y)| (x.clone(), p() - y));
    let one: [Point; LANES] = std::array::from_fn(|i| point(&some_key(200 + i as u64)));
    let third = point(&some_key(300));
    // Lanes 2 and 5 add a point to itself, 3 and 7 to its negative.
    let other: [Point; LANES] = std::array::from_fn(|i| match i {
        2 | 5 => one[i].clone(),
        3 | 7 => negated(&one[i]),
        _ => point(&some_key(210 + i as u64)),
    });
    let additions = || Additions {
        one: one.clone().map(|p| form(&p)),
        other: other.clone().map(|p| form(&p)),
        third: [form(&third); 8],
    };
    let outcome = Model.run(additions());
    assert_eq!(outcome.exceptional, [0b1010_1100; 3]);
    assert_eq!(outcome.still, [0b1010_1100; 3]);
    for lane in [0, 1, 4, 6] {
        let expected = form(&add(&one[lane], &other[lane]));
        for sum in &outcome.sums {
            assert_eq!(sum[lane], expected, "lane {lane}");
        }
    }
    for (doubled, one) in outcome.doubled.iter().zip(&one) {
        assert_eq!(*doubled, form(&add(one, one)));
    }
    #[cfg(target_arch = "x86_64")]
    if let Some(lanes) = Ifma::detect() {
        assert_eq!(lanes.run(additions()), outcome);
    }
}

#[test]
fn keys_that_are_not_points_of_the_curve_are_refused() {
    let good = some_key(5).to_sec1();
    assert_eq!(PublicKey::from_sec1(&good), Some(some_key(5)));
    for form in [0, 1, 2, 3, 5, 6, 7, 0x84] {
        let mut bad = good;
        bad[0] = form;
        assert_eq!(PublicKey::from_sec1(&bad), None);
    }
    for i in 1..65 {
        let mut bad = good;
        bad[i] ^= 1 << (i % 8);
        assert_eq!(PublicKey::from_sec1(&bad), None);
    }
    // x + p is the same residue: only the number below p is read. Infinity has no coordinates.
    let b = crate::residue::FieldElement::new(&crate::limbs::B);
    assert!(!b.is_zero());
    for (x, y) in [([0; 4], [0; 4]), (P, P), ([0; 4], P), (P, [0; 4]), ([u64::MAX; 4], [u64::MAX; 4])] {
        assert_eq!(PublicKey::from_sec1(&PublicKey { x, y }.to_sec1()), None);
    }
    // A point with x = 5 exists, and with x = p + 5 it would fit into 256 bits.
    let x = BigUint::from(5u8);
    let square = (&x * &x * &x + big(&crate::limbs::B) - 3u8 * &x) % p();
    let root = square.modpow(&((p() + 1u8) >> 2u32), &p());
    assert_eq!(&root * &root % p(), square, "5 is the x-coordinate of a point");
    let small_x = PublicKey { x: small(&x), y: small(&root) };
    assert!(PublicKey::from_sec1(&small_x.to_sec1()).is_some());
    let large_x = PublicKey { x: small(&(x + p())), ..small_x };
    assert_eq!(PublicKey::from_sec1(&large_x.to_sec1()), None);
}
