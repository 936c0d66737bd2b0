//! `heddle contract`.

use clap::{Args, Subcommand};

use super::DirectoryArguments;

#[derive(Subcommand, Debug)]
pub enum ContractCommand {
    Define(ContractDefineArguments),
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
