//! The replicated key-value store as a program: memory nodes, CPU nodes and ports.
//!
//! 1. [`KeyValueServer::start`] starts memory nodes in this process and creates a consensus group on them for each
//!    store. A group is formatted unless it was used before. Each store has one CPU node that serves no other store,
//!    and all stores share a pool of backups ([`sift::BackupPool`]). One CPU node is elected and serves the store;
//!    when it ends, another takes over.
//! 2. Each store has a port for gRPC over TLS ([`service`]). Its certificate is made at the start. Clients trust
//!    `ca.pem` in the directory and find the ports in `kv.json`, which is written last.
//! 3. [`Persistence`] decides which data survives the end of the process. There are three choices: no data; all data,
//!    which each memory node keeps on disk in its folder; or the coordinator's tables in the folder `tables`, from
//!    which the next start fills new memory nodes.
//!
//! Memory nodes and CPU nodes can also run as separate processes ([`KvPlan`], [`KvPart`]).
//!
//! Clients are identified only by the port's token: a client that presents it may read and write. A port without a
//! token lets every client read and write, so it listens on the loopback address only.

mod client;
mod config;
mod endpoint;
mod part;
mod service;
mod setup;
mod store_server;
mod stores;
mod token;

pub use client::{KvClient, KvExchange, KvWatch};
pub use config::{KvStoresConfig, Persistence, STORES_MAX};
pub use endpoint::{KvEndpoint, KvProcessEndpoint};
pub use kv::StoreGeometry;
pub use part::{KvPart, KvPlan, KvProcess, KvRole};
pub use store_server::KeyValueServer;
pub use token::KvToken;

use config::LISTEN;
use endpoint::KV_FILE;
use setup::{
    AUTHORITY, HOST, NAME, POLL_INTERVAL, START_TIMEOUT, SupervisedMemoryNode, TABLES, absolute, bind, certificate,
    format, groups, layout, lock, memory_node, serve, token,
};
