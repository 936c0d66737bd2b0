//! `heddle bench sift-…`: figures of Sift.

use bench::flexchain::limiter::{LimiterKind, PERCENT_MIN};
use clap::Args;

use super::figure::FigureArguments;
use super::flexchain::CpuLimit;
use super::seconds::seconds;

/// `heddle bench sift-fig5` and `sift-fig6`.
#[derive(Args, Debug, Clone)]
pub struct SiftArguments {
    /// Duration of each measurement, in seconds
    #[arg(long, value_name = "N", default_value = "1", value_parser = seconds)]
    pub seconds: f64,
    /// Number of measurements, of which the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=99))]
    pub rounds: u64,
    /// Clients, each with one operation in flight
    #[arg(long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub clients: u64,
    /// Keys
    #[arg(long, value_name = "N", default_value = "100000", value_parser = clap::value_parser!(u64).range(100..=1 << 30))]
    pub keys: u64,
    /// Bytes of a value
    #[arg(long, value_name = "N", default_value = "992", value_parser = clap::value_parser!(u64).range(1..=1 << 16))]
    pub value_bytes: u64,
    #[command(flatten)]
    pub common: FigureArguments,
}

/// A store and its clients.
#[derive(Args, Debug, Clone)]
pub struct SiftStoreArguments {
    /// Clients, each with one operation in flight
    #[arg(long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub clients: u64,
    /// Bytes of a value
    #[arg(long, value_name = "N", default_value = "992", value_parser = clap::value_parser!(u64).range(1..=1 << 16))]
    pub value_bytes: u64,
    /// Size of the coordinator's cache, in percent of the keys
    #[arg(long, value_name = "PERCENT", default_value = "50", value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub cache_percent: u64,
}

/// `heddle bench sift-fig7`, and the figures computed from it: `sift-table2`, `sift-fig9` and `sift-fig10`.
#[derive(Args, Debug, Clone)]
pub struct SiftCpuArguments {
    /// CPU limits, in percent of one core
    #[arg(long, alias = "processor-percent", value_name = "PERCENT,…", value_delimiter = ',', default_value = "25,50,75,100",
          value_parser = clap::value_parser!(u32).range(i64::from(PERCENT_MIN)..=100))]
    pub cpu_percent: Vec<u32>,
    /// How processes are limited
    #[arg(long, value_enum, value_name = "HOW", default_value = "auto")]
    pub limit: CpuLimit,
    /// Duration of each measurement, in seconds
    #[arg(long, value_name = "N", default_value = "2", value_parser = seconds)]
    pub seconds: f64,
    /// Number of measurements, of which the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=99))]
    pub rounds: u64,
    /// Keys
    #[arg(long, value_name = "N", default_value = "100000", value_parser = clap::value_parser!(u64).range(100..=1 << 30))]
    pub keys: u64,
    #[command(flatten)]
    pub store: SiftStoreArguments,
    #[command(flatten)]
    pub common: FigureArguments,
}

impl SiftCpuArguments {
    pub fn limit(&self) -> LimiterKind {
        self.limit.kind()
    }
}

/// `heddle bench sift-fig8`.
#[derive(Args, Debug, Clone)]
pub struct SiftBackupsArguments {
    /// Groups that share the pool
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "10,100,500,1000,2000,3000",
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub groups: Vec<u64>,
    /// The largest pool
    #[arg(long, value_name = "N", default_value = "30", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub backups: u64,
    /// Machines of the cluster
    #[arg(long, value_name = "N", default_value = "12500", value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    pub machines: u64,
    /// Simulated days
    #[arg(long, value_name = "N", default_value = "29", value_parser = clap::value_parser!(u64).range(1..=3_650))]
    pub days: u64,
    /// Machines that fail in that time
    #[arg(long, value_name = "N", default_value = "9000", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub failures: u64,
    /// Machines per rack
    #[arg(long, value_name = "N", default_value = "40", value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub rack: u64,
    /// Seconds until another machine is provisioned
    #[arg(long, value_name = "N", default_value = "100", value_parser = seconds)]
    pub provision_seconds: f64,
    /// Repetitions, of which the mean counts
    #[arg(long, value_name = "N", default_value = "50", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub repeats: u64,
    #[command(flatten)]
    pub common: FigureArguments,
}

/// `heddle bench sift-fig11`.
#[derive(Args, Debug, Clone)]
pub struct MemoryLossArguments {
    /// Keys
    #[arg(long, value_name = "N", default_value = "1000000", value_parser = clap::value_parser!(u64).range(100..=1 << 30))]
    pub keys: u64,
    /// Duration in seconds of the measurement before the kill, and of the pauses before it and after the return
    #[arg(long, value_name = "N", default_value = "3", value_parser = seconds)]
    pub seconds: f64,
    /// Copy rate to the returning memory node, in MiB per second
    #[arg(long, value_name = "MIB", default_value = "128", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub copy_mib: u64,
    /// Use erasure coding
    #[arg(long, alias = "coded")]
    pub erasure_coded: bool,
    #[command(flatten)]
    pub store: SiftStoreArguments,
    #[command(flatten)]
    pub common: FigureArguments,
}

/// `heddle bench sift-fig12`.
#[derive(Args, Debug, Clone)]
pub struct CoordinatorLossArguments {
    /// Keys
    #[arg(long, value_name = "N", default_value = "1000000", value_parser = clap::value_parser!(u64).range(100..=1 << 30))]
    pub keys: u64,
    /// Number of kills, of which the median counts
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u64).range(1..=99))]
    pub kills: u64,
    /// Duration in seconds of the measurement before each kill, and of the pauses before it and after the kill
    #[arg(long, value_name = "N", default_value = "3", value_parser = seconds)]
    pub seconds: f64,
    /// Size of the store's log in MiB; the log is full at the kill
    #[arg(long, value_name = "MIB", default_value = "16", value_parser = clap::value_parser!(u64).range(1..=1 << 12))]
    pub log_mib: u64,
    /// Lease of a coordinator after each heartbeat, in milliseconds
    #[arg(long, value_name = "MILLISECONDS", default_value = "40", value_parser = clap::value_parser!(u64).range(10..=10_000))]
    pub lease_ms: u64,
    #[command(flatten)]
    pub store: SiftStoreArguments,
    #[command(flatten)]
    pub common: FigureArguments,
}
