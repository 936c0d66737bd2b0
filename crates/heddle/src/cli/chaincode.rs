//! `heddle chaincode`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::DirectoryArguments;

#[derive(Subcommand, Debug)]
pub enum ChaincodeCommand {
    Run(ChaincodeRunArguments),
    New(ChaincodeNewArguments),
}

/// Build a chaincode, run it as a service, and define it on a running network
///
/// The language follows from what lies in SOURCE: go.mod is Go, package.json is Node.js (JavaScript or TypeScript), pom.xml
/// or build.gradle is Java. The command builds the chaincode with the language's own tools and starts it for each
/// organisation at a free port of this machine. It installs a package with each address at the peer of its organisation,
/// has every organisation's administrator approve it, and commits the definition: version 1.0, by the policy
/// /Channel/Application/Endorsement and without private collections, unless the options say otherwise.
///
/// If the ledger has a definition, --version, --policy and --collections change it: the organisations approve and
/// commit one with the next sequence. What is not named stays as it is, and if nothing changes the organisations only
/// approve the new package.
///
/// A chaincode may listen for peers, as a server of Fabric's shim does, or connect to its peer, as `shim.Start` in Go does.
/// The command gives it the settings for both, and adapts to what it does first. With --as it gets those for one role only.
///
/// Then it keeps the chaincode running, and starts it again when it ends, until Ctrl-C. The chaincode's output is this
/// command's. Start the command again after a change of the source: clients need not reconnect.
///
/// It needs the keys of every organisation's administrator, which `heddle up` has written to DIR.
#[derive(Args, Debug, Clone)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  heddle chaincode new go assets     a small chaincode, with a test
  heddle chaincode run assets --up   until Ctrl-C; clients call it as `assets`
  heddle chaincode run assets --version 2.0 --collections assets/collections_config.json
  heddle chaincode run assets --policy \"AND('Org1MSP.peer', 'Org2MSP.peer')\""
)]
pub struct ChaincodeRunArguments {
    /// The folder of the chaincode's source
    #[arg(value_name = "SOURCE")]
    pub source: PathBuf,
    /// The name by which clients call it; by default the folder's
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// The version in its definition; by default the ledger's
    #[arg(long, value_name = "VERSION")]
    pub version: Option<String>,
    /// Who must endorse: a signature policy, or the path of a policy of the channel; by default the ledger's
    #[arg(long, value_name = "POLICY")]
    pub policy: Option<String>,
    /// Its private collections, in a file for Fabric's `peer` command; by default the ledger's
    #[arg(long, value_name = "FILE")]
    pub collections: Option<PathBuf>,
    /// The first port of 127.0.0.1 at which it listens, one for each organisation; by default free ones
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    pub port: u16,
    /// Whether it listens for peers (server) or connects to its peer (client); by default found out at its start
    #[arg(long = "as", value_name = "ROLE")]
    pub role: Option<ChaincodeRole>,
    /// First start a network in DIR in the background, as `heddle up --detach` does, unless one runs there
    #[arg(long)]
    pub up: bool,
    #[command(flatten)]
    pub directory: DirectoryArguments,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChaincodeRole {
    Server,
    Client,
}

/// Write a small chaincode with a test
///
/// The chaincode keeps assets, with Fabric's contract API for the language. It is a start for your own; nothing in it is
/// particular to Heddle.
#[derive(Args, Debug, Clone)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Example:
  heddle chaincode new typescript assets
  heddle chaincode run assets --up

docs/first-contract.md goes on from here, with an event, a private collection and an upgrade."
)]
pub struct ChaincodeNewArguments {
    /// Its language
    #[arg(value_name = "LANGUAGE")]
    pub language: ChaincodeLanguage,
    /// Its name, and that of the new folder
    #[arg(value_name = "NAME")]
    pub name: String,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChaincodeLanguage {
    Go,
    Typescript,
    Java,
}
