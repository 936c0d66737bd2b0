//! `heddle bench flexchain-…`: figures of FlexChain.

use std::path::PathBuf;

use bench::flexchain::limiter::{Kind, PERCENT_MIN};
use clap::{Args, ValueEnum};

use super::bench::{FigureOutput, seconds};

/// `heddle bench flexchain-fig5b`.
#[derive(Args, Debug, Clone)]
pub struct Fig5b {
    /// Size of the data, in MiB of values; each size of memory has a peer of its own
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(8..=65_536))]
    pub data_mib: u64,
    /// Sizes of remote memory, in percent of the data; 50 and 100 make the ratio
    #[arg(long, value_name = "PERCENT,…", value_delimiter = ',', default_value = "2.5,10,25,50,75,100,125", value_parser = percent)]
    pub memory_percent: Vec<f64>,
    /// How much longer a read of storage takes, in microseconds
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    pub delay_us: u64,
    /// Clients, each with one transaction in flight
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub clients: u64,
    /// Times that every size of memory is measured, of which the median counts
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u64).range(1..=99))]
    pub rounds: u64,
    /// How long each time takes, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 0.6, value_parser = seconds)]
    pub seconds: f64,
    #[command(flatten)]
    pub common: Common,
}

/// `heddle bench flexchain-fig7`.
#[derive(Args, Debug, Clone)]
pub struct Fig7 {
    /// Records of YCSB, 10 KB each
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(500..=10_000_000))]
    pub records: u64,
    /// Customers of SmallBank, with two accounts of 100 bytes each
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(500..=10_000_000))]
    pub customers: u64,
    /// Pairs of runs of each load, of which the median counts
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=99))]
    pub pairs: u64,
    /// How long each run takes on whole networks, in seconds; savepoints are some seconds apart
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = seconds)]
    pub seconds: f64,
    /// How long each run takes on the state alone, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    pub state_seconds: f64,
    /// Latency of a verb on the state alone, beside none, in microseconds
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub latency_us: u64,
    /// Organisations of the networks, each with a peer and a gateway
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub orgs: u8,
    /// Clients of the networks, each with one transaction in flight
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub clients: u64,
    /// Measure one of the parts alone
    #[arg(long, value_enum, value_name = "PART")]
    pub only: Option<Part>,
    #[command(flatten)]
    pub common: Common,
}

/// A part of figure 7.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Whole networks
    Network,
    /// The state alone
    State,
    /// Write-heavy loads alone, beside a memtable as large as the data
    Memtable,
}

/// `heddle bench flexchain-fig8a`.
#[derive(Args, Debug, Clone)]
pub struct Fig8a {
    /// Size of the data, in MiB of values
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(8..=65_536))]
    pub data_mib: u64,
    /// Sizes of the local caches, in percent of the data
    #[arg(long, value_name = "PERCENT,…", value_delimiter = ',', default_value = "1,2,5,10,25,50,100", value_parser = percent)]
    pub cache_percent: Vec<f64>,
    /// Sizes of remote memory, in percent of the data; what it does not hold, storage serves
    #[arg(long, value_name = "PERCENT,…", value_delimiter = ',', default_value = "200,50", value_parser = percent)]
    pub memory_percent: Vec<f64>,
    /// Exponents of Zipf's law; 0 is uniform
    #[arg(long, value_name = "EXPONENT,…", value_delimiter = ',', default_value = "0,0.6,0.99,1.2", value_parser = skew)]
    pub skew: Vec<f64>,
    /// Transactions that are counted for each of these
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(200..=100_000_000))]
    pub transactions: u64,
    #[command(flatten)]
    pub common: Common,
}

/// `heddle bench flexchain-fig8b`.
#[derive(Args, Debug, Clone)]
pub struct Fig8b {
    /// Size of the data, in MiB of values
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(8..=65_536))]
    pub data_mib: u64,
    /// Shares of one processor that a memory node may have, in percent; besides, it runs without a limit
    #[arg(long, value_name = "PERCENT,…", value_delimiter = ',', default_value = "10,25,50,100",
          value_parser = clap::value_parser!(u32).range(i64::from(PERCENT_MIN)..=10_000))]
    pub processor_percent: Vec<u32>,
    /// How the processor is limited
    #[arg(long, value_enum, value_name = "HOW", default_value = "auto")]
    pub limit: Limit,
    /// Rounds through all shares, of whose ratios the median counts
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=99))]
    pub rounds: u64,
    /// How long each run takes, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 0.25, value_parser = seconds)]
    pub seconds: f64,
    #[command(flatten)]
    pub common: Common,
}

/// How a processor is limited.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// By a cgroup where one can be made, else by pauses
    Auto,
    /// By a cgroup (version 2 or 1) with a quota; fails where none can be made
    Cgroup,
    /// By signals that stop and continue the process; needs no rights
    Pauses,
}

impl Limit {
    pub fn kind(self) -> Kind {
        match self {
            Limit::Auto => Kind::Any,
            Limit::Cgroup => Kind::Cgroup,
            Limit::Pauses => Kind::Pauses,
        }
    }
}

/// What the figures have in common.
#[derive(Args, Debug, Clone)]
pub struct Common {
    /// A quick look: little data, short runs, in place of the sizes above
    #[arg(long)]
    pub quick: bool,
    /// Fixes which keys are chosen
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub output: FigureOutput,
}

/// A memory node for figure 8 (b): this program again.
#[derive(Args, Debug, Clone)]
pub struct MemoryProcess {
    /// What it is
    #[arg(value_enum)]
    pub form: MemoryForm,
    /// Its socket
    pub socket: PathBuf,
    /// Bytes that it may give
    pub bytes: u64,
    /// Bytes of a section
    pub section_bytes: u64,
}

/// What a memory node is.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryForm {
    Passive,
    TwoSided,
}

fn percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if (0.1..=1_000.0).contains(&number) => Ok(number),
        _ => Err("not a percentage from 0.1 to 1000".to_owned()),
    }
}

fn skew(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if (0.0..=4.0).contains(&number) => Ok(number),
        _ => Err("not an exponent from 0 to 4".to_owned()),
    }
}
