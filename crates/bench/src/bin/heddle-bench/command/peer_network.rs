//! Networks of processes as in FlexChain's evaluation (section 6.1): three peers, three orderers on Raft, blocks of 200, remote
//! memory behind a link of 2 µs. Each side of a comparison has the same quota of processor time for its compute nodes and a limit
//! of memory, which counts page cache.
//!
//! 1. A [`PeerSetup`] says what each peer of a network has. [`MeasuredNetwork::start`] starts such a network, and
//!    [`MeasuredNetwork::load`] fills it.
//! 2. [`MeasuredNetwork::limit_memory`] runs the load with the most clients, reads what each compute and storage node then needs for
//!    itself, and limits it to that and the page cache that the setup gives it. What a process needs without the data (code, queues,
//!    what its allocator retains) so counts on neither side, and its caches and buffers, whose sizes are configured, do.
//! 3. [`MeasuredNetwork::peak_clients`] raises the number of clients until throughput stops growing.
//! 4. [`rounds`] measures several loaded networks in turns, so that a drift of the machine affects all alike. A network that is not
//!    under load costs almost nothing.
//!
//! Where no cgroup can limit memory, [`MemoryLimits::probe`] finds out, networks run with the sizes of their caches and buffers
//! alone, and the figure says so.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use base::rt::CancellationToken;
use cgroup::MemoryGroup;
use measurement::figure::Figure;
use measurement::process::usage;
use measurement::workload::Workload;
use node::process::ProcessRole;

use super::figure::FigureProgress;
use super::measure::{OwnNetwork, measure};
use crate::cli::workload::BenchRunArguments;
use crate::failure::CommandError;
use crate::page;

pub const BLOCK_TRANSACTIONS: u32 = 200;
/// A further step in clients must bring this much.
const PEAK_STEP: f64 = 1.05;
/// Clients with which the search for the peak starts.
const CLIENTS_FIRST: u64 = 48;
/// The most clients that the search tries.
const CLIENTS_MAX: u64 = 384;
/// The limit of a process while its network is loaded.
const LOADING_LIMIT: u64 = 4 << 30;
/// The page cache of a process that shall have none: files pass through it, and what the process needs for itself varies.
const PAGE_CACHE_LEAST: u64 = 16 << 20;
/// How long a network runs before what its processes need is read.
const NEED_SECONDS: f64 = 3.0;
/// Blocks end at this size, too, so that those of loading are not larger than the measured ones.
const BLOCK_BYTES: u64 = 4 << 20;
/// Clients of a quick look.
const CLIENTS_QUICK: u64 = 6;
/// How long a network may settle after loading: savepoints and compactions.
const SETTLE: Duration = Duration::from_secs(2);
const SETTLE_QUICK: Duration = Duration::from_millis(200);

/// How many organisations, each with a peer, and how many orderers a network has.
#[derive(Clone, Copy, Debug)]
pub struct NetworkSize {
    organizations: u32,
    orderers: u32,
}

impl NetworkSize {
    /// The paper's; or the smallest, for a quick look: most of its time would pass while processes start.
    pub fn new(is_quick: bool) -> NetworkSize {
        let count = if is_quick { 1 } else { 3 };
        NetworkSize { organizations: count, orderers: count }
    }
}

/// What each peer of a network has.
#[derive(Clone, Debug)]
pub struct PeerSetup {
    /// The name of its rows.
    pub name: String,
    /// Whether its blocks and state lie on its own disk.
    pub monolithic: bool,
    /// Its compute nodes.
    pub nodes: u32,
    /// The quota of a compute node, in percent of one processor; 0 is none.
    pub cpu_percent: u32,
    /// `sequential` or `parallel`.
    pub validation: &'static str,
    /// The latency of the link to remote memory.
    pub link_latency_us: u64,
    /// What its processes have for state; `None` leaves the product's defaults.
    pub memory: Option<PeerMemory>,
    /// How many of these peers there are.
    pub size: NetworkSize,
}

