//! `heddle bench flexchain-…`: figures of FlexChain.

use std::path::PathBuf;

use bench::flexchain::limiter::{LimiterKind, PERCENT_MIN};
use clap::{Args, ValueEnum};

use super::faults::MemoryLostArguments;
use super::figure::FigureArguments;
use super::seconds::seconds;

/// `heddle bench flexchain-fig1`.
#[derive(Args, Debug, Clone)]
pub struct Fig1Arguments {
    /// Divides the paper's rates, 10 predictions and 1,500 transactions a second, and the 10 GB that the store holds
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10))]
    pub scale: u64,
    /// Duration of each run, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 20.0, value_parser = seconds)]
    pub seconds: f64,
    #[command(flatten)]
    pub common: FigureArguments,
}

/// The load of figures that measure K-means on several networks.
#[derive(Args, Debug, Clone)]
pub struct KMeansNetworkArguments {
    /// The most epochs of one clustering: they decide how long a transaction computes
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub epochs: u64,
    /// Clients at first, each with one transaction in flight; their number is doubled until throughput stops growing
    #[arg(long, value_name = "N", default_value_t = 48, value_parser = clap::value_parser!(u64).range(1..=5_000))]
    pub clients: u64,
    /// Rounds, in each of which every network is measured once; means count
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=99))]
    pub rounds: u64,
    /// Duration of each measurement, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = seconds)]
    pub seconds: f64,
    /// Latency of the link to remote memory, in microseconds
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    pub link_latency_us: u64,
    #[command(flatten)]
    pub common: FigureArguments,
}

/// `heddle bench flexchain-fig5a`.
#[derive(Args, Debug, Clone)]
pub struct Fig5aArguments {
    /// The quota of each compute node, in percent of one processor; the smallest size has half of it
    #[arg(long, value_name = "PERCENT", default_value_t = 20, value_parser = clap::value_parser!(u32).range(20..=6_400))]
    pub cpu_percent: u32,
    /// The most compute nodes of a peer
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub compute_nodes: u32,
    #[command(flatten)]
    pub load: KMeansNetworkArguments,
}

/// `heddle bench flexchain-fig7d`.
#[derive(Args, Debug, Clone)]
pub struct Fig7dArguments {
    /// The quota of each peer's compute process, in percent of one processor
    #[arg(long, value_name = "PERCENT", default_value_t = 30, value_parser = clap::value_parser!(u32).range(10..=6_400))]
    pub cpu_percent: u32,
    #[command(flatten)]
    pub load: KMeansNetworkArguments,
}

/// `heddle bench flexchain-fig5b`.
#[derive(Args, Debug, Clone)]
pub struct Fig5bArguments {
    /// Size of the data, in MiB of values; each memory size has its own peer
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(8..=65_536))]
    pub data_mib: u64,
    /// Sizes of remote memory, in percent of the data; 50 and 100 give the ratio
    #[arg(long, value_name = "PERCENT,…", value_delimiter = ',', default_value = "2.5,10,25,50,75,100,125", value_parser = percent)]
    pub memory_percent: Vec<f64>,
    /// Added latency of a storage read, in microseconds
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    pub delay_us: u64,
    /// Clients, each with one transaction in flight
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub clients: u64,
    /// Number of measurements of each memory size, of which the median counts
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u64).range(1..=99))]
    pub rounds: u64,
    /// Duration of each measurement, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 0.6, value_parser = seconds)]
    pub seconds: f64,
    #[command(flatten)]
    pub common: FigureArguments,
}

/// `heddle bench compute-pool`.
#[derive(Args, Debug, Clone)]
pub struct ComputePoolArguments {
    /// Pairs of windows, with one and with three compute nodes; medians count
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=99))]
    pub pairs: u64,
    /// Duration of each window, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 8.0, value_parser = seconds)]
    pub seconds: f64,
    /// Clients, each with one transaction in flight
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub clients: u64,
    /// The quota of each compute node, in percent of one processor
    #[arg(long, value_name = "PERCENT", default_value_t = 30, value_parser = clap::value_parser!(u32).range(i64::from(PERCENT_MIN)..=10_000))]
    pub cpu_percent: u32,
    /// Blocks of each round of invalidations
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub blocks: u64,
    #[command(flatten)]
    pub common: FigureArguments,
}

