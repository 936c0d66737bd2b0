//! `heddle bench state`, `validate`, `ordering`, `rma` and `signatures`: one component, without a network.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::figure::{FigureArguments, FigureOutput};
use super::seconds::seconds;

/// Verification of signatures.
#[derive(Args, Debug, Clone)]
pub struct SignaturesArguments {
    /// Keys that sign, at random; each has a table of 256 KiB
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=3_000))]
    pub keys: u64,
    /// Rounds; in each of them every way verifies all signatures
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=9_999))]
    pub rounds: u64,
    /// Determines the signers
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub output: FigureOutput,
}

/// Verbs of remote memory.
#[derive(Args, Debug, Clone)]
pub struct RmaArguments {
    /// Batches of each verb and of its floor, in alternation
    #[arg(long, value_name = "N", default_value_t = 31, value_parser = clap::value_parser!(u64).range(1..=9_999))]
    pub rounds: u64,
    /// How long each batch takes, in milliseconds
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub batch_ms: u64,
    /// Remote memory that cold reads and writes cover, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(16..=65_536))]
    pub data_mib: u64,
    /// Determines the addresses of cold reads and writes
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    /// Measure only this provider
    #[arg(long, value_enum, value_name = "NAME")]
    pub provider: Option<ProviderChoice>,
    /// Skip the interconnects with an added latency of 2 and 8 µs per verb
    #[arg(long)]
    pub unshaped: bool,
    #[command(flatten)]
    pub output: FigureOutput,
}

/// Far memory.
#[derive(Args, Debug, Clone)]
pub struct FarMemoryArguments {
    /// Rounds, of which the medians count
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=999))]
    pub rounds: u64,
    /// Memory of the region, of which a quarter may be resident, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(16..=65_536))]
    pub data_mib: u64,
    /// How remote memory is reached
    #[arg(long, value_enum, value_name = "NAME", default_value = "shm")]
    pub provider: ProviderChoice,
    /// Without the added time of a link; the ratios then have no bounds
    #[arg(long)]
    pub unshaped: bool,
    /// A quick look: 32 MiB, one round
    #[arg(long)]
    pub quick: bool,
    #[command(flatten)]
    pub output: FigureOutput,
}

/// A way to reach remote memory.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProviderChoice {
    /// Memory that processes of one machine share
    Shm,
    /// Between any two hosts
    Tcp,
}

/// A measurement that needs no network.
#[derive(Args, Debug, Clone)]
pub struct StateArguments {
    /// Remote memory that reads cover, in MiB of values
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(16..=65_536))]
    pub data_mib: u64,
    /// Bytes of each value of reads and blocks
    #[arg(long, value_name = "BYTES", default_value_t = 1_024, value_parser = clap::value_parser!(u64).range(8..=1_048_576))]
    pub value_bytes: u64,
    /// How long each run of YCSB takes, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0, value_parser = seconds)]
    pub seconds: f64,
    /// Pairs of runs of YCSB, of which the median counts
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=99))]
    pub pairs: u64,
    /// How long updates run within constant memory, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, value_parser = seconds)]
    pub steady_seconds: f64,
    /// Measure only one part
    #[arg(long, value_name = "PART", value_enum)]
    pub only: Option<StatePart>,
    /// Determines the keys
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub output: FigureOutput,
}

/// Validation of blocks.
#[derive(Args, Debug, Clone)]
pub struct ValidateArguments {
    /// Transactions of a block [default: 200, then 1,000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=8_000))]
    pub transactions: Option<u64>,
    /// Blocks of each size and share of conflicts
    #[arg(long, value_name = "N", default_value_t = 31, value_parser = clap::value_parser!(u64).range(1..=9_999))]
    pub blocks: u64,
    /// Determines the accounts
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub output: FigureOutput,
}

/// A part of `heddle bench state`.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum StatePart {
    /// Warm and cold reads, and ranges
    Reads,
    /// Blocks
    Blocks,
    /// YCSB at 10 KB
    Load,
    /// Reads while other records are evicted, and long runs of updates within constant memory
    Pressure,
}

/// `heddle bench ordering`.
#[derive(Args, Debug, Clone)]
pub struct OrderingArguments {
    /// Duration of each measurement, in seconds
    #[arg(long, value_name = "N", default_value = "2", value_parser = seconds)]
    pub seconds: f64,
    /// Number of measurements, of which the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=99))]
    pub rounds: u64,
    /// Transactions per block
    #[arg(long, value_name = "N", default_value = "200", value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub transactions: u64,
    /// Bytes of a transaction
    #[arg(long, value_name = "N", default_value = "1024", value_parser = clap::value_parser!(u64).range(1..=2048))]
    pub transaction_bytes: u64,
    /// Put the orderers' logs here during the measurement [default: the system's temporary folder]
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
    #[command(flatten)]
    pub common: FigureArguments,
}
