//! `heddle bench flexchain-…`: FlexChain's figures. Figures that need no network are in [`bench::flexchain`].
//!
//! Figure 7 on whole networks: starts and loads a disaggregated and a monolithic network, then runs each load on the
//! two in turn, for the requested number of pairs. Successive pairs begin with different forms. The network that is not
//! under load costs almost nothing. Processor time is measured per process, so this cost is not counted for the network
//! under load.

use std::sync::Arc;
use std::time::Duration;

use base::rt::CancellationToken;
use bench::flexchain::{VALUE_BYTES, fig5b, fig7, fig8a, fig8b, memory_process};
use measurement::figure::{Figure, RatioBound};
use measurement::interval::median;
use measurement::report::BenchmarkReport;
use measurement::workload::Workload;
use measurement::workload::smallbank::SmallBank;
use measurement::workload::ycsb::Ycsb;

use super::figure::{FigureProgress, show};
use super::measure::{OwnNetwork, measure};
use crate::cli::flexchain::{
    Fig5bArguments, Fig7Arguments, Fig7Part, Fig8aArguments, Fig8bArguments, MemoryProcessArguments, MemoryProcessMode,
};
use crate::cli::workload::BenchRunArguments;
use crate::failure::CommandError;
use crate::output;

/// The upper bound on the servers' processor time relative to the monolithic form.
const CPU_OVER_MONOLITHIC_MAX: f64 = 1.05;
/// The arguments that make this program a memory node.
const MEMORY_PROCESS: [&str; 1] = ["memory-process"];
/// How long a network runs before each measurement.
const WARM_UP_SECONDS: f64 = 0.5;
/// Clients of networks in one process, unless told otherwise.
const CLIENTS: u64 = 200;
/// Sizes of the local caches on the state alone, in percent of the data, unless told otherwise.
const CACHE_PERCENTS: [f64; 7] = [1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0];

fn count(number: u64) -> usize {
    usize::try_from(number).expect("the command line's limits are small")
}

pub async fn fig5b(arguments: &Fig5bArguments, stop: &CancellationToken) -> Result<(), CommandError> {
    let mut options = fig5b::Fig5bConfig {
        data_bytes: arguments.data_mib << 20,
        memory_percents: arguments.memory_percent.clone(),
        delay: Duration::from_micros(arguments.delay_us),
        clients: count(arguments.clients),
        rounds: count(arguments.rounds),
        window: Duration::from_secs_f64(arguments.seconds),
        seed: arguments.common.seed,
    };
    if arguments.common.quick {
        (options.data_bytes, options.memory_percents) = (8 << 20, vec![10.0, 50.0, 100.0]);
        (options.clients, options.rounds, options.window) = (32, 1, Duration::from_millis(200));
    }
    let progress = FigureProgress::new();
    let figure = fig5b::run(&options, stop, &|part| progress.report(part)).await;
    drop(progress);
    show(&figure?, &arguments.common.output)
}

pub async fn fig8a(arguments: &Fig8aArguments, stop: &CancellationToken) -> Result<(), CommandError> {
    let mut options = fig8a::Fig8aConfig {
        data_bytes: arguments.data_mib << 20,
        cache_percents: match arguments.cache_percent.is_empty() {
            true => CACHE_PERCENTS.to_vec(),
            false => arguments.cache_percent.clone(),
        },
        skews: arguments.skew.clone(),
        memory_percents: arguments.memory_percent.clone(),
        transactions: count(arguments.transactions),
        seed: arguments.networks.common.seed,
    };
    if arguments.networks.common.quick {
        (options.data_bytes, options.transactions) = (8 << 20, 1_000);
        (options.cache_percents, options.skews) = (vec![5.0, 50.0], vec![0.0, 1.2]);
    }
    let progress = FigureProgress::new();
    let figure = fig8a::run(&options, stop, &|part| progress.report(part)).await;
    drop(progress);
    show(&figure?, &arguments.networks.common.output)
}

