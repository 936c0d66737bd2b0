//! A report on the copies of a peer's blocks and tables, for the operator.

use serde::{Deserialize, Serialize};

/// Where the blocks and tables of one peer are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StorageReport {
    /// The compute node that answers, such as `compute-org1`.
    pub name: String,
    /// The number of the view in force: it grows with each change of the copies.
    pub view: u64,
    /// Copies that the primary keeps up.
    pub wanted: usize,
    /// The storage nodes that serve the peer.
    pub nodes: Vec<StorageCopyReport>,
}

/// One storage node of a peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StorageCopyReport {
    /// Its name, such as `storage-1`.
    pub name: String,
    /// `complete`, `building`, or `none`.
    pub copy: String,
    /// Its durable blocks; 0 without a copy.
    pub height: u64,
    /// Private rows that were copied to it, while it is built.
    pub private_rows: u64,
}

impl StorageReport {
    /// What a node has; `none` if it does not serve the peer.
    pub fn copy(&self, name: &str) -> &str {
        self.nodes.iter().find(|node| node.name == name).map_or("none", |node| &node.copy)
    }

    /// Durable blocks of the complete copies.
    pub fn height(&self) -> u64 {
        self.nodes.iter().filter(|node| node.copy == "complete").map(|node| node.height).max().unwrap_or_default()
    }
}
