//! `heddle orderer`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Directory;

#[derive(Subcommand, Debug)]
pub enum Orderer {
    Members(Members),
    Add(Add),
    Plan(Plan),
    Remove(Remove),
}

/// Which orderers are asked.
#[derive(Args, Debug, Clone)]
pub struct Asked {
    #[command(flatten)]
    pub directory: Directory,
    /// The folder of one orderer on this host, where they are not in DIR/nodes
    #[arg(long, value_name = "FOLDER", conflicts_with = "dir")]
    pub node: Option<PathBuf>,
}

/// Show the orderers of a running network on Raft: who leads, who has a vote, how far each is behind
///
/// Only the leader knows how far others are; where it cannot be asked, another one says whom it knows.
#[derive(Args, Debug, Clone)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  heddle orderer members
  heddle orderer members --json
  heddle orderer members --node /srv/orderer-2     on the host of that process, after `heddle plan`"
)]
pub struct Members {
    #[command(flatten)]
    pub asked: Asked,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Add an orderer to a running network on Raft
///
/// In a network of `heddle up --isolate` this makes its files, has it started, and returns once it has a vote. It first
/// learns what the others have; nobody waits for it meanwhile. When this was interrupted, the same command goes on with
/// it. Gateways and compute nodes that run learn of it.
///
/// On several hosts, `heddle orderer plan` makes its folder. Once it runs on its host, add it on the host of the orderer
/// that leads, with --node, --number and --address.
#[derive(Args, Debug, Clone)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  heddle orderer add
  heddle orderer add --node /srv/orderer-2 --number 4 --address tcp:10.0.0.4:7303"
)]
pub struct Add {
    #[command(flatten)]
    pub asked: Asked,
    /// The number of the orderer to be added
    #[arg(long, value_name = "N", requires_all = ["node", "address"], value_parser = clap::value_parser!(u64).range(1..))]
    pub number: Option<u64>,
    /// Where it answers the other orderers
    #[arg(long, value_name = "ADDRESS", requires_all = ["node", "number"])]
    pub address: Option<String>,
    /// Give up waiting for its vote after so many seconds; it goes on learning
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub timeout: u64,
}

/// Make the files of one orderer more, to run on another host, or take one that was removed out of the files
///
/// Makes DIR/nodes/orderer-N, with the tokens and authorities of the plan that is there. Copy it to its host and start it;
/// it waits to be added. It takes five ports from --port on: for clients, blocks, submissions, other orderers, metrics.
/// The files of gateways and compute nodes in DIR/nodes name it too: copy each node.toml again, which a process that runs
/// notices. With --removed they name that one no more, nor do later plans.
#[derive(Args, Debug, Clone)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  heddle orderer plan --host 10.0.0.4 --port 7300
  heddle orderer plan --removed orderer-2          after `heddle orderer remove orderer-2 --node ...`"
)]
pub struct Plan {
    #[command(flatten)]
    pub directory: Directory,
    /// The host that it is to run on
    #[arg(long, value_name = "ADDRESS", requires = "port", required_unless_present = "removed")]
    pub host: Option<IpAddr>,
    /// The first of its ports
    #[arg(long, value_name = "PORT", requires = "host", value_parser = clap::value_parser!(u16).range(1024..=65_000))]
    pub port: Option<u16>,
    /// One that is no member any more
    #[arg(long, value_name = "NAME", value_parser = number, conflicts_with = "host")]
    pub removed: Option<u64>,
}

/// Remove an orderer from a running network on Raft, whether it runs or not
///
/// One that leads hands over first, which takes about a second. It is refused when too few of those that are left answer
/// to go on, and for the last one. A network of `heddle up --isolate` ends its process then; elsewhere end it yourself. Its
/// data stays, and its number is not used again.
#[derive(Args, Debug, Clone)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  heddle orderer remove orderer-4
  heddle orderer remove orderer --node /srv/orderer-2     on the host of the orderer that leads"
)]
pub struct Remove {
    /// Its name: orderer, orderer-2, ...
    #[arg(value_name = "NAME", value_parser = number)]
    pub orderer: u64,
    #[command(flatten)]
    pub asked: Asked,
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
