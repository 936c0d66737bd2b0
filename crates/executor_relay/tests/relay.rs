//! Programs in C whose executors run behind the relay, over mutual TLS: both hosts are this one, but program and executor have no memory in
//! common. The programs are those of the library's tests (`pushdown_caller/tests/programs`).

#![allow(
    clippy::disallowed_methods,
    reason = "the clock limits a case, and files of tests need not outlive a loss of power"
)]

#[path = "../../pushdown_caller/tests/running/compiled.rs"]
mod compiled;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use base::rt::net;
use base::rt::production::Runtime;
use compiled::{compile, executor, folder};
use executor_relay::{ExecutorsEnd, ExecutorsEndSettings, ProgramEnd, ProgramEndSettings, RelayError, Tenant};
use executors::{ExecutorCondition, ExecutorView, ExecutorsRole, ExecutorsSettings, OwnersAllowed};
use identity::issue::{CertificateTerms, IssuingOrganization};
use identity::{KeyKind, MemberRole};
use link_transport::{LinkTlsIdentity, OrganizationRoots, TlsTransport};

/// Something that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(120);
/// Who the tenant's programs are at the executors' host, if the role is root.
const TENANT: u32 = 65_534;

/// Schemes of addresses, each with the certificate of an organisation: `executors:host:port` listens with that of the executors' host.
fn register_transports() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        let organisations = ["executors", "programs", "strangers"].map(|name| {
            let terms = CertificateTerms::starting_now(KeyKind::P256);
            let made = IssuingOrganization::create(name, &format!("{name}.example.com"), &terms);
            (name, made.expect("an organisation"))
        });
        let roots = organisations.iter().map(|(name, organisation)| OrganizationRoots {
            name: (*name).to_owned(),
            roots_pem: organisation.tls_authority().certificate_pem().to_vec(),
        });
        let roots: Vec<_> = roots.collect();
        for (name, organisation) in &organisations {
            let own = organisation.issue_tls(MemberRole::Peer, "peer0", &["127.0.0.1"]).expect("a certificate");
            let own = LinkTlsIdentity { certificate_pem: own.certificate_pem.to_vec(), key_pem: own.key_pem.to_vec() };
            net::register(name, Arc::new(TlsTransport::new(&own, &roots).expect("they fit")));
        }
    });
}

/// Both ends, and the role.
struct Relay {
    // Dropped in this order.
    programs: Option<ProgramEnd>,
    executors: Option<ExecutorsEnd>,
    role: ExecutorsRole,
    _runtime: Runtime,
    socket: PathBuf,
}

fn program_end(socket: &Path, address: &str) -> ProgramEndSettings {
    ProgramEndSettings {
        socket: socket.to_owned(),
        address: address.to_owned(),
        organisation: "executors".to_owned(),
        owners: OwnersAllowed::Own,
        programs_max: 8,
        per_owner_max: 4,
    }
}

impl Relay {
    fn start(change: impl FnOnce(&mut ExecutorsSettings)) -> Relay {
        Relay::start_as("programs", change)
    }

    /// The program's end has a certificate of `organisation`.
    fn start_as(organisation: &str, change: impl FnOnce(&mut ExecutorsSettings)) -> Relay {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        register_transports();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let [socket, role_socket] = ["relay", "role"].map(|name| programs().join(format!("{name}-{number}")));
        let mut settings = ExecutorsSettings::new(role_socket.clone(), executor());
        settings.owners = OwnersAllowed::Any;
        (settings.executors_max, settings.per_owner_max, settings.contexts_max) = (64, 64, 16);
        (settings.memory_bytes, settings.processor_percent) = (Some(4 << 30), Some(400));
        change(&mut settings);
        let role = ExecutorsRole::start(settings).unwrap_or_else(|error| panic!("no role: {error}"));
        let runtime = Runtime::new(2).expect("a runtime");
        let tenants = BTreeMap::from([("programs".to_owned(), tenant())]);
        let (executors, programs) = runtime.block_on(async {
            let listen = "executors:127.0.0.1:0".to_owned();
            let settings = ExecutorsEndSettings { listen, role: role_socket, tenants, per_tenant_max: 8 };
            let executors = ExecutorsEnd::start(settings).await.expect("a port is free");
            let address = executors.address().replace("executors:", &format!("{organisation}:"));
            let programs = ProgramEnd::start(program_end(&socket, &address)).expect("a socket");
            (executors, programs)
        });
        Relay { programs: Some(programs), executors: Some(executors), role, _runtime: runtime, socket }
    }

