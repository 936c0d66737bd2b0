//! A channel's log on this orderer's disk, as its engine sees it: blocks at their numbers.
//!
//! A block is parsed when it is appended: its number, and the hash of the block before it, must be the next ones. What it holds is not
//! looked at: it comes from an orderer of the same group, and whoever takes it from here verifies it. One that does not follow is
//! refused, and the log stays as it was.
//!
//! The newest blocks are also held in memory, in a ring, for the peers that follow the tip.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use async_trait::async_trait;
use base::rt::Stop;
use base::rt::disk::Directory;
use base::rt::sync::Mutex as AsyncMutex;
use base::{BlockNumber, Bytes};
use consensus::ordered;
use ledger::Block;
use storage::blocks::{self, BlockOptions, BlockStore};
use storage::{GroupSync, Watermark, WatermarkFile};

use crate::Error;
use crate::commit::pipeline::append;
use crate::fault::{Failure, Stalls, hold_up};

/// Blocks that the ring holds at most.
const RECENT_BLOCKS_MAX: usize = 64;
/// Encoded bytes of blocks that the ring holds at most; the newest block is always held.
const RECENT_BYTES_MAX: usize = 64 << 20;
/// The engine's note, beside the segments.
const NOTE: &str = "engine";
const NEW_NOTE: &str = "engine.new";

/// See [the module](self).
pub struct ChainJournal {
    channel: String,
    directory: Directory,
    sync: GroupSync,
    store: RwLock<BlockStore>,
    recent: Mutex<Recent>,
    /// Held while the store is replaced by a shorter one, and by those who sync it beside the engine.
    cutting: AsyncMutex<()>,
    stop: Stop,
    pub(super) stalls: Stalls,
    /// Why the log cannot be used, as it was found out.
    pub(super) failure: Failure,
}

#[derive(Default)]
struct Recent {
    blocks: VecDeque<(u64, Bytes)>,
    bytes: usize,
}

impl ChainJournal {
    /// Opens the log of a channel, and creates it where there is none; then it has no block.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) async fn open(root: &Directory, channel: &str, sync: GroupSync) -> Result<ChainJournal, Error> {
        let directory = root.subdirectory(channel).await;
        let directory = directory.map_err(|error| Error::io(format!("the log of channel {channel}"), &error))?;
        let store = open(&directory, channel, &sync).await?;
        Ok(ChainJournal {
            channel: channel.to_owned(),
            directory,
            sync,
            store: RwLock::new(store),
            recent: Mutex::default(),
            cutting: AsyncMutex::new(()),
            stop: Stop::new(),
            stalls: Stalls::default(),
            failure: Failure::default(),
        })
    }

    /// The blocks.
    pub fn store(&self) -> BlockStore {
        self.store.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Refuses to go on from a log that has less than was noted, or other blocks.
    ///
    /// # Errors
    /// [`storage::Error::RolledBack`]; if the log cannot be read.
    pub(super) async fn check_watermark(&self, watermark: &WatermarkFile) -> Result<(), Error> {
        let (store, known) = (self.store(), watermark.noted().await);
        let Some(last) = known.height.checked_sub(1) else { return Ok(()) };
        if store.number_by_hash(&known.block_hash)? == Some(BlockNumber(last)) {
            return Ok(());
        }
        let has = match store.height() {
            height if height < known.height => format!("{height} blocks, and has had {}", known.height),
            _ => format!("another block {last} than it has had"),
        };
        Err(watermark.rolled_back(format!("the orderer's log of channel {} has {has}", self.channel)).into())
    }

    /// Raises the noted height to `shown`, the number of blocks that were shown. Syncs this log first: an engine may show blocks that
    /// other orderers have on disk and this one has not.
    pub(super) async fn note_watermark(&self, watermark: &WatermarkFile, shown: u64) {
        if shown <= watermark.noted().await.height {
            return;
        }
        let noting = async {
            let height = {
                let _uncut = self.cutting.lock().await;
                shown.min(self.store().sync().await?)
            };
            let Some(last) = height.checked_sub(1) else { return Ok(()) };
            let Some(block) = self.block(last)? else { return Ok(()) };
            let block_hash = Block::parse(&block)?.hash();
            Ok::<(), Error>(watermark.note(Watermark { height, block_hash, ..Watermark::default() }).await?)
        };
        if let Err(error) = noting.await {
            watermark.missed(&error);
        }
    }

    /// A block, whether it may be shown or not.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub(super) fn block(&self, number: u64) -> Result<Option<Bytes>, Error> {
        {
            let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((first, _)) = recent.blocks.front()
                && let Some(index) = number.checked_sub(*first)
                && let Some((_, bytes)) = recent.blocks.get(index as usize)
            {
                return Ok(Some(bytes.clone()));
            }
        }
        Ok(self.store().read(BlockNumber(number))?)
    }

    /// Lets nobody wait for room on the disk any more.
    pub(super) fn stop(&self) {
        self.stop.stop();
    }

    fn keep(&self, number: u64, bytes: Bytes) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.bytes += bytes.len();
        recent.blocks.push_back((number, bytes));
        while recent.blocks.len() > 1 && (recent.blocks.len() > RECENT_BLOCKS_MAX || recent.bytes > RECENT_BYTES_MAX) {
            let (_, oldest) = recent.blocks.pop_front().expect("the ring holds more than one block");
            recent.bytes -= oldest.len();
        }
    }

    /// Notes why the log failed, and says so in the engine's words.
    fn failed(&self, error: Error) -> consensus::Error {
        let said = match &error {
            Error::Stopped => consensus::Error::Closed,
            error => consensus::Error::Journal(error.to_string()),
        };
        self.failure.note(error);
        said
    }
}

