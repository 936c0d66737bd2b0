//! The executor, started by hand. What it does for programs, `pushdown_caller` tests.

use std::process::{Command, Stdio};

#[test]
fn an_executor_that_is_started_by_hand_says_who_starts_it() {
    let mut executor = Command::new(env!("CARGO_BIN_EXE_heddle-executor"));
    let output = executor.stdin(Stdio::null()).output().expect("it starts");
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("started by the library of programs that push functions down"), "{text}");
}
