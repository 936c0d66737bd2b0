//! Tests `heddle peer memory`: remote memory is added and removed while clients work, and the budget survives every
//! restart. And what lies in remote memory survives the end of the primary.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::Bytes;
use futures_util::future::join_all;
use gateway::client::GatewayClient;
use node::Endpoints;
use node::control::MemoryReport;
use node::process::ProcessRole;
use rustix::process::Signal;

use crate::support::load::connect;
use crate::support::processes::{Role, back, processes, send};
use crate::support::{Network, patiently, run, text};

const MIB: u64 = 1 << 20;
/// Records of this many bytes, so that few blocks fill some sections.
const VALUE_BYTES: usize = 64 << 10;
const RECORDS: usize = 192;
/// How often, and with what pause, the test polls for something that happens by itself.
const ATTEMPTS_MAX: usize = 60;
const PAUSE: Duration = Duration::from_millis(500);

/// A network of one peer with small sections.
fn start(dir: &Path, form: &[&str]) -> Network {
    let config = dir.with_extension("toml");
    let text = "[network]\norganizations = [\"Org1\"]\n[pool]\nsection_bytes = 1048576\nmemory_bytes = 33554432\npeer_bytes = 16777216\n";
    std::fs::write(&config, text).expect("it can be written");
    let config = config.display().to_string();
    Network::start(dir, &[&["--config", &config], form].concat())
}

fn memory(dir: &Path, arguments: &[&str]) -> MemoryReport {
    let dir = dir.display().to_string();
    let output = run(&[&["peer", "memory", "ORG1", "--json", "--dir", &dir], arguments].concat());
    assert!(output.status.success(), "{arguments:?}: {}", text(&output));
    serde_json::from_slice(&output.stdout).expect("a report")
}

fn node_memory(folder: &Path) -> MemoryReport {
    let output = run(&["peer", "memory", "--json", "--node", &folder.display().to_string()]);
    assert!(output.status.success(), "{}", text(&output));
    serde_json::from_slice(&output.stdout).expect("a report")
}

fn refused(dir: &Path, arguments: &[&str], code: i32, expected: &[&str]) {
    let dir = dir.display().to_string();
    let output = run(&[&["peer", "memory"], arguments, &["--dir", &dir]].concat());
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output));
    for part in expected {
        assert!(text(&output).contains(part), "{arguments:?}: {}", text(&output));
    }
}

fn value(record: usize, round: usize) -> Bytes {
    Bytes::from(format!("{record}.{round} ").repeat(VALUE_BYTES / 6))
}

async fn write(client: &Arc<GatewayClient>, channel: &str, round: usize) {
    for some in (0..RECORDS).collect::<Vec<_>>().chunks(16) {
        let writes = some.iter().map(|record| async move {
            let args = [Bytes::from(format!("record{record}")), value(*record, round)];
            let committed = client.transact(channel, "ycsb", "update", &args).await.expect("it is committed");
            assert!(committed.commit.is_valid(), "{committed:?}");
        });
        join_all(writes).await;
    }
}

async fn check(client: &Arc<GatewayClient>, channel: &str, round: usize) {
    for record in 0..RECORDS {
        let args = [Bytes::from(format!("record{record}"))];
        let proposal = client.proposal(channel, "ycsb", "read", &args).sign();
        let found = client.evaluate(&proposal).await.expect("it is there");
        assert!(found == value(record, round), "record {record} of round {round}");
    }
}

/// Frees the first memory node under load, and uses it again.
async fn vacates(dir: &Path, client: &Arc<GatewayClient>, channel: &str) {
    let [first, second] = &memory(dir, &[]).nodes[..] else { panic!("there are two memory nodes") };
    assert!(first.sections > 0 && second.sections > 0, "{first:?} {second:?}");
    let (address, of) = (first.address.clone(), dir.to_owned());
    let vacating = tokio::task::spawn_blocking(move || memory(&of, &["--vacate", &address]));
    let ((), vacated) = tokio::join!(write(client, channel, 4), vacating);
    let vacated = vacated.expect("no panic");
    assert!(vacated.nodes[0].vacated && vacated.nodes[0].sections == 0, "{vacated:?}");
    assert!(vacated.sections_migrated > 0, "{vacated:?}");
    check(client, channel, 4).await;
    refused(dir, &["org1", "--vacate", &second.address], 1, &["the last memory node", "use another one first"]);
    refused(dir, &["org1", "--vacate", "nowhere:1"], 1, &["no memory node at nowhere:1", &first.address]);
    let used = memory(dir, &["--use", &first.address]);
    assert!(used.nodes.iter().all(|node| !node.vacated), "{used:?}");
}

