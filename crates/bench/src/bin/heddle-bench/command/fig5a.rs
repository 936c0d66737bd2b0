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

use std::io::Write as _;
use std::sync::Arc;

use base::rt::CancellationToken;
use measurement::figure::{Figure, RatioBound};
use measurement::interval::ConfidenceInterval;
use measurement::workload::Workload;
use measurement::workload::kmeans::KMeans;

use super::figure::{FigureProgress, show};
use super::measure::{OwnNetwork, measure};
use crate::cli::bench::BenchRunArguments;
use crate::cli::flexchain::Fig5aArguments;
use crate::failure::CommandError;

const ORGANIZATIONS: u32 = 3;
const ORDERERS: u32 = 3;
/// Transactions of a block, as in FlexChain's evaluation.
const BLOCK_TRANSACTIONS: u32 = 200;
const SCALING_OVER_LINEAR_MIN: f64 = 0.9;
const PARALLEL_OVER_SEQUENTIAL_MIN: f64 = 1.0;
/// A further step in clients must bring this much.
const PEAK_STEP: f64 = 1.05;
/// The quotas of one compute node, in parts of the whole one.
const QUOTAS: [u32; 2] = [2, 1];

/// What each peer has.
#[derive(Clone, Copy)]
struct PeerSize {
    nodes: u32,
    /// The quota of a node, in percent of one processor.
    percent: u32,
    validation: &'static str,
}

impl PeerSize {
    fn processors(self) -> f64 {
        f64::from(self.nodes * self.percent) / 100.0
    }

    fn name(self) -> String {
        format!("{} x {} %", self.nodes, self.percent)
    }
}

fn sizes(arguments: &Fig5aArguments) -> Vec<PeerSize> {
    let of = |nodes, percent, validation| PeerSize { nodes, percent, validation };
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
    if arguments.common.quick && !super::compute_pool::can_make_groups() {
        arguments.cpu_percent = 0;
        figure.note("No quotas: no cgroup can be made here.");
    }
    let arguments = &arguments;
    figure.setting("organizations", ORGANIZATIONS);
    figure.setting("orderers", ORDERERS);
    figure.setting("block_transactions", BLOCK_TRANSACTIONS);
    figure.setting("epochs", arguments.epochs);
    let sizes = sizes(arguments);
    let rounds = if arguments.common.quick { 1 } else { arguments.rounds };
    let largest = sizes[sizes.len() - 2];
    let clients = peak_clients(arguments, largest, &progress, stop).await?;
    figure.setting("clients", clients);
    let mut tps: Vec<Vec<f64>> = vec![Vec::new(); sizes.len()];
    for round in 0..rounds {
        for (size, tps) in sizes.iter().zip(&mut tps) {
            let what = format!("round {} of {rounds}, {}, {}", round + 1, size.name(), size.validation);
            progress.report(&what);
            let network = start(*size, stop).await?;
            let measured = throughput(arguments, &network, clients, round, stop).await;
            network.end().await;
            tps.push(measured?);
        }
    }
    let mean = |tps: &[f64]| ConfidenceInterval::of_differences(tps).mean;
    for (size, tps) in sizes.iter().zip(&tps) {
        let (least, most) = spread(tps);
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
    show(&figure, &arguments.common.output)
}

/// The least and the greatest.
fn spread(values: &[f64]) -> (f64, f64) {
    values.iter().fold((f64::INFINITY, 0.0), |(least, most), value| (value.min(least), value.max(most)))
}

async fn start(size: PeerSize, stop: &CancellationToken) -> Result<OwnNetwork, CommandError> {
    let PeerSize { nodes, percent, validation } = size;
    let text = format!(
        "[pool]\ncompute_nodes = {nodes}\ncompute_cpu_percent = {percent}\nvalidation = \"{validation}\"\n\
         [batch]\nmessages = {BLOCK_TRANSACTIONS}\n"
    );
    let config = tempfile::NamedTempFile::new().and_then(|mut file| file.write_all(text.as_bytes()).map(|()| file));
    let config = config.map_err(|error| CommandError::new(format!("the network's settings: {error}")))?;
    let (organizations, orderers) = (ORGANIZATIONS.to_string(), ORDERERS.to_string());
    let up = ["--isolate", "--orgs", &organizations, "--ordering", "raft", "--orderers", &orderers, "--config"];
    OwnNetwork::launch(None, up.map(Into::into).into_iter().chain([config.path().into()]), false, stop).await
}

/// Valid transactions a second.
async fn throughput(
    arguments: &Fig5aArguments,
    network: &OwnNetwork,
    clients: u64,
    round: u64,
    stop: &CancellationToken,
) -> Result<f64, CommandError> {
    let profiles = if arguments.common.quick { 500 } else { 5_000 };
    let epochs = if arguments.common.quick { 2 } else { arguments.epochs };
    let workload: Arc<dyn Workload> =
        Arc::new(KMeans { profiles, epochs, seed: arguments.common.seed, ..KMeans::default() });
    let seconds = if arguments.common.quick { 1.0 } else { arguments.seconds };
    let run = BenchRunArguments {
        seed: arguments.common.seed ^ (round << 32),
        warm_up: if arguments.common.quick { 0.5 } else { 2.0 },
        ..BenchRunArguments::window(clients, seconds)
    };
    Ok(measure(&run, workload, &network.dir(), network.endpoints(), &[], stop).await?.valid_tps())
}

/// Step 3.
async fn peak_clients(
    arguments: &Fig5aArguments,
    size: PeerSize,
    progress: &FigureProgress,
    stop: &CancellationToken,
) -> Result<u64, CommandError> {
    if arguments.common.quick {
        return Ok(6);
    }
    let network = start(size, stop).await?;
    let (mut clients, mut best) = (arguments.clients, 0.0);
    let found = loop {
        progress.report(&format!("{} clients at {}", clients, size.name()));
        let tps = match throughput(arguments, &network, clients, 0, stop).await {
            Ok(tps) => tps,
            Err(error) => break Err(error),
        };
        if tps < best * PEAK_STEP {
            break Ok(clients / 2);
        }
        (best, clients) = (tps, clients * 2);
    };
    network.end().await;
    found
}
