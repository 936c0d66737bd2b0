//! Runs simulation seeds: `heddle-simulator --first 0 --seeds 1000 --mutants`, or one with its story: `--seed 17`.

use std::cell::RefCell;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use base::rt;
use base::rt::simulation::{Node, Plan};
use chain::validate::Code;
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use simulator::campaign::{Totals, catch_all, run_seeds};
use simulator::coverage;
use simulator::mutant::Mutant;
use simulator::seed::{Broken, Order, Outcome, run, run_once};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

/// Seeds from which on every fault point must have been reached, and every kind of fault have happened.
const COVERAGE_SEEDS_MIN: u64 = 500;
/// Failures of a campaign that are shown in full.
const DETAILS_MAX: u64 = 3;
/// Lines of the story that a failure in a campaign shows.
const STORY_LINES: usize = 40;

/// Simulated Heddle networks under faults, checked against an oracle.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// How many seeds.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// Plant every known mistake as well, and fail where one is not caught.
    #[arg(long)]
    mutants: bool,
    /// Run exactly this seed, and tell its story.
    #[arg(long, conflicts_with_all = ["seeds", "first", "mutants"])]
    seed: Option<u64>,
    /// With --seed: the fault plan to run instead of the seed's own.
    #[arg(long, requires = "seed")]
    plan: Option<Plan>,
    /// With --seed: print what the nodes log, at this level or by this filter (`debug`, `heddle_chain=info`). Runs it once.
    #[arg(long, requires = "seed", value_name = "FILTER")]
    log: Option<EnvFilter>,
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
    let arguments = Arguments::parse();
    report_panics_outside_of_simulations();
    let passed = match arguments.seed {
        Some(seed) => one(&Order { seed, mutant: arguments.mutant, plan: arguments.plan }, arguments.log),
        None => many(arguments.first, arguments.seeds, arguments.mutants),
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

thread_local! {
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// A panic in a simulation is a result, and shown as one.
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

/// Says when and where something is logged, in the simulated world.
struct Place;

impl FormatTime for Place {
    fn format_time(&self, writer: &mut Writer<'_>) -> std::fmt::Result {
        let Some(node) = Node::current() else { return Ok(()) };
        let now = rt::now() - rt::Instant::from_nanos(0);
        write!(writer, "{:>10.6} {:<16}", now.as_secs_f64(), node.name())
    }
}

/// Runs one seed and prints its story.
fn one(order: &Order, log: Option<EnvFilter>) -> bool {
    let once = order.mutant.is_some() || log.is_some();
    if let Some(filter) = log {
        let to_stdout = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stdout);
        to_stdout.with_ansi(false).with_timer(Place).init();
    }
    let result = if once { run_once(order) } else { run(order) };
    match result {
        Ok(outcome) => {
            outcome.story.iter().for_each(|line| println!("{line}"));
            let Outcome { seed, digest, blocks, steps, elapsed, .. } = &outcome;
            println!("seed {seed}: {blocks} blocks, {steps} steps, {elapsed:?} of virtual time, digest {digest}");
            let mut totals = Totals::default();
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
fn many(first: u64, count: u64, mutants: bool) -> bool {
    let started = Instant::now();
    let bar = bar(count);
    let mut shown = 0;
    let totals = run_seeds(first..first.saturating_add(count), |result| {
        if let Err(broken) = result {
            bar.suspend(|| show(broken, &mut shown));
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
        catch_all(first, |mutant, result| match result {
            Ok(broken) => {
                passed += 1;
                println!("  {:<26} caught by seed {}: {}", mutant.name(), broken.order.seed, broken.reason);
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

fn bar(count: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} seeds, {per_sec}, {eta} left");
    ProgressBar::new(count).with_style(style.expect("the template is well formed"))
}

fn show(broken: &Broken, shown: &mut u64) {
    *shown += 1;
    if *shown <= DETAILS_MAX {
        eprint!("{}", broken.details(STORY_LINES));
    }
    eprintln!("FAILED {broken}");
}

fn print_totals(totals: &Totals, took: Duration) {
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

fn print_counts(totals: &Totals) {
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
