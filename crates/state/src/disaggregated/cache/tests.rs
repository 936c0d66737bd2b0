use base::Bytes;

use super::*;
use crate::disaggregated::pointer::Incarnation;

const SEED: u64 = 9;

fn name(key: &str) -> KeyName<'_> {
    KeyName { namespace: "cc", key }
}

fn hash(key: &str) -> KeyHash {
    KeyHash::new(name(key), SEED)
}

fn known(address: u64, block: u64) -> CachedVersion {
    let pointer = Pointer::new(address, 100, Incarnation::new(1));
    CachedVersion { pointer, version: Version { block, tx: 0 }, kind: VersionKind::Live, bytes: 100 }
}

fn kept(block: u64, value: &'static str) -> CachedValue {
    let value = Some(Bytes::from_static(value.as_bytes()));
    CachedValue { version: Version { block, tx: 0 }, value, prev: Pointer::NULL, bytes: 100 }
}

fn value(found: CacheLookup) -> Option<Bytes> {
    match found {
        CacheLookup::Hit(answer) => answer.map(|versioned| versioned.value),
        other => panic!("no answer: {other:?}"),
    }
}

#[test]
fn what_was_learnt_before_an_apply_is_not_remembered_after_it() {
    let caches = Caches::new(10_000, 10_000);
    let CacheLookup::Miss(token) = caches.get(hash("a"), name("a"), 9) else { panic!("the cache is empty") };
    caches.replace(hash("a"), name("a"), known(0x2000, 5), Some(kept(5, "new")));
    caches.learn(token, hash("a"), name("a"), known(0x1000, 4), Some(&kept(4, "old")));
    assert_eq!(value(caches.get(hash("a"), name("a"), 9)), Some(Bytes::from_static(b"new")));
    let token = caches.token(hash("b"));
    caches.detach(hash("b"), name("b"), Pointer::NULL);
    caches.learn(token, hash("b"), name("b"), CachedVersion::absent(9), None);
    assert!(matches!(caches.get(hash("b"), name("b"), 9), CacheLookup::Miss(_)));
}

#[test]
fn a_height_below_the_newest_version_is_told_so() {
    let caches = Caches::new(10_000, 10_000);
    caches.replace(hash("a"), name("a"), known(0x2000, 5), Some(kept(5, "new")));
    assert!(matches!(caches.get(hash("a"), name("a"), 5), CacheLookup::TooNew(found) if found == known(0x2000, 5)));
    assert_eq!(caches.version(hash("a"), name("a"), 5), None);
    assert_eq!(caches.version(hash("a"), name("a"), 6), Some(Some(Version { block: 5, tx: 0 })));
    caches.replace(hash("a"), name("a"), CachedVersion::absent(8), None);
    assert_eq!(value(caches.get(hash("a"), name("a"), 8)), None);
    assert!(matches!(caches.get(hash("a"), name("a"), 7), CacheLookup::TooNew(_)));
}

#[test]
fn bytes_of_another_life_of_a_buffer_are_not_taken() {
    let caches = Caches::new(10_000, 10_000);
    let (one, other) = (Pointer::new(0x1000, 100, Incarnation::new(1)), Pointer::new(0x1000, 100, Incarnation::new(2)));
    caches.keep(hash("a"), name("a"), one, kept(1, "one"));
    assert!(caches.value_at(hash("a"), one).is_some() && caches.value_at(hash("a"), other).is_none());
}

/// The story: readers of an older height had cached a version. Its buffer was reused so often that the incarnations
/// wrapped around, and then for the version of another key that the same transaction had written: the cache gave that
/// key the first one's value.
#[test]
fn a_pointer_that_comes_round_for_another_key_of_the_same_transaction_does_not_bring_its_value() {
    let caches = Caches::new(10_000, 10_000);
    let known = known(0x1000, 4);
    caches.keep(hash("a"), name("a"), known.pointer, kept(4, "of a"));
    let token = caches.token(hash("b"));
    caches.learn(token, hash("b"), name("b"), known, None);
    assert!(matches!(caches.get(hash("b"), name("b"), 9), CacheLookup::Newest(found) if found == known));
    assert!(!caches.has(hash("b"), known.pointer) && caches.value_at(hash("b"), known.pointer).is_none());
    // Nor do the two displace each other.
    caches.keep(hash("b"), name("b"), known.pointer, kept(4, "of b"));
    assert_eq!(value(caches.get(hash("b"), name("b"), 9)), Some(Bytes::from_static(b"of b")));
    let kept = |key| caches.value_at(hash(key), known.pointer).and_then(|kept| kept.value);
    assert_eq!([kept("a"), kept("b")], [Some(Bytes::from_static(b"of a")), Some(Bytes::from_static(b"of b"))]);
}

#[test]
fn a_version_with_a_successor_takes_no_room() {
    let caches = Caches::new(10_000, 10_000);
    caches.replace(hash("a"), name("a"), known(0x1000, 1), Some(kept(1, "one")));
    let bytes = caches.bytes();
    for block in 2..9 {
        caches.replace(hash("a"), name("a"), known(0x1000 * block, block), Some(kept(block, "next")));
        assert_eq!(caches.bytes(), bytes);
        assert!(!caches.has(hash("a"), known(0x1000 * (block - 1), block - 1).pointer));
    }
    assert_eq!(value(caches.get(hash("a"), name("a"), 9)), Some(Bytes::from_static(b"next")));
    // Also when the value of the new version is not cached.
    caches.replace(hash("a"), name("a"), known(0x9000, 9), None);
    assert_eq!(caches.bytes().1, 0);
}

#[test]
fn both_parts_keep_to_their_budgets_through_random_operations() {
    let (metadata_budget, data_budget) = (3_000, 5_000);
    let caches = Caches::new(metadata_budget, data_budget);
    let mut random = 3u64;
    let mut hits = 0;
    for step in 0..50_000u64 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let key = format!("k{}", (random >> 33) % 60);
        let (hash, name) = (hash(&key), name(&key));
        let known = known(0x1000 + step * 16, step);
        let kept = CachedValue { bytes: (random >> 40) as usize % 900, ..kept(step, "value") };
        match random >> 61 {
            0 => caches.detach(hash, name, known.pointer),
            1 => caches.replace(hash, name, known, None),
            2 => caches.keep(hash, name, known.pointer, kept),
            3 => caches.replace(hash, name, known, Some(kept)),
            4 => caches.forget(|pointer| pointer.address() % 4096 == 0),
            _ => hits += usize::from(matches!(caches.get(hash, name, u64::MAX), CacheLookup::Hit(_))),
        }
        let (metadata, data) = caches.bytes();
        assert!(metadata <= metadata_budget && data <= data_budget, "step {step}: {metadata} {data}");
    }
    assert!(hits > 1_000, "{hits}");
}
