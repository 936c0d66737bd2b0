//! `heddle up --isolate`: runs every role as a separate process, supervised by this one.
//!
//! 1. Make the plan: the processes, their addresses and their folders ([`node::plan`]).
//! 2. Wait until the processes of an earlier run have ended: they end when their supervisor ends, but a little later.
//! 3. Start the processes in three stages: memory, storage and orderers; then compute nodes; then gateways. A stage
//!    starts when every process of the stage before it is ready. A process that ends before it is ready makes the start
//!    fail; the error shows the end of its log.
//! 4. From then on restart every process that ends: at once the first time, and then after a back-off that doubles up
//!    to [`PAUSE_MAX`]. Keep `endpoints.json` and the page of metrics and health up to date.
//! 5. When the orderer set of a network on Raft changes ([`OrdererSet`]), start the orderers that were added and end
//!    those that were removed. Do the same for the compute nodes that are added to peers ([`AddedNodes`]), and for the storage
//!    nodes that are to stop ([`StoppedStorage`]); both end in order.
//! 6. On a signal, end the processes by role, in five steps: gateways, orderers, compute, storage, memory. Each step
//!    has [`STOP_TIMEOUT`] to finish. A process that does not end is killed, which loses nothing that was acknowledged.
//!    A second signal kills all processes at once.

use std::fs::OpenOptions;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime};

use heddle_cli::log_tail::tail;
use node::added_nodes::AddedNodes;
use node::control::orderer_of;
use node::network::orderer_set::OrdererSet;
use node::{Endpoints, Network, Overview, Placement, PlannedProcess, ProcessPlan, ProcessRole, Ready};

use super::stopped_storage::StoppedStorage;
use crate::failure::CommandError;
use crate::instance;
use crate::signals::StopSignals;

/// Time limit for a stage to become ready: it may have blocks to replay.
const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// Time limit for processes of an earlier run to end.
const LEFTOVER_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for a process to end in order.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
/// How often processes are polled.
const TICK: Duration = Duration::from_millis(20);
/// The pause before a process that has ended twice in a short time is started again.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest such pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A process that runs this long restarts without a pause when it ends.
const STABLE_AFTER: Duration = Duration::from_secs(10);
/// Each process's log, in its folder.
const LOG: &str = "heddle.log";

/// The stage in which a role starts.
fn stage(role: ProcessRole) -> usize {
    match role {
        ProcessRole::Memory | ProcessRole::Storage | ProcessRole::Orderer => 0,
        ProcessRole::Compute => 1,
        ProcessRole::Gateway => 2,
    }
}

/// The position of a role in the order of stopping.
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
pub struct IsolatedNetwork {
    /// Dropped before the network's lock is released: the next process with the lock makes the folder again.
    _sockets: SocketFolder,
    network: Network,
    plan: ProcessPlan,
    processes: Vec<SupervisedProcess>,
    /// When the orderer set was written to which the running orderers belong.
    orderers_modified_at: Option<SystemTime>,
    /// The same for the compute nodes that were added.
    added_modified_at: Option<SystemTime>,
    /// The same for the storage nodes that are stopped.
    stopped_modified_at: Option<SystemTime>,
    overview: Overview,
}

/// The folder of a network's sockets. It is removed on drop, and made again at the next start.
pub(super) struct SocketFolder(PathBuf);

