//! `heddle bench flexchain-fig5a`: throughput of a compute-intensive contract over the processors of a peer (FlexChain,
//! section 6.2, figure 5 (a)).
//!
//! 1. For each size start a network of processes in a temporary directory: three organisations, three orderers on Raft, blocks
//!    of 200. Each compute node has a quota of processor time, by a cgroup; all else has the rest of the machine.
//! 2. The sizes grow as in the paper: first the quota of one compute node, then the number of nodes. Caches and remote memory
//!    stay as they are. The largest size is measured with parallel validation, too.
//! 3. Raise the number of clients until throughput stops growing; that of the largest size is kept for all.
//! 4. Measure each size once in each round, in turns, so that a drift of the machine affects all alike. The means over the
//!    rounds count.

use base::rt::CancellationToken;
use measurement::figure::{Figure, RatioBound};
use measurement::interval::ConfidenceInterval;

use super::figure::{FigureProgress, show};
use super::kmeans_network::{KMeansLoad, PeerSize};
use crate::cli::flexchain::Fig5aArguments;
use crate::failure::CommandError;

const SCALING_OVER_LINEAR_MIN: f64 = 0.9;
const PARALLEL_OVER_SEQUENTIAL_MIN: f64 = 1.0;
/// The quotas of one compute node, in parts of the whole one.
const QUOTAS: [u32; 2] = [2, 1];

fn sizes(arguments: &Fig5aArguments) -> Vec<PeerSize> {
    let of = |nodes, percent, validation| PeerSize { nodes, percent, validation, monolithic: false };
    let within = QUOTAS.iter().map(|part| of(1, arguments.cpu_percent / part, "sequential"));
    let beyond = (2..=arguments.compute_nodes).map(|nodes| of(nodes, arguments.cpu_percent, "sequential"));
    let largest = of(arguments.compute_nodes, arguments.cpu_percent, "parallel");
    within.chain(beyond).chain([largest]).collect()
}

pub async fn run(arguments: &Fig5aArguments, stop: &CancellationToken) -> Result<(), CommandError> {
    let progress = FigureProgress::new();
    let mut figure =
        Figure::new("flexchain-fig5a", "FlexChain, figure 5 (a): throughput over the processors of a peer");
    let mut arguments = arguments.clone();
    if arguments.load.common.quick && !super::compute_pool::can_make_groups() {
        arguments.cpu_percent = 0;
        figure.note("No quotas: no cgroup can be made here.");
    }
    let arguments = &arguments;
    let load = KMeansLoad::from(&arguments.load);
    load.state(&mut figure);
    let sizes = sizes(arguments);
    let rounds = if arguments.load.common.quick { 1 } else { arguments.load.rounds };
    let largest = sizes[sizes.len() - 2];
    let clients = load.peak_clients(largest, arguments.load.clients, &progress, stop).await?;
    figure.setting("clients", clients);
    let tps = load.rounds(&sizes, rounds, clients, &progress, stop).await?;
    let mean = |tps: &[f64]| ConfidenceInterval::of_differences(tps).mean;
    for (size, tps) in sizes.iter().zip(&tps) {
        let (least, most) = super::peer_network::spread(tps.iter().copied());
        let labels = [("peer", &*size.name()), ("validation", size.validation)];
        figure.row(
            &labels,
            &[("processors", size.processors()), ("tps", mean(tps)), ("tps_least", least), ("tps_most", most)],
        );
    }
    let first = &tps[0];
    let grown = sizes.iter().zip(&tps).filter(|(size, _)| size.validation == "sequential").skip(1);
    let over_linear = |(size, tps): (&PeerSize, &Vec<f64>)| {
        let linear = size.processors() / sizes[0].processors().max(f64::EPSILON);
        mean(tps) / mean(first) / if linear > 0.0 { linear } else { 1.0 }
    };
    let least = grown.map(over_linear).fold(f64::INFINITY, f64::min);
    figure.ratio("scaling_over_linear_min", least, Some(RatioBound::AtLeast(SCALING_OVER_LINEAR_MIN)));
    let [.., sequential, parallel] = &tps[..] else { unreachable!("there are both") };
    let ratios: Vec<f64> =
        parallel.iter().zip(sequential).map(|(parallel, sequential)| parallel / sequential).collect();
    let parallel = ConfidenceInterval::of_ratios(&ratios);
    figure.ratio("parallel_over_sequential", parallel.mean, None);
    // It forbids a loss: the burden of proof is on the loss.
    let high = parallel.ends.map_or(parallel.mean, |(_, high)| high);
    let bound = RatioBound::AtLeast(PARALLEL_OVER_SEQUENTIAL_MIN);
    figure.ratio("parallel_over_sequential_high", high, Some(bound));
    figure.note(
        "tps: means over the rounds, with the least and the most of them. parallel_over_sequential_high is the upper end of the 95 % \
         interval.",
    );
    drop(progress);
    show(&figure, &arguments.load.common.output)
}
