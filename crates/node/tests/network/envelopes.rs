//! The orderer's own port. The answers to bad envelopes are in [`answers`](super::answers).

use crate::common::{CHANNEL, TestNetwork, config, endorsed, signed};
use base::Bytes;

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
