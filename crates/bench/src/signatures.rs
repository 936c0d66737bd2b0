//! Measures the cost of verifying P-256 signatures with tables and vector units, and compares it with the cost in the
//! library.
//!
//! 1. The benchmark makes keys, and signatures by randomly chosen keys. The library gets the keys in parsed form;
//!    [`p256_verify`] gets their tables.
//! 2. In every round the methods take turns, so that a drift of the machine affects all of them. A method verifies all
//!    signatures twice; only the second pass is timed, when its data is in the caches, as in production.
//! 3. A `flushed` method verifies only some of the signatures, and only once. Before each call the benchmark touches so
//!    much other data that neither tables nor code remain in the second-level cache.
//!
//! Times are processor time of the measuring thread, as medians over the rounds. The digests are computed beforehand. Parsing
//! DER is included for every method.

use std::hint::black_box;

use aws_lc_rs::digest::{Digest, SHA256, digest};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _, ParsedPublicKey,
};
use base::rt::CancellationToken;
use p256_verify::{Backend, KeyRef, KeyTable, PublicKey, Signature, Verdict, Verifier, VerifyItem};

use measurement::error::Error;
use measurement::figure::{Figure, RatioBound};
use measurement::floor::thread_us;
use measurement::interval::median;
use measurement::random::Random;

/// Signatures of one round.
const SIGNATURES: usize = 1_024;
/// Signatures of a `flushed` run; the caches are flushed before each.
const FLUSHED: usize = 64;
/// More than a second-level cache.
const FLUSHED_BYTES: usize = 8 << 20;

/// The parameters of the measurement.
#[derive(Clone, Debug)]
pub struct SignaturesConfig {
    /// Keys that sign.
    pub keys: usize,
    /// Rounds.
    pub rounds: usize,
    /// Chooses the signers.
    pub seed: u64,
}

impl Default for SignaturesConfig {
    fn default() -> SignaturesConfig {
        SignaturesConfig { keys: 300, rounds: 15, seed: 1 }
    }
}

struct SignedDigest {
    key: usize,
    digest: Digest,
    der: Vec<u8>,
}

impl SignedDigest {
    fn item<'a>(&self, key: KeyRef<'a>) -> VerifyItem<'a> {
        VerifyItem { key, digest: self.digest_bytes(), signature: self.signature() }
    }

    fn digest_bytes(&self) -> [u8; 32] {
        self.digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
    }

    fn signature(&self) -> Signature {
        Signature::from_der(&self.der).expect("the library writes strict DER")
    }
}

/// The keys in each form, and their signatures.
struct VerificationSet {
    keys: Vec<PublicKey>,
    parsed: Vec<ParsedPublicKey>,
    signed: Vec<SignedDigest>,
}

impl VerificationSet {
    fn new(options: &SignaturesConfig) -> VerificationSet {
        let system = SystemRandom::new();
        let new_pair =
            |_| EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).expect("a key pair can be generated");
        let pairs: Vec<EcdsaKeyPair> = (0..options.keys).map(new_pair).collect();
        let point = |pair: &EcdsaKeyPair| pair.public_key().as_ref().to_vec();
        let on_curve = |pair| PublicKey::from_sec1(&point(pair).try_into().expect("an uncompressed point"));
        let parse = |pair| ParsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, point(pair));
        let mut random = Random::new(options.seed);
        let sign = |number: usize| {
            let key = random.below(options.keys as u64) as usize;
            let message = number.to_le_bytes();
            let der = pairs[key].sign(&system, &message).expect("signing works").as_ref().to_vec();
            SignedDigest { key, digest: digest(&SHA256, &message), der }
        };
        VerificationSet {
            keys: pairs.iter().map(|pair| on_curve(pair).expect("on the curve")).collect(),
            parsed: pairs.iter().map(|pair| parse(pair).expect("on the curve")).collect(),
            signed: (0..SIGNATURES).map(sign).collect(),
        }
    }

    fn library(&self, signed: &SignedDigest) {
        self.parsed[signed.key].verify_digest_sig(&signed.digest, &signed.der).expect("the signature is valid");
    }

    fn one(&self, verifier: &Verifier, tables: &[KeyTable], signed: &SignedDigest) {
        let verdict = verifier.verify_one(&tables[signed.key], &signed.digest_bytes(), &signed.signature());
        assert_eq!(verdict, Verdict::Valid);
    }

    fn many<'a>(&self, verifier: &Verifier, batch: usize, key: impl Fn(&SignedDigest) -> KeyRef<'a>) {
        for signed in self.signed.chunks_exact(batch) {
            let items: Vec<VerifyItem<'_>> = signed.iter().map(|one| one.item(key(one))).collect();
            assert!(verifier.verify_many(&items).iter().all(|verdict| *verdict == Verdict::Valid));
        }
    }

    /// Microseconds that the second of two runs over all signatures takes for each of them.
    fn time(&self, run: impl Fn()) -> f64 {
        run();
        let start = thread_us();
        run();
        (thread_us() - start) / self.signed.len() as f64
    }

    fn each(&self, call: impl Fn(&SignedDigest)) -> f64 {
        self.time(|| self.signed.iter().for_each(&call))
    }

    fn flushed(&self, call: impl Fn(&SignedDigest)) -> f64 {
        let mut other = vec![1u64; FLUSHED_BYTES / size_of::<u64>()];
        let time_one = |signed: &SignedDigest| {
            for word in other.iter_mut().step_by(8) {
                *word = word.wrapping_add(1);
            }
            black_box(&mut other);
            let start = thread_us();
            call(signed);
            thread_us() - start
        };
        self.signed[..FLUSHED].iter().map(time_one).sum::<f64>() / FLUSHED as f64
    }
}

