//! Verification without vector instructions, one signature at a time. It adds affine points to a sum in XYZZ
//! coordinates; a coordinate has four 64-bit limbs.
//!
//! See `points` for the formulas and the exceptional cases. A table entry holds x and y in Montgomery form, R = 2^256.

use crate::digits::{self, Digit, Window};
use crate::key::PublicKey;
use crate::lanes::Words;
use crate::residue::FieldElement;
use crate::scalars::PreparedSignature;

#[derive(Clone, Copy, Debug)]
struct Affine {
    x: FieldElement,
    y: FieldElement,
}

impl Affine {
    #[inline(always)]
    fn load(words: &Words) -> Affine {
        let [a, b, c, d, e, f, g, h] = words.0;
        Affine { x: FieldElement::from_montgomery([a, b, c, d]), y: FieldElement::from_montgomery([e, f, g, h]) }
    }

    fn words(&self) -> Words {
        let (&[a, b, c, d], &[e, f, g, h]) = (self.x.montgomery(), self.y.montgomery());
        Words([a, b, c, d, e, f, g, h])
    }
}

/// A sum: x = X/ZZ, y = Y/ZZZ.
struct Sum {
    x: FieldElement,
    y: FieldElement,
    zz: FieldElement,
    zzz: FieldElement,
}

impl Sum {
    #[inline(always)]
    fn add(&mut self, other: &Affine, negative: bool) {
        let u2 = other.x.times(&self.zz);
        let s2 = other.y.times(&self.zzz);
        let s2 = if negative { s2.negated() } else { s2 };
        let h = u2.minus(&self.x);
        let r = s2.minus(&self.y);
        let hh = h.squared();
        let hhh = h.times(&hh);
        let v = self.x.times(&hh);
        let x = r.squared().minus(&hhh).minus(&v.doubled());
        self.y = r.times(&v.minus(&x)).minus(&self.y.times(&hhh));
        self.x = x;
        self.zz = self.zz.times(&hh);
        self.zzz = self.zzz.times(&hhh);
    }
}

/// Terms of a sum that are found before the first is added.
const TERMS_MAX: usize = 64;

/// Whether u₁·G + u₂·Q has an x-coordinate that is r modulo n; false also if an addition was exceptional.
pub(crate) fn verify(
    prepared: &PreparedSignature,
    table: &[Words],
    key_window: u32,
    base: &[Words],
    base_window: u32,
) -> bool {
    let key_terms = digits::windows(key_window);
    let terms = key_terms + digits::windows(base_window);
    assert!(terms <= TERMS_MAX, "windows have at least eight bits");
    // The entries lie anywhere in memory. All are touched first, so that they are fetched side by side.
    let mut entries = [(&base[0], false); TERMS_MAX];
    let mut touched = 0;
    for (i, entry) in entries[..terms].iter_mut().enumerate() {
        let (table, window, digits, i) = if i < key_terms {
            (table, key_window, &prepared.key, i)
        } else {
            (base, base_window, &prepared.base, i - key_terms)
        };
        let Digit { entry: at, negative } = digits.digit(&Window::new(window, i));
        *entry = (&table[(i << (window - 1)) | at], negative);
        touched |= entry.0.0[0];
    }
    std::hint::black_box(touched);
    let ((first, negative), others) = (entries[0], &entries[1..terms]);
    let first = Affine::load(first);
    let y = if negative { first.y.negated() } else { first.y };
    let mut sum = Sum { x: first.x, y, zz: FieldElement::ONE, zzz: FieldElement::ONE };
    for &(entry, negative) in others {
        sum.add(&Affine::load(entry), negative);
    }
    if sum.zz.is_zero() {
        return false;
    }
    // A number times a Montgomery form is the product as a number.
    let x = sum.x.number();
    prepared.candidates.iter().any(|candidate| sum.zz.times_number(candidate) == x)
}

/// A table of a key, as `builder` makes it, except for the Montgomery form.
pub(crate) fn build(key: &PublicKey, window: u32) -> Box<[Words]> {
    let (windows, per_window) = (digits::windows(window), digits::entries(window));
    let doubles = doubles(key, windows * window as usize);
    let mut entries = vec![Words::default(); windows * per_window].into_boxed_slice();
    for (i, entries) in entries.chunks_exact_mut(per_window).enumerate() {
        entries[0] = doubles[i * window as usize].words();
    }
    for level in 1..window {
        let size = 1 << (level - 1);
        let other = |i: usize| doubles[i * window as usize + level as usize];
        let mut inverses = Vec::with_capacity(windows * size);
        for (i, entries) in entries.chunks_exact(per_window).enumerate() {
            inverses.extend(entries[..size].iter().map(|one| other(i).x.minus(&Affine::load(one).x)));
        }
        invert(&mut inverses);
        for (i, entries) in entries.chunks_exact_mut(per_window).enumerate() {
            let other = other(i);
            for j in 0..size {
                let one = Affine::load(&entries[j]);
                let slope = other.y.minus(&one.y).times(&inverses[i * size + j]);
                let x = slope.squared().minus(&one.x).minus(&other.x);
                let y = slope.times(&one.x.minus(&x)).minus(&one.y);
                entries[size + j] = Affine { x, y }.words();
            }
        }
    }
    entries
}

/// 2^t·Q for every t below `count`.
fn doubles(key: &PublicKey, count: usize) -> Vec<Affine> {
    let (mut x, mut y, mut z) = (FieldElement::new(&key.x), FieldElement::new(&key.y), FieldElement::ONE);
    let mut points = Vec::with_capacity(count);
    let mut inverses = Vec::with_capacity(count);
    for _ in 0..count {
        points.push(Affine { x, y });
        inverses.push(z);
        let (delta, gamma) = (z.squared(), y.squared());
        let beta4 = x.times(&gamma).doubled().doubled();
        let alpha = x.minus(&delta).times(&x.plus(&delta));
        let alpha = alpha.doubled().plus(&alpha);
        z = y.times(&z).doubled();
        x = alpha.squared().minus(&beta4.doubled());
        y = alpha.times(&beta4.minus(&x)).minus(&gamma.squared().doubled().doubled().doubled());
    }
    invert(&mut inverses);
    for (point, inverse) in points.iter_mut().zip(&inverses) {
        let square = inverse.squared();
        *point = Affine { x: point.x.times(&square), y: point.y.times(&square.times(inverse)) };
    }
    points
}

/// Inverts elements, none of which is zero, with one inversion.
fn invert(values: &mut [FieldElement]) {
    let mut product = FieldElement::ONE;
    let mut products = Vec::with_capacity(values.len());
    for value in values.iter() {
        products.push(product);
        product = product.times(value);
    }
    let mut inverse = product.inverted().expect("multiples of a point of prime order differ, and none has y = 0");
    for (value, product) in values.iter_mut().zip(&products).rev() {
        let of_value = inverse.times(product);
        inverse = inverse.times(value);
        *value = of_value;
    }
}

/// The point of a table's entry, as numbers.
#[cfg(test)]
pub(crate) fn entry_point(words: &Words) -> (crate::limbs::Limbs, crate::limbs::Limbs) {
    let Affine { x, y } = Affine::load(words);
    (x.number(), y.number())
}
