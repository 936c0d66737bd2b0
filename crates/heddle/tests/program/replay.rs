//! Replays the channel that was recorded from Fabric's peers, with results as recorded, changed and missing.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};

use crate::support::{run, text};

const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../ledger/tests/fabric-channel");
const FILES: [&str; 5] = ["blocks", "expected.json", "state.json", "proposals.json", "identities"];

/// Replays the channel in this directory. Returns the JSON that was written, if any, as well.
fn replay(dir: &Path, scratch: &Path) -> (Output, Option<Value>) {
    let json = scratch.join("replay.json");
    let output = run(&["ledger", "replay", &dir.display().to_string(), "--json", &json.display().to_string()]);
    let written = std::fs::read(json).ok().map(|bytes| serde_json::from_slice(&bytes).expect("it is JSON"));
    (output, written)
}

/// The recorded channel in a folder of links, without one of its files.
fn linked_without(folder: &Path, left_out: &str) {
    let private = ["live", "final"].into_iter().flat_map(|kind| (1..=3).map(move |number| (kind, number)));
    let private = private.map(|(kind, number)| format!("private-{kind}-org{number}.json"));
    let names = FILES.into_iter().map(str::to_owned).chain(private);
    for name in names.filter(|name| name != left_out) {
        symlink(Path::new(RECORDED).join(&name), folder.join(&name)).expect("the folder is new");
    }
}

/// The recorded channel, but `change` was applied to one of its files. The replay finds what the change makes unequal.
fn replay_changed(file: &str, change: impl FnOnce(&mut Value)) -> (Output, Value) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    linked_without(folder.path(), file);
    let recorded = std::fs::read(Path::new(RECORDED).join(file)).expect("it can be read");
    let mut recorded = serde_json::from_slice(&recorded).expect("it is JSON");
    change(&mut recorded);
    std::fs::write(folder.path().join(file), recorded.to_string()).expect("it can be written");
    let (output, written) = replay(folder.path(), folder.path());
    let written = written.unwrap_or_else(|| panic!("no report: {}", text(&output)));
    (output, written)
}

#[test]
fn a_replay_reaches_the_results_of_fabrics_peers() {
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let (output, written) = replay(Path::new(RECORDED), scratch.path());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let written = written.expect("a report");
    let transactions = written["transactions"].as_u64().expect("a number");
    assert!(transactions > 171, "{written:#}");
    let expected = json!({
        "blocks": 171,
        "transactions": transactions,
        "codes_equal": 1.0,
        "commit_hashes_equal": 1.0,
        "state_equal": 1.0,
        "responses": 91,
        "responses_equal": 1.0,
        "responses_different": [],
    });
    assert_eq!(written, expected, "{}", text(&output));
}

#[test]
fn a_replay_finds_a_changed_code() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    linked_without(folder.path(), "expected.json");
    let expected = std::fs::read_to_string(Path::new(RECORDED).join("expected.json")).expect("it can be read");
    let of_block = expected.find("\"number\": 70,").expect("there is a block 70");
    let code = of_block + expected[of_block..].find("\"code\": 5,").expect("its second transaction is invalid");
    let changed = [&expected[..code], "\"code\": 4,", &expected[code + "\"code\": 5,".len()..]].concat();
    std::fs::write(folder.path().join("expected.json"), changed).expect("it can be written");
    let (output, written) = replay(folder.path(), folder.path());
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    let line =
        "block 70, transaction 1 (forged: proposal hash altered): the code is 5 INVALID_ENDORSER_TRANSACTION, not 4";
    assert!(text(&output).contains(line), "{}", text(&output));
    let written = written.expect("a report");
    assert!(written["codes_equal"].as_f64().is_some_and(|share| share < 1.0), "{written:#}");
    assert_eq!((&written["commit_hashes_equal"], &written["state_equal"]), (&json!(1.0), &json!(1.0)));
}

