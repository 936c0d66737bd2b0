//! An orderer's log store for opaque entries: a block store, as a real orderer uses it.

use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use base::rt::disk::Directory;
use base::{BlockNumber, Bytes, Epoch};
use ordered_log::{Error, LogStore};
use storage::GroupSync;
use storage::blocks::{BlockStore, BlockStoreConfig, NO_PREVIOUS, NewBlock};

/// See [the module](self).
pub struct BlockLogStore {
    store: BlockStore,
    /// The hard state, in memory only: no orderer restarts in this benchmark.
    hard_state: Mutex<Bytes>,
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::LogStore(error.to_string())
}

/// An arbitrary hash, different for each number.
fn hash(number: u64) -> [u8; 32] {
    let mut hash = [1; 32];
    hash[..8].copy_from_slice(&number.to_le_bytes());
    hash
}

impl BlockLogStore {
    /// A new one, with one entry.
    pub async fn open(directory: Directory) -> Result<BlockLogStore, Error> {
        // In production each orderer is a separate process: their syncs do not share rounds.
        let (store, _) =
            BlockStore::open(directory, GroupSync::new(), BlockStoreConfig::default()).await.map_err(failed)?;
        let blocks = BlockLogStore { store, hard_state: Mutex::default() };
        blocks.append(0, Bytes::from_static(b"first")).await?;
        blocks.sync().await?;
        Ok(blocks)
    }
}

#[async_trait]
impl LogStore for BlockLogStore {
    fn height(&self) -> u64 {
        self.store.height()
    }

    fn durable(&self) -> u64 {
        self.store.durable_height()
    }

    fn read(&self, position: u64) -> Result<Option<Bytes>, Error> {
        self.store.read(BlockNumber(position)).map_err(failed)
    }

    async fn append(&self, position: u64, entry: Bytes) -> Result<(), Error> {
        let block = NewBlock {
            number: BlockNumber(position),
            header_hash: hash(position),
            previous_hash: position.checked_sub(1).map_or(NO_PREVIOUS, hash),
            epoch: Epoch(0),
            parts: &[entry],
            transactions: &[],
        };
        self.store.append(block).await.map_err(failed)
    }

    async fn sync(&self) -> Result<u64, Error> {
        self.store.sync().await.map_err(failed)
    }

    async fn truncate(&self, height: u64) -> Result<(), Error> {
        match height >= self.height() {
            true => Ok(()),
            false => Err(failed("another orderer has begun to lead: there is nothing to measure here")),
        }
    }

    fn hard_state(&self) -> Result<Bytes, Error> {
        Ok(self.hard_state.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    async fn set_hard_state(&self, note: Bytes) -> Result<(), Error> {
        *self.hard_state.lock().unwrap_or_else(PoisonError::into_inner) = note;
        Ok(())
    }
}
