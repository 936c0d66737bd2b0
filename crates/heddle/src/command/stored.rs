//! Opens the stored data of a network that is not running.

use std::path::Path;
use std::sync::Arc;

use node::HeddleConfig;
use storage::blocks::{BlockStore, BlockStoreConfig};
use storage::tables::{FjallConfig, FjallEngine};
use storage::{DataDirectory, GroupSync};

use crate::failure::CommandError;

/// The configuration with which a directory's network was made or last opened.
pub(super) fn config(dir: &Path) -> Result<HeddleConfig, CommandError> {
    HeddleConfig::load(&dir.join("heddle.toml")).map_err(CommandError::new)
}

/// The organisation with this name, without regard to case.
pub(super) fn organization<'a>(
    names: impl Iterator<Item = &'a String> + Clone,
    wanted: &str,
) -> Result<usize, CommandError> {
    names.clone().position(|name| name.eq_ignore_ascii_case(wanted)).ok_or_else(|| {
        let names: Vec<&str> = names.map(String::as_str).collect();
        CommandError::new(format!("there is no organisation {wanted:?}; there are {}", names.join(", ")))
    })
}

/// Blocks of a stopped network; the lock keeps other processes from opening them.
pub(super) struct StoppedStore {
    store: BlockStore,
    _data: DataDirectory,
}

impl std::ops::Deref for StoppedStore {
    type Target = BlockStore;

    fn deref(&self) -> &BlockStore {
        &self.store
    }
}

/// The blocks of one peer of a stopped network.
pub(super) async fn block_store(
    network: &DataDirectory,
    peer: &str,
    channel: &str,
) -> Result<StoppedStore, CommandError> {
    store_in(&network.directory().path().join("peers").join(peer), channel).await
}

pub(super) async fn store_in(path: &Path, channel: &str) -> Result<StoppedStore, CommandError> {
    // The lock of a separate process's data may still be held although the network has ended.
    let data = DataDirectory::open(path).await.map_err(CommandError::new)?;
    let blocks = data.subdirectory("blocks").await.map_err(CommandError::new)?;
    let directory = blocks.subdirectory(channel).await;
    let directory = directory.map_err(|error| CommandError::new(format!("{}: {error}", blocks.path().display())))?;
    let (store, _) =
        BlockStore::open(directory, GroupSync::new(), BlockStoreConfig::default()).await.map_err(CommandError::new)?;
    Ok(StoppedStore { store, _data: data })
}

/// The state of one peer of a stopped network.
pub(super) async fn state_engine(dir: &Path, peer: &str) -> Result<Arc<FjallEngine>, CommandError> {
    let path = dir.join("peers").join(peer).join("state");
    FjallEngine::open(&path, FjallConfig::default()).await.map_err(CommandError::new)
}
