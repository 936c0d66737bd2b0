//! Bad envelopes: some are rejected by the orderer, others are found invalid by peers.

use crate::common::{CHANNEL, TestNetwork, altered, config, endorsed, high_s, signed};
use base::Bytes;
use gateway::client::GrpcCode;
use prost::Message as _;
use proto::common::{ChannelHeader, Envelope, HeaderType, Payload, SignatureHeader};
use proto::protos::{
    ChaincodeActionPayload, ChaincodeProposalPayload, ProposalResponsePayload, Transaction as WireTransaction,
};

/// A change of a payload before it is signed.
type Change = Box<dyn Fn(&mut Payload)>;

fn change_header(payload: &mut Payload, change: impl FnOnce(&mut ChannelHeader)) {
    let header = payload.header.as_mut().expect("a header");
    let mut channel_header = ChannelHeader::decode(header.channel_header.clone()).expect("a channel header");
    change(&mut channel_header);
    header.channel_header = channel_header.encode_to_vec().into();
}

fn change_signature_header(payload: &mut Payload, change: impl FnOnce(&mut SignatureHeader)) {
    let header = payload.header.as_mut().expect("a header");
    let mut signature_header = SignatureHeader::decode(header.signature_header.clone()).expect("a signature header");
    change(&mut signature_header);
    header.signature_header = signature_header.encode_to_vec().into();
}

fn change_action(payload: &mut Payload, change: impl FnOnce(&mut ChaincodeActionPayload)) {
    let mut transaction = WireTransaction::decode(payload.data.clone()).expect("a transaction");
    let mut action = ChaincodeActionPayload::decode(transaction.actions[0].payload.clone()).expect("an action");
    change(&mut action);
    transaction.actions[0].payload = action.encode_to_vec().into();
    payload.data = transaction.encode_to_vec().into();
}

