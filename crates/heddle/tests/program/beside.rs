//! Tests how the program finds the other program of a release.

use std::process::{Command, Output};

use crate::support::text;

/// `heddle bench ARGUMENTS` in a directory where `other`, a script, is the program `heddle-bench`.
fn bench(other: Option<&str>, arguments: &[&str]) -> Output {
    // On the file system of the program, so that it can be linked. This process writes neither file: another test may start a
    // process meanwhile, which inherits what is open, and a file that somebody writes to cannot be executed.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary folder");
    let heddle = folder.path().join("heddle");
    std::fs::hard_link(env!("CARGO_BIN_EXE_heddle"), &heddle).expect("it can be linked");
    if let Some(script) = other {
        let path = folder.path().join("heddle-bench");
        let write = "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\"";
        let written = Command::new("sh").args(["-c", write]).arg(&path).arg(script).status();
        assert!(written.expect("it can be started").success());
    }
    Command::new(heddle).arg("bench").args(arguments).output().expect("it can be started")
}

#[test]
fn benchmarks_that_are_not_built_are_named_with_the_line_that_builds_them() {
    for arguments in [&["smallbank"][..], &["--help"], &[]] {
        let output = bench(None, arguments);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        assert!(text(&output).contains("cargo build --release --package heddle-bench"), "{}", text(&output));
        assert_eq!(text(&output).lines().count(), 1, "{}", text(&output));
    }
}

#[test]
fn benchmarks_get_their_arguments_and_give_their_exit_code() {
    let output =
        bench(Some("#!/bin/sh\nfor one; do echo \"<$one>\"; done\nexit 7\n"), &["ycsb", "--help", "-x", "a b"]);
    assert_eq!(output.status.code(), Some(7), "{}", text(&output));
    assert_eq!(text(&output), "<ycsb>\n<--help>\n<-x>\n<a b>\n");
}
