//! `heddle up --isolate`: every role as a process of its own, supervised by this one.
//!
//! 1. The plan: which processes there are, where each answers, its folder ([`node::plan`]).
//! 2. What an earlier run left behind is waited for: its processes end with their supervisor, but not at once.
//! 3. Processes start in stages, each when those that it asks are ready: memory, storage and orderer; compute; gateways. One
//!    that ends before it was ready ends the start, with the end of its log.
//! 4. From then on a process that ends is started again, at once the first time and then after a pause that doubles up to
//!    [`PAUSE_MAX`]. `endpoints.json` and the page of metrics and health follow.
//! 5. Orderers on Raft come and go: when the roster changes ([`Roster`]), those that it names are started and others ended.
//! 6. A signal ends them, stage by stage and in the opposite order, each with [`PATIENCE`] to finish; one that does not end is
//!    killed, which loses nothing that was acknowledged. A second signal kills all at once.

use std::fs::OpenOptions;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime};

use node::control::orderer_of;
use node::network::roster::Roster;
use node::{Endpoints, Network, Overview, Placement, Plan, Planned, ProcessRole, Ready};

use crate::failure::Failure;
use crate::instance;
use crate::signals::StopSignals;

/// How long a stage may take to be ready: it may have blocks to replay.
const READY_PATIENCE: Duration = Duration::from_secs(120);
/// How long processes of an earlier run may take to end.
const LEFT_PATIENCE: Duration = Duration::from_secs(30);
/// How long a process may take to end in order.
const PATIENCE: Duration = Duration::from_secs(15);
/// How often processes are looked at.
const TICK: Duration = Duration::from_millis(20);
/// The pause before a process that has ended twice in a short time is started again.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest such pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A process that has run for so long has no record of ending.
const STEADY_AFTER: Duration = Duration::from_secs(10);
/// Each process's log, in its folder.
const LOG: &str = "heddle.log";

/// What a process must wait for.
fn stage(role: ProcessRole) -> usize {
    match role {
        ProcessRole::Memory | ProcessRole::Storage | ProcessRole::Orderer => 0,
        ProcessRole::Compute => 1,
        ProcessRole::Gateway => 2,
    }
}

/// In which order they end.
fn end_rank(role: ProcessRole) -> usize {
    match role {
        ProcessRole::Gateway => 0,
        ProcessRole::Orderer => 1,
        ProcessRole::Compute => 2,
        ProcessRole::Storage => 3,
        ProcessRole::Memory => 4,
    }
}

/// A network whose processes run. Dropping it kills them.
pub struct Isolated {
    /// Goes before the network's lock does: the next to have that makes it anew.
    _sockets: Sockets,
    network: Network,
    plan: Plan,
    processes: Vec<Supervised>,
    /// When the roster was written that the orderers are those of.
    roster: Option<SystemTime>,
    overview: Overview,
}

/// The folder of the sockets of a network. It goes when this is dropped, and is made anew at the next start.
pub(super) struct Sockets(PathBuf);

impl Sockets {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// One process and its record.
struct Supervised {
    planned: Planned,
    child: Option<Child>,
    /// What it said when it was ready, if it is.
    ready: Option<Ready>,
    started: Instant,
    pause: Duration,
    /// When it is to be started again.
    again: Option<Instant>,
}

impl Isolated {
    /// Starts all processes; on return the network can be used. `None` when a signal came first.
    pub async fn start(network: Network, signals: &mut StopSignals) -> Result<Option<Isolated>, Failure> {
        let sockets = sockets(network.path())?;
        let roster = Roster::written(network.path());
        let plan = network.plan(&Placement::Here { sockets: sockets.0.clone() })?;
        for process in &plan.processes {
            gone(process).await?;
        }
        let ports = &network.config().ports;
        let overview = Overview::start((ports.metrics_host, ports.metrics).into()).await?;
        let processes = plan.processes.iter().cloned().map(Supervised::new);
        let mut isolated =
            Isolated { _sockets: sockets, processes: processes.collect(), network, plan, roster, overview };
        for number in 0..=2 {
            let started = tokio::select! {
                started = isolated.start_stage(number) => Some(started),
                () = signals.received() => None,
            };
            match started {
                Some(Ok(())) => {}
                Some(Err(failure)) => {
                    isolated.stop(signals).await;
                    return Err(failure);
                }
                None => {
                    isolated.stop(signals).await;
                    return Ok(None);
                }
            }
        }
        isolated.announce()?;
        Ok(Some(isolated))
    }

