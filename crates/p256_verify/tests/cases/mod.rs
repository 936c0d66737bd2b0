//! The cases of the differential tests: valid signatures, and signatures with an altered key, digest, r or s. The
//! module also compares the verdicts of every path with those of other implementations.

#![allow(dead_code, reason = "each program uses a part")]

use aws_lc_rs::digest::{Digest, SHA256};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, ParsedPublicKey};
use p256::ecdsa::VerifyingKey;
use p256::ecdsa::signature::hazmat::PrehashVerifier;
use p256::elliptic_curve::ops::Reduce;
use p256::elliptic_curve::sec1::ToSec1Point;
use p256::{FieldBytes, ProjectivePoint, Scalar};
use p256_verify::{Backend, COLD_MIN, KeyRef, KeyTable, PublicKey, Signature, Verdict, Verifier, VerifyItem};

pub type Number = [u8; 32];

/// Signatures that one nonce is used for: making a nonce is what costs most.
const NONCE_USES: usize = 16;
/// Most signatures that are verified together.
const BATCH_MAX: usize = 40;

/// Numbers from a seed (splitmix64).
pub struct Prng(u64);

impl Prng {
    pub fn new(seed: u64) -> Prng {
        let mut rng = Prng(seed);
        rng.0 = rng.word();
        rng
    }

    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.word() >> 11) as usize % limit
    }

    pub fn number(&mut self) -> Number {
        let mut number = [0; 32];
        for chunk in number.chunks_exact_mut(8) {
            chunk.copy_from_slice(&self.word().to_le_bytes());
        }
        number
    }
}

pub fn number(hex: &str) -> Number {
    hex::decode(hex).expect("hexadecimal digits").try_into().expect("32 bytes")
}

pub fn order() -> Number {
    number("ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551")
}

pub fn prime() -> Number {
    number("ffffffff00000001000000000000000000000000ffffffffffffffffffffffff")
}

/// a + b modulo 2^256.
pub fn plus(a: &Number, b: &Number) -> Number {
    let mut sum = [0; 32];
    let mut carry = 0;
    for i in (0..32).rev() {
        let digit = u16::from(a[i]) + u16::from(b[i]) + carry;
        sum[i] = digit as u8;
        carry = digit >> 8;
    }
    sum
}

/// a − b modulo 2^256.
pub fn minus(a: &Number, b: &Number) -> Number {
    plus(&plus(a, &b.map(|byte| !byte)), &small(1))
}

pub fn small(n: u8) -> Number {
    let mut number = [0; 32];
    number[31] = n;
    number
}

/// Numbers at which ranges end.
pub fn edges() -> Vec<Number> {
    let (n, p) = (order(), prime());
    let mut edges = vec![small(0), [0xff; 32], minus(&p, &n)];
    for i in 0..3 {
        edges.extend([small(i), plus(&n, &small(i)), minus(&n, &small(i)), plus(&p, &small(i)), minus(&p, &small(i))]);
        edges.extend([plus(&minus(&p, &n), &small(i)), minus(&minus(&p, &n), &small(i))]);
    }
    edges.extend((0..256).step_by(13).map(|bit| {
        let mut number = small(0);
        number[31 - bit / 8] = 1 << (bit % 8);
        number
    }));
    edges
}

/// The number modulo n.
pub fn scalar(number: &Number) -> Scalar {
    <Scalar as Reduce<FieldBytes>>::reduce(&FieldBytes::from(*number))
}

pub fn bytes(scalar: &Scalar) -> Number {
    FieldBytes::from(*scalar).into()
}

pub fn inverse(scalar: &Scalar) -> Scalar {
    Option::from(scalar.invert()).expect("not zero")
}

/// The uncompressed form of a point, unless it is infinity.
pub fn sec1(point: &ProjectivePoint) -> Option<[u8; 65]> {
    point.to_affine().to_sec1_point(false).as_bytes().try_into().ok()
}

/// A key, in each implementation's form.
pub struct Signer {
    pub secret: Scalar,
    pub key: PublicKey,
    pub library: ParsedPublicKey,
    pub second: VerifyingKey,
}

impl Signer {
    pub fn new(secret: Scalar) -> Signer {
        Signer { secret, ..Signer::public(&(ProjectivePoint::GENERATOR * secret)) }
    }

