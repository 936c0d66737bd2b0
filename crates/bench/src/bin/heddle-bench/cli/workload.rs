//! `heddle bench smallbank`, `ycsb` and `kmeans`: workloads on a network.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use heddle_cli::policy::PolicyChoice;
use measurement::driver::CLIENTS_MAX;
use measurement::workload::ycsb::YcsbMix;
use measurement::workload::{KeyChoice, ZIPF_EXPONENTS};

use super::seconds::{seconds, seconds_or_none};

#[derive(Args, Debug, Clone)]
pub struct SmallBankArguments {
    /// Number of account owners
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(2..=100_000_000))]
    pub accounts: u64,
    /// Percentage of transactions that write; the others read a balance
    #[arg(long, value_name = "PERCENT", default_value_t = 95, value_parser = clap::value_parser!(u64).range(0..=100))]
    pub writes: u64,
    #[command(flatten)]
    pub keys: KeyArguments,
    /// Bytes of each account's record
    #[arg(long, value_name = "BYTES", default_value_t = 8, value_parser = clap::value_parser!(u64).range(8..=65_536))]
    pub record_bytes: u64,
    /// Measure the contract as a chaincode in this language too, in turns with the native one
    #[arg(long, value_enum, value_name = "LANGUAGE", help_heading = "Run",
          conflicts_with_all = ["connect", "monolithic", "isolate", "keep", "before", "timer", "library"])]
    pub chaincode: Option<ChaincodeLanguage>,
    #[command(flatten)]
    pub run: BenchRunArguments,
}

/// The language of a benchmark's chaincode.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChaincodeLanguage {
    /// Go, built by the `go` of the PATH
    Go,
}

#[derive(Args, Debug, Clone)]
pub struct YcsbArguments {
    /// Number of records
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub records: u64,
    /// Bytes of each value
    #[arg(long, value_name = "BYTES", default_value_t = 1_024, value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    pub value_bytes: u64,
    /// A letter from a to f, or parts that add up to 100: read, update, rmw, scan, insert
    #[arg(long, value_name = "MIX", default_value = "a")]
    pub mix: YcsbMix,
    #[command(flatten)]
    pub keys: KeyArguments,
    #[command(flatten)]
    pub run: BenchRunArguments,
}

#[derive(Args, Debug, Clone)]
pub struct KMeansArguments {
    /// Number of profiles
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub profiles: u64,
    /// Profiles that one clustering reads
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub points: u64,
    /// Clusters
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=256))]
    pub k: u64,
    /// Maximum of epochs per clustering
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub epochs: u64,
    /// Coordinates of a profile
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub dimensions: u64,
    /// A clustering ends when its clusters move less than this
    #[arg(long, value_name = "DISTANCE", default_value_t = 0.01)]
    pub threshold: f64,
    /// Percentage of transactions that update a profile
    #[arg(long, value_name = "PERCENT", default_value_t = 5, value_parser = clap::value_parser!(u64).range(0..=100))]
    pub updates: u64,
    #[command(flatten)]
    pub keys: KeyArguments,
    #[command(flatten)]
    pub run: BenchRunArguments,
}

/// How keys are chosen.
#[derive(Args, Debug, Clone)]
pub struct KeyArguments {
    /// Choose keys by Zipf's law with this exponent, 0.01 to 4; otherwise uniformly
    #[arg(long, value_name = "EXPONENT", value_parser = zipf_exponent)]
    pub zipf: Option<f64>,
}

impl KeyArguments {
    pub fn choice(&self) -> KeyChoice {
        self.zipf.map_or(KeyChoice::Uniform, KeyChoice::Zipf)
    }
}

fn zipf_exponent(text: &str) -> Result<f64, String> {
    let exponent: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    let range = ZIPF_EXPONENTS;
    if range.contains(&exponent) {
        return Ok(exponent);
    }
    Err(format!("not from {} to {}", range.start(), range.end()))
}

