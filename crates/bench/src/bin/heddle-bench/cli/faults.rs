//! `heddle bench failover`, `memory-lost`, `storage-lost` and `under-attack`: networks whose parts fail, or that are attacked.

use std::path::PathBuf;

use clap::Args;
use measurement::driver::CLIENTS_MAX;

use super::figure::{FigureArguments, FigureOutput};
use super::seconds::seconds;

/// Kills of primaries.
#[derive(Args, Debug, Clone)]
pub struct FailoverArguments {
    /// How often a primary is killed
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub kills: u64,
    /// Compute nodes of each peer
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=9))]
    pub compute_nodes: u8,
    /// Clients, each with one transaction in flight, spread over two organisations
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(2..=1_000))]
    pub clients: u64,
    /// Records of 1 KiB in the world state; the caches of a compute node take an eighth of their size
    #[arg(long, value_name = "N", default_value_t = 40_000, value_parser = clap::value_parser!(u64).range(1_000..=1_000_000))]
    pub records: u64,
    /// Determines how long each primary lives
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub output: FigureOutput,
}

/// Losses of memory nodes.
#[derive(Args, Debug, Clone)]
pub struct MemoryLostArguments {
    /// Clients, each with one transaction in flight
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub clients: u64,
    /// Records of 1 KiB in the world state; the caches of a compute node take a quarter of their size
    #[arg(long, value_name = "N", default_value_t = 40_000, value_parser = clap::value_parser!(u64).range(1_000..=1_000_000))]
    pub records: u64,
    #[command(flatten)]
    pub output: FigureOutput,
}

impl Default for MemoryLostArguments {
    fn default() -> MemoryLostArguments {
        MemoryLostArguments { clients: 16, records: 40_000, output: FigureOutput { json: None, plot: None } }
    }
}

/// Losses of storage nodes.
#[derive(Args, Debug, Clone)]
pub struct StorageLostArguments {
    /// Clients, each with one transaction in flight
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub clients: u64,
    /// Records of 1 KiB in the world state
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1_000..=1_000_000))]
    pub records: u64,
    #[command(flatten)]
    pub output: FigureOutput,
}

/// Windows with attacks and without.
#[derive(Args, Debug, Clone)]
pub struct UnderAttackArguments {
    /// Pairs of a calm and an attacked window; medians count
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=99))]
    pub pairs: u64,
    /// How long each window takes, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, value_parser = seconds)]
    pub seconds: f64,
    /// Clients, each with one transaction in flight
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=CLIENTS_MAX as u64))]
    pub clients: u64,
    /// The pace of each attack, relative to one that would break a network without defences
    #[arg(long, value_name = "FACTOR", default_value_t = 0.02, value_parser = seconds)]
    pub factor: f64,
    /// The program that attacks [default: `attack` beside this program]
    #[arg(long, value_name = "PROGRAM")]
    pub attacks: Option<PathBuf>,
    #[command(flatten)]
    pub common: FigureArguments,
}
