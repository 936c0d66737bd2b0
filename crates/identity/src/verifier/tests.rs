use base::rt::{self, production};

use super::tables::{TabledKey, TabledKeys};
use super::*;
use crate::der::Curve;
use crate::key::PrivateKey;

fn pair(kind: KeyKind) -> (PrivateKey, PublicKey) {
    let private = PrivateKey::generate(kind).expect("generated");
    let public = PublicKey::new(kind, private.public_bytes()).expect("a generated key is valid");
    (private, public)
}

fn claim<'a>(key: &'a PublicKey, message: &'a [u8], signature: &'a [u8]) -> SignatureClaim<'a> {
    SignatureClaim { key, message: [message, &[], &[]], signature }
}

/// A signature in every form that it may be wrong in, and right ones.
fn forms(right: &[u8], message: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut forms = vec![(right.to_vec(), message.to_vec()), (right.to_vec(), [message, b"!"].concat())];
    let high = EcdsaSignature::parse(right).and_then(|parsed| parsed.flipped(Curve::P256));
    forms.extend(high.map(|high| (high, message.to_vec())));
    for place in [0, 3, 4, 10, right.len() - 1] {
        let mut broken = right.to_vec();
        broken[place] ^= 1;
        forms.push((broken, message.to_vec()));
    }
    forms.push((right[..right.len() - 1].to_vec(), message.to_vec()));
    forms.push((Vec::new(), message.to_vec()));
    forms
}

#[test]
fn both_verifiers_say_the_same_alone_and_together_with_tables_and_without() {
    let mut owned = Vec::new();
    for kind in [KeyKind::P256, KeyKind::P256, KeyKind::P256, KeyKind::P384, KeyKind::Ed25519] {
        let (private, public) = pair(kind);
        for number in 0..6u8 {
            let message = vec![number; 40];
            let right = private.sign(&[&message]);
            let forms = if kind == KeyKind::P256 { forms(&right, &message) } else { vec![(right.to_vec(), message)] };
            owned.extend(forms.into_iter().map(|(signature, message)| (public.clone(), signature, message)));
        }
    }
    let claims: Vec<SignatureClaim<'_>> =
        owned.iter().map(|(key, signature, message)| claim(key, message, signature)).collect();
    let by_library: Vec<Result<(), Error>> =
        claims.iter().map(|claim| SignatureVerifier::Library.verify(claim)).collect();
    let right: Vec<bool> = by_library.iter().map(Result::is_ok).collect();
    assert!(right.iter().filter(|right| **right).count() >= 30 && right.iter().any(|right| !right));
    // The first time without tables; later keys have them, since there is no runtime here that would build them in the
    // background.
    for _ in 0..3 {
        assert_eq!(SignatureVerifier::Tables.verify_batch(&claims), right);
        for (claim, expected) in claims.iter().zip(&by_library) {
            assert_eq!(SignatureVerifier::Tables.verify(claim), *expected);
        }
    }
    assert!(owned[0].0.tabled().is_some_and(TabledKey::has_table));
    assert_eq!(SignatureVerifier::Library.verify_batch(&claims), right);
}

#[test]
fn a_table_is_built_in_the_background_after_a_few_right_signatures() {
    let (private, public) = pair(KeyKind::P256);
    let signature = private.sign(&[b"message"]);
    let key = public.tabled().expect("it is on P-256").clone();
    production::run(async move {
        for _ in 0..100 {
            assert!(SignatureVerifier::Tables.verify(&claim(&public, b"another", &signature)).is_err());
        }
        assert!(!key.has_slot(), "wrong signatures are no uses");
        for _ in 0..4 {
            SignatureVerifier::Tables.verify(&claim(&public, b"message", &signature)).expect("right");
        }
        assert!(key.has_slot());
        while !key.has_table() {
            rt::yield_now().await;
        }
        SignatureVerifier::Tables.verify(&claim(&public, b"message", &signature)).expect("right");
    });
}

#[test]
fn tables_stay_within_their_budget_and_strangers_do_not_displace_regulars() {
    let keys: Vec<TabledKey> = (0..8).map(|_| pair(KeyKind::P256).1.tabled().expect("on P-256").clone()).collect();
    let mut holder = TabledKeys::with_tables_max(2);
    let place = |holder: &mut TabledKeys, key: &TabledKey, uses| {
        key.set_uses(uses);
        holder.reserve_for(key)
    };
    assert_eq!(place(&mut holder, &keys[0], 1_000), Some(None));
    assert_eq!(place(&mut holder, &keys[1], 2_000), Some(None));
    // Strangers, each of them used a little, however many there are.
    for stranger in &keys[2..7] {
        assert_eq!(place(&mut holder, stranger, 200), None);
        assert_eq!(place(&mut holder, stranger, 2_000), None, "not twice as often as the least used");
    }
    assert_eq!(place(&mut holder, &keys[7], 2_100), Some(Some(keys[0].clone())), "the least used makes room");
    assert!(!keys[0].has_table());
}

/// A table whose building panicked kept its place for good: its key got no other, and the budget was smaller by one.
#[test]
fn a_place_is_free_again_where_its_table_cannot_be_built() {
    let (private, public) = pair(KeyKind::P256);
    let key = public.tabled().expect("on P-256");
    let panicked = std::panic::catch_unwind(|| key.reserve_and_build(|_| panic!("no table today")));
    assert!(panicked.is_err() && !key.has_slot() && !key.is_reserved());
    key.reserve_and_build(|_| None);
    assert!(!key.has_slot() && !key.is_reserved());
    let signature = private.sign(&[b"message"]);
    for _ in 0..4 {
        SignatureVerifier::Tables.verify(&claim(&public, b"message", &signature)).expect("right");
    }
    assert!(key.has_table() && key.is_reserved(), "it asks again as any other");
}

#[test]
fn uses_are_halved_together() {
    let keys: Vec<TabledKey> = (0..2).map(|_| pair(KeyKind::P256).1.tabled().expect("on P-256").clone()).collect();
    let mut holder = TabledKeys::with_tables_max(2);
    keys.iter().for_each(|key| holder.know(key));
    keys[0].set_uses(1 << 20);
    keys[1].set_uses(100);
    holder.age();
    holder.age();
    assert_eq!((keys[0].uses(), keys[1].uses()), (1 << 19, 50));
}

#[test]
fn keys_with_the_same_bytes_share_a_table() {
    let (_, public) = pair(KeyKind::P256);
    let again = PublicKey::new(KeyKind::P256, public.as_bytes()).expect("valid");
    assert!(public.tabled() == again.tabled());
    assert!(public.tabled() != pair(KeyKind::P256).1.tabled());
}

#[test]
fn about_one_in_a_thousand_is_checked_again() {
    let chosen = (0..200_000).filter(|_| is_chosen()).count();
    assert!((100..400).contains(&chosen), "{chosen}");
}
