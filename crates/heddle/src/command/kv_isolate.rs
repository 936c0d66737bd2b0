//! `heddle kv up --isolate`: memory nodes and processors of key-value stores as processes of their own, supervised by this one.
//!
//! 1. Memory nodes start, then the stores are made on them, then processors start ([`node::kv::KvPlan`]). Each process is this
//!    program again, is told on its standard input what it is, and says on its standard output when it is ready, and where.
//! 2. When a processor serves every store, `kv.json` says where all of them are.
//! 3. From then on a process that ends is started again, at once the first time and then after a pause that doubles up to [`PAUSE_MAX`].
//!    `kv.json` follows. A processor that says that a store cannot go on ends all.
//! 4. A signal ends processors, then memory nodes, each with [`PATIENCE`] to finish; a second signal kills all at once.

use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base::rt::disk::Directory;
use gateway::client::Connection;
use node::Ended;
use node::kv::{KvClient, KvEndpoint, KvOptions, KvPart, KvPlan, KvProcess, KvProcessEndpoint, KvRole};

use super::isolate::{Sockets, sockets};
use crate::cli::exit;
use crate::failure::Failure;
use crate::signals::StopSignals;
use crate::{instance, output};

/// How long a process may take to be ready, and stores to be served.
const READY_PATIENCE: Duration = Duration::from_secs(60);
/// How long a process may take to end in order.
const PATIENCE: Duration = Duration::from_secs(15);
const TICK: Duration = Duration::from_millis(20);
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A process that has run for so long has no record of ending.
const STEADY_AFTER: Duration = Duration::from_secs(10);
/// The words with which a process says that it is ready, and that a store cannot go on.
const READY: &str = "ready";
const FAILED: &str = "failed";

/// What a process has said.
#[derive(Default)]
struct Heard {
    /// Its ports.
    ready: Option<Vec<SocketAddr>>,
    failed: Option<String>,
}

/// A process and its record.
struct Supervised {
    role: KvRole,
    log: PathBuf,
    child: Option<Child>,
    heard: Arc<Mutex<Heard>>,
    was_ready: bool,
    started: Instant,
    pause: Duration,
    /// When it is to be started again.
    again: Option<Instant>,
}

/// Stores whose processes run. Dropping it kills them.
pub struct Isolated {
    processes: Vec<Supervised>,
    plan: KvPlan,
    directory: PathBuf,
    endpoint: Option<KvEndpoint>,
    _sockets: Sockets,
}

