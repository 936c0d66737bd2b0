//! `heddle kv up --isolate`: runs the memory nodes and CPU nodes of key-value stores as separate processes, supervised
//! by this one.
//!
//! 1. Start memory nodes, format the stores on them, then start CPU nodes ([`node::kv::KvPlan`]). Each process is a
//!    child of this program. It reads its role from standard input; when it is ready, it writes its addresses to
//!    standard output.
//! 2. When all processes are ready, write `kv.json` with their addresses. Then wait until each store is served by a
//!    CPU node.
//! 3. From then on restart every process that ends: at once the first time, and then after a back-off that doubles up
//!    to [`PAUSE_MAX`]. Keep `kv.json` up to date. If a CPU node reports that a store has failed for good, end all
//!    processes.
//! 4. On a signal, end CPU nodes, then memory nodes; each of these two steps has [`STOP_TIMEOUT`] to finish. A second
//!    signal kills all processes at once.

use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base::rt::disk::Directory;
use gateway::client::GrpcConnection;
use heddle_cli::log_tail::tail;
use node::ProcessEnd;
use node::kv::{KvClient, KvEndpoint, KvPart, KvPlan, KvProcess, KvProcessEndpoint, KvRole, KvStoresConfig};

use super::isolate::{SocketFolder, sockets};
use crate::cli::exit;
use crate::failure::CommandError;
use crate::signals::StopSignals;
use crate::{instance, output};

/// Time limit for a process to become ready, and for stores to be served.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for a process to end in order.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
const TICK: Duration = Duration::from_millis(20);
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A process that runs this long restarts without a pause when it ends.
const STABLE_AFTER: Duration = Duration::from_secs(10);
/// The words with which a process reports that it is ready, and that a store has failed for good.
const READY: &str = "ready";
const FAILED: &str = "failed";

/// The reports of a process.
#[derive(Default)]
struct ReportedState {
    /// Its ports.
    ready: Option<Vec<SocketAddr>>,
    failed: Option<String>,
}

/// A supervised process.
struct SupervisedPart {
    role: KvRole,
    log: PathBuf,
    child: Option<Child>,
    reported: Arc<Mutex<ReportedState>>,
    was_ready: bool,
    started: Instant,
    pause: Duration,
    /// When it must be restarted.
    again: Option<Instant>,
}

/// Stores whose processes run. Dropping it kills them.
pub struct IsolatedStores {
    processes: Vec<SupervisedPart>,
    plan: KvPlan,
    directory: PathBuf,
    endpoint: Option<KvEndpoint>,
    _sockets: SocketFolder,
}

impl IsolatedStores {
    /// Starts all processes; on return the stores are served. `None` if a signal came first.
    pub async fn start(
        options: &KvStoresConfig,
        signals: &mut StopSignals,
    ) -> Result<Option<IsolatedStores>, CommandError> {
        let directory = options.directory.clone();
        let failed = |error: std::io::Error| CommandError::new(format!("{}: {error}", directory.display()));
        Directory::open(&directory).await.map_err(failed)?;
        let sockets = sockets(&directory.canonicalize().map_err(failed)?)?;
        let plan = KvPlan::make(options, sockets.path()).await?;
        let supervised = |role: KvRole| SupervisedPart {
            role,
            log: directory.join(format!("{}.log", role.name())),
            child: None,
            reported: Arc::default(),
            was_ready: false,
            started: Instant::now(),
            pause: Duration::ZERO,
            again: None,
        };
        let processes = plan.roles().into_iter().map(supervised).collect();
        let mut isolated = IsolatedStores { processes, plan, directory, endpoint: None, _sockets: sockets };
        let started = tokio::select! {
            started = isolated.start_all() => Some(started),
            () = signals.received() => None,
        };
        match started {
            Some(Ok(())) => Ok(Some(isolated)),
            Some(Err(failure)) => Err(failure),
            None => Ok(None),
        }
    }

    async fn start_all(&mut self) -> Result<(), CommandError> {
        let missing_max = self.plan.missing_max();
        let missing = self.start_stage(|role| matches!(role, KvRole::Memory(_)), missing_max).await?;
        self.plan.format(missing).await?;
        self.start_stage(|role| matches!(role, KvRole::CpuNode(_)), 0).await?;
        self.announce()?;
        self.served().await
    }

