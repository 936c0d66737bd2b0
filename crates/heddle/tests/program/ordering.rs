//! Tests a network with several orderers, on passive memory nodes or each with its own log. The leader may be killed
//! under load, or all orderers with their memory at once, and no acknowledged write is lost.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::load::{Load, end_with_all};
use crate::support::processes::{RESTART_TIMEOUT, back, processes, send};
use crate::support::{Network, heddle, run, text};
use node::{Endpoints, Ready};
use rustix::process::Signal;

const CLIENTS: usize = 8;
/// The number of writes after which a network counts as at work.
const SOME: usize = 40;

/// Kills a process.
fn kill_named(dir: &Path, name: &str) -> Ready {
    let killed = processes(dir).into_iter().find(|process| process.name == name);
    let killed = killed.unwrap_or_else(|| panic!("there is no {name}"));
    send(killed.process, Signal::KILL);
    killed
}

/// The orderers that lead, according to the network's metrics page.
fn leading(dir: &Path) -> Vec<String> {
    let metrics = Endpoints::load(dir).expect("the network has said where it is").metrics;
    let mut page = String::new();
    let mut link = TcpStream::connect(metrics).expect("it listens");
    link.write_all(b"GET /metrics HTTP/1.1\r\nHost: heddle\r\nConnection: close\r\n\r\n").expect("it is taken");
    link.read_to_string(&mut page).expect("it is text");
    let samples = page.lines().filter_map(|line| line.strip_prefix("heddle_chain_orderers_leading{process=\""));
    let leading = samples.filter_map(|sample| sample.strip_suffix("\"} 1"));
    leading.map(str::to_owned).collect()
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
    let start = Instant::now();
    let leads = loop {
        match &leading(&dir)[..] {
            [leads] => break leads.clone(),
            leading => assert!(start.elapsed() < RESTART_TIMEOUT, "{leading:?} lead"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!(orderers.contains(&leads.as_str()), "{leads} leads");
    for name in orderers.iter().chain(memory.first()) {
        let killed = kill_named(&dir, name);
        load.progress(SOME, &format!("after the end of {name}")).await;
        back(&dir, &killed).await;
        load.progress(SOME, &format!("with {name} back")).await;
    }

    // All orderers at once, with their memory and their supervisor.
    let all = processes(&dir);
    network.kill();
    all.iter().for_each(|process| send(process.process, Signal::KILL));
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
    for made in ["", "peers/Org1", "peers/Org1/blocks", "orderer", "orderers/2"] {
        let mode = std::fs::metadata(dir.join(made)).expect("it was made").permissions().mode();
        assert_eq!(mode & 0o077, 0, "{made} has mode {mode:o}: others could read the ledger");
    }
    let told = load.end().await;
    let verify = run(&["ledger", "verify", "--dir", &shown]);
    assert!(verify.status.success(), "{}", text(&verify));
    assert!(text(&verify).contains("orderer-3"), "{}", text(&verify));
    let network = Network::start(&dir, &[]);
    end_with_all(network, &dir, 1, &told).await;
}

/// The numbers of the orderers that have a vote, from `heddle orderer members`.
fn voters(dir: &str) -> Vec<u64> {
    let members = run(&["orderer", "members", "--dir", dir, "--json"]);
    assert!(members.status.success(), "{}", text(&members));
    let members: serde_json::Value = serde_json::from_slice(&members.stdout).expect("it is JSON");
    let orderers = members["orderers"].as_array().expect("a list").iter();
    let voters = orderers.filter(|orderer| orderer["votes"] == true);
    voters.map(|orderer| orderer["number"].as_u64().expect("a number")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn orderers_come_and_go_under_load_and_nothing_told_is_lost() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("network");
    let shown = dir.display().to_string();
    let change = |arguments: &[&str]| run(&[&["orderer"], arguments, &["--dir", &shown]].concat());
    let network = Network::start(&dir, &["--orgs", "1", "--isolate", "--monolithic", "--ordering", "raft"]);
    let load = Load::start(&dir, 1, CLIENTS);
    load.progress(SOME, "at first").await;

    let added = change(&["add"]);
    assert!(added.status.success(), "{}", text(&added));
    assert_eq!(voters(&shown), [1, 2, 3, 4]);
    load.progress(SOME, "with a fourth").await;

    // Remove the first orderer, and the leader: one of them hands over, or is just being restarted.
    kill_named(&dir, "orderer");
    for (name, left) in [("orderer", &[2, 3, 4][..]), ("orderer-2", &[3, 4])] {
        let removed = change(&["remove", name]);
        assert!(removed.status.success(), "{name}: {}", text(&removed));
        assert_eq!(voters(&shown), left);
        load.progress(SOME, &format!("without {name}")).await;
    }
    let added = change(&["add"]);
    assert!(added.status.success(), "{}", text(&added));
    assert_eq!(voters(&shown), [3, 4, 5], "numbers are not used again");
    let removed = change(&["remove", "orderer-3"]);
    assert!(removed.status.success(), "{}", text(&removed));
    // None of the original orderers is left, which gateways knew when they started.
    load.progress(SOME, "without any of the first").await;
    let refused = change(&["remove", "orderer-7"]);
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused));
    assert!(text(&refused).contains("there is no orderer-7"), "{}", text(&refused));

    let all = processes(&dir);
    let orderers: Vec<&str> =
        all.iter().map(|process| &*process.name).filter(|name| name.starts_with("orderer")).collect();
    assert_eq!(orderers, ["orderer-4", "orderer-5"]);
    let told: Vec<String> = profile(&dir).into_iter().map(|(name, _)| name).collect();
    assert_eq!(told, ["orderer-4.example.com", "orderer-5.example.com"], "clients are told, too");
    network.kill();
    all.iter().for_each(|process| send(process.process, Signal::KILL));
    let told = load.end().await;
    let network = Network::start(&dir, &["--isolate"]);
    assert_eq!(voters(&shown), [4, 5]);
    network.down();
    let verify = run(&["ledger", "verify", "--dir", &shown]);
    assert!(verify.status.success(), "{}", text(&verify));
    let told_of = text(&verify);
    let verified: Vec<&str> = told_of
        .lines()
        .filter_map(|line| line.split_whitespace().next().filter(|name| name.starts_with("orderer")))
        .collect();
    assert_eq!(verified, ["orderer-4", "orderer-5"], "those that the network has now: {told_of}");
    // In this form they answer one another at other addresses, which their logs do not know.
    let network = Network::start(&dir, &[]);
    end_with_all(network, &dir, 1, &told).await;
}

/// An orderer that the test starts; it is killed on drop.
struct Started {
    folder: String,
    child: Child,
}

impl Started {
    fn start(nodes: &Path, name: &str) -> Started {
        let folder = nodes.join(name);
        let config = folder.join("node.toml").display().to_string();
        let log = std::fs::File::create(folder.join("log")).expect("a file");
        let mut command = heddle(&["node", "orderer", "--config", &config]);
        let child = command.stdout(Stdio::null()).stderr(log).spawn().expect("it can be started");
        let start = Instant::now();
        while Ready::load(&folder).is_none_or(|ready| ready.process != child.id()) {
            let log = std::fs::read_to_string(folder.join("log")).unwrap_or_default();
            assert!(start.elapsed() < RESTART_TIMEOUT, "{name} is not ready: {log}");
            std::thread::sleep(Duration::from_millis(20));
        }
        Started { folder: folder.display().to_string(), child }
    }

    fn members(&self) -> serde_json::Value {
        let members = run(&["orderer", "members", "--node", &self.folder, "--json"]);
        assert!(members.status.success(), "{}", text(&members));
        serde_json::from_slice(&members.stdout).expect("it is JSON")
    }

    /// Waits until a report is as wanted.
    fn until(&self, what: &str, is_so: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
        let start = Instant::now();
        loop {
            let members = self.members();
            if is_so(&members) {
                return members;
            }
            assert!(start.elapsed() < RESTART_TIMEOUT, "{what}: {members}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs a command at one orderer after the other until the leader, which may change, carries it out or rejects it.
/// Returns that output, and whether another orderer has named the leader.
fn at_leader<'a>(running: &'a [Started], ask: impl Fn(&'a Started) -> Output) -> (Output, &'a Started, bool) {
    let (start, mut named) = (Instant::now(), false);
    loop {
        for orderer in running {
            let output = ask(orderer);
            let said = text(&output);
            let is_elsewhere = said.contains("leads: run this on its host, with --node");
            named |= is_elsewhere;
            if !is_elsewhere && !said.contains("no orderer leads for now; try again") {
                return (output, orderer, named);
            }
        }
        assert!(start.elapsed() < RESTART_TIMEOUT, "nobody leads");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// As on several hosts: each orderer is asked through its own folder, and only the leader carries out a request.
#[test]
fn an_orderer_joins_from_a_folder_of_its_own_and_a_majority_that_answers_stays() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("network");
    let (shown, nodes) = (dir.display().to_string(), dir.join("nodes"));
    // An address of this machine that no other test uses.
    let process = std::process::id();
    let host = format!("127.{}.{}.1", 1 + process / 256 % 254, process % 256);
    let plan = ["plan", "--dir", &shown, "--orgs", "1", "--ordering", "raft", "--host", &host, "--metrics-port", "0"];
    let planned = run(&plan);
    assert!(planned.status.success(), "{}", text(&planned));
    let names = ["orderer", "orderer-2", "orderer-3"];
    let mut running: Vec<Started> = names.iter().map(|name| Started::start(&nodes, name)).collect();
    let led = running[0].until("nobody leads", |members| members["leader"].is_u64());
    let leader = led["leader"].as_u64().expect("a number") as usize - 1;
    // Ask the others first.
    running.swap(2, leader);

    let planned = run(&["orderer", "plan", "--dir", &shown, "--host", &host, "--port", "7300"]);
    assert!(planned.status.success(), "{}", text(&planned));
    let address = format!("tcp:{host}:7303");
    assert!(text(&planned).contains(&format!("--number 4 --address {address}")), "{}", text(&planned));
    let add_within = |asked: &Started, seconds: &str| {
        let add = ["orderer", "add", "--node", &asked.folder, "--number", "4", "--address", &address];
        run(&[&add[..], &["--timeout", seconds]].concat())
    };
    // While it does not run, it cannot learn.
    let (late, ..) = at_leader(&running, |asked| add_within(asked, "1"));
    assert_eq!(late.status.code(), Some(1), "{}", text(&late));
    assert!(text(&late).contains("orderer-4 has no vote after 1 s"), "{}", text(&late));
    let mut fourth = Started::start(&nodes, "orderer-4");
    let add = |asked: &Started| add_within(asked, "60");
    for what in ["it is added", "what is done is done"] {
        let (added, _, named) = at_leader(&running, add);
        assert!(added.status.success() && named, "{what}: {}", text(&added));
    }
    fourth.kill();

    // Without the fourth, three of four answer: one of them may be removed, but not a second one.
    let orderers: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let (_, leads, _) = at_leader(&running, |asked| {
        // Either it hands over, or it does not lead, or it rejects the request since there is no such orderer.
        run(&["orderer", "remove", "orderer-9", "--node", &asked.folder])
    });
    leads.until("orderer-4 is not heard of", |members| {
        let fourth = members["orderers"].as_array().into_iter().flatten().find(|orderer| orderer["number"] == 4);
        fourth.is_some_and(|fourth| fourth["heard_ms"].as_u64().is_none_or(|heard| heard > 1000))
    });
    let followers: Vec<&String> = orderers.iter().filter(|name| !leads.folder.ends_with(&format!("/{name}"))).collect();
    let remove = |which: &str| run(&["orderer", "remove", which, "--node", &leads.folder]);
    let removed = remove(followers[0]);
    assert!(removed.status.success(), "two of the three that are left answer: {}", text(&removed));
    let refused = remove(followers[1]);
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused));
    assert!(text(&refused).contains("1 of the 2 nodes with a vote that are left would answer"), "{}", text(&refused));
    let removed = remove("orderer-4");
    assert!(removed.status.success(), "one that has ended may go: {}", text(&removed));
    let members = leads.members();
    assert_eq!(members["orderers"].as_array().map(Vec::len), Some(2), "{members}");

    let gateway = || std::fs::read_to_string(nodes.join("gateway-org1").join("node.toml")).expect("it is planned");
    assert!(gateway().contains(&format!("tls:{host}:7302")), "gateways are told of the fourth");
    let struck = run(&["orderer", "plan", "--dir", &shown, "--removed", "orderer-4"]);
    assert!(struck.status.success(), "{}", text(&struck));
    assert!(!gateway().contains(&format!("tls:{host}:7302")), "and that it has gone");
    let again = run(&["orderer", "plan", "--dir", &shown, "--removed", "orderer-4"]);
    assert_eq!(again.status.code(), Some(1), "{}", text(&again));
}

/// The orderers of a profile: names, and the ports of their addresses.
fn profile(dir: &Path) -> Vec<(String, String)> {
    let path = dir.join("profiles/connection-org1.json");
    let profile: serde_json::Value =
        serde_json::from_slice(&std::fs::read(path).expect("it is written")).expect("it is JSON");
    let orderers = profile["channels"]["mychannel"]["orderers"].as_array().expect("a list").iter();
    let port = |name: &str| profile["orderers"][name]["url"].as_str().and_then(|url| url.rsplit(':').next());
    orderers
        .map(|name| name.as_str().expect("a name"))
        .map(|name| (name.to_owned(), port(name).expect("it is described").to_owned()))
        .collect()
}

/// Regression: `heddle up` started a planned network a second time, with empty ledgers, as every other command advised.
#[test]
fn a_network_planned_for_several_hosts_is_neither_started_nor_asked_where_it_was_planned() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("network");
    let shown = dir.display().to_string();
    let plan = ["plan", "--orgs", "1", "--ordering", "raft", "--host", "10.9.8.7", "--dir"];
    let refused = run(&[&plan[..], &[&shown, "--links-port", "65490"]].concat());
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused));
    assert!(text(&refused).contains("ports.links is 65490"), "{}", text(&refused));
    let refused = run(&[&plan[..], &[&shown, "--metrics-port", "65530"]].concat());
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused));
    assert!(text(&refused).contains("ports.metrics is 65530"), "{}", text(&refused));
    // The settings of the earlier attempts are remembered.
    let planned = run(&[&plan[..], &[&shown, "--links-port", "7100", "--metrics-port", "9443"]].concat());
    assert!(planned.status.success(), "{}", text(&planned));
    let command = "heddle node orderer --config orderer-2/node.toml\n";
    assert!(text(&planned).contains(command), "from where its folder was copied to: {}", text(&planned));

    for (arguments, code) in [
        (&["status"][..], 4),
        (&["down"], 4),
        (&["peer", "nodes", "org1"], 4),
        (&["peer", "memory", "org1"], 4),
        (&["orderer", "members"], 4),
        (&["ledger", "verify"], 4),
        (&["up", "--any-ports"], 1),
    ] {
        let refused = run(&[arguments, &["--dir", &shown]].concat());
        assert_eq!(refused.status.code(), Some(code), "{arguments:?}: {}", text(&refused));
        assert!(text(&refused).contains("hosts of their own"), "{arguments:?}: {}", text(&refused));
    }
    assert!(!dir.join("peers").exists(), "nothing was begun here");

    // Regression: profiles named only the first orderer.
    let names =
        |orderers: &[&str]| -> Vec<String> { orderers.iter().map(|name| format!("{name}.example.com")).collect() };
    let told = || profile(&dir).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(told(), names(&["orderer", "orderer-2", "orderer-3"]));
    let ports: std::collections::BTreeSet<String> = profile(&dir).into_iter().map(|(_, port)| port).collect();
    assert_eq!(ports.len(), 3, "{ports:?}");
    let added = run(&["orderer", "plan", "--dir", &shown, "--host", "10.9.8.6", "--port", "7300"]);
    assert!(added.status.success(), "{}", text(&added));
    assert_eq!(profile(&dir).last(), Some(&("orderer-4.example.com".to_owned(), "7300".to_owned())));
    let struck = run(&["orderer", "plan", "--dir", &shown, "--removed", "orderer"]);
    assert!(struck.status.success(), "{}", text(&struck));
    assert_eq!(told(), names(&["orderer-2", "orderer-3", "orderer-4"]));
    let refused = run(&["status", "--dir", &shown]);
    assert!(text(&refused).contains("hosts of their own"), "{}", text(&refused));
}

