//! Tests of exceptional additions: signatures and keys are chosen so that every addition that can be exceptional is
//! exceptional once as P + P and once as P − P.
//!
//! A signer can produce such signatures, because the signer chooses the key's logarithm d. For chosen scalars u₁ and
//! u₂, the terms of the sum are cᵢ·G for the generator's digits and cᵢ·d·G for the key's digits, with known cᵢ. An
//! addition is exceptional if the sum so far, (A·d + B)·G, equals plus or minus the next term. This is an equation
//! for d, which the tests solve.

mod cases;

use cases::{
    Number, Prng, Signer, bytes, der, inverse, library, minus, number, order, plus, prime, scalar, sec1, small,
};
use num_bigint::BigUint;
use p256::{ProjectivePoint, Scalar};
use p256_verify::{Backend, KeyRef, Signature, Verdict, Verifier, VerifyItem};

/// Bits of the windows of keys with a table, of keys without, and of the generator.
const KEY_WINDOW: u32 = 8;
const COLD_WINDOW: u32 = 5;
const BASE_WINDOW: u32 = 13;

/// The digits of u in windows, each times its window's power of two: the coefficients of a sum's terms.
fn coefficients(u: &Scalar, window: u32) -> Vec<Scalar> {
    let is_even = bytes(u)[31].is_multiple_of(2);
    let k = BigUint::from_bytes_be(&bytes(&if is_even { -*u } else { *u }));
    let windows = 256u32.div_ceil(window);
    let t = (k >> 1u8) + (BigUint::from(1u8) << (window * windows - 1));
    let of = |n: u64| Scalar::from(n);
    let mut power = Scalar::ONE;
    let coefficients: Vec<Scalar> = (0..windows)
        .map(|i| {
            let b = u64::try_from((&t >> (window * i)) & BigUint::from((1u32 << window) - 1)).expect("a window");
            let digit = of(2 * b) - of((1 << window) - 1);
            let coefficient = if is_even { -(digit * power) } else { digit * power };
            power *= of(1 << window);
            coefficient
        })
        .collect();
    assert_eq!(coefficients.iter().fold(Scalar::ZERO, |sum, c| sum + c), *u);
    coefficients
}

/// A partial sum A·d + B.
#[derive(Clone, Copy, PartialEq)]
struct Partial {
    a: Scalar,
    b: Scalar,
}

impl Partial {
    fn plus(self, other: Partial) -> Partial {
        Partial { a: self.a + other.a, b: self.b + other.b }
    }

    /// The d for which this is other, or minus other.
    fn solve(self, other: Partial, negative: bool) -> Option<Scalar> {
        let Partial { a, b } = if negative { Partial { a: -other.a, b: -other.b } } else { other };
        let slope = self.a - a;
        (slope != Scalar::ZERO).then(|| (b - self.b) * inverse(&slope)).filter(|d| *d != Scalar::ZERO)
    }
}

/// Every d for which one of the additions is exceptional, where the lanes of a signature are `width`.
fn exceptional_keys(u1: &Scalar, u2: &Scalar, key_window: u32, width: usize) -> Vec<Scalar> {
    let key = coefficients(u2, key_window).into_iter().map(|a| Partial { a, b: Scalar::ZERO });
    let base = coefficients(u1, BASE_WINDOW).into_iter().map(|b| Partial { a: Scalar::ZERO, b });
    let terms: Vec<Partial> = key.chain(base).collect();
    let mut keys = Vec::new();
    let mut lanes = Vec::new();
    for lane in 0..width {
        let mut sum = terms[lane];
        for term in terms[lane..].iter().step_by(width).skip(1) {
            keys.extend([false, true].into_iter().filter_map(|negative| sum.solve(*term, negative)));
            sum = sum.plus(*term);
        }
        lanes.push(sum);
    }
    let mut distance = 1;
    while distance < width {
        let before = lanes.clone();
        for lane in 0..width {
            let other = before[lane ^ distance];
            if lane & distance == 0 {
                keys.extend([false, true].into_iter().filter_map(|negative| before[lane].solve(other, negative)));
            }
            lanes[lane] = before[lane].plus(other);
        }
        distance *= 2;
    }
    keys
}