pub async fn fig8b(arguments: &Fig8bArguments, stop: &CancellationToken) -> Result<(), CommandError> {
    let program = std::env::current_exe();
    let program = program.map_err(|error| CommandError::new(format!("the program's own path: {error}")))?;
    let mut options = fig8b::Fig8bConfig {
        limit: arguments.limit.kind(),
        data_bytes: arguments.data_mib << 20,
        percents: arguments.cpu_percent.clone(),
        rounds: count(arguments.rounds),
        window: Duration::from_secs_f64(arguments.seconds),
        seed: arguments.common.seed,
        ..fig8b::Fig8bConfig::new(program, MEMORY_PROCESS.to_vec())
    };
    if arguments.common.quick {
        (options.data_bytes, options.percents) = (8 << 20, vec![10, 50]);
        (options.rounds, options.window) = (1, Duration::from_millis(100));
    }
    let progress = FigureProgress::new();
    let figure = fig8b::run(&options, stop, &|part| progress.report(part)).await;
    drop(progress);
    show(&figure?, &arguments.common.output)
}

pub async fn memory_process(arguments: &MemoryProcessArguments) -> Result<(), CommandError> {
    let form = match arguments.form {
        MemoryProcessMode::Passive => memory_process::MemoryNodeMode::Passive,
        MemoryProcessMode::TwoSided => memory_process::MemoryNodeMode::TwoSided,
    };
    let MemoryProcessArguments { socket, bytes, section_bytes, .. } = arguments.clone();
    Ok(memory_process::serve(&memory_process::MemoryProcessConfig { mode: form, socket, bytes, section_bytes }).await?)
}

pub async fn fig7(arguments: &Fig7Arguments, stop: &CancellationToken) -> Result<(), CommandError> {
    let mut arguments = arguments.clone();
    arguments.networks.clients.get_or_insert(CLIENTS);
    if arguments.networks.common.quick {
        (arguments.records, arguments.customers, arguments.pairs) = (500, 500, 1);
        (arguments.networks.seconds, arguments.state_seconds, arguments.orgs) = (0.5, 0.1, 1);
        arguments.networks.clients = Some(20);
    }
    let common = arguments.networks.common.clone();
    let mut figure = Figure::new("flexchain-fig7", "FlexChain, figure 7: disaggregated beside monolithic, in parts");
    figure.setting("records", arguments.records);
    figure.setting("value_bytes", VALUE_BYTES);
    figure.setting("customers", arguments.customers);
    figure.setting("account_bytes", fig7::ACCOUNT_BYTES);
    figure.setting("pairs", arguments.pairs);
    figure.setting("seconds", arguments.networks.seconds);
    figure.setting("state_seconds", arguments.state_seconds);
    figure.setting("latency_us", arguments.latency_us);
    figure.setting("organizations", arguments.orgs);
    figure.setting("clients", arguments.networks.clients);
    figure.setting("seed", arguments.networks.common.seed);
    let wanted = |part| arguments.only == Some(part);
    if wanted(Fig7Part::Network) {
        networks(&arguments, &mut figure, stop).await?;
    }
    if wanted(Fig7Part::State) || wanted(Fig7Part::Memtable) {
        let options = fig7::Fig7Config {
            records: count(arguments.records),
            customers: count(arguments.customers),
            pairs: count(arguments.pairs),
            window: Duration::from_secs_f64(arguments.state_seconds),
            memtable_window_min: if arguments.networks.common.quick {
                Duration::ZERO
            } else {
                fig7::MEMTABLE_WINDOW_MIN
            },
            latency: Duration::from_micros(arguments.latency_us),
            seed: arguments.networks.common.seed,
        };
        let progress = FigureProgress::new();
        let tell = &|part: &str| progress.report(part);
        if wanted(Fig7Part::State) {
            fig7::state_only(&options, &mut figure, stop, tell).await?;
        }
        if wanted(Fig7Part::Memtable) {
            fig7::large_memtable(&options, &mut figure, stop, tell).await?;
        }
        drop(progress);
    }
    figure.note("Ratios are medians over the pairs of runs, each of one load on one form and then on the other.");
    show(&figure, &common.output)
}

