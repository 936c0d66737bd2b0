//! The command line: what can be asked, and the words in which it is explained.
//!
//! `docs/cli.md` is made from these declarations; a test holds it against them.

pub mod bench;
pub mod deny;
pub mod flexchain;
pub mod kv;
pub mod ledger;
pub mod network;
pub mod node;
pub mod orderer;
pub mod peer;
pub mod sift;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Exit codes, in the order in which `heddle --help` explains them.
pub mod exit {
    /// Something failed; what and why stands on standard error.
    pub const FAILURE: u8 = 1;
    /// `heddle ledger verify` found damage.
    pub const DAMAGED: u8 = 3;
    /// The network that the command needs is not running.
    pub const NOT_RUNNING: u8 = 4;
    /// A key of a key-value store has no value, or not the one that was expected.
    pub const ABSENT: u8 = 5;
    /// A part of a process ended that must not, by a mistake of the program: the log has it, and whoever supervises the
    /// process starts it again.
    pub const DEFECT: u8 = 70;
    /// Interrupted by Ctrl-C, as shells expect it.
    pub const INTERRUPTED: u8 = 130;
}

/// Where a network lives unless `--dir` says otherwise.
pub const DIRECTORY: &str = "./heddle-data";

const EXAMPLES: &str = "\
Examples:
  heddle up                          a network of three organisations, until Ctrl-C
  heddle up --detach                 the same in the background; `heddle down` ends it
  heddle up --isolate                the same with every role as a process of its own
  heddle status                      what runs, how high the ledgers are, how busy they are
  heddle peer memory org1            how much remote memory a peer uses; --set gives it another budget
  heddle orderer add                 one orderer more, in a network with --ordering raft --isolate
  heddle bench smallbank             measure this machine with a network of its own
  heddle kv up                       a replicated key-value store; then heddle kv put KEY VALUE
  heddle ledger verify               check every hash and signature of a stopped network

Exit codes:
  0    done
  1    failed; what and why stands on standard error
  2    the command line is wrong
  3    `ledger verify` found damage
  4    the network or store that the command needs is not running
  5    `kv`: the key has no value, or not the one that was expected
  70   a part of a process ended by a mistake of the program; its log has the panic, start it again
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
    Up(network::Up),
    Down(network::Down),
    Status(network::Status),
    /// Run one role of a network as a process of its own
    #[command(subcommand)]
    Node(node::Node),
    Plan(node::Plan),
    /// Print the configuration file that says the same as none: every key, its default and what it means
    #[command(after_help = "\
Example:
  heddle config > heddle.toml        then edit it, and
  heddle up --config heddle.toml")]
    Config,
    /// Operate one peer of a running network
    #[command(subcommand)]
    Peer(peer::Peer),
    /// Turn certificates away at once
    #[command(subcommand)]
    Deny(deny::Deny),
    /// Operate the orderers of a running network on Raft
    #[command(subcommand)]
    Orderer(orderer::Orderer),
    /// Run a replicated key-value store, and use one
    #[command(subcommand)]
    Kv(kv::Kv),
    /// Look into the ledgers and check them
    #[command(subcommand)]
    Ledger(ledger::Ledger),
    /// Measure: run a workload and set the result against what its signatures cost
    #[command(subcommand)]
    Bench(bench::Bench),
}

/// Which network a command is about.
#[derive(Args, Debug, Clone)]
pub struct Directory {
    /// The network's directory
    #[arg(long = "dir", value_name = "DIR", default_value = DIRECTORY)]
    pub dir: PathBuf,
}

#[cfg(test)]
mod tests;