/// A signature with this u₁ and u₂, whose R has the x-coordinate r modulo n.
fn signature(u1: &Scalar, u2: &Scalar, r: Scalar) -> (Number, Signature) {
    let s = r * inverse(u2);
    (bytes(&(*u1 * s)), Signature { r: bytes(&r), s: bytes(&s) })
}

/// The x-coordinate of a point modulo n; some number if the point is infinity.
fn x_of(point: &ProjectivePoint) -> Scalar {
    let point = sec1(point).unwrap_or([7; 65]);
    scalar(point[1..33].try_into().expect("32 bytes"))
}

struct Paths(Vec<Verifier>);

impl Paths {
    fn all() -> Paths {
        Paths(
            [Backend::Ifma, Backend::Model, Backend::Portable].into_iter().filter_map(Verifier::with_backend).collect(),
        )
    }

    fn fast() -> Paths {
        Paths([Backend::Ifma, Backend::Portable].into_iter().filter_map(Verifier::with_backend).collect())
    }

    /// Verdicts on one signature: with 1, 2, 4 and 8 lanes, and without a table. Checks that none says valid if the
    /// library does not.
    fn verdicts(&self, signer: &Signer, digest: &Number, signature: &Signature) -> Vec<(Backend, usize, Verdict)> {
        let valid = library(signer, digest, &der(signature));
        let mut verdicts = Vec::new();
        for verifier in &self.0 {
            let path = verifier.backend();
            let table = verifier.table(&signer.key);
            verdicts.push((path, 8, verifier.verify_one(&table, digest, signature)));
            for (count, width) in [(1, 8), (2, 4), (4, 2), (8, 1)] {
                let item = VerifyItem { key: KeyRef::Table(&table), digest: *digest, signature: *signature };
                verdicts.extend(verifier.verify_many(&vec![item; count]).into_iter().map(|v| (path, width, v)));
            }
            let cold = VerifyItem { key: KeyRef::Cold(&signer.key), digest: *digest, signature: *signature };
            verdicts.extend(verifier.verify_many(&[cold; 8]).into_iter().map(|v| (path, 0, v)));
        }
        for (path, width, verdict) in &verdicts {
            assert!(valid || *verdict == Verdict::Unsure, "{path:?} {width} accepts what the library refuses");
        }
        verdicts
    }
}

#[test]
fn every_addition_can_be_exceptional_and_is_noticed() {
    let (all, fast) = (Paths::all(), Paths::fast());
    let mut rng = Prng::new(10);
    let mut forced = 0;
    for width in [1, 2, 4, 8, 0] {
        let (u1, u2) = (scalar(&rng.number()), scalar(&rng.number()));
        let window = if width == 0 { COLD_WINDOW } else { KEY_WINDOW };
        let keys = exceptional_keys(&u1, &u2, window, width.max(1));
        // Of eight lanes, some have no term of the generator after one of the key.
        assert!(keys.len() >= 40, "{} of width {width}", keys.len());
        for (i, d) in keys.into_iter().enumerate() {
            // The model is slow: it takes a part of the keys where the vector unit takes all.
            let paths = if i % 16 == 0 || !Backend::Ifma.is_available() { &all } else { &fast };
            // Without a table, the key's terms come in another order, of which none is exceptional: doublings keep them
            // apart.
            let signer = Signer::new(d);
            let sum = u1 + u2 * d;
            let (digest, signature) = signature(&u1, &u2, x_of(&(ProjectivePoint::GENERATOR * sum)));
            assert_eq!(library(&signer, &digest, &der(&signature)), sum != Scalar::ZERO);
            for (path, of_width, verdict) in paths.verdicts(&signer, &digest, &signature) {
                // The portable path adds in the order of a single lane, and nothing without tables.
                let is_forced = if path == Backend::Portable { width == 1 || of_width == 0 } else { of_width == width };
                if is_forced {
                    assert_eq!(verdict, Verdict::Unsure, "{path:?}, width {width}, d {:x?}", bytes(&d));
                    forced += u32::from(path != Backend::Portable || of_width == 1);
                }
            }
            // The same additions, but another r. P + P leaves X = 0 and ZZ = 0, so that r·ZZ = X for every r.
            let (digest, signature) = self::signature(&u1, &u2, scalar(&rng.number()));
            assert!(!library(&signer, &digest, &der(&signature)));
            paths.verdicts(&signer, &digest, &signature);
        }
    }
    println!("{forced} exceptional additions");
    assert!(forced > 1000);
}

