//! `heddle deny`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::DirectoryArguments;

#[derive(Subcommand, Debug)]
pub enum DenyCommand {
    Add(DenyAddArguments),
    List(DenyListArguments),
}

/// Deny a certificate from now on, whatever the channel's configuration says about it
///
/// Writes the certificate's fingerprint into denied.toml, which running processes poll: within a second its holder can
/// neither propose, order nor read, nor connect where certificates are required. Transactions in blocks stay valid, and
/// transactions that others order for the holder are validated as before. To end that too, the organisation revokes the
/// certificate in its definition. Remove the entry from the file to allow the certificate again.
#[derive(Args, Debug, Clone)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  heddle deny add --cert user1.pem --reason 'laptop stolen'
  heddle deny add --cert user1.pem --until 2030-12-31
  heddle deny add --cert user1.pem --node /srv/orderer     on the host of that process, after `heddle plan`"
)]
pub struct DenyAddArguments {
    /// The certificate, in PEM
    #[arg(long, value_name = "FILE")]
    pub cert: PathBuf,
    /// The reason, for readers of the list
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// The last day of the denial, in UTC; without it, the denial is permanent
    #[arg(long, value_name = "YYYY-MM-DD")]
    pub until: Option<String>,
    #[command(flatten)]
    pub directory: DirectoryArguments,
    /// The folder of one process: the denial applies to that process alone
    #[arg(long, value_name = "FOLDER", conflicts_with = "dir")]
    pub node: Option<PathBuf>,
}

/// Show the certificates that are denied
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  heddle deny list
  heddle deny list --json")]
pub struct DenyListArguments {
    #[command(flatten)]
    pub directory: DirectoryArguments,
    /// The folder of one process
    #[arg(long, value_name = "FOLDER", conflicts_with = "dir")]
    pub node: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
