//! Programs with far heaps: `support/far_heap.c`, which knows nothing of them, and the ends of both sides.
//!
//! The library is built by `cargo test --workspace`, or `cargo build --package heddle-farmem-preload` with the same profile.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::{heddle, run, text};

const END_TIMEOUT: Duration = Duration::from_secs(20);

/// Compiles the program.
fn program(folder: &Path) -> PathBuf {
    compile(folder, "far_heap")
}

fn compile(folder: &Path, name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/program/support").join(name).with_extension("c");
    let program = folder.join(name);
    let compiled = Command::new("cc").args(["-O1", "-pthread", "-o"]).arg(&program).arg(source).output();
    let compiled = compiled.expect("a C compiler is installed, as for a dependency");
    assert!(compiled.status.success(), "{}", text(&compiled));
    program
}

/// Runs a part of the program with a far heap.
fn run_part(options: &[&str], part: &str) -> Output {
    let folder = tempfile::tempdir().expect("a folder");
    let program = program(folder.path());
    let program = program.to_str().expect("the folder has a name in UTF-8");
    run(&[&["farmem", "run"], options, &["--", program, part]].concat())
}

fn assert_done(output: &Output) {
    assert!(output.status.success() && text(output).contains("done"), "{}: {}", output.status, text(output));
}

/// The count of a line of `--stats`.
fn count(output: &Output, what: &str) -> u64 {
    let text = text(output);
    let line = text.lines().find(|line| line.ends_with(what)).unwrap_or_else(|| panic!("{what} is missing in {text}"));
    line.split_whitespace().next().and_then(|count| count.parse().ok()).expect("a number")
}

#[test]
fn an_unmodified_program_uses_forks_and_gives_back_a_heap_larger_than_its_budget() {
    let output = run_part(&["--budget", "4M", "--memory", "512M", "--stats"], "all");
    assert_done(&output);
    assert!(count(&output, "pages left") > 10_000, "{}", text(&output));
    assert!(count(&output, "because the program needed them") > 1000, "{}", text(&output));
}

#[test]
fn pages_for_which_the_memory_node_has_no_room_lie_in_storage() {
    let storage = tempfile::tempdir().expect("a folder");
    let folder = storage.path().to_str().expect("UTF-8");
    let options = ["--budget", "2M", "--memory", "16M", "--storage", folder, "--storage-size", "512M"];
    for part in ["mappings", "forks"] {
        assert_done(&run_part(&options, part));
    }
    assert_eq!(std::fs::read_dir(storage.path()).expect("it is there").count(), 0, "nothing is left behind");
}

#[test]
fn allocations_fail_when_the_far_heap_is_full() {
    assert_done(&run_part(&["--budget", "4M", "--memory", "128M", "--size", "96M"], "fills-up"));
}

#[test]
fn the_commands_exit_code_is_the_programs() {
    assert_eq!(run_part(&[], "fails").status.code(), Some(7));
    assert_eq!(run_part(&[], "segfaults").status.code(), Some(128 + 11));
    let missing = run(&["farmem", "run", "--", "/nonexistent/program"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing).contains("/nonexistent/program"), "{}", text(&missing));
}

/// A page that nobody serves would read as zeros.
#[test]
fn a_program_ends_with_a_message_when_its_server_is_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = heddle(&["farmem", "run", "--budget", "2M", "--"]);
    command.arg(program(folder.path())).arg("waits").stdin(Stdio::null());
    let mut server = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it can be started");
    let mut lines = BufReader::new(server.stdout.take().expect("it is piped"));
    let mut ready = String::new();
    lines.read_line(&mut ready).expect("it can be read");
    assert_eq!(ready, "ready\n");
    let program = child_of(server.id());
    server.kill().expect("it runs");
    server.wait().expect("it is a child");
    let start = Instant::now();
    while Path::new(&format!("/proc/{program}/maps")).metadata().is_ok() && state(program) != Some('Z') {
        assert!(start.elapsed() < END_TIMEOUT, "the program goes on without its server");
        std::thread::sleep(Duration::from_millis(10));
    }
    // The pipe ends with the last process that has it open.
    let mut errors = String::new();
    server.stderr.take().expect("it is piped").read_to_string(&mut errors).expect("it can be read");
    assert!(errors.contains("so this program ends"), "{errors}");
}

/// Runs a part of the program that pushes functions down, and has the pages of its heap in an executor.
fn run_pushing(options: &[&str], part: &str) -> Output {
    let folder = tempfile::tempdir().expect("a folder");
    let program = compile(folder.path(), "far_pushdown");
    let program = program.to_str().expect("the folder has a name in UTF-8");
    run(&[&["farmem", "run", "--budget", "4M"], options, &["--", program, part]].concat())
}

#[test]
fn functions_use_a_far_heap_whose_home_is_their_executor() {
    assert_done(&run_pushing(&["--executor", "--size", "512M"], "all"));
}

#[test]
fn a_far_heap_larger_than_its_executors_memory_lies_in_storage() {
    let storage = tempfile::tempdir().expect("a folder");
    let folder = storage.path().to_str().expect("UTF-8");
    let options = ["--executor", "--memory", "4M", "--storage", folder, "--storage-size", "256M"];
    assert_done(&run_pushing(&options, "stored"));
    assert_eq!(std::fs::read_dir(storage.path()).expect("it is there").count(), 0, "nothing is left behind");
}

#[test]
fn allocations_fail_on_both_sides_when_the_far_heap_is_full() {
    assert_done(&run_pushing(&["--executor", "--size", "96M"], "fills-up"));
}

/// The program of the other tests, whose forks are refused here.
#[test]
fn an_unmodified_program_runs_with_its_pages_in_an_executor() {
    for part in ["mappings", "system-calls", "executes"] {
        assert_done(&run_part(&["--executor", "--budget", "4M"], part));
    }
    // The heap is that of the executor: no other is full so soon.
    assert_done(&run_part(&["--executor", "--budget", "4M", "--size", "96M"], "fills-up"));
}

#[test]
fn options_of_an_executor_go_with_one() {
    for arguments in
        [&["--contexts", "2"][..], &["--executor", "--stats"], &["--executors", "/run/x", "--storage", "/tmp"]]
    {
        let output = run(&[&["farmem", "run"], arguments, &["--", "true"]].concat());
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    }
}

#[test]
fn functions_are_refused_a_far_heap_that_has_another_home() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = compile(folder.path(), "far_pushdown");
    let mut command = heddle(&["farmem", "run", "--"]);
    let output = command.arg(program).arg("elsewhere").env("PUSHDOWN_LIBRARY", pushdown_library()).output();
    let output = output.expect("it can be started");
    assert!(output.status.success() && text(&output).contains("`heddle farmem run --executor`"), "{}", text(&output));
}

/// Where cargo leaves the library of pushed functions.
fn pushdown_library() -> PathBuf {
    let folder = Path::new(env!("CARGO_BIN_EXE_heddle")).parent().expect("it is in a folder");
    let places = [".", "deps"].map(|place| folder.join(place).join("libheddle_pushdown.so"));
    places.into_iter().find(|place| place.exists()).expect("cargo has built the package heddle-pushdown-caller")
}

fn child_of(parent: u32) -> u32 {
    // A child belongs to the thread that has started it.
    let threads = std::fs::read_dir(format!("/proc/{parent}/task")).expect("it runs").flatten();
    let mut children = threads.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let found = children.find_map(|line| line.split_whitespace().next()?.parse().ok());
    found.expect("the server has started the program")
}

/// The state of a process, as the kernel abbreviates it.
fn state(process: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}
