//! `heddle bench kv` and `kv-etcd`: the replicated key-value store.

use std::path::PathBuf;

use clap::Args;

use super::figure::FigureOutput;
use super::seconds::seconds;

#[derive(Args, Debug, Clone)]
pub struct KvBenchArguments {
    /// Duration of each of three loads, in seconds
    #[arg(long, value_name = "N", default_value = "3", value_parser = seconds)]
    pub seconds: f64,
    /// Clients, each with one operation in flight
    #[arg(long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub clients: u64,
    /// Connections that the clients share
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u64).range(1..=512))]
    pub connections: u64,
    /// Keys
    #[arg(long, value_name = "N", default_value = "100000", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub keys: u64,
    /// Bytes of a value
    #[arg(long, value_name = "N", default_value = "992", value_parser = clap::value_parser!(u64).range(0..=1 << 20))]
    pub value_bytes: u64,
    /// Use a call for each operation instead of one stream per connection
    #[arg(long)]
    pub unary: bool,
    /// Measure the store of this directory
    #[arg(long, value_name = "DIR")]
    pub connect: Option<PathBuf>,
    #[command(flatten)]
    pub output: FigureOutput,
}

/// `heddle bench kv-etcd`.
#[derive(Args, Debug, Clone)]
pub struct KvEtcdArguments {
    /// Duration of each measurement, in seconds
    #[arg(long, value_name = "N", default_value = "3", value_parser = seconds)]
    pub seconds: f64,
    /// Number of measurements of each load, of which the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=99))]
    pub rounds: u64,
    /// Clients, each with one operation in flight
    #[arg(long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub clients: u64,
    /// Connections that the clients share
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u64).range(1..=512))]
    pub connections: u64,
    /// Keys
    #[arg(long, value_name = "N", default_value = "20000", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub keys: u64,
    /// Bytes of a value
    #[arg(long, value_name = "N", default_value = "992", value_parser = clap::value_parser!(u64).range(0..=1 << 20))]
    pub value_bytes: u64,
    /// The program etcd
    #[arg(long, value_name = "FILE", default_value = "etcd")]
    pub etcd: PathBuf,
    #[command(flatten)]
    pub output: FigureOutput,
}