/// The loads of the figure by name, in the order of measurement, and whether each loads its own data first.
fn workloads(arguments: &Fig7Arguments) -> Vec<(String, bool, Arc<dyn Workload>)> {
    let ycsb = |letter: &str, is_first| {
        let mix = letter.parse().expect("a letter of YCSB");
        let seed = arguments.networks.common.seed;
        let ycsb = Ycsb { records: arguments.records, value_bytes: VALUE_BYTES, mix, seed, ..Ycsb::default() };
        (format!("ycsb-{letter}"), is_first, Arc::new(ycsb) as Arc<dyn Workload>)
    };
    let bank = |writes_percent, is_first| {
        let (accounts, record_bytes) = (arguments.customers, fig7::ACCOUNT_BYTES as u64);
        let bank = SmallBank { accounts, writes_percent, record_bytes, ..SmallBank::default() };
        (format!("smallbank {writes_percent} %"), is_first, Arc::new(bank) as Arc<dyn Workload>)
    };
    vec![ycsb("a", true), ycsb("b", false), bank(5, true), bank(50, false), bank(95, false)]
}

fn run(arguments: &Fig7Arguments, monolithic: bool) -> BenchRunArguments {
    BenchRunArguments {
        warm_up: WARM_UP_SECONDS.min(arguments.networks.seconds),
        seed: arguments.networks.common.seed,
        orgs: arguments.orgs,
        monolithic,
        ..BenchRunArguments::window(arguments.networks.clients.unwrap_or(CLIENTS), arguments.networks.seconds)
    }
}

async fn networks(
    arguments: &Fig7Arguments,
    figure: &mut Figure,
    stop: &CancellationToken,
) -> Result<(), CommandError> {
    let runs = [run(arguments, false), run(arguments, true)];
    let pair = [OwnNetwork::start(&runs[0], None, stop).await?, OwnNetwork::start(&runs[1], None, stop).await?];
    let measured = on_networks(arguments, &runs, &pair, figure, stop).await;
    if measured.is_err() && !stop.is_cancelled() {
        eprintln!("the disaggregated network's log ends with:\n{}", pair[0].log());
    }
    for network in pair {
        network.end().await;
    }
    measured
}

async fn on_networks(
    arguments: &Fig7Arguments,
    runs: &[BenchRunArguments; 2],
    pair: &[OwnNetwork; 2],
    figure: &mut Figure,
    stop: &CancellationToken,
) -> Result<(), CommandError> {
    let mut most: f64 = 0.0;
    for (number, (name, has_data, workload)) in (1u64..).zip(workloads(arguments)) {
        let mut reports: [Vec<BenchmarkReport>; 2] = Default::default();
        // Loading warms up, and so does the pair after it; later loads find warm networks.
        let first = u64::from(!has_data);
        for round in first..=arguments.pairs {
            for turn in 0..2 {
                let form = ((round + turn) % 2) as usize;
                let seed = arguments.networks.common.seed ^ (number << 40) ^ (round << 32);
                let run = BenchRunArguments { seed, no_load: round > 0, ..runs[form].clone() };
                let network = &pair[form];
                let report = measure(&run, workload.clone(), &network.dir(), network.endpoints(), &[], stop).await?;
                if round > 0 {
                    reports[form].push(report);
                }
            }
            if let [Some(one), Some(other)] =
                reports.each_ref().map(|reports| reports.last().map(BenchmarkReport::server_cpu_us))
            {
                let pairs = arguments.pairs;
                output::print(&format!(
                    "{name}, pair {round} of {pairs}: {one:.0} µs a valid transaction, monolithic {other:.0} µs: {:.3}\n",
                    one / other
                ))?;
            }
        }
        let ratios = reports[0].iter().zip(&reports[1]).map(|(one, other)| one.server_cpu_us() / other.server_cpu_us());
        let ratios: Vec<f64> = ratios.collect();
        let (ratio, ratio_most) = (median(ratios.clone()), ratios.iter().copied().fold(0.0, f64::max));
        for (form, reports) in ["disaggregated", "monolithic"].into_iter().zip(&reports) {
            let number = |number: fn(&BenchmarkReport) -> f64| median(reports.iter().map(number));
            let labels = [("part", "network"), ("load", name.as_str()), ("form", form)];
            let numbers = [
                ("cpu_us_per_valid", number(BenchmarkReport::server_cpu_us)),
                ("valid_tps", number(BenchmarkReport::valid_tps)),
                ("cpu_ratio_median", ratio),
                ("cpu_ratio_most", ratio_most),
            ];
            figure.row(&labels, &numbers);
        }
        most = most.max(ratio);
    }
    figure.ratio("cpu_over_monolithic_max", most, Some(RatioBound::AtMost(CPU_OVER_MONOLITHIC_MAX)));
    Ok(())
}
