//! `heddle bench failover`: measures the time from the kill of a primary to the next block that another compute node
//! applies.
//!
//! 1. Start a network of processes in a temporary directory, with several compute nodes per peer, and clients that
//!    write to it.
//! 2. When the first organisation's peer has a primary and followers, kill the primary's process (SIGKILL) at an
//!    arbitrary moment. Poll the other compute nodes until one reports that it has applied a block as the primary, and
//!    the time at which it did. The times of the kill and of the block come from this machine's clock.
//! 3. Also measure the time to the first commit of a transaction that a client of that organisation began after the
//!    kill.
//! 4. The supervisor restarts the killed process, which becomes a follower. Then kill the next primary.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base::Bytes;
use base::rt::CancellationToken;
use gateway::client::{GatewayClient, GrpcConnection};
use measurement::figure::{Figure, RatioBound};
use measurement::random::Random;
use node::control::{ComputeReport, request_node};
use node::{Endpoints, NodeError};
use rustix::process::{Pid, Signal, kill_process};

use super::figure::{FigureProgress, show};
use super::measure::OwnNetwork;
use crate::cli::bench::FailoverArguments;
use crate::failure::CommandError;

/// The bound on the time to the next block, with the default lease.
const NEXT_BLOCK_MS_MAX: f64 = 500.0;
/// Time limit for everything that has to happen between two kills.
const FAILOVER_TIMEOUT: Duration = Duration::from_secs(60);
/// How often compute nodes are polled.
const POLL: Duration = Duration::from_millis(10);
const CALL_DEADLINE: Duration = Duration::from_secs(10);
/// The pause of a client after an error.
const PAUSE: Duration = Duration::from_millis(5);

/// Clients that write until they are told to stop.
struct FailoverLoad {
    stop: Arc<AtomicBool>,
    committed: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
    /// For the first organisation: when a transaction began and when it committed.
    spans: Arc<Mutex<Vec<(Instant, Instant)>>>,
    clients: tokio::task::JoinSet<()>,
}

impl FailoverLoad {
    async fn start(network: &OwnNetwork, clients: usize) -> Result<FailoverLoad, CommandError> {
        let mut load = FailoverLoad {
            stop: Arc::default(),
            committed: Arc::default(),
            failed: Arc::default(),
            spans: Arc::default(),
            clients: tokio::task::JoinSet::new(),
        };
        let (dir, endpoints) = (network.dir(), network.endpoints());
        for number in 0..clients {
            let organization = 1 + number % endpoints.gateways.len();
            let (target, user) = (endpoints.target(&dir, organization)?, endpoints.user(&dir, organization)?);
            let connection = GrpcConnection::connect(&target).await.map_err(CommandError::new)?;
            let client = GatewayClient::new(connection, user).with_deadline(Some(CALL_DEADLINE));
            let channel = endpoints.channel.clone();
            let (stop, committed, failed) = (load.stop.clone(), load.committed.clone(), load.failed.clone());
            let spans = (organization == 1).then(|| load.spans.clone());
            load.clients.spawn(async move {
                for sequence in 0u64.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let began = Instant::now();
                    let args = [Bytes::from(format!("client{number}")), Bytes::from(format!("value {sequence}"))];
                    match client.transact(&channel, "ycsb", "update", &args).await {
                        Ok(_) => {
                            committed.fetch_add(1, Ordering::Relaxed);
                            if let Some(spans) = &spans {
                                spans.lock().unwrap_or_else(PoisonError::into_inner).push((began, Instant::now()));
                            }
                        }
                        Err(_) => {
                            failed.fetch_add(1, Ordering::Relaxed);
                            tokio::time::sleep(PAUSE).await;
                        }
                    }
                }
            });
        }
        Ok(load)
    }

    /// The time from the kill until the first commit of a transaction that began after it.
    async fn first_since(&self, killed: Instant, stop: &CancellationToken) -> Result<Duration, CommandError> {
        loop {
            let first = {
                let spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
                spans.iter().filter(|(began, _)| *began >= killed).map(|(_, ended)| *ended).min()
            };
            if let Some(first) = first {
                return Ok(first - killed);
            }
            check_deadline(killed, stop, "no client's transaction commits")?;
            tokio::time::sleep(POLL).await;
        }
    }

    async fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        while self.clients.join_next().await.is_some() {}
    }
}

fn check_deadline(since: Instant, stop: &CancellationToken, what: &str) -> Result<(), CommandError> {
    if stop.is_cancelled() {
        return Err(CommandError::interrupted());
    }
    if since.elapsed() > FAILOVER_TIMEOUT {
        return Err(CommandError::new(format!("{what} within {} s", FAILOVER_TIMEOUT.as_secs())));
    }
    Ok(())
}

/// The reports of the first organisation's compute nodes, as far as they answer.
async fn reports(folders: &[PathBuf]) -> Vec<ComputeReport> {
    let mut reports = Vec::new();
    for folder in folders {
        reports.extend(request_node(folder).await.ok());
    }
    reports
}

