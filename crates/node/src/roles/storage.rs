//! Blocks and tables of one organisation, for its compute nodes.

use std::sync::Arc;

use base::rt::net::Parties;
use base::{Bytes, ErrorKind};
use storage::blocks::BlockOptions;
use storage::node::{NodeOptions, StorageNode};
use storage::tables::{FjallEngine, FjallOptions};
use storage::{DataDirectory, GroupSync};

use crate::network::NodeError;
use crate::network::layout::TABLES;
use crate::process::Ended;

/// What a storage node is made of.
pub(crate) struct Options<'a> {
    /// For logs and errors.
    pub name: &'a str,
    pub data: DataDirectory,
    pub sync: GroupSync,
    /// Bytes of the tables' write buffers.
    pub memtable_bytes: u64,
    /// Where it answers.
    pub address: &'a str,
    /// Who may use it.
    pub clients: &'a Parties,
}

/// A storage node that runs.
pub(crate) struct Storage {
    name: String,
    node: StorageNode,
}

impl Storage {
    pub(crate) async fn start(options: Options<'_>) -> Result<Storage, NodeError> {
        let name = options.name.to_owned();
        let tables = FjallOptions { memtable_bytes: options.memtable_bytes, ..FjallOptions::default() };
        let tables = FjallEngine::open(&options.data.directory().path().join(TABLES), tables).await?;
        let node = StorageNode::open(NodeOptions {
            name: options.name.to_owned(),
            data: options.data,
            sync: options.sync,
            tables,
            materializer: Arc::new(chain::BlockRows),
            // Links prove who is at their other end.
            token: Bytes::new(),
            blocks: BlockOptions::default(),
        })
        .await?;
        node.serve(options.address, options.clients).await?;
        Ok(Storage { name, node })
    }

    /// Completes when it is of no more use until it is started again, and says why.
    pub(crate) async fn failed(&self) -> Ended {
        let error = self.node.failed().await;
        let reason = format!("{} takes no more writes: {error}; start it again", self.name);
        // Its port has ended; else the engine says what is wrong with the disk.
        if error.kind() == ErrorKind::Closed { Ended::defect(reason) } else { Ended::of_surroundings(reason) }
    }

    /// Makes everything durable and ends.
    pub(crate) async fn stop(&self) -> Result<(), NodeError> {
        Ok(self.node.stop().await?)
    }
}
