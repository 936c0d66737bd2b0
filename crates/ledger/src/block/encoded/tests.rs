use base::{BlockNumber, Bytes};
use proptest::prelude::*;
use prost::Message;

use super::*;
use crate::block::metadata::FABRIC_SLOTS;
use crate::golden::{self, ALL, BLOCK_1, BLOCK_8, BLOCK_9, GENESIS};
use crate::wire::WireError;

#[test]
fn golden_blocks_are_sliced_not_copied_and_put_together_again() {
    for bytes in ALL {
        let bytes = Bytes::from_static(bytes);
        let block = Block::parse(&bytes).expect("golden");
        assert_eq!(block.to_bytes(), bytes);
        let range = bytes.as_ptr_range();
        for envelope in block.envelopes() {
            assert!(range.contains(&envelope.as_ptr()), "an envelope was copied");
        }
    }
}

#[test]
fn a_block_in_pieces_is_the_block_in_one_unless_a_piece_ends_within_a_field() {
    let bytes = Bytes::from_static(BLOCK_9);
    let whole = Block::parse(&bytes).expect("golden");
    let [header, data, metadata] = whole.parts();
    let with_header = Bytes::from([&header[..], &data].concat());
    for pieces in [vec![header, data, metadata.clone()], vec![with_header, Bytes::new(), metadata]] {
        let block = Block::parse_pieces(&pieces).expect("no piece ends within a field");
        assert_eq!((block.hash(), block.to_bytes()), (whole.hash(), bytes.clone()));
    }
    for at in [1, 40, 1_000, bytes.len() - 1] {
        assert!(Block::parse_pieces(&[bytes.slice(..at), bytes.slice(at..)]).is_err(), "cut at {at}");
    }
}

#[test]
fn golden_blocks_agree_with_the_generated_decoder() {
    for bytes in ALL {
        let block = golden::block(bytes);
        let decoded = proto::common::Block::decode(bytes).expect("golden");
        let header = decoded.header.expect("golden");
        assert_eq!(block.number().get(), header.number);
        assert_eq!(block.header().previous_hash.map_or(vec![], |hash| hash.to_vec()), header.previous_hash.to_vec());
        assert_eq!(block.header().data_hash[..], header.data_hash);
        assert_eq!(block.envelopes().collect::<Vec<_>>(), decoded.data.expect("golden").data);
        let slots = decoded.metadata.expect("golden").metadata;
        assert_eq!(slots, (0..FABRIC_SLOTS).map(|slot| block.metadata().slot(slot).clone()).collect::<Vec<_>>());
    }
}

#[test]
fn a_block_is_shown_without_its_derived_updates() {
    let golden = golden::block(BLOCK_9);
    let mut metadata = golden.metadata().clone();
    metadata.set_derived_updates(Bytes::from_static(b"\x0a\x00"));
    let noted = golden.with_metadata(metadata);
    let stored = noted.to_bytes();
    assert_eq!(Block::parse(&stored).expect("a stored block").metadata(), noted.metadata());
    assert_eq!(Block::shown(stored).expect("a stored block"), Bytes::from_static(BLOCK_9));
    assert_eq!(noted.without_derived_updates().to_bytes(), Bytes::from_static(BLOCK_9));
    let bytes = Bytes::from_static(BLOCK_9);
    assert_eq!(Block::shown(bytes.clone()).expect("a stored block").as_ptr(), bytes.as_ptr(), "nothing is copied");
    assert!(Block::shown(Bytes::from_static(b"\x0a\x05")).is_err());
}

#[test]
fn golden_header_and_data_hashes_chain() {
    for bytes in ALL {
        golden::block(bytes).check_data_hash().expect("golden");
    }
    let (genesis, first) = (golden::block(GENESIS), golden::block(BLOCK_1));
    genesis.check_follows(0, None).expect("golden");
    first.check_follows(1, Some(&genesis.hash())).expect("golden");
    let (eighth, ninth) = (golden::block(BLOCK_8), golden::block(BLOCK_9));
    ninth.check_follows(9, Some(&eighth.hash())).expect("golden");
}

#[test]
fn building_from_golden_envelopes_gives_golden_header_and_data_bytes() {
    for bytes in ALL {
        let golden = golden::block(bytes);
        let envelopes: Vec<Bytes> = golden.envelopes().collect();
        let built = Block::build(golden.number(), golden.header().previous_hash, &envelopes);
        assert_eq!(built.encoded().header, golden.encoded().header);
        assert_eq!(built.encoded().data, golden.encoded().data);
        assert_eq!(built.hash(), golden.hash());
        assert_eq!(built.with_metadata(golden.metadata().clone()).to_bytes(), bytes);
    }
}

#[test]
fn golden_filters_have_a_code_for_each_transaction() {
    for bytes in [BLOCK_1, BLOCK_8, BLOCK_9] {
        let block = golden::block(bytes);
        block.check_filter().expect("golden");
        assert!(block.metadata().commit_hash().expect("golden").is_some());
    }
}

