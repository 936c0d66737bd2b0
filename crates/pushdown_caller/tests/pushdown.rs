//! Programs in C and C++ that push functions down: `programs/features.c` and `programs/features.cpp`, one test a case. Those of one thread
//! run in each mode of coherence; `programs/modes.c` has what the modes differ in.
//!
//! With `HEDDLE_TEST_EXECUTORS=1` in the environment the role *executors* runs the executors of all cases.
//!
//! The executor's program is built with its own test (`--test executor`), or by `cargo build --package heddle-pushdown-executor` with the
//! same profile.

#![allow(
    clippy::disallowed_methods,
    reason = "the clock limits a case, and files of tests need not outlive a loss of power"
)]

mod running;

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use running::compiled::{self, compile, executor};
use running::role_process::RoleProcess;

/// A case that takes longer hangs; `HEDDLE_STRESS_SECONDS` is added for those that run for that time.
const CASE_TIMEOUT: Duration = Duration::from_secs(180);

/// A case keeps two processors busy. Beside others it would be slow, and a hang hard to tell from it.
static ONE_CASE: Mutex<()> = Mutex::new(());

/// One test a case.
macro_rules! cases {
    ($program:ident: $($case:ident)+) => {
        mod $program {
            $(#[test] fn $case() { super::assert_ok(stringify!($program), stringify!($case), "0"); })+
        }
    };
    // In the mode with this number, of C's flags.
    ($mode:ident = $number:literal: $($case:ident)+) => {
        mod $mode {
            $(#[test] fn $case() { super::assert_ok("c", stringify!($case), $number); })+
        }
    };
}

cases! { c:
    empty statics thread_local stack function_pointer list allocate many_pages syncmem
    unmapped mmap file_mapping mremap mprotect shared_mapping
    kinds scattered fork_large fork_beside fork_beside_allocation far_memory far_beside far_refused far_evicted far_dropped freed neighbours constant_written without_access served_elsewhere
    files stdio getpid time qsort wide_characters rounding dlsym dlopen fork signals
    mutex condition atomics false_sharing threads threads_in_turn contexts
    litmus histories
    blocks blocks_trimmed blocks_threads blocks_library blocks_alarms lines_of_both slots_changed dropped_ahead moved_ahead
    sigsegv sigfpe sigill sigbus recursion abort null_function nested unknown_flags lost lost_calls
    timeout timeout_of_running or_here again try_cancel terms_are_checked busy cancel_races
    limit limit_of_page_given_back limit_of_options limit_beside limit_faults limit_in_system_call limit_in_lock limit_mappings limit_races
    call_times message_counts sent_ahead syncmem_before_calls
    frozen_queue frozen_ring busy_is_not_frozen stopped_together
    counter neighbours_written handover other_mode mixed_modes moved_and_copied stress
}

cases! { pso = "1":
    statics thread_local stack list allocate syncmem unmapped mmap mremap mprotect kinds scattered freed neighbours
    files stdio qsort dlsym dlopen fork signals mutex sigsegv recursion abort lost
    counter watcher neighbours_written handover other_mode moved_and_copied stress
}

cases! { weak = "2":
    statics thread_local stack list allocate syncmem unmapped mmap mremap mprotect kinds scattered freed neighbours
    files stdio qsort dlsym dlopen fork signals sigsegv recursion abort lost
    watcher neighbours_written handover byte_ranges other_mode moved_and_copied stress
}

cases! { off = "3":
    statics thread_local stack list allocate syncmem unmapped mmap mremap mprotect kinds scattered freed neighbours
    files stdio qsort dlsym dlopen fork signals sigsegv recursion abort lost
    watcher neighbours_written handover byte_ranges other_mode moved_and_copied stress
}

cases! { cpp:
    vtables closures exceptions iostream strings shared_ptr static_init thread_local_objects terms
}

#[test]
fn an_imitated_link_delays_each_message() {
    let run = run_with("c", "imitated_link", "0", &executor(), &[("HEDDLE_PUSHDOWN_LINK", "1200,7000000000")]);
    assert!(run.status.success() && run.stdout == "ok\n", "{}\n{}{}", run.status, run.stdout, run.stderr);
}

/// Far memory that is larger than the executor's memory, above a file.
#[test]
fn the_executor_stores_pages_that_it_has_no_memory_for() {
    for case in ["far_stored", "far_memory", "far_beside", "kinds", "fork_large", "freed"] {
        let run = run_with("c", case, "0", &executor(), &[("PUSHDOWN_STORAGE", env!("CARGO_TARGET_TMPDIR"))]);
        assert!(
            run.status.success() && run.stdout.ends_with("ok\n"),
            "{case}: {}\n{}{}",
            run.status,
            run.stdout,
            run.stderr
        );
    }
}

#[test]
fn opening_fails_with_a_reason_when_there_is_no_folder_for_storage() {
    let run = run_with("c", "empty", "0", &executor(), &[("PUSHDOWN_STORAGE", "/nonexistent")]);
    assert_eq!(run.status.code(), Some(1), "{}", run.stderr);
    assert!(run.stderr.contains("not opened") && run.stderr.contains("/nonexistent"), "{}", run.stderr);
}

/// The process ends as if the caller had called `exit`: handlers run, and buffers are written.
#[test]
fn a_function_that_calls_exit_ends_the_process_with_its_status() {
    let run = run_case("c", "exit", "0");
    assert_eq!((run.status.code(), run.stdout.as_str()), (Some(3), "caller function handler"), "{}", run.stderr);
}

/// Threads that wait for pages when the executor is lost do not wait for ever.
#[test]
fn a_process_that_needs_lost_pages_ends_with_a_message() {
    let run = run_case("c", "lost_faults", "0");
    assert_eq!(run.status.code(), Some(70), "{}", run.stderr);
    assert!(run.stderr.contains("is gone, and with it the page at 0x"), "{}", run.stderr);
}

#[test]
fn the_executor_of_a_killed_process_ends_within_a_second() {
    let _one = ONE_CASE.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut child, output) = start("c", "killed", "0", &executor(), &[]);
    let begun = Instant::now();
    let process: u32 = loop {
        let text = fs::read_to_string(&output.stdout).expect("the file is there");
        match text.strip_prefix("executor ").and_then(|rest| rest.strip_suffix('\n')) {
            Some(process) => break process.parse().expect("it is a number"),
            None => assert!(begun.elapsed() < CASE_TIMEOUT, "it says nothing: {text}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(is_alive(process), "the executor runs");
    child.kill().expect("it can be killed");
    let killed = Instant::now();
    child.wait().expect("it is a child");
    while is_alive(process) {
        assert!(killed.elapsed() < Duration::from_secs(1), "the executor is still there");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether a process exists and has not ended. Its new parent may be slow to notice.
fn is_alive(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z") && !rest.starts_with(" X"))
}

#[test]
fn an_executor_that_does_not_answer_is_named_and_given_up() {
    let run = run_case("c", "frozen", "0");
    assert!(run.status.success() && run.stdout == "ok\n", "{}\n{}{}", run.status, run.stdout, run.stderr);
    let [warning, end] = run.stderr.lines().collect::<Vec<_>>()[..] else { panic!("two messages: {}", run.stderr) };
    assert!(warning.contains("has not answered") && end.contains("given up"), "{}", run.stderr);
}

#[test]
fn a_page_of_an_executor_that_does_not_answer_ends_the_program_with_a_message() {
    let run = run_case("c", "frozen_page", "0");
    assert_eq!((run.status.code(), run.stdout.as_str()), (Some(70), ""), "{}", run.stderr);
    assert!(run.stderr.contains("given up") && run.stderr.contains("the page at"), "{}", run.stderr);
}

#[test]
fn opening_fails_with_a_reason_when_there_is_no_executor() {
    let missing = Path::new("/nonexistent/heddle-executor");
    let run = run_with("c", "empty", "0", missing, &[]);
    assert_eq!(run.status.code(), Some(1), "{}", run.stderr);
    assert!(run.stderr.contains("not opened") && run.stderr.contains("/nonexistent/heddle-executor"), "{}", run.stderr);
}

fn assert_ok(program: &str, case: &str, mode: &str) {
    let run = run_case(program, case, mode);
    let is_ok = run.status.success() && run.stdout.ends_with("ok\n");
    assert!(is_ok, "{program} {case}, mode {mode}: {}\n{}{}", run.status, run.stdout, run.stderr);
    // What a case has counted, for `--show-output`.
    print!("{}", run.stdout);
}

/// How a case ended.
struct Run {
    status: ExitStatus,
    stdout: String,
    stderr: String,
}

fn run_case(program: &str, case: &str, mode: &str) -> Run {
    run_with(program, case, mode, &executor(), &[])
}

fn run_with(program: &str, case: &str, mode: &str, executor: &Path, variables: &[(&str, &str)]) -> Run {
    let _one = ONE_CASE.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut child, output) = start(program, case, mode, executor, variables);
    let status = wait(&mut child);
    let [stdout, stderr] = [output.stdout, output.stderr].map(|file| {
        let text = fs::read(file).expect("the file is there");
        String::from_utf8_lossy(&text).into_owned()
    });
    let Some(status) = status else {
        panic!("{program} {case} has not ended within {} s:\n{stdout}{stderr}", case_timeout().as_secs());
    };
    Run { status, stdout, stderr }
}

/// The files to which a case writes. Not pipes: a process that hangs would keep them open.
struct OutputFiles {
    stdout: PathBuf,
    stderr: PathBuf,
}

fn start(program: &str, case: &str, mode: &str, executor: &Path, variables: &[(&str, &str)]) -> (Child, OutputFiles) {
    let output = OutputFiles { stdout: folder().join("stdout"), stderr: folder().join("stderr") };
    let mut command = Command::new(folder().join(program));
    command.arg(case).env("HEDDLE_EXECUTOR", executor).env("PUSHDOWN_MODE", mode).stdin(Stdio::null()).process_group(0);
    command.envs(variables.iter().copied());
    if let Some(role) = role().filter(|_| executor.exists()) {
        command.env("HEDDLE_EXECUTORS", role);
    }
    // Cargo sets it, and an older build of the library may lie there.
    command.env_remove("LD_LIBRARY_PATH");
    command.stdout(File::create(&output.stdout).expect("the folder is writable"));
    command.stderr(File::create(&output.stderr).expect("the folder is writable"));
    (command.spawn().expect("the program can be started"), output)
}

/// Waits until the program has ended; kills it, and its executor, if it hangs.
fn wait(child: &mut Child) -> Option<ExitStatus> {
    let start = Instant::now();
    while start.elapsed() < case_timeout() {
        if let Some(status) = child.try_wait().expect("it is a child") {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let group = format!("-{}", child.id());
    let killed = Command::new("kill").args(["-KILL", "--", &group]).status().expect("there is such a program");
    assert!(killed.success(), "the group of the program is there");
    child.wait().expect("it is a child");
    None
}

fn case_timeout() -> Duration {
    let stress = std::env::var("HEDDLE_STRESS_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    CASE_TIMEOUT + Duration::from_secs(stress.unwrap_or(0))
}

/// The folder with the compiled programs.
fn folder() -> &'static Path {
    compiled::folder(|folder| {
        let c = [
            "features.c",
            "memory.c",
            "mappings.c",
            "unusual_memory.c",
            "far.c",
            "system.c",
            "threads.c",
            "litmus.c",
            "histories.c",
            "changing.c",
            "slots.c",
            "modes.c",
            "failures.c",
            "terms.c",
            "limits.c",
            "measured.c",
            "silence.c",
        ];
        compile("cc", &[], &c, &folder.join("c"));
        compile("c++", &["-std=c++17"], &["features.cpp"], &folder.join("cpp"));
    })
}

/// The socket of the role that runs all executors, if that is wanted.
fn role() -> Option<PathBuf> {
    static ROLE: OnceLock<Mutex<RoleProcess>> = OnceLock::new();
    std::env::var_os("HEDDLE_TEST_EXECUTORS")?;
    let role = ROLE.get_or_init(|| Mutex::new(RoleProcess::start(&folder().join("role"), "")));
    Some(role.lock().unwrap_or_else(PoisonError::into_inner).socket.clone())
}
