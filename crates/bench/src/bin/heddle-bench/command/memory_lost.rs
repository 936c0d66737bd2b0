//! `heddle bench memory-lost`: what a peer pays when one of its two memory nodes freezes or dies.
//!
//! 1. Start a network of processes in a temporary directory. Add two memory nodes at `tcp:` addresses, as on hosts of their
//!    own, and vacate those of the network: shared memory could be read on while the process that owns it stands still.
//! 2. Load the data, and start clients that read and update random records.
//! 3. **Freeze** one memory node (SIGSTOP) for [`HELD`](super::losses::HELD), and let it go on. Then **kill** the other one for
//!    good (SIGKILL). Each time compare with the time before it ([`lose`]).

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use base::rt::CancellationToken;
use measurement::figure::{Figure, RatioBound};
use node::control::{ControlRequest, MemoryReport, request_memory};
use node::joining_memory;
use node::process::{ProcessRole, Ready};
use rustix::process::Signal;

use super::failover::{VALUE_BYTES, folders};
use super::figure::{FigureProgress, show};
use super::losses::{BEFORE, LossSample, lose, send, start_load};
use super::measure::OwnNetwork;
use crate::cli::faults::MemoryLostArguments;
use crate::failure::CommandError;

/// The upper bound on the time until the throughput is back.
pub(super) const LOST_SECONDS_MAX: f64 = 5.0;
/// Time limit for a process to start, and for memory to move.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

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
        for loss in [&self.frozen, &self.killed] {
            figure.row(&[("memory_node", loss.what)], &loss.numbers());
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
    let load = start_load(network, arguments.clients, arguments.records, stop).await?;
    progress.report("one of two memory nodes is frozen");
    let frozen = lose("frozen", first.0.id(), Signal::STOP, &load).await?;
    send(first.0.id(), Signal::CONT)?;
    tokio::time::sleep(BEFORE).await;
    progress.report("the other one is killed");
    let killed = lose("killed", second.0.id(), Signal::KILL, &load).await?;
    let failed = load.failed.load(Ordering::Relaxed);
    let last_error = load.last_error.lock().unwrap_or_else(PoisonError::into_inner).take();
    load.end().await;
    Ok(MemoryLosses { frozen, killed, failed, last_error })
}
