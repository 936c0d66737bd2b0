use proptest::prelude::*;

use super::super::key::{self, RowKey};
use super::super::prune::{PruneDecider, PruneDecision};
use super::*;

fn row_key(namespace: &str, key: &[u8], version: Version, live: bool) -> Vec<u8> {
    let mut bytes = key::prefix(namespace, key);
    key::push_suffix(&mut bytes, version, live);
    bytes
}

/// The bytes that `docs/formats/tables.md` promises.
#[test]
fn row_keys_keep_their_golden_bytes() {
    let mut expected = b"\x01cc\x00\x01a\x00\xffb\x00\x01".to_vec();
    expected.extend([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfa]);
    expected.extend([0xff, 0xff, 0xff, 0xfc, 0x01]);
    assert_eq!(row_key("cc", b"a\0b", Version::new(5, 3), true), expected);
    let savepoint = Savepoint { height: 7, epoch: Epoch(2), block_hash: [9; 32] };
    let mut expected = vec![1, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0];
    expected.extend([9; 32]);
    assert_eq!(savepoint.encode()[..], expected);
    assert_eq!(Savepoint::decode(&expected), Some((1, Some(savepoint))));
    expected[0] = 2;
    assert_eq!(Savepoint::decode(&expected), Some((2, None)));
    assert_eq!(Savepoint::decode(&expected[..3]), None);
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    // Few distinct bytes, so that keys are often prefixes of one another.
    proptest::collection::vec(prop_oneof![Just(0u8), Just(1), Just(2), Just(b'a'), Just(0xfe), Just(0xff)], 0..6)
}

fn namespace() -> impl Strategy<Value = String> {
    "[\0\u{1}ab]{0,3}"
}

fn version() -> impl Strategy<Value = Version> {
    (prop_oneof![0u64..4, any::<u64>()], prop_oneof![0u32..4, any::<u32>()])
        .prop_map(|(block, tx)| Version::new(block, tx))
}

proptest! {
    #[test]
    fn order_of_row_keys_is_namespace_then_key_then_version_descending(
        left in (namespace(), bytes(), version(), any::<bool>()), right in (namespace(), bytes(), version(), any::<bool>()),
    ) {
        let encode = |(namespace, key, version, live): &(String, Vec<u8>, Version, bool)| row_key(namespace, key, *version, *live);
        let expected = (left.0.as_bytes(), &left.1, std::cmp::Reverse(left.2), left.3)
            .cmp(&(right.0.as_bytes(), &right.1, std::cmp::Reverse(right.2), right.3));
        prop_assert_eq!(encode(&left).cmp(&encode(&right)), expected);
    }

    #[test]
    fn row_keys_are_split_and_decoded(namespace in namespace(), key in bytes(), version in version(), live: bool) {
        let encoded = row_key(&namespace, &key, version, live);
        let row = RowKey::split(&encoded).expect("it is a row key");
        prop_assert_eq!((row.version, row.live), (version, live));
        prop_assert_eq!(row.prefix, &key::prefix(&namespace, &key)[..]);
        prop_assert_eq!(key::decode_prefix(row.prefix), Some((namespace, key)));
    }

    #[test]
    fn bounds_separate_what_they_promise(
        namespace in namespace(), start in bytes(), other in (namespace(), bytes(), version(), any::<bool>()),
    ) {
        let row = row_key(&other.0, &other.1, other.2, other.3);
        let at_or_after = (other.0.as_bytes(), &other.1) >= (namespace.as_bytes(), &start);
        prop_assert_eq!(row >= key::range_bound(&namespace, &start), at_or_after);
        prop_assert_eq!(row < key::namespace_end(&namespace), other.0.as_bytes() <= namespace.as_bytes());
        prop_assert!(key::first_row() <= row && row < key::rows_end() && key::SAVEPOINT < &row[..]);
    }

    #[test]
    fn seek_keys_bracket_the_versions_of_a_key(key in bytes(), version in version(), live: bool, through: u64) {
        let row = row_key("n", &key, version, live);
        let mut seek = key::prefix("n", &key);
        key::push_seek(&mut seek, through);
        let mut last = key::prefix("n", &key);
        key::push_last(&mut last);
        prop_assert_eq!(row >= seek, version.block <= through);
        prop_assert!(row <= last);
    }

    #[test]
    fn splitting_survives_any_bytes(bytes in bytes(), tail in proptest::collection::vec(any::<u8>(), 0..30)) {
        let bytes = [&bytes[..], &tail[..]].concat();
        if let Some(row) = RowKey::split(&bytes) {
            let _ = key::decode_prefix(row.prefix);
        }
        let _ = key::decode_prefix(&bytes);
        let _ = Savepoint::decode(&bytes);
    }
}

/// Each case: rows of keys in order, as `key@block` or `key@block!`, and the verdicts for oldest block 5, durable height 4
/// (`.` keep, `d` deletion that may go, `x` superseded).
#[test]
fn rows_are_judged_by_the_base_above_them() {
    let cases = [
        ("a@9 a@5 a@4 a@1", "..xx"),
        ("a@9 a@7", ".."),
        ("a@3", "."),
        ("a@3! a@2 b@3", "dx."),
        ("a@4! a@2", ".x"),
        ("a@6! a@3! a@1!", ".dx"),
        ("a@9 b@2 b@1 c@9 c@2", "..x.."),
    ];
    for (rows, expected) in cases {
        let mut judge = PruneDecider::default();
        let judged: String = rows
            .split(' ')
            .map(|row| {
                let live = !row.ends_with('!');
                let (key, block) = row.trim_end_matches('!').split_once('@').expect("key@block");
                let encoded = row_key("n", key.as_bytes(), Version::new(block.parse().expect("a number"), 0), live);
                match judge.decide(RowKey::split(&encoded).expect("it is a row key"), 5, 4) {
                    PruneDecision::Newer | PruneDecision::Base => '.',
                    PruneDecision::Deletion => 'd',
                    PruneDecision::Superseded => 'x',
                }
            })
            .collect();
        assert_eq!(judged, expected, "{rows}");
    }
}
