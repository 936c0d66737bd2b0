//! `heddle contract`.

use clap::{Args, Subcommand};

use super::DirectoryArguments;

#[derive(Subcommand, Debug)]
pub enum ContractCommand {
    Call(ContractCallArguments),
    Evaluate(ContractEvaluateArguments),
    Events(ContractEventsArguments),
    Define(ContractDefineArguments),
}

/// Submit a transaction to a contract of a running network, and wait until every peer has committed it
///
/// Prints what the contract answered, if anything, to standard output, and the block to standard error. The sample user of
/// an organisation signs the transaction, through the gateway of that organisation.
///
/// The exit code is 1 if the contract refuses, or if the transaction is in a block and not valid.
#[derive(Args, Debug, Clone)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  heddle contract call basic CreateAsset boat blue 5 Ada 300
  heddle contract call assets Sell car --transient price=900 --endorser org1 --endorser org2"
)]
pub struct ContractCallArguments {
    #[command(flatten)]
    pub call: CallArguments,
    /// An organisation that must endorse (repeatable); by default the gateway chooses by the policies
    #[arg(long = "endorser", value_name = "ORG")]
    pub endorsers: Vec<String>,
}

/// Ask a contract of a running network, without a transaction
///
/// Prints what the contract answered. The gateway's own organisation answers.
#[derive(Args, Debug, Clone)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  heddle contract evaluate basic ReadAsset boat
  heddle contract evaluate assets Price car --org org2"
)]
pub struct ContractEvaluateArguments {
    #[command(flatten)]
    pub call: CallArguments,
}

/// A call of a contract.
#[derive(Args, Debug, Clone)]
pub struct CallArguments {
    /// The contract
    #[arg(value_name = "CONTRACT")]
    pub name: String,
    /// The contract's function
    #[arg(value_name = "FUNCTION")]
    pub function: String,
    /// The function's arguments; `--` before one that begins with a hyphen and is no number
    #[arg(value_name = "ARGUMENT", allow_negative_numbers = true)]
    pub args: Vec<String>,
    /// Data that only the endorsers see, and that the ledger does not keep (repeatable)
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_and_value)]
    pub transient: Vec<(String, String)>,
    /// The organisation whose user signs; by default the first one
    #[arg(long, value_name = "ORG")]
    pub org: Option<String>,
    #[command(flatten)]
    pub directory: DirectoryArguments,
}

/// Print the events of a contract, from valid transactions only
///
/// Prints a line for each event: its block, its name and its payload.
#[derive(Args, Debug, Clone)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  heddle contract events assets                    every event from now on
  heddle contract events assets --from 0 --count 1 the first one"
)]
pub struct ContractEventsArguments {
    /// The contract
    #[arg(value_name = "CONTRACT")]
    pub name: String,
    /// Start from this block [default: events from now on]
    #[arg(long, value_name = "BLOCK")]
    pub from: Option<u64>,
    /// End after this many events
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// The organisation whose user asks; by default the first one
    #[arg(long, value_name = "ORG")]
    pub org: Option<String>,
    #[command(flatten)]
    pub directory: DirectoryArguments,
}

fn key_and_value(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
    pair.map(|(key, value)| (key.to_owned(), value.to_owned())).ok_or_else(|| "expected KEY=VALUE".to_owned())
}

/// Bring the definitions of a running network's contracts onto its ledger
///
/// A network starts with the contracts and endorsement policies of its configuration file. With this command the
/// organisations approve each of these contracts, and one of them commits its definition. From then on only the
/// ledger's definition counts, and any later change goes through Fabric's lifecycle. A contract that is on the ledger
/// already is left as it is, so the command may be interrupted and run again.
///
/// It needs the keys of every organisation's administrator, which `heddle up` has written to DIR.
#[derive(Args, Debug, Clone)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  heddle contract define             every contract of the configuration
  heddle contract define basic       this one"
)]
pub struct ContractDefineArguments {
    /// The contracts to define; by default all contracts of the configuration
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    #[command(flatten)]
    pub directory: DirectoryArguments,
}