    /// A key whose secret is unknown.
    pub fn public(point: &ProjectivePoint) -> Signer {
        let point = sec1(point).expect("not infinity");
        Signer {
            secret: Scalar::ZERO,
            key: PublicKey::from_sec1(&point).expect("a point of the curve"),
            library: ParsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, point).expect("a point of the curve"),
            second: VerifyingKey::from_sec1_bytes(&point).expect("a point of the curve"),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Which of the signers' keys it is verified with.
    pub key: usize,
    pub digest: Number,
    pub signature: Signature,
}

/// Strict DER of a signature.
pub fn der(signature: &Signature) -> Vec<u8> {
    let integer = |number: &Number| {
        let zeroes = number.iter().take(31).take_while(|byte| **byte == 0).count();
        let digits = &number[zeroes..];
        let sign = usize::from(digits[0] >= 0x80);
        let mut der = vec![2, (digits.len() + sign) as u8];
        der.extend(std::iter::repeat_n(0, sign));
        der.extend(digits);
        der
    };
    let content = [integer(&signature.r), integer(&signature.s)].concat();
    [vec![0x30, content.len() as u8], content].concat()
}

/// The library's verdict.
pub fn library(signer: &Signer, digest: &Number, der: &[u8]) -> bool {
    let digest = Digest::import_less_safe(digest, &SHA256).expect("32 bytes");
    signer.library.verify_digest_sig(&digest, der).is_ok()
}

/// The verdict of the `p256` crate.
pub fn second(signer: &Signer, case: &Case) -> bool {
    let (r, s) = (FieldBytes::from(case.signature.r), FieldBytes::from(case.signature.s));
    p256::ecdsa::Signature::from_scalars(r, s)
        .is_ok_and(|signature| signer.second.verify_prehash(&case.digest, &signature).is_ok())
}

/// Cases without end: about half are valid signatures.
pub struct Cases {
    rng: Prng,
    edges: Vec<Number>,
    r: Scalar,
    nonce_inverse: Scalar,
    uses: usize,
}

impl Cases {
    pub fn new(seed: u64) -> Cases {
        Cases { rng: Prng::new(seed), edges: edges(), r: Scalar::ZERO, nonce_inverse: Scalar::ZERO, uses: 0 }
    }

    fn edge(&mut self) -> Number {
        self.edges[self.rng.below(self.edges.len())]
    }

    /// A valid signature over any digest: a few digests are edges.
    fn valid(&mut self, signers: &[Signer]) -> Case {
        loop {
            if self.uses == 0 {
                let nonce = scalar(&self.rng.number());
                let Some(point) = sec1(&(ProjectivePoint::GENERATOR * nonce)) else { continue };
                self.r = scalar(point[1..33].try_into().expect("32 bytes"));
                self.nonce_inverse = inverse(&nonce);
                self.uses = NONCE_USES;
            }
            self.uses -= 1;
            let key = self.rng.below(signers.len());
            let digest = if self.rng.below(16) == 0 { self.edge() } else { self.rng.number() };
            let mut s = self.nonce_inverse * (scalar(&digest) + self.r * signers[key].secret);
            if self.rng.below(2) == 0 {
                s = -s;
            }
            if self.r != Scalar::ZERO && s != Scalar::ZERO {
                return Case { key, digest, signature: Signature { r: bytes(&self.r), s: bytes(&s) } };
            }
        }
    }

    fn flip(&mut self, number: &mut Number) {
        let bit = self.rng.below(256);
        number[bit / 8] ^= 1 << (bit % 8);
    }

    pub fn next(&mut self, signers: &[Signer]) -> Case {
        let mut case = self.valid(signers);
        let Case { key, digest, signature: Signature { r, s } } = &mut case;
        match self.rng.below(32) {
            0..16 => {}
            16 | 17 => self.flip(digest),
            18 | 19 => self.flip(r),
            20 | 21 => self.flip(s),
            22 => *r = self.edge(),
            23 => *s = self.edge(),
            24 => (*r, *s) = (self.edge(), self.edge()),
            25 => std::mem::swap(r, s),
            26 => *key = (*key + 1) % signers.len(),
            27 => *digest = self.rng.number(),
            28 => (*r, *s) = (self.rng.number(), self.rng.number()),
            29 => *r = minus(&order(), r),
            30 => *digest = plus(digest, &self.edge()),
            _ => {
                // The same numbers modulo n, out of range or wrapped.
                *r = plus(r, &order());
                if self.rng.below(2) == 0 {
                    *s = plus(s, &order());
                }
            }
        }
        case
    }
}

/// How often each path was taken, and the results.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub cases: u64,
    pub valid: u64,
    /// Verdicts of `verify_one` and of `verify_many` with tables and without.
    pub one: u64,
    pub many: u64,
    pub cold: u64,
    pub portable: u64,
    /// Compared with the second implementation.
    pub second: u64,
    /// Valid signatures about which a path was unsure although it should not have been: none of these is a wrong
    /// verdict.
    pub unsure: u64,
    pub differences: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Counts) {
        self.cases += other.cases;
        self.valid += other.valid;
        self.one += other.one;
        self.many += other.many;
        self.cold += other.cold;
        self.portable += other.portable;
        self.second += other.second;
        self.unsure += other.unsure;
        self.differences += other.differences;
    }
}

