//! `heddle kv`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::peer::size;

/// Where a store lives unless `--dir` says otherwise.
pub const DIRECTORY: &str = "./heddle-kv";

#[derive(Subcommand, Debug)]
pub enum Kv {
    Up(Up),
    Get(Get),
    Put(Put),
    Delete(Delete),
    Cas(Cas),
    Watch(Watch),
    Status(Status),
    /// A memory node or processor for kv up --isolate, which starts this program again
    #[command(hide = true)]
    Part,
}

/// Which store a command is about.
#[derive(Args, Debug, Clone)]
pub struct StoreDirectory {
    /// The directory that `heddle kv up` was given: kv.json there says where the store is, and whom to trust
    #[arg(long = "dir", value_name = "DIR", default_value = DIRECTORY)]
    pub dir: PathBuf,
    /// Which of the stores of `heddle kv up --stores`
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
    pub store: u32,
    /// The file with the token that clients bear, where it is not the one that kv.json names
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// Run a replicated key-value store, until Ctrl-C
///
/// Memory nodes hold the data, each all of it; one processor coordinates them, backups stand by. All are in
/// this process. The data is in memory alone, and gone when the process ends, unless `--persistence` says
/// otherwise. With `nodes` every memory node keeps it in DIR as well, with `coordinator` whoever coordinates
/// does, in tables: then whatever a client was told is there at the next start, also after a power loss, and a
/// change takes as long as a disk's sync. With `--asynchronous` tables follow behind, and the last changes
/// before the end may be missing.
///
/// With `--stores` several stores share memory nodes and backups. Each has a port of its own, the first store's
/// and the following ones; kv.json tells them, and other commands take `--store`.
///
/// With `--isolate` every memory node is a process of its own, and every processor: one that has each store at
/// first, and the backups. One that ends is started again; a memory node comes back with what its disk has, or is
/// copied to. Each processor has ports of its own, which kv.json tells; commands find the one that serves.
///
/// Clients speak gRPC over TLS, `heddle.kv.KeyValues` of crates/proto/proto/heddle/kv/kv.proto. They trust
/// DIR/ca.pem, which is made anew at each start. With `--token-file` they send its first line with each call, as
/// `authorization: Bearer TOKEN`. Without, whoever reaches the port reads and writes; so `--listen` takes no other
/// address than the loopback one then.
#[derive(Args, Debug, Clone)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  heddle kv up
  heddle kv up --keys 10000 --block-bytes 8192       fewer keys, values of up to 56 KB
  heddle kv up --listen 127.0.0.1:0 --dir /tmp/kv    any free port, which kv.json tells
  heddle kv up --persistence nodes --dir /srv/kv     kept on disk; the same command goes on with it
  heddle kv up --stores 4 --backups 2                four stores, any of which two backups take over
  heddle kv up --listen 0.0.0.0:7400 --token-file kv.token   other machines, with a secret
  heddle kv up --isolate                             processes, any of which may be killed

A record, which is a key with its value and 48 bytes, takes one to seven blocks. One block is the
fastest, so let most records fit into one. Each memory node needs --keys times --block-bytes of
memory as it fills up."
)]
pub struct Up {
    /// Where kv.json and ca.pem go, and what is kept on disk
    #[arg(long = "dir", value_name = "DIR", default_value = DIRECTORY)]
    pub dir: PathBuf,
    /// What outlives the process
    #[arg(long, value_name = "MODE", default_value = "none")]
    pub persistence: Persistence,
    /// Answer changes that the coordinator's tables do not have yet
    #[arg(long)]
    pub asynchronous: bool,
    /// How many stores, which share memory nodes and backups
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub stores: u32,
    /// Backup processors, which all stores share
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(0..=64))]
    pub backups: u32,
    /// Run every memory node and every processor as a process of its own
    #[arg(long)]
    pub isolate: bool,
    /// Where clients are answered; with --isolate the first processor, the others at the following ports
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7400")]
    pub listen: SocketAddr,
    /// A file whose first line is a secret that clients give; needed where --listen is not loopback
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Memory nodes: 3 survive the loss of one, 5 of two
    #[arg(long, value_name = "N", default_value = "3", value_parser = odd)]
    pub memory_nodes: u32,
    /// How many keys there will be: the buckets of the index, and the blocks for records
    #[arg(long, value_name = "N", default_value = "1000000", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub keys: u64,
    /// Bytes of a block, a multiple of 64
    #[arg(long, value_name = "SIZE", default_value = "1152", value_parser = size)]
    pub block_bytes: u64,
    /// Bytes of the log of changes that are not in their records yet
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = size)]
    pub log_bytes: u64,
    /// Bytes of the coordinator's cache, beside what is in the log
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = size)]
    pub cache_bytes: u64,
    /// End when the process that started this one ends
    #[arg(long, hide = true)]
    pub bound: bool,
}

