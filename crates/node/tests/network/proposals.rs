//! What the gateway makes of good proposals. Its answers to bad ones are in [`answers`](super::answers).

use crate::common::{CHANNEL, TestNetwork, args, config};
use base::Bytes;

#[tokio::test(flavor = "multi_thread")]
async fn organizations_that_the_client_names_endorse_and_no_others() {
    let network = TestNetwork::start(&config(3)).await;
    let client = network.client(0).await;
    for (named, expected) in
        [(&["Org3MSP", "Org2MSP"][..], 0), (&["Org1MSP", "Org2MSP", "Org3MSP"], 0), (&["Org3MSP"], 10)]
    {
        let id = format!("asset-{}", named.len() + expected);
        let proposal = client
            .proposal(CHANNEL, "basic", "CreateAsset", &args(&[&id, "blue", "5", "Ada", "300"]))
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
        .proposal(CHANNEL, "basic", "CreateAsset", &args(&["a", "blue", "5", "Ada", "300"]))
        .transient("secret", Bytes::from_static(b"nobody else sees this"))
        .sign();
    let transaction = client.endorse(&proposal).await.expect("endorsements");
    let payload = transaction.payload();
    assert!(!payload.windows(6).any(|window| window == b"secret"));
    client.submit(&transaction).await.expect("an orderer");
    assert!(client.commit_status(CHANNEL, proposal.tx_id()).await.expect("a commit").is_valid());
    network.stop().await;
}
