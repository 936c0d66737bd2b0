use base::{Bytes, ErrorKind};
use proptest::prelude::*;
use prost::Message;
use proto::common::{ChannelHeader, Envelope, Header as HeaderMessage, Payload, SignatureHeader};
use proto::protos::{
    ChaincodeAction, ChaincodeActionPayload, ChaincodeEvent, ChaincodeHeaderExtension, ChaincodeId,
    ProposalResponsePayload, Transaction as TransactionMessage, TransactionAction,
};

use super::*;
use crate::golden;
use crate::golden::{BLOCK_1, BLOCK_8, BLOCK_9, GENESIS};
use crate::hash::sha256_of;
use crate::transaction::action::proposal_hash;
use crate::transaction::header::ChaincodeName;
use crate::transaction::invalid::code_byte;

type ValidationCode = TxValidationCode;

fn golden_envelope() -> Bytes {
    golden::block(BLOCK_8).envelope(0)
}

/// Every message that an endorser transaction nests, to change one and encode all again.
struct TransactionParts {
    channel_header: ChannelHeader,
    signature_header: SignatureHeader,
    action_header: Bytes,
    actions: usize,
    proposal_payload: Bytes,
    endorsed: Option<proto::protos::ChaincodeEndorsedAction>,
    chaincode_action: ChaincodeAction,
    /// The chaincode action as bytes, where they are not those of `chaincode_action`.
    extension: Option<Bytes>,
    /// The proposal hash, where it is not the right one.
    proposal_hash: Option<Bytes>,
}

impl TransactionParts {
    fn golden() -> TransactionParts {
        let envelope = Envelope::decode(golden_envelope()).expect("golden");
        let payload = Payload::decode(envelope.payload).expect("golden");
        let header = payload.header.expect("golden");
        let action = TransactionMessage::decode(payload.data).expect("golden").actions.remove(0);
        let body = ChaincodeActionPayload::decode(action.payload).expect("golden");
        let endorsed = body.action.expect("golden");
        let response = ProposalResponsePayload::decode(endorsed.proposal_response_payload.clone()).expect("golden");
        TransactionParts {
            channel_header: ChannelHeader::decode(header.channel_header).expect("golden"),
            signature_header: SignatureHeader::decode(header.signature_header).expect("golden"),
            action_header: action.header,
            actions: 1,
            proposal_payload: body.chaincode_proposal_payload,
            endorsed: Some(endorsed),
            chaincode_action: ChaincodeAction::decode(response.extension).expect("golden"),
            extension: None,
            proposal_hash: None,
        }
    }

    fn encode(mut self) -> Bytes {
        let header = HeaderMessage {
            channel_header: self.channel_header.encode_to_vec().into(),
            signature_header: self.signature_header.encode_to_vec().into(),
        };
        let hash = proposal_hash(&header.channel_header, &self.action_header, &self.proposal_payload);
        if let Some(endorsed) = &mut self.endorsed {
            let response = ProposalResponsePayload {
                proposal_hash: self.proposal_hash.unwrap_or_else(|| Bytes::copy_from_slice(&hash)),
                extension: self.extension.unwrap_or_else(|| self.chaincode_action.encode_to_vec().into()),
            };
            endorsed.proposal_response_payload = response.encode_to_vec().into();
        }
        let body = ChaincodeActionPayload { chaincode_proposal_payload: self.proposal_payload, action: self.endorsed };
        let action = TransactionAction { header: self.action_header, payload: body.encode_to_vec().into() };
        let transaction = TransactionMessage { actions: vec![action; self.actions] };
        let payload = Payload { header: Some(header), data: transaction.encode_to_vec().into() };
        Envelope { payload: payload.encode_to_vec().into(), signature: Bytes::from_static(b"s") }.encode_to_vec().into()
    }
}

/// All stateless steps in Fabric's order.
fn check(envelope: &Bytes) -> Result<(), InvalidTransaction> {
    let transaction = Transaction::parse(envelope)?;
    transaction.check_type()?;
    transaction.header().check_tx_id()?;
    let action = transaction.action()?;
    transaction.header().check_channel("mychannel")?;
    let outcome = action.outcome(transaction.header())?;
    let chaincode = outcome.check(transaction.header())?;
    assert_eq!(Some(chaincode), outcome.chaincode());
    Ok(())
}

fn code(change: impl FnOnce(&mut TransactionParts)) -> ValidationCode {
    let mut parts = TransactionParts::golden();
    change(&mut parts);
    match check(&parts.encode()) {
        Ok(()) => ValidationCode::Valid,
        Err(invalid) => invalid.code,
    }
}