    async fn start_stage(&mut self, number: usize) -> Result<(), Failure> {
        let start = Instant::now();
        for process in self.processes.iter_mut().filter(|process| stage(process.planned.role) == number) {
            process.spawn()?;
        }
        loop {
            let mut waiting = None;
            for process in self.processes.iter_mut().filter(|process| stage(process.planned.role) == number) {
                if process.ready.is_some() {
                    continue;
                }
                if process.look()? {
                    self.overview.set(&process.planned.name, Ok(process.metrics()));
                } else if let Some(status) = process.ended()? {
                    return Err(process.failure(&format!("has ended with {}", said(status))));
                } else {
                    waiting = Some(process);
                }
            }
            match waiting {
                None => return Ok(()),
                Some(process) if start.elapsed() > READY_PATIENCE => {
                    let seconds = READY_PATIENCE.as_secs();
                    return Err(process.failure(&format!("is not ready after {seconds} s")));
                }
                Some(_) => tokio::time::sleep(TICK).await,
            }
        }
    }

    /// Says where everything is.
    fn announce(&self) -> Result<Endpoints, Failure> {
        let ready = self.processes.iter().filter_map(|process| process.ready.clone()).collect();
        Ok(self.network.announce(&self.plan, self.overview.address(), ready)?)
    }

    /// Starts processes again that end, for ever.
    pub async fn watch(&mut self) -> Failure {
        loop {
            if let Err(failure) = self.tend() {
                return failure;
            }
            tokio::time::sleep(TICK).await;
        }
    }

    fn tend(&mut self) -> Result<(), Failure> {
        let mut changed = self.follow_roster()?;
        for process in &mut self.processes {
            let name = process.planned.name.clone();
            if let Some(status) = process.ended()? {
                if process.started.elapsed() > STEADY_AFTER {
                    process.pause = Duration::ZERO;
                }
                let (pause, reason) = (process.pause, said(status));
                eprintln!("{name} has ended with {reason}; it is started again in {:.1} s", pause.as_secs_f64());
                self.overview.set(&name, Err(format!("it has ended with {reason} and is being started again")));
                process.again = Some(Instant::now() + pause);
                process.pause = (pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
                changed = true;
            }
            if process.again.is_some_and(|again| Instant::now() >= again) {
                process.again = None;
                process.spawn()?;
            }
            if process.child.is_some() && process.ready.is_none() && process.look()? {
                eprintln!("{name} is ready again as process {}", process.number());
                self.overview.set(&name, Ok(process.metrics()));
                changed = true;
            }
        }
        if changed {
            self.announce()?;
        }
        Ok(())
    }

    /// Starts orderers that were added, and ends those that were removed.
    fn follow_roster(&mut self) -> Result<bool, Failure> {
        let dir = self.network.path();
        let written = Roster::written(dir);
        if written == self.roster {
            return Ok(false);
        }
        self.roster = written;
        let numbers = node::enlist::roster(dir)?.numbers;
        let names: Vec<String> = numbers.iter().map(|number| orderer_of(*number)).collect();
        for (number, name) in numbers.iter().zip(&names) {
            if self.processes.iter().any(|process| process.planned.name == *name) {
                continue;
            }
            let planned = Planned::orderer(&node::enlist::enlisted(dir, *number)?);
            eprintln!("{name} was added and is started");
            self.overview.set(name, Err("it is being started".to_owned()));
            self.plan.processes.push(planned.clone());
            let mut process = Supervised::new(planned);
            process.spawn()?;
            self.processes.push(process);
        }
        let is_gone = |process: &mut Supervised| {
            process.planned.role == ProcessRole::Orderer && !names.contains(&process.planned.name)
        };
        for mut gone in self.processes.extract_if(.., is_gone) {
            eprintln!("{} was removed and is ended", gone.planned.name);
            self.overview.remove(&gone.planned.name);
            self.plan.processes.retain(|process| process.name != gone.planned.name);
            // Nothing depends on it any more, and what it has on disk is as after a crash.
            gone.kill();
        }
        Ok(true)
    }

    /// Ends all processes in order. True when everything ended as it should.
    pub async fn stop(mut self, signals: &mut StopSignals) -> bool {
        let clean = tokio::select! {
            clean = self.stop_in_order() => clean,
            () = signals.received() => false,
        };
        self.kill();
        clean
    }

    async fn stop_in_order(&mut self) -> bool {
        let mut clean = true;
        for rank in 0..=4 {
            let mut ending: Vec<&mut Supervised> =
                self.processes.iter_mut().filter(|process| end_rank(process.planned.role) == rank).collect();
            for process in &mut ending {
                if let Some(child) = &process.child {
                    // One that has gone is found below.
                    let _ = instance::terminate(child.id());
                }
            }
            let asked = Instant::now();
            while ending.iter().any(|process| process.child.is_some()) && asked.elapsed() < PATIENCE {
                for process in &mut ending {
                    match process.ended() {
                        Ok(Some(status)) if !status.success() => {
                            eprintln!("{} has ended with {}", process.planned.name, said(status));
                            clean = false;
                        }
                        Ok(_) => {}
                        Err(failure) => {
                            eprintln!("{}", failure.message().unwrap_or_default());
                            process.child = None;
                        }
                    }
                }
                tokio::time::sleep(TICK).await;
            }
            for process in ending.iter_mut().filter(|process| process.child.is_some()) {
                let seconds = PATIENCE.as_secs();
                eprintln!("{} has not ended within {seconds} s and is killed", process.planned.name);
                process.kill();
                clean = false;
            }
        }
        clean
    }

    fn kill(&mut self) {
        self.processes.iter_mut().for_each(Supervised::kill);
    }
}

impl Drop for Isolated {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Supervised {
    fn new(planned: Planned) -> Supervised {
        let (started, pause) = (Instant::now(), Duration::ZERO);
        Supervised { planned, child: None, ready: None, started, pause, again: None }
    }

