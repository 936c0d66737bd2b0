//! `heddle bench sift-…`: figures of Sift.

use bench::flexchain::limiter::{Kind, PERCENT_MIN};
use clap::Args;

use super::bench::seconds;
use super::flexchain::{Common, Limit};

/// `heddle bench sift-fig5` and `sift-fig6`.
#[derive(Args, Debug, Clone)]
pub struct Sift {
    /// Seconds that each load is measured
    #[arg(long, value_name = "N", default_value = "1", value_parser = seconds)]
    pub seconds: f64,
    /// Times that everything is measured, of which the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=99))]
    pub rounds: u64,
    /// Clients, each with one operation at a time
    #[arg(long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub clients: u64,
    /// Keys
    #[arg(long, value_name = "N", default_value = "100000", value_parser = clap::value_parser!(u64).range(100..=1 << 30))]
    pub keys: u64,
    /// Bytes of a value
    #[arg(long, value_name = "N", default_value = "992", value_parser = clap::value_parser!(u64).range(1..=1 << 16))]
    pub value_bytes: u64,
    #[command(flatten)]
    pub common: Common,
}

/// A store and its clients.
#[derive(Args, Debug, Clone)]
pub struct Store {
    /// Clients, each with one operation at a time
    #[arg(long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub clients: u64,
    /// Bytes of a value
    #[arg(long, value_name = "N", default_value = "992", value_parser = clap::value_parser!(u64).range(1..=1 << 16))]
    pub value_bytes: u64,
    /// Of a hundred keys, for how many the coordinator's cache has room
    #[arg(long, value_name = "PERCENT", default_value = "50", value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub cache_percent: u64,
}

/// `heddle bench sift-fig7`, and what is made of it: `sift-table2`, `sift-fig9` and `sift-fig10`.
#[derive(Args, Debug, Clone)]
pub struct Processors {
    /// Shares of a processor, in percent
    #[arg(long, value_name = "PERCENT,…", value_delimiter = ',', default_value = "25,50,75,100",
          value_parser = clap::value_parser!(u32).range(i64::from(PERCENT_MIN)..=100))]
    pub processor_percent: Vec<u32>,
    /// How processes are limited
    #[arg(long, value_enum, value_name = "HOW", default_value = "auto")]
    pub limit: Limit,
    /// Seconds of each measurement
    #[arg(long, value_name = "N", default_value = "2", value_parser = seconds)]
    pub seconds: f64,
    /// Times that everything is measured, of which the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=99))]
    pub rounds: u64,
    /// Keys
    #[arg(long, value_name = "N", default_value = "100000", value_parser = clap::value_parser!(u64).range(100..=1 << 30))]
    pub keys: u64,
    #[command(flatten)]
    pub store: Store,
    #[command(flatten)]
    pub common: Common,
}

impl Processors {
    pub fn limit(&self) -> Kind {
        self.limit.kind()
    }
}

/// `heddle bench sift-fig8`.
#[derive(Args, Debug, Clone)]
pub struct Backups {
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
    /// Days
    #[arg(long, value_name = "N", default_value = "29", value_parser = clap::value_parser!(u64).range(1..=3_650))]
    pub days: u64,
    /// Machines that fail in that time
    #[arg(long, value_name = "N", default_value = "9000", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub failures: u64,
    /// Machines of a rack
    #[arg(long, value_name = "N", default_value = "40", value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub rack: u64,
    /// Seconds until another machine is provisioned
    #[arg(long, value_name = "N", default_value = "100", value_parser = seconds)]
    pub provision_seconds: f64,
    /// Repetitions, of which the mean counts
    #[arg(long, value_name = "N", default_value = "50", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub repeats: u64,
    #[command(flatten)]
    pub common: Common,
}

/// `heddle bench sift-fig11`.
#[derive(Args, Debug, Clone)]
pub struct MemoryLoss {
    /// Keys
    #[arg(long, value_name = "N", default_value = "1000000", value_parser = clap::value_parser!(u64).range(100..=1 << 30))]
    pub keys: u64,
    /// Seconds before the kill that count, and that go by before them and after the return
    #[arg(long, value_name = "N", default_value = "3", value_parser = seconds)]
    pub seconds: f64,
    /// MiB a second that are copied to the memory node that comes back
    #[arg(long, value_name = "MIB", default_value = "128", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub copy_mib: u64,
    /// With coded blocks
    #[arg(long)]
    pub coded: bool,
    #[command(flatten)]
    pub store: Store,
    #[command(flatten)]
    pub common: Common,
}

/// `heddle bench sift-fig12`.
#[derive(Args, Debug, Clone)]
pub struct CoordinatorLoss {
    /// Keys
    #[arg(long, value_name = "N", default_value = "1000000", value_parser = clap::value_parser!(u64).range(100..=1 << 30))]
    pub keys: u64,
    /// Times that a coordinator is killed, of which the median counts
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u64).range(1..=99))]
    pub kills: u64,
    /// Seconds before each kill that count, and that go by before them and after it
    #[arg(long, value_name = "N", default_value = "3", value_parser = seconds)]
    pub seconds: f64,
    /// MiB of the store's log, which is full at the kill
    #[arg(long, value_name = "MIB", default_value = "16", value_parser = clap::value_parser!(u64).range(1..=1 << 12))]
    pub log_mib: u64,
    /// How long a coordinator may serve after a heartbeat, in milliseconds
    #[arg(long, value_name = "MILLISECONDS", default_value = "40", value_parser = clap::value_parser!(u64).range(10..=10_000))]
    pub lease_ms: u64,
    #[command(flatten)]
    pub store: Store,
    #[command(flatten)]
    pub common: Common,
}
