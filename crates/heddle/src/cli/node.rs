//! `heddle node` and `heddle plan`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::network::{DirectoryOrDefault, NetworkArguments};

const AFTER: &str = "\
The file holds all settings: the process's name, the addresses at which it answers, those that it calls, and
the tokens by which they authenticate. `heddle up --isolate` and `heddle plan` write it, to
DIR/nodes/NAME/node.toml. The process runs until SIGTERM or Ctrl-C, and then stops in order; `ready.json` beside
the file says when it can be used, and where its metrics are.";

#[derive(Subcommand, Debug)]
pub enum NodeCommand {
    /// Run a memory node: gives its memory to peers, or to the log of orderers, and is passive otherwise
    #[command(after_help = AFTER)]
    Memory(NodeRunArguments),
    /// Run a storage node: keeps blocks and tables of peers
    #[command(after_help = AFTER)]
    Storage(NodeRunArguments),
    /// Run a compute node: endorses and commits for one organisation
    #[command(after_help = AFTER)]
    Compute(NodeRunArguments),
    /// Run an orderer: puts transactions into blocks
    #[command(after_help = AFTER)]
    Orderer(NodeRunArguments),
    /// Run a gateway: the role that clients of one organisation talk to
    #[command(after_help = AFTER)]
    Gateway(NodeRunArguments),
}

#[derive(Args, Debug, Clone)]
pub struct NodeRunArguments {
    /// The process's configuration, node.toml
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// End when the process that started this one ends
    #[arg(long, hide = true)]
    pub bound: bool,
}

/// Make the files of a network whose processes run on several hosts
///
/// Makes the network in DIR if there is none, and a folder DIR/nodes/NAME for each of its processes. A folder is all
/// that a process needs: copy it to the process's host and run `heddle node ROLE --config NAME/node.toml` there. Each
/// plan makes new certificates and tokens, so take all folders from one plan.
#[derive(Args, Debug, Clone)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  heddle plan --host 10.0.0.1        every process on one host, over sockets
  heddle plan --host 10.0.0.1 --place memory-1=10.0.0.2 --place storage-org1=10.0.0.3

Processes are memory-1, memory-2, ..., storage-ORG, orderer, compute-ORG (and compute-ORG-2, ... with
--compute-nodes) and gateway-ORG, with ORG in lower case; with --ordering sift also log-1, log-2, ..., and
with sift or raft orderer-2, .... Within an organisation they use `tcp`, with mutual TLS unless pool.tls is
false; without it, keep that traffic on a network that only these hosts can reach. Between organisations, and
to orderers, they always use mutual TLS. docs/operations.md shows an example."
)]
pub struct PlanArguments {
    #[command(flatten)]
    pub directory: DirectoryOrDefault,
    /// The host of every process that --place does not name
    #[arg(long, value_name = "ADDRESS")]
    pub host: IpAddr,
    /// A process and its host; may be repeated
    #[arg(long, value_name = "NAME=ADDRESS", value_parser = place)]
    pub place: Vec<(String, IpAddr)>,
    #[command(flatten)]
    pub network: NetworkArguments,
}

fn place(text: &str) -> Result<(String, IpAddr), String> {
    let (name, address) = text.split_once('=').ok_or("write NAME=ADDRESS, such as memory-1=10.0.0.2")?;
    Ok((name.to_owned(), address.parse().map_err(|error| format!("{address:?}: {error}"))?))
}