    fn executor_of(&self, program: &Program) -> Option<ExecutorView> {
        self.role.view().executors.into_iter().find(|executor| executor.process == program.executor)
    }
}

fn tenant() -> Tenant {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    if user == 0 { Tenant { user: TENANT, group: TENANT } } else { Tenant { user, group } }
}

/// The folder with the compiled programs.
fn programs() -> &'static Path {
    folder(|folder| {
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
        compile("cc", &[], &["pooled.c"], &folder.join("pooled"));
        compile("cc", &[], &["elsewhere.c"], &folder.join("elsewhere"));
    })
}

/// A program that runs.
struct Program {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    executor: u32,
}

impl Program {
    fn start(relay: &Relay, program: &str, case: &str) -> Program {
        let mut program = Program::begin(relay, program, case);
        let line = program.line();
        let executor = line.strip_prefix("executor ").and_then(|number| number.parse().ok());
        program.executor = executor.unwrap_or_else(|| panic!("no executor: {line}"));
        program
    }

    fn begin(relay: &Relay, program: &str, case: &str) -> Program {
        let mut command = Command::new(programs().join(program));
        command.arg(case).env("HEDDLE_EXECUTORS", &relay.socket).env_remove("LD_LIBRARY_PATH");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the program can be started");
        let output = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let input = child.stdin.take();
        Program { child, input, output, executor: 0 }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it writes text");
        line.trim_end().to_owned()
    }

