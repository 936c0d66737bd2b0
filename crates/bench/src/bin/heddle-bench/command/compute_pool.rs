//! `heddle bench compute-pool`: what more compute nodes of a peer bring, and what they cost.
//!
//! 1. Start two networks of processes in temporary directories. Their peer has one and three compute nodes, each in a
//!    cgroup with the same quota of processor time; everything else has the rest of the machine.
//! 2. Measure windows on both in turns, so that a drift of the machine affects both alike. A transaction of K-means
//!    is mostly computing in the contract; SmallBank's is mostly signatures, encoding and messages.
//! 3. Measure the invalidations of a block ([`bench::invalidation`]), without a network.

use std::sync::Arc;

use base::rt::CancellationToken;
use bench::invalidation::{self, InvalidationConfig};
use cgroup::CpuGroup;
use measurement::figure::{Figure, RatioBound};
use measurement::interval::median;
use measurement::workload::Workload;
use measurement::workload::kmeans::KMeans;
use measurement::workload::smallbank::SmallBank;

use super::figure::{FigureProgress, show};
use super::measure::{OwnNetwork, measure};
use crate::cli::flexchain::ComputePoolArguments;
use crate::cli::workload::BenchRunArguments;
use crate::failure::CommandError;

/// The numbers of compute nodes that are compared.
const NODES: [u64; 2] = [1, 3];
const THREE_OVER_ONE_MIN: f64 = 1.7;
const INVALIDATION_RATIO_MAX: f64 = 8.0;
/// The most epochs of one clustering: a transaction takes about a millisecond.
const KMEANS_EPOCHS: u64 = 20;

pub async fn run(arguments: &ComputePoolArguments, stop: &CancellationToken) -> Result<(), CommandError> {
    let progress = FigureProgress::new();
    let mut figure = Figure::new("compute-pool", "A peer with several compute nodes");
    let mut arguments = arguments.clone();
    // A quick look must also work where no cgroup can be made.
    if arguments.common.quick && !can_make_groups() {
        arguments.cpu_percent = 0;
        figure.note("No quotas: no cgroup can be made here.");
    }
    let arguments = &arguments;
    figure.setting("cpu_percent", arguments.cpu_percent);
    figure.setting("clients", arguments.clients);
    networks(arguments, &mut figure, &progress, stop).await?;
    progress.report("invalidations");
    let quick = arguments.common.quick;
    let config = InvalidationConfig {
        blocks: if quick { 5 } else { arguments.blocks },
        may_lose_followers: quick,
        rounds: if quick { 1 } else { 5 },
        seed: arguments.common.seed,
        ..InvalidationConfig::default()
    };
    let ratio = invalidation::run(&config, &mut figure, stop).await?;
    figure.ratio("invalidation_64_over_8", ratio, Some(RatioBound::AtMost(INVALIDATION_RATIO_MAX)));
    figure.note(
        "Invalidations: a primary and its followers, with the protocol and the caches of the product, on threads of one process. \
         Of 64 compute nodes 63 are followers.",
    );
    drop(progress);
    show(&figure, &arguments.common.output)
}

pub(super) fn can_make_groups() -> bool {
    let group = CpuGroup::make(&format!("heddle-bench-{}", std::process::id()));
    group.map(|group| group.remove()).is_ok()
}

/// The loads by name.
fn workloads(arguments: &ComputePoolArguments) -> [(&'static str, Arc<dyn Workload>); 2] {
    let (profiles, accounts) = if arguments.common.quick { (1_000, 200) } else { (5_000, 10_000) };
    let kmeans = KMeans { profiles, epochs: KMEANS_EPOCHS, seed: arguments.common.seed, ..KMeans::default() };
    let bank = SmallBank { accounts, ..SmallBank::default() };
    [("kmeans", Arc::new(kmeans)), ("smallbank", Arc::new(bank))]
}

async fn networks(
    arguments: &ComputePoolArguments,
    figure: &mut Figure,
    progress: &FigureProgress,
    stop: &CancellationToken,
) -> Result<(), CommandError> {
    progress.report("starting two networks of processes");
    let pair = [start(arguments, NODES[0], stop).await?, start(arguments, NODES[1], stop).await?];
    let measured = on_networks(arguments, &pair, figure, progress, stop).await;
    if measured.is_err() && !stop.is_cancelled() {
        eprintln!("the log of the network with {} compute nodes ends with:\n{}", NODES[1], pair[1].log());
    }
    for network in pair {
        network.end().await;
    }
    measured
}

/// A network of one organisation whose peer has this many compute nodes.
async fn start(
    arguments: &ComputePoolArguments,
    nodes: u64,
    stop: &CancellationToken,
) -> Result<OwnNetwork, CommandError> {
    let text = format!("[pool]\ncompute_nodes = {nodes}\ncompute_cpu_percent = {}\n", arguments.cpu_percent);
    OwnNetwork::configured(&text, &["--orgs", "1", "--isolate"], stop).await
}

async fn on_networks(
    arguments: &ComputePoolArguments,
    pair: &[OwnNetwork; 2],
    figure: &mut Figure,
    progress: &FigureProgress,
    stop: &CancellationToken,
) -> Result<(), CommandError> {
    let (pairs, seconds) = if arguments.common.quick { (1, 1.0) } else { (arguments.pairs, arguments.seconds) };
    for (name, workload) in workloads(arguments) {
        let mut tps: [Vec<f64>; 2] = Default::default();
        // The first round loads and warms up.
        for round in 0..=pairs {
            progress.report(&format!("{name}, pair {round} of {pairs}"));
            for turn in 0..2 {
                let form = ((round + turn) % 2) as usize;
                let window = if round == 0 { seconds.min(2.0) } else { seconds };
                let run = BenchRunArguments {
                    seed: arguments.common.seed ^ (round << 32),
                    no_load: round > 0,
                    ..BenchRunArguments::window(arguments.clients, window)
                };
                let network = &pair[form];
                let report = measure(&run, workload.clone(), &network.dir(), network.endpoints(), &[], stop).await?;
                if round > 0 {
                    tps[form].push(report.valid_tps());
                }
            }
        }
        for (nodes, tps) in NODES.iter().zip(&tps) {
            let nodes = nodes.to_string();
            figure.row(&[("load", name), ("compute_nodes", &nodes)], &[("valid_tps", median(tps.iter().copied()))]);
        }
        let ratio = median(tps[1].iter().zip(&tps[0]).map(|(three, one)| three / one));
        match name {
            "kmeans" => figure.ratio("three_nodes_over_one", ratio, Some(RatioBound::AtLeast(THREE_OVER_ONE_MIN))),
            _ => figure.ratio("three_nodes_over_one_smallbank", ratio, None),
        }
    }
    Ok(())
}
