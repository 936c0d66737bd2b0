//! `heddle bench contention`: what reordering and early abort bring when many transactions want the same keys, and what
//! they cost when none do (FlexChain, sections 6.4 and 7).
//!
//! 1. Start two networks of one process each in temporary directories, one with `ordering.reorder` and
//!    `ordering.early_abort`, one without. Both cut blocks at their limits alone, so that blocks are equally large.
//! 2. For each load and each skew, offer both the same transactions at the same fixed rate, in turns
//!    ([`measurement::open_loop`]). What counts is how many of them become valid. A transaction that is aborted early counts
//!    as offered.
//! 3. With keys chosen evenly, measure the throughput of SmallBank's clients on both in turns: the cost of looking for
//!    conflicts that are not there.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::rt::CancellationToken;
use measurement::driver::CLIENTS_MAX;
use measurement::figure::{Figure, RatioBound};
use measurement::interval::median;
use measurement::network::{CommitWait, GatewayNetwork, GatewayTarget};
use measurement::open_loop::{self, LATE_MAX, OfferedLoad, OfferedOutcomes};
use measurement::workload::derivation::Derivation;
use measurement::workload::smallbank::SmallBank;
use measurement::workload::ycsb::Ycsb;
use measurement::workload::{KeyChoice, Workload};

use super::figure::{FigureProgress, show};
use super::measure::{OwnNetwork, measure};
use crate::cli::flexchain::ContentionArguments;
use crate::cli::workload::BenchRunArguments;
use crate::failure::CommandError;

const VALID_OVER_PLAIN_MIN: f64 = 1.3;
const COST_UNIFORM_MAX: f64 = 0.03;
/// Transactions of a block, as in FlexChain's evaluation.
const BLOCK_TRANSACTIONS: u32 = 200;
/// The skews, and the one that has the bound.
const SKEWS: [f64; 3] = [0.0, 0.8, 1.2];
const SKEW: f64 = 1.2;
/// Clients of the offered load.
const CLIENTS: usize = 100;
const CALL_DEADLINE: Duration = Duration::from_secs(30);
/// The networks: without the options and with them.
const FORMS: [&str; 2] = ["plain", "reorder and early abort"];

pub async fn run(arguments: &ContentionArguments, stop: &CancellationToken) -> Result<(), CommandError> {
    let progress = FigureProgress::new();
    let mut figure = Figure::new("contention", "Transactions that want the same keys");
    figure.setting("offered_tps", arguments.rate);
    figure.setting("block_transactions", BLOCK_TRANSACTIONS);
    figure.setting("records", arguments.records);
    progress.report("starting two networks");
    let pair = [start(arguments, false, stop).await?, start(arguments, true, stop).await?];
    let measured = on_networks(arguments, &pair, &mut figure, &progress, stop).await;
    if measured.is_err() && !stop.is_cancelled() {
        eprintln!("the log of the network with the options ends with:\n{}", pair[1].log());
    }
    for network in pair {
        network.end().await;
    }
    measured?;
    figure.note(
        "Offered loads: shares of the transactions that were offered within a window, medians over the pairs. SmallBank: clients \
         that wait for each transaction, keys chosen evenly.",
    );
    drop(progress);
    show(&figure, &arguments.common.output)
}

/// A network of one organisation, with the options or without.
async fn start(
    arguments: &ContentionArguments,
    has_options: bool,
    stop: &CancellationToken,
) -> Result<OwnNetwork, CommandError> {
    // Few transactions must not wait for their block longer than a quick look takes.
    let timeout_ms = if arguments.common.quick { 50 } else { 2_000 };
    let text = format!(
        "[ordering]\ncut = \"limits\"\nreorder = {has_options}\nearly_abort = {has_options}\n\
         [batch]\nmessages = {BLOCK_TRANSACTIONS}\ntimeout_ms = {timeout_ms}\n"
    );
    OwnNetwork::configured(&text, &["--orgs", "1"], stop).await
}

