//! A short measurement against a real network from the command line. Nothing here asserts speed.

mod support;

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{heddle, run, text};

#[test]
fn a_measurement_reports_valid_transactions_and_its_ratio_to_the_crypto_floor() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (json, plot) = (folder.path().join("r.json"), folder.path().join("r.svg"));
    let output = run(&[
        "bench",
        "smallbank",
        "--seconds",
        "2",
        "--warm-up",
        "0.5",
        "--clients",
        "20",
        "--accounts",
        "500",
        "--json",
        &json.display().to_string(),
        "--plot",
        &plot.display().to_string(),
    ]);
    assert!(output.status.success(), "{}", text(&output));
    let report: Value = serde_json::from_slice(&std::fs::read(&json).expect("it was written")).expect("JSON");
    assert_eq!(report["figure"], "smallbank");
    assert!(report["valid_tps"].as_f64().is_some_and(|tps| tps > 1.0), "{report:#}");
    assert!(report["ratios"]["server_cpu_over_crypto_floor"].as_f64().is_some_and(|ratio| ratio > 0.5), "{report:#}");
    assert_eq!(report["rows"][0]["errors"], serde_json::json!({}), "{report:#}");
    assert_eq!(report["rows"][1]["verifications"], 9);
    assert!(text(&output).contains("crypto floor"));
    assert!(std::fs::read_to_string(&plot).expect("it was drawn").contains("<svg"));
}

#[test]
fn every_workload_runs_and_commits_through_events_and_with_several_endorsers() {
    for arguments in [
        &["ycsb", "--records", "200", "--mix", "read=40,update=30,rmw=10,scan=10,insert=10", "--wait", "events"][..],
        &["kmeans", "--profiles", "100", "--points", "20", "--k", "4", "--policy", "majority"],
        &["smallbank", "--accounts", "100", "--zipf", "0.9", "--orgs", "1", "--no-tls"],
    ] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let json = folder.path().join("r.json").display().to_string();
        let mut line = vec!["bench"];
        line.extend(arguments);
        line.extend(["--seconds", "1", "--warm-up", "0", "--clients", "10", "--json", &json]);
        let output = run(&line);
        assert!(output.status.success(), "{line:?}: {}", text(&output));
        let report: Value = serde_json::from_slice(&std::fs::read(&json).expect("it was written")).expect("JSON");
        assert!(report["rows"][0]["valid"].as_u64().is_some_and(|valid| valid > 0), "{line:?}: {report:#}");
        let errors = report["rows"][0]["errors"].as_object().expect("an object");
        // Peers at different heights may read different versions, which clients of Fabric have to expect.
        let expected = |error: &Value| error["example"].as_str().is_some_and(|text| text.contains("do not match"));
        assert!(errors.values().all(expected), "{line:?}: {report:#}");
    }
}

#[test]
fn a_signal_ends_a_measurement_and_leaves_nothing_behind() {
    // Ctrl-C while clients are at work, and what a service manager sends while accounts are still loaded.
    interrupt(rustix::process::Signal::INT, "100");
    interrupt(rustix::process::Signal::TERM, "1000000");
}

fn interrupt(signal: rustix::process::Signal, accounts: &str) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut command = heddle(&["bench", "smallbank", "--seconds", "100", "--clients", "10", "--accounts", accounts]);
    command.env("TMPDIR", folder.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program can be started");
    let start = Instant::now();
    let network = loop {
        assert!(start.elapsed() < Duration::from_secs(60), "the network did not start");
        let inside = std::fs::read_dir(folder.path()).expect("a folder").flatten().next();
        match inside.map(|entry| node::Endpoints::load(&entry.path().join("network"))) {
            Some(Ok(endpoints)) => break endpoints.process,
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    std::thread::sleep(Duration::from_millis(1_500));
    let process = rustix::process::Pid::from_raw(child.id() as i32).expect("a process");
    rustix::process::kill_process(process, signal).expect("it runs");
    let status = child.wait().expect("it is a child");
    assert_eq!(status.code(), Some(130), "{signal:?}");
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0, "the temporary network is removed");
    assert!(!std::path::Path::new(&format!("/proc/{network}")).exists(), "the network's process has ended");
}