impl SocketFolder {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for SocketFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A supervised process.
struct SupervisedProcess {
    planned: PlannedProcess,
    child: Option<Child>,
    /// Its report when it became ready, if it is ready.
    ready: Option<Ready>,
    started: Instant,
    pause: Duration,
    /// When it must be restarted.
    again: Option<Instant>,
    /// When it was asked to end; it is not restarted.
    ending: Option<Instant>,
    /// Whether it is forgotten once it has ended.
    is_removed: bool,
}

impl IsolatedNetwork {
    /// Starts all processes; on return the network can be used. `None` if a signal came first.
    pub async fn start(network: Network, signals: &mut StopSignals) -> Result<Option<IsolatedNetwork>, CommandError> {
        let sockets = sockets(network.path())?;
        let orderer_set = OrdererSet::modified_at(network.path());
        let added_nodes = AddedNodes::modified_at(network.path());
        StoppedStorage::clear(network.path())?;
        let stopped_storage = StoppedStorage::modified_at(network.path());
        let plan = network.plan(&Placement::OneHost { sockets: sockets.0.clone() })?;
        for process in &plan.processes {
            ensure_ended(process).await?;
        }
        let ports = &network.config().ports;
        let overview = Overview::start((ports.metrics_host, ports.metrics).into()).await?;
        let processes = plan.processes.iter().cloned().map(SupervisedProcess::new);
        let mut isolated = IsolatedNetwork {
            _sockets: sockets,
            processes: processes.collect(),
            network,
            plan,
            orderers_modified_at: orderer_set,
            added_modified_at: added_nodes,
            stopped_modified_at: stopped_storage,
            overview,
        };
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

    async fn start_stage(&mut self, number: usize) -> Result<(), CommandError> {
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
                    return Err(process.failure(&format!("has ended with {}", exit_text(status))));
                } else {
                    waiting = Some(process);
                }
            }
            match waiting {
                None => return Ok(()),
                Some(process) if start.elapsed() > READY_TIMEOUT => {
                    let seconds = READY_TIMEOUT.as_secs();
                    return Err(process.failure(&format!("is not ready after {seconds} s")));
                }
                Some(_) => tokio::time::sleep(TICK).await,
            }
        }
    }

    /// Publishes all addresses.
    fn announce(&self) -> Result<Endpoints, CommandError> {
        let ready = self.processes.iter().filter_map(|process| process.ready.clone()).collect();
        Ok(self.network.announce(&self.plan, self.overview.address(), ready)?)
    }

    /// Restarts processes that end, for ever.
    pub async fn watch(&mut self) -> CommandError {
        loop {
            if let Err(failure) = self.tend() {
                return failure;
            }
            tokio::time::sleep(TICK).await;
        }
    }

    fn tend(&mut self) -> Result<(), CommandError> {
        let mut changed = self.follow_orderer_set()?;
        changed |= self.follow_added_nodes()?;
        changed |= self.follow_stopped_storage()?;
        for process in &mut self.processes {
            let name = process.planned.name.clone();
            if let Some(status) = process.ended()? {
                if process.ending.is_some() {
                    changed = true;
                    continue;
                }
                if process.started.elapsed() > STABLE_AFTER {
                    process.pause = Duration::ZERO;
                }
                let (pause, reason) = (process.pause, exit_text(status));
                eprintln!("{name} has ended with {reason}; it is restarted in {:.1} s", pause.as_secs_f64());
                self.overview.set(&name, Err(format!("it has ended with {reason} and is being restarted")));
                process.again = Some(Instant::now() + pause);
                process.pause = (pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
                changed = true;
            }
            // One that was to end, and is wanted again, ends first: in time, or by force.
            if process.again.is_some_and(|again| Instant::now() >= again) && process.child.is_none() {
                (process.again, process.ending) = (None, None);
                process.spawn()?;
            }
            if process.child.is_some() && process.ready.is_none() && process.look()? {
                eprintln!("{name} is ready again as process {}", process.number());
                self.overview.set(&name, Ok(process.metrics()));
                changed = true;
            }
        }
        let gone = |process: &mut SupervisedProcess| {
            let Some(since) = process.ending else { return false };
            if since.elapsed() > STOP_TIMEOUT {
                process.kill();
            }
            process.is_removed && process.child.is_none()
        };
        for gone in self.processes.extract_if(.., gone) {
            eprintln!("{} was removed and has ended", gone.planned.name);
            self.overview.remove(&gone.planned.name);
            self.plan.processes.retain(|process| process.name != gone.planned.name);
            changed = true;
        }
        if changed {
            self.announce()?;
        }
        Ok(())
    }

    /// Starts compute nodes that were added, and has those end that were removed.
    fn follow_added_nodes(&mut self) -> Result<bool, CommandError> {
        let dir = self.network.path();
        let written = AddedNodes::modified_at(dir);
        if written == self.added_modified_at {
            return Ok(false);
        }
        self.added_modified_at = written;
        let mut nodes = AddedNodes::load(dir)?.nodes;
        // Those on other hosts have supervisors of their own.
        nodes.retain(|node| node.address.is_none());
        for node in &nodes {
            let name = node.name();
            if self.processes.iter().any(|process| process.planned.name == name) {
                continue;
            }
            let planned = PlannedProcess::compute(&node.files(dir)?, None);
            eprintln!("{name} was added and starts");
            self.overview.set(&name, Err("it is starting".to_owned()));
            self.plan.processes.push(planned.clone());
            let mut process = SupervisedProcess::new(planned);
            process.spawn()?;
            self.processes.push(process);
        }
        for process in &mut self.processes {
            let is_known = nodes.iter().any(|node| node.name() == process.planned.name);
            if process.planned.is_added && !is_known && process.ending.is_none() {
                process.is_removed = true;
                process.end();
            }
        }
        Ok(true)
    }

    /// Ends storage nodes that are to stop, and starts those that are to run again.
    fn follow_stopped_storage(&mut self) -> Result<bool, CommandError> {
        let dir = self.network.path();
        let written = StoppedStorage::modified_at(dir);
        if written == self.stopped_modified_at {
            return Ok(false);
        }
        self.stopped_modified_at = written;
        let stopped = match StoppedStorage::load(dir) {
            Ok(stopped) => stopped.nodes,
            Err(failure) => {
                eprintln!("{}; storage nodes stay as they are", failure.message().unwrap_or_default());
                return Ok(false);
            }
        };
        for process in self.processes.iter_mut().filter(|process| process.planned.role == ProcessRole::Storage) {
            let name = &process.planned.name;
            match (stopped.contains(name), process.ending.is_some() && process.again.is_none()) {
                (true, false) => {
                    eprintln!("{name} has no copy and is stopped");
                    self.overview.remove(name);
                    process.end();
                }
                (false, true) => {
                    eprintln!("{name} starts again");
                    self.overview.set(name, Err("it is starting".to_owned()));
                    process.pause = Duration::ZERO;
                    process.again = Some(Instant::now());
                }
                _ => {}
            }
        }
        Ok(true)
    }

    /// Starts orderers that were added, and ends those that were removed.
    fn follow_orderer_set(&mut self) -> Result<bool, CommandError> {
        let dir = self.network.path();
        let written = OrdererSet::modified_at(dir);
        if written == self.orderers_modified_at {
            return Ok(false);
        }
        self.orderers_modified_at = written;
        let numbers = node::membership::orderer_set(dir)?.numbers;
        let names: Vec<String> = numbers.iter().map(|number| orderer_of(*number)).collect();
        for (number, name) in numbers.iter().zip(&names) {
            if self.processes.iter().any(|process| process.planned.name == *name) {
                continue;
            }
            let planned = PlannedProcess::orderer(&node::membership::added_orderer(dir, *number)?);
            eprintln!("{name} was added and starts");
            self.overview.set(name, Err("it is starting".to_owned()));
            self.plan.processes.push(planned.clone());
            let mut process = SupervisedProcess::new(planned);
            process.spawn()?;
            self.processes.push(process);
        }
        let is_gone = |process: &mut SupervisedProcess| {
            process.planned.role == ProcessRole::Orderer && !names.contains(&process.planned.name)
        };
        for mut gone in self.processes.extract_if(.., is_gone) {
            eprintln!("{} was removed and ends", gone.planned.name);
            self.overview.remove(&gone.planned.name);
            self.plan.processes.retain(|process| process.name != gone.planned.name);
            // No other process depends on it any more, and its data on disk is as after a crash.
            gone.kill();
        }
        Ok(true)
    }

    /// Ends all processes in order. Returns true if all ended cleanly.
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
            let mut ending: Vec<&mut SupervisedProcess> =
                self.processes.iter_mut().filter(|process| end_rank(process.planned.role) == rank).collect();
            for process in &mut ending {
                process.terminate();
            }
            let asked = Instant::now();
            while ending.iter().any(|process| process.child.is_some()) && asked.elapsed() < STOP_TIMEOUT {
                for process in &mut ending {
                    match process.ended() {
                        Ok(Some(status)) if !status.success() => {
                            eprintln!("{} has ended with {}", process.planned.name, exit_text(status));
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
                let seconds = STOP_TIMEOUT.as_secs();
                eprintln!("{} has not ended within {seconds} s and is killed", process.planned.name);
                process.kill();
                clean = false;
            }
        }
        clean
    }

    fn kill(&mut self) {
        self.processes.iter_mut().for_each(SupervisedProcess::kill);
    }
}

impl Drop for IsolatedNetwork {
    fn drop(&mut self) {
        self.kill();
    }
}

impl SupervisedProcess {
    fn new(planned: PlannedProcess) -> SupervisedProcess {
        let (started, pause) = (Instant::now(), Duration::ZERO);
        SupervisedProcess {
            planned,
            child: None,
            ready: None,
            started,
            pause,
            again: None,
            ending: None,
            is_removed: false,
        }
    }

    fn spawn(&mut self) -> Result<(), CommandError> {
        let name = &self.planned.name;
        let failed = |what: &str, error: std::io::Error| CommandError::new(format!("{name}: {what}: {error}"));
        let log = self.planned.folder.join(LOG);
        let open = || OpenOptions::new().create(true).append(true).open(&log);
        let (out, error_out) =
            open().and_then(|out| Ok((out, open()?))).map_err(|error| failed(&log.display().to_string(), error))?;
        let program = std::env::current_exe().map_err(|error| failed("the program's own path", error))?;
        let mut command = Command::new(program);
        command.args(["node", self.planned.role.name(), "--bound", "--config"]).arg(self.planned.config());
        // In its own process group, so that only the supervisor receives Ctrl-C.
        command.process_group(0).stdin(Stdio::null()).stdout(out).stderr(error_out);
        self.child = Some(command.spawn().map_err(|error| failed("it cannot be started", error))?);
        self.ready = None;
        self.started = Instant::now();
        Ok(())
    }

    /// Has it end in order, and not be restarted.
    fn end(&mut self) {
        (self.ending, self.again) = (Some(Instant::now()), None);
        self.terminate();
    }

    /// Asks it to end in order.
    fn terminate(&self) {
        if let Some(child) = &self.child {
            // A process that has gone is found by `ended`.
            let _ = instance::terminate(child.id());
        }
    }

    fn number(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    fn metrics(&self) -> std::net::SocketAddr {
        self.ready.as_ref().expect("it was ready just now").metrics
    }

    /// Whether it has become ready since the last check.
    fn look(&mut self) -> Result<bool, CommandError> {
        let number = self.number();
        self.ready = Ready::load(&self.planned.folder).filter(|ready| ready.process == number);
        Ok(self.ready.is_some())
    }

    /// Its exit status, returned once, if it has ended.
    fn ended(&mut self) -> Result<Option<ExitStatus>, CommandError> {
        let Some(child) = &mut self.child else { return Ok(None) };
        let status = child.try_wait();
        let status = status.map_err(|error| CommandError::new(format!("{}: {error}", self.planned.name)))?;
        if status.is_some() {
            self.child = None;
            self.ready = None;
        }
        Ok(status)
    }

    fn failure(&self, what: &str) -> CommandError {
        let log = self.planned.folder.join(LOG);
        let text = tail(&log);
        CommandError::new(format!("{} {what}; {} ends with:\n{text}", self.planned.name, log.display()))
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn exit_text(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "neither code nor signal".to_owned(),
    }
}

/// The folder of a network's sockets: its path must be short, and no other user may enter it.
pub(super) fn sockets(dir: &Path) -> Result<SocketFolder, CommandError> {
    let base = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    // The same path at every start of a network, a different one for each network.
    let hash = identity::sha256([dir.as_os_str().as_encoded_bytes()]);
    let path = base.join(format!("heddle-{}", &identity::hex::encode(hash)[..12]));
    let failed = |error: String| CommandError::new(format!("the folder of sockets {}: {error}", path.display()));
    match std::fs::DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(failed(error.to_string())),
        _ => {}
    }
    let found = std::fs::symlink_metadata(&path).map_err(|error| failed(error.to_string()))?;
    let own = rustix::process::geteuid().as_raw();
    if !found.is_dir() || found.uid() != own || found.mode() & 0o077 != 0 {
        return Err(failed(
            "other users have access to it; remove it, or set XDG_RUNTIME_DIR to a folder of yours".into(),
        ));
    }
    Ok(SocketFolder(path))
}

/// Waits until the process of an earlier run has gone.
async fn ensure_ended(process: &PlannedProcess) -> Result<(), CommandError> {
    let Some(ready) = Ready::load(&process.folder) else { return Ok(()) };
    let config = process.config();
    let start = Instant::now();
    loop {
        if !instance::runs_with(ready.process, &config) {
            return Ok(());
        }
        if start.elapsed() > LEFTOVER_TIMEOUT {
            let (name, number) = (&ready.name, ready.process);
            return Err(CommandError::new(format!("{name} of an earlier run still runs as process {number}; end it")));
        }
        tokio::time::sleep(TICK).await;
    }
}