async fn grows_and_shrinks(form: &[&str]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("network");
    let network = start(&dir, form);
    let (client, channel) = connect(&dir, 1).await.expect("its gateway is ready");
    let client = Arc::new(client);
    write(&client, &channel, 1).await;
    let before = memory(&dir, &[]);
    assert_eq!((before.budget_bytes, before.section_bytes), (16 * MIB, MIB));
    assert!(before.leased_bytes > 8 * MIB, "{before:?}");
    assert_eq!(before.nodes.iter().map(|node| node.sections * MIB).sum::<u64>(), before.leased_bytes, "{before:?}");
    assert!(before.nodes.iter().all(|node| node.connected && node.budget_bytes == 32 * MIB), "{before:?}");

    // Lower the budget, under load.
    let (writing, deaf) = (write(&client, &channel, 2), dir.clone());
    let lowering = tokio::task::spawn_blocking(move || memory(&deaf, &["--set", "4MiB"]));
    let ((), lowered) = tokio::join!(writing, lowering);
    let lowered = lowered.expect("no panic");
    assert_eq!(lowered.budget_bytes, 4 * MIB);
    assert!(lowered.is_within_budget() && lowered.sections_drained >= 4, "{lowered:?}");
    check(&client, &channel, 2).await;
    let after = memory(&dir, &[]);
    assert!(after.leased_bytes <= 4 * MIB && after.evicted_records > 0, "{after:?}");

    // Raise it: all records fit again, and come back as they are read.
    let raised = memory(&dir, &["--set", "24 MiB"]);
    assert_eq!((raised.budget_bytes, raised.configured_bytes), (24 * MIB, 16 * MIB));
    check(&client, &channel, 2).await;
    // The peer retries a pool that had nothing to give only after a pause; records written until then stay in storage.
    for attempt in 1.. {
        write(&client, &channel, 3).await;
        let grown = memory(&dir, &[]);
        if grown.leased_bytes > 8 * MIB {
            break;
        }
        assert!(attempt < ATTEMPTS_MAX, "{grown:?}");
        tokio::time::sleep(PAUSE).await;
    }

    vacates(&dir, &client, &channel).await;

    refused(&dir, &["org1", "--set", "1000KiB"], 1, &["less than one section", "at least 1048576"]);
    refused(
        &dir,
        &["org1", "--set", "1GiB"],
        1,
        &["more than the memory nodes have", "67108864", "start more memory nodes"],
    );
    refused(&dir, &["org1", "--set", "12 apples"], 2, &["12 apples", "such as 512MiB"]);
    refused(&dir, &["org7"], 1, &["no organisation \"org7\"", "Org1"]);
    let absent = dir.join("nodes/compute-org9").display().to_string();
    let unknown = run(&["peer", "memory", "--node", &absent]);
    assert_eq!(unknown.status.code(), Some(4), "{}", text(&unknown));
    assert!(text(&unknown).contains(&absent) && text(&unknown).contains("this is its folder"), "{}", text(&unknown));
    let own = dir.join("nodes/compute-org1");
    assert_eq!(node_memory(&own).budget_bytes, 24 * MIB);
    // A budget that cannot be stored is not set.
    std::fs::create_dir(own.join(".budget.toml.new")).expect("it can be made");
    refused(&dir, &["org1", "--set", "8MiB"], 1, &["the budget stays as it was", "budget.toml"]);
    std::fs::remove_dir(own.join(".budget.toml.new")).expect("it is there");
    assert_eq!(memory(&dir, &[]).budget_bytes, 24 * MIB, "what is refused changes nothing");
    let shown = run(&["peer", "memory", "org1", "--dir", &dir.display().to_string()]);
    for part in ["24 MiB, 24 sections of 1 MiB, set at run time", "memory node", "data cache", "evicted"] {
        assert!(text(&shown).contains(part), "{}", text(&shown));
    }

    // A start remembers it, in either form; a new value in the configuration overrides it.
    network.down();
    refused(&dir, &["org1"], 4, &["is not running"]);
    let network = start(&dir, if form.is_empty() { &["--isolate"] } else { &[] });
    assert_eq!(memory(&dir, &[]).budget_bytes, 24 * MIB);
    let (client, channel) = connect(&dir, 1).await.expect("its gateway is ready");
    check(&Arc::new(client), &channel, 4).await;
    network.down();
    let network = Network::start(&dir, &["--monolithic"]);
    refused(&dir, &["org1"], 1, &["is monolithic", "storage.cache_bytes"]);
    network.down();
    let verify = run(&["ledger", "verify", "--dir", &dir.display().to_string()]);
    assert!(verify.status.success(), "{}", text(&verify));
}

