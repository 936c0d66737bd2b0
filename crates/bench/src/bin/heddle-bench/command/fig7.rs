//! `heddle bench flexchain-fig7` and its parts: disaggregated beside monolithic peers (FlexChain, section 6.3, figure 7).
//!
//! 1. *(a)* YCSB-A and -B. A disaggregated peer has local caches of an eighth of the data, and remote memory for all of it; a monolithic
//!    peer has memory for all of the data; a starved one has a thousandth of it.
//! 2. *(b)* SmallBank with 5, 50 and 95 % of writes, with the same memory.
//! 3. *(c)* YCSB with twice the data. Remote memory grows to 1.25 times the data; local caches and the monolithic peer's memory stay.
//! 4. *(d)* K-means with both forms of validation ([`super::fig7d`]).
//!
//! The networks of a part are loaded once, and run each load once in each round, in turns. Each network has as many clients as bring it
//! to its peak, found for each load. Validation is parallel on both sides.

use std::sync::Arc;

use base::rt::CancellationToken;
use bench::flexchain::VALUE_BYTES;
use bench::flexchain::fig7::ACCOUNT_BYTES;
use measurement::figure::{Figure, RatioBound};
use measurement::interval::ConfidenceInterval;
use measurement::workload::{KeyChoice, Workload};

use super::figure::{FigureProgress, show};
use super::paper_sizes::{PaperSizes, WHOLE};
use super::peer_network::{
    MeasuredNetwork, MemoryLimits, NetworkSize, PeerMemory, PeerSetup, RunLength, cpu_percent, numbers, ratios, rounds,
    state_networks,
};
use crate::cli::flexchain::{Fig7Arguments, Fig7NetworkArguments, Fig7Part};
use crate::failure::CommandError;

const A_MIN: f64 = 0.95;
const B_MIN: f64 = 1.0;
const C_MIN: f64 = 1.15;
/// The scale of a quick look, and the least remote memory: some sections.
const SCALE_QUICK: u64 = 2_000;
const REMOTE_BYTES_MIN: u64 = 16 << 20;

/// A part that compares networks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum NetworkPart {
    A,
    B,
    C,
}

impl NetworkPart {
    fn name(self) -> &'static str {
        match self {
            NetworkPart::A => "a",
            NetworkPart::B => "b",
            NetworkPart::C => "c",
        }
    }

    /// The name of its least ratio, and the bound.
    fn ratio(self) -> (&'static str, f64) {
        match self {
            NetworkPart::A => ("a_min", A_MIN),
            NetworkPart::B => ("b_min", B_MIN),
            NetworkPart::C => ("c_min", C_MIN),
        }
    }

    /// Its loads by name. They share their data.
    fn loads(self, sizes: PaperSizes) -> Vec<(&'static str, Arc<dyn Workload>)> {
        let uniform = KeyChoice::Uniform;
        let ycsb =
            |times| vec![("ycsb-a", sizes.ycsb("a", times, uniform)), ("ycsb-b", sizes.ycsb("b", times, uniform))];
        match self {
            NetworkPart::A => ycsb(1),
            NetworkPart::B => vec![
                ("smallbank 5 %", sizes.smallbank(5, uniform)),
                ("smallbank 50 %", sizes.smallbank(50, uniform)),
                ("smallbank 95 %", sizes.smallbank(95, uniform)),
            ],
            NetworkPart::C => ycsb(2),
        }
    }

    /// What peers have, by name: the disaggregated form, the monolithic one, and others beside them.
    fn peers(self, sizes: PaperSizes) -> Vec<(&'static str, bool, PeerMemory)> {
        let (data, caches) = (sizes.mb(4_000), sizes.mb(500));
        let whole = |data: u64| ((data as f64 * WHOLE) as u64).max(REMOTE_BYTES_MIN);
        match self {
            NetworkPart::A => vec![
                ("disaggregated", false, sizes.disaggregated(caches, whole(data), VALUE_BYTES as u64)),
                ("monolithic, memory = data", true, sizes.monolithic_whole(data)),
                ("monolithic, memory = data / 1000", true, sizes.monolithic(data / 1_000)),
            ],
            NetworkPart::B => vec![
                ("disaggregated", false, sizes.disaggregated(caches, whole(data), ACCOUNT_BYTES as u64)),
                ("monolithic", true, sizes.monolithic_whole(data)),
            ],
            NetworkPart::C => vec![
                ("disaggregated", false, sizes.disaggregated(caches, whole(2 * data), VALUE_BYTES as u64)),
                ("monolithic, memory = data / 2", true, sizes.monolithic(data)),
            ],
        }
    }
}

/// `heddle bench flexchain-fig7a`, `-fig7b` and `-fig7c`.
pub async fn run_part(
    part: NetworkPart,
    arguments: &Fig7NetworkArguments,
    stop: &CancellationToken,
) -> Result<(), CommandError> {
    let (name, title) = match part {
        NetworkPart::A => ("flexchain-fig7a", "FlexChain, figure 7 (a): YCSB, disaggregated and monolithic"),
        NetworkPart::B => ("flexchain-fig7b", "FlexChain, figure 7 (b): SmallBank, disaggregated and monolithic"),
        NetworkPart::C => ("flexchain-fig7c", "FlexChain, figure 7 (c): YCSB with data twice the local memory"),
    };
    let progress = FigureProgress::new();
    let mut figure = Figure::new(name, title);
    let limits = begin(arguments, &mut figure);
    measure_part(part, arguments, &limits, &mut figure, &progress, stop).await?;
    drop(progress);
    show(&figure, &arguments.common.output)
}

