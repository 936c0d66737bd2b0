//! The program's command line: its commands and examples.

use std::ffi::OsString;

use clap::{Args, Parser, Subcommand};

pub(super) const EXAMPLES: &str = "\
Examples:
  heddle up                          a network of three organisations, until Ctrl-C
  heddle up --detach                 the same in the background; `heddle down` stops it
  heddle up --isolate                the same with every role as a separate process
  heddle up --elastic                the same, and peers grow and shrink with their load
  heddle pool top                    the load of every process, and what is scaled
  heddle status                      what runs, the ledgers' heights, the load
  heddle peer memory org1            how much remote memory a peer uses; --set changes its budget
  heddle orderer add                 adds an orderer, in a network with --ordering raft --isolate
  heddle contract define             brings the contracts' definitions onto the ledger
  heddle chaincode new go assets     writes a chaincode; heddle chaincode run assets runs it
  heddle bench smallbank             measure this machine with a temporary network
  heddle kv up                       a replicated key-value store; then heddle kv put KEY VALUE
  heddle farmem run -- python3 x.py  a program whose heap is larger than its memory
  heddle farmem profile -- ./query   which of its functions wait for remote memory
  heddle ledger verify               check every hash and signature of a stopped network

Exit codes:
  0    done
  1    failed; standard error says what and why
  2    the command line is wrong
  3    `ledger verify` found damage, or `ledger replay` a difference
  4    the network or store that the command needs is not running
  5    `kv`: the key has no value, or not the expected one
  70   a program defect ended a part of a process; its log has the panic; restart it
  130  interrupted by Ctrl-C or SIGTERM";

/// A permissioned ledger for Hyperledger Fabric's clients: one program, one command for a network.
#[derive(Parser, Debug)]
#[command(name = "heddle", version, after_help = EXAMPLES, max_term_width = 100, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    Up(super::network::UpArguments),
    Down(super::network::DownArguments),
    Status(super::network::StatusArguments),
    /// Run one role of a network as a separate process
    #[command(subcommand)]
    Node(super::node::NodeCommand),
    Plan(super::node::PlanArguments),
    /// Print the default configuration, commented: every key, its default and its meaning
    #[command(after_help = "\
Example:
  heddle config > heddle.toml        then edit it, and
  heddle up --config heddle.toml")]
    Config,
    /// Operate one peer of a running network
    #[command(subcommand)]
    Peer(super::peer::PeerCommand),
    /// Scale the peers of a running network by their load, and watch it
    #[command(subcommand)]
    Pool(super::pool::PoolCommand),
    /// Deny certificates at once
    #[command(subcommand)]
    Deny(super::deny::DenyCommand),
    /// Operate the orderers of a running network on Raft
    #[command(subcommand)]
    Orderer(super::orderer::OrdererCommand),
    /// Call contracts of a running network, follow their events, and define them
    #[command(subcommand)]
    Contract(super::contract::ContractCommand),
    /// Write a chaincode in Go, TypeScript or Java, and run it on a network
    #[command(subcommand)]
    Chaincode(super::chaincode::ChaincodeCommand),
    /// Run a replicated key-value store, and use one
    #[command(subcommand)]
    Kv(super::kv::KvCommand),
    /// Run a program whose heap is larger than its memory
    #[command(subcommand)]
    Farmem(super::farmem::FarMemoryCommand),
    /// Inspect the ledgers and check them
    #[command(subcommand)]
    Ledger(super::ledger::LedgerCommand),
    /// Measure: run a workload, and compare the result with the cost of its signatures
    #[command(disable_help_flag = true)]
    Bench(BenchArguments),
}

/// Arguments of the program `heddle-bench`, which knows what they mean.
#[derive(Args, Debug, Clone)]
pub struct BenchArguments {
    /// A benchmark and its options; `heddle bench --help` lists them
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<OsString>,
}

#[cfg(test)]
mod tests;