/// `heddle bench contention`.
#[derive(Args, Debug, Clone)]
pub struct ContentionArguments {
    /// Pairs of windows of each load, without the options and with them; medians count
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=99))]
    pub pairs: u64,
    /// Duration of each window, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 6.0, value_parser = seconds)]
    pub seconds: f64,
    /// Transactions that are offered, a second
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub rate: u64,
    /// Records, of 100 bytes each
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(100..=1_000_000))]
    pub records: u64,
    /// Clients of SmallBank, each with one transaction in flight
    #[arg(long, value_name = "N", default_value_t = 400, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub clients: u64,
    #[command(flatten)]
    pub common: FigureArguments,
}

/// `heddle bench elastic`.
#[derive(Args, Debug, Clone)]
pub struct ElasticArguments {
    /// Rises and falls of the load; medians count
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=99))]
    pub rounds: u64,
    /// The largest quota of a compute node, in percent of one processor; the least is half of it
    #[arg(long, value_name = "PERCENT", default_value_t = 30, value_parser = clap::value_parser!(u32).range(20..=6_400))]
    pub cpu_percent: u32,
    /// How long the load is low before it rises, and again after it has fallen, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = seconds)]
    pub calm: f64,
    /// How long the load is high, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 14.0, value_parser = seconds)]
    pub high: f64,
    /// The epochs of one clustering: how much a transaction computes
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=2_000))]
    pub epochs: u64,
    #[command(flatten)]
    pub common: FigureArguments,
}

impl ElasticArguments {
    /// What is measured of memory nodes that are lost.
    pub fn memory_lost(&self) -> MemoryLostArguments {
        MemoryLostArguments { output: self.common.output.clone(), ..MemoryLostArguments::default() }
    }
}

/// Peers with a limited processor, behind a link to remote memory.
#[derive(Args, Debug, Clone)]
pub struct LimitedPeerArguments {
    /// The quota of each peer's compute process, in percent of one processor
    #[arg(long, value_name = "PERCENT", default_value_t = 20, value_parser = clap::value_parser!(u32).range(10..=6_400))]
    pub cpu_percent: u32,
    /// Latency of the link to remote memory, in microseconds
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    pub link_latency_us: u64,
}

/// Figures on networks under YCSB and SmallBank.
#[derive(Args, Debug, Clone)]
pub struct Fig7NetworkArguments {
    /// Divides the paper's 400,000 records of 10 KB, 2,000,000 customers, and all sizes of memory
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=4_000))]
    pub scale: u64,
    /// Clients of each network [default: as many as give the highest throughput, for each load]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub clients: Option<u64>,
    /// Rounds, in each of which every network is measured once; means count
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=99))]
    pub rounds: u64,
    /// Duration of each measurement, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 8.0, value_parser = seconds)]
    pub seconds: f64,
    #[command(flatten)]
    pub peers: LimitedPeerArguments,
    #[command(flatten)]
    pub common: FigureArguments,
}

impl Fig7NetworkArguments {
    /// K-means with the same rounds, and otherwise with the defaults of figure 7 (d).
    pub fn kmeans(&self) -> KMeansNetworkArguments {
        KMeansNetworkArguments {
            epochs: 100,
            clients: 48,
            rounds: self.rounds,
            seconds: self.seconds,
            link_latency_us: self.peers.link_latency_us,
            common: self.common.clone(),
        }
    }
}

/// `heddle bench flexchain-fig7`.
#[derive(Args, Debug, Clone)]
pub struct Fig7Arguments {
    #[command(flatten)]
    pub networks: Fig7NetworkArguments,
    /// Records of YCSB in the parts network, state and memtable, 10 KB each
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(500..=10_000_000))]
    pub records: u64,
    /// Customers of SmallBank in the same parts, with two accounts of 100 bytes each
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(500..=10_000_000))]
    pub customers: u64,
    /// Pairs of runs of each load in the same parts, of which the median counts
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=99))]
    pub pairs: u64,
    /// Duration of each run on the state alone, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    pub state_seconds: f64,
    /// Latency of a verb on the state alone, in microseconds; runs without it are measured too
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub latency_us: u64,
    /// Organisations of the networks of the part network, each with a peer and a gateway
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub orgs: u8,
    /// Measure only one part
    #[arg(long, value_enum, value_name = "PART")]
    pub only: Option<Fig7Part>,
}

/// A part of figure 7.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fig7Part {
    /// YCSB, with memory for all data
    A,
    /// SmallBank
    B,
    /// YCSB, with data twice the local memory
    C,
    /// K-means
    D,
    /// Processor time of networks in one process
    Network,
    /// The state alone
    State,
    /// The state alone under write-heavy loads, with a memtable as large as the data
    Memtable,
}