#[test]
fn orderers_of_one_process_or_another_engine_are_not_changed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("network");
    let shown = dir.display().to_string();
    let network = Network::start(&dir, &["--orgs", "1", "--ordering", "raft"]);
    let refused = run(&["orderer", "add", "--dir", &shown]);
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused));
    assert!(text(&refused).contains("are one process"), "{}", text(&refused));
    network.down();
    let refused = run(&["orderer", "members", "--dir", &shown]);
    assert_eq!(refused.status.code(), Some(4), "{}", text(&refused));
    let other = folder.path().join("solo");
    let shown = other.display().to_string();
    let network = Network::start(&other, &["--orgs", "1"]);
    let refused = run(&["orderer", "remove", "orderer", "--dir", &shown]);
    assert!(text(&refused).contains("orders with solo"), "{}", text(&refused));
    network.down();
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
    refused(
        &[&up(&[])[..], &["--config", &config]].concat(),
        &["ordering.volatile is true", "set it to false, or choose the engine"],
    );
    let config = folder.path().join("alone.toml");
    std::fs::write(&config, "[ordering]\nvolatile = true\n").expect("it can be written");
    let config = config.display().to_string();
    refused(&[&up(&[])[..], &["--config", &config]].concat(), &["ordering.volatile is true", "\"solo\""]);
    refused(&up(&["--orderers", "5"]), &["--orderers 5", "--ordering raft"]);
    let config = folder.path().join("even.toml");
    std::fs::write(&config, "[ordering]\nengine = \"sift\"\nmemory_nodes = 2\n").expect("it can be written");
    let config = config.display().to_string();
    refused(&[&up(&[])[..], &["--config", &config]].concat(), &["ordering.memory_nodes is 2", "odd number"]);
    let network = Network::start(Path::new(&dir), &["--orgs", "1"]);
    network.down();
    refused(&up(&["--ordering", "sift"]), &["ordering.engine was Solo", "cannot be changed to Sift"]);
    let other = folder.path().join("raft").display().to_string();
    let made = run(&["plan", "--orgs", "1", "--ordering", "raft", "--host", "10.9.8.7", "--dir", &other]);
    assert!(made.status.success(), "{}", text(&made));
    let more = run(&["plan", "--orderers", "5", "--host", "10.9.8.7", "--dir", &other]);
    let expected = ["ordering.orderers was 3", "cannot be changed to 5", "`heddle orderer add`"];
    assert!(expected.iter().all(|part| text(&more).contains(part)), "{}", text(&more));
}
