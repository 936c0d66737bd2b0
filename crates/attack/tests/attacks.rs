//! Tests the command line of the attack program. Its effect on a network is tested in `crates/heddle/tests`.

use std::process::Command;

#[test]
fn every_attack_is_listed_with_its_pace_and_its_ports() {
    let output = Command::new(env!("CARGO_BIN_EXE_attack")).arg("list").output().expect("it can be run");
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.lines().count() > 40, "{text}");
    for line in text.lines() {
        assert!(line.contains(" a second") && line.contains(": "), "{line}");
    }
    for name in ["slow-handshake", "window-zero", "many-transients", "lying-follower", "churn", "expired-certificate"] {
        assert!(text.lines().any(|line| line.starts_with(name)), "{name} is missing in\n{text}");
    }
}

#[test]
fn an_attack_on_nothing_says_so() {
    let arguments = ["run", "garbage", "--dir", "/no/such/network", "--port", "gateway"];
    let output = Command::new(env!("CARGO_BIN_EXE_attack")).args(arguments).output().expect("it can be run");
    assert_eq!(output.status.code(), Some(2));
}
