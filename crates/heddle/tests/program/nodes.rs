//! Tests peers with several compute nodes: when the primary is killed or stopped under load, another node takes over,
//! and no acknowledged write is lost.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::support::load::{Load, check, connect, end_with_all};
use crate::support::{Network, run, text};
use node::control::{ComputeReport, request_node};
use node::{Endpoints, ProcessRole};
use rustix::process::{Pid, Signal, kill_process};

const CLIENTS: usize = 8;
/// Time limit for a peer to have a primary and followers again, on a busy machine.
const FAILOVER_TIMEOUT: Duration = Duration::from_secs(60);
/// The number of writes after which a network counts as at work.
const SOME: usize = 40;

fn send(process: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(process).expect("a process's number")).expect("not zero");
    kill_process(pid, signal).expect("it runs");
}

fn folders(dir: &Path, organization: &str, nodes: usize) -> Vec<PathBuf> {
    let name = |number| match number {
        1 => format!("compute-{organization}"),
        _ => format!("compute-{organization}-{number}"),
    };
    (1..=nodes).map(|number| dir.join("nodes").join(name(number))).collect()
}

async fn reports(folders: &[PathBuf]) -> Vec<ComputeReport> {
    let mut reports = Vec::new();
    for folder in folders {
        reports.extend(request_node(folder).await.ok());
    }
    reports
}

