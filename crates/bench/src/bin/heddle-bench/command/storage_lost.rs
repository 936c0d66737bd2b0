//! `heddle bench storage-lost`: what a peer with two copies of its storage pays when one is lost, and when one moves.
//!
//! 1. Start a network of processes in a temporary directory, whose peer has copies at two of three storage nodes. Load the data,
//!    and start clients that read and update random records.
//! 2. **Kill** a node with a copy (SIGKILL); the supervisor restarts it. Then **freeze** one (SIGSTOP), and let it go on. Each time
//!    compare with the time before ([`lose`]), and wait until two copies are complete again.
//! 3. **Move** a copy to the node that has none.

use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use base::rt::CancellationToken;
use measurement::figure::{Figure, RatioBound};
use node::Ready;
use node::control::{ControlRequest, StorageReport, request_storage};
use rustix::process::Signal;

use super::failover::folders;
use super::figure::{FigureProgress, show};
use super::losses::{BEFORE, HELD, LossSample, lose, send, start_load};
use super::measure::OwnNetwork;
use crate::cli::faults::StorageLostArguments;
use crate::failure::CommandError;

/// The upper bound on the time without a commit, in milliseconds.
const PAUSE_MS_MAX: f64 = 1_000.0;
/// The copies of the peer, and the storage nodes of the network.
const COPIES: usize = 2;
const NODES: usize = 3;
/// Time limit for a copy to be built.
const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(20);

/// What one loss cost.
struct StorageLoss {
    loss: LossSample,
    /// From the kill, or from the end of the freeze, until two copies were complete again; 0 if the node was back in time.
    complete_seconds: f64,
}

struct StorageLosses {
    losses: Vec<StorageLoss>,
    move_seconds: f64,
    failed: u64,
    last_error: Option<String>,
}

pub async fn run(arguments: &StorageLostArguments, stop: &CancellationToken) -> Result<(), CommandError> {
    let progress = FigureProgress::new();
    progress.report("starting a network of processes");
    let (copies, nodes) = (COPIES.to_string(), NODES.to_string());
    let shape = ["--isolate", "--orgs", "1", "--storage-copies", &copies, "--storage-nodes", &nodes];
    let network = OwnNetwork::configured("", &shape, stop).await?;
    let measured = measure(arguments, &network, &progress, stop).await;
    if measured.is_err() {
        eprintln!("the network's log ends with:\n{}", network.log());
    }
    progress.report("ending the network");
    network.end().await;
    let StorageLosses { losses, move_seconds, failed, last_error } = measured?;
    drop(progress);
    let mut figure = Figure::new("storage-lost", "One of two copies of a peer's storage is lost");
    figure.setting("clients", arguments.clients);
    figure.setting("records", arguments.records);
    for StorageLoss { loss, complete_seconds } in &losses {
        let mut numbers = loss.numbers().to_vec();
        numbers.push(("complete_seconds", *complete_seconds));
        figure.row(&[("storage_node", loss.what)], &numbers);
    }
    let longest = losses.iter().map(|lost| lost.loss.pause_ms).fold(0.0, f64::max);
    figure.ratio("pause_ms", longest, Some(RatioBound::AtMost(PAUSE_MS_MAX)));
    figure.ratio("move_seconds", move_seconds, None);
    figure.ratio("failed_requests", failed as f64, Some(RatioBound::AtMost(0.0)));
    if let Some(error) = last_error {
        figure.note(format!("The last failed request: {error}"));
    }
    show(&figure, &arguments.output)
}

