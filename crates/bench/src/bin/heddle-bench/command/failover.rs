//! `heddle bench failover`: measures the time from the kill of a primary to the next block that another compute node
//! applies, and how warm that node is.
//!
//! 1. Start a network of processes in a temporary directory, with several compute nodes per peer and caches of an eighth
//!    of the data at most. Load the data, and start clients that read and update random records.
//! 2. When the first organisation's peer has a primary and followers, kill the primary's process (SIGKILL) at an
//!    arbitrary moment. Poll the other compute nodes until one reports that it has applied a block as the primary, and
//!    the time at which it did. The times of the kill and of the block come from this machine's clock.
//! 3. Also measure the time to the first commit of a transaction that a client of that organisation began after the
//!    kill.
//! 4. Compare two windows of the first organisation: [`WINDOW`] that ends with the kill, and [`WINDOW`] that starts
//!    [`COLD_TIME`] after it. What counts is how many transactions committed, and how many reads of the state were answered
//!    from memory, local or remote, rather than from storage.
//! 5. The supervisor restarts the killed process, which becomes a follower. Then kill the next primary.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base::rt::CancellationToken;
use gateway::client::{GatewayClient, GrpcConnection};
use measurement::figure::{Figure, RatioBound};
use measurement::interval::median;
use measurement::random::Random;
use measurement::workload::ycsb::Ycsb;
use measurement::workload::{Workload, client_random};
use node::NodeError;
use node::control::{ComputeReport, request_node};
use rustix::process::{Pid, Signal, kill_process};

use super::figure::{FigureProgress, show};
use super::measure::{OwnNetwork, measure as measure_window};
use crate::cli::faults::FailoverArguments;
use crate::cli::workload::BenchRunArguments;
use crate::failure::CommandError;
use crate::page;

/// The bound on the time to the next block, with the default lease.
const NEXT_BLOCK_MS_MAX: f64 = 500.0;
/// Time limit for everything that has to happen between two kills.
const FAILOVER_TIMEOUT: Duration = Duration::from_secs(60);
/// How often compute nodes are polled.
const POLL: Duration = Duration::from_millis(10);
const CALL_DEADLINE: Duration = Duration::from_secs(10);
/// The pause of a client after an error.
const PAUSE: Duration = Duration::from_millis(5);

/// How much of the time before and after a kill is compared.
const WINDOW: Duration = Duration::from_secs(2);
/// When a new primary must be warm.
const COLD_TIME: Duration = Duration::from_secs(1);
/// The lower bound on throughput and on hits of a new primary, relative to those before.
const WARM_OVER_BEFORE_MIN: f64 = 0.9;
/// The data over the caches of a compute node.
const DATA_OVER_CACHES: u64 = 8;
/// Bytes of a record's value.
pub(super) const VALUE_BYTES: u64 = 1_024;

/// Clients that write until `stop` is set.
pub(super) struct FailoverLoad {
    stop: Arc<AtomicBool>,
    committed: Arc<AtomicU64>,
    pub(super) failed: Arc<AtomicU64>,
    /// What the last failed request was answered.
    pub(super) last_error: Arc<Mutex<Option<String>>>,
    /// For the first organisation: when a transaction began and when it committed.
    spans: Arc<Mutex<Vec<(Instant, Instant)>>>,
    clients: tokio::task::JoinSet<()>,
}