/// Options that all workloads share.
#[derive(Args, Debug, Clone)]
pub struct BenchRunArguments {
    /// How long to measure, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 20.0, value_parser = seconds, help_heading = "Run")]
    pub seconds: f64,
    /// How long to run before measuring, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0, value_parser = seconds_or_none, help_heading = "Run")]
    pub warm_up: f64,
    /// Clients, each with one transaction in flight
    #[arg(long, value_name = "N", default_value_t = 400, help_heading = "Run",
          value_parser = clap::value_parser!(u64).range(1..=CLIENTS_MAX as u64))]
    pub clients: u64,
    /// Connections that the clients share, spread over all gateways [default: one per gateway]
    #[arg(long, value_name = "N", help_heading = "Run", value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub connections: Option<u64>,
    /// How clients learn of a commit
    #[arg(long, value_enum, value_name = "HOW", default_value = "status", help_heading = "Run")]
    pub wait: WaitFor,
    /// Determines what each client does
    #[arg(long, value_name = "NUMBER", default_value_t = 1, help_heading = "Run")]
    pub seed: u64,
    /// Number of organisations, 1 to 16
    #[arg(long, value_name = "N", default_value_t = 3, help_heading = "Network", conflicts_with = "connect",
          value_parser = clap::value_parser!(u8).range(1..=16))]
    pub orgs: u8,
    /// Who must endorse a transaction
    #[arg(
        long,
        value_enum,
        value_name = "WHO",
        default_value = "any",
        help_heading = "Network",
        conflicts_with = "connect"
    )]
    pub policy: PolicyChoice,
    /// Settings of the network, as for `heddle up`
    #[arg(long, value_name = "FILE", help_heading = "Network", conflicts_with = "connect")]
    pub config: Option<PathBuf>,
    /// Run every role of the network as a separate process; their processor times are summed
    #[arg(long, help_heading = "Network", conflicts_with = "connect")]
    pub isolate: bool,
    /// Keep each peer's state and blocks in its own process
    #[arg(long, help_heading = "Network", conflicts_with = "connect")]
    pub monolithic: bool,
    /// Number of pairs with the monolithic form, --before (20), --timer (3), --library (5) or --chaincode (7)
    #[arg(long, value_name = "N", help_heading = "Run", conflicts_with_all = ["connect", "monolithic", "keep"],
          value_parser = clap::value_parser!(u64).range(1..=99))]
    pub pairs: Option<u64>,
    /// Measure the same network of an older heddle in alternation, with this program's clients
    #[arg(long, value_name = "PROGRAM", help_heading = "Run", conflicts_with_all = ["connect", "monolithic", "keep"])]
    pub before: Option<PathBuf>,
    /// Measure the same network in alternation with ordering.cut = "limits": blocks cut at the channel's limits
    #[arg(long, help_heading = "Run", conflicts_with_all = ["connect", "monolithic", "keep", "before"])]
    pub timer: bool,
    /// Measure the same network in alternation with crypto.verify = "library": signatures verified by the library
    #[arg(long, help_heading = "Run", conflicts_with_all = ["connect", "monolithic", "keep", "before", "timer"])]
    pub library: bool,
    /// Run the network without TLS
    #[arg(long, help_heading = "Network", conflicts_with = "connect")]
    pub no_tls: bool,
    /// Measure the running network of this directory instead
    #[arg(long, value_name = "DIR", help_heading = "Network")]
    pub connect: Option<PathBuf>,
    /// Do not load data: it is there already
    #[arg(long, help_heading = "Network", requires = "connect")]
    pub no_load: bool,
    /// Keep the temporary network's directory and print its path
    #[arg(long, help_heading = "Network", conflicts_with = "connect")]
    pub keep: bool,
    /// Write the result as JSON
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub json: Option<PathBuf>,
    /// Draw throughput and latency as SVG
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub plot: Option<PathBuf>,
}

impl BenchRunArguments {
    /// A window of this many seconds on a network that the benchmark has started by itself, after half a second without
    /// counting, or less if the window is shorter.
    pub fn window(clients: u64, seconds: f64) -> BenchRunArguments {
        BenchRunArguments {
            seconds,
            warm_up: seconds.min(0.5),
            clients,
            connections: None,
            wait: WaitFor::Status,
            seed: 1,
            orgs: 1,
            policy: PolicyChoice::Any,
            config: None,
            isolate: false,
            monolithic: false,
            pairs: None,
            before: None,
            timer: false,
            library: false,
            no_tls: false,
            connect: None,
            no_load: false,
            keep: false,
            json: None,
            plot: None,
        }
    }
}

/// How clients learn of a commit.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitFor {
    /// They ask their gateway for the transaction's commit status
    Status,
    /// They follow the block events of their gateway's peer
    Events,
}
