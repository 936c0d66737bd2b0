//! `heddle pool`.

use clap::{Args, Subcommand};

use super::DirectoryArguments;
use super::peer::size;

#[derive(Subcommand, Debug)]
pub enum PoolCommand {
    Top(PoolTopArguments),
    Events(PoolEventsArguments),
    Manage(PoolManageArguments),
}

/// Show every process with its load, live, and what the manager does
///
/// Of each compute node: its role, whether it is of the plan, was added or was launched by the manager, its quota, what
/// waits, how long ago it was heard, how busy its processors are, and its resident memory. Ctrl-C ends it. It needs no
/// manager: it asks the nodes itself.
#[derive(Args, Debug, Clone)]
#[command(verbatim_doc_comment)]
pub struct PoolTopArguments {
    #[command(flatten)]
    pub directory: DirectoryArguments,
    /// Print once and end, as happens where standard output is no terminal
    #[arg(long)]
    pub once: bool,
}

/// Show what the manager did: what it saw, what it did, and why
///
/// The newest 256 events are kept, also while no manager runs. Times are UTC.
#[derive(Args, Debug, Clone)]
#[command(verbatim_doc_comment)]
pub struct PoolEventsArguments {
    #[command(flatten)]
    pub directory: DirectoryArguments,
    /// Go on printing new events until Ctrl-C
    #[arg(long, short)]
    pub follow: bool,
    /// Print a JSON object a line
    #[arg(long)]
    pub json: bool,
}

/// Run the manager of a network of `heddle up --isolate`: scale its peers by their load
///
/// A busy peer gets larger quotas for its compute nodes first (where cgroups can be made), then more compute nodes; a
/// peer whose misses cost more than memory gets more of it. Idle peers give both back, slowly. If storage has copies, a
/// storage node without any is stopped, and started again when a copy is lost. `heddle up --elastic` runs a manager with
/// these defaults. Nothing depends on it: when it ends, everything keeps what it has, and the next manager
/// continues from the record in DIR/manager. One manager runs at a time.
///
/// Quotas need compute nodes that were started with one: pool.compute_cpu_percent, or `heddle up --elastic`.
#[derive(Args, Debug, Clone)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  heddle up --isolate --detach && heddle pool manage --nodes-max 8 --memory-max 2GiB
  heddle pool manage --mib-price 5       memory is cheap: grow earlier"
)]
pub struct PoolManageArguments {
    #[command(flatten)]
    pub directory: DirectoryArguments,
    #[command(flatten)]
    pub limits: PeerLimitArguments,
    /// From this utilisation on a peer is hot, in percent of its quotas [default: 75]
    #[arg(long, value_name = "PERCENT")]
    pub hot: Option<u32>,
    /// Up to this utilisation a peer is cold [default: 30]
    #[arg(long, value_name = "PERCENT")]
    pub cold: Option<u32>,
    /// How long a peer must be cold before it shrinks by a step, and the pause after a step [default: 10]
    #[arg(long, value_name = "SECONDS")]
    pub calm: Option<u64>,
    /// What a read costs that remote memory cannot answer, in microseconds [default: 200]
    #[arg(long, value_name = "MICROSECONDS")]
    pub miss_us: Option<u64>,
    /// The waiting, in microseconds each second, that a MiB must save to be worth holding [default: 20]
    #[arg(long, value_name = "MICROSECONDS")]
    pub mib_price: Option<u64>,
    /// How long a storage node must be without a copy before its process is stopped [default: 30]
    #[arg(long, value_name = "SECONDS")]
    pub storage_idle: Option<u64>,
    /// End when the process that started this one ends
    #[arg(long, hide = true)]
    pub bound: bool,
}

/// How far a manager scales each peer.
#[derive(Args, Debug, Clone, Default)]
pub struct PeerLimitArguments {
    /// The most compute nodes of a peer, those of the plan included [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub nodes_max: Option<u8>,
    /// The least quota of a compute node, in percent of one processor [default: 50]
    #[arg(long, value_name = "PERCENT")]
    pub quota_min: Option<u32>,
    /// The largest quota [default: 100]
    #[arg(long, value_name = "PERCENT")]
    pub quota_max: Option<u32>,
    /// The least memory of a peer [default: 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory_min: Option<u64>,
    /// The most memory of a peer [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory_max: Option<u64>,
}

impl PeerLimitArguments {
    /// The arguments of `heddle pool manage` for the same limits.
    pub fn command_line(&self) -> Vec<String> {
        let PeerLimitArguments { nodes_max, quota_min, quota_max, memory_min, memory_max } = self;
        let given = [
            ("--nodes-max", nodes_max.map(u64::from)),
            ("--quota-min", quota_min.map(u64::from)),
            ("--quota-max", quota_max.map(u64::from)),
            ("--memory-min", *memory_min),
            ("--memory-max", *memory_max),
        ];
        given.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", value?))).collect()
    }
}
