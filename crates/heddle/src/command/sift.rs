//! `heddle bench sift-…`: Sift's figures; how they are measured is in [`bench::sift`].

use base::rt::Stop;
use bench::sift::costs::{self, Part};
use bench::sift::processes::Program;
use bench::sift::{Options, THETA, fig7, fig8, fig11, fig12};

use super::figure::{Progress, show};
use crate::cli::sift::{Backups, CoordinatorLoss, MemoryLoss, Processors, Sift, Store};
use crate::failure::Failure;

/// The words that make this program a part of a store.
const PROCESS: [&str; 2] = ["bench", "sift-process"];
/// Keys of a quick look.
const QUICK_KEYS: u64 = 10_000;

fn count(number: u64) -> usize {
    usize::try_from(number).expect("the command line's limits are small")
}

fn options(arguments: &Sift) -> Options {
    let mut options = Options {
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

pub async fn fig5(arguments: &Sift, stop: &Stop) -> Result<(), Failure> {
    let progress = Progress::new();
    let figure = bench::sift::fig5(&options(arguments), stop, &|part| progress.tell(part)).await;
    drop(progress);
    show(&figure?, &arguments.common.output)
}

pub async fn fig6(arguments: &Sift, stop: &Stop) -> Result<(), Failure> {
    let progress = Progress::new();
    let figure = bench::sift::fig6(&options(arguments), stop, &|part| progress.tell(part)).await;
    drop(progress);
    show(&figure?, &arguments.common.output)
}

/// This program as a part of a store, with these clients.
fn program(store: &Store, seed: u64) -> Result<Program, Failure> {
    let path = std::env::current_exe();
    let path = path.map_err(|error| Failure::new(format!("the program's own path: {error}")))?;
    Ok(Program { path, arguments: PROCESS.to_vec(), clients: store.clients, theta: THETA, seed })
}

fn processors(arguments: &Processors) -> fig7::Options {
    let mut percents = arguments.processor_percent.clone();
    percents.sort_unstable();
    percents.dedup();
    let mut options = fig7::Options {
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

pub async fn fig7(arguments: &Processors, stop: &Stop) -> Result<(), Failure> {
    let program = program(&arguments.store, arguments.common.seed)?;
    let progress = Progress::new();
    let figure = fig7::run(&program, &processors(arguments), stop, &|part| progress.tell(part)).await;
    drop(progress);
    show(&figure?, &arguments.common.output)
}

pub async fn costs(part: Part, arguments: &Processors, stop: &Stop) -> Result<(), Failure> {
    let program = program(&arguments.store, arguments.common.seed)?;
    let progress = Progress::new();
    let figure = costs::run(part, &program, &processors(arguments), stop, &|part| progress.tell(part)).await;
    drop(progress);
    show(&figure?, &arguments.common.output)
}

pub fn fig8(arguments: &Backups, stop: &Stop) -> Result<(), Failure> {
    let mut options = fig8::Options {
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
    let progress = Progress::new();
    let figure = fig8::run(&options, stop, |part| progress.tell(part));
    drop(progress);
    show(&figure?, &arguments.common.output)
}

pub async fn fig11(arguments: &MemoryLoss, stop: &Stop) -> Result<(), Failure> {
    let mut options = fig11::Options {
        keys: arguments.keys,
        value_bytes: count(arguments.store.value_bytes),
        cache_percent: arguments.store.cache_percent,
        copy_bytes_per_second: arguments.copy_mib << 20,
        seconds: arguments.seconds,
        is_coded: arguments.coded,
    };
    if arguments.common.quick {
        (options.keys, options.seconds) = (QUICK_KEYS, 0.5);
    }
    let program = program(&arguments.store, arguments.common.seed)?;
    let progress = Progress::new();
    let figure = fig11::run(&program, &options, stop, &|part| progress.tell(part)).await;
    drop(progress);
    show(&figure?, &arguments.common.output)
}

pub async fn fig12(arguments: &CoordinatorLoss, stop: &Stop) -> Result<(), Failure> {
    let mut options = fig12::Options {
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
    let progress = Progress::new();
    let figure = fig12::run(&program, &options, stop, &|part| progress.tell(part)).await;
    drop(progress);
    show(&figure?, &arguments.common.output)
}
