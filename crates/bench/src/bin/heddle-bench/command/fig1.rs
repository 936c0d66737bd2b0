//! `heddle bench flexchain-fig1`: which resources two contracts need (FlexChain, section 2.1, figure 1).
//!
//! 1. Start a network of processes for each load and each form of the peers, in a temporary directory: two organisations,
//!    solo ordering, blocks of 200. Remote memory runs over sockets, so that no memory counts in two processes.
//! 2. Load the data, then offer transactions at a fixed rate ([`measurement::open_loop`]). The predictions are computing
//!    and reads of 20 records; the key-value store is records of 80 KB that are read, inserted and updated.
//! 3. Of each process, read the processor time of the window and the resident memory at its end.
//!
//! The rates of the paper, 10 predictions and 1,500 transactions a second, are divided by `--scale`, and so is what the store
//! holds: their proportions are kept.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::rt::CancellationToken;
use measurement::figure::Figure;
use measurement::network::{CommitWait, GatewayNetwork, GatewayTarget};
use measurement::open_loop::{self, LATE_MAX, OfferedLoad};
use measurement::process::usage;
use measurement::workload::prediction::Predictions;
use measurement::workload::ycsb::Ycsb;
use measurement::workload::{KeyChoice, Workload};

use super::figure::{FigureProgress, show};
use super::measure::{OwnNetwork, measure};
use crate::cli::flexchain::Fig1Arguments;
use crate::cli::workload::BenchRunArguments;
use crate::failure::CommandError;

/// Transactions of a block, as in FlexChain's evaluation.
const BLOCK_TRANSACTIONS: u32 = 200;
/// The paper's rates, a second.
const PREDICTION_RATE: f64 = 10.0;
const STORE_RATE: f64 = 1_500.0;
/// Records of 80 KB in 10 GB.
const STORE_RECORDS: f64 = 125_000.0;
const STORE_VALUE_BYTES: usize = 80_000;
const CLIENTS: usize = 20;
const CALL_DEADLINE: Duration = Duration::from_secs(30);
/// The forms of a peer.
const FORMS: [&str; 2] = ["disaggregated", "monolithic"];

/// A load and its rate.
struct Load {
    name: &'static str,
    workload: Arc<dyn Workload>,
    /// Transactions a second.
    rate: u64,
}

pub async fn run(arguments: &Fig1Arguments, stop: &CancellationToken) -> Result<(), CommandError> {
    let progress = FigureProgress::new();
    let mut figure = Figure::new("flexchain-fig1", "FlexChain, figure 1: the resources that two contracts need");
    figure.setting("scale", arguments.scale);
    figure.setting("block_transactions", BLOCK_TRANSACTIONS);
    let mut totals = BTreeMap::new();
    for load in loads(arguments) {
        for form in FORMS {
            progress.report(&format!("{}, {form}: starting the network", load.name));
            let network = start(form, stop).await?;
            let measured = on_network(arguments, &load, form, &network, &mut figure, &progress, stop).await;
            if measured.is_err() && !stop.is_cancelled() {
                eprintln!("the network's log ends with:\n{}", network.log());
            }
            network.end().await;
            totals.insert((load.name, form), measured?);
        }
    }
    let over = |form, number: fn(&Totals) -> f64| {
        let of = |name| totals.get(&(name, form)).map_or(0.0, number);
        (of("prediction"), of("key-value store"))
    };
    let (prediction, store) = over(FORMS[0], |totals| totals.cpu_ms);
    figure.ratio("prediction_over_store_cpu_a_transaction", prediction / store.max(1e-3), None);
    let (prediction, store) = over(FORMS[0], |totals| totals.memory_mib);
    figure.ratio("store_over_prediction_memory", store / prediction.max(1e-3), None);
    figure.note(
        "cpu_percent: of one processor, within the window. memory_mib: resident at its end; what the kernel keeps of files is not \
         counted. The paper: 91 % and 1 GB for predictions, 10 % and 10 GB for the store, on 20 cores.",
    );
    drop(progress);
    show(&figure, &arguments.common.output)
}

fn loads(arguments: &Fig1Arguments) -> [Load; 2] {
    let scaled = |number: f64, least: f64| (number / arguments.scale as f64).max(least) as u64;
    let (quick, seed) = (arguments.common.quick, arguments.common.seed);
    let predictions = Predictions { dimensions: if quick { 1_000 } else { 10_000 }, seed, ..Predictions::default() };
    let store = Ycsb {
        records: if quick { 20 } else { scaled(STORE_RECORDS, 100.0) },
        value_bytes: if quick { 1_000 } else { STORE_VALUE_BYTES },
        mix: "read=80,update=10,insert=10".parse().expect("a mix"),
        choice: KeyChoice::Uniform,
        seed,
    };
    // A quick look must take some of the kernel's ticks.
    let prediction_rate = if quick { 100 } else { scaled(PREDICTION_RATE, 1.0) };
    let store_rate = scaled(STORE_RATE, 1.0);
    [
        Load { name: "prediction", workload: Arc::new(predictions), rate: prediction_rate },
        Load { name: "key-value store", workload: Arc::new(store), rate: store_rate },
    ]
}

