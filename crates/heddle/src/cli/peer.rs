//! `heddle peer`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::DirectoryArguments;

#[derive(Subcommand, Debug)]
pub enum PeerCommand {
    Memory(PeerMemoryArguments),
    Nodes(PeerNodesArguments),
    AddNode(PeerAddNodeArguments),
    RemoveNode(PeerRemoveNodeArguments),
    AddMemory(PeerAddMemoryArguments),
    Storage(PeerStorageArguments),
}

/// Add a compute node to a running peer
///
/// Makes DIR/nodes/compute-ORG-N. `heddle up --isolate` starts the node at once, and again at each later start; for other
/// networks the command that starts it is shown. The node joins by itself: it finds the primary, and gateways learn of it
/// from the primary. It runs proposals and verifies blocks, and never becomes the primary. Ended by SIGTERM it finishes
/// what it has and leaves; if it dies or stands still, the others go on without it.
///
/// With --host and --port the node is for another host: copy the folder there. It uses three ports, starting at --port:
/// for its organisation's gateways, for other organisations, and for metrics. `heddle plan` makes its files again, with
/// those of all other processes.
#[derive(Args, Debug, Clone)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  heddle peer add-node org1
  heddle peer add-node org1 --host 10.0.0.5 --port 7400"
)]
pub struct PeerAddNodeArguments {
    /// The organisation, such as org1
    #[arg(value_name = "ORG")]
    pub organization: String,
    #[command(flatten)]
    pub directory: DirectoryArguments,
    /// The host on which it will run
    #[arg(long, value_name = "ADDRESS", requires = "port")]
    pub host: Option<IpAddr>,
    /// The first of its ports
    #[arg(long, value_name = "PORT", requires = "host", value_parser = clap::value_parser!(u16).range(1024..=65_000))]
    pub port: Option<u16>,
}

/// Remove a compute node that was added to a peer
///
/// The node gets nothing new, answers what it has, and leaves without delaying a block; then its folder is removed. Its
/// supervisor ends it, or this command, if it runs on this machine. Nodes of the plan are as many as pool.compute_nodes
/// says.
#[derive(Args, Debug, Clone)]
#[command(verbatim_doc_comment, after_help = "Example:\n  heddle peer remove-node compute-org1-3")]
pub struct PeerRemoveNodeArguments {
    /// The node, such as compute-org1-3
    #[arg(value_name = "NODE")]
    pub node: String,
    #[command(flatten)]
    pub directory: DirectoryArguments,
}

/// Make the files of a memory node that joins running peers
///
/// Makes DIR/nodes/memory-N, and names the commands that start it and that have a peer use it. It offers as much memory as
/// the first memory node; memory.memory_bytes in its node.toml changes that.
///
/// With --host and --port the node is for another host: copy the folder there, and to the hosts of the compute nodes its
/// node.toml. It uses two ports, starting at --port: for compute nodes, and for metrics.
#[derive(Args, Debug, Clone)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  heddle peer add-memory
  heddle peer add-memory --host 10.0.0.5 --port 7400"
)]
pub struct PeerAddMemoryArguments {
    #[command(flatten)]
    pub directory: DirectoryArguments,
    /// The host on which it will run
    #[arg(long, value_name = "ADDRESS", requires = "port")]
    pub host: Option<IpAddr>,
    /// The first of its ports
    #[arg(long, value_name = "PORT", requires = "host", value_parser = clap::value_parser!(u16).range(1024..=65_000))]
    pub port: Option<u16>,
}

/// The peer that a command asks.
#[derive(Args, Debug, Clone)]
pub struct PeerTarget {
    /// The organisation, such as org1
    #[arg(value_name = "ORG", required_unless_present = "node")]
    pub organization: Option<String>,
    #[command(flatten)]
    pub directory: DirectoryArguments,
    /// The folder of one compute node, if it is not in DIR/nodes
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["organization", "dir"])]
    pub node: Option<PathBuf>,
}