/// Measures.
///
/// # Errors
/// `stop` was stopped.
pub fn run(options: &SignaturesConfig, stop: &CancellationToken, tell: &dyn Fn(&str)) -> Result<Figure, Error> {
    let mut figure = Figure::new("signatures", "P-256: verification by tables of keys, beside the library");
    figure.setting("keys", options.keys);
    figure.setting("rounds", options.rounds);
    figure.setting("seed", options.seed);
    tell("keys and their tables");
    let work = VerificationSet::new(options);
    let fast = Verifier::new();
    let portable = Verifier::with_backend(Backend::Portable).expect("it is available everywhere");
    let (tables, portable_tables) = (fast.tables(&work.keys), portable.tables(&work.keys));
    figure.setting("path", format!("{:?}", fast.backend()).to_lowercase());
    let has_lanes = fast.backend() == Backend::Ifma;

    let table = |signed: &SignedDigest| KeyRef::Table(&tables[signed.key]);
    let cold = |signed: &SignedDigest| KeyRef::Cold(&work.keys[signed.key]);
    type Way<'a> = (&'static str, Box<dyn Fn() -> f64 + 'a>);
    let mut ways: Vec<Way<'_>> = vec![
        ("library", Box::new(|| work.each(|signed| work.library(signed)))),
        ("one", Box::new(|| work.each(|signed| work.one(&fast, &tables, signed)))),
        ("8 together", Box::new(|| work.time(|| work.many(&fast, 8, table)))),
        ("32 together", Box::new(|| work.time(|| work.many(&fast, 32, table)))),
        ("128 together", Box::new(|| work.time(|| work.many(&fast, 128, table)))),
        ("portable", Box::new(|| work.each(|signed| work.one(&portable, &portable_tables, signed)))),
        ("library, flushed", Box::new(|| work.flushed(|signed| work.library(signed)))),
        ("one, flushed", Box::new(|| work.flushed(|signed| work.one(&fast, &tables, signed)))),
    ];
    if has_lanes {
        ways.push(("128 together, no tables", Box::new(|| work.time(|| work.many(&fast, 128, cold)))));
    }
    let mut times = vec![Vec::with_capacity(options.rounds); ways.len()];
    for round in 1..=options.rounds {
        tell(&format!("round {round} of {}", options.rounds));
        for (times, (_, way)) in times.iter_mut().zip(&ways) {
            if stop.is_cancelled() {
                return Err(Error::Interrupted);
            }
            times.push(way());
        }
    }
    let medians: Vec<(&str, f64)> = ways.iter().map(|(name, _)| *name).zip(times.into_iter().map(median)).collect();
    let of = |wanted: &str| medians.iter().find(|(name, _)| *name == wanted).map(|(_, us)| *us);
    let [library, library_flushed] = ["library", "library, flushed"].map(|name| of(name).expect("it was measured"));
    for (name, us) in &medians {
        let floor = if name.ends_with("flushed") { library_flushed } else { library };
        figure.row(&[("verified", name)], &[("us", *us), ("over_library", us / floor)]);
    }
    let mut ratio = |name, way, floor: f64, most| {
        if let Some(us) = of(way) {
            figure.ratio(name, us / floor, Some(RatioBound::AtMost(most)));
        }
    };
    // These bounds are for the vector unit.
    if has_lanes {
        ratio("one_over_library", "one", library, 0.12);
        ratio("many_over_library", "32 together", library, 0.05);
        ratio("cold_over_library", "128 together, no tables", library, 0.25);
        ratio("flushed_over_library", "one, flushed", library_flushed, 0.2);
    }
    ratio("portable_over_library", "portable", library, 0.4);
    if !has_lanes {
        figure.note(
            "This processor has no AVX-512 IFMA: all rows measure the portable path, without the bounds of the others.",
        );
    }
    figure.note(format!("A key's table takes {} KiB.", fast.table_bytes() >> 10));
    Ok(figure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_is_measured_beside_the_library() {
        let options = SignaturesConfig { keys: 3, rounds: 1, seed: 7 };
        let figure = run(&options, &CancellationToken::new(), &|_| ()).expect("it runs");
        let json = figure.to_json();
        assert!(json["ratios"]["portable_over_library"].as_f64().is_some_and(|ratio| ratio > 0.0));
        assert_eq!(json["bounds"]["portable_over_library"], "at most 0.4");
        assert!(figure.rows().len() >= 8);
        let stop = CancellationToken::new();
        stop.cancel();
        assert!(matches!(run(&options, &stop, &|_| ()), Err(Error::Interrupted)));
    }
}
