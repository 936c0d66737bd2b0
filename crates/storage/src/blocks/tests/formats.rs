use proptest::prelude::*;

use super::super::files::{index_name, parse_segment_name, segment_name};
use super::super::fingerprints::{FingerprintTable, fingerprint};
use super::super::format::*;
use super::super::index::SegmentIndex;
use super::*;

fn record_header() -> RecordHeader {
    RecordHeader {
        number: BlockNumber(0x0102_0304_0506_0708),
        epoch: Epoch(0x1112_1314_1516_1718),
        header_hash: [0xaa; 32],
        previous_hash: [0xbb; 32],
        transactions: 0x2122_2324,
        payload_bytes: 0x31_3233,
        transactions_bytes: 0x41_4243,
        payload_checksum: 0x5152_5354_5556_5758,
        transactions_checksum: 0x6162_6364_6566_6768,
    }
}

/// The bytes that `docs/formats/blocks.md` promises.
#[test]
fn formats_keep_their_golden_bytes() {
    let mut expected = b"HdBk".to_vec();
    expected.extend([0x24, 0x23, 0x22, 0x21]);
    expected.extend([8, 7, 6, 5, 4, 3, 2, 1]);
    expected.extend([0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11]);
    expected.extend([0x33, 0x32, 0x31, 0, 0, 0, 0, 0]);
    expected.extend([0x43, 0x42, 0x41, 0, 0, 0, 0, 0]);
    expected.extend([0xaa; 32]);
    expected.extend([0xbb; 32]);
    expected.extend([0x58, 0x57, 0x56, 0x55, 0x54, 0x53, 0x52, 0x51]);
    expected.extend([0x68, 0x67, 0x66, 0x65, 0x64, 0x63, 0x62, 0x61]);
    let encoded = record_header().encode();
    assert_eq!(encoded[..120], expected);
    assert_eq!(encoded[120..], crate::checksum(&expected).to_le_bytes());

    let segment = SegmentHeader { first: BlockNumber(3), previous_hash: [0xcc; 32], epoch: Epoch(2) };
    let mut expected = b"HEDDLEBS".to_vec();
    expected.extend([1, 0, 0, 0, 0, 0x10, 0, 0]);
    expected.extend([3, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend([2, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend([0xcc; 32]);
    expected.extend([0; 8]);
    assert_eq!(segment.encode()[..72], expected);

    let mut expected = b"HEDDLEDM".to_vec();
    expected.extend([0, 0x20, 0, 0, 0, 0, 0, 0]);
    expected.extend([5, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(DurableWatermark { end: 0x2000, height: 5 }.encode()[..24], expected);

    let list = encode_transactions(&[(TxId::from("ab"), 11), (TxId::from(""), 255)]);
    assert_eq!(&list[..], [11, 2, 0, 0, 0, b'a', b'b', 255, 0, 0, 0, 0]);

    // XXH3 with seed 0, as other implementations compute it.
    assert_eq!(crate::checksum(b""), 0x2d06_8005_38d3_94c2);
    assert_eq!(segment_name(BlockNumber(42)), "00000000000000000042.segment");
    assert_eq!(index_name(BlockNumber(42)), "00000000000000000042.index");
    assert_eq!(parse_segment_name("00000000000000000042.segment"), Some(BlockNumber(42)));
    for other in ["42.segment", "00000000000000000042.index", "+0000000000000000042.segment", ".segment"] {
        assert_eq!(parse_segment_name(other), None, "{other}");
    }
}

#[test]
fn headers_and_marks_are_read_back() {
    let header = record_header();
    assert_eq!(RecordHeader::decode(&header.encode()), Ok(header));
    let segment = SegmentHeader { first: BlockNumber(3), previous_hash: [0xcc; 32], epoch: Epoch(2) };
    assert_eq!(SegmentHeader::decode(&segment.encode()), Ok(segment));
    let mark = DurableWatermark { end: 0x2000, height: 5 };
    assert_eq!(DurableWatermark::decode(&mark.encode()), Some(mark));
}

#[test]
fn record_longer_than_the_limit_is_refused_by_the_decoder() {
    for payload_bytes in [RECORD_BYTES_MAX, u64::MAX, u64::MAX - 200] {
        let header = RecordHeader { payload_bytes, ..record_header() };
        assert!(RecordHeader::decode(&header.encode()).is_err(), "{payload_bytes}");
    }
}

#[test]
fn segment_of_another_format_is_named_as_such() {
    let mut bytes = SegmentHeader { first: BlockNumber(0), previous_hash: [0; 32], epoch: Epoch(0) }.encode();
    bytes[8] = 9;
    seal(&mut bytes);
    let what = SegmentHeader::decode(&bytes).expect_err("the format is unknown");
    assert_eq!(what, "the segment has format 9, and this program knows format 1");
}

fn segment_index(blocks: &[TestBlock]) -> SegmentIndex {
    let tip = ChainTip { height: 0, header_hash: NO_PREVIOUS, epoch: Epoch(0) };
    let mut index = SegmentIndex::new(BlockNumber(0), SEGMENT_HEADER_BYTES, tip);
    for block in blocks {
        let header = RecordHeader {
            number: BlockNumber(block.number),
            header_hash: block.header_hash,
            previous_hash: block.previous_hash,
            payload_bytes: 10,
            transactions_bytes: 20,
            ..record_header()
        };
        index.push(&header, block.transactions.iter().map(|(id, _)| id.as_str()));
    }
    index
}

#[test]
fn segment_index_is_read_back_and_every_flipped_bit_is_found() {
    let index = segment_index(&chain(5, 1, 10));
    let bytes = index.encode();
    assert_eq!(SegmentIndex::decode(&bytes), Ok(index));
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(SegmentIndex::decode(&damaged).is_err(), "bit {bit}");
    }
    assert!(SegmentIndex::decode(&bytes[..bytes.len() - 1]).is_err());
}

/// One harness for every decoder of this format: it must return, whatever the bytes.
fn decode_anything(bytes: &[u8]) {
    let _ = SegmentHeader::decode(bytes);
    let _ = DurableWatermark::decode(bytes);
    let _ = SegmentIndex::decode(bytes);
    if let Ok(header) = RecordHeader::decode(bytes) {
        let _ = header.check_body(bytes);
    }
    for count in [0, 1, 3, u32::MAX] {
        for item in TransactionList::new(bytes, count) {
            let _ = item;
        }
    }
}

proptest! {
    #[test]
    fn decoders_survive_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        decode_anything(&bytes);
    }

    /// Bytes that pass the checksum reach the code behind it.
    #[test]
    fn decoders_survive_sealed_nonsense(
        kind in 0usize..4, body in proptest::collection::vec(any::<u8>(), 0..120), tail in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let (magic, length): (&[u8], usize) =
            [(&b"HEDDLEBS\x01\0\0\0"[..], 80), (b"HEDDLEDM", 32), (b"HdBk", 128), (b"HEDDLEBI\x01\0\0\0", 104)][kind];
        let mut bytes = magic.to_vec();
        bytes.extend(body);
        bytes.resize(length, 0);
        seal(&mut bytes);
        bytes.extend(tail);
        decode_anything(&bytes);
    }

    #[test]
    fn transaction_lists_are_read_back(list in proptest::collection::vec((".{0,40}", any::<u8>()), 0..20)) {
        let list: Vec<(TxId, u8)> = list.into_iter().map(|(id, code)| (TxId::from(id), code)).collect();
        let bytes = encode_transactions(&list);
        let read: Result<Vec<_>, _> = TransactionList::new(&bytes, list.len() as u32).collect();
        let read: Vec<(TxId, u8)> = read.expect("the list is whole").into_iter().map(|(id, code)| (TxId::from(id), code)).collect();
        prop_assert_eq!(read, list.clone());
        prop_assert!(TransactionList::new(&bytes, list.len() as u32 + 1).any(|item| item.is_err()));
        if !list.is_empty() {
            prop_assert!(TransactionList::new(&bytes, list.len() as u32 - 1).any(|item| item.is_err()));
        }
    }
}

#[test]
fn fingerprint_table_finds_all_it_was_given_and_almost_nothing_else() {
    let mut table = FingerprintTable::new();
    let id = |number: u64| fingerprint(&number.to_le_bytes());
    let count = 200_000u64;
    for number in 0..count {
        table.insert(id(number), number / 100);
    }
    for number in 0..count {
        assert!(table.candidates(id(number), count).contains(&(number / 100)), "{number}");
        // At a lower height the block does not exist yet.
        assert!(!table.candidates(id(number), number / 100).contains(&(number / 100)), "{number}");
    }
    let wrong = (count..3 * count).filter(|number| !table.candidates(id(*number), count).is_empty()).count();
    assert!(wrong < 10, "{wrong} of {} absent ids looked present", 2 * count);
    let bytes_per_entry = table.memory_bytes() as f64 / count as f64;
    assert!((10.0..13.0).contains(&bytes_per_entry), "{bytes_per_entry}");
}

#[test]
fn fingerprint_table_keeps_extreme_tags_and_numbers_beyond_32_bits_apart() {
    let mut table = FingerprintTable::new();
    let top = u64::MAX;
    table.insert(top, u64::from(u32::MAX));
    table.insert(top - (1 << 24), 5);
    let all_below = 3 << 32;
    let beyond = u64::from(u32::MAX) + (1 << 32);
    let expected = vec![5, u64::from(u32::MAX), 5 + (1 << 32), beyond, 5 + (2 << 32), beyond + (1 << 32)];
    // Both tags are the highest one in use, so each is a candidate for the other.
    assert_eq!(table.candidates(top, all_below), expected);
    assert_eq!(table.candidates(top, 6), vec![5]);
}