#[test]
fn golden_transactions_pass_every_stateless_check() {
    for bytes in [BLOCK_8, BLOCK_9] {
        for envelope in golden::block(bytes).envelopes() {
            check(&envelope).expect("golden");
        }
    }
    for envelope in golden::block(BLOCK_1).envelopes() {
        let transaction = Transaction::parse(&envelope).expect("golden");
        transaction.check_type().expect("golden");
    }
}

#[test]
fn a_golden_configuration_is_recognised() {
    let envelope = golden::block(GENESIS).envelope(0);
    // The tool that makes genesis blocks signs nothing, so there is no creator.
    assert_eq!(
        Transaction::parse(&envelope).map(|_| ()).expect_err("no creator").code,
        ValidationCode::BadCommonHeader
    );
    let transaction = Transaction::decode(&envelope).expect("golden");
    assert!(transaction.is_config() && !transaction.is_endorser_transaction());
    assert_eq!(transaction.header().channel(), "mychannel");
    proto::common::ConfigEnvelope::decode(transaction.data()).expect("golden");
    let body = transaction.action().map(|_| ()).expect_err("no endorser transaction");
    assert_eq!(body.code, ValidationCode::InvalidEndorserTransaction);
}

#[test]
fn views_agree_with_the_generated_decoder() {
    let envelope = golden_envelope();
    let parts = TransactionParts::golden();
    let transaction = Transaction::parse(&envelope).expect("golden");
    let header = transaction.header();
    let decoded = Envelope::decode(envelope.clone()).expect("golden");
    assert_eq!(transaction.payload(), decoded.payload);
    assert_eq!(transaction.signature(), decoded.signature);
    assert_eq!(header.kind(), parts.channel_header.r#type);
    assert_eq!(header.version(), parts.channel_header.version);
    let timestamp = parts.channel_header.timestamp.expect("golden");
    assert_eq!(header.timestamp(), Some((timestamp.seconds, timestamp.nanos)));
    assert_eq!(header.channel(), parts.channel_header.channel_id);
    assert_eq!(header.tx_id(), parts.channel_header.tx_id);
    assert_eq!(header.to_tx_id().as_str(), parts.channel_header.tx_id);
    assert_eq!(header.extension(), parts.channel_header.extension);
    assert_eq!(header.tls_cert_hash(), parts.channel_header.tls_cert_hash);
    assert_eq!(header.creator(), parts.signature_header.creator);
    assert_eq!(header.nonce(), parts.signature_header.nonce);

    let action = transaction.action().expect("golden");
    let endorsed = parts.endorsed.expect("golden");
    assert_eq!(action.response_payload(), endorsed.proposal_response_payload);
    assert_eq!(action.proposal_payload(), parts.proposal_payload);
    assert_eq!(action.endorsements().len(), endorsed.endorsements.len());
    for (index, (view, message)) in action.endorsements().zip(&endorsed.endorsements).enumerate() {
        assert_eq!((view.endorser, view.signature), (&message.endorser[..], &message.signature[..]));
        assert_eq!(action.endorser(index), message.endorser);
        assert_eq!(
            action.signed_message(index),
            [&endorsed.proposal_response_payload[..], &message.endorser[..]].concat()
        );
    }

    let outcome = action.outcome(header).expect("golden");
    assert_eq!(outcome.results(), parts.chaincode_action.results);
    let response = parts.chaincode_action.response.expect("golden");
    assert_eq!(outcome.status(), response.status);
    assert_eq!(outcome.message(), response.message);
    assert_eq!(outcome.response_payload(), response.payload);
    let id = parts.chaincode_action.chaincode_id.expect("golden");
    assert_eq!(outcome.chaincode(), Some(ChaincodeName { name: &id.name, version: &id.version }));
    assert_eq!(header.chaincode().expect("golden").expect("golden").name, id.name);
    match ChaincodeEvent::decode(parts.chaincode_action.events.clone()).expect("golden") {
        event if parts.chaincode_action.events.is_empty() => {
            assert_eq!((outcome.event(), event.event_name.len()), (None, 0))
        }
        event => {
            let view = outcome.event().expect("golden");
            assert_eq!(outcome.encoded_event(), Some(parts.chaincode_action.events));
            assert_eq!((view.chaincode, view.tx_id), (&*event.chaincode_id, &*event.tx_id));
            assert_eq!((view.name, view.payload), (&*event.event_name, event.payload));
        }
    }
}

#[test]
fn a_proposals_header_is_read_alone() {
    let payload = Payload::decode(Envelope::decode(golden_envelope()).expect("golden").payload).expect("golden");
    let header = TransactionHeader::parse(&payload.header.expect("golden").encode_to_vec().into()).expect("golden");
    header.check_form().expect("golden");
    header.check_tx_id().expect("golden");
    assert_eq!(header.channel(), "mychannel");
}

#[test]
fn faults_get_fabrics_codes() {
    assert_eq!(code(|_| {}), ValidationCode::Valid);
    // Headers.
    assert_eq!(code(|parts| parts.channel_header.epoch = 1), ValidationCode::BadCommonHeader);
    assert_eq!(code(|parts| parts.channel_header.r#type = 0), ValidationCode::BadCommonHeader);
    assert_eq!(code(|parts| parts.channel_header.r#type = 77), ValidationCode::BadCommonHeader);
    assert_eq!(code(|parts| parts.signature_header.nonce = Bytes::new()), ValidationCode::BadCommonHeader);
    assert_eq!(code(|parts| parts.signature_header.creator = Bytes::new()), ValidationCode::BadCommonHeader);
    assert_eq!(
        code(|parts| parts.channel_header.r#type = HeaderType::ConfigUpdate as i32),
        ValidationCode::UnsupportedTxPayload
    );
    // Transaction id.
    assert_eq!(code(|parts| parts.channel_header.tx_id = "00".into()), ValidationCode::BadProposalTxid);
    assert_eq!(code(|parts| parts.channel_header.tx_id.make_ascii_uppercase()), ValidationCode::BadProposalTxid);
    assert_eq!(
        code(|parts| parts.signature_header.nonce = Bytes::from_static(b"other")),
        ValidationCode::BadProposalTxid
    );
    assert_eq!(
        code(|parts| parts.signature_header.creator = Bytes::from_static(b"other")),
        ValidationCode::BadProposalTxid
    );
    // Body.
    assert_eq!(code(|parts| parts.actions = 0), ValidationCode::InvalidEndorserTransaction);
    assert_eq!(code(|parts| parts.actions = 2), ValidationCode::InvalidEndorserTransaction);
    assert_eq!(code(|parts| parts.action_header = Bytes::new()), ValidationCode::InvalidEndorserTransaction);
    assert_eq!(
        code(|parts| parts.action_header = Bytes::from_static(b"\xff")),
        ValidationCode::InvalidEndorserTransaction
    );
    assert_eq!(code(|parts| parts.proposal_payload = Bytes::new()), ValidationCode::InvalidEndorserTransaction);
    assert_eq!(code(|parts| parts.endorsed = None), ValidationCode::InvalidEndorserTransaction);
    assert_eq!(
        code(|parts| parts.proposal_hash = Some(Bytes::from_static(&[0; 32]))),
        ValidationCode::InvalidEndorserTransaction
    );
    // Channel.
    assert_eq!(code(|parts| parts.channel_header.channel_id = "other".into()), ValidationCode::TargetChainNotFound);
    // Result.
    assert_eq!(
        code(|parts| parts.channel_header.extension = Bytes::from_static(b"\x12\xff")),
        ValidationCode::BadHeaderExtension
    );
    assert_eq!(
        code(|parts| parts.extension = Some(Bytes::from_static(b"\x0a\xff"))),
        ValidationCode::BadResponsePayload
    );
    assert_eq!(code(|parts| parts.extension = Some(Bytes::new())), ValidationCode::BadResponsePayload);
    // Chaincode.
    assert_eq!(code(|parts| parts.channel_header.extension = Bytes::new()), ValidationCode::InvalidOtherReason);
    assert_eq!(code(|parts| parts.chaincode_action.chaincode_id = None), ValidationCode::InvalidOtherReason);
    let name =
        |name: &str, version: &str| ChaincodeId { name: name.into(), version: version.into(), path: String::new() };
    let extension =
        |id| ChaincodeHeaderExtension { chaincode_id: Some(id), ..Default::default() }.encode_to_vec().into();
    assert_eq!(
        code(|parts| parts.channel_header.extension = extension(name("", ""))),
        ValidationCode::InvalidChaincode
    );
    assert_eq!(
        code(|parts| parts.channel_header.extension = extension(name("other", ""))),
        ValidationCode::InvalidChaincode
    );
    let golden_name = TransactionParts::golden().chaincode_action.chaincode_id.expect("golden").name;
    assert_eq!(
        code(|parts| parts.chaincode_action.chaincode_id = Some(name(&golden_name, ""))),
        ValidationCode::InvalidChaincode
    );
    // Event.
    let event = |chaincode: &str| ChaincodeEvent {
        chaincode_id: chaincode.into(),
        event_name: "e".into(),
        ..Default::default()
    };
    assert_eq!(
        code(|parts| parts.chaincode_action.events = event(&golden_name).encode_to_vec().into()),
        ValidationCode::Valid
    );
    assert_eq!(
        code(|parts| parts.chaincode_action.events = event("other").encode_to_vec().into()),
        ValidationCode::InvalidOtherReason
    );
    assert_eq!(
        code(|parts| parts.chaincode_action.events = Bytes::from_static(b"\x0a\xff")),
        ValidationCode::InvalidOtherReason
    );
}

#[test]
fn envelopes_that_are_not_messages_get_fabrics_codes() {
    let code = |bytes: &'static [u8]| Transaction::parse(&Bytes::from_static(bytes)).map(|_| ()).expect_err("bad").code;
    assert_eq!(code(b"\xff\xff\xff"), ValidationCode::InvalidOtherReason);
    // An empty payload has no header.
    assert_eq!(code(b""), ValidationCode::BadCommonHeader);
    // A payload that is not a message.
    assert_eq!(code(b"\x0a\x02\x0a\xff"), ValidationCode::BadPayload);
    // A header that is not a message.
    assert_eq!(code(b"\x0a\x04\x0a\x02\x0a\xff"), ValidationCode::BadPayload);
    // A channel header that is not a message.
    assert_eq!(code(b"\x0a\x06\x0a\x04\x0a\x02\x0a\xff"), ValidationCode::BadCommonHeader);
    // A channel whose name is not text.
    assert_eq!(code(b"\x0a\x07\x0a\x05\x0a\x03\x22\x01\xff"), ValidationCode::BadCommonHeader);
}

#[test]
fn the_first_fault_in_fabrics_order_decides() {
    assert_eq!(
        code(|parts| {
            parts.actions = 2;
            parts.channel_header.tx_id = "00".into();
        }),
        ValidationCode::BadProposalTxid
    );
    assert_eq!(
        code(|parts| {
            parts.channel_header.channel_id = "other".into();
            parts.actions = 0;
        }),
        ValidationCode::InvalidEndorserTransaction
    );
}

#[test]
fn golden_transaction_ids_and_proposal_hashes_are_those_of_fabric() {
    let transaction = Transaction::parse(&golden_envelope()).expect("golden");
    let header = transaction.header();
    assert_eq!(header.tx_id(), hex::encode(sha256_of(&[header.nonce(), header.creator_slice()])));
    let json: serde_json::Value =
        serde_json::from_slice(include_bytes!("../../../../proto/tests/golden/b8.json")).expect("golden");
    let claimed = json.pointer("/data/data/0/payload/header/channel_header/tx_id").expect("golden");
    assert_eq!(claimed, header.tx_id());
    assert_eq!(header.nonce().len(), 24);
}

#[test]
fn codes_are_the_bytes_of_the_filter() {
    assert_eq!(code_byte(ValidationCode::Valid), 0);
    assert_eq!(code_byte(ValidationCode::BadProposalTxid), 8);
    assert_eq!(code_byte(ValidationCode::InvalidOtherReason), 255);
    let invalid = InvalidTransaction::new(ValidationCode::MvccReadConflict, "stale");
    assert_eq!(invalid.to_string(), "stale (MVCC_READ_CONFLICT)");
    assert_eq!((invalid.code_byte(), invalid.kind()), (11, ErrorKind::Rejected));
}

proptest! {
    #[test]
    fn hostile_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = check(&bytes.into());
    }

    #[test]
    fn flipped_golden_bits_never_panic_and_agree_with_the_generated_decoder(at in 0usize..4000, bit in 0u8..8) {
        let golden = golden_envelope();
        let mut bytes = golden.to_vec();
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        let bytes = Bytes::from(bytes);
        let _ = check(&bytes);
        let Ok(transaction) = Transaction::parse(&bytes) else { return Ok(()) };
        // Whatever is accepted here, a protobuf library accepts with the same content.
        let decoded = Envelope::decode(bytes).expect("accepted by us");
        prop_assert_eq!(transaction.payload(), &decoded.payload[..]);
        let payload = Payload::decode(decoded.payload).expect("accepted by us");
        let header = payload.header.expect("accepted by us");
        prop_assert_eq!(transaction.header().channel_header(), &header.channel_header[..]);
        let channel_header = ChannelHeader::decode(header.channel_header).expect("accepted by us");
        prop_assert_eq!(transaction.header().channel(), channel_header.channel_id);
        prop_assert_eq!(transaction.header().tx_id(), channel_header.tx_id);
        prop_assert_eq!(transaction.data(), payload.data);
    }
}