/// Bytes that the processes of a peer have.
#[derive(Clone, Debug)]
pub struct PeerMemory {
    /// Page cache that each of its compute and storage nodes may have, beside [`PAGE_CACHE_LEAST`].
    pub page_cache: u64,
    /// Remote memory.
    pub remote: u64,
    /// The cache of addresses and versions of a compute node, and that of records.
    pub caches: [u64; 2],
    /// The cache of records of a monolithic peer.
    pub records: u64,
    /// The tables' write buffers, of a storage node or of a monolithic peer.
    pub memtable: u64,
    /// The writes since the savepoint that a state keeps in memory.
    pub delta: u64,
    /// The tables' caches of blocks and of newest versions.
    pub tables: [u64; 2],
}

impl PeerMemory {
    /// The caches of a compute node's state.
    fn state_caches(&self, is_monolithic: bool) -> u64 {
        if is_monolithic { self.records } else { self.caches.iter().sum() }
    }
}

impl PeerSetup {
    /// The settings of a network of such peers.
    fn settings(&self, limits: &MemoryLimits) -> String {
        let mut text = format!(
            "[pool]\ncompute_nodes = {}\ncompute_cpu_percent = {}\nvalidation = \"{}\"\nlink_latency_us = {}\n",
            self.nodes, self.cpu_percent, self.validation, self.link_latency_us
        );
        let mut set = |key: &str, value: u64| writeln!(text, "{key} = {value}").expect("a text takes all");
        if let Some(memory) = &self.memory {
            if limits.problem.is_none() {
                set("compute_memory_bytes", LOADING_LIMIT);
                set("storage_memory_bytes", LOADING_LIMIT);
            }
            if !self.monolithic {
                set("peer_bytes", memory.remote);
                // All peers' memory fits wherever the pool puts it.
                set("memory_bytes", memory.remote * u64::from(self.size.organizations));
                set("section_bytes", section_bytes(memory.remote));
                set("metadata_cache_bytes", memory.caches[0]);
                set("data_cache_bytes", memory.caches[1]);
            }
        }
        text.push_str("[storage]\n");
        let mut set = |key: &str, value: u64| writeln!(text, "{key} = {value}").expect("a text takes all");
        if let Some(memory) = &self.memory {
            set("cache_bytes", memory.records);
            set("memtable_bytes", memory.memtable.max(1 << 20));
            set("delta_bytes", memory.delta.max(1 << 20));
            set("table_cache_bytes", memory.tables[0].max(1 << 20));
            set("table_hint_bytes", memory.tables[1].max(1 << 20));
        }
        let _ = writeln!(text, "[batch]\nmessages = {BLOCK_TRANSACTIONS}\npreferred_bytes = {BLOCK_BYTES}");
        text
    }

    /// Starts a network of such peers.
    pub async fn start(&self, limits: &MemoryLimits, stop: &CancellationToken) -> Result<OwnNetwork, CommandError> {
        let (organizations, orderers) = (self.size.organizations.to_string(), self.size.orderers.to_string());
        let up = ["--isolate", "--orgs", &organizations, "--ordering", "raft", "--orderers", &orderers, "--monolithic"];
        let up = if self.monolithic { &up[..] } else { &up[..7] };
        OwnNetwork::configured(&self.settings(limits), up, stop).await
    }
}

/// A power of two, so that remote memory is at least some twenty sections.
fn section_bytes(remote: u64) -> u64 {
    let wanted = (remote / 20).max(1).next_power_of_two();
    wanted.clamp(2 << 20, pool::SECTION_BYTES_DEFAULT)
}

/// Whether processes can be given limits of memory here.
pub struct MemoryLimits {
    mechanism: &'static str,
    /// Why they cannot.
    problem: Option<String>,
}

impl MemoryLimits {
    /// Makes a group with a limit, and removes it.
    pub fn probe() -> MemoryLimits {
        let group = MemoryGroup::make(&format!("heddle-bench-{}", std::process::id()));
        let group = match group {
            Ok(group) => group,
            Err(error) => return MemoryLimits { mechanism: "none", problem: Some(error.to_string()) },
        };
        let problem = group.set_limit(Some(cgroup::MEMORY_BYTES_MIN)).err().map(|error| error.to_string());
        let mechanism = if problem.is_none() { group.mechanism() } else { "none" };
        group.remove();
        MemoryLimits { mechanism, problem }
    }

