//! `heddle up`, `down` and `status`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::Directory;

/// Start a network on this machine: organisations, their peers and gateways, and an orderer
///
/// The first start makes the network: certificates, keys, the channel and a connection profile for clients. Later starts
/// open what is there. Organisations share nothing but the blocks.
///
/// Each peer is made of compute nodes (one unless --compute-nodes says more), memory that memory nodes give it, and a
/// storage node. They run in this one process,
/// or with --isolate in a process each, which this one supervises: one that ends is started again. With --monolithic a peer
/// keeps everything itself. The data is the same in all forms; each start may choose.
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
  heddle up --isolate                a process for each role; kill any of them, it comes back
  heddle up --isolate --memory-nodes 4
  heddle up --isolate --ordering sift     three orderers on memory nodes: kill whichever leads
  heddle up --ordering raft               three orderers, each with a log of its own
  heddle up --isolate --compute-nodes 2   two compute nodes a peer: kill the primary, the other goes on

A network remembers what it was made with: number of organisations, policy, channel, batch limits and ordering cannot
change; everything else can, at each start."
)]
pub struct Up {
    #[command(flatten)]
    pub directory: DirectoryOrDefault,
    /// Number of organisations, 1 to 16, each with a peer and a gateway [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16))]
    pub orgs: Option<u8>,
    /// Who has to endorse a transaction [default: any]
    #[arg(long, value_enum, value_name = "WHO")]
    pub policy: Option<Policy>,
    /// The channel's name [default: mychannel]
    #[arg(long, value_name = "NAME")]
    pub channel: Option<String>,
    /// Run every role as a process of its own, with log and configuration in DIR/nodes/NAME
    #[arg(long)]
    pub isolate: bool,
    /// Keep each peer's state and blocks in its own process, without memory and storage nodes
    #[arg(long)]
    pub monolithic: bool,
    /// Number of memory nodes, 1 to 64 [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64), conflicts_with = "monolithic")]
    pub memory_nodes: Option<u8>,
    /// Number of compute nodes of each peer, 1 to 9: all answer proposals, one of them commits [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=9), conflicts_with = "monolithic")]
    pub compute_nodes: Option<u8>,
    /// What puts transactions in order [default: solo]
    #[arg(long, value_enum, value_name = "ENGINE")]
    pub ordering: Option<Ordering>,
    /// Number of orderers, 1 to 9, with --ordering sift or raft: F of 2F+1 may fail [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=9))]
    pub orderers: Option<u8>,
    /// Take settings from this file; `heddle config` prints one. Flags go before it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub ports: Ports,
    /// Serve without TLS: for experiments on one machine only
    #[arg(long)]
    pub no_tls: bool,
    /// Run in the background: return once the network is ready, log to DIR/heddle.log
    #[arg(long)]
    pub detach: bool,
    /// End when the process that started this one ends
    #[arg(long, hide = true)]
    pub bound: bool,
    /// Be a session of its own, as a detached network is
    #[arg(long, hide = true)]
    pub session: bool,
}

/// As [`Directory`], with a `Default`.
#[derive(Args, Debug, Clone)]
pub struct DirectoryOrDefault {
    /// The network's directory; made when it is not there
    #[arg(long = "dir", value_name = "DIR", default_value = super::DIRECTORY)]
    pub dir: PathBuf,
}

impl Default for DirectoryOrDefault {
    fn default() -> DirectoryOrDefault {
        DirectoryOrDefault { dir: super::DIRECTORY.into() }
    }
}

/// Where the network listens.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Ports")]
pub struct Ports {
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
    /// Take any free ports; what they are is printed and stands in the connection profile
    #[arg(long, conflicts_with_all = ["gateway_port", "orderer_port", "links_port", "metrics_port"])]
    pub any_ports: bool,
}

/// What puts transactions in order.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ordering {
    /// One orderer, with a log on its disk
    Solo,
    /// Several orderers, on passive memory nodes and their own disks
    Sift,
    /// Several orderers, each with a log of its own
    Raft,
}

impl Ordering {
    /// The engine in the configuration.
    pub fn engine(self) -> node::config::Engine {
        match self {
            Ordering::Solo => node::config::Engine::Solo,
            Ordering::Sift => node::config::Engine::Sift,
            Ordering::Raft => node::config::Engine::Raft,
        }
    }
}

/// Who has to endorse.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// One organisation, whichever it is
    Any,
    /// More than half of the organisations
    Majority,
    /// Every organisation
    All,
}

impl Policy {
    /// Its word in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Any => "any",
            Policy::Majority => "majority",
            Policy::All => "all",
        }
    }
}

/// Stop a network that runs in the background, or in another terminal
///
/// The network finishes what it has begun, makes everything durable and ends.
#[derive(Args, Debug, Clone)]
#[command(verbatim_doc_comment)]
pub struct Down {
    #[command(flatten)]
    pub directory: Directory,
    /// Give up after so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub timeout: u64,
}

/// Show what runs, how high each ledger is and how busy the network is
#[derive(Args, Debug, Clone)]
pub struct Status {
    #[command(flatten)]
    pub directory: Directory,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