async fn measure(
    arguments: &StorageLostArguments,
    network: &OwnNetwork,
    progress: &FigureProgress,
    stop: &CancellationToken,
) -> Result<StorageLosses, CommandError> {
    let compute: PathBuf = folders(network).remove(0);
    two_complete(&compute, stop).await?;
    progress.report("loading");
    let load = start_load(network, arguments.clients, arguments.records, stop).await?;
    let mut losses = Vec::new();
    for (what, signal) in [("killed", Signal::KILL), ("frozen", Signal::STOP)] {
        progress.report(&format!("one of two copies is {what}"));
        // The first copy is the one that the primary reads.
        let lost = two_complete(&compute, stop).await?.complete[0].clone();
        let process = process_of(network, &lost)?;
        let loss = lose(what, process, signal, &load);
        // What is killed comes back by itself; what is frozen is woken after the time for which the loss is watched.
        let (loss, complete_seconds) = match signal {
            Signal::KILL => {
                let (loss, complete) = tokio::join!(loss, complete_again(&compute, stop));
                (loss?, complete?)
            }
            _ => {
                let loss = loss.await?;
                send(process, Signal::CONT)?;
                let woken = Instant::now();
                two_complete(&compute, stop).await?;
                (loss, woken.elapsed().as_secs_f64())
            }
        };
        losses.push(StorageLoss { loss, complete_seconds });
        tokio::time::sleep(BEFORE).await;
    }
    progress.report("a copy moves");
    let CopyPlaces { complete, others } = two_complete(&compute, stop).await?;
    let began = Instant::now();
    ask(&compute, &ControlRequest::AddStorageCopy { name: others[0].clone() }).await?;
    while ask(&compute, &ControlRequest::Storage {}).await?.copy(&others[0]) != "complete" {
        check(began, stop)?;
        tokio::time::sleep(POLL).await;
    }
    ask(&compute, &ControlRequest::DropStorageCopy { name: complete[0].clone() }).await?;
    two_complete(&compute, stop).await?;
    let move_seconds = began.elapsed().as_secs_f64();
    tokio::time::sleep(BEFORE).await;
    let failed = load.failed.load(Ordering::Relaxed);
    let last_error = load.last_error.lock().unwrap_or_else(PoisonError::into_inner).take();
    load.end().await;
    Ok(StorageLosses { losses, move_seconds, failed, last_error })
}

async fn ask(folder: &Path, request: &ControlRequest) -> Result<StorageReport, CommandError> {
    request_storage(folder, request).await.map_err(CommandError::new)
}

/// The storage nodes with a complete copy, and the others.
struct CopyPlaces {
    complete: Vec<String>,
    others: Vec<String>,
}

/// Waits until two copies are complete, and no other one is being built or left out.
async fn two_complete(compute: &Path, stop: &CancellationToken) -> Result<CopyPlaces, CommandError> {
    let since = Instant::now();
    loop {
        let report = ask(compute, &ControlRequest::Storage {}).await?;
        let names = |wanted: &str| {
            let nodes = report.nodes.iter().filter(|node| node.copy == wanted);
            nodes.map(|node| node.name.clone()).collect::<Vec<String>>()
        };
        let (complete, others) = (names("complete"), names("none"));
        if complete.len() == COPIES && others.len() == NODES - COPIES {
            return Ok(CopyPlaces { complete, others });
        }
        check(since, stop)?;
        tokio::time::sleep(POLL).await;
    }
}

/// Waits for the loss that follows after [`BEFORE`]; then the seconds until two copies were complete for good: 0 if the node was
/// back before it was left out.
async fn complete_again(compute: &Path, stop: &CancellationToken) -> Result<f64, CommandError> {
    tokio::time::sleep(BEFORE).await;
    let (lost, mut complete) = (Instant::now(), Duration::ZERO);
    while lost.elapsed() < HELD {
        let nodes = ask(compute, &ControlRequest::Storage {}).await?.nodes;
        if nodes.iter().filter(|node| node.copy == "complete").count() < COPIES {
            complete = lost.elapsed();
        }
        tokio::time::sleep(POLL).await;
    }
    two_complete(compute, stop).await?;
    Ok(complete.as_secs_f64())
}

fn check(since: Instant, stop: &CancellationToken) -> Result<(), CommandError> {
    if stop.is_cancelled() {
        return Err(CommandError::interrupted());
    }
    match since.elapsed() > PATIENCE {
        true => Err(CommandError::new(format!("a copy is not complete within {} s", PATIENCE.as_secs()))),
        false => Ok(()),
    }
}

/// The process of a storage node.
fn process_of(network: &OwnNetwork, name: &str) -> Result<u32, CommandError> {
    let folder = network.dir().join("nodes").join(name);
    let ready = Ready::load(&folder);
    ready.map(|ready| ready.process).ok_or_else(|| CommandError::new(format!("{} does not run", folder.display())))
}
