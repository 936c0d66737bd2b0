//! Tests of the formats: golden bytes, and hostile bytes.

use base::{Bytes, Version};
use twox_hash::XxHash3_64;

use super::super::index::{
    BucketGroup, BucketProbe, GROUP_BYTES, GROUPS, KeyHash, PROBE_BYTES, SUBTABLE_BYTES, Subtable,
};
use super::super::pointer::{Incarnation, Pointer};
use super::super::record::{self, HEADER_BYTES, KeyName, LinkWord, Record, RecordContent};

const NAME: KeyName<'_> = KeyName { namespace: "cc", key: "key" };

fn sample() -> (Bytes, Pointer) {
    let incarnation = Incarnation::new(5);
    let prev = Pointer::new(0x2000, 64, Incarnation::new(4));
    let content = RecordContent { name: NAME, version: Version { block: 9, tx: 3 }, value: Some(b"value"), prev };
    let bytes = record::encode(&content, incarnation);
    let pointer = Pointer::new(0x1000, bytes.len(), incarnation);
    (bytes, pointer)
}

/// The bytes of docs/formats/record.md.
#[test]
fn a_record_has_the_documented_bytes() {
    let (bytes, _) = sample();
    let golden = concat!(
        "0000000000004041", // link word: no next, incarnation 5, valid
        "CHECKSUM00000000",
        "0002000000020100", // prev: 0x2000 / 16, class 4, incarnation 4
        "0900000000000000",
        "03000000",
        "05000000",
        "0300",
        "0200",
        "00000000",
        "6363",       // cc
        "6b6579",     // key
        "76616c7565", // value
    );
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let (head, value) = bytes[16..].split_at(37);
    let checksum = XxHash3_64::oneshot(head) ^ XxHash3_64::oneshot(value).rotate_left(32);
    let checksum = checksum.to_le_bytes();
    let checksum: String = checksum.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, golden.replace("CHECKSUM00000000", &checksum));
    assert_eq!(checksum, "d7bf0535305a81db", "the checksum's algorithm and seed are part of the format");
}

fn decode(bytes: impl AsRef<[u8]>, pointer: Pointer) -> Option<Record> {
    Record::read(bytes.as_ref().into(), pointer).ok()
}

#[test]
fn a_record_is_read_back_and_names_its_key() {
    let (bytes, pointer) = sample();
    let record = decode(bytes.clone(), pointer).expect("it is whole");
    assert!(record.is_of(NAME) && !record.is_of(KeyName { namespace: "cck", key: "ey" }));
    assert_eq!((record.prev.address(), record.word.next, record.len()), (0x2000, Pointer::NULL, bytes.len()));
    let version = record.version;
    assert_eq!((record.into_value().as_deref(), version), (Some(&b"value"[..]), Version { block: 9, tx: 3 }));
    let mut longer = bytes.to_vec();
    longer.extend([9; 30]);
    assert!(decode(longer, pointer).is_some(), "what lies behind it is nobody's business");
    let deletion = RecordContent { name: NAME, version, value: None, prev: Pointer::NULL };
    let bytes = record::encode(&deletion, pointer.incarnation());
    let pointer = Pointer::new(0x1000, bytes.len(), pointer.incarnation());
    let record = decode(bytes, pointer).expect("it is whole");
    assert!(record.is_deletion() && record.into_value().is_none());
}

#[test]
fn a_link_changes_the_word_and_nothing_that_is_checked() {
    let (bytes, pointer) = sample();
    let next = Pointer::new(0x5550, 100, Incarnation::new(250));
    let word = LinkWord { next, incarnation: pointer.incarnation(), valid: true };
    assert_eq!(LinkWord::from_bits(word.bits()), Some(word));
    let mut linked = bytes.to_vec();
    linked[..8].copy_from_slice(&word.bits().to_le_bytes());
    assert_eq!(decode(linked.clone(), pointer).expect("it is whole").word.next, next);
    linked[..8].copy_from_slice(&LinkWord { valid: false, ..word }.bits().to_le_bytes());
    assert!(decode(linked, pointer).is_none(), "a record that was given up is not trusted");
}

