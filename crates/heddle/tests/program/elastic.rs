//! Tests the manager with real processes: load is answered by larger quotas and more nodes, a killed manager changes
//! nothing, and the next one continues. Nothing here depends on how long that takes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base::Bytes;
use futures_util::future::join_all;

use crate::support::load::{Load, connect, end_with_all};
use crate::support::processes::{RESTART_TIMEOUT, send};
use crate::support::{Manager, Network, run, text};
use manager::{Action, ManagerRecord, NodeOrigin, PoolEvent, read_record};
use node::control::{MemoryReport, request_node};
use rustix::process::Signal;

const CLIENTS: usize = 8;
const SOME: usize = 40;
/// Three times as many bytes as the peer's first memory.
const RECORDS: usize = 384;
const VALUE_BYTES: usize = 32 << 10;
/// Time limit for a decision and its end, on a busy machine.
const DECISION_TIMEOUT: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(50);
/// How long something must not happen: several looks of a manager.
const LOOKED_FOR: Duration = Duration::from_secs(1);

fn record(dir: &Path) -> ManagerRecord {
    read_record(&dir.join("manager")).expect("it is whole").unwrap_or_default()
}

/// Waits until the manager's record is as it should be.
async fn recorded(dir: &Path, what: &str, is_so: impl Fn(&ManagerRecord) -> bool) -> ManagerRecord {
    let start = Instant::now();
    loop {
        let record = record(dir);
        if is_so(&record) {
            return record;
        }
        let logs = [dir.join("manager/heddle.log"), dir.join("manager.log")];
        let log: String = logs.iter().filter_map(|log| std::fs::read_to_string(log).ok()).collect();
        assert!(start.elapsed() < DECISION_TIMEOUT, "{what}: {record:#?}\n{log}");
        tokio::time::sleep(POLL).await;
    }
}

fn can_have_quotas() -> bool {
    let probe = cgroup::CpuGroup::make(&format!("heddle-test-{}", std::process::id()));
    probe.map(|group| group.remove()).is_ok()
}

fn is_open(record: &ManagerRecord) -> bool {
    record.peers.values().any(|peer| peer.open.iter().any(|open| !matches!(open.action, Action::SetMemory { .. })))
}

