//! The project's own commands: `cargo xtask test` runs everything that must pass, `cargo xtask sim` searches simulation
//! seeds, `cargo xtask soak` disturbs a network of real processes, and `cargo xtask attack` attacks networks.
//!
//! A step passes or fails. If a tool is missing, the step fails with a message that says how to get the tool; no step
//! is skipped silently. `--without STEP` leaves a step out by name, and the summary says so.

mod advisories;
mod attack;
mod clients;
mod crates;
mod deny;
mod fuzz;
mod guest;
mod hosts;
mod lint;
mod nightly;
mod product;
mod programs;
mod rustc;
mod sbom;
mod searched_out;
mod step;
mod subjects;
mod tool;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use programs::{all_tests, tests};
use step::Step;

/// Heddle's development commands.
#[derive(Parser)]
#[command(bin_name = "cargo xtask", version, about)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run everything that must pass: format, clippy, licences, tests, simulation seeds, real verbs, Fabric's
    /// clients.
    Test {
        /// Run only these steps (repeatable); see `--list`.
        #[arg(long, value_name = "STEP")]
        only: Vec<String>,
        /// Leave these steps out (repeatable). The summary names them.
        #[arg(long, value_name = "STEP")]
        without: Vec<String>,
        /// List the steps and stop.
        #[arg(long)]
        list: bool,
    },
    /// Run the checks that take hours: attacks, many calls, Caliper, soaks, more seeds, the search of every decoder, and time a cold
    /// build. All of them must pass before a release; `target/nightly.json` notes the commit on which they did.
    Nightly {
        /// Run only these steps (repeatable); see `--list`.
        #[arg(long, value_name = "STEP")]
        only: Vec<String>,
        /// Leave these steps out (repeatable). The summary names them.
        #[arg(long, value_name = "STEP")]
        without: Vec<String>,
        /// List the steps and stop.
        #[arg(long)]
        list: bool,
        /// How long each decoder is searched at most, in seconds; one that is searched out (see `fuzz`) ends earlier.
        #[arg(long, default_value_t = 1800)]
        fuzz_seconds: u64,
    },
    /// Run whole-cluster simulation seeds; a failure prints the command that repeats it.
    Sim {
        /// How many seeds to run.
        #[arg(long, default_value_t = 1000)]
        seeds: u64,
        /// The first seed; by default drawn from the clock, so that every call searches other seeds.
        #[arg(long)]
        first: Option<u64>,
        /// Run exactly this one seed and print its trace.
        #[arg(long, conflicts_with_all = ["seeds", "first"])]
        seed: Option<u64>,
    },
    /// Run a network of processes under load, kill them, and change the memory of peers; afterwards every committed
    /// transaction must be there.
    Soak {
        /// How long it is disturbed.
        #[arg(long, default_value_t = 10.0)]
        minutes: f64,
        /// Repeat the disturbances of an earlier run; by default they differ each time.
        #[arg(long)]
        seed: Option<u32>,
        /// Compute nodes of each peer; by default one to three, depending on the seed.
        #[arg(long)]
        compute_nodes: Option<u32>,
    },
    /// Run a key-value store of processes under load, kill and pause them; the answers must be linearizable.
    SoakStore {
        /// How long it is disturbed, with volatile memory nodes and then with persistent ones.
        #[arg(long, default_value_t = 5.0)]
        minutes: f64,
    },
    /// Make many calls on one connection from each of Fabric's SDKs, for Node, Go and Java; none may be lost.
    Calls {
        /// How many calls each SDK makes.
        #[arg(long, default_value_t = 100_000)]
        count: u64,
    },
    /// Attack networks of every form, each attack beside a newcomer that must be served; all attacks must fail.
    Attack {
        /// Run only these attacks (repeatable); see `--list`.
        #[arg(long, value_name = "NAME")]
        only: Vec<String>,
        /// List the attacks and stop.
        #[arg(long)]
        list: bool,
        /// Attack this program instead of a local build.
        #[arg(long, value_name = "PROGRAM")]
        heddle: Option<PathBuf>,
        /// Further arguments of `attack campaign`, such as `--form plan`, `--port memory` or `--seconds 3`.
        #[arg(last = true)]
        arguments: Vec<OsString>,
    },
    /// Run the conformance suite of `rma` over real verbs, in a QEMU guest with soft-RoCE.
    ///
    /// Needs Debian packages: installs them as root, otherwise names them. No host device is used.
    RdmaGuest {
        /// Run this program in the guest instead of the suite.
        #[arg(long, value_name = "PATH")]
        program: Option<PathBuf>,
        /// Arguments of the program, or of the test harness: a filter of tests, `--nocapture`.
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Search for inputs that make a decoder fail: coverage-guided, for every decoder of bytes from outside.
    ///
    /// Needs a C++ compiler. Inputs that add coverage are kept in `fuzz/corpus`, which every test run replays.
    ///
    /// A target is searched out, and ends before its time, after `--inputs` inputs and `--quiet-for` seconds of processor
    /// time without new coverage.
    Fuzz {
        /// How long each target is searched at most, in seconds.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Seconds of processor time without new coverage after which a target is searched out.
        #[arg(long, value_name = "SECONDS", default_value_t = 600)]
        quiet_for: u64,
        /// Inputs that a target must have run before it counts as searched out.
        #[arg(long, default_value_t = 1_000_000)]
        inputs: u64,
        /// Search only these targets (repeatable).
        #[arg(long, value_name = "NAME")]
        target: Vec<String>,
        /// Search only targets that `fuzz/searched-out.md` does not have.
        #[arg(long)]
        unsearched: bool,
        /// How many targets are searched at a time.
        #[arg(long, default_value_t = 1)]
        jobs: usize,
        /// Run this one input and stop.
        #[arg(long, value_name = "PATH", requires = "target")]
        replay: Option<PathBuf>,
    },
    /// Check dependencies for known vulnerabilities, offline, against the snapshot of the RustSec database's facts.
    Advisories {
        /// First create the snapshot again, from a checkout of the database in this folder.
        #[arg(long, value_name = "FOLDER")]
        refresh: Option<PathBuf>,
    },
    /// Write the bill of materials of a program of the release, in CycloneDX.
    Sbom {
        /// The program.
        #[arg(long, value_name = "NAME", default_value = sbom::PROGRAMS[0], value_parser = sbom::PROGRAMS)]
        program: String,
        /// The file to write; by default standard output.
        #[arg(long, value_name = "PATH")]
        output: Option<PathBuf>,
    },
    /// Look into a program for what only tests may contain: fail points, planted mistakes, the simulation.
    Product {
        /// The program; by default the release that was built last.
        program: Option<PathBuf>,
    },
    /// Build the release, `heddle` and `heddle-bench`, with the list of its packages inside each program, for `cargo audit`,
    /// check that they contain nothing of the tests, and write the bill of materials of each beside it.
    Release,
}