async fn start(form: &str, stop: &CancellationToken) -> Result<OwnNetwork, CommandError> {
    let text = format!("[pool]\nprovider = \"tcp\"\n[batch]\nmessages = {BLOCK_TRANSACTIONS}\n");
    let up = ["--orgs", "2", "--isolate", "--monolithic"];
    OwnNetwork::configured(&text, if form == FORMS[1] { &up } else { &up[..3] }, stop).await
}

/// What all processes of a network took.
struct Totals {
    /// Processor time of a transaction.
    cpu_ms: f64,
    memory_mib: f64,
}

async fn on_network(
    arguments: &Fig1Arguments,
    load: &Load,
    form: &str,
    network: &OwnNetwork,
    figure: &mut Figure,
    progress: &FigureProgress,
    stop: &CancellationToken,
) -> Result<Totals, CommandError> {
    let (dir, endpoints) = (network.dir(), network.endpoints());
    let seconds = if arguments.common.quick { 1.0 } else { arguments.seconds };
    progress.report(&format!("{}, {form}: loading", load.name));
    let loading = BenchRunArguments { seed: arguments.common.seed, ..BenchRunArguments::window(1, 0.5) };
    measure(&loading, load.workload.clone(), &dir, endpoints, &[], stop).await?;
    let gateways: Vec<GatewayTarget> = (1..=endpoints.gateways.len())
        .map(|number| {
            Ok(GatewayTarget { target: endpoints.target(&dir, number)?, user: endpoints.user(&dir, number)? })
        })
        .collect::<Result<_, node::NodeError>>()?;
    let clients = GatewayNetwork::connect(&endpoints.channel, &gateways, 4, CommitWait::Events, CALL_DEADLINE).await?;

    progress.report(&format!("{}, {form}: {} transactions a second", load.name, load.rate));
    let before = role_usage(network)?;
    let offered = OfferedLoad {
        rate: load.rate,
        clients: CLIENTS,
        seed: arguments.common.seed,
        warm_up: Duration::ZERO,
        window: Duration::from_secs_f64(seconds),
        late_max: if arguments.common.quick { CALL_DEADLINE } else { LATE_MAX },
    };
    let outcomes = open_loop::run(offered, &*load.workload, Arc::new(clients), stop).await?;
    let (mut cpu_us, mut memory_mib) = (0, 0.0);
    for (role, after) in role_usage(network)? {
        let spent = after.cpu_us.saturating_sub(before.get(&role).map_or(0, |before| before.cpu_us));
        let resident = after.resident_bytes as f64 / f64::from(1 << 20);
        let percent = spent as f64 / (seconds * 1e4);
        let labels = [("load", load.name), ("form", form), ("role", &*role)];
        figure.row(&labels, &[("cpu_percent", percent), ("memory_mib", resident)]);
        (cpu_us, memory_mib) = (cpu_us + spent, memory_mib + resident);
    }
    let labels = [("load", load.name), ("form", form), ("role", "all")];
    figure.row(&labels, &[("cpu_percent", cpu_us as f64 / (seconds * 1e4)), ("memory_mib", memory_mib)]);
    let share = outcomes.valid as f64 / outcomes.offered.max(1) as f64;
    if share < 0.9 {
        figure.note(format!("{}, {form}: only {:.0} % of the transactions were valid.", load.name, 100.0 * share));
    }
    Ok(Totals { cpu_ms: cpu_us as f64 / 1e3 / outcomes.offered.max(1) as f64, memory_mib })
}

/// The usage of the network's processes by role.
fn role_usage(network: &OwnNetwork) -> Result<BTreeMap<String, measurement::process::Usage>, CommandError> {
    let mut roles: BTreeMap<String, measurement::process::Usage> = BTreeMap::new();
    for process in &network.endpoints().processes {
        let found = usage(Some(process.process));
        let found = found.map_err(|error| CommandError::new(format!("{}: {error}", process.name)))?;
        let sum = roles.entry(process.role.name().to_owned()).or_default();
        sum.cpu_us += found.cpu_us;
        sum.resident_bytes += found.resident_bytes;
    }
    Ok(roles)
}
