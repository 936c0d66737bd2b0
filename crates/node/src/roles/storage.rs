//! Keeps blocks and tables of peers for their compute nodes.
//!
//! Each peer has its own [`StorageNode`], with its own directory, address, clients and epochs: what one peer's
//! compute nodes do reaches no other peer. The peers share the process, and on one disk the batches in which files are made durable.

use std::sync::Arc;

use base::rt::net::Parties;
use base::{Bytes, ErrorKind};
use futures_util::future::{join_all, select_all};
use storage::blocks::BlockStoreConfig;
use storage::node::{StorageNode, StorageNodeConfig};
use storage::tables::{FjallConfig, FjallEngine};
use storage::{DataDirectory, GroupSync};

use crate::config::StateStorageConfig;
use crate::network::NodeError;
use crate::network::layout::TABLES;
use crate::process::ProcessEnd;

/// What a storage node needs for one peer.
pub(crate) struct StorageConfig<'a> {
    /// For logs and errors.
    pub peer: String,
    pub data: DataDirectory,
    pub sync: GroupSync,
    /// The engine of the tables.
    pub tables: FjallConfig,
    /// The address at which the node answers the peer.
    pub address: &'a str,
    /// The peer's compute nodes.
    pub clients: &'a Parties,
}

/// The engine's configuration for these bytes of write buffers, cached blocks and hints.
pub(crate) fn tables_config(write_buffers: usize, cache: usize, hints: usize) -> FjallConfig {
    FjallConfig {
        // A buffer fills while the one before it is written to disk.
        memtable_bytes: write_buffers as u64 / 2,
        cache_bytes: cache as u64,
        hint_bytes: hints,
        ..FjallConfig::default()
    }
}

/// The same, as a configuration file says it.
pub(crate) fn local_tables_config(config: &StateStorageConfig) -> FjallConfig {
    tables_config(config.memtable_bytes, config.table_cache_bytes, config.table_hint_bytes)
}

/// A running storage node.
pub(crate) struct StorageInstance {
    name: String,
    /// One for each peer.
    nodes: Vec<StorageNode>,
}

impl StorageInstance {
    /// A node that serves nobody yet.
    pub(crate) fn new(name: &str) -> StorageInstance {
        StorageInstance { name: name.to_owned(), nodes: Vec::new() }
    }

    /// Opens a peer's data and serves the peer.
    pub(crate) async fn serve(&mut self, options: StorageConfig<'_>) -> Result<(), NodeError> {
        let tables = FjallEngine::open(&options.data.directory().path().join(TABLES), options.tables).await?;
        let node = StorageNode::open(StorageNodeConfig {
            name: format!("{} of {}", self.name, options.peer),
            data: options.data,
            sync: options.sync,
            tables,
            materializer: Arc::new(ledger::BlockMaterializer),
            // Links prove the identity of the other end.
            token: Bytes::new(),
            blocks: BlockStoreConfig::default(),
        })
        .await?;
        node.serve(options.address, options.clients).await?;
        self.nodes.push(node);
        Ok(())
    }

    /// Completes when the node is of no use until it is restarted, with the reason.
    pub(crate) async fn failed(&self) -> ProcessEnd {
        let (error, ..) = select_all(self.nodes.iter().map(|node| Box::pin(node.failed()))).await;
        let reason = format!("{} accepts no more writes: {error}; restart it", self.name);
        // `Closed` means that the node's port has ended; any other error is what the engine says about the disk.
        if error.kind() == ErrorKind::Closed { ProcessEnd::defect(reason) } else { ProcessEnd::environment(reason) }
    }

    /// Makes everything durable and stops.
    pub(crate) async fn stop(&self) -> Result<(), NodeError> {
        let stopped = join_all(self.nodes.iter().map(StorageNode::stop)).await;
        Ok(stopped.into_iter().collect::<Result<(), _>>()?)
    }
}