/// Show the compute nodes of a running peer: which one is the primary, and each one's height
///
/// The primary commits and answers proposals; followers read its state and answer proposals too. When the primary
/// fails, a follower takes over under a higher epoch. A waiting node knows no primary for now.
#[derive(Args, Debug, Clone)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  heddle peer nodes org1
  heddle peer nodes org1 --json
  heddle peer nodes --node /srv/compute-org1     on the host of that process, after `heddle plan`"
)]
pub struct PeerNodesArguments {
    #[command(flatten)]
    pub asked: PeerTarget,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Show at which storage nodes a running peer has copies of its blocks and tables, or change that
///
/// A peer has several copies with pool.storage_copies = 2. The primary keeps that many: it leaves a lost copy out,
/// and builds it again once its node is back.
///
/// --add builds a copy at another storage node while blocks are committed, and waits for it. --drop leaves a copy
/// out; another one must be complete. --move does both, so that the copy of one node moves to another. A later
/// primary adds copies by itself only while fewer are complete than the configuration wants.
///
/// --force is for a peer that has no primary because a storage node is lost for good: the copy of NODE counts alone
/// from then on. Blocks and private data that only the lost node had are lost, although clients may have been told
/// that they were committed.
///
/// It asks the peer's compute node through a socket in its folder, which only the user who runs it can open.
#[derive(Args, Debug, Clone)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  heddle peer storage org1
  heddle peer storage org1 --add storage-3
  heddle peer storage org1 --move storage-2 storage-3"
)]
pub struct PeerStorageArguments {
    #[command(flatten)]
    pub asked: PeerTarget,
    /// Build a copy at this storage node
    #[arg(long, value_name = "NODE")]
    pub add: Option<String>,
    /// Leave the copy of this storage node out
    #[arg(long, value_name = "NODE", conflicts_with = "add")]
    pub drop: Option<String>,
    /// Build a copy at the second node, then leave that of the first one out
    #[arg(long = "move", num_args = 2, value_names = ["FROM", "TO"], conflicts_with_all = ["add", "drop"])]
    pub move_copy: Vec<String>,
    /// Have the copy of this storage node count alone: what only a lost node had is lost
    #[arg(long, value_name = "NODE", conflicts_with_all = ["add", "drop", "move_copy"])]
    pub force: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Show how much remote memory a running peer uses, change its budget, or change its memory nodes
///
/// The peer keeps running while memory is added or removed. A lower budget takes effect at once: the peer takes no more
/// memory, evicts the records in excess sections to storage, and returns these sections one by one; this command waits
/// for that. The new budget also applies at later starts, until pool.peer_bytes of the configuration is changed.
///
/// --vacate moves everything that the peer has on one memory node to its other ones, warm, while it serves; then that
/// node can be stopped. What finds no room there is emptied to storage. It lasts until --use.
///
/// --add has the peer use a memory node that it was not planned with, while it serves and from then on. FILE is the memory
/// node's node.toml, which has its address and the peer's token (`heddle peer add-memory`). --remove forgets it again, once
/// it has been vacated.
///
/// It asks the peer's compute node through a socket in its folder, which only the user who runs it can open.
#[derive(Args, Debug, Clone)]
#[command(
    verbatim_doc_comment,
    group = clap::ArgGroup::new("awaited").args(["set", "vacate"]),
    after_help = "\
Examples:
  heddle peer memory org1
  heddle peer memory org1 --set 512MiB
  heddle peer memory org2 --set 64MiB --no-wait
  heddle peer memory org1 --vacate tcp:127.0.0.1:7301
  heddle peer memory org1 --add net/nodes/memory-3/node.toml
  heddle peer memory --node /srv/compute-org1     on the host of that process, after `heddle plan`"
)]
pub struct PeerMemoryArguments {
    #[command(flatten)]
    pub asked: PeerTarget,
    /// The peer's new budget: bytes, or with KiB, MiB, GiB or TiB
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub set: Option<u64>,
    /// Move the peer's memory away from the memory node at this address, and take no more there
    #[arg(long, value_name = "ADDRESS", conflicts_with = "set")]
    pub vacate: Option<String>,
    /// Take memory from the memory node at this address again
    #[arg(long = "use", value_name = "ADDRESS", conflicts_with_all = ["set", "vacate"])]
    pub use_node: Option<String>,
    /// Take memory from the memory node with this node.toml, too
    #[arg(long, value_name = "FILE", conflicts_with_all = ["set", "vacate", "use_node"])]
    pub add: Option<PathBuf>,
    /// Forget the memory node at this address, which was added and has been vacated
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["set", "vacate", "use_node", "add"])]
    pub remove: Option<String>,
    /// Return at once, without waiting until sections are returned or moved
    #[arg(long, requires = "awaited")]
    pub no_wait: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const UNITS: [(&str, u32); 9] =
    [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40), ("K", 10), ("M", 20), ("G", 30), ("T", 40), ("", 0)];

/// Reads a number of bytes.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let wrong = || "write bytes, or a whole number with KiB, MiB, GiB or TiB, such as 512MiB or 512M".to_owned();
    let (number, shift) = UNITS
        .iter()
        .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)))
        .expect("every text ends with nothing");
    let number: u64 = number.trim_end().parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(|| "it exceeds the largest possible size".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bytes_or_have_a_binary_unit() {
        for (text, bytes) in
            [("1", 1), ("512MiB", 512 << 20), ("2 GiB", 2 << 30), ("1KiB", 1024), ("1TiB", 1 << 40), ("3M", 3 << 20)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "MiB", "-1", "1.5GiB", "512MB", "512mib", "0x10", "99999999999TiB", "1 2"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
