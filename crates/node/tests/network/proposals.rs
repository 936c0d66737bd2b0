//! The gateway's answers to bad proposals: one table row per status that Fabric 3.1 returned for the same input.

use crate::common::{CHANNEL, Craft, TestNetwork, config, high_s};
use base::Bytes;
use gateway::client::{GatewayClient, GrpcCode, GrpcStatus};
use proto::gateway::{EndorseRequest, EndorseResponse, EvaluateRequest, EvaluateResponse};
use proto::protos::SignedProposal;

async fn evaluate(client: &GatewayClient, signed: &SignedProposal, organizations: &[&str]) -> Result<(), GrpcStatus> {
    let request = EvaluateRequest {
        channel_id: CHANNEL.into(),
        proposed_transaction: Some(signed.clone()),
        target_organizations: organizations.iter().map(|&name| name.into()).collect(),
        ..Default::default()
    };
    let answer: Result<EvaluateResponse, GrpcStatus> =
        client.connection().unary("/gateway.Gateway/Evaluate", &request, None).await;
    answer.map(|_| ())
}

async fn endorse(client: &GatewayClient, signed: &SignedProposal, organizations: &[&str]) -> Result<(), GrpcStatus> {
    let request = EndorseRequest {
        channel_id: CHANNEL.into(),
        proposed_transaction: Some(signed.clone()),
        endorsing_organizations: organizations.iter().map(|&name| name.into()).collect(),
        ..Default::default()
    };
    let answer: Result<EndorseResponse, GrpcStatus> =
        client.connection().unary("/gateway.Gateway/Endorse", &request, None).await;
    answer.map(|_| ())
}

