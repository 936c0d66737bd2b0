//! Wycheproof's vectors for P-256 with SHA-256, in both encodings, on every path.

mod cases;

use aws_lc_rs::digest::{SHA256, digest};
use cases::{der, library};
use p256_verify::{Backend, KeyRef, KeyTable, PublicKey, Signature, Verdict, Verifier, VerifyItem};
use wycheproof::TestResult;
use wycheproof::ecdsa::{TestName, TestSet};

struct Vector {
    key: PublicKey,
    digest: [u8; 32],
    signature: Option<Signature>,
    valid: bool,
    name: String,
}

fn vectors(name: TestName, read: impl Fn(&[u8]) -> Option<Signature>) -> Vec<Vector> {
    let set = TestSet::load(name).expect("the crate reads its own files");
    let mut vectors = Vec::new();
    for group in set.test_groups {
        let point: &[u8; 65] = group.key.key[..].try_into().expect("an uncompressed point");
        let key = PublicKey::from_sec1(point).expect("its keys are points of the curve");
        let signer = cases::Signer::public(
            &p256::PublicKey::from_sec1_bytes(point).expect("a point of the curve").to_projective(),
        );
        for test in group.tests {
            let digest: [u8; 32] = digest(&SHA256, &test.msg).as_ref().try_into().expect("32 bytes");
            let signature = read(&test.sig);
            let valid = test.result == TestResult::Valid;
            assert_ne!(test.result, TestResult::Acceptable, "no vector leaves it open");
            let name = format!("{name:?} {}: {}", test.tc_id, test.comment);
            // The library agrees with the vectors, so that comparisons with it mean something.
            let by_library = signature.is_some_and(|signature| library(&signer, &digest, &der(&signature)));
            assert_eq!(by_library, valid, "{name}");
            vectors.push(Vector { key, digest, signature, valid, name });
        }
    }
    vectors
}

fn check(path: Backend, vectors: &[Vector]) -> usize {
    let Some(verifier) = Verifier::with_backend(path) else { return 0 };
    let mut keys: Vec<PublicKey> = Vec::new();
    for vector in vectors {
        if !keys.contains(&vector.key) {
            keys.push(vector.key);
        }
    }
    let tables = verifier.tables(&keys);
    let table =
        |key: &PublicKey| -> &KeyTable { tables.iter().find(|table| table.key() == key).expect("each has one") };
    let read: Vec<(&Vector, Signature)> = vectors.iter().filter_map(|v| v.signature.map(|s| (v, s))).collect();
    for vector in vectors {
        assert!(vector.signature.is_some() || !vector.valid, "{} is not read", vector.name);
    }
    for (vector, signature) in &read {
        let verdict = verifier.verify_one(table(&vector.key), &vector.digest, signature);
        assert_eq!(verdict == Verdict::Valid, vector.valid, "{path:?} {}", vector.name);
    }
    let item = |key, vector: &Vector, signature| VerifyItem { key, digest: vector.digest, signature };
    let with_tables: Vec<VerifyItem> = read.iter().map(|(v, s)| item(KeyRef::Table(table(&v.key)), v, *s)).collect();
    for ((vector, _), verdict) in read.iter().zip(verifier.verify_many(&with_tables)) {
        assert_eq!(verdict == Verdict::Valid, vector.valid, "{path:?} {} with others", vector.name);
    }
    if path != Backend::Portable {
        // Eight times the same, so that none of them is left over.
        let cold: Vec<VerifyItem> =
            read.iter().flat_map(|(v, s)| std::iter::repeat_n(item(KeyRef::Cold(&v.key), v, *s), 8)).collect();
        for (i, verdict) in verifier.verify_many(&cold).into_iter().enumerate() {
            let vector = read[i / 8].0;
            assert_eq!(verdict == Verdict::Valid, vector.valid, "{path:?} {} without a table", vector.name);
        }
    }
    vectors.len()
}

fn all() -> Vec<Vector> {
    let mut all = vectors(TestName::EcdsaSecp256r1Sha256, Signature::from_der);
    all.extend(vectors(TestName::EcdsaSecp256r1Sha256P1363, Signature::from_p1363));
    assert!(all.len() > 700, "{} vectors", all.len());
    println!("{} vectors", all.len());
    all
}

#[test]
fn the_fast_paths_pass_all_vectors() {
    let all = all();
    check(Backend::Ifma, &all);
    assert_eq!(check(Backend::Portable, &all), all.len());
}

#[test]
fn the_model_passes_all_vectors() {
    let all = all();
    assert_eq!(check(Backend::Model, &all), all.len());
}