    /// Closes its input, and expects that it goes well.
    fn finish(mut self) {
        self.input = None;
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("it writes text");
        let status = self.child.wait().expect("it is a child");
        assert!(status.success() && rest.ends_with("ok\n"), "{status}: {rest}");
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

/// Runs a case of the library's tests.
fn run(relay: &Relay, case: &str, mode: &str) {
    let mut command = Command::new(programs().join("c"));
    command.arg(case).env("HEDDLE_EXECUTORS", &relay.socket).env("PUSHDOWN_MODE", mode).env_remove("LD_LIBRARY_PATH");
    let output = command.stdin(Stdio::null()).output().expect("the program can be started");
    let [stdout, stderr] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success() && stdout.ends_with("ok\n"), "{case}: {}\n{stdout}{stderr}", output.status);
}

#[test]
fn functions_find_their_program_on_the_other_host() {
    let relay = Relay::start(|_| {});
    for case in
        ["statics", "allocate", "mmap", "far_memory", "files", "time", "dlopen", "fork", "mutex", "sigsegv", "timeout"]
    {
        run(&relay, case, "0");
    }
    run(&relay, "handover", "2");
    until("all executors have ended", || relay.role.view().executors.is_empty().then_some(()));
}

/// All of them, as the library's own tests have them.
#[test]
#[ignore = "minutes; part of `cargo xtask nightly`"]
fn all_cases_of_the_library_pass_behind_the_relay() {
    let relay = Relay::start(|_| {});
    for case in [
        "empty",
        "thread_local",
        "stack",
        "function_pointer",
        "list",
        "many_pages",
        "syncmem",
        "unmapped",
        "file_mapping",
        "mremap",
        "mprotect",
        "kinds",
        "scattered",
        "fork_beside",
        "far_beside",
        "freed",
        "neighbours",
        "constant_written",
        "stdio",
        "getpid",
        "qsort",
        "wide_characters",
        "dlsym",
        "signals",
        "condition",
        "atomics",
        "false_sharing",
        "threads",
        "threads_in_turn",
        "contexts",
        "litmus",
        "histories",
        "slots_changed",
        "sigfpe",
        "recursion",
        "abort",
        "nested",
        "lost",
        "lost_calls",
        "or_here",
        "again",
        "try_cancel",
        "busy",
        "cancel_races",
        "limit",
        "limit_beside",
        "limit_in_lock",
        "limit_races",
        "call_times",
        "counter",
        "mixed_modes",
        "moved_and_copied",
        "stress",
    ] {
        run(&relay, case, "0");
    }
    for mode in ["1", "2", "3"] {
        for case in ["statics", "allocate", "mutex", "handover", "watcher", "stress"] {
            run(&relay, case, mode);
        }
    }
}

#[test]
fn an_executor_on_another_host_has_no_clock_of_its_own_and_belongs_to_the_tenant() {
    let relay = Relay::start(|_| {});
    let mut program = Program::start(&relay, "elsewhere", "clocks");
    assert_eq!(program.line(), "ready");
    let executor = relay.executor_of(&program).expect("the role shows it");
    assert_eq!((executor.owner, &*executor.name), (tenant().user, "elsewhere@programs"));
    assert_eq!(executor.program, program.child.id());
    let maps = fs::read_to_string(format!("/proc/{}/maps", program.executor)).expect("it can be read");
    assert!(!maps.contains("[vdso]"), "a vdso of the executor's kernel tells the time of the executor's host:\n{maps}");
    program.finish();
}

#[test]
fn what_the_executor_does_is_seen_at_the_programs_host() {
    let relay = Relay::start(|_| {});
    // It waits until its own statistics show a function that runs.
    let mut program = Program::start(&relay, "pooled", "queue");
    assert_eq!(program.line(), "queued");
    let view = until("one runs", || relay.executor_of(&program).filter(|view| view.running == 1));
    assert_eq!(view.condition, ExecutorCondition::Serving);
    program.finish();
}

#[test]
fn a_program_is_told_why_its_executor_has_ended() {
    let relay = Relay::start(|settings| settings.memory_bytes = Some(64 << 20));
    let mut program = Program::start(&relay, "pooled", "allocates");
    assert_eq!(program.line(), "kind 2: the kernel ended it: it needed more than its memory of 64 MiB");
}

#[test]
fn a_program_that_is_refused_is_told_by_whom_and_why() {
    let refused = |relay: &Relay, named: &str| {
        let line = Program::begin(relay, "pooled", "answers").line();
        assert!(line.starts_with("not opened: ") && line.contains(named), "{named}: {line}");
    };
    let relay = Relay::start(|settings| settings.executors_max = 1);
    let mut program = Program::start(&relay, "pooled", "waits");
    assert_eq!(program.line(), "ready");
    refused(&relay, "there are 1 executors, as many as there may be");
    program.finish();
    let relay = Relay::start(|_| {});
    let mut programs: Vec<Program> = (0..4).map(|_| Program::start(&relay, "pooled", "waits")).collect();
    programs.iter_mut().for_each(|program| assert_eq!(program.line(), "ready"));
    refused(&relay, "4 programs, as many as one user may have (--per-owner)");
    programs.into_iter().for_each(Program::finish);
    // The certificate is valid, and its organisation may have no executors.
    refused(&Relay::start_as("strangers", |_| {}), "the link to the executors at strangers:127.0.0.1:");
    let mut relay = Relay::start(|_| {});
    relay.executors = None;
    refused(&relay, "cannot be reached");
}

#[test]
fn a_tenant_is_never_root() {
    register_transports();
    let runtime = Runtime::new(1).expect("a runtime");
    for (user, group) in [(0, 1), (1, 0), (u32::MAX, 1), (1, u32::MAX)] {
        let settings = ExecutorsEndSettings {
            listen: "executors:127.0.0.1:0".to_owned(),
            role: programs().join("nowhere"),
            tenants: BTreeMap::from([("programs".to_owned(), Tenant { user, group })]),
            per_tenant_max: 4,
        };
        let error = runtime.block_on(ExecutorsEnd::start(settings)).err();
        assert!(matches!(error, Some(RelayError::Setting(reason)) if reason.contains("root")), "{user}:{group}");
    }
}

#[test]
fn when_the_executors_end_is_gone_the_program_is_told_and_the_executor_ends() {
    let mut relay = Relay::start(|_| {});
    let mut program = Program::start(&relay, "pooled", "runs");
    assert_eq!(program.line(), "begun");
    relay.executors = None;
    let line = program.line();
    assert!(line.starts_with("kind 2: the link to the executors at programs:127.0.0.1:"), "{line}");
    until("the executor has ended", || relay.role.view().executors.is_empty().then_some(()));
}

#[test]
fn when_the_programs_end_is_gone_both_sides_notice() {
    let mut relay = Relay::start(|_| {});
    let mut program = Program::start(&relay, "pooled", "runs");
    assert_eq!(program.line(), "begun");
    relay.programs = None;
    assert_eq!(program.line(), "kind 2: the role executors has ended");
    until("the executor has ended", || relay.role.view().executors.is_empty().then_some(()));
}

#[test]
fn the_executor_of_a_killed_program_ends() {
    let relay = Relay::start(|_| {});
    let mut program = Program::start(&relay, "pooled", "runs");
    assert_eq!(program.line(), "begun");
    program.child.kill().expect("it is a child");
    until("the executor has ended", || relay.role.view().executors.is_empty().then_some(()));
}