#[test]
fn special_scalars_of_special_keys_are_never_wrong() {
    let paths = Paths::fast();
    let one = Scalar::ONE;
    let power = |bit: u32| (0..bit).fold(one, |sum, _| sum + sum);
    let half = inverse(&Scalar::from(2u64));
    let scalars = [
        one,
        -one,
        Scalar::from(2u64),
        -Scalar::from(2u64),
        Scalar::from(3u64),
        half,
        -half,
        Scalar::from(255u64),
        Scalar::from(8191u64),
        power(8),
        power(13),
        power(104),
        power(104) - one,
        power(255),
        power(128) + one,
    ];
    let (mut cases, mut valid, mut unsure) = (0, 0, 0);
    for d in [one, -one, Scalar::from(2u64), half, power(8), inverse(&power(8)), power(13), inverse(&power(104)), -half]
    {
        let signer = Signer::new(d);
        let tables: Vec<_> = paths.0.iter().map(|verifier| verifier.table(&signer.key)).collect();
        for u1 in [Scalar::ZERO].iter().chain(&scalars) {
            for u2 in &scalars {
                let r = x_of(&(ProjectivePoint::GENERATOR * (*u1 + *u2 * d)));
                let (digest, signature) = signature(u1, u2, r);
                let expected = library(&signer, &digest, &der(&signature));
                assert_eq!(expected, *u1 + *u2 * d != Scalar::ZERO);
                cases += 1;
                valid += usize::from(expected);
                for (verifier, table) in paths.0.iter().zip(&tables) {
                    let one = verifier.verify_one(table, &digest, &signature);
                    let item = VerifyItem { key: KeyRef::Table(table), digest, signature };
                    let many = verifier.verify_many(&[item; 8]);
                    for verdict in many.into_iter().chain([one]) {
                        assert!(expected || verdict == Verdict::Unsure);
                        unsure += usize::from(expected && verdict == Verdict::Unsure);
                    }
                }
            }
        }
    }
    println!("{cases} cases, {valid} of them valid; {unsure} verdicts leave valid ones to the library");
    assert!(cases > 2000 && valid > 1900);
}

/// The point with this x-coordinate, if there is one.
fn lift(x: &Number) -> Option<ProjectivePoint> {
    let mut compressed = [2; 33];
    compressed[1..].copy_from_slice(x);
    p256::PublicKey::from_sec1_bytes(&compressed).ok().map(|key| key.to_projective())
}

/// A key for which R is the result of u₁ and u₂.
fn key_for(point: &ProjectivePoint, u1: &Scalar, u2: &Scalar) -> Signer {
    Signer::public(&((*point - ProjectivePoint::GENERATOR * *u1) * inverse(u2)))
}