    /// No limits are asked for.
    pub fn not_wanted() -> MemoryLimits {
        MemoryLimits { mechanism: "none", problem: None }
    }

    /// Says in a figure how memory was limited.
    pub fn state(&self, figure: &mut Figure) {
        figure.setting("memory_limits", self.mechanism);
        match &self.problem {
            None => figure.note(
                "Each compute node and each storage node has a limit of memory by a cgroup that counts page cache, and no swap. \
                 Remote memory is limited by the peer's budget.",
            ),
            Some(problem) => figure.note(format!(
                "NO LIMITS OF MEMORY: no cgroup can limit it here ({problem}). Only the configured sizes of caches, write buffers \
                 and remote memory bound it; the kernel's page cache serves reads of files beyond them.",
            )),
        }
    }
}

/// Says in a figure what all its networks have in common.
pub fn state_networks(figure: &mut Figure, size: NetworkSize, link_latency_us: u64) {
    figure.setting("organizations", size.organizations);
    figure.setting("orderers", size.orderers);
    figure.setting("block_transactions", BLOCK_TRANSACTIONS);
    figure.setting("link_latency_us", link_latency_us);
}

/// The quota that compute nodes get: none in a quick look where none can be had.
pub fn cpu_percent(asked: u32, is_quick: bool, figure: &mut Figure) -> u32 {
    if is_quick && !super::compute_pool::can_make_groups() {
        figure.note("No quotas: no cgroup can be made here.");
        return 0;
    }
    asked
}

/// How a load runs.
#[derive(Clone, Copy)]
pub struct RunLength {
    /// How long each measurement lasts.
    pub seconds: f64,
    pub seed: u64,
    /// Whether short runs are enough.
    pub is_quick: bool,
}

impl RunLength {
    fn arguments(&self, clients: u64, round: u64) -> BenchRunArguments {
        BenchRunArguments {
            seed: self.seed ^ (round << 32),
            warm_up: if self.is_quick { 0.5 } else { 2.0 },
            no_load: true,
            ..BenchRunArguments::window(clients, if self.is_quick { 1.0 } else { self.seconds })
        }
    }
}

/// What one measurement showed.
#[derive(Clone, Copy, Debug)]
pub struct RunResult {
    /// Valid transactions a second.
    pub tps: f64,
    /// Transactions in blocks that were not valid, in percent.
    pub aborted_percent: f64,
    pub p50_ms: f64,
    /// Processor time of the compute nodes, in percent of their quotas or of all processors.
    pub compute_percent: f64,
    /// Of the reads that contracts and validation made, those that compute nodes answered from their caches.
    pub hit_percent: f64,
    /// The same from storage, or from the tables.
    pub storage_percent: f64,
}

/// A network under measurement.
pub struct MeasuredNetwork {
    pub setup: PeerSetup,
    network: OwnNetwork,
}

impl MeasuredNetwork {
    pub async fn start(
        setup: &PeerSetup,
        limits: &MemoryLimits,
        progress: &FigureProgress,
        stop: &CancellationToken,
    ) -> Result<MeasuredNetwork, CommandError> {
        progress.report(&format!("{}: starting a network", setup.name));
        Ok(MeasuredNetwork { network: setup.start(limits, stop).await?, setup: setup.clone() })
    }

    /// Writes a workload's data.
    pub async fn load(
        &self,
        workload: &Arc<dyn Workload>,
        length: RunLength,
        progress: &FigureProgress,
        stop: &CancellationToken,
    ) -> Result<(), CommandError> {
        progress.report(&format!("{}: loading", self.setup.name));
        let settle = if length.is_quick { SETTLE_QUICK } else { SETTLE };
        let run = BenchRunArguments::window(1, 0.2);
        self.said(measure(&run, workload.clone(), &self.network.dir(), self.network.endpoints(), &[], stop).await)?;
        tokio::time::sleep(settle).await;
        Ok(())
    }