impl Fig7Part {
    /// Whether the part runs in one process, as the whole figure once did.
    pub fn is_former(self) -> bool {
        matches!(self, Fig7Part::Network | Fig7Part::State | Fig7Part::Memtable)
    }
}

/// `heddle bench flexchain-fig8a`.
#[derive(Args, Debug, Clone)]
pub struct Fig8aArguments {
    #[command(flatten)]
    pub networks: Fig8aNetworkArguments,
    /// Size of the data on the state alone, in MiB of values
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(8..=65_536))]
    pub data_mib: u64,
    /// Sizes of the local caches, in percent of the data [default: 1.25,12.5,50; of --only state: seven sizes]
    #[arg(long, value_name = "PERCENT,…", value_delimiter = ',', value_parser = percent)]
    pub cache_percent: Vec<f64>,
    /// Sizes of remote memory on the state alone, in percent of the data; storage serves the rest
    #[arg(long, value_name = "PERCENT,…", value_delimiter = ',', default_value = "200,50", value_parser = percent)]
    pub memory_percent: Vec<f64>,
    /// Exponents of Zipf's law on the state alone; 0 is uniform
    #[arg(long, value_name = "EXPONENT,…", value_delimiter = ',', default_value = "0,0.6,0.99,1.2,2", value_parser = skew)]
    pub skew: Vec<f64>,
    /// Number of transactions that are counted for each combination on the state alone
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(200..=100_000_000))]
    pub transactions: u64,
    /// Measure only one part
    #[arg(long, value_enum, value_name = "PART")]
    pub only: Option<Fig8aPart>,
}

/// Figure 8 (a) on networks.
#[derive(Args, Debug, Clone)]
pub struct Fig8aNetworkArguments {
    /// Divides the paper's 400,000 records of 10 KB, and the data of the other loads
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..=4_000))]
    pub scale: u64,
    /// Clients [default: as many as give the highest throughput with all data in memory]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub clients: Option<u64>,
    /// Runs of each setting; means count
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=99))]
    pub rounds: u64,
    /// Duration of each run, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0, value_parser = seconds)]
    pub seconds: f64,
    #[command(flatten)]
    pub peers: LimitedPeerArguments,
    #[command(flatten)]
    pub common: FigureArguments,
}

/// A part of figure 8 (a).
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fig8aPart {
    /// Networks under YCSB-A
    Ycsb,
    /// Networks under SmallBank
    Smallbank,
    /// Networks under K-means
    Kmeans,
    /// The sources that answer reads, on the state alone
    State,
}

/// `heddle bench flexchain-fig8b`.
#[derive(Args, Debug, Clone)]
pub struct Fig8bArguments {
    /// Size of the data, in MiB of values
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(8..=65_536))]
    pub data_mib: u64,
    /// CPU limits of the memory node, in percent of one core; it also runs without a limit
    #[arg(long, alias = "processor-percent", value_name = "PERCENT,…", value_delimiter = ',', default_value = "10,25,50,100",
          value_parser = clap::value_parser!(u32).range(i64::from(PERCENT_MIN)..=10_000))]
    pub cpu_percent: Vec<u32>,
    /// How the processor is limited
    #[arg(long, value_enum, value_name = "HOW", default_value = "auto")]
    pub limit: CpuLimit,
    /// Rounds over all shares; the median of their ratios counts
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=99))]
    pub rounds: u64,
    /// Duration of each run, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 0.25, value_parser = seconds)]
    pub seconds: f64,
    #[command(flatten)]
    pub common: FigureArguments,
}

/// How a processor is limited.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum CpuLimit {
    /// By a cgroup if one can be made, otherwise by pauses
    Auto,
    /// By a cgroup (version 2 or 1) with a quota; fails if none can be made
    Cgroup,
    /// By signals that stop and continue the process; needs no privileges
    Pauses,
}

impl CpuLimit {
    pub fn kind(self) -> LimiterKind {
        match self {
            CpuLimit::Auto => LimiterKind::Any,
            CpuLimit::Cgroup => LimiterKind::Cgroup,
            CpuLimit::Pauses => LimiterKind::Pauses,
        }
    }
}

/// A memory node for figure 8 (b), as a process of this program.
#[derive(Args, Debug, Clone)]
pub struct MemoryProcessArguments {
    /// The form of the memory node
    #[arg(value_enum)]
    pub form: MemoryProcessMode,
    /// Its socket
    pub socket: PathBuf,
    /// Bytes that it may give
    pub bytes: u64,
    /// Bytes of a section
    pub section_bytes: u64,
}

/// The form of a memory node.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryProcessMode {
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
