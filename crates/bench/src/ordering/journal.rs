//! An orderer's journal for entries without a meaning: a block store, as an orderer has it.

use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use base::rt::disk::Directory;
use base::{BlockNumber, Bytes, Epoch};
use consensus::Error;
use consensus::ordered::Journal;
use storage::GroupSync;
use storage::blocks::{BlockOptions, BlockStore, NO_PREVIOUS, NewBlock};

/// See [the module](self).
pub struct Blocks {
    store: BlockStore,
    /// Nobody starts again here.
    note: Mutex<Bytes>,
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Journal(error.to_string())
}

/// Any, of which each is another.
fn hash(number: u64) -> [u8; 32] {
    let mut hash = [1; 32];
    hash[..8].copy_from_slice(&number.to_le_bytes());
    hash
}

impl Blocks {
    /// A new one, with one entry.
    pub async fn open(directory: Directory) -> Result<Blocks, Error> {
        // Each orderer is a process elsewhere: what they sync is not one round.
        let (store, _) =
            BlockStore::open(directory, GroupSync::new(), BlockOptions::default()).await.map_err(failed)?;
        let blocks = Blocks { store, note: Mutex::default() };
        blocks.append(0, Bytes::from_static(b"first")).await?;
        blocks.sync().await?;
        Ok(blocks)
    }
}

#[async_trait]
impl Journal for Blocks {
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

    async fn cut(&self, height: u64) -> Result<(), Error> {
        match height >= self.height() {
            true => Ok(()),
            false => Err(failed("another orderer has begun to lead: there is nothing to measure here")),
        }
    }

    fn note(&self) -> Result<Bytes, Error> {
        Ok(self.note.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    async fn set_note(&self, note: Bytes) -> Result<(), Error> {
        *self.note.lock().unwrap_or_else(PoisonError::into_inner) = note;
        Ok(())
    }
}
