//! The program `heddle`: networks, their ledgers, and measurements, from the command line.
//!
//! 1. [`cli`] says what can be asked. 2. [`command`] has a module for each command, which composes what the layers below
//!    offer. 3. [`failure`] is what every command ends with when it cannot do what was asked: one line that says what
//!    is wrong and what to do about it, and an exit code.
//!
//! No logic of networks or ledgers is here.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "files of tests need not outlive a loss of power"))]

mod block_view;
mod cli;
mod command;
mod failure;
mod instance;
mod output;
mod page;
mod signals;

use std::process::ExitCode;

use clap::Parser as _;
use futures_util::future::LocalBoxFuture;

use cli::{Cli, Command};
use failure::Failure;

fn main() -> ExitCode {
    node::log_panics();
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(message) = failure.message() {
                eprintln!("heddle: {message}");
            }
            ExitCode::from(failure.code())
        }
    }
}

fn run(command: Command) -> Result<(), Failure> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    // Clients of a measurement leave the processors to the servers, which they share the machine with. Two threads at least: a block
    // commits at many clients at once, and on one thread they would sign their next transactions while a processor idles.
    let threads = if matches!(command, Command::Bench(_)) { processors.div_ceil(4).max(2) } else { processors };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .thread_name("heddle")
        .build()
        .map_err(|error| Failure::new(format!("no threads can be started: {error}")))?;
    // One type, whatever is asked: what runs a future is compiled for each type of future, several times over, with all that this one
    // awaits.
    let asked: LocalBoxFuture<'_, _> = Box::pin(async {
        match command {
            Command::Up(up) => command::up::run(up).await,
            Command::Down(down) => command::down::run(&down).await,
            Command::Status(status) => command::status::run(&status).await,
            Command::Node(node) => command::process::run(&node).await,
            Command::Plan(plan) => command::process::plan(&plan).await,
            Command::Config => output::print(node::Config::default_text()),
            Command::Peer(cli::peer::Peer::Memory(memory)) => command::peer::memory(&memory).await,
            Command::Peer(cli::peer::Peer::Nodes(nodes)) => command::peer::nodes(&nodes).await,
            Command::Deny(cli::deny::Deny::Add(add)) => command::deny::add(&add),
            Command::Deny(cli::deny::Deny::List(list)) => command::deny::list(&list),
            Command::Orderer(cli::orderer::Orderer::Members(members)) => command::orderer::members(&members).await,
            Command::Orderer(cli::orderer::Orderer::Add(add)) => command::orderer::add(&add).await,
            Command::Orderer(cli::orderer::Orderer::Plan(plan)) => command::orderer::plan(&plan).await,
            Command::Orderer(cli::orderer::Orderer::Remove(remove)) => command::orderer::remove(&remove).await,
            Command::Kv(kv) => command::kv::run(&kv).await,
            Command::Ledger(cli::ledger::Ledger::Verify(verify)) => command::verify::run(&verify).await,
            Command::Ledger(cli::ledger::Ledger::Show(show)) => command::show::run(&show).await,
            Command::Bench(bench) => command::measure::run(&bench).await,
        }
    });
    let result = runtime.block_on(asked);
    // What still blocks a thread after a command has ended (a signal's handler, a name look-up) is not waited for.
    runtime.shutdown_background();
    result
}