    fn spawn(&mut self) -> Result<(), Failure> {
        let name = &self.planned.name;
        let failed = |what: &str, error: std::io::Error| Failure::new(format!("{name}: {what}: {error}"));
        let log = self.planned.folder.join(LOG);
        let open = || OpenOptions::new().create(true).append(true).open(&log);
        let (out, error_out) =
            open().and_then(|out| Ok((out, open()?))).map_err(|error| failed(&log.display().to_string(), error))?;
        let program = std::env::current_exe().map_err(|error| failed("the program's own path", error))?;
        let mut command = Command::new(program);
        command.args(["node", self.planned.role.name(), "--bound", "--config"]).arg(self.planned.config());
        // In a group of its own, so that Ctrl-C reaches the supervisor alone.
        command.process_group(0).stdin(Stdio::null()).stdout(out).stderr(error_out);
        self.child = Some(command.spawn().map_err(|error| failed("it cannot be started", error))?);
        self.ready = None;
        self.started = Instant::now();
        Ok(())
    }

    fn number(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    fn metrics(&self) -> std::net::SocketAddr {
        self.ready.as_ref().expect("it was ready just now").metrics
    }

    /// Whether it is ready, and was not when it was last looked at.
    fn look(&mut self) -> Result<bool, Failure> {
        let number = self.number();
        self.ready = Ready::load(&self.planned.folder).filter(|ready| ready.process == number);
        Ok(self.ready.is_some())
    }

    /// How it has ended, told once.
    fn ended(&mut self) -> Result<Option<ExitStatus>, Failure> {
        let Some(child) = &mut self.child else { return Ok(None) };
        let status = child.try_wait();
        let status = status.map_err(|error| Failure::new(format!("{}: {error}", self.planned.name)))?;
        if status.is_some() {
            self.child = None;
            self.ready = None;
        }
        Ok(status)
    }

    fn failure(&self, what: &str) -> Failure {
        let log = self.planned.folder.join(LOG);
        let text = super::tail(&log);
        Failure::new(format!("{} {what}; {} ends with:\n{text}", self.planned.name, log.display()))
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn said(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "neither code nor signal".to_owned(),
    }
}

/// The folder of the sockets of a network: its path must be short, and nobody else may look into it.
pub(super) fn sockets(dir: &Path) -> Result<Sockets, Failure> {
    let base = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    // The same at every start of the same network, another for another one.
    let hash = identity::sha256([dir.as_os_str().as_encoded_bytes()]);
    let path = base.join(format!("heddle-{}", &identity::hex::encode(hash)[..12]));
    let failed = |error: String| Failure::new(format!("the folder of sockets {}: {error}", path.display()));
    match std::fs::DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(failed(error.to_string())),
        _ => {}
    }
    let found = std::fs::symlink_metadata(&path).map_err(|error| failed(error.to_string()))?;
    let own = rustix::process::geteuid().as_raw();
    if !found.is_dir() || found.uid() != own || found.mode() & 0o077 != 0 {
        return Err(failed("others have access to it; remove it, or set XDG_RUNTIME_DIR to a folder of yours".into()));
    }
    Ok(Sockets(path))
}

/// Waits until the process of an earlier run has gone.
async fn gone(process: &Planned) -> Result<(), Failure> {
    let Some(ready) = Ready::load(&process.folder) else { return Ok(()) };
    let config = process.config();
    let start = Instant::now();
    loop {
        // Another process may have its number by now; this one's command line names its file.
        let line = std::fs::read(format!("/proc/{}/cmdline", ready.process)).unwrap_or_default();
        let wanted = config.as_os_str().as_encoded_bytes();
        if !line.split(|byte| *byte == 0).any(|word| word == wanted) {
            return Ok(());
        }
        if start.elapsed() > LEFT_PATIENCE {
            let (name, number) = (&ready.name, ready.process);
            return Err(Failure::new(format!("{name} of an earlier run is still there as process {number}; end it")));
        }
        tokio::time::sleep(TICK).await;
    }
}
