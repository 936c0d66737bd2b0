//! Builds the tables of odd multiples of keys and of the generator, on eight lanes.
//!
//! A table with windows of w bits has, for every window i, the points (2j + 1)·2^(w·i)·Q for j below 2^(w − 1). These
//! are the odd multiples of Bᵢ = 2^(w·i)·Q below 2^w. They are built in three steps:
//!
//! 1. [`Doubles`] doubles Q again and again, which gives 2^t·Q for every t. Eight lanes do this for eight keys at
//!    once.
//! 2. [`MakeAffine`] turns these Jacobian points into affine ones. Up to [`GROUP`] · 8 points share one inversion.
//! 3. [`AddLevel`] goes from the odd multiples of Bᵢ below 2^m to those below 2^(m + 1): it adds 2^m·Bᵢ = 2^(w·i + m)·Q
//!    to each. A level consists of these affine additions for one m, in all windows that are built together. Up to
//!    [`GROUP`] · 8 of them share one inversion.
//!
//! No addition is exceptional: it adds two different multiples of a point, both below 2^w, and the order of the point
//! is the prime n, which is far greater.
//!
//! An entry is one cache line: x and y in Montgomery form, R = 2^260, four limbs of 64 bits each, below p.

use crate::digits;
use crate::field::{Field, Tight};
use crate::key::PublicKey;
use crate::lanes::{LANES, Lanes, Operation, Words};
use crate::limbs::{Limbs, P};
use crate::points::Affine;
use crate::residue::{FieldElement, power_of_two};

/// Vectors that share an inversion.
const GROUP: usize = 128;
/// 2^520 mod p: what brings a number into Montgomery form.
const INTO_FORM: Limbs = power_of_two(&P, 520);
/// 2^780 mod p: what brings the inverse of a Montgomery form, a⁻¹·2^−260, into Montgomery form.
const INVERSE_INTO_FORM: Limbs = power_of_two(&P, 780);

/// A table for each key, with windows of `window` bits for whole scalars.
pub(crate) fn build<L: Lanes>(lanes: L, keys: &[PublicKey], window: u32) -> Vec<Box<[Words]>> {
    let count = digits::windows(window) * window as usize;
    let mut tables = Vec::with_capacity(keys.len());
    for keys in keys.chunks(LANES) {
        let doubles = doubles(lanes, keys, count);
        tables.extend(doubles.chunks_exact(count).map(|doubles| odd_multiples(lanes, doubles, window)));
    }
    tables
}

/// A table of the first window only for each key, one behind the other.
pub(crate) fn build_first_windows<L: Lanes>(lanes: L, keys: &[PublicKey], window: u32) -> Box<[Words]> {
    odd_multiples(lanes, &doubles(lanes, keys, window as usize), window)
}

/// 2^t·Q for every t below `count`, one key's after another's.
fn doubles<L: Lanes>(lanes: L, keys: &[PublicKey], count: usize) -> Vec<Words> {
    let mut points = vec![Words::default(); keys.len() * count];
    let mut denominators = points.clone();
    let parts = points.chunks_mut(LANES * count).zip(denominators.chunks_mut(LANES * count));
    for (keys, (points, denominators)) in keys.chunks(LANES).zip(parts) {
        lanes.run(Doubles { keys, count, points, denominators });
    }
    for (points, denominators) in points.chunks_mut(GROUP * LANES).zip(denominators.chunks(GROUP * LANES)) {
        lanes.run(MakeAffine { points, denominators });
    }
    points
}

/// The odd multiples below 2^window of every window's first point: `doubles` has `window` points for each.
fn odd_multiples<L: Lanes>(lanes: L, doubles: &[Words], window: u32) -> Box<[Words]> {
    let per_window = digits::entries(window);
    let windows = doubles.len() / window as usize;
    let mut entries = vec![Words::default(); windows * per_window].into_boxed_slice();
    for (entries, doubles) in entries.chunks_exact_mut(per_window).zip(doubles.chunks_exact(window as usize)) {
        entries[0] = doubles[0];
    }
    for level in 1..window {
        let additions = windows << (level - 1);
        for start in (0..additions).step_by(GROUP * LANES) {
            let end = additions.min(start + GROUP * LANES);
            lanes.run(AddLevel { window, level, start, end, doubles, entries: &mut entries });
        }
    }
    entries
}

