//! Compares the speed of this crate with that of aws-lc-rs: microseconds per signature for both, and their ratio.
//!
//! `cargo run --release -p heddle-p256-verify --example compare`
//!
//! Everything runs on one thread. The variants take turns, and each figure is the median of the rounds. Digests are
//! computed beforehand; parsing of DER is included on both sides. Keys are drawn at random from 300, and the library
//! gets the keys in parsed form.

use std::hint::black_box;

use aws_lc_rs::digest::{Digest, SHA256, digest};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _, ParsedPublicKey,
};
use p256_verify::{Backend, KeyRef, KeyTable, PublicKey, Signature, Verdict, Verifier, VerifyItem};
use rustix::time::{ClockId, clock_gettime};

const KEYS: usize = 300;
const SIGNATURES: usize = 1024;
const ROUNDS: usize = 9;
/// More than the second-level cache, and what is left of the third with other data in it.
const FLUSHED_BYTES: usize = 8 << 20;

struct Signed {
    key: usize,
    digest: Digest,
    bytes: [u8; 32],
    der: Vec<u8>,
}

fn random(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 20) as usize
}

fn item<'a>(key: KeyRef<'a>, signed: &Signed) -> VerifyItem<'a> {
    let signature = Signature::from_der(&signed.der).expect("the library writes strict DER");
    VerifyItem { key, digest: signed.bytes, signature }
}

fn many(verifier: &Verifier, tables: &[KeyTable], signed: &[Signed], batch: usize) {
    for signed in signed.chunks_exact(batch) {
        let items: Vec<VerifyItem> = signed.iter().map(|one| item(KeyRef::Table(&tables[one.key]), one)).collect();
        assert!(verifier.verify_many(&items).iter().all(|verdict| *verdict == Verdict::Valid));
    }
}

fn cold(verifier: &Verifier, keys: &[PublicKey], signed: &[Signed], batch: usize) {
    for signed in signed.chunks_exact(batch) {
        let items: Vec<VerifyItem> = signed.iter().map(|one| item(KeyRef::Cold(&keys[one.key]), one)).collect();
        assert!(verifier.verify_many(&items).iter().all(|verdict| *verdict == Verdict::Valid));
    }
}

fn one(verifier: &Verifier, tables: &[KeyTable], signed: &Signed) {
    let signature = Signature::from_der(&signed.der).expect("the library writes strict DER");
    assert_eq!(verifier.verify_one(&tables[signed.key], &signed.bytes, &signature), Verdict::Valid);
}

fn library(parsed: &[ParsedPublicKey], signed: &Signed) {
    parsed[signed.key].verify_digest_sig(&signed.digest, &signed.der).expect("the signature is valid");
}

/// Nanoseconds of processor time that this thread has had.
fn now() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Nanoseconds that each call takes after other data went through the caches.
fn flushed(signed: &[Signed], call: impl Fn(&Signed)) -> f64 {
    let mut other = vec![1u64; FLUSHED_BYTES / 8];
    let mut total = 0.0;
    for signed in signed {
        for word in other.iter_mut().step_by(8) {
            *word = word.wrapping_add(1);
        }
        black_box(&mut other);
        let start = now();
        call(signed);
        total += now() - start;
    }
    total / signed.len() as f64
}

/// Nanoseconds a signature that a second call takes, so that each variant has its own data in the caches.
fn time(signatures: usize, call: impl Fn()) -> f64 {
    call();
    let start = now();
    call();
    (now() - start) / signatures as f64
}

fn main() {
    let rng = SystemRandom::new();
    let pairs: Vec<EcdsaKeyPair> = (0..KEYS)
        .map(|_| EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).expect("a key can be generated"))
        .collect();
    let points: Vec<&[u8]> = pairs.iter().map(|pair| pair.public_key().as_ref()).collect();
    let keys: Vec<PublicKey> = points
        .iter()
        .map(|&point| {
            PublicKey::from_sec1(point.try_into().expect("an uncompressed point")).expect("a point of the curve")
        })
        .collect();
    let parsed: Vec<ParsedPublicKey> = points
        .iter()
        .map(|point| ParsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, *point).expect("a point of the curve"))
        .collect();
    let mut state = 0x1234_5678_9abc_def1;
    let signed: Vec<Signed> = (0..SIGNATURES)
        .map(|i| {
            let key = random(&mut state) % KEYS;
            let message = (i as u64).to_le_bytes();
            let digest = digest(&SHA256, &message);
            let bytes = digest.as_ref().try_into().expect("SHA-256 has 32 bytes");
            let der = pairs[key].sign(&rng, &message).expect("signing works").as_ref().to_vec();
            Signed { key, digest, bytes, der }
        })
        .collect();
    let portable = Verifier::with_backend(Backend::Portable).expect("it runs everywhere");
    let portable_tables = portable.tables(&keys);
    let fast = Verifier::new();
    println!("path: {:?}", fast.backend());
    let start = now();
    let tables = fast.tables(&keys);
    println!("a table, eight keys at once: {:.1} µs", (now() - start) / 1e3 / KEYS as f64);
    println!(
        "a table, one key: {:.1} µs",
        time(20, || keys[..20].iter().for_each(|key| drop(black_box(fast.table(key))))) / 1e3
    );
    println!(
        "a table, portably: {:.1} µs",
        time(20, || keys[..20].iter().for_each(|key| drop(black_box(portable.table(key))))) / 1e3
    );

    let names = [
        "library",
        "one",
        "many 8",
        "many 16",
        "many 32",
        "many 128",
        "cold 8",
        "cold 32",
        "cold 128",
        "portable one",
        "portable 32",
        "library flushed",
        "one flushed",
        "many 3",
    ];
    let mut figures = vec![Vec::new(); names.len()];
    for _ in 0..ROUNDS {
        let some = &signed[..];
        let results = [
            time(some.len(), || some.iter().for_each(|one| library(&parsed, one))),
            time(some.len(), || some.iter().for_each(|signed| one(&fast, &tables, signed))),
            time(signed.len(), || many(&fast, &tables, &signed, 8)),
            time(signed.len(), || many(&fast, &tables, &signed, 16)),
            time(signed.len(), || many(&fast, &tables, &signed, 32)),
            time(signed.len(), || many(&fast, &tables, &signed, 128)),
            time(some.len(), || cold(&fast, &keys, some, 8)),
            time(some.len(), || cold(&fast, &keys, some, 32)),
            time(some.len(), || cold(&fast, &keys, some, 128)),
            time(some.len(), || some.iter().for_each(|signed| one(&portable, &portable_tables, signed))),
            time(some.len(), || many(&portable, &portable_tables, some, 32)),
            flushed(&signed[..64], |one| library(&parsed, one)),
            flushed(&signed[..64], |signed| one(&fast, &tables, signed)),
            time(1023, || many(&fast, &tables, &signed[..1023], 3)),
        ];
        for (figures, result) in figures.iter_mut().zip(results) {
            figures.push(result);
        }
    }
    let medians: Vec<f64> = figures
        .into_iter()
        .map(|mut figures| {
            figures.sort_by(f64::total_cmp);
            figures[figures.len() / 2] / 1e3
        })
        .collect();
    for (name, median) in names.iter().zip(&medians) {
        let library = if name.ends_with("flushed") { medians[11] } else { medians[0] };
        println!("{name:16} {median:7.2} µs  {:.3} of the library", median / library);
    }
}
