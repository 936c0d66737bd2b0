//! The life of a network from the command line: up, status, ledgers, down, and rejected commands.

use std::process::Stdio;
use std::time::Duration;

use crate::support::{Network, heddle, run, text};
use base::Bytes;
use serde_json::Value;

fn json(arguments: &[&str]) -> Value {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {}", text(&output)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_shows_the_same_while_its_network_runs_and_when_it_is_stopped() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("network");
    let dir = path.display().to_string();
    let network = Network::start(&path, &["--orgs", "2"]);
    let client = network.client(1).await;
    let args = ["asset7", "blue", "5", "Tom", "100"].map(Bytes::from);
    let committed = client.transact(&network.endpoints.channel, "basic", "CreateAsset", &args).await;
    let committed = committed.expect("it commits");
    assert!(committed.commit.is_valid());
    network.settle().await;

    let number = committed.commit.block.to_string();
    let show = |peer: &str| json(&["ledger", "show", "--dir", &dir, "--peer", peer, "--block", &number, "--json"]);
    let running = show("org1");
    let transaction = &running["transactions"][0];
    assert_eq!(transaction["id"], committed.tx_id, "{running:#}");
    assert_eq!(transaction["code"], "VALID");
    assert_eq!(transaction["call"]["contract"], "basic");
    assert_eq!(transaction["call"]["args"][1], "asset7");
    assert!(transaction["creator"].as_str().is_some_and(|creator| creator.starts_with("Org1MSP: ")), "{running:#}");
    assert_eq!(show("org2"), running);
    let by_id = json(&["ledger", "show", "--dir", &dir, "--tx", &committed.tx_id, "--json"]);
    assert_eq!(by_id["state"], transaction["state"]);

    let status = json(&["status", "--dir", &dir, "--json"]);
    assert_eq!(status["channel"], "mychannel", "{status:#}");
    assert_eq!(status["process"], network.endpoints.process);

    let verify = run(&["ledger", "verify", "--dir", &dir]);
    assert_eq!(verify.status.code(), Some(1), "a running network cannot be verified: {}", text(&verify));
    assert!(text(&verify).contains("heddle down"), "{}", text(&verify));
    network.down();

    assert_eq!(show("org1"), running, "the stopped ledger shows the same");
    let list = run(&["ledger", "show", "--dir", &dir]);
    assert!(text(&list).contains("2 blocks"), "{}", text(&list));
    let verify = run(&["ledger", "verify", "--dir", &dir]);
    assert!(verify.status.success(), "{}", text(&verify));
    for command in ["status", "down"] {
        let output = run(&[command, "--dir", &dir]);
        assert_eq!(output.status.code(), Some(4), "{command}: {}", text(&output));
        assert!(text(&output).contains("heddle up"), "{}", text(&output));
    }
}

#[test]
fn a_detached_network_is_found_reopened_and_ended() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("network").display().to_string();
    let up = ["up", "--detach", "--any-ports", "--orgs", "1", "--dir", &dir];
    for made in ["made in", "opened in"] {
        let output = run(&up);
        assert!(output.status.success(), "{}", text(&output));
        assert!(text(&output).contains(made), "{}", text(&output));
        let status = json(&["status", "--dir", &dir, "--json"]);
        assert_eq!(status["peers"].as_array().map(Vec::len), Some(1), "{status:#}");
        let second = run(&up);
        assert_eq!(second.status.code(), Some(1), "two processes for one directory: {}", text(&second));
        let output = run(&["down", "--dir", &dir]);
        assert!(output.status.success(), "{}", text(&output));
    }
    let contradiction = run(&["up", "--dir", &dir, "--orgs", "2"]);
    assert_eq!(contradiction.status.code(), Some(1));
    assert!(text(&contradiction).contains("another directory"), "{}", text(&contradiction));
}

/// Regression: `heddle down` could not end a network that was still starting, and said that it was not running.
#[test]
fn a_network_that_is_starting_is_found_and_ended() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("network");
    let name = dir.display().to_string();
    let mut up = heddle(&["up", "--isolate", "--any-ports", "--orgs", "1", "--dir", &name]);
    let mut up = up.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program can be started");
    let holder = format!("{}\n", up.id());
    while std::fs::read_to_string(dir.join("LOCK")).ok().as_ref() != Some(&holder) {
        assert!(up.try_wait().expect("it is a child").is_none(), "it ended by itself");
        std::thread::sleep(Duration::from_millis(1));
    }
    let down = run(&["down", "--dir", &name]);
    assert!(down.status.success(), "{}", text(&down));
    up.wait().expect("it is a child");
    let status = run(&["down", "--dir", &name]);
    assert_eq!(status.status.code(), Some(4), "{}", text(&status));
}