    /// Limits the memory of compute and storage nodes to what they need and the page cache that they may have.
    pub async fn limit_memory(
        &self,
        limits: &MemoryLimits,
        workload: &Arc<dyn Workload>,
        length: RunLength,
        progress: &FigureProgress,
        stop: &CancellationToken,
    ) -> Result<(), CommandError> {
        let Some(memory) = self.setup.memory.as_ref().filter(|_| limits.problem.is_none()) else { return Ok(()) };
        progress.report(&format!("{}: reading what its processes need", self.setup.name));
        let clients = if length.is_quick { CLIENTS_QUICK } else { CLIENTS_MAX };
        self.run(workload, RunLength { seconds: NEED_SECONDS, ..length }, clients, 0, stop).await?;
        // A cache that is not full yet needs its space later, and the allocator's share of it.
        let unfilled = memory.state_caches(self.setup.monolithic).saturating_sub(self.caches_filled().await?) * 5 / 4;
        for (role, later) in [(ProcessRole::Compute, unfilled), (ProcessRole::Storage, 0)] {
            let groups: Vec<MemoryGroup> = self.groups(role).collect();
            let own = |group: &MemoryGroup| Some(group.used()?.saturating_sub(group.cached()?));
            let Some(need) = groups.iter().filter_map(own).max() else { continue };
            for group in groups {
                let limited = group.set_limit(Some(need + later + PAGE_CACHE_LEAST + memory.page_cache));
                limited.map_err(|error| CommandError::new(format!("{}: {error}", group.folder().display())))?;
            }
        }
        Ok(())
    }

    /// Bytes in the caches of the compute node that has the least in them.
    async fn caches_filled(&self) -> Result<u64, CommandError> {
        let page = metrics_page(&self.network).await?;
        let mut filled: BTreeMap<String, f64> = BTreeMap::new();
        for name in ["cache_bytes", "metadata_cache_bytes", "data_cache_bytes"] {
            let processes = page::by_process(&page, &format!("heddle_state_{name}"));
            for (process, bytes) in processes.into_iter().filter(|(process, _)| process.starts_with("compute-")) {
                *filled.entry(process).or_default() += bytes;
            }
        }
        Ok(filled.into_values().reduce(f64::min).unwrap_or_default() as u64)
    }

    /// The groups that limit the memory of the processes of a role.
    fn groups(&self, role: ProcessRole) -> impl Iterator<Item = MemoryGroup> {
        let processes = self.network.endpoints().processes.iter().filter(move |one| one.role == role);
        processes.filter_map(|process| MemoryGroup::around(process.process))
    }

    /// Runs a load.
    pub async fn run(
        &self,
        workload: &Arc<dyn Workload>,
        length: RunLength,
        clients: u64,
        round: u64,
        stop: &CancellationToken,
    ) -> Result<RunResult, CommandError> {
        let run = length.arguments(clients, round);
        let (cpu_before, before) = (self.compute_cpu_us()?, ReadCounts::of(&self.network).await?);
        let network = (&self.network.dir(), self.network.endpoints());
        let report = self.said(measure(&run, workload.clone(), network.0, network.1, &[], stop).await)?;
        let cpu_us = self.compute_cpu_us()?.saturating_sub(cpu_before);
        let reads = ReadCounts::of(&self.network).await?.since(before);
        let tally = &report.measurement().tally;
        let quota = match self.setup.cpu_percent {
            0 => measurement::process::cores() as f64,
            percent => f64::from(percent * self.setup.nodes * self.setup.size.organizations) / 100.0,
        };
        let (hit_percent, storage_percent) = reads.percents(self.setup.monolithic);
        Ok(RunResult {
            tps: report.valid_tps(),
            aborted_percent: 100.0 * (tally.committed() - tally.valid()) as f64 / tally.committed().max(1) as f64,
            p50_ms: report.p50_ms(),
            compute_percent: 100.0 * cpu_us as f64 / 1e6 / (run.warm_up + run.seconds) / quota,
            hit_percent,
            storage_percent,
        })
    }