/// Writes 2^t·Q for every t below `count`: X and Y to points, Z to denominators, one key's after another's.
struct Doubles<'a> {
    /// One to eight keys.
    keys: &'a [PublicKey],
    count: usize,
    points: &'a mut [Words],
    denominators: &'a mut [Words],
}

impl Operation for Doubles<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let f = Field::new(lanes);
        let mut rows = [Words::default(); LANES];
        for (lane, row) in rows.iter_mut().enumerate() {
            let PublicKey { x, y } = self.keys.get(lane).unwrap_or(&self.keys[0]);
            *row = Words([x[0], x[1], x[2], x[3], y[0], y[1], y[2], y[3]]);
        }
        let [a, b, c, d, e, g, h, i] = &rows;
        let mut point = Affine::load(&f, [a, b, c, d, e, g, h, i]);
        let into = f.splat(&INTO_FORM);
        point.x = f.times(&point.x, &into);
        point.y = f.times(&point.y, &into);
        let mut point = point.to_jacobian(&f, 0);
        for t in 0..self.count {
            if t > 0 {
                point = point.doubled(&f);
            }
            let z = f.canonical(&point.z);
            f.store_pairs(&f.canonical(&point.x), &f.canonical(&point.y), &mut rows);
            for (key, row) in rows.iter().enumerate().take(self.keys.len()) {
                self.points[key * self.count + t] = *row;
            }
            f.store_pairs(&z, &f.zero(), &mut rows);
            for (key, row) in rows.iter().enumerate().take(self.keys.len()) {
                self.denominators[key * self.count + t] = *row;
            }
        }
    }
}

/// The eight rows from `at` on; the last again where there are no more.
#[inline(always)]
fn rows_at(words: &[Words], at: usize) -> [&Words; LANES] {
    let mut rows = [&words[at]; LANES];
    for (lane, row) in rows.iter_mut().enumerate() {
        *row = &words[(at + lane).min(words.len() - 1)];
    }
    rows
}

/// Makes Jacobian points affine: at most [`GROUP`] vectors.
struct MakeAffine<'a> {
    points: &'a mut [Words],
    denominators: &'a [Words],
}

impl Operation for MakeAffine<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let f = Field::new(lanes);
        let mut inverses = Inverses::new(&f);
        for at in (0..self.points.len()).step_by(LANES) {
            inverses.push(&f, &f.load_pairs(rows_at(self.denominators, at)).0);
        }
        inverses.invert(&f);
        let last = (self.points.len() - 1) / LANES;
        let mut out = [Words::default(); LANES];
        for at in (0..=last).rev().map(|i| i * LANES) {
            let inverse = inverses.pop(&f);
            let square = f.squared(&inverse);
            let (x, y) = f.load_pairs(rows_at(self.points, at));
            let x = f.times(&x, &square);
            let y = f.times(&y, &f.times(&square, &inverse));
            f.store_pairs(&f.canonical(&x), &f.canonical(&y), &mut out);
            for (lane, row) in out.iter().enumerate().take(self.points.len() - at) {
                self.points[at + lane] = *row;
            }
        }
    }
}

/// Affine additions of one level, numbered over all windows: at most [`GROUP`] vectors of them.
struct AddLevel<'a> {
    window: u32,
    level: u32,
    start: usize,
    end: usize,
    doubles: &'a [Words],
    entries: &'a mut [Words],
}

impl AddLevel<'_> {
    /// Of addition `i`: the entry that is added to, the doubled point that is added, and the entry that this gives.
    #[inline(always)]
    fn addition(&self, i: usize) -> (usize, usize, usize) {
        // Where lanes are left over they repeat the last addition, which writes the same again.
        let i = i.min(self.end - 1);
        let size = 1 << (self.level - 1);
        let (window, j) = (i >> (self.level - 1), i & (size - 1));
        let entry = (window << (self.window - 1)) | j;
        (entry, window * self.window as usize + self.level as usize, entry | size)
    }

    #[inline(always)]
    fn load<L: Lanes>(&self, f: &Field<L>, at: usize) -> (Affine<L>, Affine<L>) {
        let (mut one, mut other) = ([&self.entries[0]; LANES], [&self.doubles[0]; LANES]);
        for lane in 0..LANES {
            let (entry, double, _) = self.addition(at + lane);
            one[lane] = &self.entries[entry];
            other[lane] = &self.doubles[double];
        }
        (Affine::load(f, one), Affine::load(f, other))
    }
}