/// Checks both answers to one proposal.
async fn expect(client: &GatewayClient, case: &str, signed: &SignedProposal, evaluated: GrpcCode, endorsed: GrpcCode) {
    let status = evaluate(client, signed, &[]).await.expect_err(case);
    assert_eq!(status.code, evaluated, "{case}, evaluate: {status}");
    let status = endorse(client, signed, &[]).await.expect_err(case);
    assert_eq!(status.code, endorsed, "{case}, endorse: {status}");
    if endorsed == GrpcCode::Aborted {
        let detail = status.details.first().unwrap_or_else(|| panic!("{case}: {status} has no detail"));
        assert_eq!(detail.msp_id, "Org1MSP", "{case}");
        assert!(detail.address.starts_with("127.0.0.1:") && !detail.message.is_empty(), "{case}: {detail:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_contract_refuses_is_unknown_to_evaluate_and_aborted_to_endorse() {
    let network = TestNetwork::start(&config(3)).await;
    let client = network.client(0).await;
    for (case, call) in [
        ("an application error", &["ReadAsset", "none"][..]),
        ("an unknown function", &["Explode"]),
        ("too few arguments", &["ReadAsset"]),
        ("too many arguments", &["ReadAsset", "a", "b"]),
        ("an argument of another type", &["CreateAsset", "a", "blue", "many", "Ada", "300"]),
        ("no function", &[]),
    ] {
        let signed = Craft::new(client.signer(), "basic", call).sign();
        expect(&client, case, &signed, GrpcCode::Unknown, GrpcCode::Aborted).await;
    }
    let signed = Craft::new(client.signer(), "basic", &["ReadAsset", "none"]).sign();
    let status = evaluate(&client, &signed, &[]).await.expect_err("no such asset");
    assert!(
        status.message.starts_with("evaluate call to endorser returned error: chaincode response 500, "),
        "{status}"
    );
    assert!(status.details[0].message.starts_with("chaincode response 500, "), "{status}");
    let status = endorse(&client, &signed, &[]).await.expect_err("no such asset");
    assert!(status.message.contains("see attached details"), "{status}");
    assert!(status.details[0].message.starts_with("chaincode response 500, "), "{status}");
    network.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_do_not_exist_have_codes_of_their_own() {
    let network = TestNetwork::start(&config(3)).await;
    let client = network.client(0).await;
    let good = ["AssetExists", "a"];
    let signed = Craft::new(client.signer(), "nothing", &good).sign();
    expect(&client, "an unknown chaincode", &signed, GrpcCode::FailedPrecondition, GrpcCode::FailedPrecondition).await;
    let signed = Craft::new(client.signer(), "basic", &good).with(|craft| craft.channel = "other".into()).sign();
    expect(&client, "an unknown channel", &signed, GrpcCode::Unavailable, GrpcCode::FailedPrecondition).await;
    let signed = Craft::new(client.signer(), "basic", &good).sign();
    let status = evaluate(&client, &signed, &["Org9MSP"]).await.expect_err("an unknown organisation");
    assert_eq!(status.code, GrpcCode::FailedPrecondition, "{status}");
    let status = endorse(&client, &signed, &["Org1MSP", "Org9MSP"]).await.expect_err("an unknown organisation");
    assert_eq!(status.code, GrpcCode::Unavailable, "{status}");
    network.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn proposals_that_are_wrong_in_one_way_are_refused() {
    let network = TestNetwork::start(&config(2)).await;
    let client = network.client(0).await;
    let user = client.signer().clone();
    let craft = || Craft::new(&user, "basic", &["AssetExists", "a"]);
    evaluate(&client, &craft().sign(), &[]).await.expect("nothing is wrong");
    endorse(&client, &craft().sign(), &[]).await.expect("nothing is wrong");

    let foreign = network.foreign_user();
    let other = network.running.user(1);
    let with_signature = |change: fn(&Bytes) -> Bytes| {
        let mut signed = craft().sign();
        signed.signature = change(&signed.signature);
        signed
    };
    let cases = [
        ("a signature over other bytes", {
            let mut signed = craft().sign();
            signed.signature = user.sign(b"other bytes");
            signed
        }),
        ("a signature with another key", craft().with(|craft| craft.signer = other.clone()).sign()),
        ("a signature that is random", with_signature(|_| Bytes::from_static(b"not a signature"))),
        ("no signature", with_signature(|_| Bytes::new())),
        ("a signature with a high S", with_signature(|signature| high_s(signature))),
        ("another transaction id", craft().with(|craft| craft.tx_id = Some("00".repeat(32))).sign()),
        ("no nonce", craft().with(|craft| craft.nonce = Bytes::new()).sign()),
        ("another epoch", craft().with(|craft| craft.epoch = 1).sign()),
        ("another header type", craft().with(|craft| craft.header_type = 1).sign()),
        ("no creator", craft().with(|craft| craft.creator = Bytes::new()).sign()),
        ("a creator that is random", craft().with(|craft| craft.creator = Bytes::from_static(b"\x0a\x03abc")).sign()),
        ("a foreign authority", Craft::new(&foreign, "basic", &["AssetExists", "a"]).sign()),
        (
            "another organisation's certificate",
            craft()
                .with(|craft| {
                    let identity = proto::msp::SerializedIdentity {
                        mspid: "Org2MSP".into(),
                        id_bytes: user.certificate_pem().clone(),
                    };
                    craft.creator = prost::Message::encode_to_vec(&identity).into();
                })
                .sign(),
        ),
    ];
    for (case, signed) in cases {
        expect(&client, case, &signed, GrpcCode::FailedPrecondition, GrpcCode::Aborted).await;
    }

    let late = Craft::new(&network.expired_user(), "basic", &["AssetExists", "a"]).sign();
    expect(&client, "an expired certificate", &late, GrpcCode::Unavailable, GrpcCode::Aborted).await;
    for hours in [-1, 1] {
        let signed = craft().with(|craft| craft.seconds += hours * 3600).sign();
        expect(&client, "a timestamp an hour off", &signed, GrpcCode::Unavailable, GrpcCode::Aborted).await;
    }
    network.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proposal_that_was_committed_is_refused() {
    let network = TestNetwork::start(&config(1)).await;
    let client = network.client(0).await;
    let proposal = client
        .proposal(CHANNEL, "basic", "CreateAsset", &crate::common::args(&["a", "blue", "5", "Ada", "300"]))
        .sign();
    let transaction = client.endorse(&proposal).await.expect("an endorsement");
    client.submit(&transaction).await.expect("an orderer");
    assert!(client.commit_status(CHANNEL, proposal.tx_id()).await.expect("a commit").is_valid());
    expect(&client, "a committed proposal", proposal.signed(), GrpcCode::FailedPrecondition, GrpcCode::Aborted).await;
    network.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_proposal_are_invalid_arguments() {
    let network = TestNetwork::start(&config(1)).await;
    let client = network.client(0).await;
    let sign = |bytes: &'static [u8]| SignedProposal {
        proposal_bytes: Bytes::from_static(bytes),
        signature: client.signer().sign(bytes),
    };
    for (case, signed) in [
        ("nothing", SignedProposal::default()),
        ("random bytes", sign(b"\xff\xfe\xfd random")),
        ("a proposal of random parts", sign(b"\x0a\x03abc\x12\x03def")),
    ] {
        expect(&client, case, &signed, GrpcCode::InvalidArgument, GrpcCode::InvalidArgument).await;
    }
    let request = EndorseRequest::default();
    let answer: Result<EndorseResponse, GrpcStatus> =
        client.connection().unary("/gateway.Gateway/Endorse", &request, None).await;
    assert_eq!(answer.expect_err("no proposal").code, GrpcCode::InvalidArgument);
    network.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn organizations_that_the_client_names_endorse_and_no_others() {
    let network = TestNetwork::start(&config(3)).await;
    let client = network.client(0).await;
    for (named, expected) in
        [(&["Org3MSP", "Org2MSP"][..], 0), (&["Org1MSP", "Org2MSP", "Org3MSP"], 0), (&["Org3MSP"], 10)]
    {
        let id = format!("asset-{}", named.len() + expected);
        let proposal = client
            .proposal(CHANNEL, "basic", "CreateAsset", &crate::common::args(&[&id, "blue", "5", "Ada", "300"]))
            .endorsing(named)
            .sign();
        let transaction = client.endorse(&proposal).await.expect("endorsements");
        client.submit(&transaction).await.expect("an orderer");
        let commit = client.commit_status(CHANNEL, proposal.tx_id()).await.expect("a commit");
        assert_eq!(commit.code, expected as i32, "{named:?}");
    }
    network.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn transient_data_reaches_no_envelope() {
    let network = TestNetwork::start(&config(2)).await;
    let client = network.client(0).await;
    let proposal = client
        .proposal(CHANNEL, "basic", "CreateAsset", &crate::common::args(&["a", "blue", "5", "Ada", "300"]))
        .transient("secret", Bytes::from_static(b"nobody else sees this"))
        .sign();
    let transaction = client.endorse(&proposal).await.expect("endorsements");
    let payload = transaction.payload();
    assert!(!payload.windows(6).any(|window| window == b"secret"));
    client.submit(&transaction).await.expect("an orderer");
    assert!(client.commit_status(CHANNEL, proposal.tx_id()).await.expect("a commit").is_valid());
    network.stop().await;
}
