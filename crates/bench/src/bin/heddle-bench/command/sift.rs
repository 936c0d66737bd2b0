//! `heddle bench sift-…`: runs Sift's figures, which [`bench::sift`] measures.

use base::rt::CancellationToken;
use bench::sift::child_processes::Program;
use bench::sift::costs::{self, CostTable};
use bench::sift::{SiftConfig, THETA, fig7, fig8, fig11, fig12};

use super::figure::{FigureProgress, show};
use crate::cli::sift::{
    CoordinatorLossArguments, MemoryLossArguments, SiftArguments, SiftBackupsArguments, SiftCpuArguments,
    SiftStoreArguments,
};
use crate::failure::CommandError;

/// The arguments that make this program a part of a store.
const PROCESS: [&str; 1] = ["sift-process"];
/// The number of keys with `--quick`.
const QUICK_KEYS: u64 = 2_000;

fn count(number: u64) -> usize {
    usize::try_from(number).expect("the command line's limits are small")
}

fn options(arguments: &SiftArguments) -> SiftConfig {
    let mut options = SiftConfig {
        keys: arguments.keys,
        value_bytes: count(arguments.value_bytes),
        clients: arguments.clients,
        rounds: count(arguments.rounds),
        seconds: arguments.seconds,
        seed: arguments.common.seed,
    };
    if arguments.common.quick {
        (options.keys, options.rounds, options.seconds) = (QUICK_KEYS, 1, 0.3);
    }
    options
}

pub async fn fig5(arguments: &SiftArguments, stop: &CancellationToken) -> Result<(), CommandError> {
    let progress = FigureProgress::new();
    let figure = bench::sift::fig5(&options(arguments), stop, &|part| progress.report(part)).await;
    drop(progress);
    show(&figure?, &arguments.common.output)
}

pub async fn fig6(arguments: &SiftArguments, stop: &CancellationToken) -> Result<(), CommandError> {
    let progress = FigureProgress::new();
    let figure = bench::sift::fig6(&options(arguments), stop, &|part| progress.report(part)).await;
    drop(progress);
    show(&figure?, &arguments.common.output)
}

/// This program as a part of a store, with these clients.
fn program(store: &SiftStoreArguments, seed: u64) -> Result<Program, CommandError> {
    let path = std::env::current_exe();
    let path = path.map_err(|error| CommandError::new(format!("the program's own path: {error}")))?;
    Ok(Program { path, arguments: PROCESS.to_vec(), clients: store.clients, theta: THETA, seed })
}

fn fig7_config(arguments: &SiftCpuArguments) -> fig7::Fig7Config {
    let mut percents = arguments.cpu_percent.clone();
    percents.sort_unstable();
    percents.dedup();
    let mut options = fig7::Fig7Config {
        limit: arguments.limit(),
        failures: vec![1, 2],
        percents,
        keys: arguments.keys,
        value_bytes: count(arguments.store.value_bytes),
        cache_percent: arguments.store.cache_percent,
        rounds: arguments.rounds,
        seconds: arguments.seconds,
    };
    if arguments.common.quick {
        (options.percents, options.keys) = (vec![50, 100], QUICK_KEYS);
        (options.rounds, options.seconds) = (1, 0.3);
    }
    options
}

pub async fn fig7(arguments: &SiftCpuArguments, stop: &CancellationToken) -> Result<(), CommandError> {
    let program = program(&arguments.store, arguments.common.seed)?;
    let progress = FigureProgress::new();
    let figure = fig7::run(&program, &fig7_config(arguments), stop, &|part| progress.report(part)).await;
    drop(progress);
    show(&figure?, &arguments.common.output)
}

pub async fn costs(
    part: CostTable,
    arguments: &SiftCpuArguments,
    stop: &CancellationToken,
) -> Result<(), CommandError> {
    let program = program(&arguments.store, arguments.common.seed)?;
    let progress = FigureProgress::new();
    let figure = costs::run(part, &program, &fig7_config(arguments), stop, &|part| progress.report(part)).await;
    drop(progress);
    show(&figure?, &arguments.common.output)
}

pub fn fig8(arguments: &SiftBackupsArguments, stop: &CancellationToken) -> Result<(), CommandError> {
    let mut options = fig8::Fig8Config {
        machines: arguments.machines,
        days: arguments.days as f64,
        failures: arguments.failures,
        rack: arguments.rack,
        provision_s: arguments.provision_seconds,
        groups: arguments.groups.clone(),
        backups_max: arguments.backups,
        repeats: arguments.repeats,
        seed: arguments.common.seed,
    };
    if arguments.common.quick {
        (options.groups, options.repeats) = (vec![1_000, 3_000], 3);
    }
    let progress = FigureProgress::new();
    let figure = fig8::run(&options, stop, |part| progress.report(part));
    drop(progress);
    show(&figure?, &arguments.common.output)
}

pub async fn fig11(arguments: &MemoryLossArguments, stop: &CancellationToken) -> Result<(), CommandError> {
    let mut options = fig11::Fig11Config {
        keys: arguments.keys,
        value_bytes: count(arguments.store.value_bytes),
        cache_percent: arguments.store.cache_percent,
        copy_bytes_per_second: arguments.copy_mib << 20,
        seconds: arguments.seconds,
        is_erasure_coded: arguments.erasure_coded,
    };
    if arguments.common.quick {
        (options.keys, options.seconds) = (QUICK_KEYS, 0.5);
    }
    let program = program(&arguments.store, arguments.common.seed)?;
    let progress = FigureProgress::new();
    let figure = fig11::run(&program, &options, stop, &|part| progress.report(part)).await;
    drop(progress);
    show(&figure?, &arguments.common.output)
}

pub async fn fig12(arguments: &CoordinatorLossArguments, stop: &CancellationToken) -> Result<(), CommandError> {
    let mut options = fig12::Fig12Config {
        keys: arguments.keys,
        value_bytes: count(arguments.store.value_bytes),
        log_bytes: arguments.log_mib << 20,
        cache_percent: arguments.store.cache_percent,
        lease_ms: arguments.lease_ms,
        kills: arguments.kills,
        seconds: arguments.seconds,
    };
    if arguments.common.quick {
        (options.keys, options.kills, options.seconds) = (QUICK_KEYS, 2, 0.5);
    }
    let program = program(&arguments.store, arguments.common.seed)?;
    let progress = FigureProgress::new();
    let figure = fig12::run(&program, &options, stop, &|part| progress.report(part)).await;
    drop(progress);
    show(&figure?, &arguments.common.output)
}
