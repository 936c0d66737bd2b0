//! The program `heddle`: networks and their ledgers on the command line.
//!
//! 1. [`cli`] declares the commands.
//! 2. [`command`] has a module for each command, which composes functions of the layers below.
//! 3. A command that fails returns a [`failure`]: an exit code, and one line that names the problem and a remedy.
//!
//! The logic of networks and ledgers is in the layers below. The library of this package has the code that this program
//! shares with `heddle-bench`; `heddle bench` replaces this process with that program.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "files of tests need not outlive a loss of power"))]

mod block_view;
mod cli;
mod command;

use std::process::ExitCode;

use clap::Parser as _;
use futures_util::future::LocalBoxFuture;
use heddle_cli::{failure, instance, output, page, signals};

use cli::{Cli, Command};
use failure::CommandError;

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

fn run(command: Command) -> Result<(), CommandError> {
    // Before threads start: this process becomes the other program.
    if let Command::Bench(bench) = command {
        return Err(command::bench::run(&bench));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("heddle")
        .build()
        .map_err(|error| CommandError::new(format!("no threads can be started: {error}")))?;
    // One boxed future type for all commands: the code that runs a future is compiled for each type of future, several
    // times over, with everything that the future awaits.
    let asked: LocalBoxFuture<'_, _> = Box::pin(async {
        match command {
            Command::Up(up) => command::up::run(up).await,
            Command::Down(down) => command::down::run(&down).await,
            Command::Status(status) => command::status::run(&status).await,
            Command::Node(node) => command::process::run(&node).await,
            Command::Plan(plan) => command::process::plan(&plan).await,
            Command::Config => output::print(node::HeddleConfig::default_text()),
            Command::Peer(cli::peer::PeerCommand::Memory(memory)) => command::peer::memory(&memory).await,
            Command::Peer(cli::peer::PeerCommand::Storage(storage)) => command::peer_storage::storage(&storage).await,
            Command::Peer(cli::peer::PeerCommand::Nodes(nodes)) => command::peer::nodes(&nodes).await,
            Command::Peer(cli::peer::PeerCommand::AddNode(node)) => command::peer::add_node(&node).await,
            Command::Peer(cli::peer::PeerCommand::RemoveNode(node)) => command::peer::remove_node(&node).await,
            Command::Peer(cli::peer::PeerCommand::AddMemory(node)) => command::peer::add_memory(&node),
            Command::Pool(cli::pool::PoolCommand::Top(top)) => command::pool::top::run(&top).await,
            Command::Pool(cli::pool::PoolCommand::Events(events)) => command::pool::events(&events).await,
            Command::Pool(cli::pool::PoolCommand::Manage(manage)) => command::pool::manage(&manage).await,
            Command::Deny(cli::deny::DenyCommand::Add(add)) => command::deny::add(&add),
            Command::Deny(cli::deny::DenyCommand::List(list)) => command::deny::list(&list),
            Command::Orderer(cli::orderer::OrdererCommand::Members(members)) => {
                command::orderer::members(&members).await
            }
            Command::Orderer(cli::orderer::OrdererCommand::Add(add)) => command::orderer::add(&add).await,
            Command::Orderer(cli::orderer::OrdererCommand::Plan(plan)) => command::orderer::plan(&plan).await,
            Command::Orderer(cli::orderer::OrdererCommand::Remove(remove)) => command::orderer::remove(&remove).await,
            Command::Contract(cli::contract::ContractCommand::Call(call)) => command::contract::call(&call).await,
            Command::Contract(cli::contract::ContractCommand::Evaluate(evaluate)) => {
                command::contract::evaluate(&evaluate.call).await
            }
            Command::Contract(cli::contract::ContractCommand::Events(events)) => {
                command::contract::events(&events).await
            }
            Command::Contract(cli::contract::ContractCommand::Define(define)) => {
                command::contract::define(&define).await
            }
            Command::Chaincode(cli::chaincode::ChaincodeCommand::Run(run)) => command::chaincode::run(&run).await,
            Command::Chaincode(cli::chaincode::ChaincodeCommand::New(new)) => command::chaincode::create(&new),
            Command::Kv(kv) => command::kv::run(&kv).await,
            Command::Farmem(farmem) => command::farmem::run(&farmem).await,
            Command::Ledger(cli::ledger::LedgerCommand::Verify(verify)) => command::verify::run(&verify).await,
            Command::Ledger(cli::ledger::LedgerCommand::Replay(replay)) => command::replay::run(&replay).await,
            Command::Ledger(cli::ledger::LedgerCommand::Show(show)) => command::show::run(&show).await,
            Command::Bench(_) => unreachable!("it has become another program"),
        }
    });
    let result = runtime.block_on(asked);
    // Do not wait for threads that still block after a command has ended (a signal handler, a name look-up).
    runtime.shutdown_background();
    result
}