#[test]
fn a_changed_envelope_breaks_the_data_hash_and_a_changed_header_the_chain() {
    let golden = golden::block(BLOCK_8);
    let mut data = golden.encoded().data.to_vec();
    *data.last_mut().expect("not empty") ^= 1;
    let changed = Block::parse_parts(EncodedBlock { data: data.into(), ..golden.encoded().clone() }).expect("parses");
    assert!(matches!(changed.check_data_hash(), Err(Error::DataHash { block: BlockNumber(8), .. })));

    let envelopes: Vec<Bytes> = golden.envelopes().collect();
    let other = Block::build(BlockNumber(8), Some([3; 32]), &envelopes);
    assert!(matches!(
        golden::block(BLOCK_9).check_follows(9, Some(&other.hash())),
        Err(Error::PreviousHash { block: BlockNumber(9), .. })
    ));
    assert_eq!(golden.check_follows(9, None), Err(Error::Number { expected: BlockNumber(9), found: BlockNumber(8) }));
}

/// The data hash covers the concatenated envelopes. A relay of a block could put two envelopes into one entry, or split one
/// envelope over two entries: header, hashes and signatures stayed right, and peers reached other codes than peers with the
/// orderer's block.
#[test]
fn envelopes_joined_or_split_on_the_way_are_refused() {
    let [a, b] = [&b"\x0a\x03one\x12\x01s"[..], b"\x0a\x03two\x12\x01t"];
    let cut = |envelopes: &[&[u8]]| {
        let envelopes: Vec<Bytes> = envelopes.iter().map(|envelope| Bytes::copy_from_slice(envelope)).collect();
        Block::build(BlockNumber(1), Some([1; 32]), &envelopes)
    };
    let good = cut(&[a, b]);
    good.check_data_hash().expect("as the orderer cut it");
    for (index, envelopes) in [
        (0, vec![&[a, b].concat()[..]]),
        (0, vec![&a[..5], &a[5..], b]),
        (1, vec![a, &b[..5], &b[5..]]),
        (1, vec![a, b"", b]),
        (0, vec![b"", a, b]),
    ] {
        let other = cut(&envelopes);
        assert_eq!(other.hash(), good.hash(), "the header says nothing about it");
        let refused = Error::Envelope { block: BlockNumber(1), index: TxIndex(index) };
        assert_eq!(other.check_data_hash(), Err(refused), "{envelopes:?}");
    }
    for odd in [
        &b"\x12\x01s\x0a\x03one"[..],
        b"\x0a\x03one\x12\x00",
        b"\x0a\x00\x12\x01s",
        b"\x0a\x83\x00one\x12\x01s",
        b"\x8a\x00\x03one\x12\x01s",
        b"\x0a\x03one\x12\x01s\x7a\x01x",
        b"\x0a\x03one\x0a\x03two\x12\x01s",
    ] {
        assert!(cut(&[odd]).check_data_hash().is_err(), "{odd:?}");
    }
}

#[test]
fn parts_that_no_hash_covers_are_refused() {
    let refused = |header: &[u8], data: &[u8], metadata: &[u8], more: &[u8]| {
        let bytes = [header, data, metadata, more].concat();
        Block::parse(&bytes.into()).map(|_| ()).expect_err("refused")
    };
    let good = golden::block(BLOCK_8).encoded().clone();
    assert!(Block::parse(&good.to_bytes()).is_ok());
    assert_eq!(refused(b"", &good.data, &good.metadata, b""), Error::Missing { what: "the block's header" });
    assert_eq!(refused(&good.header, b"", &good.metadata, b""), Error::Missing { what: "the block's data" });
    assert_eq!(
        refused(&good.header, &good.data, &good.metadata, &good.data),
        Error::Malformed { what: "block", cause: WireError::Repeated }
    );
    assert_eq!(
        refused(&good.header, &good.data, &good.metadata, b"\x22\x00"),
        Error::UnknownField { what: "block", field: 4 }
    );
    assert_eq!(
        refused(&good.header, b"\x12\x02\x12\x00", b"", b""),
        Error::UnknownField { what: "block data", field: 2 }
    );
    assert_eq!(
        refused(&good.header, &good.data, b"\x1a\x0e\x0a\x00\x0a\x00\x0a\x00\x0a\x00\x0a\x00\x0a\x00\x0a\x00", b""),
        Error::TooMany { what: "block metadata", count: 7, limit: 6 }
    );
    assert_eq!(
        refused(b"\x0a\x04\x08\x01\x20\x01", &good.data, b"", b""),
        Error::UnknownField { what: "block header", field: 4 }
    );
    assert_eq!(
        refused(b"\x0a\x07\x08\x01\x12\x03abc", &good.data, b"", b""),
        Error::HashLength { what: "previous hash", block: 1, length: 3 }
    );
    let genesis_with_previous = [&b"\x0a\x44\x12\x20"[..], &[1; 32], b"\x1a\x20", &[2; 32]].concat();
    assert_eq!(refused(&genesis_with_previous, &good.data, b"", b""), Error::GenesisPrevious);
}

