//! Checks that a network in one process consists of the same parts as a network of several processes.

use std::sync::Arc;

use crate::common::{TestNetwork, args, config};
use base::rt;
use base::rt::net::{GatherList, rpc};
use chain::remote::messages::Welcome;
use chain::remote::{PROTOCOL_VERSIONS, PeerTarget, RemotePeer, RemotePeerConfig};
use node::Network;
use node::config::PeerMode;
use prost::Message as _;
use wire::VersionRange;
use wire::hello::HelloAnswer;

const WRITES: usize = 20;

async fn write(network: &TestNetwork, round: &str) {
    let client = network.client(0).await;
    for number in 0..WRITES {
        let args = args(&[&format!("{round}{number}"), "value"]);
        let committed = client.transact(crate::common::CHANNEL, "ycsb", "update", &args).await.expect("it commits");
        assert!(committed.commit.is_valid());
    }
}

async fn read(network: &TestNetwork, round: &str) {
    for organization in 0..2 {
        let client = network.client(organization).await;
        for number in 0..WRITES {
            let args = args(&[&format!("{round}{number}")]);
            let proposal = client.proposal(crate::common::CHANNEL, "ycsb", "read", &args).sign();
            assert_eq!(client.evaluate(&proposal).await.expect("it is there"), "value", "{round}{number}");
        }
    }
}

/// Creates an asset, transfers it often enough for more than one page of history, and deletes it.
async fn change_asset(network: &TestNetwork, changes: &mut Vec<(String, Option<String>)>) {
    let client = network.client(0).await;
    let owners = (0..40).map(|number| format!("owner{number}"));
    let mut calls = vec![("CreateAsset", vec!["thing".to_owned(), "red".into(), "1".into(), "Ann".into(), "7".into()])];
    calls.extend(owners.map(|owner| ("TransferAsset", vec!["thing".to_owned(), owner])));
    calls.push(("DeleteAsset", vec!["thing".to_owned()]));
    for (function, call) in calls {
        let call: Vec<&str> = call.iter().map(String::as_str).collect();
        let start = std::time::Instant::now();
        let committed = loop {
            // A peer that does not have the previous change yet does not endorse this one.
            match client.transact(crate::common::CHANNEL, "basic", function, &args(&call)).await {
                Ok(committed) if committed.commit.is_valid() => break committed,
                refused => assert!(start.elapsed().as_secs() < 30, "{refused:?}"),
            }
            rt::sleep(std::time::Duration::from_millis(5)).await;
        };
        let owner = match function {
            "DeleteAsset" => None,
            "CreateAsset" => Some("Ann".to_owned()),
            _ => Some(call[1].to_owned()),
        };
        changes.push((committed.tx_id, owner));
    }
}

