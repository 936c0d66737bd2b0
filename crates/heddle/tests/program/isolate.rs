//! Tests a network whose roles are separate processes: any process may be killed under load, and no acknowledged write
//! is lost.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::load::{Load, check, connect, end_with_all};
use crate::support::processes::{RESTART_TIMEOUT, Role, back, processes, send};
use crate::support::{Network, run, text};
use node::{Endpoints, ProcessRole, Ready};
use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const CLIENTS: usize = 8;
/// The number of writes after which a network counts as at work.
const SOME: usize = 40;

fn one(dir: &Path, role: ProcessRole) -> Ready {
    let mut processes = processes(dir).into_iter();
    processes.find(|process| process.role == role).unwrap_or_else(|| panic!("there is no {role:?}"))
}

/// The content of the page of metrics and health.
async fn page(at: std::net::SocketAddr, path: &str) -> String {
    let mut socket = tokio::net::TcpStream::connect(at).await.expect("it listens");
    socket.write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes()).await.expect("room");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.expect("text");
    answer
}

/// Kills a process and waits until it is back.
async fn kill_one(dir: &Path, role: ProcessRole) {
    let killed = one(dir, role);
    send(killed.process, Signal::KILL);
    back(dir, &killed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn any_process_may_be_killed_under_load_and_nothing_told_is_lost() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("network");
    let shown = dir.display().to_string();
    let network = Network::start(&dir, &["--orgs", "2", "--isolate"]);
    let names: Vec<String> = processes(&dir).into_iter().map(|process| process.name).collect();
    let expected =
        "memory-1 memory-2 storage-org1 storage-org2 orderer compute-org1 compute-org2 gateway-org1 gateway-org2";
    assert_eq!(names.join(" "), expected);

    let load = Load::start(&dir, 2, CLIENTS);
    load.progress(SOME, "at first").await;

    // Memory nodes run no code for reads or commits.
    let memory: Vec<Ready> =
        processes(&dir).into_iter().filter(|process| process.role == ProcessRole::Memory).collect();
    memory.iter().for_each(|process| send(process.process, Signal::STOP));
    load.progress(SOME, "with memory nodes stopped").await;
    // They close no connection and send nothing; their owners notice that.
    let owner = processes(&dir).into_iter().find(|process| process.name == "compute-org1").expect("it runs");
    let start = Instant::now();
    loop {
        let health = page(owner.metrics, "/healthz").await;
        if health.matches("answers nothing, though it is connected").count() == memory.len() {
            break;
        }
        assert!(start.elapsed() < RESTART_TIMEOUT, "{health}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    memory.iter().for_each(|process| send(process.process, Signal::CONT));

    for role in
        [ProcessRole::Memory, ProcessRole::Gateway, ProcessRole::Compute, ProcessRole::Storage, ProcessRole::Orderer]
    {
        kill_one(&dir, role).await;
        load.progress(SOME, &format!("after the end of a {role:?}")).await;
    }
    let status = run(&["status", "--dir", &shown]);
    assert!(text(&status).contains("compute-org2"), "{}", text(&status));

    // All processes at once, and their supervisor.
    let all = processes(&dir);
    network.kill();
    all.iter().for_each(|process| send(process.process, Signal::KILL));
    let told = load.end().await;
    let network = Network::start(&dir, &["--isolate"]);
    end_with_all(network, &dir, 2, &told).await;
}

/// Regression: a program defect killed the thread behind a memory node's port. Its process lived on, its health was
/// good, nothing restarted it, and its owners waited.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_whose_port_dies_of_a_panic_ends_with_a_code_of_its_own_and_is_started_again() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (dir, faults) = (folder.path().join("network"), folder.path().join("faults"));
    std::fs::create_dir(&faults).expect("an empty folder");
    let network = Network::start_with(&dir, &["--orgs", "1", "--isolate", "--ordering", "raft"], Some(&faults));
    let load = Load::start(&dir, 1, CLIENTS);
    load.progress(SOME, "at first").await;

    // The killed process connects again, and the port to which it connects panics.
    let rounds: [(&[&str], &str); 3] = [
        (&["memory-1", "storage-org1"], "compute-org1"),
        (&["compute-org1"], "gateway-org1"),
        (&["orderer"], "orderer-2"),
    ];
    for (doomed, killed) in rounds {
        let before = processes(&dir);
        for name in doomed {
            std::fs::write(faults.join(format!("{name}.new")), "rma.host.panics").expect("there is room");
            std::fs::rename(faults.join(format!("{name}.new")), faults.join(name)).expect("it is there");
        }
        let start = Instant::now();
        while doomed.iter().any(|name| faults.join(name).exists()) {
            assert!(start.elapsed() < RESTART_TIMEOUT, "{doomed:?} do not look for faults");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let number =
            |known: &[Ready], name: &str| known.iter().find(|process| process.name == name).map(|one| one.process);
        send(number(&before, killed).expect("it runs"), Signal::KILL);
        loop {
            let known = Endpoints::load(&dir).map(|endpoints| endpoints.processes).unwrap_or_default();
            let is_back = |name: &&str| number(&known, name).is_some_and(|now| Some(now) != number(&before, name));
            let log = std::fs::read_to_string(dir.with_extension("log")).expect("the supervisor has a log");
            let told = |name: &&str| log.contains(&format!("{name} has ended with code 70; it is restarted"));
            if doomed.iter().all(|name| is_back(name) && told(name)) {
                break;
            }
            if start.elapsed() > RESTART_TIMEOUT {
                let own = |name: &&str| std::fs::read_to_string(dir.join("nodes").join(name).join("heddle.log"));
                let own: Vec<String> = doomed.iter().filter_map(|name| own(name).ok()).collect();
                panic!("{doomed:?} are not started again:\n{log}\n{}", own.join("\n"));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        load.progress(SOME, &format!("after panics in {doomed:?}")).await;
    }
    let told = load.end().await;
    end_with_all(network, &dir, 1, &told).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_form_of_a_network_opens_what_another_left() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("network");
    let mut told = Vec::new();
    let forms: [&[&str]; 5] =
        [&["--orgs", "1", "--isolate"], &["--monolithic"], &["--isolate", "--monolithic"], &[], &["--isolate"]];
    for form in forms {
        let network = Network::start(&dir, form);
        let (client, channel) = connect(&dir, 1).await.expect("its gateway is ready");
        for write in &told {
            check(&client, &channel, write).await.unwrap_or_else(|error| panic!("{form:?}: {error}"));
        }
        let load = Load::start(&dir, 1, 2);
        load.progress(5, &format!("{form:?}")).await;
        // All rounds use the same keys: only the last acknowledged writes count.
        told = load.end().await;
        network.down();
    }
    let verify = run(&["ledger", "verify", "--dir", &dir.display().to_string()]);
    assert!(verify.status.success(), "{}", text(&verify));
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_share_a_storage_node_and_get_one_of_their_own_again() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("network");
    let network = Network::start(&dir, &["--orgs", "3", "--policy", "all", "--isolate", "--storage-nodes", "2"]);
    let storage = || processes(&dir).into_iter().filter(|process| process.role == ProcessRole::Storage);
    assert_eq!(storage().map(|process| process.name).collect::<Vec<_>>(), ["storage-1", "storage-2"]);
    let load = Load::start(&dir, 3, CLIENTS);
    load.progress(SOME, "with two storage nodes for three peers").await;
    // That of two peers.
    let killed = storage().next().expect("it runs");
    send(killed.process, Signal::KILL);
    back(&dir, &killed).await;
    load.progress(SOME, "after the end of the storage node that two peers share").await;
    let told = load.end().await;
    network.down();
    // Each peer's directory is its own, wherever it is served.
    let network =
        Network::start(&dir, &["--isolate", "--policy", "all", "--config", &with(&dir, "[pool]\nstorage_nodes = 0\n")]);
    assert_eq!(storage().count(), 3);
    end_with_all(network, &dir, 3, &told).await;
}

/// A file beside the network with these settings.
fn with(dir: &Path, settings: &str) -> String {
    let path = dir.with_extension("toml");
    std::fs::write(&path, settings).expect("it can be written");
    path.display().to_string()
}

#[test]
fn what_cannot_start_says_why_and_what_to_do() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("network").display().to_string();
    let refused = |arguments: &[&str], expected: &[&str]| {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", text(&output));
        for part in expected {
            assert!(text(&output).contains(part), "{arguments:?}: {}", text(&output));
        }
    };
    let config = folder.path().join("small.toml");
    std::fs::write(&config, "[pool]\nmemory_bytes = 4194304\n").expect("it can be written");
    let config = config.display().to_string();
    let small = ["pool.memory_bytes is 4194304", "less than one section", "raise it"];
    refused(&["up", "--isolate", "--any-ports", "--dir", &dir, "--config", &config], &small);

    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("it is bound").port().to_string();
    let any = ["--gateway-port", "0", "--links-port", "0", "--metrics-port", "0"];
    let up = [&["up", "--isolate", "--orgs", "1", "--dir", &dir, "--orderer-port", &port][..], &any].concat();
    refused(&up, &["cannot listen on", "ports.orderer"]);

    // The network remembers that any ports were to be used; on other hosts the free ones are unknown here.
    let bare = ["plan", "--orgs", "1", "--dir", &dir, "--host", "127.0.0.1"];
    refused(&bare, &["ports.gateway is 0", "not known here", "--gateway-port"]);
    let gateway = [&bare[..], &["--gateway-port", "7051"]].concat();
    refused(&gateway, &["ports.links is 0", "not known here", "--links-port"]);
    let plan = [&gateway[..], &["--links-port", "7100"]].concat();
    refused(&[&plan[..], &["--place", "memory-7=127.0.0.1"]].concat(), &["no process memory-7", "memory-1, memory-2"]);
    let output = run(&plan);
    assert!(output.status.success(), "{}", text(&output));
    let answers =
        ["compute nodes at tcp:127.0.0.1:7140", "gateways at tls:127.0.0.1:7101", "clients at 127.0.0.1:7051"];
    assert!(answers.iter().all(|answer| text(&output).contains(answer)), "{}", text(&output));
    let file = folder.path().join("network/nodes/memory-1/node.toml");
    let shown = file.display().to_string();
    let wrong_role = ["role is memory", &format!("heddle node memory --config {shown}")];
    refused(&["node", "storage", "--config", &shown], &wrong_role);
    let written = std::fs::read_to_string(&file).expect("the plan wrote it");
    std::fs::write(&file, written.replace("section_bytes = 16777216", "section_bytes = 16777217")).expect("ours");
    refused(&["node", "memory", "--config", &shown], &["memory.section_bytes is 16777217", "a power of two"]);
    std::fs::write(&file, written.replace("tcp:", "udp:")).expect("ours");
    refused(&["node", "memory", "--config", &shown], &["memory.address", "tcp:host:port"]);
}

#[test]
fn what_a_memory_node_refuses_is_said_by_the_compute_node() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("network");
    // Ports of outgoing connections begin above these.
    let port = |offset: u32| (16_384 + (std::process::id() % 16_000) + offset).to_string();
    let (links, gateway, orderer) = (port(0), port(100), port(101));
    let ports = ["--links-port", &links, "--gateway-port", &gateway, "--orderer-port", &orderer, "--metrics-port", "0"];
    let shown = dir.display().to_string();
    let output = run(&[&["plan", "--orgs", "1", "--dir", &shown, "--host", "127.0.0.1"][..], &ports].concat());
    assert!(output.status.success(), "{}", text(&output));

    let nodes = dir.join("nodes");
    let file = |name: &str| nodes.join(name).join("node.toml");
    let _memory = ["memory-1", "memory-2"].map(|name| Role::start(ProcessRole::Memory, &nodes.join(name)));
    let _storage = Role::start(ProcessRole::Storage, &nodes.join("storage-org1"));
    let compute = file("compute-org1");
    let written = std::fs::read_to_string(&compute).expect("the plan wrote it");
    let refused = |changed: &str, expected: &[&str]| {
        assert_ne!(changed, written, "the file says it otherwise");
        std::fs::write(&compute, changed).expect("ours");
        let output = run(&["node", "compute", "--config", &compute.display().to_string()]);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        assert!(expected.iter().all(|part| text(&output).contains(part)), "{}", text(&output));
    };
    let sections = ["gives sections of 16777216 bytes", "8388608", "configure the same section_bytes on both"];
    refused(&written.replace("section_bytes = 16777216", "section_bytes = 8388608"), &sections);

    let (before, last) = written.rsplit_once("token = \"").expect("each memory node has a token");
    let other = format!("{before}token = \"{}{}", if last.starts_with('0') { '1' } else { '0' }, &last[1..]);
    refused(&other, &["refuses org1", "another token", "at the memory node"]);
    let stranger = written.replace("owner = \"org1\"", "owner = \"org9\"");
    refused(&stranger, &["refuses org9", "does not know our name", "register this owner"]);
}