    /// Returns how many processes have ended again, at most `missing_max`; they are restarted later.
    async fn start_stage(&mut self, is_in: impl Fn(KvRole) -> bool, missing_max: usize) -> Result<usize, CommandError> {
        let start = Instant::now();
        let plan = &self.plan;
        let mut starting: Vec<&mut SupervisedPart> =
            self.processes.iter_mut().filter(|process| is_in(process.role)).collect();
        for process in &mut starting {
            process.spawn(&plan.part(process.role))?;
        }
        let mut missing = 0;
        loop {
            let mut waiting = None;
            for process in starting.iter_mut().filter(|process| process.again.is_none()) {
                let is_ready = process.heard().ready.is_some();
                process.was_ready = is_ready;
                if process.has_ended()? {
                    match process.role {
                        KvRole::Memory(slot) if missing < missing_max => {
                            missing += 1;
                            eprintln!("{}", plan.remedy(slot, &tail(&process.log).trim_end()));
                            process.pause = PAUSE_MAX;
                            process.again = Some(Instant::now() + PAUSE_MAX);
                            continue;
                        }
                        _ => return Err(process.failure("has ended")),
                    }
                }
                if !process.was_ready {
                    waiting = Some(process);
                }
            }
            match waiting {
                None => return Ok(missing),
                Some(process) if start.elapsed() > READY_TIMEOUT => return Err(process.failure("is not ready")),
                Some(_) => tokio::time::sleep(TICK).await,
            }
        }
    }

    /// Waits until a CPU node serves each store.
    async fn served(&self) -> Result<(), CommandError> {
        let (endpoint, start) = (self.endpoint(), Instant::now());
        let token = endpoint.token()?;
        for store in 0..endpoint.stores.len() {
            let mut is_served = false;
            while !is_served {
                for address in endpoint.addresses_of(store) {
                    let target = endpoint.target_of(&self.directory, address)?;
                    if let Ok(connection) = GrpcConnection::connect(&target).await {
                        is_served |= KvClient::with_token(connection, token.as_ref()).status().await.is_ok();
                    }
                    if is_served {
                        break;
                    }
                }
                self.check()?;
                if start.elapsed() > READY_TIMEOUT {
                    return Err(CommandError::new("no CPU node serves the stores; their logs are in the directory"));
                }
            }
        }
        Ok(())
    }

    /// Publishes all addresses.
    fn announce(&mut self) -> Result<(), CommandError> {
        let parts = self.processes.iter().filter_map(|process| {
            let (name, stores) = (process.role.name(), process.heard().ready.clone()?);
            Some(KvProcessEndpoint { name, process: process.child.as_ref()?.id(), stores })
        });
        self.endpoint = Some(self.plan.announce(parts.collect())?);
        Ok(())
    }

    /// The published addresses.
    pub fn endpoint(&self) -> &KvEndpoint {
        self.endpoint.as_ref().expect("it was announced when it was started")
    }

    /// Restarts processes that end, until a store has failed for good.
    pub async fn watch(&mut self) -> CommandError {
        loop {
            if let Err(failure) = self.tend() {
                return failure;
            }
            tokio::time::sleep(TICK).await;
        }
    }

    fn check(&self) -> Result<(), CommandError> {
        let failed = self.processes.iter().find_map(|process| process.heard().failed.clone());
        failed.map_or(Ok(()), |reason| Err(CommandError::new(format!("the key-value store has ended: {reason}"))))
    }