/// What outlives the process.
#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Persistence {
    /// Nothing
    None,
    /// Whatever a client was told: the coordinator has it in tables before
    Coordinator,
    /// Whatever a client was told: F+1 memory nodes have it on disk before
    Nodes,
}

/// Print the value of a key
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  heddle kv get name
  heddle kv get name --json          with its version

A key that has no value ends the command with exit code 5.")]
pub struct Get {
    /// The key
    #[arg(value_name = "KEY")]
    pub key: String,
    #[command(flatten)]
    pub directory: StoreDirectory,
    /// Print JSON: value, or valueHex where it is no text, and version
    #[arg(long)]
    pub json: bool,
}

/// Give a key a value; prints its version
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  heddle kv put name Ada
  heddle kv put page - < page.html")]
pub struct Put {
    /// The key
    #[arg(value_name = "KEY")]
    pub key: String,
    /// The value; - takes it from standard input
    #[arg(value_name = "VALUE", allow_hyphen_values = true)]
    pub value: String,
    #[command(flatten)]
    pub directory: StoreDirectory,
}

/// Take a key's value away; prints the version of that
#[derive(Args, Debug, Clone)]
#[command(after_help = "A key that has no value ends the command with exit code 5.")]
pub struct Delete {
    /// The key
    #[arg(value_name = "KEY")]
    pub key: String,
    #[command(flatten)]
    pub directory: StoreDirectory,
}

/// Compare and set: give a key a value if it has what is expected; prints the version
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  heddle kv cas lock me --if-absent          takes a lock that nobody holds
  heddle kv cas lock --if-value me           gives it back: without a new value the key is deleted
  heddle kv cas counter 8 --if-version 41    the version that `kv get --json` has told

Where the key has something else nothing is changed, what it has is printed as JSON, and the
exit code is 5.")]
#[command(group = clap::ArgGroup::new("expected").required(true))]
pub struct Cas {
    /// The key
    #[arg(value_name = "KEY")]
    pub key: String,
    /// The new value; - takes it from standard input. Without one the key is deleted
    #[arg(value_name = "VALUE", allow_hyphen_values = true)]
    pub value: Option<String>,
    /// If the key has no value
    #[arg(long, group = "expected")]
    pub if_absent: bool,
    /// If it has some value
    #[arg(long, group = "expected")]
    pub if_present: bool,
    /// If it has this version
    #[arg(long, value_name = "N", group = "expected")]
    pub if_version: Option<u64>,
    /// If it has this value
    #[arg(long, value_name = "VALUE", group = "expected", allow_hyphen_values = true)]
    pub if_value: Option<String>,
    #[command(flatten)]
    pub directory: StoreDirectory,
}

/// Print every change of the keys that begin with a prefix, until Ctrl-C
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  heddle kv watch                    every change from now on
  heddle kv watch user/ --from 120   from a version on, as long as it is remembered

A line for each change: its version, put or delete, the key, and the value. When the coordinator
changes the watch goes on where it was.")]
pub struct Watch {
    /// The prefix; all keys without one
    #[arg(value_name = "PREFIX", default_value = "")]
    pub prefix: String,
    /// The first version to be told [default: what changes from now on]
    #[arg(long, value_name = "VERSION", value_parser = clap::value_parser!(u64).range(1..))]
    pub from: Option<u64>,
    /// End after so many changes
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// Print each change as a line of JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub directory: StoreDirectory,
}

/// Print how a store is: its coordinator's term, versions, and how full it is
#[derive(Args, Debug, Clone)]
pub struct Status {
    #[command(flatten)]
    pub directory: StoreDirectory,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn odd(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(count @ (1 | 3 | 5 | 7 | 9)) => Ok(count),
        _ => Err("2F+1 nodes survive the loss of F: write 1, 3, 5, 7 or 9".to_owned()),
    }
}