    /// Prints the end of the network's log after a failure.
    fn said<T>(&self, result: Result<T, CommandError>) -> Result<T, CommandError> {
        if result.is_err() {
            eprintln!("the log of the network of {} ends with:\n{}", self.setup.name, self.network.log());
        }
        result
    }

    fn compute_cpu_us(&self) -> Result<u64, CommandError> {
        let computes = self.network.endpoints().processes.iter().filter(|one| one.role == ProcessRole::Compute);
        let mut sum = 0;
        for process in computes {
            let found = usage(Some(process.process));
            sum += found.map_err(|error| CommandError::new(format!("{}: {error}", process.name)))?.cpu_us;
        }
        Ok(sum)
    }

    /// The least number of clients beyond which throughput stops growing.
    pub async fn peak_clients(
        &self,
        workload: &Arc<dyn Workload>,
        length: RunLength,
        asked: Option<u64>,
        progress: &FigureProgress,
        stop: &CancellationToken,
    ) -> Result<u64, CommandError> {
        if let Some(clients) = asked {
            return Ok(clients);
        }
        if length.is_quick {
            return Ok(CLIENTS_QUICK);
        }
        let length = RunLength { seconds: length.seconds / 2.0, ..length };
        let (mut clients, mut best) = (CLIENTS_FIRST, 0.0);
        loop {
            progress.report(&format!("{}: {clients} clients", self.setup.name));
            let tps = self.run(workload, length, clients, 0, stop).await?.tps;
            if tps < best * PEAK_STEP {
                return Ok(clients / 2);
            }
            if clients >= CLIENTS_MAX {
                return Ok(clients);
            }
            (best, clients) = (tps, clients * 2);
        }
    }

    /// The memory of a peer, in MiB: what its processes may have, and what its compute node has of that.
    pub fn memory_numbers(&self) -> Vec<(&'static str, f64)> {
        let Some(memory) = &self.setup.memory else { return Vec::new() };
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let caches = match self.setup.monolithic {
            true => memory.records + memory.delta + memory.memtable + memory.tables.iter().sum::<u64>(),
            false => memory.caches.iter().sum::<u64>() + memory.delta,
        };
        let mut numbers = vec![("caches_mib", mib(caches))];
        let limits = [
            ("compute_limit_mib", "page_cache_mib", ProcessRole::Compute),
            ("storage_limit_mib", "storage_page_cache_mib", ProcessRole::Storage),
        ];
        for (limit, cached, role) in limits {
            let of = self.groups(role).filter_map(|group| Some((group.limit()?, group.cached()?)));
            if let Some((bytes, in_cache)) = of.max() {
                numbers.extend([(limit, mib(bytes)), (cached, mib(in_cache))]);
            }
        }
        if !self.setup.monolithic {
            numbers.push(("remote_mib", mib(memory.remote)));
        }
        numbers
    }

    /// Bytes of remote memory that a peer has in use.
    pub async fn remote_used(&self) -> Result<u64, CommandError> {
        let page = metrics_page(&self.network).await?;
        let of = |name: &str| page::metric(&page, name).unwrap_or_default();
        let used = of("heddle_state_remote_leased_bytes") - of("heddle_state_remote_free_bytes");
        Ok((used / f64::from(self.setup.size.organizations)).max(0.0) as u64)
    }

    pub async fn end(self) {
        self.network.end().await;
    }
}

async fn metrics_page(network: &OwnNetwork) -> Result<String, CommandError> {
    let address = network.endpoints().metrics;
    let page = tokio::task::spawn_blocking(move || page::get(address, "/metrics")).await;
    let page = page.map_err(CommandError::new)?;
    page.map_err(|error| CommandError::new(format!("the page of metrics: {error}")))
}

