//! `heddle bench flexchain-fig8a`: throughput, cache hits and aborts over the local caches (FlexChain, section 6.4, figure 8 (a)).
//!
//! 1. For each load and each size of the local caches start a network whose remote memory holds all data, load it, and run the load
//!    with keys chosen uniformly, then by Zipf's law with exponent 2.
//! 2. Read how much remote memory a peer uses, and start a network with half of that. Run the load uniformly.
//! 3. All networks of a load have as many clients as bring the first one to its peak.
//!
//! YCSB-A runs with all sizes of the caches, SmallBank and K-means with the least and the greatest.
//!
//! With `--only state`, [`bench::flexchain::fig8a`] instead: the sources of answers, on the state alone.

use std::sync::Arc;

use base::rt::CancellationToken;
use bench::flexchain::VALUE_BYTES;
use bench::flexchain::fig7::ACCOUNT_BYTES;
use measurement::figure::{CurvePlot, Figure, RatioBound};
use measurement::interval::ConfidenceInterval;
use measurement::workload::{KeyChoice, Workload};

use super::figure::{FigureProgress, show};
use super::paper_sizes::{PaperSizes, WHOLE};
use super::peer_network::{
    MeasuredNetwork, MemoryLimits, NetworkSize, PeerSetup, RunLength, RunResult, cpu_percent, numbers, state_networks,
};
use crate::cli::flexchain::{Fig8aArguments, Fig8aNetworkArguments, Fig8aPart};
use crate::failure::CommandError;

const HALF_MEMORY_OVER_FULL_MIN: f64 = 0.6;
/// 50 MB, 500 MB and 2 GB of 4 GB.
const CACHE_PERCENTS: [f64; 3] = [1.25, 12.5, 50.0];
const CACHE_PERCENTS_QUICK: [f64; 1] = [12.5];
const SKEW: KeyChoice = KeyChoice::Zipf(2.0);
/// The scale of a quick look.
const SCALE_QUICK: u64 = 2_000;
/// Bytes of a profile of K-means: 100 coordinates.
const PROFILE_BYTES: u64 = 800;
/// The least share of a peer's remote memory that a network with half of it has: some sections.
const REMOTE_BYTES_MIN: u64 = 8 << 20;
/// The least caches: shards of less would hold nothing.
const CACHE_BYTES_MIN: u64 = 256 << 10;

/// A load of the figure.
struct Load {
    part: Fig8aPart,
    name: &'static str,
    uniform: Arc<dyn Workload>,
    skewed: Arc<dyn Workload>,
    /// Bytes of its data, without keys.
    data: u64,
    value_bytes: u64,
}

fn loads(sizes: PaperSizes) -> [Load; 3] {
    let choices = [KeyChoice::Uniform, SKEW];
    let [bank, skewed_bank] = choices.map(|choice| sizes.smallbank(50, choice));
    let [ycsb, skewed_ycsb] = choices.map(|choice| sizes.ycsb("a", 1, choice));
    let [kmeans, skewed_kmeans] = choices.map(|choice| sizes.kmeans(choice));
    let load = |part, name, uniform, skewed, data, value_bytes| Load { part, name, uniform, skewed, data, value_bytes };
    let accounts = 2 * sizes.customers();
    [
        load(Fig8aPart::Ycsb, "ycsb-a", ycsb, skewed_ycsb, sizes.mb(4_000), VALUE_BYTES as u64),
        load(
            Fig8aPart::Smallbank,
            "smallbank 50 %",
            bank,
            skewed_bank,
            accounts * ACCOUNT_BYTES as u64,
            ACCOUNT_BYTES as u64,
        ),
        load(Fig8aPart::Kmeans, "kmeans", kmeans, skewed_kmeans, sizes.profiles() * PROFILE_BYTES, PROFILE_BYTES),
    ]
}

/// What all networks of the figure share.
struct Fig8aRun<'a> {
    arguments: &'a Fig8aNetworkArguments,
    sizes: PaperSizes,
    length: RunLength,
    rounds: u64,
    cpu_percent: u32,
    limits: MemoryLimits,
    progress: &'a FigureProgress,
    stop: &'a CancellationToken,
}