#[test]
fn metadata_slots_come_back() {
    let mut metadata = BlockMetadata::default();
    assert_eq!(metadata.commit_hash(), Ok(None));
    metadata.set_filter(Bytes::from_static(&[0, 11]));
    metadata.set_commit_hash(&[5; 32]);
    let block = Block::build(BlockNumber(1), Some([1; 32]), &[Bytes::from_static(b"a"), Bytes::from_static(b"b")]);
    let block = Block::parse(&block.with_metadata(metadata.clone()).to_bytes()).expect("well formed");
    assert_eq!(block.metadata(), &metadata);
    assert_eq!(block.metadata().commit_hash(), Ok(Some([5; 32])));
    block.check_filter().expect("two codes for two envelopes");
    metadata.set_filter(Bytes::from_static(&[0]));
    assert_eq!(
        block.with_metadata(metadata).check_filter(),
        Err(Error::FilterLength { block: BlockNumber(1), codes: 1, transactions: 2 })
    );
}

#[test]
fn a_block_without_metadata_has_empty_slots() {
    let block = Block::build(BlockNumber(0), None, &[]);
    let bare = Block::parse_parts(EncodedBlock { metadata: Bytes::new(), ..block.encoded().clone() }).expect("parses");
    assert_eq!(bare.metadata(), &BlockMetadata::default());
    assert!(bare.is_empty());
}

fn envelopes() -> impl Strategy<Value = Vec<Bytes>> {
    proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200).prop_map(Bytes::from), 0..20)
}

proptest! {
    #[test]
    fn built_blocks_parse_to_what_they_were_built_from(
        number in 1u64..,
        previous in any::<[u8; 32]>(),
        envelopes in envelopes(),
        filter in proptest::collection::vec(any::<u8>(), 0..20),
    ) {
        let mut metadata = BlockMetadata::default();
        metadata.set_filter(filter.into());
        let built = Block::build(BlockNumber(number), Some(previous), &envelopes).with_metadata(metadata);
        let parsed = Block::parse(&built.to_bytes()).expect("well formed");
        prop_assert_eq!(parsed.header(), built.header());
        prop_assert_eq!(parsed.hash(), built.hash());
        prop_assert_eq!(parsed.envelopes().collect::<Vec<_>>(), envelopes.clone());
        prop_assert_eq!(parsed.metadata(), built.metadata());
        let exact = envelopes.iter().all(|envelope| crate::transaction::is_exact(envelope));
        prop_assert_eq!(parsed.check_data_hash().is_ok(), exact);

        let message = proto::common::Block {
            header: Some(proto::common::BlockHeader {
                number,
                previous_hash: Bytes::copy_from_slice(&previous),
                data_hash: Bytes::copy_from_slice(&built.header().data_hash),
            }),
            data: Some(proto::common::BlockData { data: envelopes }),
            metadata: Some(proto::common::BlockMetadata {
                metadata: (0..FABRIC_SLOTS).map(|slot| built.metadata().slot(slot).clone()).collect(),
            }),
        };
        prop_assert_eq!(message.encode_to_vec(), built.to_bytes().to_vec());
    }

    #[test]
    fn hostile_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Block::parse(&bytes.into());
    }

    #[test]
    fn flipped_golden_bytes_never_panic_and_never_keep_every_hash(at in 0usize..BLOCK_9.len(), bit in 0u8..8) {
        let mut bytes = BLOCK_9.to_vec();
        bytes[at] ^= 1 << bit;
        let Ok(block) = Block::parse(&bytes.into()) else { return Ok(()) };
        let golden = golden::block(BLOCK_9);
        let _ = block.metadata().commit_hash();
        // Outside the metadata every bit is covered by a hash.
        if block.metadata() == golden.metadata() {
            prop_assert!(block.check_data_hash().is_err() || block.hash() != golden.hash());
        }
    }

    #[test]
    fn the_der_number_is_what_a_decoder_reads(number in any::<u64>()) {
        let header = BlockHeader { number: BlockNumber(number), previous_hash: Some([1; 32]), data_hash: [2; 32] };
        let der = header.der();
        let bytes = der.as_ref();
        let length = bytes[3] as usize;
        let digits = &bytes[4..4 + length];
        prop_assert!(digits[0] < 0x80, "positive");
        prop_assert!(length == 1 || digits[0] != 0 || digits[1] >= 0x80, "minimal");
        prop_assert_eq!(digits.iter().fold(0u128, |value, digit| value << 8 | u128::from(*digit)), u128::from(number));
    }
}