/// Waits until the peer has a primary with an epoch above this one, and followers.
async fn primary_after(folders: &[PathBuf], epoch: u64) -> ComputeReport {
    let start = Instant::now();
    loop {
        let reports = reports(folders).await;
        let readers = reports.iter().filter(|report| report.role == "follower").count();
        let primary = reports.iter().find(|report| report.role == "primary");
        if let Some(primary) = primary
            && primary.epoch > Some(epoch)
            && readers + 1 == folders.len()
        {
            return primary.clone();
        }
        assert!(start.elapsed() < FAILOVER_TIMEOUT, "no primary after epoch {epoch} with its readers: {reports:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Repeats a command until it succeeds and shows all of these words.
async fn shows(command: &[&str], words: &[&str]) {
    let start = Instant::now();
    loop {
        let output = run(command);
        if output.status.success() && words.iter().all(|word| text(&output).contains(word)) {
            return;
        }
        assert!(start.elapsed() < FAILOVER_TIMEOUT, "{command:?} fails or does not show {words:?}: {}", text(&output));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_may_be_killed_under_load_and_nothing_told_is_lost() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("network");
    let shown = dir.display().to_string();
    let network = Network::start(&dir, &["--orgs", "2", "--isolate", "--compute-nodes", "2"]);
    let endpoints = Endpoints::load(&dir).expect("the network has said where it is");
    let computes = endpoints.processes.iter().filter(|process| process.role == ProcessRole::Compute);
    let names: Vec<&str> = computes.map(|process| process.name.as_str()).collect();
    assert_eq!(names.join(" "), "compute-org1 compute-org1-2 compute-org2 compute-org2-2");

    let load = Load::start(&dir, 2, CLIENTS);
    load.progress(SOME, "at first").await;
    let nodes = folders(&dir, "org1", 2);
    let mut primary = primary_after(&nodes, 0).await;
    for round in 0..3 {
        send(primary.process, Signal::KILL);
        let next = primary_after(&nodes, primary.epoch.expect("it is the primary")).await;
        // Most often it is another node; the killed one is restarted at once.
        println!("round {round}: {} after {}", next.name, primary.name);
        load.progress(SOME, "after the end of a primary").await;
        primary = next;
    }

    // A primary that only stands still is replaced too, and finds out when it wakes.
    send(primary.process, Signal::STOP);
    let others: Vec<PathBuf> = nodes.iter().filter(|folder| !folder.ends_with(&primary.name)).cloned().collect();
    let epoch = primary.epoch.expect("it is the primary");
    let start = Instant::now();
    while !reports(&others).await.iter().any(|report| report.epoch > Some(epoch)) {
        assert!(start.elapsed() < FAILOVER_TIMEOUT, "nobody takes the place of a primary that stands still");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    load.progress(SOME, "beside a primary that stands still").await;
    send(primary.process, Signal::CONT);
    let next = primary_after(&nodes, epoch).await;
    assert_ne!(next.name, primary.name, "the one that was stopped is a reader now");
    load.progress(SOME, "after it woke").await;

    // The budget belongs to the peer, whichever of its nodes is the primary.
    shows(&["peer", "memory", "org1", "--dir", &shown, "--set", "64MiB"], &[]).await;
    send(next.process, Signal::KILL);
    primary_after(&nodes, next.epoch.expect("it is the primary")).await;
    shows(&["peer", "memory", "org1", "--dir", &shown], &["64 MiB"]).await;
    // A follower that has fallen behind joins again, and waits meanwhile.
    shows(&["peer", "nodes", "org1", "--dir", &shown], &["primary", "follower"]).await;

    let told = load.end().await;
    end_with_all(network, &dir, 2, &told).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_has_signatures_verified_by_the_other_compute_node() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("network");
    let shown = dir.display().to_string();
    let config = dir.with_extension("toml");
    std::fs::write(&config, "[pool]\noffload = \"always\"\n").expect("it can be written");
    let config = config.display().to_string();
    let network = Network::start(&dir, &["--orgs", "1", "--isolate", "--compute-nodes", "2", "--config", &config]);
    let nodes = folders(&dir, "org1", 2);
    let primary = primary_after(&nodes, 0).await;
    let load = Load::start(&dir, 1, CLIENTS);
    let start = Instant::now();
    loop {
        load.progress(SOME, "beside offloaded verification").await;
        let reports = reports(&nodes).await;
        let of = |role: &str| reports.iter().find(|report| report.role == role);
        // The primary may have changed.
        if of("primary").is_some_and(|primary| primary.offloaded > 0)
            && of("follower").is_some_and(|follower| follower.verified_for_primary > 0)
        {
            break;
        }
        assert!(start.elapsed() < FAILOVER_TIMEOUT, "nothing is offloaded: {reports:?}, after {primary:?}");
    }
    let output = run(&["peer", "nodes", "org1", "--dir", &shown]);
    let said = text(&output);
    assert!(said.contains("transactions verified by others") && said.contains("verified for others"), "{said}");
    let told = load.end().await;
    end_with_all(network, &dir, 1, &told).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_one_process_too_readers_answer_beside_the_primary() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("network");
    let network = Network::start(&dir, &["--orgs", "1", "--compute-nodes", "3"]);
    let nodes = folders(&dir, "org1", 3);
    primary_after(&nodes, 0).await;
    let load = Load::start(&dir, 1, CLIENTS);
    load.progress(SOME, "with three compute nodes").await;
    let told = load.end().await;
    network.settle().await;
    let (client, channel) = connect(&dir, 1).await.expect("its gateway is ready");
    // More often than there are nodes, so that each is asked.
    for _ in 0..4 {
        for write in &told {
            check(&client, &channel, write).await.unwrap_or_else(|error| panic!("{error}"));
        }
    }
    network.down();
    // The data is the same in all forms.
    let network = Network::start(&dir, &["--monolithic"]);
    end_with_all(network, &dir, 1, &told).await;
}

/// A peer that was planned with one compute node, as every network is by default.
#[tokio::test(flavor = "multi_thread")]
async fn compute_nodes_are_added_and_removed_under_load_and_stay_added() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("network");
    let shown = dir.display().to_string();
    let network = Network::start(&dir, &["--orgs", "1", "--isolate"]);
    let nodes = folders(&dir, "org1", 2);
    let load = Load::start(&dir, 1, CLIENTS);
    load.progress(SOME, "at first").await;

    let added = run(&["peer", "add-node", "org1", "--dir", &shown]);
    assert!(added.status.success() && text(&added).contains("compute-org1-2"), "{}", text(&added));
    let primary = primary_after(&nodes, 0).await;
    assert_eq!(primary.name, "compute-org1", "an added node is no candidate");
    load.progress(SOME, "with a node that was added").await;

    // The supervisor restarts it like any other.
    let follower = request_node(&nodes[1]).await.expect("it runs");
    send(follower.process, Signal::KILL);
    let start = Instant::now();
    while !request_node(&nodes[1]).await.is_ok_and(|report| report.process != follower.process) {
        assert!(start.elapsed() < FAILOVER_TIMEOUT, "an added node that died is not started again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    primary_after(&nodes, 0).await;
    // The only candidate dies; the added node waits for it.
    send(primary.process, Signal::KILL);
    primary_after(&nodes, primary.epoch.expect("it is the primary")).await;
    load.progress(SOME, "after both were killed").await;
    let mut told = load.end().await;

    // It is part of the next plan.
    network.down();
    let network = Network::start(&dir, &["--isolate"]);
    primary_after(&nodes, 0).await;
    let load = Load::start(&dir, 1, CLIENTS);
    load.progress(SOME, "after a restart").await;
    let refused = run(&["peer", "remove-node", "compute-org1", "--dir", &shown]);
    assert!(!refused.status.success() && text(&refused).contains("compute-org1-2"), "{}", text(&refused));
    let removed = run(&["peer", "remove-node", "compute-org1-2", "--dir", &shown]);
    assert!(removed.status.success(), "{}", text(&removed));
    assert!(!nodes[1].exists());
    load.progress(SOME, "after the node has left").await;
    told.extend(load.end().await);
    end_with_all(network, &dir, 1, &told).await;
}
