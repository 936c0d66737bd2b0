//! `heddle up`, `down` and `status`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
pub use heddle_cli::policy::PolicyChoice;

use super::DirectoryArguments;
use super::pool::PeerLimitArguments;

/// Start a network on this machine: organisations, their peers and gateways, and an orderer
///
/// The first start makes the network: certificates, keys, the channel and a connection profile for clients. Later
/// starts open the existing one. Organisations share nothing but the blocks.
///
/// Each peer consists of compute nodes (one unless --compute-nodes says otherwise), memory given by memory nodes, and a
/// storage node. They run in this one process, or with --isolate in a process each, which this one supervises: a
/// process that ends is restarted. With --monolithic a peer keeps everything in its own process. The data is the same
/// in all forms; each start may choose the form.
#[derive(Args, Debug, Clone, Default)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  heddle up                          three organisations, any one of them endorses
  heddle up --orgs 1                 the smallest network
  heddle up --policy majority        most organisations must endorse each transaction
  heddle up --dir ./other --any-ports   a second network beside the first
  heddle up --detach                 in the background; `heddle status` and `heddle down` find it
  heddle up --isolate                a process for each role; kill any of them, and it is restarted
  heddle up --elastic                a manager gives busy peers processors, nodes and memory
  heddle up --elastic --nodes-max 8  the same, with up to eight compute nodes a peer
  heddle up --isolate --memory-nodes 4
  heddle up --isolate --ordering sift     three orderers on memory nodes: kill the leader, ordering continues
  heddle up --ordering raft               three orderers, each with its own log
  heddle up --isolate --compute-nodes 2   two compute nodes per peer: kill the primary, the other takes over

The number of organisations, policy, channel, batch limits and ordering are fixed when the network is made;
everything else may change at each start."
)]
pub struct UpArguments {
    #[command(flatten)]
    pub directory: DirectoryOrDefault,
    /// Run every role as a separate process, with log and configuration in DIR/nodes/NAME
    #[arg(long)]
    pub isolate: bool,
    /// As --isolate, and scale each peer by its load: `heddle pool top` shows it
    #[arg(long)]
    pub elastic: bool,
    /// Keep each peer's state and blocks in its own process, without memory and storage nodes
    #[arg(long, conflicts_with_all = ["memory_nodes", "storage_nodes", "storage_copies", "compute_nodes", "elastic"])]
    pub monolithic: bool,
    #[command(flatten)]
    pub network: NetworkArguments,
    /// Serve without TLS: only for experiments on one machine
    #[arg(long)]
    pub no_tls: bool,
    /// Run in the background: return once the network is ready, log to DIR/heddle.log
    #[arg(long)]
    pub detach: bool,
    /// End when the process that started this one ends
    #[arg(long, hide = true)]
    pub bound: bool,
    /// Start a session of its own, as a detached network does
    #[arg(long, hide = true)]
    pub session: bool,
    #[command(flatten, next_help_heading = "Limits of each peer, with --elastic")]
    pub limits: PeerLimitArguments,
}

/// The settings of a network that its command line may override.
#[derive(Args, Debug, Clone, Default)]
pub struct NetworkArguments {
    /// Number of organisations, 1 to 16, each with a peer and a gateway [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16))]
    pub orgs: Option<u8>,
    /// Who must endorse a transaction [default: any]
    #[arg(long, value_enum, value_name = "WHO")]
    pub policy: Option<PolicyChoice>,
    /// The channel's name [default: mychannel]
    #[arg(long, value_name = "NAME")]
    pub channel: Option<String>,
    /// Number of memory nodes, 1 to 64 [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub memory_nodes: Option<u8>,
    /// Number of storage nodes, which the peers share [default: one for each organisation]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub storage_nodes: Option<u8>,
    /// Copies of each peer's blocks and tables, 1 or 2, on that many storage nodes [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=2))]
    pub storage_copies: Option<u8>,
    /// Number of compute nodes of each peer, 1 to 64: all answer proposals, one of them commits [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub compute_nodes: Option<u8>,
    /// How transactions are ordered [default: solo]
    #[arg(long, value_enum, value_name = "ENGINE")]
    pub ordering: Option<OrderingChoice>,
    /// Number of orderers, 1 to 9, with --ordering sift or raft: F of 2F+1 may fail [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=9))]
    pub orderers: Option<u8>,
    /// Read settings from this file; `heddle config` prints one. Flags override it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub ports: PortArguments,
}

/// As [`DirectoryArguments`], with a `Default`.
#[derive(Args, Debug, Clone)]
pub struct DirectoryOrDefault {
    /// The network's directory; created if it is missing
    #[arg(long = "dir", value_name = "DIR", default_value = super::DIRECTORY)]
    pub dir: PathBuf,
}

impl Default for DirectoryOrDefault {
    fn default() -> DirectoryOrDefault {
        DirectoryOrDefault { dir: super::DIRECTORY.into() }
    }
}

/// The network's listening addresses.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Ports")]
pub struct PortArguments {
    /// Address to listen on [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    pub address: Option<IpAddr>,
    /// Port of the first organisation's gateway; each further one is 1000 higher [default: 7051]
    #[arg(long, value_name = "PORT")]
    pub gateway_port: Option<u16>,
    /// Port of the orderer [default: 7050]
    #[arg(long, value_name = "PORT")]
    pub orderer_port: Option<u16>,
    /// First of the ports by which isolated processes of different organisations reach each other [default: 7100]
    #[arg(long, value_name = "PORT")]
    pub links_port: Option<u16>,
    /// Port of metrics and health [default: 9443]
    #[arg(long, value_name = "PORT")]
    pub metrics_port: Option<u16>,
    /// Take any free ports; they are printed and written to the connection profile
    #[arg(long, conflicts_with_all = ["gateway_port", "orderer_port", "links_port", "metrics_port"])]
    pub any_ports: bool,
}

/// How transactions are ordered.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderingChoice {
    /// One orderer, with a log on its disk
    Solo,
    /// Several orderers, on passive memory nodes and their own disks
    Sift,
    /// Several orderers, each with its own log
    Raft,
}

impl OrderingChoice {
    /// The engine in the configuration.
    pub fn engine(self) -> node::config::OrderingEngine {
        match self {
            OrderingChoice::Solo => node::config::OrderingEngine::Solo,
            OrderingChoice::Sift => node::config::OrderingEngine::Sift,
            OrderingChoice::Raft => node::config::OrderingEngine::Raft,
        }
    }
}

/// Stop a network that runs in the background, or in another terminal
///
/// The network finishes the work that it has begun, makes everything durable and ends.
#[derive(Args, Debug, Clone)]
#[command(verbatim_doc_comment)]
pub struct DownArguments {
    #[command(flatten)]
    pub directory: DirectoryArguments,
    /// Give up after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub timeout: u64,
}

/// Show what runs, each ledger's height, and the network's load
#[derive(Args, Debug, Clone)]
pub struct StatusArguments {
    #[command(flatten)]
    pub directory: DirectoryArguments,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