impl Operation for AddLevel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let f = Field::new(lanes);
        let mut inverses = Inverses::new(&f);
        for at in (self.start..self.end).step_by(LANES) {
            let (one, other) = self.load(&f, at);
            inverses.push(&f, &f.reduce(&f.difference(&other.x.loose(), &one.x.loose())));
        }
        inverses.invert(&f);
        let vectors = (self.end - self.start).div_ceil(LANES);
        let mut out = [Words::default(); LANES];
        for at in (0..vectors).rev().map(|i| self.start + i * LANES) {
            let inverse = inverses.pop(&f);
            let (one, other) = self.load(&f, at);
            let rise = f.reduce(&f.difference(&other.y.loose(), &one.y.loose()));
            let slope = f.times(&rise, &inverse);
            let sum = f.sum(&one.x.loose(), &other.x.loose());
            let x = f.reduce(&f.difference(&f.square(&slope), &sum));
            let step = f.reduce(&f.difference(&one.x.loose(), &x.loose()));
            let y = f.reduce(&f.difference(&f.product(&slope, &step), &one.y.loose()));
            f.store_pairs(&f.canonical(&x), &f.canonical(&y), &mut out);
            for (lane, row) in out.iter().enumerate() {
                self.entries[self.addition(at + lane).2] = *row;
            }
        }
    }
}

/// Inverses of many elements with one inversion, last in, first out (Montgomery's trick).
struct Inverses<L: Lanes> {
    values: Vec<Tight<L>>,
    /// For each value, the product of those before it.
    products: Vec<Tight<L>>,
    /// Of all values; after [`Inverses::invert`] its inverse.
    product: Tight<L>,
}

impl<L: Lanes> Inverses<L> {
    #[inline(always)]
    fn new(f: &Field<L>) -> Self {
        Inverses { values: Vec::with_capacity(GROUP), products: Vec::with_capacity(GROUP), product: f.one() }
    }

    #[inline(always)]
    fn push(&mut self, f: &Field<L>, value: &Tight<L>) {
        self.values.push(*value);
        self.products.push(self.product);
        self.product = f.times(&self.product, value);
    }

    /// Inverts the product, of which no factor is zero.
    #[inline(always)]
    fn invert(&mut self, f: &Field<L>) {
        // One inversion for the eight lanes: a tree of products, and down again.
        let one = self.product;
        let pair = f.times(&one, &f.exchange::<1>(&one));
        let quad = f.times(&pair, &f.exchange::<2>(&pair));
        let all = f.times(&quad, &f.exchange::<4>(&quad));
        let mut rows = [Words::default(); LANES];
        f.store_pairs(&f.canonical(&all), &f.zero(), &mut rows);
        let [a, b, c, d, ..] = rows[0].0;
        let inverse = FieldElement::new(&[a, b, c, d]).inverted();
        let inverse = inverse.expect("multiples of a point of prime order differ, and none has y = 0").number();
        let inverse = f.times(&f.splat(&inverse), &f.splat(&INVERSE_INTO_FORM));
        let inverse = f.times(&inverse, &f.exchange::<4>(&quad));
        let inverse = f.times(&inverse, &f.exchange::<2>(&pair));
        self.product = f.times(&inverse, &f.exchange::<1>(&one));
    }

    /// The inverse of the last value that is left.
    #[inline(always)]
    fn pop(&mut self, f: &Field<L>) -> Tight<L> {
        let value = self.values.pop().expect("as many are taken as were given");
        let product = self.products.pop().expect("there is one for each value");
        let inverse = f.times(&self.product, &product);
        self.product = f.times(&self.product, &value);
        inverse
    }
}
