//! `heddle bench memory-lost`: what a peer pays when one of its two memory nodes freezes or dies.
//!
//! 1. Start a network of processes in a temporary directory. Add two memory nodes at `tcp:` addresses, as on hosts of their
//!    own, and vacate those of the network: shared memory could be read on while the process that owns it stands still.
//! 2. Load the data, and start clients that read and update random records.
//! 3. **Freeze** one memory node (SIGSTOP) for [`HELD`], and let it go on. Then **kill** the other one for good (SIGKILL).
//! 4. Each time compare with the [`BEFORE`] before it. The memory node counts as lost until the first second whose
//!    commits reach [`RECOVERED`] of that throughput.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use base::rt::CancellationToken;
use measurement::figure::{Figure, RatioBound};
use measurement::workload::ycsb::Ycsb;
use node::control::{ControlRequest, MemoryReport, request_memory};
use node::joining_memory;
use node::process::{ProcessRole, Ready};
use rustix::process::{Pid, Signal, kill_process};

use super::failover::{FailoverLoad, VALUE_BYTES, folders};
use super::figure::{FigureProgress, show};
use super::measure::{OwnNetwork, measure as measure_window};
use crate::cli::faults::MemoryLostArguments;
use crate::cli::workload::BenchRunArguments;
use crate::failure::CommandError;

/// The upper bound on the time until the throughput is back.
pub(super) const LOST_SECONDS_MAX: f64 = 5.0;
/// The part of the throughput that counts as back.
const RECOVERED: f64 = 0.9;
/// The time with which the time after a loss is compared.
const BEFORE: Duration = Duration::from_secs(5);
/// How long a memory node is frozen, and for how long a loss is watched.
const HELD: Duration = Duration::from_secs(12);
/// Time limit for a process to start, and for memory to move.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// The steps in which the first second of full throughput is looked for.
const STEP: Duration = Duration::from_millis(50);

/// The process of a memory node; killed when dropped.
struct MemoryProcess(Child);

impl MemoryProcess {
    async fn start(config: &Path) -> Result<MemoryProcess, CommandError> {
        let mut command = Command::new(super::heddle()?);
        command.args(["node", ProcessRole::Memory.name(), "--bound", "--config"]).arg(config);
        let silent = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = MemoryProcess(silent.spawn().map_err(CommandError::new)?);
        let (folder, since) = (config.parent().unwrap_or(config), Instant::now());
        while Ready::load(folder).is_none_or(|ready| ready.process != process.0.id()) {
            if since.elapsed() > PATIENCE {
                return Err(CommandError::new(format!("{} does not start", folder.display())));
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(process)
    }

    fn send(&self, signal: Signal) -> Result<(), CommandError> {
        let process = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw).expect("a child has a process number");
        kill_process(process, signal).map_err(CommandError::new)
    }
}

impl Drop for MemoryProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn ask(folder: &Path, request: &ControlRequest) -> Result<MemoryReport, CommandError> {
    request_memory(folder, request).await.map_err(CommandError::new)
}

/// Adds two memory nodes to the peer, and moves its memory there.
async fn move_out(network: &OwnNetwork, compute: &Path) -> Result<[MemoryProcess; 2], CommandError> {
    let planned = ask(compute, &ControlRequest::Memory {}).await?.nodes;
    let mut processes = Vec::new();
    for _ in 0..2 {
        // Both stay bound until both are known, so that they differ.
        let free = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|bound| bound.local_addr());
        let port = free().map_err(CommandError::new)?.port();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port.min(u16::MAX - 1)));
        let config = joining_memory::add_memory_node(&network.dir(), Some(address)).map_err(CommandError::new)?;
        processes.push(MemoryProcess::start(&config).await?);
        ask(compute, &ControlRequest::AddMemoryNode { file: config }).await?;
    }
    for node in planned {
        ask(compute, &ControlRequest::SetMemoryNode { address: node.address, vacated: true }).await?;
    }
    let since = Instant::now();
    while ask(compute, &ControlRequest::Memory {}).await?.sections_to_vacate() > 0 {
        if since.elapsed() > PATIENCE {
            return Err(CommandError::new("the memory does not move"));
        }
        tokio::time::sleep(POLL).await;
    }
    let processes: Result<[MemoryProcess; 2], _> = processes.try_into();
    Ok(processes.unwrap_or_else(|_| unreachable!("there are two")))
}

/// What the loss of a memory node cost.
pub(super) struct LossSample {
    what: &'static str,
    tps_before: f64,
    /// Until the throughput was back; the whole time if it never was.
    pub(super) lost_seconds: f64,
    /// The throughput of the last seconds that were watched.
    tps_after: f64,
    /// The longest time without a commit.
    pause_ms: f64,
    /// The longest transaction.
    slowest_ms: f64,
}