/// `heddle bench flexchain-fig7`: all parts, or some.
pub async fn run(arguments: &Fig7Arguments, stop: &CancellationToken) -> Result<(), CommandError> {
    if arguments.only.is_some_and(Fig7Part::is_former) {
        return super::flexchain::fig7(arguments, stop).await;
    }
    let progress = FigureProgress::new();
    let mut figure = Figure::new("flexchain-fig7", "FlexChain, figure 7: disaggregated beside monolithic");
    let networks = &arguments.networks;
    let limits = begin(networks, &mut figure);
    let wanted = |part| arguments.only.is_none_or(|only| only == part);
    let parts = [(Fig7Part::A, NetworkPart::A), (Fig7Part::B, NetworkPart::B), (Fig7Part::C, NetworkPart::C)];
    for (_, part) in parts.into_iter().filter(|(name, _)| wanted(*name)) {
        measure_part(part, networks, &limits, &mut figure, &progress, stop).await?;
    }
    if wanted(Fig7Part::D) {
        super::fig7d::measure(&networks.kmeans(), networks.peers.cpu_percent, &mut figure, &progress, stop).await?;
    }
    drop(progress);
    show(&figure, &networks.common.output)
}

/// States the settings, and finds out whether memory can be limited.
fn begin(arguments: &Fig7NetworkArguments, figure: &mut Figure) -> MemoryLimits {
    sizes(arguments).state(figure);
    state_networks(figure, NetworkSize::new(arguments.common.quick), arguments.peers.link_latency_us);
    figure.setting("cpu_percent", arguments.peers.cpu_percent);
    figure.setting("validation", "parallel");
    figure.setting("rounds", arguments.rounds);
    figure.setting("seconds", arguments.seconds);
    let limits = MemoryLimits::probe();
    limits.state(figure);
    figure.note(
        "tps: means over the rounds, with the least and the most of them. hit_percent and storage_percent are of the reads of contracts and \
         validation: answered by the caches of compute nodes, and by storage or tables. compute_percent is how much of their quota compute \
         nodes used; where it is far below 100, something else limits throughput.",
    );
    limits
}

fn sizes(arguments: &Fig7NetworkArguments) -> PaperSizes {
    let scale = if arguments.common.quick { SCALE_QUICK } else { arguments.scale };
    PaperSizes { scale, seed: arguments.common.seed }
}

async fn measure_part(
    part: NetworkPart,
    arguments: &Fig7NetworkArguments,
    limits: &MemoryLimits,
    figure: &mut Figure,
    progress: &FigureProgress,
    stop: &CancellationToken,
) -> Result<(), CommandError> {
    let is_quick = arguments.common.quick;
    let percent = cpu_percent(arguments.peers.cpu_percent, is_quick, figure);
    let sizes = sizes(arguments);
    let loads = part.loads(sizes);
    let length = RunLength { seconds: arguments.seconds, seed: arguments.common.seed, is_quick };
    let mut networks = Vec::new();
    for (name, monolithic, memory) in part.peers(sizes) {
        let setup = PeerSetup {
            name: name.to_owned(),
            monolithic,
            nodes: 1,
            cpu_percent: percent,
            validation: "parallel",
            link_latency_us: arguments.peers.link_latency_us,
            memory: Some(memory),
            size: NetworkSize::new(is_quick),
        };
        let network = MeasuredNetwork::start(&setup, limits, progress, stop).await?;
        network.load(&loads[0].1, length, progress, stop).await?;
        network.limit_memory(limits, &loads[0].1, length, progress, stop).await?;
        networks.push((network, 0));
    }
    let mut least = f64::INFINITY;
    for (name, workload) in &loads {
        for (network, clients) in &mut networks {
            *clients = network.peak_clients(workload, length, arguments.clients, progress, stop).await?;
        }
        let count = if is_quick { 1 } else { arguments.rounds };
        let results = rounds(&networks, (name, workload), length, count, progress, stop).await?;
        for ((network, clients), results) in networks.iter().zip(&results) {
            let labels = [("part", part.name()), ("load", name), ("peer", &*network.setup.name)];
            let mut row = numbers(results);
            row.push(("clients", *clients as f64));
            row.extend(network.memory_numbers());
            figure.row(&labels, &row);
        }
        let ratio = ConfidenceInterval::of_ratios(&ratios(&results[0], &results[1]));
        let interval =
            ratio.ends.map_or_else(String::new, |(low, high)| format!(", 95 % interval {low:.3} to {high:.3}"));
        figure.note(format!(
            "({}) {name}: {:.3} of the monolithic form's throughput{interval}",
            part.name(),
            ratio.mean
        ));
        least = least.min(ratio.mean);
    }
    for (network, _) in networks {
        network.end().await;
    }
    let (name, bound) = part.ratio();
    figure.ratio(name, least, Some(RatioBound::AtLeast(bound)));
    Ok(())
}