#[test]
fn damage_is_found_and_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("network");
    let dir = path.display().to_string();
    Network::start(&path, &["--orgs", "1"]).down();
    let mut segments = Vec::new();
    collect(&path.join("peers/Org1"), &mut segments);
    let segment = segments.iter().max_by_key(|segment| segment.1).expect("the ledger has a segment").0.clone();
    let mut bytes = std::fs::read(&segment).expect("it can be read");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&segment, bytes).expect("it can be written");
    let output = run(&["ledger", "verify", "--dir", &dir]);
    assert!(!output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("block 0") || text(&output).contains("segment"), "{}", text(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_that_the_blocks_did_not_leave_behind_is_found() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut states = Vec::new();
    for owner in ["Tom", "Ann"] {
        let path = folder.path().join(owner);
        let network = Network::start(&path, &["--orgs", "1"]);
        let client = network.client(1).await;
        let args = ["asset7", "blue", "5", owner, "100"].map(Bytes::from);
        let committed = client.transact(&network.endpoints.channel, "basic", "CreateAsset", &args).await;
        assert!(committed.expect("it commits").commit.is_valid());
        network.down();
        let verify = run(&["ledger", "verify", "--dir", &path.display().to_string()]);
        assert!(text(&verify).contains("state of 1 keys after 2 blocks"), "{}", text(&verify));
        states.push(path);
    }
    std::fs::rename(states[0].join("peers/Org1/state"), folder.path().join("state")).expect("it is there");
    std::fs::rename(states[1].join("peers/Org1/state"), states[0].join("peers/Org1/state")).expect("it is there");
    let verify = run(&["ledger", "verify", "--dir", &states[0].display().to_string()]);
    assert_eq!(verify.status.code(), Some(3), "{}", text(&verify));
    assert!(text(&verify).contains("\"asset7\" of basic, written by 1:0, has another value"), "{}", text(&verify));
}

/// The segments of blocks below a folder, with their sizes.
fn collect(folder: &std::path::Path, into: &mut Vec<(std::path::PathBuf, u64)>) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "segment") {
            into.push((path.clone(), entry.metadata().map_or(0, |metadata| metadata.len())));
        }
    }
}

#[test]
fn the_printed_configuration_is_the_default_one() {
    let output = run(&["config"]);
    assert!(output.status.success());
    let config = node::HeddleConfig::parse(&text(&output), "heddle config").expect("it parses");
    assert_eq!(config, node::HeddleConfig::default());
}

#[test]
fn a_directory_without_a_network_is_named_in_the_error() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().display().to_string();
    for arguments in [&["status"][..], &["down"], &["ledger", "verify"], &["ledger", "show"]] {
        let mut line = arguments.to_vec();
        line.extend(["--dir", &dir]);
        let output = run(&line);
        assert_eq!(output.status.code(), Some(1), "{line:?}");
        assert!(text(&output).contains("holds no network"), "{}", text(&output));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_contracts_of_a_configuration_are_brought_onto_the_ledger_once() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("network");
    let dir = path.display().to_string();
    let network = Network::start(&path, &["--orgs", "2"]);
    let define = |names: &[&str]| run(&[&["contract", "define", "--dir", &dir], names].concat());
    let unknown = define(&["nowhere"]);
    assert!(!unknown.status.success() && text(&unknown).contains("basic"), "{}", text(&unknown));
    let one = define(&["basic"]);
    assert!(one.status.success() && text(&one).contains("basic        defined: version"), "{}", text(&one));
    let all = define(&[]);
    assert!(all.status.success(), "{}", text(&all));
    assert!(text(&all).contains("basic        is on the ledger already"), "{}", text(&all));
    assert!(text(&all).contains("smallbank    defined: version"), "{}", text(&all));

    let client = network.client(1).await;
    let args = ["asset7", "blue", "5", "Tom", "100"].map(Bytes::from);
    let committed = client.transact(&network.endpoints.channel, "basic", "CreateAsset", &args).await;
    assert!(committed.expect("it commits").commit.is_valid());
    network.settle().await;
    network.down();
    let verify = run(&["ledger", "verify", "--dir", &dir]);
    assert!(verify.status.success(), "{}", text(&verify));
}

#[test]
fn a_contract_is_called_and_followed_from_the_command_line() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("network");
    let dir = path.display().to_string();
    let network = Network::start(&path, &["--orgs", "2", "--policy", "all"]);
    let contract = |arguments: &[&str]| run(&[&["contract"], arguments, &["--dir", &dir]].concat());
    let succeeds = |arguments: &[&str]| {
        let output = contract(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let fails = |arguments: &[&str], code: i32, why: &str| {
        let output = contract(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output));
        assert!(text(&output).contains(why), "{arguments:?}: {}", text(&output));
        assert!(output.stdout.is_empty(), "{arguments:?}: {}", text(&output));
    };

    assert_eq!(succeeds(&["call", "events", "CreateAsset", "car", "blue", "5", "Ada", "-300"]), "");
    let car: Value = serde_json::from_str(&succeeds(&["evaluate", "events", "ReadAsset", "car"])).expect("an asset");
    assert_eq!((car["Owner"].as_str(), car["AppraisedValue"].as_i64()), (Some("Ada"), Some(-300)), "{car}");
    let events = succeeds(&["events", "events", "--from", "0", "--count", "1"]);
    assert!(events.starts_with("1  CreateAsset  {") && events.lines().count() == 1, "{events}");

    fails(&["evaluate", "events", "ReadAsset", "boat"], 1, "boat does not exist");
    fails(&["call", "events", "DeleteAsset", "boat", "--org", "org2"], 1, "boat does not exist");
    fails(&["call", "events", "DeleteAsset", "car", "--endorser", "org1"], 1, "ENDORSEMENT_POLICY_FAILURE");
    fails(&["call", "events", "DeleteAsset", "car", "--endorser", "org9"], 1, "org9");
    fails(&["call", "events", "DeleteAsset", "car", "--org", "org9"], 1, "org9");
    fails(&["call", "events", "DeleteAsset", "car", "--transient", "price"], 2, "KEY=VALUE");
    succeeds(&["call", "events", "DeleteAsset", "car", "--endorser", "org1", "--endorser", "org2"]);
    network.down();
}