#[test]
fn bytes_that_were_torn_reused_or_made_up_are_not_trusted() {
    let (bytes, pointer) = sample();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut bad = bytes.to_vec();
            bad[at] ^= 1 << bit;
            let decoded = decode(bad, pointer);
            // Bits of the link word below the incarnation are `next`, which the checksum does not cover.
            let in_next = at * 8 + bit < 54;
            assert_eq!(decoded.is_some(), in_next, "byte {at} bit {bit}");
        }
        assert!(decode(bytes.slice(..at), pointer).is_none(), "cut off at {at}");
        let (zeros, ones) = ([bytes[..at].to_vec(), vec![0; bytes.len() - at]], [bytes[..at].to_vec(), vec![0xff; 80]]);
        for torn in [zeros.concat(), ones.concat()] {
            assert!(torn == bytes || decode(torn, pointer).is_none(), "torn at {at}");
        }
    }
    let other_life = Pointer::new(0x1000, bytes.len(), pointer.incarnation().next());
    assert!(decode(bytes, other_life).is_none());
    let mut random = 11u64;
    for _ in 0..200_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let length = (random >> 33) as usize % 160;
        let mut noise: Vec<u8> = (0..length).map(|at| (random.rotate_left(at as u32 * 7) >> 11) as u8).collect();
        if length >= HEADER_BYTES {
            // Likely lengths, and the right incarnation.
            noise[7] = 0x41;
            noise[6] = 0x40;
            noise[40..48].copy_from_slice(&[(random >> 50) as u8 % 40, 0, 2, 0, 0, 0, 0, 0]);
            noise[36..40].copy_from_slice(&((random >> 20) as u32 % 64).to_le_bytes());
        }
        assert!(decode(noise.clone(), pointer).is_none());
        let _whatever = record::head(&noise, Pointer::from_bits(random));
    }
}

fn subtable() -> Subtable {
    Subtable { address: 0x4000, depth: 3, suffix: 0b101, incarnation: Incarnation::new(7) }
}

/// The words of docs/formats/index.md.
#[test]
fn buckets_have_the_documented_words() {
    assert_eq!(subtable().header(), 3 | (5 << 6) | (7 << 32) | (0x4958 << 48));
    assert_eq!((SUBTABLE_BYTES, GROUP_BYTES, PROBE_BYTES), (4032, 192, 128));
    let hash = KeyHash(0xabcd_1234_5678_9abd);
    assert_eq!((hash.suffix(3), hash.group(), hash.second(), hash.fingerprint()), (5, 1, true, 0x2af));
    assert_eq!(hash.probe_offset(), 192 + 64);
    let pointer = Pointer::new(0x1000, 64, Incarnation::new(1));
    assert_eq!(hash.slot(pointer), 0x100 | (4 << 39) | (1 << 46) | (0x2af << 54));
    assert_eq!(KeyHash::new(NAME, 1).0, 0x2f0b84b9d5b127d1, "the hash is part of the format");
}

#[test]
fn a_reader_sees_every_slot_that_a_key_may_have() {
    let subtable = subtable();
    let bytes = subtable.empty();
    for number in 0..2_000u64 {
        let hash = KeyHash::new(KeyName { namespace: "cc", key: &number.to_string() }, 42);
        let at = hash.group() * GROUP_BYTES;
        let mut group = BucketGroup::new(&bytes[at..at + GROUP_BYTES], &subtable).expect("it is one");
        let pointer = |number: u64| Pointer::new(0x1000 + 64 * number, 64, Incarnation::new(1));
        let mut places = 0;
        while let Some(place) = group.vacant_slot(hash, |_| true) {
            group.set(place, hash.slot(pointer(places)));
            places += 1;
        }
        assert_eq!(places, 14);
        let mut encoded = base::BytesMut::new();
        group.encode(&mut encoded);
        let from = hash.probe_offset() as usize - at;
        let probe = BucketProbe::new(&encoded[from..from + PROBE_BYTES], &subtable).expect("the headers fit");
        let mut seen: Vec<u64> = probe.candidates(hash).map(|pointer| pointer.address()).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..14).map(|number| pointer(number).address()).collect::<Vec<_>>());
        assert!(BucketProbe::new(&encoded[from..from + PROBE_BYTES], &Subtable { depth: 4, ..subtable }).is_none());
    }
    assert_eq!(bytes.len(), GROUPS * GROUP_BYTES);
}
