//! `heddle deny`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Directory;

#[derive(Subcommand, Debug)]
pub enum Deny {
    Add(Add),
    List(List),
}

/// Turn a certificate away from now on, whatever the channel's configuration says of it
///
/// It writes the certificate's fingerprint into denied.toml, which running processes look at all the time: within a second
/// the holder can neither propose, order nor read, nor connect where certificates are asked for. What is in blocks
/// already stays valid, and what others order for the holder is judged as ever: for good, an organisation revokes the
/// certificate in its definition. Take the entry out of the file to allow the certificate again.
#[derive(Args, Debug, Clone)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  heddle deny add --cert user1.pem --reason 'laptop stolen'
  heddle deny add --cert user1.pem --until 2030-12-31
  heddle deny add --cert user1.pem --node /srv/orderer     on the host of that process, after `heddle plan`"
)]
pub struct Add {
    /// The certificate, in PEM
    #[arg(long, value_name = "FILE")]
    pub cert: PathBuf,
    /// Why, for whoever reads the list
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// The last day on which it is denied, in UTC; without, it is denied for good
    #[arg(long, value_name = "YYYY-MM-DD")]
    pub until: Option<String>,
    #[command(flatten)]
    pub directory: Directory,
    /// The folder of one process, where the list is to count for that one alone
    #[arg(long, value_name = "FOLDER", conflicts_with = "dir")]
    pub node: Option<PathBuf>,
}

/// Show which certificates are turned away
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  heddle deny list
  heddle deny list --json")]
pub struct List {
    #[command(flatten)]
    pub directory: Directory,
    /// The folder of one process
    #[arg(long, value_name = "FOLDER", conflicts_with = "dir")]
    pub node: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
