//! A network in one process is made of the same parts as one of many processes.

use std::sync::Arc;

use crate::common::{TestNetwork, args, config};
use base::rt::net::call;
use base::{Bytes, rt};
use chain::remote::messages::Welcome;
use chain::remote::{RemotePeer, RemotePeerOptions, VERSION};
use node::Network;
use node::config::Form;
use prost::Message as _;

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

#[tokio::test(flavor = "multi_thread")]
async fn one_process_reads_and_writes_remote_memory_with_verbs() {
    let network = TestNetwork::start(&config(2)).await;
    let counts = |network: &TestNetwork| [0, 1].map(|peer| network.running.verbs(peer).expect("it is disaggregated"));
    let before = counts(&network);
    write(&network, "first").await;
    for (peer, before) in before.iter().enumerate() {
        // A write of each record at least, and a swap of its slot; to find the place for it, a read.
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
    let section = network.running.network().config().pool.section_bytes;
    assert!(granted.iter().sum::<u64>() >= 2 * section, "each peer has a section of its own: {granted:?}");
    network.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_may_change_its_form_at_every_start() {
    let mut network = TestNetwork::start(&config(2)).await;
    let mut written = vec!["disaggregated0".to_owned()];
    write(&network, "disaggregated0").await;
    for (round, form) in [Form::Monolithic, Form::Disaggregated, Form::Monolithic].into_iter().enumerate() {
        let TestNetwork { running, folder } = network;
        running.stop().await.expect("a clean stop");
        let mut config = config(2);
        config.pool.form = form;
        let opened = Network::open_with(folder.path(), &config).await.expect("the same network");
        network = TestNetwork { running: opened.run().await.expect("it starts"), folder };
        assert_eq!(network.running.verbs(0).is_some(), form == Form::Disaggregated);
        for earlier in &written {
            read(&network, earlier).await;
        }
        let name = format!("round{round}");
        write(&network, &name).await;
        written.push(name);
    }
    network.stop().await;
}

/// A peer of another release.
struct Stranger;

impl call::Handler for Stranger {
    fn request(&self, _: Bytes) -> call::Answer {
        let welcome = Welcome { version: VERSION + 1, channels: Vec::new() };
        Box::pin(async move { Ok(welcome.encode_to_vec().into()) })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_of_different_releases_refuse_each_other_and_say_so() {
    let mut listener = rt::net::listen("a peer of another release").await.expect("the name is free");
    let server = rt::spawn(async move {
        while let Ok(link) = listener.accept().await {
            drop(rt::spawn(call::serve(link, Arc::new(Stranger), 1, rt::Stop::new())));
        }
    });
    let peer = RemotePeer::new(RemotePeerOptions {
        name: "compute-org1".to_owned(),
        address: "a peer of another release".to_owned(),
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
    assert!(problem.contains("run the same release on both"), "{problem}");
    drop(server.abort_on_drop());
}