/// Waits until one compute node is the primary and all others follow it.
async fn wait_for_followers(folders: &[PathBuf], stop: &CancellationToken) -> Result<ComputeReport, CommandError> {
    let since = Instant::now();
    loop {
        let reports = reports(folders).await;
        let followers = reports.iter().filter(|report| ["follower", "reader"].contains(&report.role.as_str())).count();
        let primary = reports.into_iter().find(|report| report.role == "primary");
        if let Some(primary) = primary.filter(|_| followers + 1 == folders.len()) {
            return Ok(primary);
        }
        check_deadline(since, stop, "the peer does not reach one primary with all others following it")?;
        tokio::time::sleep(POLL).await;
    }
}

fn now_unix_ns() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
}

/// The folders of the first organisation's compute nodes.
fn folders(network: &OwnNetwork, endpoints: &Endpoints) -> Vec<PathBuf> {
    let own = format!("compute-{}", endpoints.gateways[0].name.to_ascii_lowercase());
    let names = endpoints.processes.iter().map(|process| &process.name);
    let is_own = |name: &&String| name.strip_prefix(&own).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
    names.filter(is_own).map(|name| network.dir().join("nodes").join(name)).collect()
}

/// One kill: milliseconds to the next block, and to a client's next commit.
async fn kill_one(
    folders: &[PathBuf],
    load: &FailoverLoad,
    stop: &CancellationToken,
) -> Result<(f64, f64), CommandError> {
    let primary = wait_for_followers(folders, stop).await?;
    let epoch = primary.epoch.unwrap_or_default();
    let process = i32::try_from(primary.process).ok().and_then(Pid::from_raw);
    let process = process.ok_or_else(|| CommandError::new("the primary has no process"))?;
    let (killed, killed_unix_ns) = (Instant::now(), now_unix_ns());
    kill_process(process, Signal::KILL).map_err(|error| NodeError::File {
        doing: "killing",
        path: primary.name.into(),
        source: error.into(),
    })?;
    let applied_unix_ns = loop {
        let firsts = reports(folders).await.into_iter().filter_map(|report| report.first_block);
        if let Some(first) = firsts.into_iter().find(|first| first.epoch > epoch) {
            break first.at_unix_ns;
        }
        check_deadline(killed, stop, "no compute node takes over from the primary")?;
        tokio::time::sleep(POLL).await;
    };
    let next_block = applied_unix_ns.saturating_sub(killed_unix_ns) as f64 / 1e6;
    let next_commit = load.first_since(killed, stop).await?.as_secs_f64() * 1e3;
    Ok((next_block, next_commit))
}

pub async fn run(arguments: &FailoverArguments, stop: &CancellationToken) -> Result<(), CommandError> {
    let progress = FigureProgress::new();
    progress.report("starting a network of processes");
    let nodes = arguments.compute_nodes.to_string();
    let up = ["--isolate", "--orgs", "2", "--policy", "any", "--compute-nodes", &nodes];
    let network = OwnNetwork::launch(None, up.iter().map(Into::into), false, stop).await?;
    let result = measure(arguments, &network, &progress, stop).await;
    if result.is_err() {
        eprintln!("the network's log ends with:\n{}", network.log());
    }
    progress.report("ending the network");
    network.end().await;
    drop(progress);
    show(&result?, &arguments.output)
}

async fn measure(
    arguments: &FailoverArguments,
    network: &OwnNetwork,
    progress: &FigureProgress,
    stop: &CancellationToken,
) -> Result<Figure, CommandError> {
    let folders = folders(network, network.endpoints());
    let load = FailoverLoad::start(network, arguments.clients as usize).await?;
    let mut random = Random::new(arguments.seed);
    let (mut blocks, mut commits) = (Vec::new(), Vec::new());
    for kill in 1..=arguments.kills {
        progress.report(&format!("kill {kill} of {}", arguments.kills));
        wait_for_followers(&folders, stop).await?;
        tokio::time::sleep(Duration::from_millis(300 + random.below(700))).await;
        let (block, commit) = kill_one(&folders, &load, stop).await?;
        blocks.push(block);
        commits.push(commit);
    }
    let (committed, failed) = (load.committed.load(Ordering::Relaxed), load.failed.load(Ordering::Relaxed));
    load.end().await;

    let kills = blocks.len();
    let mut figure = Figure::new("failover", "From the kill of a primary to the next block of its peer");
    figure.setting("kills", kills as u64);
    figure.setting("compute_nodes", u64::from(arguments.compute_nodes));
    figure.setting("clients", arguments.clients);
    for (number, (block, commit)) in blocks.iter().zip(&commits).enumerate() {
        let label = (number + 1).to_string();
        figure.row(&[("kill", &label)], &[("next_block_ms", *block), ("next_commit_ms", *commit)]);
    }
    let sorted = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all
    };
    let (blocks, commits) = (sorted(blocks), sorted(commits));
    let bound = Some(RatioBound::AtMost(NEXT_BLOCK_MS_MAX));
    figure.ratio("next_block_ms_median", blocks[kills / 2], bound);
    figure.ratio("next_block_ms_max", blocks[kills - 1], bound);
    figure.ratio("next_commit_ms_median", commits[kills / 2], None);
    figure.ratio("next_commit_ms_max", commits[kills - 1], None);
    figure.note(format!("clients committed {committed} transactions, and had to retry {failed} times"));
    Ok(figure)
}