    fn tend(&mut self) -> Result<(), CommandError> {
        self.check()?;
        let mut changed = false;
        for process in &mut self.processes {
            let name = process.role.name();
            if process.child.is_some() && process.has_ended()? {
                if process.started.elapsed() > STABLE_AFTER {
                    process.pause = Duration::ZERO;
                }
                let pause = process.pause;
                eprintln!("{name} has ended; it is restarted in {:.1} s", pause.as_secs_f64());
                process.again = Some(Instant::now() + pause);
                process.pause = (pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
                changed = true;
            }
            if process.again.is_some_and(|again| Instant::now() >= again) {
                process.again = None;
                process.spawn(&self.plan.part(process.role))?;
            }
            if !process.was_ready && process.heard().ready.is_some() {
                process.was_ready = true;
                eprintln!("{name} is ready again");
                changed = true;
            }
        }
        if changed { self.announce() } else { Ok(()) }
    }

    /// Ends all processes, in order unless another signal comes.
    pub async fn stop(mut self, signals: &mut StopSignals) {
        // New clients must not find the stores any more.
        self.plan.withdraw();
        tokio::select! {
            () = self.stop_in_order() => {}
            () = signals.received() => {}
        }
    }

    async fn stop_in_order(&mut self) {
        for is_memory in [false, true] {
            let is_in = |role| matches!(role, KvRole::Memory(_)) == is_memory;
            let ending = || self.processes.iter().filter(|process| is_in(process.role));
            for child in ending().filter_map(|process| process.child.as_ref()) {
                // The loop below finds a process that has gone.
                let _ = instance::terminate(child.id());
            }
            let asked = Instant::now();
            while asked.elapsed() < STOP_TIMEOUT {
                let mut all = true;
                for process in self.processes.iter_mut().filter(|process| is_in(process.role)) {
                    all &= matches!(process.has_ended(), Ok(true) | Err(_));
                }
                if all {
                    break;
                }
                tokio::time::sleep(TICK).await;
            }
        }
    }
}

impl SupervisedPart {
    fn heard(&self) -> std::sync::MutexGuard<'_, ReportedState> {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spawn(&mut self, part: &KvPart) -> Result<(), CommandError> {
        let name = self.role.name();
        let failed = |error: std::io::Error| CommandError::new(format!("{name} cannot be started: {error}"));
        let log = OpenOptions::new().create(true).append(true).open(&self.log).map_err(failed)?;
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        // In its own process group, so that only the supervisor receives Ctrl-C.
        command.args(["kv", "part"]).process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().map_err(failed)?;
        let (stdin, stdout) = child.stdin.take().zip(child.stdout.take()).expect("both were asked for");
        let mut told = serde_json::to_vec(part).expect("it is plain data");
        told.push(b'\n');
        (&stdin).write_all(&told).map_err(failed)?;
        self.reported = Arc::default();
        let heard = Arc::clone(&self.reported);
        let hear = move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
                match line.split_once(' ').unwrap_or((&line, "")) {
                    (READY, ports) => {
                        heard.ready = Some(ports.split_whitespace().filter_map(|port| port.parse().ok()).collect());
                    }
                    (FAILED, reason) => heard.failed = Some(reason.to_owned()),
                    _ => {}
                }
            }
        };
        std::thread::Builder::new().name("hearing".to_owned()).spawn(hear).map_err(failed)?;
        (self.child, self.was_ready, self.started) = (Some(child), false, Instant::now());
        Ok(())
    }

    /// Whether it is not running, or no longer.
    fn has_ended(&mut self) -> Result<bool, CommandError> {
        let Some(child) = &mut self.child else { return Ok(true) };
        let ended = child.try_wait();
        let ended = ended.map_err(|error| CommandError::new(format!("{}: {error}", self.role.name())))?.is_some();
        if ended {
            self.child = None;
        }
        Ok(ended)
    }

    fn failure(&self, what: &str) -> CommandError {
        let (name, text) = (self.role.name(), tail(&self.log));
        CommandError::new(format!("{name} {what}; {} ends with:\n{text}", self.log.display()))
    }
}

impl Drop for SupervisedPart {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs one of these processes in the role that it is given, until a signal or until its supervisor ends.
pub async fn part() -> Result<(), CommandError> {
    super::end_with_parent()?;
    let mut signals = StopSignals::listen()?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).map_err(|error| CommandError::new(format!("standard input: {error}")))?;
    let part: KvPart = serde_json::from_str(&line)
        .map_err(|error| CommandError::new(format!("only `heddle kv up --isolate` runs this command: {error}")))?;
    let process = tokio::select! {
        process = KvProcess::start(&part) => process?,
        () = signals.received() => return Ok(()),
    };
    let ports: Vec<String> = process.addresses().iter().map(SocketAddr::to_string).collect();
    output::print(&format!("{READY} {}\n", ports.join(" ")))?;
    let failed = tokio::select! {
        () = signals.received() => None,
        ended = process.failed() => Some(ended),
    };
    if let Some(ProcessEnd { reason, is_defect }) = failed {
        if process.is_memory() {
            // The supervisor restarts it; the stores continue on the other memory nodes.
            let code = if is_defect { exit::DEFECT } else { exit::FAILURE };
            return Err(CommandError::with_code(code, format!("this memory node has failed: {reason}")));
        }
        output::print(&format!("{FAILED} {reason}\n"))?;
        return Err(CommandError::new(format!("a store has failed for good: {reason}")));
    }
    process.stop().await;
    Ok(())
}