impl Isolated {
    /// Starts all processes; on return the stores are served. None when a signal came first.
    pub async fn start(options: &KvOptions, signals: &mut StopSignals) -> Result<Option<Isolated>, Failure> {
        let directory = options.directory.clone();
        let failed = |error: std::io::Error| Failure::new(format!("{}: {error}", directory.display()));
        Directory::open(&directory).await.map_err(failed)?;
        let sockets = sockets(&directory.canonicalize().map_err(failed)?)?;
        let plan = KvPlan::make(options, sockets.path()).await?;
        let supervised = |role: KvRole| Supervised {
            role,
            log: directory.join(format!("{}.log", role.name())),
            child: None,
            heard: Arc::default(),
            was_ready: false,
            started: Instant::now(),
            pause: Duration::ZERO,
            again: None,
        };
        let processes = plan.roles().into_iter().map(supervised).collect();
        let mut isolated = Isolated { processes, plan, directory, endpoint: None, _sockets: sockets };
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

    async fn start_all(&mut self) -> Result<(), Failure> {
        let missing_max = self.plan.missing_max();
        let missing = self.start_stage(|role| matches!(role, KvRole::Memory(_)), missing_max).await?;
        self.plan.format(missing).await?;
        self.start_stage(|role| matches!(role, KvRole::Processor(_)), 0).await?;
        self.announce()?;
        self.served().await
    }

    /// Gives how many have ended again, of which so many may; they are started again later.
    async fn start_stage(&mut self, is_in: impl Fn(KvRole) -> bool, missing_max: usize) -> Result<usize, Failure> {
        let start = Instant::now();
        let plan = &self.plan;
        let mut starting: Vec<&mut Supervised> =
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
                            eprintln!("{}", plan.remedy(slot, &super::tail(&process.log).trim_end()));
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
                Some(process) if start.elapsed() > READY_PATIENCE => return Err(process.failure("is not ready")),
                Some(_) => tokio::time::sleep(TICK).await,
            }
        }
    }

    /// Waits until somebody serves each store.
    async fn served(&self) -> Result<(), Failure> {
        let (endpoint, start) = (self.endpoint(), Instant::now());
        let token = endpoint.token()?;
        for store in 0..endpoint.stores.len() {
            let mut is_served = false;
            while !is_served {
                for address in endpoint.addresses_of(store) {
                    let target = endpoint.target_of(&self.directory, address)?;
                    if let Ok(connection) = Connection::connect(&target).await {
                        is_served |= KvClient::bearing(connection, token.as_ref()).status().await.is_ok();
                    }
                    if is_served {
                        break;
                    }
                }
                self.check()?;
                if start.elapsed() > READY_PATIENCE {
                    return Err(Failure::new("no processor serves the stores; their logs are in the directory"));
                }
            }
        }
        Ok(())
    }

    /// Says where everything is.
    fn announce(&mut self) -> Result<(), Failure> {
        let parts = self.processes.iter().filter_map(|process| {
            let (name, stores) = (process.role.name(), process.heard().ready.clone()?);
            Some(KvProcessEndpoint { name, process: process.child.as_ref()?.id(), stores })
        });
        self.endpoint = Some(self.plan.announce(parts.collect())?);
        Ok(())
    }

    /// Where everything is.
    pub fn endpoint(&self) -> &KvEndpoint {
        self.endpoint.as_ref().expect("it was announced when it was started")
    }

    /// Starts processes again that end, until a store cannot go on.
    pub async fn watch(&mut self) -> Failure {
        loop {
            if let Err(failure) = self.tend() {
                return failure;
            }
            tokio::time::sleep(TICK).await;
        }
    }

    fn check(&self) -> Result<(), Failure> {
        let failed = self.processes.iter().find_map(|process| process.heard().failed.clone());
        failed.map_or(Ok(()), |reason| Err(Failure::new(format!("the key-value store has ended: {reason}"))))
    }

    fn tend(&mut self) -> Result<(), Failure> {
        self.check()?;
        let mut changed = false;
        for process in &mut self.processes {
            let name = process.role.name();
            if process.child.is_some() && process.has_ended()? {
                if process.started.elapsed() > STEADY_AFTER {
                    process.pause = Duration::ZERO;
                }
                let pause = process.pause;
                eprintln!("{name} has ended; it is started again in {:.1} s", pause.as_secs_f64());
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
        // Whoever looks for a store from now on is to find none.
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
                // One that has gone is found below.
                let _ = instance::terminate(child.id());
            }
            let asked = Instant::now();
            while asked.elapsed() < PATIENCE {
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

impl Supervised {
    fn heard(&self) -> std::sync::MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spawn(&mut self, part: &KvPart) -> Result<(), Failure> {
        let name = self.role.name();
        let failed = |error: std::io::Error| Failure::new(format!("{name} cannot be started: {error}"));
        let log = OpenOptions::new().create(true).append(true).open(&self.log).map_err(failed)?;
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        // In a group of its own, so that Ctrl-C reaches the supervisor alone.
        command.args(["kv", "part"]).process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().map_err(failed)?;
        let (stdin, stdout) = child.stdin.take().zip(child.stdout.take()).expect("both were asked for");
        let mut told = serde_json::to_vec(part).expect("it is plain data");
        told.push(b'\n');
        (&stdin).write_all(&told).map_err(failed)?;
        self.heard = Arc::default();
        let heard = Arc::clone(&self.heard);
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

    /// Whether it does not run, or not any more.
    fn has_ended(&mut self) -> Result<bool, Failure> {
        let Some(child) = &mut self.child else { return Ok(true) };
        let ended = child.try_wait();
        let ended = ended.map_err(|error| Failure::new(format!("{}: {error}", self.role.name())))?.is_some();
        if ended {
            self.child = None;
        }
        Ok(ended)
    }

    fn failure(&self, what: &str) -> Failure {
        let (name, text) = (self.role.name(), super::tail(&self.log));
        Failure::new(format!("{name} {what}; {} ends with:\n{text}", self.log.display()))
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What one of these processes does: is what it is told to be, until a signal or until its supervisor ends.
pub async fn part() -> Result<(), Failure> {
    super::end_with_parent()?;
    let mut signals = StopSignals::listen()?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).map_err(|error| Failure::new(format!("standard input: {error}")))?;
    let part: KvPart = serde_json::from_str(&line)
        .map_err(|error| Failure::new(format!("this command is for `heddle kv up --isolate` alone: {error}")))?;
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
    if let Some(Ended { reason, is_defect }) = failed {
        if process.is_memory() {
            // The supervisor starts it again; the stores go on with the others.
            let code = if is_defect { exit::DEFECT } else { exit::FAILURE };
            return Err(Failure::with_code(code, format!("this memory node has failed: {reason}")));
        }
        output::print(&format!("{FAILED} {reason}\n"))?;
        return Err(Failure::new(format!("a store cannot go on: {reason}")));
    }
    process.stop().await;
    Ok(())
}