/// The loads by name.
fn loads(arguments: &ContentionArguments, skew: f64) -> [(&'static str, Arc<dyn Workload>); 3] {
    let choice = if skew > 0.0 { KeyChoice::Zipf(skew) } else { KeyChoice::Uniform };
    let (records, value_bytes) = (arguments.records, 100);
    let ycsb = |mix: &str| {
        let mix = mix.parse().expect("a mix");
        Arc::new(Ycsb { records, value_bytes, mix, choice, ..Ycsb::default() })
    };
    [
        ("five reads, one write", Arc::new(Derivation { records, value_bytes, choice, ..Derivation::default() })),
        ("YCSB A: reads, updates", ycsb("a")),
        ("YCSB F: reads, read-modify-writes", ycsb("f")),
    ]
}

async fn on_networks(
    arguments: &ContentionArguments,
    pair: &[OwnNetwork; 2],
    figure: &mut Figure,
    progress: &FigureProgress,
    stop: &CancellationToken,
) -> Result<(), CommandError> {
    let quick = arguments.common.quick;
    let pairs = if quick { 1 } else { arguments.pairs };
    let window = |seconds: f64| {
        let seconds = if quick { 1.0 } else { seconds };
        BenchRunArguments { seed: arguments.common.seed, ..BenchRunArguments::window(arguments.clients, seconds) }
    };
    progress.report("loading");
    for network in pair {
        let records = Derivation { records: arguments.records, value_bytes: 100, ..Derivation::default() };
        measure(&window(0.5), Arc::new(records), &network.dir(), network.endpoints(), &[], stop).await?;
    }
    let clients = [clients(&pair[0]).await?, clients(&pair[1]).await?];
    for skew in SKEWS {
        for (name, workload) in loads(arguments, skew) {
            let mut outcomes: [Vec<OfferedOutcomes>; 2] = Default::default();
            for round in 0..pairs {
                for turn in 0..2 {
                    let form = ((round + turn) % 2) as usize;
                    progress.report(&format!("{name}, skew {skew}, pair {} of {pairs}, {}", round + 1, FORMS[form]));
                    let load = OfferedLoad {
                        rate: if quick { 100 } else { arguments.rate },
                        clients: CLIENTS,
                        seed: arguments.common.seed ^ (round << 32),
                        warm_up: Duration::from_secs_f64(if quick { 0.2 } else { 1.0 }),
                        window: Duration::from_secs_f64(if quick { 0.5 } else { arguments.seconds }),
                        // A quick look must also work on a busy machine.
                        late_max: if quick { CALL_DEADLINE } else { LATE_MAX },
                    };
                    let network = Arc::clone(&clients[form]);
                    outcomes[form].push(open_loop::run(load, &*workload, network, stop).await?);
                }
            }
            add_rows(figure, name, skew, &outcomes);
            let ratio = median(
                outcomes[1]
                    .iter()
                    .zip(&outcomes[0])
                    .map(|(with, plain)| with.valid as f64 / (plain.valid as f64).max(1.0)),
            );
            if skew == SKEW {
                let bound = RatioBound::AtLeast(VALID_OVER_PLAIN_MIN);
                match name {
                    "five reads, one write" => figure.ratio("valid_tps_over_plain_at_zipf_1_2", ratio, Some(bound)),
                    "YCSB A: reads, updates" => figure.ratio("valid_tps_over_plain_ycsb_a", ratio, None),
                    _ => figure.ratio("valid_tps_over_plain_ycsb_f", ratio, None),
                }
            }
        }
    }
    let accounts = if quick { 200 } else { 20_000 };
    let bank: Arc<dyn Workload> = Arc::new(SmallBank { accounts, ..SmallBank::default() });
    let mut tps: [Vec<f64>; 2] = Default::default();
    let rounds = if quick { 1 } else { 2 * pairs + 1 };
    for round in 0..=rounds {
        for turn in 0..2 {
            let form = ((round + turn) % 2) as usize;
            progress.report(&format!("SmallBank, pair {round} of {rounds}, {}", FORMS[form]));
            // The first round loads and warms up.
            let run = BenchRunArguments { no_load: round > 0, ..window(arguments.seconds) };
            let network = &pair[form];
            let report = measure(&run, bank.clone(), &network.dir(), network.endpoints(), &[], stop).await?;
            if round > 0 {
                tps[form].push(report.valid_tps());
            }
        }
    }
    for (form, tps) in FORMS.iter().zip(&tps) {
        let labels = [("load", "SmallBank, uniform"), ("skew", "0"), ("network", *form)];
        figure.row(&labels, &[("valid_tps", median(tps.iter().copied()))]);
    }
    let cost = 1.0 - median(tps[1].iter().zip(&tps[0]).map(|(with, plain)| with / plain.max(1.0)));
    figure.ratio("cost_uniform", cost, Some(RatioBound::AtMost(COST_UNIFORM_MAX)));
    Ok(())
}

fn add_rows(figure: &mut Figure, name: &str, skew: f64, outcomes: &[Vec<OfferedOutcomes>; 2]) {
    let skew = skew.to_string();
    for (form, outcomes) in FORMS.iter().zip(outcomes) {
        let share = |number: fn(&OfferedOutcomes) -> u64| {
            100.0 * median(outcomes.iter().map(|outcome| number(outcome) as f64 / outcome.offered.max(1) as f64))
        };
        let numbers = [
            ("valid_percent", share(|outcome| outcome.valid)),
            ("invalid_percent", share(|outcome| outcome.invalid)),
            ("aborted_percent", share(|outcome| outcome.aborted)),
            ("failed_percent", share(|outcome| outcome.failed)),
        ];
        figure.row(&[("load", name), ("skew", &skew), ("network", form)], &numbers);
    }
}

/// Connections of the clients that offer a load.
async fn clients(network: &OwnNetwork) -> Result<Arc<GatewayNetwork>, CommandError> {
    const { assert!(CLIENTS <= CLIENTS_MAX) };
    let (dir, endpoints) = (network.dir(), network.endpoints());
    let target = |dir: &Path| -> Result<GatewayTarget, node::NodeError> {
        Ok(GatewayTarget { target: endpoints.target(dir, 1)?, user: endpoints.user(dir, 1)? })
    };
    let gateways = [target(&dir)?];
    // One connection has a bounded number of calls in flight.
    let connected = GatewayNetwork::connect(&endpoints.channel, &gateways, 8, CommitWait::Events, CALL_DEADLINE);
    Ok(Arc::new(connected.await?))
}
