//! Runs simulation seeds. `heddle-simulator --first 0 --seeds 1000 --mutants` runs a campaign; `--seed 17` runs one seed and
//! prints its event log.

use std::cell::RefCell;
use std::num::NonZeroU64;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use base::rt;
use base::rt::simulation::{FaultPlan, SimNode};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use ledger::Code;
use simulator::campaign::{CampaignTotals, catch_all_mutants, run_seeds};
use simulator::coverage;
use simulator::mutant::Mutant;
use simulator::seed::{RunConfig, RunFailure, RunOutcome, run, run_once};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// A campaign of this many seeds or more must have reached every fault point, and every kind of fault must have happened.
const COVERAGE_SEEDS_MIN: u64 = 500;
/// Failures of a campaign that are shown in full.
const DETAILS_MAX: u64 = 3;
/// Lines of the story that a failure in a campaign shows.
const STORY_LINES: usize = 40;

/// Simulated Heddle networks under faults, checked against an oracle.
#[derive(Parser)]
#[command(version, about)]
struct SimulatorArguments {
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// How many seeds.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// Run each Nth seed twice, and fail if the two runs differ; by default every seed.
    #[arg(long, value_name = "N", default_value = "1")]
    twice_every: NonZeroU64,
    /// Also plant every known mistake, and fail if one is not caught.
    #[arg(long)]
    mutants: bool,
    /// Run exactly this seed, and print its story.
    #[arg(long, conflicts_with_all = ["seeds", "first", "twice_every", "mutants"])]
    seed: Option<u64>,
    /// With --seed: the fault plan to run instead of the seed's own.
    #[arg(long, requires = "seed")]
    plan: Option<FaultPlan>,
    /// With --seed: print the nodes' log, at this level or by this filter (`debug`, `heddle_chain=info`). Runs the seed once.
    #[arg(long, requires = "seed", value_name = "FILTER")]
    log: Option<Targets>,
    /// With --seed: the mistake to plant.
    #[arg(long, requires = "seed", value_parser = mutant)]
    mutant: Option<Mutant>,
}

fn mutant(name: &str) -> Result<Mutant, String> {
    Mutant::named(name).ok_or_else(|| {
        let names: Vec<&str> = Mutant::ALL.iter().map(|mutant| mutant.name()).collect();
        format!("the planted mistakes are {}", names.join(", "))
    })
}

fn main() -> ExitCode {
    let arguments = SimulatorArguments::parse();
    report_panics_outside_of_simulations();
    let passed = match arguments.seed {
        Some(seed) => {
            run_single_seed(&RunConfig { seed, mutant: arguments.mutant, plan: arguments.plan }, arguments.log)
        }
        None => run_campaign(arguments.first, arguments.seeds, arguments.twice_every, arguments.mutants),
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

thread_local! {
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Silences panics in simulations: each is a result of its run, and shown as one.
fn report_panics_outside_of_simulations() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if base::rt::is_simulation() {
            let place = info.location().map(ToString::to_string).unwrap_or_default();
            LAST_PANIC.with_borrow_mut(|last| *last = place);
        } else {
            usual(info);
        }
    }));
}

/// Prints the simulated time and node of a log line.
struct SimulatedTime;

impl FormatTime for SimulatedTime {
    fn format_time(&self, writer: &mut Writer<'_>) -> std::fmt::Result {
        let Some(node) = SimNode::current() else { return Ok(()) };
        let now = rt::now() - rt::Instant::from_nanos(0);
        write!(writer, "{:>10.6} {:<16}", now.as_secs_f64(), node.name())
    }
}

