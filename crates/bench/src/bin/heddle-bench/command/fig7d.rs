//! `heddle bench flexchain-fig7d`: K-means on disaggregated and on monolithic peers, with both forms of validation (FlexChain,
//! section 6.3, figure 7 (d)).
//!
//! 1. The compute process of a peer has the same quota of processor time in both forms. Memory nodes and storage nodes have the
//!    rest of the machine, as in the paper.
//! 2. Raise the number of clients on the disaggregated form until throughput stops growing; both forms have as many.
//! 3. Measure the four networks once in each round, in turns. The ratios are of one round each; their means count, with
//!    95 % intervals.

use base::rt::CancellationToken;
use measurement::figure::{Figure, RatioBound};
use measurement::interval::ConfidenceInterval;

use super::figure::{FigureProgress, show};
use super::kmeans_network::{KMeansLoad, PeerSize};
use super::peer_network::{cpu_percent, spread};
use crate::cli::flexchain::{Fig7dArguments, KMeansNetworkArguments};
use crate::failure::CommandError;

/// What the paper loses by disaggregation, and what is asked of us.
const SEQUENTIAL_MIN: f64 = 0.933;
const PARALLEL_MIN: f64 = 0.98;

pub async fn run(arguments: &Fig7dArguments, stop: &CancellationToken) -> Result<(), CommandError> {
    let progress = FigureProgress::new();
    let mut figure = Figure::new("flexchain-fig7d", "FlexChain, figure 7 (d): K-means, disaggregated and monolithic");
    measure(&arguments.load, arguments.cpu_percent, &mut figure, &progress, stop).await?;
    drop(progress);
    show(&figure, &arguments.load.common.output)
}

/// Adds the rows and ratios.
pub async fn measure(
    arguments: &KMeansNetworkArguments,
    percent: u32,
    figure: &mut Figure,
    progress: &FigureProgress,
    stop: &CancellationToken,
) -> Result<(), CommandError> {
    let quick = arguments.common.quick;
    let percent = cpu_percent(percent, quick, figure);
    let load = KMeansLoad::from(arguments);
    load.state(figure);
    figure.setting("cpu_percent", percent);
    let of = |validation, monolithic| PeerSize { nodes: 1, percent, validation, monolithic };
    let sizes = [of("sequential", false), of("sequential", true), of("parallel", false), of("parallel", true)];
    let clients = load.peak_clients(sizes[0], arguments.clients, progress, stop).await?;
    figure.setting("kmeans_clients", clients);
    let rounds = if quick { 1 } else { arguments.rounds };
    let tps = load.rounds(&sizes, rounds, clients, progress, stop).await?;
    for (size, tps) in sizes.iter().zip(&tps) {
        let form = if size.monolithic { "monolithic" } else { "disaggregated" };
        let (least, most) = spread(tps.iter().copied());
        let mean = ConfidenceInterval::of_differences(tps).mean;
        let labels = [("part", "d"), ("form", form), ("validation", size.validation)];
        figure.row(&labels, &[("tps", mean), ("tps_least", least), ("tps_most", most)]);
    }
    let over = |one: usize, other: usize| {
        let ratios: Vec<f64> = tps[one].iter().zip(&tps[other]).map(|(one, other)| one / other.max(1e-3)).collect();
        ConfidenceInterval::of_ratios(&ratios)
    };
    let ratios = [
        ("d_sequential", over(0, 1), Some(SEQUENTIAL_MIN)),
        ("d_parallel", over(2, 3), Some(PARALLEL_MIN)),
        ("parallel_over_sequential_disaggregated", over(2, 0), None),
        ("parallel_over_sequential_monolithic", over(3, 1), None),
    ];
    for (name, ratio, least) in ratios {
        figure.ratio(name, ratio.mean, least.map(RatioBound::AtLeast));
        if let Some((low, high)) = ratio.ends {
            figure.note(format!("{name}: 95 % interval {low:.3} to {high:.3}"));
        }
    }
    figure.note("tps: means over the rounds, with the least and the most of them. The paper: 0.933 and about 1.");
    Ok(())
}
