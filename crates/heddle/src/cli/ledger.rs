//! `heddle ledger`.

use clap::{Args, Subcommand};

use super::DirectoryArguments;

#[derive(Subcommand, Debug)]
pub enum LedgerCommand {
    Verify(VerifyArguments),
    Show(ShowArguments),
}

/// Check the ledgers of a stopped network from the first block to the last
///
/// For each peer: checks that every block follows its predecessor, that its hashes, the orderer's signature and the
/// commit hash are right, and that the stored state is the result of the blocks' valid transactions. Between peers:
/// checks that they hold the same blocks and the same state.
#[derive(Args, Debug, Clone)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  heddle down && heddle ledger verify
  heddle ledger verify --peer org1   only that organisation's peer

Ends with exit code 3 and the number of the first damaged block if anything is wrong."
)]
pub struct VerifyArguments {
    #[command(flatten)]
    pub directory: DirectoryArguments,
    /// Check this organisation's peer only, such as org1
    #[arg(long, value_name = "ORG")]
    pub peer: Option<String>,
}

/// Show a block or a transaction, or the newest blocks
///
/// Asks a running network through its gateway, and reads the directory of a stopped one.
#[derive(Args, Debug, Clone)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  heddle ledger show                 the newest blocks, a line each
  heddle ledger show --block 7
  heddle ledger show --tx 3f2a… --json"
)]
pub struct ShowArguments {
    #[command(flatten)]
    pub directory: DirectoryArguments,
    /// Ask this organisation's peer, such as org2
    #[arg(long, value_name = "ORG", default_value = "org1")]
    pub peer: String,
    /// The block with this number
    #[arg(long, value_name = "NUMBER", conflicts_with = "tx")]
    pub block: Option<u64>,
    /// The transaction with this id
    #[arg(long, value_name = "ID")]
    pub tx: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