/// Checks that every peer knows every change, newest first.
async fn check_history(network: &TestNetwork, changes: &[(String, Option<String>)]) {
    for organization in 0..2 {
        let client = network.client(organization).await;
        let ask = || async {
            let proposal =
                client.proposal(crate::common::CHANNEL, "basic", "GetAssetHistory", &args(&["thing"])).sign();
            let answer = client.evaluate(&proposal).await.expect("it has a history");
            let answer: Vec<serde_json::Value> = serde_json::from_slice(&answer).expect("a JSON array");
            let told = answer.into_iter().map(|change| {
                assert!(change["timestamp"].as_str().is_some_and(|time| time.starts_with("20") && time.ends_with('Z')));
                let owner = change["record"]["Owner"].as_str().expect("an owner").to_owned();
                let is_delete = change["isDelete"].as_bool().expect("one or the other");
                (change["txId"].as_str().expect("an id").to_owned(), (!is_delete).then_some(owner))
            });
            told.rev().collect::<Vec<_>>()
        };
        // The other peer may be some blocks behind.
        let start = std::time::Instant::now();
        while ask().await != changes {
            assert!(start.elapsed().as_secs() < 30, "organisation {organization}: {:?}", ask().await);
            rt::sleep(std::time::Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_process_reads_and_writes_remote_memory_with_verbs() {
    let network = TestNetwork::start(&config(2)).await;
    let counts = |network: &TestNetwork| [0, 1].map(|peer| network.running.verbs(peer).expect("it is disaggregated"));
    // A record that is written before the memory node has granted a section stays in storage.
    let section = network.running.network().config().pool.section_bytes;
    let start = std::time::Instant::now();
    write(&network, "early").await;
    while network.running.memory_granted().iter().sum::<u64>() < 2 * section {
        assert!(start.elapsed().as_secs() < 30, "no memory: {:?}", network.running.memory_granted());
        rt::sleep(std::time::Duration::from_millis(20)).await;
    }
    let before = counts(&network);
    write(&network, "first").await;
    for (peer, before) in before.iter().enumerate() {
        // At least a write of each record and a swap of its slot, and a read to find the slot.
        let wanted = WRITES as u64;
        let start = std::time::Instant::now();
        loop {
            let now = counts(&network)[peer];
            let writes = now.writes - before.writes;
            let swaps = now.compare_swaps - before.compare_swaps;
            if writes >= wanted && swaps >= wanted && now.reads > before.reads {
                break;
            }
            assert!(start.elapsed().as_secs() < 30, "peer {peer}: {now:?} after {before:?}");
            rt::sleep(std::time::Duration::from_millis(20)).await;
        }
    }
    let granted = network.running.memory_granted();
    assert_eq!(granted.len(), 2, "there are two memory nodes");
    assert!(granted.iter().sum::<u64>() >= 2 * section, "each peer has a section of its own: {granted:?}");
    network.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_may_change_its_form_at_every_start() {
    let mut network = TestNetwork::start(&config(2)).await;
    let mut written = vec!["disaggregated0".to_owned()];
    write(&network, "disaggregated0").await;
    let mut changes = Vec::new();
    change_asset(&network, &mut changes).await;
    check_history(&network, &changes).await;
    for (round, form) in [PeerMode::Monolithic, PeerMode::Disaggregated, PeerMode::Monolithic].into_iter().enumerate() {
        let TestNetwork { running, folder } = network;
        running.stop().await.expect("a clean stop");
        let mut config = config(2);
        config.pool.form = form;
        let opened = Network::open_with(folder.path(), &config).await.expect("the same network");
        network = TestNetwork { running: opened.run().await.expect("it starts"), folder };
        assert_eq!(network.running.verbs(0).is_some(), form == PeerMode::Disaggregated);
        for earlier in &written {
            read(&network, earlier).await;
        }
        check_history(&network, &changes).await;
        change_asset(&network, &mut changes).await;
        check_history(&network, &changes).await;
        let name = format!("round{round}");
        write(&network, &name).await;
        written.push(name);
    }
    network.stop().await;
}

/// A peer of another release.
struct Stranger;

impl rpc::RpcHandler for Stranger {
    fn request(&self, _: GatherList) -> rpc::ResponseFuture {
        let newer = HelloAnswer::refuse(VersionRange::only(PROTOCOL_VERSIONS.newest() + 1));
        let welcome = Welcome { answer: newer.encode().to_vec().into(), channels: Vec::new() };
        Box::pin(async move { Ok(welcome.encode_to_vec().into()) })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_of_different_releases_refuse_each_other_and_say_so() {
    let mut listener = rt::net::listen("a peer of another release").await.expect("the name is free");
    let server = rt::spawn(async move {
        while let Ok(link) = listener.accept().await {
            drop(rt::spawn(rpc::serve(link, Arc::new(Stranger), 1, rt::CancellationToken::new())));
        }
    });
    let peer = RemotePeer::new(RemotePeerConfig {
        parties: rt::net::Parties::anyone(),
        name: "compute-org1".to_owned(),
        target: PeerTarget::Node("a peer of another release".to_owned()),
        definitions: Default::default(),
    });
    let start = std::time::Instant::now();
    let problem = loop {
        let problem = peer.problem().map(|problem| problem.to_string()).unwrap_or_default();
        if problem.contains("version") {
            break problem;
        }
        assert!(start.elapsed().as_secs() < 30, "{problem}");
        rt::sleep(std::time::Duration::from_millis(10)).await;
    };
    assert!(problem.contains("upgrade this side, which is older"), "{problem}");
    drop(server.abort_on_drop());
}