/// Measures networks in turns, once in each round, each with its number of clients. Successive rounds begin with different
/// networks.
pub async fn rounds(
    networks: &[(MeasuredNetwork, u64)],
    load: (&str, &Arc<dyn Workload>),
    length: RunLength,
    rounds: u64,
    progress: &FigureProgress,
    stop: &CancellationToken,
) -> Result<Vec<Vec<RunResult>>, CommandError> {
    let mut results: Vec<Vec<RunResult>> = vec![Vec::new(); networks.len()];
    for round in 1..=rounds {
        for turn in 0..networks.len() {
            let number = (round as usize + turn) % networks.len();
            let (network, clients) = &networks[number];
            progress.report(&format!("round {round} of {rounds}: {}, {}", load.0, network.setup.name));
            results[number].push(network.run(load.1, length, *clients, round, stop).await?);
        }
    }
    Ok(results)
}

/// The numbers of a row.
pub fn numbers(results: &[RunResult]) -> Vec<(&'static str, f64)> {
    let mean = |number: fn(&RunResult) -> f64| results.iter().map(number).sum::<f64>() / results.len().max(1) as f64;
    let (least, most) = spread(results.iter().map(|result| result.tps));
    vec![
        ("tps", mean(|result| result.tps)),
        ("tps_least", least),
        ("tps_most", most),
        ("aborted_percent", mean(|result| result.aborted_percent)),
        ("p50_ms", mean(|result| result.p50_ms)),
        ("hit_percent", mean(|result| result.hit_percent)),
        ("storage_percent", mean(|result| result.storage_percent)),
        ("compute_percent", mean(|result| result.compute_percent)),
    ]
}

/// The ratios of throughput of the rounds.
pub fn ratios(one: &[RunResult], other: &[RunResult]) -> Vec<f64> {
    one.iter().zip(other).map(|(one, other)| one.tps / other.tps.max(1e-3)).collect()
}

/// The least and the greatest.
pub fn spread(values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    values.into_iter().fold((f64::INFINITY, 0.0), |(least, most), value| (value.min(least), value.max(most)))
}

/// Reads of all compute nodes' states.
#[derive(Clone, Copy, Default)]
struct ReadCounts {
    /// Look-ups in the metadata cache, and reads of values by whether the data cache had them.
    looked_up: f64,
    unknown: f64,
    not_cached: f64,
    storage: f64,
    /// Of monolithic peers: reads by whether the cache had them.
    records: f64,
    tables: f64,
}

impl ReadCounts {
    async fn of(network: &OwnNetwork) -> Result<ReadCounts, CommandError> {
        let page = metrics_page(network).await?;
        let sums: BTreeMap<&str, f64> = [
            "metadata_cache_hits",
            "metadata_cache_misses",
            "data_cache_misses",
            "storage_reads",
            "cache_hits",
            "cache_misses",
            "delta_hits",
        ]
        .into_iter()
        .map(|name| (name, page::metric(&page, &format!("heddle_state_{name}_total")).unwrap_or_default()))
        .collect();
        Ok(ReadCounts {
            looked_up: sums["metadata_cache_hits"] + sums["metadata_cache_misses"],
            unknown: sums["metadata_cache_misses"],
            not_cached: sums["data_cache_misses"],
            storage: sums["storage_reads"],
            records: sums["cache_hits"] + sums["cache_misses"] + sums["delta_hits"],
            tables: sums["cache_misses"],
        })
    }

    fn since(self, before: ReadCounts) -> ReadCounts {
        ReadCounts {
            looked_up: self.looked_up - before.looked_up,
            unknown: self.unknown - before.unknown,
            not_cached: self.not_cached - before.not_cached,
            storage: self.storage - before.storage,
            records: self.records - before.records,
            tables: self.tables - before.tables,
        }
    }

    /// The shares that caches and storage answered.
    fn percents(self, is_monolithic: bool) -> (f64, f64) {
        let share = |part: f64, all: f64| if all > 0.0 { (100.0 * part / all).clamp(0.0, 100.0) } else { 0.0 };
        match is_monolithic {
            true => (share(self.records - self.tables, self.records), share(self.tables, self.records)),
            false => {
                let cached = self.looked_up - self.unknown - self.not_cached;
                (share(cached, self.looked_up), share(self.storage, self.looked_up))
            }
        }
    }
}