#[tokio::test(flavor = "multi_thread")]
async fn envelopes_that_the_orderer_refuses_are_aborted() {
    let mut config = config(1);
    config.batch.absolute_bytes = 100_000;
    config.batch.preferred_bytes = 100_000;
    let network = TestNetwork::start(&config).await;
    let client = network.client(0).await;
    let user = client.signer().clone();
    let transaction = endorsed(&client, "a").await;
    let payload = transaction.payload();
    let good = signed(payload.clone(), &user);
    let kind = |kind: HeaderType| {
        altered(payload, &user, |payload| change_header(payload, |header| header.r#type = kind as i32))
    };
    let creator = |signer: &identity::Signer| {
        let creator = signer.serialized().clone();
        altered(payload, signer, |payload| change_signature_header(payload, |header| header.creator = creator))
    };
    for (case, envelope) in [
        ("a signature over other bytes", Envelope { signature: user.sign(b"other"), ..good.clone() }),
        ("a signature that is random", Envelope { signature: Bytes::from_static(b"random"), ..good.clone() }),
        ("a signature with a high S", Envelope { signature: high_s(&good.signature), ..good.clone() }),
        ("a foreign authority", creator(&network.foreign_user())),
        ("an expired certificate", creator(&network.expired_user())),
        ("random bytes", signed(Bytes::from_static(b"\xff\xfe random"), &user)),
        ("a configuration", kind(HeaderType::Config)),
        ("a configuration update", kind(HeaderType::ConfigUpdate)),
        ("more bytes than a block may have", {
            altered(payload, &user, |payload| payload.data = Bytes::from(vec![7; 100_001]))
        }),
    ] {
        let status = client.submit_envelope(CHANNEL, "", envelope).await.expect_err(case);
        assert_eq!(status.code, GrpcCode::Aborted, "{case}: {status}");
        assert_eq!(status.details[0].msp_id, "OrdererMSP", "{case}: {status}");
    }
    let unsigned = Envelope { signature: Bytes::new(), ..good.clone() };
    let status = client.submit_envelope(CHANNEL, "", unsigned).await.expect_err("no signature");
    assert_eq!(status.code, GrpcCode::InvalidArgument, "{status}");
    let status = client.submit_envelope("other", "", good).await.expect_err("an unknown channel");
    assert_eq!(status.code, GrpcCode::FailedPrecondition, "{status}");
    network.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn envelopes_that_were_tampered_with_get_fabrics_codes() {
    let network = TestNetwork::start(&config(3)).await;
    let client = network.client(0).await;
    let user = client.signer().clone();
    let change_result = |payload: &mut Payload| {
        change_action(payload, |action| {
            let action = action.action.as_mut().expect("an endorsed action");
            let mut response =
                ProposalResponsePayload::decode(action.proposal_response_payload.clone()).expect("a response");
            let mut extension = response.extension.to_vec();
            let at = extension.windows(4).position(|window| window == b"blue").expect("the asset's colour");
            extension[at..at + 4].copy_from_slice(b"teal");
            response.extension = extension.into();
            action.proposal_response_payload = response.encode_to_vec().into();
        });
    };
    let cases: Vec<(&str, i32, Change)> = vec![
        ("nothing altered", 0, Box::new(|_| {})),
        ("an altered result", 10, Box::new(change_result)),
        (
            "too few endorsements",
            10,
            Box::new(|payload| {
                change_action(payload, |action| action.action.as_mut().expect("an action").endorsements.truncate(1));
            }),
        ),
        (
            "one endorsement twice",
            10,
            Box::new(|payload| {
                change_action(payload, |action| {
                    let endorsements = &mut action.action.as_mut().expect("an action").endorsements;
                    endorsements[1] = endorsements[0].clone();
                });
            }),
        ),
        (
            "altered arguments",
            5,
            Box::new(|payload| {
                change_action(payload, |action| {
                    let input = Bytes::from_static(b"\x0a\x02\x12\x00");
                    let altered = ChaincodeProposalPayload { input, ..Default::default() };
                    action.chaincode_proposal_payload = altered.encode_to_vec().into();
                });
            }),
        ),
        ("no action", 5, Box::new(|payload| payload.data = WireTransaction::default().encode_to_vec().into())),
        (
            "two actions",
            5,
            Box::new(|payload| {
                let mut transaction = WireTransaction::decode(payload.data.clone()).expect("a transaction");
                transaction.actions.push(transaction.actions[0].clone());
                payload.data = transaction.encode_to_vec().into();
            }),
        ),
        ("another epoch", 3, Box::new(|payload| change_header(payload, |header| header.epoch = 7))),
        ("no nonce", 3, Box::new(|payload| change_signature_header(payload, |header| header.nonce = Bytes::new()))),
        (
            "another nonce",
            8,
            Box::new(|payload| change_signature_header(payload, |header| header.nonce = Bytes::from(vec![7; 24]))),
        ),
    ];
    for (index, (case, code, change)) in cases.iter().enumerate() {
        let transaction = endorsed(&client, &format!("asset-{index}")).await;
        let envelope = altered(transaction.payload(), &user, change);
        client.submit_envelope(CHANNEL, transaction.tx_id(), envelope).await.expect(case);
        let commit = client.commit_status(CHANNEL, transaction.tx_id()).await.expect(case);
        assert_eq!(commit.code, *code, "{case}");
    }
    // Envelopes with other IDs and creators are found under the ID that the envelope claims.
    let transaction = endorsed(&client, "other-id").await;
    let other_id = "0".repeat(64);
    let envelope = altered(transaction.payload(), &user, |payload| {
        change_header(payload, |header| header.tx_id.clone_from(&other_id));
    });
    client.submit_envelope(CHANNEL, &other_id, envelope).await.expect("an orderer");
    assert_eq!(client.commit_status(CHANNEL, &other_id).await.expect("a commit").code, 8);
    let transaction = endorsed(&client, "other-creator").await;
    let admin = network.running.admin(0);
    let envelope = altered(transaction.payload(), &admin, |payload| {
        change_signature_header(payload, |header| header.creator = admin.serialized().clone());
    });
    client.submit_envelope(CHANNEL, transaction.tx_id(), envelope).await.expect("an orderer");
    assert_eq!(client.commit_status(CHANNEL, transaction.tx_id()).await.expect("a commit").code, 8);
    network.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replayed_envelope_is_ordered_and_changes_nothing() {
    let network = TestNetwork::start(&config(1)).await;
    let client = network.client(0).await;
    let transaction = endorsed(&client, "a").await;
    client.submit(&transaction).await.expect("an orderer");
    let first = client.commit_status(CHANNEL, transaction.tx_id()).await.expect("a commit");
    assert!(first.is_valid());
    client.submit(&transaction).await.expect("an orderer that does not look");
    let mut blocks = client
        .deliver(
            CHANNEL,
            gateway::client::StartPosition::Block(first.block + 1),
            Some(first.block + 1),
            gateway::client::BlockView::Filtered,
        )
        .await
        .expect("a stream");
    let block = blocks.next().await.expect("a block");
    let Some(proto::protos::deliver_response::Type::FilteredBlock(block)) = block else { panic!("{block:?}") };
    assert_eq!(block.filtered_transactions[0].tx_validation_code, 9);
    assert_eq!(block.filtered_transactions[0].txid, transaction.tx_id());
    assert_eq!(client.commit_status(CHANNEL, transaction.tx_id()).await.expect("a commit"), first);
    network.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_orderers_own_port_takes_envelopes_and_gives_blocks() {
    use proto::common::Status as Answer;
    use proto::orderer::{BroadcastResponse, DeliverResponse, SeekInfo, deliver_response};

    let network = TestNetwork::start(&config(1)).await;
    let client = network.client(0).await;
    let connection =
        gateway::client::GrpcConnection::connect(&network.running.orderer_target()).await.expect("the orderer's port");
    let (mut requests, mut responses) =
        connection.open("/orderer.AtomicBroadcast/Broadcast", None).await.expect("a stream");
    let transaction = endorsed(&client, "a").await;
    requests.send(&signed(transaction.payload().clone(), client.signer())).await.expect("an open stream");
    let answer: BroadcastResponse = responses.next().await.expect("an answer").expect("an answer");
    assert_eq!(answer.status(), Answer::Success);
    assert!(client.commit_status(CHANNEL, transaction.tx_id()).await.expect("a commit").is_valid());
    requests.send(&signed(Bytes::from_static(b"\xff random"), client.signer())).await.expect("an open stream");
    let answer: BroadcastResponse = responses.next().await.expect("an answer").expect("an answer");
    assert_eq!(answer.status(), Answer::BadRequest, "{answer:?}");
    assert_eq!(responses.next::<BroadcastResponse>().await, Ok(None));

    let seek = SeekInfo {
        start: Some(gateway::client::StartPosition::Oldest.position()),
        stop: Some(gateway::client::StartPosition::Newest.position()),
        ..Default::default()
    };
    let (mut requests, mut responses) =
        connection.open("/orderer.AtomicBroadcast/Deliver", None).await.expect("a stream");
    requests.send(&client.seek_envelope(CHANNEL, &seek)).await.expect("an open stream");
    for number in 0..2 {
        let answer: DeliverResponse = responses.next().await.expect("a block").expect("a block");
        let Some(deliver_response::Type::Block(block)) = answer.r#type else { panic!("{answer:?}") };
        assert_eq!(block.header.expect("a header").number, number);
    }
    let answer: DeliverResponse = responses.next().await.expect("a status").expect("a status");
    assert_eq!(answer.r#type, Some(deliver_response::Type::Status(Answer::Success as i32)));
    network.stop().await;
}
