//! Plants differences in an answer, one at a time: the comparison must find each, and nothing in equal answers.

use proto::lifecycle::CheckCommitReadinessResult;
use proto::protos::{ChaincodeId, Endorsement, Response};

use super::*;

/// Changes one part of an answer.
type Change = fn(&mut ProposalResponse);

fn answer(contract: &str) -> ProposalResponse {
    let response = Response { status: 200, message: "fine".to_owned(), payload: Bytes::from_static(b"payload") };
    let action = ChaincodeAction {
        results: Bytes::from_static(b"results"),
        events: Bytes::from_static(b"event"),
        response: Some(response.clone()),
        chaincode_id: Some(ChaincodeId { name: contract.to_owned(), ..ChaincodeId::default() }),
    };
    let payload = ProposalResponsePayload {
        proposal_hash: Bytes::from_static(b"hash"),
        extension: action.encode_to_vec().into(),
    };
    ProposalResponse {
        version: 1,
        response: Some(response),
        payload: payload.encode_to_vec().into(),
        endorsement: Some(Endorsement { endorser: Bytes::from_static(b"peer"), signature: Bytes::new() }),
        ..ProposalResponse::default()
    }
}

/// Changes the endorsed payload of an answer.
fn change_payload(answer: &mut ProposalResponse, change: impl FnOnce(&mut ProposalResponsePayload)) {
    let mut payload = payload(answer);
    change(&mut payload);
    answer.payload = payload.encode_to_vec().into();
}

fn change_action(answer: &mut ProposalResponse, change: impl FnOnce(&mut ChaincodeAction)) {
    let mut action = action(answer);
    change(&mut action);
    change_payload(answer, |payload| payload.extension = action.encode_to_vec().into());
}

#[test]
fn every_planted_difference_is_found() {
    assert_eq!(whole_differences(&answer("kv"), &answer("kv")), Vec::<String>::new());
    let changes: [(&str, Change); 11] = [
        ("the status", |answer| answer.response.get_or_insert_default().status = 201),
        ("the message", |answer| answer.response.get_or_insert_default().message.push('.')),
        ("the payload of the response", |answer| answer.response.get_or_insert_default().payload = Bytes::new()),
        ("the presence of an endorsement", |answer| answer.endorsement = None),
        ("the endorser", |answer| answer.endorsement.get_or_insert_default().endorser = Bytes::new()),
        ("the presence of a payload", |answer| answer.payload = Bytes::new()),
        ("the proposal hash", |answer| change_payload(answer, |payload| payload.proposal_hash = Bytes::new())),
        ("the read-write set", |answer| change_action(answer, |action| action.results = Bytes::new())),
        ("the event", |answer| change_action(answer, |action| action.events = Bytes::new())),
        ("the contract", |answer| change_action(answer, |action| action.chaincode_id = None)),
        ("the endorsed payload", |answer| change_action(answer, |action| action.response = None)),
    ];
    for (what, change) in changes {
        let mut ours = answer("kv");
        change(&mut ours);
        let found = whole_differences(&answer("kv"), &ours);
        assert!(found.iter().any(|line| line.starts_with(what)), "{what}: {found:?}");
    }
    // A field that no library knows.
    let mut ours = answer("kv");
    ours.payload = [&ours.payload[..], b"\x78\x01"].concat().into();
    assert_eq!(whole_differences(&answer("kv"), &ours).len(), 1);
}

#[test]
fn only_the_order_of_maps_may_differ() {
    let entry = |name: &str, is_approved: u8| [b"\x0a\x05\x0a\x01", name.as_bytes(), &[0x10, is_approved]].concat();
    let of = |contract: &str, result: Vec<u8>| {
        let mut answer = answer(contract);
        let response = answer.response.get_or_insert_default();
        response.payload = result.into();
        let response = response.clone();
        change_action(&mut answer, |action| action.response = Some(response));
        answer
    };
    let (ab, ba) = ([entry("A", 0), entry("B", 1)].concat(), [entry("B", 1), entry("A", 0)].concat());
    assert!(CheckCommitReadinessResult::decode(&ab[..]).is_ok());
    assert_eq!(whole_differences(&of(LIFECYCLE, ab.clone()), &of(LIFECYCLE, ba.clone())), Vec::<String>::new());
    assert!(!whole_differences(&of("kv", ab.clone()), &of("kv", ba)).is_empty());
    let other = [entry("A", 1), entry("B", 1)].concat();
    assert!(!whole_differences(&of(LIFECYCLE, ab.clone()), &of(LIFECYCLE, other)).is_empty());
    assert!(!whole_differences(&of(LIFECYCLE, ab), &of(LIFECYCLE, entry("A", 0))).is_empty());
}