fn main() -> ExitCode {
    if let Some(failed) = rustc::run_as_wrapper() {
        return failed;
    }
    let arguments = Arguments::parse();
    std::env::set_current_dir(root()).expect("the workspace root exists while its own xtask runs");
    let passed = match arguments.task {
        Task::Test { only, without, list } => run_steps(steps(), &only, &without, list),
        Task::Nightly { only, without, list, fuzz_seconds } => {
            nightly::announce();
            let passed = run_steps(nightly_steps(fuzz_seconds), &only, &without, list);
            if passed && !list && only.is_empty() && without.is_empty() {
                nightly::passed();
            }
            passed
        }
        Task::Sim { seeds, first, seed } => simulate(seeds, first, seed),
        Task::Soak { minutes, seed, compute_nodes } => {
            let outcome = soak(minutes, seed, compute_nodes);
            outcome.inspect_err(|reason| eprintln!("xtask: {reason}")).is_ok()
        }
        Task::SoakStore { minutes } => {
            let outcome = soak_store(minutes);
            outcome.inspect_err(|reason| eprintln!("xtask: {reason}")).is_ok()
        }
        Task::Calls { count } => clients::calls(count).inspect_err(|reason| eprintln!("xtask: {reason}")).is_ok(),
        Task::Attack { only, list, heddle, arguments } => {
            let only = only.iter().flat_map(|name| ["--only".into(), name.into()]);
            let outcome = match list {
                true => attack::list(),
                false => attack::campaign(heddle, &only.chain(arguments).collect::<Vec<OsString>>()),
            };
            outcome.inspect_err(|reason| eprintln!("xtask: {reason}")).is_ok()
        }
        Task::RdmaGuest { program, arguments } => {
            let outcome = guest::check(program.as_deref(), &arguments);
            outcome.inspect_err(|reason| eprintln!("xtask: {reason}")).is_ok()
        }
        Task::Fuzz { seconds, quiet_for, inputs, target, unsearched, jobs, replay } => {
            let enough = fuzz::FuzzBudget { inputs, quiet_seconds: quiet_for };
            let options = fuzz::FuzzConfig { seconds, enough, targets: target, unsearched, jobs, replay };
            fuzz::search(&options).inspect_err(|reason| eprintln!("xtask: {reason}")).is_ok()
        }
        Task::Advisories { refresh } => {
            let refreshed = refresh.map_or(Ok(()), |folder| advisories::refresh(&folder));
            let outcome = refreshed.and_then(|()| advisories::show());
            outcome.inspect_err(|reason| eprintln!("xtask: {reason}")).is_ok()
        }
        Task::Sbom { program, output } => {
            sbom::print(&program, output.as_deref()).inspect_err(|reason| eprintln!("xtask: {reason}")).is_ok()
        }
        Task::Product { program } => {
            let program = program.unwrap_or_else(product::released);
            product::check(&program).inspect_err(|reason| eprintln!("xtask: {reason}")).is_ok()
        }
        Task::Release => sbom::release().inspect_err(|reason| eprintln!("xtask: {reason}")).is_ok(),
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The workspace's root folder.
fn root() -> PathBuf {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().expect("xtask lies in the workspace").to_path_buf()
}

/// Number of fixed simulation seeds that every change must pass.
const SEEDS_FIXED: u64 = 500;

/// Every eighth fixed seed runs twice, to check that a seed decides everything. Code that breaks this rule does so under most
/// seeds, so a share of them is enough. `cargo xtask sim` repeats every seed.
const SEEDS_TWICE_EVERY: u64 = 8;

/// Number of fixed seeds of the disaggregated state alone, whose runs are much shorter.
const STATE_SEEDS_FIXED: u64 = 1000;

/// Tests of one program that run at a time: more than a small machine has processors, because tests of processes mostly
/// wait, for leases to end and for runs of a fixed length.
const TEST_THREADS: &str = "4";

/// Fixed seeds of consensus alone, in addition to those that its tests run.
const CONSENSUS_SEEDS_FIXED: &str = "300..1000";

/// Simulation seeds of a nightly run.
const SEEDS_NIGHTLY: u64 = 10_000;

/// Seeds of the disaggregated state alone in a nightly run.
const STATE_SEEDS_NIGHTLY: u64 = 20_000;

/// Seeds of consensus alone in a nightly run.
const CONSENSUS_SEEDS_NIGHTLY: &str = "0..20000";

/// Seeds of the manager in a nightly run.
const MANAGER_SEEDS_NIGHTLY: u64 = 60_000;
/// Seeds of the simulation of storage's copies in a nightly run.
const COPIES_SEEDS_NIGHTLY: u64 = 5_000;

/// Seeds of the coherence of pages in a nightly run.
const COHERENCE_SEEDS_NIGHTLY: u64 = 200_000;

/// Seconds of each random case of pushed-down functions in a nightly run.
const STRESS_SECONDS_NIGHTLY: u64 = 300;

/// Calls that each SDK makes on one connection in a nightly run.
const CALLS_NIGHTLY: u64 = 100_000;

/// Every step, cheapest first. All cargo steps share a profile, so dependencies build once.
fn steps() -> Vec<Step> {
    vec![
        Step::command("format", "cargo", &["fmt", "--all", "--check"]),
        Step::new("subjects", subjects::check),
        Step::new("deny", deny::check),
        Step::new("crates", crates::check),
        Step::new("clippy", lint::lints),
        Step::new("product", product::compile),
        Step::new("docs", lint::documentation),
        Step::new("build", || step::run(all_tests()?.arg("--no-run"))),
        // Beside tests, which wait for their networks and leave a processor idle.
        Step::new("simulation", || {
            let (seeds, twice) = (SEEDS_FIXED.to_string(), SEEDS_TWICE_EVERY.to_string());
            let arguments = ["--first", "0", "--seeds", &seeds, "--twice-every", &twice, "--mutants"];
            step::run(step::yielding(&programs::program("heddle-simulator", "seeds")?).args(arguments))
        })
        .in_background(),
        Step::new("tests", || {
            hosts::tools()?;
            step::run(all_tests()?.env("RUST_TEST_THREADS", TEST_THREADS))?;
            step::run(&mut tests(&["--doc"]))
        }),
        // Beside seeds and the guest: installing the SDKs and compiling them waits for registries.
        Step::new("clients", clients::check).in_background(),
        Step::new("state", || state_seeds(STATE_SEEDS_FIXED)),
        Step::new("consensus", || consensus_seeds(CONSENSUS_SEEDS_FIXED)),
        Step::new("rdma-guest", || guest::check(None, &[])),
    ]
}

/// Steps that take too long for every change.
fn nightly_steps(fuzz_seconds: u64) -> Vec<Step> {
    vec![
        Step::new("cold-build", nightly::cold_build),
        Step::new("product", product::nightly),
        Step::new("attack", || attack::campaign(Some(product::build()?), &[])),
        Step::new("under-attack", attack::bench),
        Step::new("calls", || clients::calls(CALLS_NIGHTLY)),
        Step::new("caliper", clients::caliper),
        Step::new("soak", || soak(10.0, None, None)),
        Step::new("soak-store", || soak_store(5.0)),
        Step::new("farmem-programs", || {
            // With the test of the library, which programs preload, cargo builds it.
            let which = ["--test", "program", "--test", "preload"];
            let options = ["--", "--ignored", "farmem_programs::", "--test-threads=1"];
            step::run(&mut tests(&[&which[..], &options[..]].concat()))
        }),
        Step::new("pushdown", || {
            stress_pushdown(&["c::histories", "c::litmus", "c::slots_changed"], STRESS_SECONDS_NIGHTLY)?;
            stress_pushdown(
                &["c::blocks", "c::lines_of_both", "c::dropped_ahead", "c::moved_ahead"],
                STRESS_SECONDS_NIGHTLY / 5,
            )?;
            step::run(&mut tests(&["--test", "relay", "--test", "executor", "--", "--ignored", "all_cases"]))
        }),
        Step::new("simulation", || {
            let (seeds, twice) = (SEEDS_NIGHTLY.to_string(), SEEDS_TWICE_EVERY.to_string());
            simulator(&["--first", "0", "--seeds", &seeds, "--twice-every", &twice])
        }),
        Step::new("state", || state_seeds(STATE_SEEDS_NIGHTLY)),
        Step::new("consensus", || consensus_seeds(CONSENSUS_SEEDS_NIGHTLY)),
        Step::new("manager", || manager_seeds(MANAGER_SEEDS_NIGHTLY)),
        Step::new("copies", || copies_seeds(COPIES_SEEDS_NIGHTLY)),
        Step::new("coherence", || coherence_seeds(COHERENCE_SEEDS_NIGHTLY)),
        Step::new("fuzz", move || {
            let (enough, targets) = (fuzz::FuzzBudget::RECORDED, Vec::new());
            let (seconds, unsearched, replay) = (fuzz_seconds, false, None);
            fuzz::search(&fuzz::FuzzConfig { seconds, enough, targets, unsearched, jobs: 2, replay })
        }),
    ]
}

fn run_steps(steps: Vec<Step>, only: &[String], without: &[String], list: bool) -> bool {
    if list {
        steps.iter().for_each(|step| println!("{}", step.name));
        return true;
    }
    for name in only.iter().chain(without) {
        if !steps.iter().any(|step| step.name == name) {
            eprintln!("xtask: there is no step `{name}`; `--list` names them");
            return false;
        }
    }
    step::run_all(steps, |name| {
        let wanted = only.is_empty() || only.iter().any(|other| other == name);
        wanted && !without.iter().any(|other| other == name)
    })
}

fn simulate(seeds: u64, first: Option<u64>, seed: Option<u64>) -> bool {
    let outcome = match seed {
        Some(seed) => simulator(&["--seed", &seed.to_string()]),
        None => {
            let first = first.unwrap_or_else(|| {
                let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
                u64::from(clock.map_or(0, |elapsed| elapsed.subsec_nanos())) << 20
            });
            simulator(&["--first", &first.to_string(), "--seeds", &seeds.to_string()])
        }
    };
    outcome.inspect_err(|reason| eprintln!("xtask: {reason}")).is_ok()
}

fn soak(minutes: f64, seed: Option<u32>, compute_nodes: Option<u32>) -> Result<(), String> {
    let mut command = tests(&["--test", "program", "--", "--ignored", "--nocapture", "soak::"]);
    command.env("HEDDLE_SOAK_MINUTES", minutes.to_string());
    if let Some(seed) = seed {
        command.env("HEDDLE_SOAK_SEED", seed.to_string());
    }
    if let Some(nodes) = compute_nodes {
        command.env("HEDDLE_SOAK_COMPUTE_NODES", nodes.to_string());
    }
    step::run(&mut command)
}

fn soak_store(minutes: f64) -> Result<(), String> {
    let mut command = tests(&["--test", "kv", "--", "processes::", "--nocapture", "--test-threads=1"]);
    step::run(command.env("PROCESSES_SECONDS", ((minutes * 60.0) as u64).to_string()))
}

/// Runs cases of pushed-down functions, for so long each. With the executor's own test, cargo builds the executor.
fn stress_pushdown(cases: &[&str], seconds: u64) -> Result<(), String> {
    let which = ["--test", "pushdown", "--test", "executor", "--", "--show-output"];
    step::run(tests(&[&which, cases].concat()).env("HEDDLE_STRESS_SECONDS", seconds.to_string()))
}

fn state_seeds(seeds: u64) -> Result<(), String> {
    let mut chosen = tests(&["--test", "state", "--", "every_height"]);
    step::run(chosen.env("STATE_SEEDS", format!("0..{seeds}")))
}

fn consensus_seeds(seeds: &str) -> Result<(), String> {
    let mut chosen = tests(&["--test", "sift", "--", "simulation::chosen_seeds"]);
    step::run(chosen.env("CONSENSUS_SEEDS", seeds))
}

fn manager_seeds(seeds: u64) -> Result<(), String> {
    let mut chosen = tests(&["--test", "manager"]);
    step::run(chosen.env("HEDDLE_MANAGER_SEEDS", seeds.to_string()))
}

fn copies_seeds(seeds: u64) -> Result<(), String> {
    let mut chosen = tests(&["--test", "copies"]);
    step::run(chosen.env("HEDDLE_COPIES_SEEDS", seeds.to_string()))
}

fn coherence_seeds(seeds: u64) -> Result<(), String> {
    let mut chosen = tests(&["--test", "coherence", "--", "run::"]);
    step::run(chosen.env("HEDDLE_COHERENCE_SEEDS", seeds.to_string()))
}

fn simulator(arguments: &[&str]) -> Result<(), String> {
    step::run(programs::program("heddle-simulator", "seeds")?.args(arguments))
}