async fn open(directory: &Directory, channel: &str, sync: &GroupSync) -> Result<BlockStore, Error> {
    let (store, report) = BlockStore::open(directory.clone(), sync.clone(), BlockOptions::default()).await?;
    if let Some(torn) = &report.torn_tail {
        tracing::warn!(channel, ?torn, "cut an incomplete block off the orderer's log");
    }
    Ok(store)
}

#[async_trait]
impl ordered::Journal for ChainJournal {
    fn height(&self) -> u64 {
        self.store().height()
    }

    fn durable(&self) -> u64 {
        self.store().durable_height()
    }

    fn read(&self, position: u64) -> Result<Option<Bytes>, consensus::Error> {
        self.block(position).map_err(|error| self.failed(error))
    }

    async fn append(&self, position: u64, entry: Bytes) -> Result<(), consensus::Error> {
        // What does not follow says nothing about this log, but about whoever gave it.
        let block = Block::parse(&entry).map_err(|error| consensus::Error::Invalid(error.to_string()))?;
        if block.number().get() != position {
            return Err(consensus::Error::Invalid("a block at another position than its number".to_owned()));
        }
        let store = self.store();
        match append(&store, &block, &[], &self.stop, &self.stalls).await {
            Ok(()) => {}
            Err(Error::Storage(error @ storage::Error::WrongPrevious { .. })) => {
                return Err(consensus::Error::Invalid(error.to_string()));
            }
            Err(error) => return Err(self.failed(error)),
        }
        self.keep(position, entry);
        Ok(())
    }

    async fn sync(&self) -> Result<u64, consensus::Error> {
        hold_up("chain.order.appended").await;
        let durable = self.store().sync().await.map_err(|error| self.failed(error.into()))?;
        hold_up("chain.order.durable").await;
        Ok(durable)
    }

    async fn cut(&self, height: u64) -> Result<(), consensus::Error> {
        if height >= self.height() {
            return Ok(());
        }
        let _nobody_syncs = self.cutting.lock().await;
        let cutting = async {
            blocks::cut(&self.directory, height).await?;
            open(&self.directory, &self.channel, &self.sync).await
        };
        let store = cutting.await.map_err(|error| self.failed(error))?;
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        *self.store.write().unwrap_or_else(PoisonError::into_inner) = store;
        *recent = Recent::default();
        Ok(())
    }

    fn note(&self) -> Result<Bytes, consensus::Error> {
        let reading = || {
            let names = self.directory.list()?;
            match names.iter().any(|name| name == NOTE) {
                false => Ok(Bytes::new()),
                true => {
                    let file = self.directory.open_file(NOTE, false)?;
                    file.read_exact_at(0, file.len()? as usize)
                }
            }
        };
        reading().map_err(|error| self.failed(Error::io("reading the engine's note", &error)))
    }

    async fn set_note(&self, note: Bytes) -> Result<(), consensus::Error> {
        let writing = async {
            let file = self.directory.open_file(NEW_NOTE, true)?;
            file.truncate(0)?;
            file.write_at(0, &note)?;
            file.sync().await?;
            self.directory.rename(NEW_NOTE, NOTE)?;
            self.directory.sync().await
        };
        writing.await.map_err(|error| self.failed(Error::io("writing the engine's note", &error)))
    }
}

/// Which engine orders a channel.
#[async_trait]
pub trait Engines: Send + Sync {
    /// Opens this orderer's part in ordering a channel, on its journal.
    ///
    /// # Errors
    /// The engine's.
    async fn open(
        &self,
        channel: &str,
        journal: Arc<dyn ordered::Journal>,
    ) -> Result<Arc<dyn ordered::OrderedLog>, consensus::Error>;
}

/// Each channel is ordered by this orderer alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct SoloEngines;

#[async_trait]
impl Engines for SoloEngines {
    async fn open(
        &self,
        _channel: &str,
        journal: Arc<dyn ordered::Journal>,
    ) -> Result<Arc<dyn ordered::OrderedLog>, consensus::Error> {
        let bytes_max = storage::blocks::RECORD_BYTES_MAX as usize / 2;
        Ok(Arc::new(ordered::solo::Solo::open(journal, bytes_max).await?))
    }
}
