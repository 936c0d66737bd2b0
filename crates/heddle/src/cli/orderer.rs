//! `heddle orderer`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::DirectoryArguments;

#[derive(Subcommand, Debug)]
pub enum OrdererCommand {
    Members(OrdererMembersArguments),
    Add(OrdererAddArguments),
    Plan(OrdererPlanArguments),
    Remove(OrdererRemoveArguments),
}

/// The orderers that a command asks.
#[derive(Args, Debug, Clone)]
pub struct OrdererTarget {
    #[command(flatten)]
    pub directory: DirectoryArguments,
    /// The folder of one orderer on this host, if it is not in DIR/nodes
    #[arg(long, value_name = "FOLDER", conflicts_with = "dir")]
    pub node: Option<PathBuf>,
}

/// Show the orderers of a running network on Raft: the leader, the votes, and how far behind each orderer is
///
/// Only the leader knows how far behind others are; if it cannot be reached, another orderer reports the members it
/// knows.
#[derive(Args, Debug, Clone)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  heddle orderer members
  heddle orderer members --json
  heddle orderer members --node /srv/orderer-2     on the host of that process, after `heddle plan`"
)]
pub struct OrdererMembersArguments {
    #[command(flatten)]
    pub asked: OrdererTarget,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Add an orderer to a running network on Raft
///
/// In a network of `heddle up --isolate` this makes the orderer's files, has it started, and returns once it has a
/// vote. The new orderer first copies the log of the others, while ordering continues. If the command is interrupted,
/// run it again to continue. Running gateways and compute nodes notice the new orderer.
///
/// On several hosts, `heddle orderer plan` makes its folder. Once it runs on its host, add it on the leader's host,
/// with --node, --number and --address.
#[derive(Args, Debug, Clone)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  heddle orderer add
  heddle orderer add --node /srv/orderer-2 --number 4 --address tcp:10.0.0.4:7303"
)]
pub struct OrdererAddArguments {
    #[command(flatten)]
    pub asked: OrdererTarget,
    /// The number of the orderer to be added
    #[arg(long, value_name = "N", requires_all = ["node", "address"], value_parser = clap::value_parser!(u64).range(1..))]
    pub number: Option<u64>,
    /// The address at which it answers the other orderers
    #[arg(long, value_name = "ADDRESS", requires_all = ["node", "number"])]
    pub address: Option<String>,
    /// Give up waiting for its vote after this many seconds; it continues to learn
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub timeout: u64,
}

/// Make the files of a new orderer on another host, or remove a former orderer from the files
///
/// Makes DIR/nodes/orderer-N, with the tokens and authorities of the existing plan. Copy it to its host and start it;
/// it waits to be added. It uses five ports, starting at --port: for clients, blocks, submissions, other orderers,
/// metrics. The files of gateways and compute nodes in DIR/nodes then name it too: copy each node.toml again; running
/// processes notice the change. With --removed they no longer name the former orderer, and neither do later plans.
#[derive(Args, Debug, Clone)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  heddle orderer plan --host 10.0.0.4 --port 7300
  heddle orderer plan --removed orderer-2          after `heddle orderer remove orderer-2 --node ...`"
)]
pub struct OrdererPlanArguments {
    #[command(flatten)]
    pub directory: DirectoryArguments,
    /// The host on which it will run
    #[arg(long, value_name = "ADDRESS", requires = "port", required_unless_present = "removed")]
    pub host: Option<IpAddr>,
    /// The first of its ports
    #[arg(long, value_name = "PORT", requires = "host", value_parser = clap::value_parser!(u16).range(1024..=65_000))]
    pub port: Option<u16>,
    /// An orderer that is no longer a member
    #[arg(long, value_name = "NAME", value_parser = number, conflicts_with = "host")]
    pub removed: Option<u64>,
}

/// Remove an orderer from a running network on Raft, whether it runs or not
///
/// A leader first hands over leadership, which takes about a second. The removal is rejected if too few of the
/// remaining orderers answer to continue, and for the last orderer. A network of `heddle up --isolate` then ends its
/// process; otherwise end it yourself. Its data stays, and its number is not used again.
#[derive(Args, Debug, Clone)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  heddle orderer remove orderer-4
  heddle orderer remove orderer --node /srv/orderer-2     on the host of the orderer that leads"
)]
pub struct OrdererRemoveArguments {
    /// Its name: orderer, orderer-2, ...
    #[arg(value_name = "NAME", value_parser = number)]
    pub orderer: u64,
    #[command(flatten)]
    pub asked: OrdererTarget,
}

/// Reads an orderer's name.
fn number(text: &str) -> Result<u64, String> {
    let wrong = || "write orderer, orderer-2, orderer-3 and so on".to_owned();
    if text == "orderer" {
        return Ok(1);
    }
    let number = text.strip_prefix("orderer-").and_then(|number| number.parse().ok());
    number.filter(|number| *number > 1).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orderers_have_names_with_numbers() {
        for (text, expected) in [("orderer", 1), ("orderer-2", 2), ("orderer-10", 10)] {
            assert_eq!(number(text), Ok(expected));
        }
        for text in ["", "orderer-", "orderer-1", "orderer-0", "orderer-x", "2", "peer"] {
            assert!(number(text).is_err(), "{text}");
        }
    }
}
