//! Verification of P-256 signatures by tables: it agrees with the library on any bytes of a signature.

use std::sync::LazyLock;

use ::p256_verify::{Backend, KeyRef, KeyTable, PublicKey, Signature, Verdict, Verifier, VerifyItem};
use aws_lc_rs::digest::{Digest, SHA256};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, ParsedPublicKey};
use base::fuzz::{FuzzTarget, InputShape, untrusted};

/// The targets of this module.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "p256-signature", shape: InputShape::Der, run: signature, seeds: signatures },
    FuzzTarget { name: "p256-numbers", shape: InputShape::Bytes, run: numbers, seeds: all_numbers },
];

/// RFC 6979, appendix A.2.5: the key, and of each message the SHA-256 digest, r and s.
const KEY: &str = "0460fed4ba255a9d31c961eb74c6356d68c049b8923b61fa6ce669622e60f29fb6\
                   7903fe1008b8bc99a41ae9e95628bc64f2f1b20c2d7e9f5177a3c294d4462299";
const SIGNED: [&str; 2] = [
    "af2bdbe1aa9b6ec1e2ade1d694f41fc71a831d0268e9891562113d8a62add1bf\
     efd48b2aacb6a8fd1140dd9cd45e81d69d2c877b56aaf991c34d0ea84eaf3716\
     f7cb1c942d657c41d436c7a1b6e29f65f3e900dbb9aff4064dc4ab2f843acda8",
    "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\
     f1abb023518351cd71d881567b1ea663ed3efcf6c5132b354f28d3b0b7d38367\
     019f4113742a2b14bd25926b49c649155f267e60d3814b4c0cc84250e46f0083",
];

fn bytes<const N: usize>(hex: &str) -> [u8; N] {
    hex::decode(hex).expect("hexadecimal digits").try_into().expect("as many bytes")
}

struct Verifiers {
    library: ParsedPublicKey,
    key: PublicKey,
    each: Vec<(Verifier, KeyTable)>,
}

static VERIFIERS: LazyLock<Verifiers> = LazyLock::new(|| {
    let point = bytes(KEY);
    let key = PublicKey::from_sec1(&point).expect("a point of the curve");
    let each = [Backend::Ifma, Backend::Portable].into_iter().filter_map(Verifier::with_backend).map(|verifier| {
        let table = verifier.table(&key);
        (verifier, table)
    });
    let library = ParsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, point).expect("a point of the curve");
    Verifiers { each: each.collect(), key, library }
});

fn library(digest: &[u8; 32], der: &[u8]) -> bool {
    let digest = Digest::import_less_safe(digest, &SHA256).expect("32 bytes");
    VERIFIERS.library.verify_digest_sig(&digest, der).is_ok()
}

/// Every path accepts exactly if the library does: the key is honest, so no addition is exceptional.
fn compare(digest: &[u8; 32], signature: &Signature, valid: bool) {
    for (verifier, table) in &VERIFIERS.each {
        let path = verifier.backend();
        let one = verifier.verify_one(table, digest, signature);
        assert_eq!(one == Verdict::Valid, valid, "{path:?}");
        let item = |key| VerifyItem { key, digest: *digest, signature: *signature };
        let many = verifier.verify_many(&[item(KeyRef::Table(table)); 3]);
        assert!(many.iter().all(|verdict| *verdict == one), "{path:?}");
        if path != Backend::Portable {
            let cold = verifier.verify_many(&[item(KeyRef::Cold(&VERIFIERS.key)); 8]);
            assert!(cold.iter().all(|verdict| *verdict == one), "{path:?}");
        }
    }
}

fn signatures() -> Vec<Vec<u8>> {
    let signed = SIGNED.map(bytes::<96>);
    signed.iter().map(|signed| der(&Signature::from_p1363(&signed[32..]).expect("64 bytes"))).collect()
}

/// Strict DER of a signature.
fn der(signature: &Signature) -> Vec<u8> {
    let mut content = Vec::new();
    for number in [&signature.r, &signature.s] {
        let start = number.iter().take(31).take_while(|byte| **byte == 0).count();
        let sign = usize::from(number[start] >= 0x80);
        content.extend([2, (32 - start + sign) as u8]);
        content.extend(std::iter::repeat_n(0, sign));
        content.extend(&number[start..]);
    }
    [vec![0x30, content.len() as u8], content].concat()
}

/// DER is accepted exactly if the library accepts it, over the first message's digest.
fn signature(input: &[u8]) {
    let [digest, ..] = SIGNED.map(|signed| bytes::<32>(&signed[..64]));
    let valid = library(&digest, input);
    match untrusted(input, || Signature::from_der(input)) {
        Some(signature) => {
            assert_eq!(der(&signature), input, "a signature has one encoding");
            compare(&digest, &signature, valid);
        }
        None => assert!(!valid, "the library accepts what is not read"),
    }
}

fn all_numbers() -> Vec<Vec<u8>> {
    SIGNED.map(|signed| bytes::<96>(signed).to_vec()).to_vec()
}

/// A digest, r and s.
fn numbers(input: &[u8]) {
    let Some((digest, rest)) = input.split_first_chunk::<32>() else { return };
    let Some(signature) = untrusted(input, || Signature::from_p1363(rest)) else { return };
    compare(digest, &signature, library(digest, &der(&signature)));
}
