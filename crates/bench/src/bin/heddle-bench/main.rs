//! The program `heddle-bench`, which the user starts as `heddle bench`. It measures networks, stores and the layers
//! below them.
//!
//! 1. [`cli`] declares the benchmarks and their options.
//! 2. [`command`] has a module for each family of benchmarks. It starts the measured systems, as processes of the
//!    program `heddle` beside this one, and calls the library `bench`, which measures.
//!
//! No network needs this program to run: `heddle` is built without it.

mod cli;
mod command;

use std::process::ExitCode;

use clap::Parser as _;
use futures_util::future::LocalBoxFuture;
use heddle_cli::{exit, failure, instance, output, page, signals};

use cli::Cli;
use cli::bench::BenchCommand;
use failure::CommandError;

fn main() -> ExitCode {
    node::log_panics();
    cli::former::warn(std::env::args_os());
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(message) = failure.message() {
                eprintln!("heddle: {message}");
            }
            ExitCode::from(failure.code())
        }
    }
}

fn run(cli: &Cli) -> Result<(), CommandError> {
    if let BenchCommand::TeleportProcess(arguments) = &cli.benchmark {
        // It starts its executor before it has other threads.
        return Ok(bench::teleport::subject::run(&arguments.part)?);
    }
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    // Clients of a benchmark leave the processors to the servers on the same machine. They get at least two threads: a
    // block commits at many clients at once, and on one thread they would sign their next transactions while a
    // processor idles.
    let threads = processors.div_ceil(4).max(2);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .thread_name("heddle")
        .build()
        .map_err(|error| CommandError::new(format!("no threads can be started: {error}")))?;
    // One boxed future type for all benchmarks: the code that runs a future is compiled for each type of future, several
    // times over, with everything that the future awaits.
    let asked: LocalBoxFuture<'_, _> = Box::pin(command::measure::run(&cli.benchmark));
    let result = runtime.block_on(asked);
    // Do not wait for threads that still block after a command has ended (a signal handler, a name look-up).
    runtime.shutdown_background();
    result
}
