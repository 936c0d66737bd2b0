//! Two copies of each peer's blocks and tables: either storage node may be killed under load, a copy moves, and a manager runs
//! no more storage nodes than there are copies.

use std::path::Path;
use std::time::{Duration, Instant};

use node::{ProcessRole, Ready};
use rustix::process::Signal;

use crate::support::load::{Load, end_with_all};
use crate::support::processes::{RESTART_TIMEOUT, back, processes, send};
use crate::support::{Manager, Network, run, text};

const CLIENTS: usize = 4;
/// The number of writes after which a network counts as at work.
const SOME: usize = 40;

fn storage(dir: &Path, name: &str) -> Ready {
    let mut processes = processes(dir).into_iter();
    processes.find(|process| process.role == ProcessRole::Storage && process.name == name).expect("it runs")
}

/// What each storage node has of org1, as the command reports it.
fn copies(dir: &Path) -> Vec<(String, String)> {
    let output = run(&["peer", "storage", "org1", "--dir", &dir.display().to_string(), "--json"]);
    let Ok(report) = serde_json::from_slice::<serde_json::Value>(&output.stdout) else { return Vec::new() };
    let nodes = report["nodes"].as_array().cloned().unwrap_or_default();
    let word = |node: &serde_json::Value, key: &str| node[key].as_str().unwrap_or_default().to_owned();
    nodes.iter().map(|node| (word(node, "name"), word(node, "copy"))).collect()
}

/// Waits until two storage nodes have complete copies, and returns their names and that of the third node.
async fn two_complete(dir: &Path) -> ([String; 2], String) {
    let start = Instant::now();
    loop {
        let copies = copies(dir);
        let (complete, others): (Vec<_>, Vec<_>) = copies.iter().cloned().partition(|(_, copy)| copy == "complete");
        if let ([(one, _), (two, _)], [(other, _)]) = (&complete[..], &others[..]) {
            return ([one.clone(), two.clone()], other.clone());
        }
        assert!(start.elapsed() < RESTART_TIMEOUT, "{copies:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn either_storage_node_may_be_killed_and_a_copy_moves_under_load() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("network");
    let copied = ["--orgs", "1", "--isolate", "--storage-copies", "2", "--storage-nodes", "3"];
    let network = Network::start(&dir, &[&copied[..], &["--policy", "all"]].concat());
    two_complete(&dir).await;
    let load = Load::start(&dir, 1, CLIENTS);
    load.progress(SOME, "at first").await;
    for turn in 0..2 {
        let killed = &two_complete(&dir).await.0[turn];
        let process = storage(&dir, killed);
        let start = Instant::now();
        send(process.process, Signal::KILL);
        load.progress(1, "with one copy").await;
        println!("{killed} killed: the next write was acknowledged after {:?}", start.elapsed());
        load.progress(SOME, "with one copy").await;
        back(&dir, &process).await;
        two_complete(&dir).await;
        load.progress(SOME, "with two copies again").await;
    }
    assert_eq!(load.failure(), None, "requests waited, and none failed");
    let ([from, stays], to) = two_complete(&dir).await;
    let shown = dir.display().to_string();
    let start = Instant::now();
    let moved = run(&["peer", "storage", "org1", "--dir", &shown, "--move", &from, &to]);
    assert!(moved.status.success(), "{}", text(&moved));
    println!("moved in {:?}: {}", start.elapsed(), text(&moved));
    let (complete, _) = two_complete(&dir).await;
    assert!(complete.contains(&stays) && complete.contains(&to), "{complete:?}");
    load.progress(SOME, "after the move").await;
    // The node that was left is not needed any more.
    let left = storage(&dir, &from);
    send(left.process, Signal::STOP);
    load.progress(SOME, "without the node that was left").await;
    send(left.process, Signal::CONT);
    let told = load.end().await;
    end_with_all(network, &dir, 1, &told).await;
}

/// Waits until exactly this storage node is stopped and no process of it is left.
async fn stopped(dir: &Path, name: &str) {
    let start = Instant::now();
    loop {
        let stopped = std::fs::read_to_string(dir.join("storage-stopped.json")).unwrap_or_default();
        let runs = processes(dir).into_iter().any(|process| process.name == name);
        if stopped.contains(&format!("[\"{name}\"]")) && !runs {
            return;
        }
        let events = text(&run(&["pool", "events", "--dir", &dir.display().to_string()]));
        assert!(
            start.elapsed() < RESTART_TIMEOUT,
            "{name} is to stop, stopped are {stopped}, it runs: {runs}\n{events}"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_stops_a_storage_node_without_a_copy_and_starts_it_when_one_is_lost() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("network");
    let shown = dir.display().to_string();
    let copied = ["--orgs", "1", "--isolate", "--storage-copies", "2", "--storage-nodes", "3"];
    let network = Network::start(&dir, &copied);
    let ([first, second], spare) = two_complete(&dir).await;
    let manager = Manager::start(&dir, &["--hot", "100", "--storage-idle", "1"]);
    stopped(&dir, &spare).await;
    let load = Load::start(&dir, 1, CLIENTS);
    load.progress(SOME, "with two of three storage nodes").await;

    let lost = storage(&dir, &first);
    send(lost.process, Signal::STOP);
    let start = Instant::now();
    loop {
        let complete: Vec<_> = copies(&dir).into_iter().filter(|(_, copy)| copy == "complete").collect();
        if complete.len() == 2 && complete.iter().all(|(name, _)| *name != first) {
            break;
        }
        let events = || text(&run(&["pool", "events", "--dir", &shown]));
        assert!(start.elapsed() < RESTART_TIMEOUT, "{complete:?}\n{}", events());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    load.progress(SOME, "with a copy at the node that was started").await;
    let events = text(&run(&["pool", "events", "--dir", &shown]));
    assert!(events.contains(&format!("start {spare}")) && events.contains("because"), "{events}");
    // What was frozen has no copy any more, so it is to go; it hears of that when it wakes.
    send(lost.process, Signal::CONT);
    stopped(&dir, &first).await;

    // An operator moves a copy there. The process runs for that, and is not stopped while no report says so.
    let moved = run(&["peer", "storage", "org1", "--dir", &shown, "--move", &second, &first]);
    assert!(moved.status.success() && text(&moved).contains("was stopped, and starts"), "{}", text(&moved));
    stopped(&dir, &second).await;
    manager.kill();
    load.progress(SOME, "after the move").await;
    assert_eq!(load.failure(), None, "requests waited, and none failed");
    let told = load.end().await;
    end_with_all(network, &dir, 1, &told).await;
}
