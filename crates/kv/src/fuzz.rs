//! Fuzz harnesses for the data that a key-value store reads from its group's memory; see [`base::fuzz`].

use base::fuzz::{FuzzTarget, InputShape, authenticated, sealed};
use base::{Bytes, BytesMut, Term};
use sift::layout::LogCursor;
use twox_hash::XxHash3_64;
use wire::u64_at;

use super::layout::{
    HEAD_BLOCK_BYTES, LogSeal, decode_cursor, decode_pointer, decode_record, decode_record_head, encode_cursor,
    record_writes,
};
use super::{StoreGeometry, log};

/// The targets of this module.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "consensus-kv-entries", shape: InputShape::Bytes, run: entries, seeds: entry_seeds },
    FuzzTarget { name: "consensus-kv-records", shape: InputShape::Bytes, run: records, seeds: record_seeds },
    FuzzTarget { name: "consensus-kv-parts", shape: InputShape::Bytes, run: parts, seeds: part_seeds },
];

const SIZES: StoreGeometry = StoreGeometry { log_bytes: 8192, buckets: 8, blocks: 512, block_bytes: 128 };

fn entry_seeds() -> Vec<Vec<u8>> {
    let value = Bytes::from_static(b"value");
    let put = log::encode(7, Term(3), 0x11, b"key", Some(&value), &mut BytesMut::new()).0;
    let delete = log::encode(8, Term(3), 0x12, b"key", None, &mut BytesMut::new()).0;
    vec![put.to_vec(), delete.to_vec()]
}

fn entries(input: &[u8]) {
    for bytes in [input.to_vec(), sealed(input, input.len(), XxHash3_64::oneshot)] {
        let bytes = Bytes::from(bytes);
        let Some(entry) = authenticated(input, || log::decode(&bytes)) else { continue };
        let (again, checksum) = log::encode(
            entry.index,
            entry.term,
            entry.previous,
            &entry.key,
            entry.value.as_ref(),
            &mut BytesMut::new(),
        );
        assert_eq!(
            (&again[..entry.raw.len()], checksum),
            (&entry.raw[..], entry.checksum),
            "an entry has one encoding"
        );
    }
}

fn record_seeds() -> Vec<Vec<u8>> {
    let of = |value: &[u8], blocks: &[u32]| record_writes(3, 9, b"key", value, blocks, &SIZES)[0].bytes.to_vec();
    let mut seeds = vec![of(&[7; 100], &[5, 9]), of(&[7; 20], &[5])];
    seeds.iter_mut().for_each(|seed| seed.resize(SIZES.block_bytes as usize, 0));
    seeds
}

fn records(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    if let Ok(record) = authenticated(input, || decode_record(3, &bytes, &SIZES)) {
        let blocks = SIZES.record_blocks(record.key.len(), record.value_bytes);
        assert_eq!((record.blocks.len(), record.blocks[0]), (blocks, 3));
        assert!(record.blocks.iter().all(|block| u64::from(*block) < SIZES.blocks));
        assert!(record.value.len() <= record.value_bytes && SIZES.check_key(&record.key).is_ok());
    }
    let _ = authenticated(input, || decode_record_head(3, &bytes, &SIZES));
}

fn part_seeds() -> Vec<Vec<u8>> {
    let cursor = encode_cursor(LogCursor { index: 3, position: 128, chain: 5 });
    let seal = LogSeal { term: Term(4), index: 9, chain: 7 }.encode();
    vec![SIZES.encode(5).to_vec(), cursor.to_vec(), seal.to_vec()]
}

/// The fixed parts of a store: superblock, cursor, seal, pointers.
fn parts(input: &[u8]) {
    let _ = SIZES.decode_seed(input);
    let Some(part) = input.first_chunk::<HEAD_BLOCK_BYTES>() else { return };
    if let Ok(cursor) = decode_cursor(part, &SIZES) {
        assert_eq!(decode_cursor(&encode_cursor(cursor), &SIZES), Ok(cursor));
    }
    let seal = LogSeal::decode(part);
    assert_eq!(LogSeal::decode(&seal.encode()), seal);
    if let Ok(Some(block)) = decode_pointer(u64_at(part, 0), &SIZES) {
        assert!(u64::from(block) < SIZES.blocks);
    }
}