pub async fn run(arguments: &Fig8aArguments, stop: &CancellationToken) -> Result<(), CommandError> {
    if arguments.only == Some(Fig8aPart::State) {
        return super::flexchain::fig8a(arguments, stop).await;
    }
    let networks = &arguments.networks;
    let is_quick = networks.common.quick;
    let progress = FigureProgress::new();
    let mut figure =
        Figure::new("flexchain-fig8a", "FlexChain, figure 8 (a): throughput, hits and aborts over the local caches");
    let scale = if is_quick { SCALE_QUICK } else { networks.scale };
    let run = Fig8aRun {
        arguments: networks,
        sizes: PaperSizes { scale, seed: networks.common.seed },
        length: RunLength { seconds: networks.seconds, seed: networks.common.seed, is_quick },
        rounds: if is_quick { 1 } else { networks.rounds },
        cpu_percent: cpu_percent(networks.peers.cpu_percent, is_quick, &mut figure),
        limits: MemoryLimits::probe(),
        progress: &progress,
        stop,
    };
    run.sizes.state(&mut figure);
    state_networks(&mut figure, NetworkSize::new(is_quick), networks.peers.link_latency_us);
    figure.setting("cpu_percent", run.cpu_percent);
    figure.setting("validation", "parallel");
    figure.setting("rounds", run.rounds);
    figure.setting("seconds", networks.seconds);
    run.limits.state(&mut figure);
    let percents = match (&arguments.cache_percent[..], is_quick) {
        ([], true) => CACHE_PERCENTS_QUICK.to_vec(),
        ([], false) => CACHE_PERCENTS.to_vec(),
        (asked, _) => asked.to_vec(),
    };
    for load in loads(run.sizes) {
        if arguments.only.is_some_and(|only| only != load.part) || (is_quick && load.part == Fig8aPart::Kmeans) {
            continue;
        }
        let percents = match (load.part, &percents[..]) {
            (Fig8aPart::Ycsb, _) | (_, [] | [_]) => percents.clone(),
            (_, [first, .., last]) => vec![*first, *last],
        };
        let ratio = run.load(&load, &percents, &mut figure).await?;
        let (name, bound) = match load.part {
            Fig8aPart::Ycsb => ("half_memory_over_full", Some(RatioBound::AtLeast(HALF_MEMORY_OVER_FULL_MIN))),
            Fig8aPart::Smallbank => ("half_memory_over_full_smallbank", None),
            Fig8aPart::Kmeans | Fig8aPart::State => ("half_memory_over_full_kmeans", None),
        };
        figure.ratio(name, ratio, bound);
    }
    for y in ["tps", "hit_percent", "aborted_percent"] {
        figure.curves(CurvePlot { x: "cache_percent", x_log: true, y });
    }
    figure.note(
        "tps: means of the runs, with the least and the most of them. hit_percent and storage_percent: of the reads of contracts and \
         validation, those that the compute nodes' caches answered, and those that storage answered. remote_mib of `half` is half of what \
         the data takes in remote memory, of which eviction leaves some free. The paper: 0.25, and more than 50 % of aborts at s = 2.",
    );
    drop(progress);
    show(&figure, &networks.common.output)
}

impl Fig8aRun<'_> {
    /// Adds the rows of a load. Returns its throughput with half of the memory over that with all, the mean over the caches.
    async fn load(&self, load: &Load, percents: &[f64], figure: &mut Figure) -> Result<f64, CommandError> {
        let mut clients = self.arguments.clients;
        let mut ratios = Vec::new();
        for percent in percents {
            let caches = ((load.data as f64 * percent / 100.0) as u64).max(CACHE_BYTES_MIN);
            // Small records take several times their bytes in remote memory.
            let whole = ((load.data + 400 * load.data / load.value_bytes) as f64 * WHOLE) as u64 + REMOTE_BYTES_MIN;
            let network = self.start(load, "all", caches, whole).await?;
            let peak = network.peak_clients(&load.uniform, self.length, clients, self.progress, self.stop).await?;
            clients = Some(peak);
            let full = self.runs(&network, load, false, peak).await?;
            let used = network.remote_used().await?;
            self.row(figure, load, &network, "all, s = 0", *percent, &full);
            let skewed = self.runs(&network, load, true, peak).await?;
            self.row(figure, load, &network, "all, s = 2", *percent, &skewed);
            network.end().await;

            let network = self.start(load, "half", caches, (used / 2).max(REMOTE_BYTES_MIN)).await?;
            let half = self.runs(&network, load, false, peak).await?;
            self.row(figure, load, &network, "half, s = 0", *percent, &half);
            network.end().await;
            ratios.push(mean(&half) / mean(&full).max(1e-3));
        }
        figure.setting(&format!("clients, {}", load.name), clients.unwrap_or_default());
        Ok(ConfidenceInterval::of_ratios(&ratios).mean)
    }

    async fn start(&self, load: &Load, name: &str, caches: u64, remote: u64) -> Result<MeasuredNetwork, CommandError> {
        let setup = PeerSetup {
            name: format!("{}, remote memory {name}", load.name),
            monolithic: false,
            nodes: 1,
            cpu_percent: self.cpu_percent,
            validation: "parallel",
            link_latency_us: self.arguments.peers.link_latency_us,
            memory: Some(self.sizes.disaggregated(caches, remote, load.value_bytes)),
            size: NetworkSize::new(self.length.is_quick),
        };
        let network = MeasuredNetwork::start(&setup, &self.limits, self.progress, self.stop).await?;
        network.load(&load.uniform, self.length, self.progress, self.stop).await?;
        network.limit_memory(&self.limits, &load.uniform, self.length, self.progress, self.stop).await?;
        Ok(network)
    }

    async fn runs(
        &self,
        network: &MeasuredNetwork,
        load: &Load,
        is_skewed: bool,
        clients: u64,
    ) -> Result<Vec<RunResult>, CommandError> {
        let workload = if is_skewed { &load.skewed } else { &load.uniform };
        let mut results = Vec::new();
        for round in 1..=self.rounds {
            let skew = if is_skewed { "s = 2" } else { "s = 0" };
            self.progress.report(&format!("{}, {skew}: run {round} of {}", network.setup.name, self.rounds));
            results.push(network.run(workload, self.length, clients, round, self.stop).await?);
        }
        Ok(results)
    }

    fn row(
        &self,
        figure: &mut Figure,
        load: &Load,
        network: &MeasuredNetwork,
        setting: &str,
        cache_percent: f64,
        results: &[RunResult],
    ) {
        let mut row = vec![("cache_percent", cache_percent)];
        row.extend(numbers(results));
        row.extend(network.memory_numbers());
        figure.row(&[("load", load.name), ("remote", setting)], &row);
    }
}

fn mean(results: &[RunResult]) -> f64 {
    results.iter().map(|result| result.tps).sum::<f64>() / results.len().max(1) as f64
}