#[test]
fn an_x_coordinate_of_n_or_more_is_found_again() {
    let paths = Paths::fast();
    let mut rng = Prng::new(11);
    let mut found = 0;
    // x = n + k for small k, and x = p − k.
    let from_n = (1..80).map(|k| plus(&order(), &small(k)));
    let below_p = (1..40).map(|k| minus(&prime(), &small(k)));
    for x in from_n.chain(below_p) {
        let Some(point) = lift(&x) else { continue };
        let (u1, u2) = (scalar(&rng.number()), scalar(&rng.number()));
        let signer = key_for(&point, &u1, &u2);
        let (digest, signature) = signature(&u1, &u2, scalar(&x));
        assert!(signature.r < minus(&prime(), &order()), "r + n is below p");
        assert!(library(&signer, &digest, &der(&signature)));
        for (path, width, verdict) in paths.verdicts(&signer, &digest, &signature) {
            let expected = if path == Backend::Portable && width == 0 { Verdict::Unsure } else { Verdict::Valid };
            assert_eq!(verdict, expected, "{path:?} {width}");
        }
        found += 1;
    }
    println!("{found} keys");
    assert!(found > 40);
}

#[test]
fn an_r_is_not_reduced_by_p() {
    let paths = Paths::fast();
    let mut rng = Prng::new(12);
    let mut found = 0;
    // R's x-coordinate is k, and r = k + p − n: r + n is k modulo p, but r is not k modulo n.
    for k in 0..40 {
        let Some(point) = lift(&small(k)) else { continue };
        let (u1, u2) = (scalar(&rng.number()), scalar(&rng.number()));
        let signer = key_for(&point, &u1, &u2);
        let r = plus(&minus(&prime(), &order()), &small(k));
        let (digest, signature) = signature(&u1, &u2, scalar(&r));
        assert!(!library(&signer, &digest, &der(&signature)));
        for (path, width, verdict) in paths.verdicts(&signer, &digest, &signature) {
            assert_eq!(verdict, Verdict::Unsure, "{path:?} {width}");
        }
        found += 1;
    }
    assert!(found > 10);
}

#[test]
fn numbers_out_of_range_and_foreign_tables_leave_it_to_the_library() {
    let signer = Signer::new(scalar(&number(&"5a".repeat(32))));
    let nonce = scalar(&number(&"17".repeat(32)));
    let r = x_of(&(ProjectivePoint::GENERATOR * nonce));
    let digest = number(&"c3".repeat(32));
    let s = inverse(&nonce) * (scalar(&digest) + r * signer.secret);
    let good = Signature { r: bytes(&r), s: bytes(&s) };
    let verifiers: Vec<Verifier> = Paths::fast().0;
    for verifier in &verifiers {
        let table = verifier.table(&signer.key);
        assert_eq!(verifier.verify_one(&table, &digest, &good), Verdict::Valid);
        for bad in [small(0), order(), plus(&order(), &small(1)), prime(), [0xff; 32]] {
            for signature in [Signature { r: bad, ..good }, Signature { s: bad, ..good }, Signature { r: bad, s: bad }]
            {
                assert_eq!(verifier.verify_one(&table, &digest, &signature), Verdict::Unsure);
                // Among others it spoils nothing.
                let item = |signature| VerifyItem { key: KeyRef::Table(&table), digest, signature };
                let verdicts = verifier.verify_many(&[item(good), item(signature), item(good)]);
                assert_eq!(verdicts, [Verdict::Valid, Verdict::Unsure, Verdict::Valid]);
            }
        }
        for other in &verifiers {
            if other.backend() != verifier.backend() {
                assert_eq!(other.verify_one(&table, &digest, &good), Verdict::Unsure);
                let item = VerifyItem { key: KeyRef::Table(&table), digest, signature: good };
                assert_eq!(other.verify_many(&[item]), [Verdict::Unsure]);
            }
        }
        assert_eq!(verifier.verify_many(&[]), []);
    }
}

#[test]
fn every_path_passes_its_self_test() {
    for verifier in Paths::all().0 {
        assert_eq!(verifier.self_test(), Ok(()));
    }
}
