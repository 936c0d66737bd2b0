//! The settings for keys that many transactions want.

use gateway::client::{EndorsedTransaction, GatewayClient, GrpcCode};

use crate::common::{CHANNEL, TestNetwork, args, config, endorsed};

async fn updated(client: &GatewayClient, color: &str) -> EndorsedTransaction {
    let update = args(&["ann", color, "5", "Ada", "300"]);
    client.endorse(&client.proposal(CHANNEL, "basic", "UpdateAsset", &update).sign()).await.expect("endorsements")
}

/// Submits through the first gateway and waits until the peer of each gateway has committed: both endorse what follows.
async fn commit(clients: &[GatewayClient; 2], transaction: &EndorsedTransaction) {
    clients[0].submit(transaction).await.expect("it is ordered");
    for client in clients {
        assert!(client.commit_status(CHANNEL, transaction.tx_id()).await.expect("a commit").is_valid());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn submit_answers_a_transaction_that_can_never_be_valid_at_once() {
    let mut config = config(2);
    (config.ordering.early_abort, config.ordering.reorder) = (true, true);
    let network = TestNetwork::start(&config).await;
    let clients = [network.client(0).await, network.client(1).await];
    let client = &clients[0];
    commit(&clients, &endorsed(client, "ann").await).await;
    let (late, one) = (updated(client, "red").await, updated(client, "green").await);
    commit(&clients, &one).await;
    // The rows of a block are noted before the next block is committed.
    commit(&clients, &endorsed(client, "bob").await).await;

    let aborted = client.submit(&late).await.expect_err("it can never be valid");
    assert_eq!(aborted.code, GrpcCode::Aborted);
    let text = "MVCC_READ_CONFLICT: chaincode basic read a key";
    assert!(aborted.message.starts_with(text) && aborted.message.ends_with("endorse it again"), "{}", aborted.message);
    let detail = &aborted.details[0];
    assert_eq!((&detail.msp_id[..], &detail.message), ("Org1MSP", &aborted.message));
    assert!(!detail.address.is_empty());
    // As in Fabric: its own write is the newer version.
    client.submit(&one).await.expect("it is ordered once more");
    commit(&clients, &updated(client, "red").await).await;
    network.stop().await;
}
