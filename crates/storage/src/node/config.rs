//! The configuration of a storage node.

use std::fmt;
use std::sync::Arc;

use base::Bytes;

use crate::blocks::BlockStoreConfig;
use crate::state_store::Materializer;
use crate::tables::TablesEngine;
use crate::{DataDirectory, GroupSync};

/// The directory of block stores in the node's data directory.
pub(super) const BLOCKS: &str = "blocks";
/// The directory of epoch files.
pub(super) const EPOCHS: &str = "epochs";

/// The parts and settings of a storage node.
#[derive(Clone)]
pub struct StorageNodeConfig {
    /// For logs and errors.
    pub name: String,
    /// Holds a block store and an epoch for each channel.
    pub data: DataDirectory,
    /// Shared with everything else that writes to the same disk.
    pub sync: GroupSync,
    /// Holds the rows of each channel.
    pub tables: Arc<dyn TablesEngine>,
    /// Reads blocks.
    pub materializer: Arc<dyn Materializer>,
    /// The token that clients must present; empty if none is asked for.
    pub token: Bytes,
    /// The settings of each channel's block store.
    pub blocks: BlockStoreConfig,
}

impl fmt::Debug for StorageNodeConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the token.
        f.debug_struct("NodeOptions").field("name", &self.name).finish_non_exhaustive()
    }
}
