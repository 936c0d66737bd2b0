//! Programs in C whose executors the role *executors* runs (`programs/pooled.c`): confined, limited, supervised.

#![allow(
    clippy::disallowed_methods,
    reason = "the clock limits a case, and files of tests need not outlive a loss of power"
)]

mod running;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use executors::{ExecutorCondition, ExecutorView};
use running::compiled::{compile, folder};
use running::role_process::RoleProcess;

/// Something that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// A program that runs.
struct Program {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// The number of its executor.
    executor: u32,
}

/// The compiled program.
fn pooled() -> PathBuf {
    folder(|folder| compile("cc", &[], &["pooled.c"], &folder.join("pooled"))).join("pooled")
}

/// A role with settings, at a socket of its own.
fn role(settings: &str) -> RoleProcess {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let socket = pooled().with_file_name(format!("role-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
    RoleProcess::start(&socket, settings)
}

impl Program {
    fn start(role: &RoleProcess, case: &str, contexts: u32) -> Program {
        Program::start_with(role, case, contexts, &[])
    }

    fn start_with(role: &RoleProcess, case: &str, contexts: u32, variables: &[(&str, &str)]) -> Program {
        let mut program = Program::begin_with(role, case, contexts, variables);
        let line = program.line();
        let executor = line.strip_prefix("executor ").and_then(|number| number.parse().ok());
        program.executor = executor.unwrap_or_else(|| panic!("no executor: {line}"));
        program
    }

    fn begin(role: &RoleProcess, case: &str, contexts: u32) -> Program {
        Program::begin_with(role, case, contexts, &[])
    }

    fn begin_with(role: &RoleProcess, case: &str, contexts: u32, variables: &[(&str, &str)]) -> Program {
        let mut command = Command::new(pooled());
        command.args([case, &contexts.to_string()]).env("HEDDLE_EXECUTORS", &role.socket).env_remove("LD_LIBRARY_PATH");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).envs(variables.iter().copied());
        let mut child = command.spawn().expect("the program can be started");
        let output = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let input = child.stdin.take();
        Program { child, input, output, executor: 0 }
    }

    /// The next line that it writes.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it writes text");
        line.trim_end().to_owned()
    }

    fn expect(&mut self, line: &str) {
        assert_eq!(self.line(), line);
    }

    /// Closes its input, and expects that it goes well.
    fn finish(mut self) {
        self.input = None;
        loop {
            match self.line().as_str() {
                "ok" => break,
                line => assert!(line.starts_with("calls "), "{line}"),
            }
        }
        assert!(self.child.wait().expect("it is a child").success());
    }

    /// Reads what it says of its calls until there were this many more.
    fn goes_on(&mut self, calls: u64) {
        let first = self.calls();
        while self.calls() < first + calls {}
    }

    fn calls(&mut self) -> u64 {
        let line = self.line();
        line.strip_prefix("calls ").and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("no count: {line}"))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until something holds.
fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn executor_of(role: &RoleProcess, program: &Program) -> Option<ExecutorView> {
    role.view().executors.into_iter().find(|executor| executor.process == program.executor)
}

fn is_alive(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z") && !rest.starts_with(" X"))
}

fn signal(name: &str, process: u32) {
    let sent = Command::new("kill")
        .args([&format!("-{name}"), &process.to_string()])
        .status()
        .expect("there is such a program");
    assert!(sent.success(), "the process is there");
}

fn field(process: u32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("it is there");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("the kernel has it");
    line.trim_start_matches(':').split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn functions_run_in_an_executor_of_the_role_which_ends_with_its_program() {
    let role = role("");
    let mut program = Program::start(&role, "answers", 1);
    let executor = program.executor;
    program.expect("ok");
    assert!(program.child.wait().expect("it is a child").success());
    until("the executor has ended", || (!is_alive(executor)).then_some(()));
    until("the role has noticed", || role.view().executors.is_empty().then_some(()));
}

#[test]
fn an_executor_sees_nothing_of_the_host() {
    let role = role("memory_mib=256 processor=50");
    let mut program = Program::start(&role, "waits", 2);
    program.expect("ready");
    let process = program.executor;
    // The name spaces are its own.
    for space in ["user", "pid", "net", "ipc", "uts", "mnt", "cgroup"] {
        let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/{space}")).expect("it is there");
        assert_ne!(of(&process.to_string()), of("self"), "{space}");
    }
    // It is the only process that it could name, without rights, and with the filter.
    assert_eq!(field(process, "NSpid").split(' ').nth(1), Some("1"));
    assert_eq!((field(process, "CapEff"), field(process, "CapPrm")), ("0".repeat(16), "0".repeat(16)));
    assert_eq!((field(process, "NoNewPrivs"), field(process, "Seccomp")), ("1".to_owned(), "2".to_owned()));
    let root = fs::read_dir(format!("/proc/{process}/root")).expect("it has one");
    assert_eq!(root.count(), 0, "its file system is empty");
    let devices = fs::read_to_string(format!("/proc/{process}/net/dev")).expect("it has a network");
    assert_eq!(devices.lines().skip(2).filter(|line| !line.trim_start().starts_with("lo:")).count(), 0, "{devices}");
    let environment = fs::read(format!("/proc/{process}/environ")).expect("it can be read");
    assert!(!environment.windows(7).any(|word| word == b"PATH=/" || word == b"HEDDLE_"), "none of the role's");
    // The socket, standard error to nowhere, the descriptors of page faults and of its alarm.
    let files: Vec<String> = fs::read_dir(format!("/proc/{process}/fd"))
        .expect("it can be read")
        .map(|entry| fs::read_link(entry.expect("it stays").path()).expect("it is a link").display().to_string())
        .collect();
    assert_eq!(files.len(), 4, "{files:?}");
    assert!(files.iter().all(|file| !file.starts_with('/') || file == "/dev/null"), "{files:?}");
    let groups = fs::read_to_string(format!("/proc/{process}/cgroup")).expect("it can be read");
    assert!(groups.lines().any(|line| line.contains("heddle-executors-")), "{groups}");
    let view = executor_of(&role, &program).expect("it is shown");
    assert_eq!((view.contexts, view.memory_limit_bytes, view.name.as_str()), (2, Some(256 << 20), "pooled"));
    assert!(view.memory_bytes.is_some_and(|bytes| bytes > 0) && view.processor_us.is_some_and(|time| time > 0));
    program.finish();
}

#[test]
fn a_system_call_by_the_executors_own_instruction_ends_it_alone() {
    let role = role("");
    let mut other = Program::start(&role, "calls", 1);
    for call in ["openat", "socket", "kill"] {
        let mut program = Program::start(&role, call, 1);
        let line = program.line();
        assert!(line.starts_with("kind 2: ") && line.contains("forbidden"), "{call}: {line}");
        other.goes_on(200);
    }
    other.finish();
}

#[test]
fn a_function_that_fills_memory_ends_its_executor_and_no_other() {
    let mut role = role("memory_mib=64");
    let mut other = Program::start(&role, "calls", 1);
    other.goes_on(200);
    let mut program = Program::start(&role, "allocates", 1);
    let line = program.line();
    assert_eq!(line, "kind 2: the kernel ended it: it needed more than its memory of 64 MiB");
    other.goes_on(200);
    let page = role.page();
    assert!(page.contains("heddle_executors_ended_for_memory_total 1\n"), "{page}");
    other.finish();
}

/// The folders of an executor's groups in all hierarchies that have one of the role's.
fn groups_of(process: u32) -> Vec<PathBuf> {
    let groups = fs::read_to_string(format!("/proc/{process}/cgroup")).expect("it can be read");
    let groups = groups.lines().filter_map(|line| line.splitn(3, ':').nth(2)).filter(|path| path.contains("heddle-"));
    let groups: Vec<&str> = groups.map(|path| path.trim_start_matches('/')).collect();
    let mounts = fs::read_to_string("/proc/self/mounts").expect("it can be read");
    let roots = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let roots = roots.filter(|fields| fields[2].starts_with("cgroup")).map(|fields| PathBuf::from(fields[1]));
    let folders = roots.flat_map(|root| groups.iter().map(move |group| root.join(group)));
    folders.filter(|folder| folder.exists()).collect()
}

#[test]
fn the_executors_of_an_owner_have_a_limit_of_memory_together() {
    let role = role("memory_mib=80 owner_memory_mib=96 owner_processor=400");
    let mut holder = Program::start(&role, "holds", 1);
    holder.expect("ready");
    let groups = groups_of(holder.executor);
    assert!(!groups.is_empty(), "it has some");
    let around: Vec<PathBuf> = groups.iter().filter_map(|group| group.parent().map(PathBuf::from)).collect();
    assert!(around.iter().all(|group| group.display().to_string().contains("-owner-")), "{around:?}");
    // It would have the memory, if the other had less.
    let line = Program::start(&role, "allocates", 1).line();
    let together = "the executors of its owner needed more than their memory of 96 MiB together";
    assert_eq!(line, format!("kind 2: the kernel ended it: {together}"));
    // The kernel ends the largest one: the other goes on.
    holder.finish();
    until("the executor has ended", || role.view().executors.is_empty().then_some(()));
    until("its owner's group is gone", || around.iter().all(|group| !group.exists()).then_some(()));
    let line = Program::start(&role, "allocates", 1).line();
    assert_eq!(line, "kind 2: the kernel ended it: it needed more than its memory of 80 MiB");
}

/// How many bytes of its own a process has in memory.
fn memory_of(process: u32) -> u64 {
    let kibibytes = field(process, "RssAnon");
    let kibibytes = kibibytes.split(' ').next().and_then(|number| number.parse::<u64>().ok());
    kibibytes.expect("the kernel writes a number") << 10
}

#[test]
fn a_function_uses_several_times_its_executors_memory_with_storage() {
    let role = role("memory_mib=64 storage_mib=512");
    let mut programs: Vec<Program> = [("0", 64 << 20), ("2097152", 12 << 20), ("1073741824", 64 << 20)]
        .into_iter()
        .map(|(memory, most)| {
            let mut program = Program::start_with(&role, "far", 1, &[("PUSHDOWN_MEMORY", memory)]);
            program.expect("ready");
            // It wants less in memory than the role lets it have, or more.
            let used = memory_of(program.executor);
            assert!(used < most, "{used} with {memory}");
            program
        })
        .collect();
    let files = fs::read_link(format!("/proc/{}/fd/100", programs[0].executor)).expect("it has a file");
    assert!(files.display().to_string().ends_with(" (deleted)"), "{files:?}");
    programs.drain(..).for_each(Program::finish);
}

#[test]
fn a_function_that_uses_more_than_memory_and_storage_ends_its_executor_by_name() {
    for (settings, reason) in [
        ("memory_mib=64", "the kernel ended it: it needed more than its memory of 64 MiB"),
        ("memory_mib=64 storage_mib=64", "its storage of 64 MiB is full, and it needed more memory than it has"),
    ] {
        assert_eq!(Program::start(&role(settings), "far", 1).line(), format!("kind 2: {reason}"));
    }
}

/// By an instruction of the executor's own program, which does not look at bounds then.
#[test]
fn no_instruction_writes_more_than_storage_may_have() {
    const STORAGE_BYTES: u64 = 64 << 20;
    let role = role("memory_mib=256 storage_mib=64");
    let mut program = Program::start(&role, "writes_beyond", 1);
    program.expect("ready");
    let process = program.executor;
    let limits = fs::read_to_string(format!("/proc/{process}/limits")).expect("it can be read");
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max file size")).expect("the kernel has it");
    assert_eq!(limit.split_whitespace().take(2).collect::<Vec<_>>(), [&STORAGE_BYTES.to_string()[..]; 2]);
    let file = fs::File::open(format!("/proc/{process}/fd/100")).expect("the file is this user's");
    let mut input = program.input.take().expect("it is a pipe");
    // Two pages from the last one on: the first of them fits.
    writeln!(input, "{}", STORAGE_BYTES - 4096).expect("it reads");
    let bytes = until("it has written", || Some(file.metadata().expect("it is open").len()).filter(|bytes| *bytes > 0));
    assert_eq!(bytes, STORAGE_BYTES);
}

#[test]
fn a_program_cannot_choose_where_the_role_stores_pages() {
    let role = role("memory_mib=64 storage_mib=64");
    let line = Program::begin_with(&role, "answers", 1, &[("PUSHDOWN_STORAGE", "/var/pages")]).line();
    assert!(line.contains("/var/pages") && line.contains("leave the option storage out"), "{line}");
}

#[test]
fn a_stopped_executor_is_sick_and_then_killed_and_no_other_is() {
    let mut role = role("silence_ms=1500");
    let mut other = Program::start(&role, "calls", 1);
    let mut program = Program::start(&role, "runs", 1);
    program.expect("begun");
    signal("STOP", program.executor);
    let sick = until("it is sick", || {
        executor_of(&role, &program).filter(|executor| executor.condition == ExecutorCondition::Sick)
    });
    assert!(sick.silence_ms >= 1500 / 4, "{sick:?}");
    let page = role.page();
    assert!(page.contains("heddle_executors_sick 1\n") && page.contains("has not answered for"), "{page}");
    let line = program.line();
    assert!(line.starts_with("kind 2: it did not answer for "), "{line}");
    assert!(role.page().contains("heddle_executors_ended_for_silence_total 1\n"));
    other.goes_on(200);
    let view = executor_of(&role, &other).expect("it is there");
    assert_eq!(view.condition, ExecutorCondition::Serving);
    other.finish();
}

#[test]
fn the_executor_of_a_killed_program_ends_within_a_second() {
    let role = role("");
    let mut program = Program::start(&role, "runs", 1);
    program.expect("begun");
    program.child.kill().expect("it is a child");
    let killed = Instant::now();
    while is_alive(program.executor) {
        assert!(killed.elapsed() < Duration::from_secs(1), "the executor is still there");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn executors_end_with_a_killed_role_and_programs_are_told() {
    let mut role = role("");
    let mut program = Program::start(&role, "runs", 1);
    program.expect("begun");
    role.kill();
    assert_eq!(program.line(), "kind 2: the role executors has ended");
    until("the executor has ended", || (!is_alive(program.executor)).then_some(()));
}

#[test]
fn bounds_are_refused_by_name() {
    let role = role("per_owner=2 contexts=3");
    let mut programs: Vec<Program> = (0..2).map(|_| Program::start(&role, "waits", 1)).collect();
    programs.iter_mut().for_each(|program| program.expect("ready"));
    for (contexts, named) in [(4, "the role allows 3"), (1, "as many as one owner may have (--per-owner)")] {
        let mut refused = Program::begin(&role, "answers", contexts);
        let line = refused.line();
        assert!(line.starts_with("not opened: the role executors at ") && line.contains(named), "{line}");
        assert_eq!(refused.child.wait().expect("it is a child").code(), Some(3));
    }
    programs.into_iter().for_each(Program::finish);
    // A place is free once its executor has ended.
    until("there is room", || role.view().executors.is_empty().then_some(()));
    Program::start(&role, "answers", 1).expect("ok");
}

#[test]
fn a_running_call_and_a_queue_are_shown() {
    let mut role = role("");
    let mut program = Program::start(&role, "queue", 1);
    program.expect("queued");
    let view = until("one runs and two wait", || {
        executor_of(&role, &program).filter(|view| (view.running, view.waiting) == (1, 2))
    });
    assert_eq!((view.contexts, view.begun), (1, 1));
    let page = role.page();
    for line in [
        "heddle_executors_calls_waiting 2\n",
        "heddle_executors_contexts_running 1\n",
        "heddle_executors_serving 1\n",
        "heddle_executors_owner_open{owner=\"",
    ] {
        assert!(page.contains(line), "{line} in {page}");
    }
    let begun_before = view.begun;
    program.input = None;
    program.expect("ok");
    assert!(program.child.wait().expect("it is a child").success());
    until("the executor has ended", || role.view().executors.is_empty().then_some(()));
    let page = role.page();
    assert!(page.contains("heddle_executors_calls_returned_total 3\n"), "{begun_before} {page}");
    assert!(page.contains("heddle_executors_ended_with_program_total 1\n"), "{page}");
}

#[test]
fn a_role_that_stops_lets_functions_end_and_admits_nobody() {
    let mut role = role("grace_ms=60000");
    let mut program = Program::start(&role, "queue", 1);
    program.expect("queued");
    until("one runs", || executor_of(&role, &program).filter(|view| view.running == 1));
    role.begin_stop();
    until("it is stopping", || role.view().is_stopping.then_some(()));
    let line = Program::begin(&role, "answers", 1).line();
    assert!(line.contains("the role is stopping"), "{line}");
    // The functions go on until they return.
    program.input = None;
    program.expect("ok");
    role.wait();
}

#[test]
fn the_grace_of_a_role_that_stops_has_an_end() {
    let mut role = role("grace_ms=200");
    let mut program = Program::start(&role, "runs", 1);
    program.expect("begun");
    role.begin_stop();
    assert_eq!(program.line(), "kind 2: the role executors has stopped");
    role.wait();
}

#[test]
fn executors_without_namespaces_and_limits_serve_too() {
    let role = role("namespaces=0 limits=0");
    let mut program = Program::start(&role, "answers", 1);
    program.expect("ok");
    let forbidden = Program::start(&role, "socket", 1).line();
    assert!(forbidden.contains("forbidden"), "{forbidden}");
}
