//! `heddle kv`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use heddle_cli::store::{DIRECTORY, StoreDirectory};

use super::peer::size;

#[derive(Subcommand, Debug)]
pub enum KvCommand {
    Up(KvUpArguments),
    Get(KvGetArguments),
    Put(KvPutArguments),
    Delete(KvDeleteArguments),
    Cas(KvCasArguments),
    Watch(KvWatchArguments),
    Status(KvStatusArguments),
    /// A memory node or CPU node of kv up --isolate, as a process of this program
    #[command(hide = true)]
    Part,
}

/// Run a replicated key-value store, until Ctrl-C
///
/// Each memory node holds a full copy of the data; one CPU node coordinates them, and backups stand by. All of them run
/// in this process. The data is in memory only, and lost when the process ends, unless `--persistence` says otherwise.
/// With `nodes` every memory node also keeps the data in DIR; with `coordinator` the coordinator keeps it there, in
/// tables. Then every acknowledged change survives a restart and a power failure, and each change takes as long as a
/// disk's sync. With `--asynchronous` changes reach the tables later, and the last ones before the end may be lost.
///
/// With `--stores` several stores share memory nodes and backups. Each store has its own port: the first one the given
/// port, the others the ports after it. kv.json lists them, and other commands take `--store`.
///
/// With `--isolate` every memory node and every CPU node is a separate process: the CPU node that serves each store
/// at first, and the backups. A process that ends is restarted; a memory node then recovers from its disk, or receives
/// a copy. Each CPU node has its own ports, listed in kv.json; commands find the one that serves.
///
/// Clients speak gRPC over TLS, `heddle.kv.KeyValues` of crates/proto/proto/heddle/kv/kv.proto. They trust DIR/ca.pem,
/// which is new at each start. With `--token-file` they send its first line with each call, as
/// `authorization: Bearer TOKEN`. Without it, every client that reaches the port can read and write, so `--listen`
/// then accepts only a loopback address.
#[derive(Args, Debug, Clone)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  heddle kv up
  heddle kv up --keys 10000 --block-bytes 8192       fewer keys, values of up to 56 KB
  heddle kv up --listen 127.0.0.1:0 --dir /tmp/kv    any free port, which kv.json names
  heddle kv up --persistence nodes --dir /srv/kv     kept on disk; the same command continues with it
  heddle kv up --stores 4 --backups 2                four stores, and two backups that can take over any of them
  heddle kv up --listen 0.0.0.0:7400 --token-file kv.token   open to other machines, with a secret
  heddle kv up --isolate                             processes, any of which may be killed

A record, which is a key with its value and 48 bytes, takes one to seven blocks. One block is fastest,
so choose a block size into which most records fit. Each memory node needs up to --keys times
--block-bytes of memory as it fills."
)]
pub struct KvUpArguments {
    /// The directory of kv.json, ca.pem and data on disk
    #[arg(long = "dir", value_name = "DIR", default_value = DIRECTORY)]
    pub dir: PathBuf,
    /// What survives the process
    #[arg(long, value_name = "MODE", default_value = "none")]
    pub persistence: PersistenceChoice,
    /// Acknowledge changes before the coordinator's tables have them
    #[arg(long)]
    pub asynchronous: bool,
    /// Number of stores, which share memory nodes and backups
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub stores: u32,
    /// Number of backup CPU nodes, which all stores share
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(0..=64))]
    pub backups: u32,
    /// Run every memory node and every CPU node as a separate process
    #[arg(long)]
    pub isolate: bool,
    /// Address for clients; with --isolate that of the first CPU node, the others use the ports after it
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7400")]
    pub listen: SocketAddr,
    /// A file whose first line is a secret that clients present; required unless --listen is loopback
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Memory nodes: 3 survive the loss of one, 5 of two
    #[arg(long, value_name = "N", default_value = "3", value_parser = odd)]
    pub memory_nodes: u32,
    /// Number of keys: determines the buckets of the index and the blocks for records
    #[arg(long, value_name = "N", default_value = "1000000", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub keys: u64,
    /// Bytes of a block, a multiple of 64
    #[arg(long, value_name = "SIZE", default_value = "1152", value_parser = size)]
    pub block_bytes: u64,
    /// Bytes of the log of changes that are not applied to their records yet
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = size)]
    pub log_bytes: u64,
    /// Bytes of the coordinator's cache, in addition to the log's content
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = size)]
    pub cache_bytes: u64,
    /// End when the process that started this one ends
    #[arg(long, hide = true)]
    pub bound: bool,
}

/// What survives the process.
#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum PersistenceChoice {
    /// Nothing
    None,
    /// Every acknowledged change: the coordinator has it in tables before it acknowledges
    Coordinator,
    /// Every acknowledged change: F+1 memory nodes have it on disk before it is acknowledged
    Nodes,
}

/// Print the value of a key
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  heddle kv get name
  heddle kv get name --json          with its version

A key without a value makes the command end with exit code 5.")]
pub struct KvGetArguments {
    /// The key
    #[arg(value_name = "KEY")]
    pub key: String,
    #[command(flatten)]
    pub directory: StoreDirectory,
    /// Print JSON: value, or valueHex if it is not text, and version
    #[arg(long)]
    pub json: bool,
}

/// Set the value of a key; prints its version
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  heddle kv put name Ada
  heddle kv put page - < page.html")]
pub struct KvPutArguments {
    /// The key
    #[arg(value_name = "KEY")]
    pub key: String,
    /// The value; - reads it from standard input
    #[arg(value_name = "VALUE", allow_hyphen_values = true)]
    pub value: String,
    #[command(flatten)]
    pub directory: StoreDirectory,
}

/// Delete the value of a key; prints the version of the deletion
#[derive(Args, Debug, Clone)]
#[command(after_help = "A key without a value makes the command end with exit code 5.")]
pub struct KvDeleteArguments {
    /// The key
    #[arg(value_name = "KEY")]
    pub key: String,
    #[command(flatten)]
    pub directory: StoreDirectory,
}

/// Compare and set: set the value of a key if its state is as expected; prints the version
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  heddle kv cas lock me --if-absent          takes a lock that is free
  heddle kv cas lock --if-value me           releases it: without a new value the key is deleted
  heddle kv cas counter 8 --if-version 41    the version that `kv get --json` printed

If the key's state differs, nothing is changed, the state is printed as JSON, and the exit code
is 5.")]
#[command(group = clap::ArgGroup::new("expected").required(true))]
pub struct KvCasArguments {
    /// The key
    #[arg(value_name = "KEY")]
    pub key: String,
    /// The new value; - reads it from standard input. Without it, the key is deleted
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
  heddle kv watch user/ --from 120   from a version on, if the store still remembers it

Prints a line for each change: its version, put or delete, the key, and the value. When the
coordinator changes, the watch continues where it was.")]
pub struct KvWatchArguments {
    /// The prefix; all keys without one
    #[arg(value_name = "PREFIX", default_value = "")]
    pub prefix: String,
    /// Start from this version [default: changes from now on]
    #[arg(long, value_name = "VERSION", value_parser = clap::value_parser!(u64).range(1..))]
    pub from: Option<u64>,
    /// End after this many changes
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// Print each change as a line of JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub directory: StoreDirectory,
}

/// Print the status of a store: its coordinator's term, versions, and how full it is
#[derive(Args, Debug, Clone)]
pub struct KvStatusArguments {
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