/// Runs one seed and prints its story.
fn run_single_seed(order: &RunConfig, log: Option<Targets>) -> bool {
    let once = order.mutant.is_some() || log.is_some();
    if let Some(filter) = log {
        let to_stdout = tracing_subscriber::fmt::layer().with_writer(std::io::stdout);
        let to_stdout = to_stdout.with_ansi(false).with_timer(SimulatedTime);
        tracing_subscriber::registry().with(filter).with(to_stdout).init();
    }
    let result = if once { run_once(order) } else { run(order) };
    match result {
        Ok(outcome) => {
            outcome.story.iter().for_each(|line| println!("{line}"));
            let RunOutcome { seed, digest, blocks, steps, elapsed, .. } = &outcome;
            println!("seed {seed}: {blocks} blocks, {steps} steps, {elapsed:?} of virtual time, digest {digest}");
            let mut totals = CampaignTotals::default();
            totals.add(&outcome);
            print_counts(&totals);
            println!("1 passed, 0 failed");
            true
        }
        Err(broken) => {
            print!("{}", broken.details(usize::MAX));
            LAST_PANIC.with_borrow(|place| println!("last panic at {place}"));
            println!("{broken}");
            println!("0 passed, 1 failed");
            false
        }
    }
}

/// Runs many seeds, and the planted mistakes.
#[allow(clippy::disallowed_methods, reason = "the time that seeds take is the machine's")]
fn run_campaign(first: u64, count: u64, twice_every: NonZeroU64, mutants: bool) -> bool {
    let started = Instant::now();
    let bar = progress_bar(count);
    let mut shown = 0;
    let totals = run_seeds(first..first.saturating_add(count), twice_every, |result| {
        if let Err(broken) = result {
            bar.suspend(|| print_failure(broken, &mut shown));
        }
        bar.inc(1);
    });
    bar.finish_and_clear();
    print_totals(&totals, started.elapsed());
    let mut failed = totals.failed;
    if count >= COVERAGE_SEEDS_MIN {
        let missing = coverage::missing(&totals);
        for what in &missing {
            println!("never happened in {count} seeds: {what}");
        }
        failed += missing.len() as u64;
    }
    let mut passed = totals.passed;
    if mutants {
        println!("planted mistakes:");
        catch_all_mutants(first, |mutant, result| match result {
            Ok(broken) => {
                passed += 1;
                println!("  {:<26} caught by seed {}: {}", mutant.name(), broken.config.seed, broken.reason);
            }
            Err(reason) => {
                failed += 1;
                println!("  {:<26} NOT CAUGHT: {reason}", mutant.name());
            }
        });
    }
    println!("{passed} passed, {failed} failed");
    failed == 0
}

fn progress_bar(count: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} seeds, {per_sec}, {eta} left");
    ProgressBar::new(count).with_style(style.expect("the template is well formed"))
}

fn print_failure(broken: &RunFailure, shown: &mut u64) {
    *shown += 1;
    if *shown <= DETAILS_MAX {
        eprint!("{}", broken.details(STORY_LINES));
    }
    eprintln!("FAILED {broken}");
}

fn print_totals(totals: &CampaignTotals, took: Duration) {
    let seeds = totals.passed + totals.failed;
    println!(
        "{seeds} seeds, each run twice, in {:.1} s: {:.1} seeds/s, {} steps, {:.0} s of virtual time, {} blocks",
        took.as_secs_f64(),
        seeds as f64 / took.as_secs_f64(),
        totals.steps,
        totals.virtual_seconds,
        totals.blocks
    );
    print_counts(totals);
}

fn print_counts(totals: &CampaignTotals) {
    let line = |title: &str, counts: Vec<String>| println!("{title:<12} {}", counts.join(", "));
    let operations: u64 = totals.operations.values().sum();
    line(
        "operations",
        std::iter::once(format!("{operations} in all"))
            .chain(totals.operations.iter().map(|(name, count)| format!("{name} {count}")))
            .collect(),
    );
    line("faults", totals.faults.iter().map(|(name, count)| format!("{name} {count}")).collect());
    line("codes", totals.codes.iter().map(|(code, count)| format!("{} {count}", Code(*code))).collect());
    for (name, point) in &totals.fault_points {
        println!("fault point  {name}: reached {}, injected {}", point.reached, point.injected);
    }
}