/// Four answers are recorded as others than Fabric's peer gave; the replay names the proposals and what differs.
#[test]
fn a_replay_finds_changed_answers() {
    let change = |recorded: &mut Value| {
        let answers = recorded.as_array_mut().expect("a list");
        let mut replace = |label: &str, field: &str, from: &str, to: &str| {
            let answer = answers.iter_mut().find(|answer| answer["label"] == label).expect("it was recorded");
            let text = answer[field].as_str().expect("a string");
            let end = text.rfind(from).expect("it is there");
            answer[field] = json!([&text[..end], to, &text[end + from.len()..]].concat());
        };
        // The last occurrence is in the endorsed payload, and in the read-write set a version.
        replace("status 399", "response_hex", &hex("status 399"), &hex("status 398"));
        replace("get missing", "response_hex", &hex("nokey"), &hex("mokey"));
        replace("error", "response_hex", &hex("message"), &hex("massage"));
        replace("open range", "rwset_hex", "32", "33");
    };
    let (output, written) = replay_changed("proposals.json", change);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    assert_eq!((&written["codes_equal"], &written["state_equal"]), (&json!(1.0), &json!(1.0)));
    let share = written["responses_equal"].as_f64().expect("a number");
    assert!((share - 87.0 / 91.0).abs() < 1e-9, "{written:#}");
    let different = written["responses_different"].as_array().expect("a list");
    let labels: Vec<&str> = different.iter().filter_map(|answer| answer["label"].as_str()).collect();
    assert_eq!(labels, ["get missing", "open range", "status 399", "error"]);
    assert!(text(&output).contains("answer of peer0.org1.example.com (get missing): the read-write set is"));
}

/// A peer that lacks a private value refuses to read it, where Fabric's peer had it.
#[test]
fn a_replay_needs_the_private_data_of_each_peer() {
    let without_pvt = |recorded: &mut Value| {
        let blocks = recorded.as_array_mut().expect("a list");
        blocks.retain(|block| !block.to_string().contains("\"pvt\""));
    };
    // The other peer has the values that both have, and hands them over.
    let (output, written) = replay_changed("private-final-org1.json", without_pvt);
    assert_eq!((output.status.code(), &written["responses_equal"]), (Some(0), &json!(1.0)), "{}", text(&output));
    let folder = tempfile::tempdir().expect("a temporary folder");
    for name in FILES {
        symlink(Path::new(RECORDED).join(name), folder.path().join(name)).expect("the folder is new");
    }
    let (output, written) = replay(folder.path(), folder.path());
    let written = written.expect("a report");
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    assert_eq!((&written["codes_equal"], &written["state_equal"]), (&json!(1.0), &json!(1.0)));
    assert!(written["responses_equal"].as_f64().is_some_and(|share| share < 0.9), "{written:#}");
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_replay_names_what_is_wrong_with_a_recording() {
    for (left_out, reason) in [
        ("blocks", "there is no blocks/0000.block"),
        ("expected.json", "expected.json: the file is missing"),
        ("state.json", "state.json: the file is missing"),
        ("identities", "identities: "),
    ] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        linked_without(folder.path(), left_out);
        let (output, written) = replay(folder.path(), folder.path());
        assert_eq!((output.status.code(), written), (Some(1), None), "{}", text(&output));
        assert!(text(&output).contains(reason), "{}", text(&output));
    }

    let folder = tempfile::tempdir().expect("a temporary folder");
    linked_without(folder.path(), "blocks");
    let blocks = folder.path().join("blocks");
    std::fs::create_dir(&blocks).expect("the folder is new");
    for entry in std::fs::read_dir(Path::new(RECORDED).join("blocks")).expect("a folder").flatten() {
        symlink(entry.path(), blocks.join(entry.file_name())).expect("the folder is new");
    }
    let file = blocks.join("0009.block");
    let recorded = std::fs::read(&file).expect("it can be read");
    // A byte of a transaction, behind the header; and bytes that are no block at all.
    let mut altered = recorded.clone();
    altered[recorded.len() / 2] ^= 1;
    for (bytes, reason) in [(altered.as_slice(), "the peer does not accept block 9"), (b"none", "it is no block")] {
        std::fs::remove_file(&file).expect("it is there");
        std::fs::write(&file, bytes).expect("it can be written");
        let (output, written) = replay(folder.path(), folder.path());
        assert_eq!((output.status.code(), written), (Some(1), None), "{}", text(&output));
        assert!(text(&output).contains(reason) && text(&output).contains("0009.block"), "{}", text(&output));
    }
}
