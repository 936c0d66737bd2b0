//! Changes of the channel's configuration over the ports that Fabric's tools use.

use std::time::Duration;

use base::{Bytes, rt};
use gateway::client::{GatewayClient, GrpcConnection, StartPosition};
use identity::Signer;
use identity::policy::{MetaRule, implicit_meta_to_wire};
use ledger::config::sign_update;
use ledger::{Block, ChannelConfig};
use prost::Message as _;
use proto::common::{Config, ConfigGroup, Envelope, Payload, Status};
use proto::orderer::{BroadcastResponse, DeliverResponse, SeekInfo, deliver_response};
use proto::protos::{ChaincodeActionPayload, Transaction};

use crate::common::{CHANNEL, TestNetwork, args, config, endorsed};

/// A block as the orderer's port delivers it.
async fn fetch(orderer: &GrpcConnection, client: &GatewayClient, position: StartPosition) -> Block {
    let position = Some(position.position());
    let seek = SeekInfo { start: position, stop: position, ..Default::default() };
    let (mut requests, mut responses) = orderer.open("/orderer.AtomicBroadcast/Deliver", None).await.expect("a stream");
    requests.send(&client.seek_envelope(CHANNEL, &seek)).await.expect("an open stream");
    let answer: DeliverResponse = responses.next().await.expect("a block").expect("a block");
    let Some(deliver_response::Type::Block(block)) = answer.r#type else { panic!("{answer:?}") };
    Block::parse(&block.encode_to_vec().into()).expect("the orderer wrote it")
}

/// The newest configuration, as `peer channel fetch config` finds it.
async fn fetch_config(orderer: &GrpcConnection, client: &GatewayClient) -> ChannelConfig {
    let newest = fetch(orderer, client, StartPosition::Newest).await;
    let last_config = newest.orderer_metadata().expect("the orderer signed it").last_config;
    let block = fetch(orderer, client, StartPosition::Block(last_config)).await;
    ChannelConfig::from_block(&block).expect("it is a configuration block")
}

async fn broadcast(orderer: &GrpcConnection, envelope: &Bytes) -> BroadcastResponse {
    let (mut requests, mut responses) =
        orderer.open("/orderer.AtomicBroadcast/Broadcast", None).await.expect("a stream");
    requests.send(&Envelope::decode(envelope.clone()).expect("made here")).await.expect("an open stream");
    responses.next().await.expect("an answer").expect("an answer")
}

/// The number of endorsements in a transaction's payload.
fn endorsements(payload: &Bytes) -> usize {
    let payload = Payload::decode(payload.clone()).expect("a payload");
    let transaction = Transaction::decode(payload.data).expect("a transaction");
    let action = ChaincodeActionPayload::decode(transaction.actions[0].payload.clone()).expect("an action");
    action.action.expect("it was endorsed").endorsements.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn members_change_the_endorsement_policy_and_everybody_follows() {
    let network = TestNetwork::start(&config(2)).await;
    let client = network.client(0).await;
    let orderer = GrpcConnection::connect(&network.running.orderer_target()).await.expect("the orderer's port");
    let transaction = endorsed(&client, "before").await;
    assert_eq!(endorsements(transaction.payload()), 2, "a majority of two");
    client.submit(&transaction).await.expect("an orderer");
    assert!(client.commit_status(CHANNEL, transaction.tx_id()).await.expect("a commit").is_valid());

    let current = fetch_config(&orderer, &client).await;
    assert_eq!(current.sequence(), 0);
    let any = |root: &mut ConfigGroup| {
        let application = root.groups.get_mut("Application").expect("every channel has it");
        let policy = application.policies.get_mut("Endorsement").expect("every channel has it");
        policy.policy = Some(implicit_meta_to_wire(MetaRule::Any, "Endorsement"));
    };
    let mut root = current.decode_root().expect("it was decoded before");
    any(&mut root);
    let update = current.update_to(&root).expect("it was decoded before").expect("it changes something");
    let admins = [network.running.admin(0), network.running.admin(1)];
    let [one, other]: [&Signer; 2] = admins.each_ref();

    let alone = broadcast(&orderer, &sign_update(&update, &[one])).await;
    assert_eq!(alone.status(), Status::BadRequest, "{alone:?}");
    assert!(alone.info.contains("do not satisfy its modification policy /Channel/Application/Admins"), "{alone:?}");
    let both = broadcast(&orderer, &sign_update(&update, &[one, other])).await;
    assert_eq!(both.status(), Status::Success, "{both:?}");

    // The gateway asks as many endorsers as the new policy needs, once its peer has committed the configuration.
    let follow = async {
        for attempt in 0.. {
            let transaction = endorsed(&client, &format!("after-{attempt}")).await;
            if endorsements(transaction.payload()) == 1 {
                return transaction;
            }
            rt::sleep(Duration::from_millis(20)).await;
        }
        unreachable!("the loop ends by returning")
    };
    let transaction = rt::timeout(Duration::from_secs(30), follow).await.expect("the gateway follows");
    client.submit(&transaction).await.expect("an orderer");
    let commit = client.commit_status(CHANNEL, transaction.tx_id()).await.expect("a commit");
    assert!(commit.is_valid(), "{commit:?}");
    assert_eq!(fetch_config(&orderer, &client).await.sequence(), 1);
    // Regression: the peers' system contract went on answering with the first configuration.
    let arguments = args(&[CHANNEL]);
    let block = client.evaluate(&client.proposal(CHANNEL, "cscc", "GetConfigBlock", &arguments).sign()).await;
    let block = Block::parse(&block.expect("a block")).expect("the peer stored it");
    assert_eq!(ChannelConfig::from_block(&block).expect("it is a configuration block").sequence(), 1);
    let config = client.evaluate(&client.proposal(CHANNEL, "cscc", "GetChannelConfig", &arguments).sign()).await;
    let config = Config::decode(config.expect("a configuration")).expect("the peer stored it");
    assert_eq!(config.sequence, 1);
    let stale = broadcast(&orderer, &sign_update(&update, &[one, other])).await;
    assert_eq!(stale.status(), Status::BadRequest, "{stale:?}");
    network.stop().await;
}