impl FailoverLoad {
    pub(super) async fn start(network: &OwnNetwork, clients: usize, data: &Ycsb) -> Result<FailoverLoad, CommandError> {
        let mut load = FailoverLoad {
            stop: Arc::default(),
            committed: Arc::default(),
            failed: Arc::default(),
            last_error: Arc::default(),
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
            let last_error = load.last_error.clone();
            let spans = (organization == 1).then(|| load.spans.clone());
            let mut calls = data.generator(number, client_random(data.seed, number));
            load.clients.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    let call = calls.next();
                    match client.transact(&channel, "ycsb", call.function, &call.args).await {
                        Ok(_) => {
                            committed.fetch_add(1, Ordering::Relaxed);
                            if let Some(spans) = &spans {
                                spans.lock().unwrap_or_else(PoisonError::into_inner).push((began, Instant::now()));
                            }
                        }
                        Err(error) => {
                            failed.fetch_add(1, Ordering::Relaxed);
                            *last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
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

    /// Transactions of the first organisation that committed in this time.
    pub(super) fn committed_between(&self, start: Instant, end: Instant) -> f64 {
        let spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        spans.iter().filter(|(_, ended)| (start..end).contains(ended)).count() as f64
    }

    /// When the first organisation's transactions that committed since then had begun and ended.
    pub(super) fn spans_since(&self, start: Instant) -> Vec<(Instant, Instant)> {
        let spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        spans.iter().filter(|(_, ended)| *ended >= start).copied().collect()
    }

    pub(super) async fn end(mut self) {
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

/// How the names of the first organisation's compute nodes start.
fn process_prefix(network: &OwnNetwork) -> String {
    format!("compute-{}", network.endpoints().gateways[0].name.to_ascii_lowercase())
}

/// The folders of the first organisation's compute nodes.
pub(super) fn folders(network: &OwnNetwork) -> Vec<PathBuf> {
    let own = process_prefix(network);
    let names = network.endpoints().processes.iter().map(|process| &process.name);
    let is_own = |name: &&String| name.strip_prefix(&own).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
    names.filter(is_own).map(|name| network.dir().join("nodes").join(name)).collect()
}

/// The reads of the state so far, by process.
struct ReadCounts(BTreeMap<String, (f64, f64)>);

impl ReadCounts {
    /// Asks the processes of the first organisation's compute nodes.
    async fn ask(network: &OwnNetwork) -> Result<ReadCounts, CommandError> {
        let address = network.endpoints().metrics;
        let page = tokio::task::spawn_blocking(move || page::get(address, "/metrics")).await;
        let page = page
            .map_err(CommandError::new)?
            .map_err(|error| CommandError::new(format!("the page of metrics: {error}")))?;
        let own = process_prefix(network);
        let of = |name: &str| page::by_process(&page, name);
        let mut counts: BTreeMap<String, (f64, f64)> = BTreeMap::new();
        for name in ["heddle_state_metadata_cache_hits_total", "heddle_state_metadata_cache_misses_total"] {
            for (process, value) in of(name).into_iter().filter(|(process, _)| process.starts_with(&own)) {
                counts.entry(process).or_default().0 += value;
            }
        }
        for (process, value) in of("heddle_state_storage_reads_total") {
            if let Some(counts) = counts.get_mut(&process) {
                counts.1 += value;
            }
        }
        Ok(ReadCounts(counts))
    }

    /// The share of reads since earlier counts that were answered from memory. A process that has started meanwhile counts
    /// from its start.
    fn hits_since(&self, earlier: &ReadCounts) -> f64 {
        let (mut reads, mut stored) = (0.0, 0.0);
        for (process, (all, storage)) in &self.0 {
            let known = earlier.0.get(process).copied().filter(|known| known.0 <= *all && known.1 <= *storage);
            let (all_before, storage_before) = known.unwrap_or_default();
            reads += all - all_before;
            stored += storage - storage_before;
        }
        if reads > 0.0 { 1.0 - stored / reads } else { 0.0 }
    }
}

/// What one kill showed.
struct KillSample {
    next_block_ms: f64,
    next_commit_ms: f64,
    /// Transactions a second, before and after.
    tps: [f64; 2],
    /// Shares of reads that were answered from memory.
    hits: [f64; 2],
}

async fn kill_one(
    network: &OwnNetwork,
    load: &FailoverLoad,
    stop: &CancellationToken,
) -> Result<KillSample, CommandError> {
    let folders = &folders(network);
    let primary = wait_for_followers(folders, stop).await?;
    let counts = ReadCounts::ask(network).await?;
    tokio::time::sleep(WINDOW).await;
    let hits_before = ReadCounts::ask(network).await?.hits_since(&counts);
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
    tokio::time::sleep(COLD_TIME.saturating_sub(killed.elapsed())).await;
    let (warm, counts) = (Instant::now(), ReadCounts::ask(network).await?);
    tokio::time::sleep(WINDOW).await;
    let ended = Instant::now();
    let hits_after = ReadCounts::ask(network).await?.hits_since(&counts);
    let before = load.committed_between(killed - WINDOW, killed) / WINDOW.as_secs_f64();
    let after = load.committed_between(warm, ended) / (ended - warm).as_secs_f64();
    Ok(KillSample {
        next_block_ms: next_block,
        next_commit_ms: next_commit,
        tps: [before, after],
        hits: [hits_before, hits_after],
    })
}

pub async fn run(arguments: &FailoverArguments, stop: &CancellationToken) -> Result<(), CommandError> {
    let progress = FigureProgress::new();
    progress.report("starting a network of processes");
    let nodes = arguments.compute_nodes.to_string();
    let data_bytes = arguments.records * VALUE_BYTES;
    // A quarter of the caches is for versions and addresses.
    let cache_bytes = data_bytes / DATA_OVER_CACHES / 4;
    let config = format!("[pool]\nmetadata_cache_bytes = {cache_bytes}\ndata_cache_bytes = {}\n", 3 * cache_bytes);
    let up = ["--isolate", "--orgs", "2", "--policy", "any", "--compute-nodes", &nodes];
    let network = OwnNetwork::configured(&config, &up, stop).await?;
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
    progress.report("loading");
    let data = Ycsb { records: arguments.records, value_bytes: VALUE_BYTES as usize, ..Ycsb::default() };
    let loading = BenchRunArguments { orgs: 2, ..BenchRunArguments::window(arguments.clients, 1.0) };
    measure_window(&loading, Arc::new(data.clone()), &network.dir(), network.endpoints(), &[], stop).await?;
    let load = FailoverLoad::start(network, arguments.clients as usize, &data).await?;
    let mut random = Random::new(arguments.seed);
    let mut samples = Vec::new();
    for kill in 1..=arguments.kills {
        progress.report(&format!("kill {kill} of {}", arguments.kills));
        wait_for_followers(&folders(network), stop).await?;
        tokio::time::sleep(Duration::from_millis(300 + random.below(700))).await;
        samples.push(kill_one(network, &load, stop).await?);
    }
    let (committed, failed) = (load.committed.load(Ordering::Relaxed), load.failed.load(Ordering::Relaxed));
    load.end().await;

    let mut figure = Figure::new("failover", "From the kill of a primary to the next block of its peer");
    figure.setting("kills", samples.len() as u64);
    figure.setting("compute_nodes", u64::from(arguments.compute_nodes));
    figure.setting("clients", arguments.clients);
    figure.setting("records", arguments.records);
    figure.setting("data_over_caches", DATA_OVER_CACHES);
    for (number, sample) in samples.iter().enumerate() {
        let numbers = [
            ("next_block_ms", sample.next_block_ms),
            ("next_commit_ms", sample.next_commit_ms),
            ("tps_before", sample.tps[0]),
            ("tps_warm", sample.tps[1]),
            ("hits_before", sample.hits[0]),
            ("hits_warm", sample.hits[1]),
        ];
        figure.row(&[("kill", &(number + 1).to_string())], &numbers);
    }
    let middle = |number: fn(&KillSample) -> f64| median(samples.iter().map(number));
    let most = |number: fn(&KillSample) -> f64| samples.iter().map(number).fold(0.0, f64::max);
    let (bound, warm) = (RatioBound::AtMost(NEXT_BLOCK_MS_MAX), RatioBound::AtLeast(WARM_OVER_BEFORE_MIN));
    figure.ratio("next_block_ms_median", middle(|sample| sample.next_block_ms), Some(bound));
    figure.ratio("next_block_ms_max", most(|sample| sample.next_block_ms), Some(bound));
    figure.ratio("next_commit_ms_median", middle(|sample| sample.next_commit_ms), None);
    figure.ratio("next_commit_ms_max", most(|sample| sample.next_commit_ms), None);
    figure.ratio("warm_tps_over_before", middle(|sample| sample.tps[1] / sample.tps[0]), Some(warm));
    figure.ratio("warm_hits_over_before", middle(|sample| sample.hits[1] / sample.hits[0]), Some(warm));
    figure.note(format!("clients committed {committed} transactions, and had to retry {failed} times"));
    Ok(figure)
}
