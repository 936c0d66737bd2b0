//! Tests the benchmarks as users run them: `heddle bench …`, which becomes `heddle-bench`.

#![allow(clippy::disallowed_methods, reason = "files of tests need not outlive a loss of power")]

mod bench;

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// Another program of the workspace. It lies beside the one that is tested here.
fn program(name: &str, package: &str) -> PathBuf {
    let path = std::path::Path::new(env!("CARGO_BIN_EXE_heddle-bench")).with_file_name(name);
    assert!(path.is_file(), "build it: cargo build --package {package}, in the profile of this test");
    path
}

/// The program `heddle` with these arguments.
fn heddle(arguments: &[&str]) -> Command {
    let mut command = Command::new(program("heddle", "heddle"));
    command.args(arguments);
    // In a release both lie beside the program. Cargo leaves libraries that it builds for tests where the tests are.
    let test = std::env::current_exe().expect("the test has a file");
    command.env("HEDDLE_PUSHDOWN_LIBRARY", test.with_file_name("libheddle_pushdown.so"));
    command.env("HEDDLE_EXECUTOR", test.with_file_name("../heddle-executor"));
    command
}

/// Runs the program until it ends.
fn run(arguments: &[&str]) -> Output {
    heddle(arguments).stdin(Stdio::null()).output().expect("the program can be started")
}

/// The text of both outputs.
fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}
