//! Filtered blocks on bytes: those of the recorded channel, and shapes that it does not hold.

use base::BlockNumber;
use ledger::Block;
use prost::Message;
use proto::common::Header;
use proto::protos::{ChaincodeEndorsedAction, TransactionAction};

use super::*;

fn recorded(name: &str) -> Option<Bytes> {
    let path = format!("{}/../ledger/tests/fabric-channel/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(path).ok().map(Bytes::from)
}

fn encode(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

#[test]
fn the_recorded_channels_filtered_blocks_are_fabrics() {
    let mut expected = recorded("filtered.bin").expect("it is in the tree");
    let (mut blocks, mut named) = (0, 0);
    while !expected.is_empty() {
        let expected = FilteredBlock::decode_length_delimited(&mut expected).expect("Fabric wrote it");
        let block = recorded(&format!("blocks/{:04}.block", expected.number)).expect("it is in the tree");
        let block = CommittedBlock::of_stored(Block::parse(&block).expect("Fabric wrote it")).expect("it is complete");
        let got = filtered(&block, "goldchannel");
        assert_eq!(got, expected, "block {}", expected.number);
        assert_eq!(encode(&got), encode(&expected));
        blocks += 1;
        named += got.filtered_transactions.iter().filter(|transaction| transaction.data.is_some()).count();
    }
    // Fabric's stream broke off at blocks 70, 71 and 73, where an action does not parse.
    assert_eq!((blocks, named > 200), (168, true), "{named} endorser transactions");
}

fn event(chaincode: &str, name: &str) -> Bytes {
    let event = ChaincodeEvent {
        chaincode_id: chaincode.to_owned(),
        tx_id: "endorsed".to_owned(),
        event_name: name.to_owned(),
        payload: Bytes::from_static(b"secret"),
    };
    encode(&event)
}

fn action_with(events: Bytes) -> TransactionAction {
    let result = ChaincodeAction { events, ..Default::default() };
    let response = ProposalResponsePayload { extension: encode(&result), ..Default::default() };
    let action = ChaincodeEndorsedAction { proposal_response_payload: encode(&response), endorsements: Vec::new() };
    let payload = ChaincodeActionPayload { action: Some(action), ..Default::default() };
    TransactionAction { payload: encode(&payload), ..Default::default() }
}

fn envelope(kind: i32, data: Bytes) -> Bytes {
    let header = ChannelHeader { r#type: kind, tx_id: "claimed".to_owned(), epoch: 1, ..Default::default() };
    let header = Header { channel_header: encode(&header), ..Default::default() };
    let payload = Payload { header: Some(header), data };
    encode(&Envelope { payload: encode(&payload), signature: Bytes::from_static(b"signed") })
}

/// The types, codes and events of a block that holds these envelopes, in a short form.
fn shown(envelopes: &[Bytes]) -> Vec<String> {
    let block = Block::build(BlockNumber(1), Some([1; 32]), envelopes);
    let mut metadata = block.metadata().clone();
    metadata.set_filter((0..envelopes.len()).map(|index| index as u8 + 1).collect::<Vec<u8>>().into());
    let block = CommittedBlock::of_stored(block.with_metadata(metadata)).expect("its filter fits");
    let block = filtered(&block, "trade");
    assert!(!encode(&block).windows(6).any(|bytes| bytes == b"secret"));
    let transactions = block.filtered_transactions.into_iter().map(|transaction| {
        let events = transaction.data.map(|Data::TransactionActions(actions)| {
            let events = actions.chaincode_actions.into_iter().filter_map(|action| action.chaincode_event);
            events.map(|event| format!("{}.{}", event.chaincode_id, event.event_name)).collect::<Vec<_>>()
        });
        let events = events.map_or("-".to_owned(), |events| events.join("+"));
        format!("{} {} {} {events}", transaction.txid, transaction.r#type, transaction.tx_validation_code)
    });
    transactions.collect()
}

#[test]
fn events_are_named_as_far_as_the_bytes_can_be_read() {
    let endorser = HeaderType::EndorserTransaction as i32;
    let one = action_with(event("basic", "one"));
    let other = action_with(event("other", "two"));
    let nameless = action_with(event("", "three"));
    let without_action = TransactionAction { payload: Bytes::new(), ..Default::default() };
    let malformed = action_with(Bytes::from_static(b"\x0a\x7f"));
    let transaction = |actions: &[&TransactionAction]| {
        let actions = actions.iter().map(|action| (*action).clone()).collect();
        encode(&Transaction { actions })
    };
    let without_header = encode(&Envelope { payload: Bytes::new(), signature: Bytes::from_static(b"signed") });
    let got = shown(&[
        envelope(endorser, transaction(&[&one])),
        envelope(endorser, transaction(&[&one, &without_action, &nameless, &other])),
        envelope(endorser, transaction(&[&one, &malformed, &other])),
        envelope(endorser, Bytes::from_static(b"\x0a\x7f")),
        envelope(endorser, Bytes::new()),
        without_header,
        envelope(HeaderType::Config as i32, transaction(&[&one])),
        envelope(99, transaction(&[&one])),
    ]);
    let expected = [
        "claimed 3 1 basic.one",
        "claimed 3 2 basic.one+other.two",
        "claimed 3 3 basic.one",
        "claimed 3 4 ",
        "claimed 3 5 ",
        "claimed 1 7 -",
        "claimed 99 8 -",
    ];
    assert_eq!(got, expected);
}

/// Regression: a transaction of two-byte actions, or one of two-byte endorsements, took thirty times its size for every reader.
#[test]
fn events_of_a_transaction_with_too_many_fields_are_not_read() {
    let events = |data: &proto::protos::Transaction| decode_events(encode(data)).len();
    let action = action_with(event("contract", "made"));
    let many = |count| proto::protos::Transaction { actions: vec![action.clone(); count] };
    assert_eq!((events(&many(1)), events(&many(FIELDS_MAX)), events(&many(FIELDS_MAX + 1))), (1, FIELDS_MAX, 0));

    let mut payload = ChaincodeActionPayload::decode(action.payload).expect("just made");
    let endorsed = payload.action.as_mut().expect("just made");
    endorsed.endorsements = vec![Default::default(); FIELDS_MAX + 1];
    let crowded = TransactionAction { payload: encode(&payload), ..Default::default() };
    assert_eq!(events(&proto::protos::Transaction { actions: vec![crowded] }), 0);
    // Not a message at all.
    assert_eq!(decode_events(Bytes::from_static(b"\xff")).len(), 0);
}