#[tokio::test(flavor = "multi_thread")]
async fn load_brings_quotas_and_nodes_and_calm_takes_them_back() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("network");
    let shown = dir.display().to_string();
    let config = dir.with_extension("toml");
    let has_quotas = can_have_quotas();
    let quota = if has_quotas { "[pool]\ncompute_cpu_percent = 30\n" } else { "" };
    std::fs::write(&config, quota).expect("it can be written");
    let network = Network::start(&dir, &["--orgs", "1", "--isolate", "--config", &config.display().to_string()]);
    let busy = ["--quota-min", "30", "--quota-max", "60", "--hot", "12", "--cold", "1"];
    let manager = Manager::start(&dir, &busy);
    let load = Load::start(&dir, 1, CLIENTS);

    // It dies in the middle of a launch; what it began is finished by the next one.
    let launching = |record: &ManagerRecord| {
        let opened = record.peers.values().flat_map(|peer| &peer.open);
        opened.map(|open| &open.action).any(|action| matches!(action, Action::Launch { .. }))
    };
    recorded(&dir, "no node is launched under load", launching).await;
    manager.kill();
    let before = record(&dir);
    if has_quotas {
        let first = before.events.front().expect("something was done");
        assert!(first.done.contains("quota"), "quotas come first: {:?}", before.events);
    }
    load.progress(SOME, "without a manager").await;
    assert_eq!(record(&dir), before, "nobody else writes the record");
    let second = Manager::start(&dir, &busy);
    let runs = |record: &ManagerRecord| !is_open(record) && record.incarnation > before.incarnation;
    let after = recorded(&dir, "the launch does not end", runs).await;
    let managed = after.peers["org1"].nodes.iter().filter(|(_, node)| node.origin == NodeOrigin::Managed);
    assert_eq!(managed.map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["compute-org1-2"], "{after:#?}");
    let node = dir.join("nodes/compute-org1-2");
    // It follows as soon as it has heard its primary, which is busy.
    let start = Instant::now();
    let report = loop {
        let report = request_node(&node).await.expect("it is ready");
        assert_ne!(report.role, "primary", "a launched node is never the primary");
        if report.role == "follower" {
            break report;
        }
        assert!(start.elapsed() < RESTART_TIMEOUT, "{report:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert!(report.load.is_some());
    load.progress(SOME, "with the launched node").await;

    let refused = run(&["pool", "manage", "--dir", &shown]);
    assert!(text(&refused).contains(&format!("process {}", second.process())), "{}", text(&refused));
    let top = text(&run(&["pool", "top", "--dir", &shown]));
    assert!(top.contains("launched") && top.contains("storage-org1") && top.contains("a manager runs"), "{top}");
    let events = text(&run(&["pool", "events", "--dir", &shown]));
    assert!(events.contains("launch compute-org1-2") && events.contains("because"), "{events}");
    second.kill();

    // Nobody asks for anything any more, and by these settings nothing is hot: the node goes.
    let told = load.end().await;
    let calm = ["--quota-min", "30", "--quota-max", "60", "--hot", "100", "--cold", "89", "--calm", "1"];
    let third = Manager::start(&dir, &calm);
    let gone = |record: &ManagerRecord| {
        !is_open(record) && record.peers["org1"].nodes.values().all(|node| node.origin != NodeOrigin::Managed)
    };
    recorded(&dir, "an idle node stays", gone).await;
    assert!(!node.exists(), "its files are gone");
    // Its process may still be listed for a moment: that does not make it a node of the plan.
    let looked = Instant::now();
    while looked.elapsed() < LOOKED_FOR {
        let nodes: Vec<String> = record(&dir).peers["org1"].nodes.keys().cloned().collect();
        assert_eq!(nodes, ["compute-org1"]);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    third.kill();
    end_with_all(network, &dir, 1, &told).await;
}

/// Reads all records, again and again, until `stop` is set.
async fn read_all(dir: std::path::PathBuf, stop: Arc<AtomicBool>) {
    let (client, channel) = connect(&dir, 1).await.expect("its gateway is ready");
    let mut record = 0;
    while !stop.load(Ordering::Relaxed) {
        let read = [Bytes::from(format!("record{record}"))];
        let proposal = client.proposal(&channel, "ycsb", "read", &read).sign();
        let found = client.evaluate(&proposal).await.expect("planned scaling fails no request");
        assert_eq!(found, value(record), "record {record}");
        record = (record + 1) % RECORDS;
    }
}

fn value(record: usize) -> Bytes {
    Bytes::from(format!("{record} ").repeat(VALUE_BYTES / 4))
}

fn memory(dir: &Path) -> MemoryReport {
    let output = run(&["peer", "memory", "org1", "--json", "--dir", &dir.display().to_string()]);
    assert!(output.status.success(), "{}", text(&output));
    serde_json::from_slice(&output.stdout).expect("a report")
}

/// Records of more bytes than the peer has memory are read again and again. Nothing but misses asks for memory here: the
/// same peer with a manager to whom misses cost nothing keeps what it has.
#[tokio::test(flavor = "multi_thread")]
async fn misses_bring_memory_and_nothing_else_does() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("network");
    let config = dir.with_extension("toml");
    let pool = "section_bytes = 1048576\nmemory_bytes = 67108864\npeer_bytes = 4194304\nmetadata_cache_bytes = 262144\ndata_cache_bytes = 1048576\n";
    std::fs::write(&config, format!("[pool]\n{pool}")).expect("it can be written");
    let network = Network::start(&dir, &["--orgs", "1", "--isolate", "--config", &config.display().to_string()]);
    let (client, channel) = connect(&dir, 1).await.expect("its gateway is ready");
    for some in (0..RECORDS).collect::<Vec<_>>().chunks(16) {
        let writes = some.iter().map(|record| {
            let call = [Bytes::from(format!("record{record}")), value(*record)];
            let (client, channel) = (&client, &channel);
            async move { client.transact(channel, "ycsb", "update", &call).await }
        });
        for written in join_all(writes).await {
            assert!(written.expect("it is committed").commit.is_valid());
        }
    }
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..4).map(|_| tokio::spawn(read_all(dir.clone(), stop.clone()))).collect();
    let limits = ["--memory-min", "4MiB", "--memory-max", "64MiB", "--hot", "100"];

    let indifferent = Manager::start(&dir, &[&limits[..], &["--miss-us", "0"]].concat());
    recorded(&dir, "no manager runs", |record| record.peers.contains_key("org1")).await;
    // Longer than the period over which misses are counted.
    tokio::time::sleep(Duration::from_secs(11)).await;
    indifferent.kill();
    let is_grown = |event: &PoolEvent| event.done.contains("memory budget");
    assert!(!record(&dir).events.iter().any(is_grown), "{:?}", record(&dir).events);
    let before = memory(&dir);
    assert_eq!(before.budget_bytes, 4 << 20, "{before:?}");

    let manager = Manager::start(&dir, &limits);
    let grown = recorded(&dir, "misses bring no memory", |record| record.events.iter().any(is_grown)).await;
    let event = grown.events.iter().find(|event| is_grown(event)).expect("it is there");
    assert!(event.seen.contains("misses cost") && event.why.contains("it is full"), "{event}");
    // What was evicted comes back as it is written again; the budget is in force at once or soon.
    let start = Instant::now();
    while memory(&dir).budget_bytes <= before.budget_bytes {
        assert!(start.elapsed() < DECISION_TIMEOUT, "{:?}", memory(&dir));
        tokio::time::sleep(POLL).await;
    }
    stop.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.await.expect("every record was read as it was written");
    }
    manager.kill();
    network.down();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_elastic_network_has_a_manager_that_comes_back() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("network");
    let shown = dir.display().to_string();
    let limits = ["--quota-min", "40", "--nodes-max", "3"];
    let refused = run(&[&["up", "--bound", "--any-ports", "--dir", &shown], &limits[..]].concat());
    assert!(!refused.status.success() && text(&refused).contains("needs --elastic"), "{}", text(&refused));
    let network = Network::start(&dir, &[&["--orgs", "1", "--elastic"], &limits[..]].concat());
    recorded(&dir, "no manager runs", |record| record.peers.contains_key("org1")).await;
    let lock = std::fs::read_to_string(dir.join("manager/manager.lock")).expect("it runs");
    send(lock.trim().parse().expect("a process's number"), Signal::KILL);
    recorded(&dir, "the manager is not started again", |record| record.incarnation > 1).await;
    let top = text(&run(&["pool", "top", "--dir", &shown]));
    assert!(top.contains("compute-org1") && top.contains("a manager runs"), "{top}");
    assert!(top.contains(" 40 %") || !can_have_quotas(), "{top}");
    let settings = std::fs::read_to_string(dir.join("heddle.toml")).expect("it is there");
    assert!(settings.contains("compute_cpu_percent = 0"), "a later start without a manager has no quotas: {settings}");
    network.down();
    let held = run(&["pool", "top", "--dir", &shown]);
    assert_eq!(held.status.code(), Some(4), "the network is not running: {}", text(&held));
}