#[tokio::test(flavor = "multi_thread")]
async fn remote_memory_grows_and_shrinks_in_one_process() {
    grows_and_shrinks(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn remote_memory_grows_and_shrinks_in_processes() {
    grows_and_shrinks(&["--isolate"]).await;
}

/// A counter of a process, according to the network's metrics page.
fn counter(dir: &Path, process: &str, name: &str) -> u64 {
    let metrics = Endpoints::load(dir).expect("the network has said where it is").metrics;
    let mut page = String::new();
    let mut link = TcpStream::connect(metrics).expect("it listens");
    link.write_all(b"GET /metrics HTTP/1.1\r\nHost: heddle\r\nConnection: close\r\n\r\n").expect("it is taken");
    link.read_to_string(&mut page).expect("it is text");
    let sample = format!("{name}{{process=\"{process}\"}} ");
    let value = page.lines().find_map(|line| line.strip_prefix(&sample));
    value.unwrap_or_else(|| panic!("no {name} of {process} in {page}")).parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_lies_in_remote_memory_outlives_the_primary() {
    const COMPUTE: &str = "compute-org1";
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("network");
    let network = start(&dir, &["--isolate"]);
    let (client, channel) = connect(&dir, 1).await.expect("its gateway is ready");
    write(&Arc::new(client), &channel, 1).await;
    for signal in [Signal::KILL, Signal::TERM] {
        let before = memory(&dir, &[]);
        assert!(before.leased_bytes > 8 * MIB, "{before:?}");
        let ended = processes(&dir).into_iter().find(|process| process.name == COMPUTE).expect("it runs");
        send(ended.process, signal);
        back(&dir, &ended).await;
        let (client, channel) = connect(&dir, 1).await.expect("its gateway is ready");
        let args = [Bytes::from_static(b"record0")];
        patiently(async || {
            let proposal = client.proposal(&channel, "ycsb", "read", &args).sign();
            client.evaluate(&proposal).await
        })
        .await
        .expect("it serves again");
        check(&Arc::new(client), &channel, 1).await;
        let sections = counter(&dir, COMPUTE, "heddle_state_sections_adopted_total");
        assert_eq!(sections * MIB, before.leased_bytes, "{signal:?}: all memory is adopted");
        // The data cache is empty and the delta has the newest blocks only: the rest came from adopted memory.
        let stored = counter(&dir, COMPUTE, "heddle_state_storage_reads_total");
        assert!(stored < RECORDS as u64 / 4, "{signal:?}: {stored} reads went to storage");
    }
    network.down();
}

/// Under load a memory node joins, gets all of the peer's memory, outlives the primary, and leaves.
#[tokio::test(flavor = "multi_thread")]
async fn a_memory_node_joins_a_running_peer_and_leaves_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("network");
    let network = start(&dir, &["--isolate", "--compute-nodes", "2"]);
    let (client, channel) = connect(&dir, 1).await.expect("its gateway is ready");
    let client = Arc::new(client);
    write(&client, &channel, 1).await;
    let planned: Vec<String> = memory(&dir, &[]).nodes.into_iter().map(|node| node.address).collect();
    assert_eq!(planned.len(), 2);

    let made = run(&["peer", "add-memory", "--dir", &dir.display().to_string()]);
    assert!(made.status.success() && text(&made).contains("--add"), "{}", text(&made));
    let third = dir.join("nodes/memory-3");
    let file = third.join("node.toml").display().to_string();
    refused(&dir, &["org1", "--add", &file], 1, &["it cannot be added", "memory-3"]);
    refused(&dir, &["org1", "--add", "nowhere/node.toml"], 1, &["nowhere/node.toml"]);
    assert_eq!(memory(&dir, &[]).nodes.len(), 2, "what is refused changes nothing");
    let process = Role::start(ProcessRole::Memory, &third);

    let (of, to) = (dir.clone(), file.clone());
    let moving = tokio::task::spawn_blocking(move || {
        let added = memory(&of, &["--add", &to]);
        assert_eq!(added.nodes.len(), 3, "{added:?}");
        memory(&of, &["--vacate", &planned[0]]);
        memory(&of, &["--vacate", &planned[1]])
    });
    let ((), moved) = tokio::join!(write(&client, &channel, 2), moving);
    let moved = moved.expect("no panic");
    assert!(moved.nodes[2].sections > 8 && moved.sections_migrated > 0, "{moved:?}");
    assert_eq!(moved.nodes.iter().map(|node| node.sections * MIB).sum::<u64>(), moved.leased_bytes, "{moved:?}");
    // Both compute nodes answer.
    check(&client, &channel, 2).await;
    check(&client, &channel, 2).await;
    let third_node = moved.nodes[2].address.clone();
    refused(&dir, &["org1", "--add", &file], 1, &["one of this owner's already"]);
    refused(&dir, &["org1", "--remove", &third_node], 1, &["vacate it first"]);
    refused(&dir, &["org1", "--remove", &moved.nodes[0].address], 1, &["named by the settings"]);
    let kept = std::fs::metadata(dir.join("nodes/compute-org1/budget.toml")).expect("it was stored");
    assert_eq!(kept.permissions().mode() & 0o777, 0o600, "it holds a token");

    // The next primary knows of it, and adopts what is there.
    let primary = processes(&dir).into_iter().find(|process| process.name == "compute-org1").expect("it runs");
    send(primary.process, Signal::KILL);
    back(&dir, &primary).await;
    patiently(async || {
        let args = [Bytes::from_static(b"record0")];
        client.evaluate(&client.proposal(&channel, "ycsb", "read", &args).sign()).await
    })
    .await
    .expect("it serves again");
    write(&client, &channel, 3).await;
    let adopted = memory(&dir, &[]);
    assert!(adopted.nodes.len() == 3 && adopted.nodes[2].sections > 8, "{adopted:?}");
    assert!(adopted.nodes[..2].iter().all(|node| node.vacated && node.sections == 0), "{adopted:?}");

    let leaving = tokio::task::spawn_blocking(move || {
        for node in &adopted.nodes[..2] {
            memory(&dir, &["--use", &node.address]);
        }
        let vacated = memory(&dir, &["--vacate", &third_node]);
        assert_eq!(vacated.nodes[2].sections, 0, "{vacated:?}");
        let removed = memory(&dir, &["--remove", &third_node]);
        assert!(removed.nodes.len() == 2 && removed.leased_bytes > 8 * MIB, "{removed:?}");
        dir
    });
    let ((), left) = tokio::join!(write(&client, &channel, 4), leaving);
    let dir = left.expect("no panic");
    drop(process);
    check(&client, &channel, 4).await;
    let text = std::fs::read_to_string(dir.join("nodes/compute-org1/budget.toml")).expect("it was stored");
    assert!(!text.contains("memory-3"), "{text}");
    network.down();
}