async fn lose(
    what: &'static str,
    process: &MemoryProcess,
    signal: Signal,
    load: &FailoverLoad,
) -> Result<LossSample, CommandError> {
    tokio::time::sleep(BEFORE).await;
    let lost = Instant::now();
    process.send(signal)?;
    tokio::time::sleep(HELD).await;
    let tps_before = load.committed_between(lost - BEFORE, lost) / BEFORE.as_secs_f64();
    let second = Duration::from_secs(1);
    let starts = (0..).map(|step| STEP * step).take_while(|start| *start + second <= HELD);
    let is_back =
        |start: &Duration| load.committed_between(lost + *start, lost + *start + second) >= RECOVERED * tps_before;
    let lost_seconds = starts.into_iter().find(is_back).unwrap_or(HELD).as_secs_f64();
    let late = lost + HELD - BEFORE;
    let spans: Vec<(Instant, Instant)> = load.spans_since(lost);
    let slowest = spans.iter().map(|(began, ended)| *ended - *began).max().unwrap_or(HELD);
    let mut ends: Vec<Instant> = spans.into_iter().map(|(_, ended)| ended).collect();
    ends.extend([lost, lost + HELD]);
    ends.sort_unstable();
    let pause = ends.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(HELD);
    Ok(LossSample {
        what,
        tps_before,
        lost_seconds,
        tps_after: load.committed_between(late, lost + HELD) / BEFORE.as_secs_f64(),
        pause_ms: pause.as_secs_f64() * 1e3,
        slowest_ms: slowest.as_secs_f64() * 1e3,
    })
}

/// What the losses of both memory nodes cost.
pub(super) struct MemoryLosses {
    frozen: LossSample,
    pub(super) killed: LossSample,
    /// Requests that failed meanwhile.
    pub(super) failed: u64,
    /// What the last of them was answered.
    last_error: Option<String>,
}

impl MemoryLosses {
    /// Enters both, and what failed.
    pub(super) fn rows(&self, figure: &mut Figure) {
        for LossSample { what, tps_before, lost_seconds, tps_after, pause_ms, slowest_ms } in
            [&self.frozen, &self.killed]
        {
            let numbers = [
                ("tps_before", *tps_before),
                ("lost_seconds", *lost_seconds),
                ("tps_after", *tps_after),
                ("pause_ms", *pause_ms),
                ("slowest_ms", *slowest_ms),
            ];
            figure.row(&[("memory_node", what)], &numbers);
        }
        if let Some(error) = &self.last_error {
            figure.note(format!("The last failed request: {error}"));
        }
    }
}

pub async fn run(arguments: &MemoryLostArguments, stop: &CancellationToken) -> Result<(), CommandError> {
    let progress = FigureProgress::new();
    let losses = lose_both(arguments, &progress, stop).await?;
    drop(progress);
    let mut figure = Figure::new("memory-lost", "One of two memory nodes of a peer is lost");
    figure.setting("clients", arguments.clients);
    figure.setting("records", arguments.records);
    losses.rows(&mut figure);
    let bound = Some(RatioBound::AtMost(LOST_SECONDS_MAX));
    figure.ratio("memory_node_lost_seconds", losses.killed.lost_seconds, bound);
    figure.ratio("memory_node_frozen_seconds", losses.frozen.lost_seconds, bound);
    figure.ratio("failed_requests", losses.failed as f64, Some(RatioBound::AtMost(0.0)));
    show(&figure, &arguments.output)
}

/// Starts a network, and loses one memory node after the other.
pub(super) async fn lose_both(
    arguments: &MemoryLostArguments,
    progress: &FigureProgress,
    stop: &CancellationToken,
) -> Result<MemoryLosses, CommandError> {
    progress.report("starting a network of processes");
    // A quarter of the data is cached, so that most reads go to remote memory.
    let cache_bytes = arguments.records * VALUE_BYTES / 8;
    let config = format!(
        "[pool]\nmetadata_cache_bytes = {cache_bytes}\ndata_cache_bytes = {cache_bytes}\nsection_bytes = 1048576\n\
         memory_bytes = 268435456\npeer_bytes = 268435456\n"
    );
    let network = OwnNetwork::configured(&config, &["--isolate", "--orgs", "1"], stop).await?;
    let result = measure(arguments, &network, progress, stop).await;
    if result.is_err() {
        eprintln!("the network's log ends with:\n{}", network.log());
    }
    progress.report("ending the network");
    network.end().await;
    result
}

async fn measure(
    arguments: &MemoryLostArguments,
    network: &OwnNetwork,
    progress: &FigureProgress,
    stop: &CancellationToken,
) -> Result<MemoryLosses, CommandError> {
    let compute: PathBuf = folders(network).remove(0);
    progress.report("moving its memory to nodes at TCP addresses");
    let [first, second] = move_out(network, &compute).await?;
    progress.report("loading");
    let data = Ycsb { records: arguments.records, value_bytes: VALUE_BYTES as usize, ..Ycsb::default() };
    let loading = BenchRunArguments { orgs: 1, ..BenchRunArguments::window(arguments.clients, 1.0) };
    measure_window(&loading, Arc::new(data.clone()), &network.dir(), network.endpoints(), &[], stop).await?;
    let load = FailoverLoad::start(network, arguments.clients as usize, &data).await?;
    tokio::time::sleep(BEFORE).await;
    progress.report("one of two memory nodes is frozen");
    let frozen = lose("frozen", &first, Signal::STOP, &load).await?;
    first.send(Signal::CONT)?;
    tokio::time::sleep(BEFORE).await;
    progress.report("the other one is killed");
    let killed = lose("killed", &second, Signal::KILL, &load).await?;
    let failed = load.failed.load(Ordering::Relaxed);
    let last_error = load.last_error.lock().unwrap_or_else(PoisonError::into_inner).take();
    load.end().await;
    Ok(MemoryLosses { frozen, killed, failed, last_error })
}