/// Keys, and a verifier of each path with their tables.
pub struct Harness {
    pub signers: Vec<Signer>,
    pub verifiers: Vec<(Verifier, Vec<KeyTable>)>,
}

impl Harness {
    pub fn new(signers: Vec<Signer>, paths: &[Backend]) -> Harness {
        let keys: Vec<PublicKey> = signers.iter().map(|signer| signer.key).collect();
        let verifiers = paths.iter().filter_map(|path| Verifier::with_backend(*path)).map(|verifier| {
            let tables = verifier.tables(&keys);
            (verifier, tables)
        });
        Harness { verifiers: verifiers.collect(), signers }
    }

    /// Some ordinary keys.
    pub fn with_keys(count: usize, seed: u64, paths: &[Backend]) -> Harness {
        let mut rng = Prng::new(seed);
        let signers = (0..count).map(|_| Signer::new(scalar(&rng.number())));
        Harness::new(signers.collect(), paths)
    }

    /// Verifies cases on every path, in groups of every size, and compares with the library. One case in
    /// `portable_every` takes the portable path, and one in `second_every` is compared with the second implementation.
    pub fn run(&self, cases: &[Case], rng: &mut Prng, portable_every: usize, second_every: Option<usize>) -> Counts {
        let mut counts = Counts { cases: cases.len() as u64, ..Counts::default() };
        let expected: Vec<bool> = cases
            .iter()
            .map(|case| {
                let der = der(&case.signature);
                assert_eq!(Signature::from_der(&der), Some(case.signature), "DER is read as it is written");
                library(&self.signers[case.key], &case.digest, &der)
            })
            .collect();
        counts.valid = expected.iter().filter(|valid| **valid).count() as u64;
        let mut compare = |path: Backend, way: &str, at: usize, verdict: Verdict, may_be_unsure: bool| {
            if (verdict == Verdict::Valid) == expected[at] {
                return;
            }
            if verdict == Verdict::Unsure && may_be_unsure {
                counts.unsure += 1;
                return;
            }
            counts.differences += 1;
            let (case, expected) = (&cases[at], expected[at]);
            eprintln!("difference: {path:?} {way} says {verdict:?}, the library {expected}: {case:x?}");
        };
        for (verifier, tables) in &self.verifiers {
            let path = verifier.backend();
            let mut start = 0;
            while start < cases.len() {
                let size = (1 + rng.below(BATCH_MAX)).min(cases.len() - start);
                let batch = &cases[start..start + size];
                let every = if path == Backend::Portable { portable_every } else { 1 };
                if rng.below(every) == 0 {
                    // A few of the batches have keys without tables, or some of them.
                    let cold = if path == Backend::Portable { 0 } else { [0, 0, 0, 0, 0, 0, 50, 100][rng.below(8)] };
                    let is_cold: Vec<bool> = batch.iter().map(|_| rng.below(100) < cold).collect();
                    let items: Vec<VerifyItem> = batch
                        .iter()
                        .zip(&is_cold)
                        .map(|(case, cold)| VerifyItem {
                            key: if *cold {
                                KeyRef::Cold(&self.signers[case.key].key)
                            } else {
                                KeyRef::Table(&tables[case.key])
                            },
                            digest: case.digest,
                            signature: case.signature,
                        })
                        .collect();
                    let verdicts = verifier.verify_many(&items);
                    // The last few keys without tables may be left to the library.
                    let mut left = is_cold.iter().filter(|cold| **cold).count();
                    let unsure_from = left.saturating_sub(COLD_MIN + 7);
                    left = 0;
                    for (i, verdict) in verdicts.into_iter().enumerate() {
                        left += usize::from(is_cold[i]);
                        compare(path, "many", start + i, verdict, is_cold[i] && left > unsure_from);
                    }
                    let cold = is_cold.iter().filter(|cold| **cold).count() as u64;
                    if path == Backend::Portable {
                        counts.portable += size as u64;
                    } else {
                        counts.cold += cold;
                        counts.many += size as u64 - cold;
                    }
                }
                if rng.below(4) == 0 && path != Backend::Portable {
                    for (i, case) in batch.iter().enumerate() {
                        let verdict = verifier.verify_one(&tables[case.key], &case.digest, &case.signature);
                        compare(path, "one", start + i, verdict, false);
                    }
                    counts.one += size as u64;
                }
                start += size;
            }
        }
        if let Some(every) = second_every {
            for (case, valid) in cases.iter().zip(&expected).step_by(every) {
                counts.second += 1;
                if second(&self.signers[case.key], case) != *valid {
                    counts.differences += 1;
                    eprintln!("difference: p256 and the library, which says {valid}: {case:x?}");
                }
            }
        }
        counts
    }
}
