//! One module a command, and what they share: where a network's files are.
//!
//! `genesis.block` is written last when a network is made, so that its presence says that there is one.

pub mod deny;
pub mod down;
mod etcd;
pub mod failover;
pub mod figure;
pub mod flexchain;
pub mod isolate;
pub mod kv;
pub mod kv_bench;
mod kv_isolate;
pub mod measure;
pub mod orderer;
pub mod peer;
pub mod process;
pub mod show;
mod sift;
pub mod status;
pub mod under_attack;
pub mod up;
pub mod verify;

use std::path::Path;
use std::sync::Arc;

use node::Config;
use storage::blocks::{BlockOptions, BlockStore};
use storage::tables::{FjallEngine, FjallOptions};
use storage::{DataDirectory, GroupSync};

use crate::failure::Failure;

/// How much of a network's log is shown when it failed.
const LOG_LINES_SHOWN: usize = 12;

/// Whether a directory holds a network.
pub fn exists(dir: &Path) -> bool {
    dir.join("genesis.block").exists()
}

/// That a directory holds a network.
///
/// # Errors
/// It does not.
pub fn expect_network(dir: &Path) -> Result<(), Failure> {
    if exists(dir) {
        return Ok(());
    }
    let dir = dir.display();
    Err(Failure::new(format!("{dir} holds no network; make one with `heddle up --dir {dir}`")))
}

/// What the network of a directory was made or last opened with.
fn config(dir: &Path) -> Result<Config, Failure> {
    Config::load(&dir.join("heddle.toml")).map_err(Failure::new)
}

/// The organisation that a user means: names are told apart without regard to case.
fn organization<'a>(names: impl Iterator<Item = &'a String> + Clone, wanted: &str) -> Result<usize, Failure> {
    names.clone().position(|name| name.eq_ignore_ascii_case(wanted)).ok_or_else(|| {
        let names: Vec<&str> = names.map(String::as_str).collect();
        Failure::new(format!("there is no organisation {wanted:?}; there are {}", names.join(", ")))
    })
}

/// From now on this process is asked to end when the one that started it ends.
fn end_with_parent() -> Result<(), Failure> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))
        .map_err(|error| Failure::new(format!("the parent's end cannot be watched: {error}")))
}

/// The last lines of a log.
fn tail(log: &Path) -> String {
    let text = std::fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
}

/// Blocks of a stopped network, which nobody opens meanwhile.
struct HeldStore {
    store: BlockStore,
    _data: DataDirectory,
}

impl std::ops::Deref for HeldStore {
    type Target = BlockStore;

    fn deref(&self) -> &BlockStore {
        &self.store
    }
}

/// The blocks of one peer of a stopped network.
async fn block_store(network: &DataDirectory, peer: &str, channel: &str) -> Result<HeldStore, Failure> {
    store_in(&network.directory().path().join("peers").join(peer), channel).await
}

async fn store_in(path: &Path, channel: &str) -> Result<HeldStore, Failure> {
    // A process of its own may still hold it, although the network has ended.
    let data = DataDirectory::open(path).await.map_err(Failure::new)?;
    let blocks = data.subdirectory("blocks").await.map_err(Failure::new)?;
    let directory = blocks.subdirectory(channel).await;
    let directory = directory.map_err(|error| Failure::new(format!("{}: {error}", blocks.path().display())))?;
    let (store, _) =
        BlockStore::open(directory, GroupSync::new(), BlockOptions::default()).await.map_err(Failure::new)?;
    Ok(HeldStore { store, _data: data })
}

/// The state of one peer of a stopped network.
async fn state_engine(dir: &Path, peer: &str) -> Result<Arc<FjallEngine>, Failure> {
    let path = dir.join("peers").join(peer).join("state");
    FjallEngine::open(&path, FjallOptions::default()).await.map_err(Failure::new)
}
