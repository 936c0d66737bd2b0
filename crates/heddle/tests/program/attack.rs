//! Runs the attack campaign with one harmless attack, to check that its verdict can be good and bad.

use std::path::PathBuf;
use std::process::{Command, Output};

use crate::support::text;

/// The attacking program, beside the program that it attacks.
pub fn program() -> PathBuf {
    let path = std::path::Path::new(env!("CARGO_BIN_EXE_heddle")).with_file_name("attack");
    assert!(path.is_file(), "build it: cargo build --package heddle-attack, in the profile of this test");
    path
}

fn campaign(more: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.args(["campaign", "--heddle", env!("CARGO_BIN_EXE_heddle"), "--form", "up", "--only", "garbage"]);
    command.args(["--port", "gateway", "--seconds", "1"]).args(more).output().expect("it can be run")
}

#[test]
fn garbage_at_a_gateway_keeps_no_newcomer_waiting() {
    // Far more than a second, since the machine may be busy; the test is not about speed.
    let output = campaign(&["--patience-ms", "4000"]);
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("1 attacks, 0 succeeded"), "{}", text(&output));
}

#[test]
fn an_attack_that_keeps_a_newcomer_waiting_has_succeeded() {
    let output = campaign(&["--patience-ms", "0"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("SUCCEEDED: a newcomer was served after"), "{}", text(&output));
}
