//! Fuzz harnesses for segments and their indexes; see [`base::fuzz`].

use base::fuzz::{FuzzTarget, InputShape, authenticated};
use base::{BlockNumber, Epoch, TxId};

use super::format::{
    DurableWatermark, RECORD_BYTES_MAX, RECORD_HEADER_BYTES, RecordHeader, SEGMENT_FIELDS_BYTES, SEGMENT_HEADER_BYTES,
    SegmentHeader, TransactionList, encode_transactions, seal,
};
use super::index::SegmentIndex;
use super::{ChainTip, NO_PREVIOUS};
use crate::checksum;
use crate::sealed_input::with_sealed;

/// The targets of this module.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "storage-segment-headers", shape: InputShape::Bytes, run: headers, seeds: header_seeds },
    FuzzTarget { name: "storage-segment-records", shape: InputShape::Bytes, run: records, seeds: record_seeds },
    FuzzTarget { name: "storage-segment-index", shape: InputShape::Bytes, run: index, seeds: index_seeds },
];

fn header_seeds() -> Vec<Vec<u8>> {
    let segment = SegmentHeader { first: BlockNumber(3), previous_hash: [0xcc; 32], epoch: Epoch(2) };
    vec![segment.encode().to_vec(), DurableWatermark { end: 0x2000, height: 5 }.encode().to_vec()]
}

fn headers(input: &[u8]) {
    for bytes in with_sealed(input) {
        if let Ok(header) = authenticated(input, || SegmentHeader::decode(&bytes)) {
            assert_eq!(SegmentHeader::decode(&header.encode()), Ok(header));
            assert!(bytes.len() >= SEGMENT_FIELDS_BYTES);
        }
        if let Some(mark) = authenticated(input, || DurableWatermark::decode(&bytes)) {
            assert_eq!(mark.encode()[..], bytes[..mark.encode().len()]);
        }
    }
}

fn record(payload: &[u8], transactions: &[(TxId, u8)]) -> Vec<u8> {
    let list = encode_transactions(transactions);
    let header = RecordHeader {
        number: BlockNumber(1),
        epoch: Epoch(1),
        header_hash: [0xaa; 32],
        previous_hash: [0xbb; 32],
        transactions: transactions.len() as u32,
        payload_bytes: payload.len() as u64,
        transactions_bytes: list.len() as u64,
        payload_checksum: checksum(payload),
        transactions_checksum: checksum(&list),
    };
    [&header.encode()[..], payload, &list].concat()
}

fn record_seeds() -> Vec<Vec<u8>> {
    vec![record(b"payload", &[(TxId::from("ab"), 11), (TxId::from(""), 255)]), record(b"", &[])]
}

fn records(input: &[u8]) {
    let mut right = input.to_vec();
    if let Some((header, _)) = right.split_first_chunk_mut::<RECORD_HEADER_BYTES>() {
        seal(header);
    }
    for bytes in [input, &right] {
        let Ok(header) = authenticated(input, || RecordHeader::decode(bytes)) else { continue };
        assert!(header.record_bytes().is_some_and(|length| length <= RECORD_BYTES_MAX));
        assert_eq!(RecordHeader::decode(&header.encode()), Ok(header));
        let _ = header.check_body(bytes);
        if let Some(list) = bytes.get(header.transactions_range()) {
            let walk = || TransactionList::new(list, header.transactions).filter(Result::is_ok).count();
            assert!(authenticated(input, walk) <= header.transactions as usize);
        }
    }
}

fn index_seeds() -> Vec<Vec<u8>> {
    let tip = ChainTip { height: 0, header_hash: NO_PREVIOUS, epoch: Epoch(0) };
    let mut index = SegmentIndex::new(BlockNumber(0), SEGMENT_HEADER_BYTES, tip);
    let empty = index.encode();
    for number in 0..3 {
        let bytes = record(b"payload", &[(TxId::from("ab"), 0), (TxId::from("cd"), 11)]);
        let header = RecordHeader::decode(&bytes).expect("it was just encoded");
        index.push(&RecordHeader { number: BlockNumber(number), ..header }, ["ab", "cd"].into_iter());
    }
    vec![empty, index.encode()]
}

fn index(input: &[u8]) {
    const HEADER_BYTES: usize = 104;
    let mut right = input.to_vec();
    if right.len() >= HEADER_BYTES {
        let body = checksum(&right[HEADER_BYTES..]);
        right[88..96].copy_from_slice(&body.to_le_bytes());
        seal(&mut right[..HEADER_BYTES]);
    }
    for bytes in [input, &right] {
        let Ok(index) = authenticated(input, || SegmentIndex::decode(bytes)) else { continue };
        assert_eq!(SegmentIndex::decode(&index.encode()), Ok(index));
    }
}
