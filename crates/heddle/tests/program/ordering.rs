//! A network with several orderers, on passive memory nodes or each with a log of its own: whichever of them leads may be killed
//! under load, all of them and their memory may be killed at once, and nothing is lost that a client was told.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::load::{Load, end_with_all};
use crate::support::{Network, run, text};
use node::{Endpoints, Ready};
use rustix::process::{Pid, Signal, kill_process};

const CLIENTS: usize = 8;
/// For a process to be started again and ready, on a machine with much else to do.
const RESTART_PATIENCE: Duration = Duration::from_secs(60);
/// Writes after which a network counts as at work.
const SOME: usize = 40;

fn kill(process: u32) {
    let pid = Pid::from_raw(i32::try_from(process).expect("a process's number")).expect("not zero");
    // It may have ended by itself because another one has.
    let _ = kill_process(pid, Signal::KILL);
}

fn processes(dir: &Path) -> Vec<Ready> {
    Endpoints::load(dir).expect("the network has said where it is").processes
}

/// Kills a process.
fn kill_named(dir: &Path, name: &str) -> Ready {
    let killed = processes(dir).into_iter().find(|process| process.name == name);
    let killed = killed.unwrap_or_else(|| panic!("there is no {name}"));
    kill(killed.process);
    killed
}

/// Waits until it is back.
async fn back(dir: &Path, killed: &Ready) {
    let start = Instant::now();
    loop {
        let known = Endpoints::load(dir).map(|endpoints| endpoints.processes).unwrap_or_default();
        if known.iter().any(|process| process.name == killed.name && process.process != killed.process) {
            return;
        }
        assert!(start.elapsed() < RESTART_PATIENCE, "{} is not started again", killed.name);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn any_orderer_on_memory_nodes_may_be_killed_under_load_and_nothing_told_is_lost() {
    any_orderer_may_be_killed("sift", &["log-1", "log-2", "log-3"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn any_orderer_on_raft_may_be_killed_under_load_and_nothing_told_is_lost() {
    any_orderer_may_be_killed("raft", &[]).await;
}

async fn any_orderer_may_be_killed(engine: &str, memory: &[&str]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("network");
    let network = Network::start(&dir, &["--orgs", "2", "--isolate", "--monolithic", "--ordering", engine]);
    let names: Vec<String> = processes(&dir).into_iter().map(|process| process.name).collect();
    let orderers = ["orderer", "orderer-2", "orderer-3"];
    let others = ["compute-org1", "compute-org2", "gateway-org1", "gateway-org2"];
    assert_eq!(names, [memory, &orderers[..], &others[..]].concat());

    let load = Load::start(&dir, 2, CLIENTS);
    load.progress(SOME, "at first").await;
    // One of them leads.
    for name in orderers.iter().chain(memory.first()) {
        let killed = kill_named(&dir, name);
        load.progress(SOME, &format!("after the end of {name}")).await;
        back(&dir, &killed).await;
        load.progress(SOME, &format!("with {name} back")).await;
    }

    // All of them at once, their memory with them, and their supervisor.
    let all = processes(&dir);
    network.kill();
    all.iter().for_each(|process| kill(process.process));
    let told = load.end().await;
    let network = Network::start(&dir, &["--isolate"]);
    end_with_all(network, &dir, 2, &told).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn orderers_of_one_process_keep_one_chain_on_memory_nodes() {
    orderers_of_one_process_keep_one_chain("sift").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn orderers_of_one_process_keep_one_chain_on_raft() {
    orderers_of_one_process_keep_one_chain("raft").await;
}

async fn orderers_of_one_process_keep_one_chain(engine: &str) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("network");
    let shown = dir.display().to_string();
    let network = Network::start(&dir, &["--orgs", "1", "--ordering", engine]);
    let load = Load::start(&dir, 1, CLIENTS);
    load.progress(SOME, "at first").await;
    network.kill();
    let told = load.end().await;
    let verify = run(&["ledger", "verify", "--dir", &shown]);
    assert!(verify.status.success(), "{}", text(&verify));
    assert!(text(&verify).contains("orderer-3"), "{}", text(&verify));
    let network = Network::start(&dir, &[]);
    end_with_all(network, &dir, 1, &told).await;
}

#[test]
fn ordering_is_chosen_when_a_network_is_made() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("network").display().to_string();
    let refused = |arguments: &[&str], expected: &[&str]| {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", text(&output));
        for part in expected {
            assert!(text(&output).contains(part), "{arguments:?}: {}", text(&output));
        }
    };
    let up = |more: &[&'static str]| [&["up", "--any-ports", "--orgs", "1", "--dir", &dir][..], more].concat();
    let config = folder.path().join("volatile.toml");
    std::fs::write(&config, "[ordering]\nengine = \"raft\"\nvolatile = true\n").expect("it can be written");
    let config = config.display().to_string();
    refused(&[&up(&[])[..], &["--config", &config]].concat(), &["ordering.volatile is true", "choose \"sift\""]);
    let config = folder.path().join("even.toml");
    std::fs::write(&config, "[ordering]\nengine = \"sift\"\nmemory_nodes = 2\n").expect("it can be written");
    let config = config.display().to_string();
    refused(&[&up(&[])[..], &["--config", &config]].concat(), &["ordering.memory_nodes is 2", "odd number"]);
    let network = Network::start(Path::new(&dir), &["--orgs", "1"]);
    network.down();
    refused(&up(&["--ordering", "sift"]), &["ordering.engine was Solo", "cannot be changed to Sift"]);
}
