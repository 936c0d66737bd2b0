//! A channel's log on this orderer's disk, in the form that its ordering engine uses: blocks by number.
//!
//! A block is parsed when it is appended: its number and its previous hash must continue the log. A block that does not
//! continue the log is rejected, and the log stays unchanged. The transactions are not checked here: the block comes
//! from an orderer of the same group, and every receiver verifies it.
//!
//! The newest blocks are also kept in memory, in a ring, for the peers that follow the tip.

use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;
use base::rt::CancellationToken;
use base::rt::disk::Directory;
use base::rt::sync::Mutex as AsyncMutex;
use base::{BlockNumber, Bytes};
use block_transport::RecentBlocks;

use ledger::Block;
use storage::blocks::{self, BlockStore, BlockStoreConfig};
use storage::{GroupSync, Watermark, WatermarkFile};

use crate::Error;
use crate::commit::pipeline::append;
use crate::fault::{ChannelFailure, StallReasons, hold_up};

/// The largest number of blocks in the ring.
const RECENT_BLOCKS_MAX: usize = 64;
/// The largest number of encoded bytes in the ring; the newest block is always kept.
const RECENT_BYTES_MAX: usize = 64 << 20;
/// The file of the engine's hard state, beside the segments.
const HARD_STATE_FILE: &str = "engine";
const NEW_HARD_STATE_FILE: &str = "engine.new";

/// A channel's log. See [the module](self).
pub struct ChannelLogStore {
    channel: String,
    directory: Directory,
    sync: GroupSync,
    store: RwLock<BlockStore>,
    recent: RecentBlocks<Bytes>,
    /// Held while a truncated store replaces the store, and by syncs that the engine did not ask for.
    truncating: AsyncMutex<()>,
    stop: CancellationToken,
    pub(super) stalls: StallReasons,
    /// The first reason why the log cannot be used.
    pub(super) failure: ChannelFailure,
}

impl ChannelLogStore {
    /// Opens the log of a channel. Creates it if there is none; the new log has no block.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) async fn open(root: &Directory, channel: &str, sync: GroupSync) -> Result<ChannelLogStore, Error> {
        let directory = root.subdirectory(channel).await;
        let directory = directory.map_err(|error| Error::io(format!("the log of channel {channel}"), &error))?;
        let store = open(&directory, channel, &sync).await?;
        Ok(ChannelLogStore {
            channel: channel.to_owned(),
            directory,
            sync,
            store: RwLock::new(store),
            recent: RecentBlocks::new(RECENT_BLOCKS_MAX, RECENT_BYTES_MAX),
            truncating: AsyncMutex::new(()),
            stop: CancellationToken::new(),
            stalls: StallReasons::default(),
            failure: ChannelFailure::default(),
        })
    }

    /// The store of the blocks.
    pub fn store(&self) -> BlockStore {
        self.store.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Rejects a log that has fewer blocks than were noted, or other ones.
    ///
    /// # Errors
    /// [`storage::Error::RolledBack`]; if the log cannot be read.
    pub(super) async fn check_watermark(&self, watermark: &WatermarkFile) -> Result<(), Error> {
        let (store, known) = (self.store(), watermark.current().await);
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

    /// Raises the noted height to `shown`, the number of blocks that were shown. Syncs this log first: an engine may
    /// show blocks that other orderers have on disk and this one has not.
    pub(super) async fn raise_watermark(&self, watermark: &WatermarkFile, shown: u64) {
        if shown <= watermark.current().await.height {
            return;
        }
        let noting = async {
            let height = {
                let _uncut = self.truncating.lock().await;
                shown.min(self.store().sync().await?)
            };
            let Some(last) = height.checked_sub(1) else { return Ok(()) };
            let Some(block) = self.block(last)? else { return Ok(()) };
            let block_hash = Block::parse(&block)?.hash();
            Ok::<(), Error>(watermark.advance(Watermark { height, block_hash, ..Watermark::default() }).await?)
        };
        if let Err(error) = noting.await {
            watermark.report_missed(&error);
        }
    }

    /// A block, whether or not it may be shown.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub(super) fn block(&self, number: u64) -> Result<Option<Bytes>, Error> {
        if let Some(recent) = self.recent.get(number) {
            return Ok(Some(recent));
        }
        Ok(self.store().read(BlockNumber(number))?)
    }

    /// Ends every wait for disk space, now and later.
    pub(super) fn stop(&self) {
        self.stop.cancel();
    }

    /// Notes why the log failed, and translates the error for the engine.
    fn failed(&self, error: Error) -> ordered_log::Error {
        let said = match &error {
            Error::Stopped => ordered_log::Error::Closed,
            error => ordered_log::Error::LogStore(error.to_string()),
        };
        self.failure.record(error);
        said
    }
}

async fn open(directory: &Directory, channel: &str, sync: &GroupSync) -> Result<BlockStore, Error> {
    let (store, report) = BlockStore::open(directory.clone(), sync.clone(), BlockStoreConfig::default()).await?;
    if let Some(torn) = &report.torn_tail {
        tracing::warn!(channel, ?torn, "cut an incomplete block off the orderer's log");
    }
    Ok(store)
}

#[async_trait]
impl ordered_log::LogStore for ChannelLogStore {
    fn height(&self) -> u64 {
        self.store().height()
    }

    fn durable(&self) -> u64 {
        self.store().durable_height()
    }

    fn read(&self, position: u64) -> Result<Option<Bytes>, ordered_log::Error> {
        self.block(position).map_err(|error| self.failed(error))
    }

    async fn append(&self, position: u64, entry: Bytes) -> Result<(), ordered_log::Error> {
        // An entry that does not continue the log is a fault of its sender, not of this log.
        let block = Block::parse(&entry).map_err(|error| ordered_log::Error::Invalid(error.to_string()))?;
        if block.number().get() != position {
            return Err(ordered_log::Error::Invalid("the block's number is not its position in the log".to_owned()));
        }
        let store = self.store();
        match append(&store, &block, &[], &self.stop, &self.stalls).await {
            Ok(()) => {}
            Err(Error::Storage(error @ storage::Error::WrongPrevious { .. })) => {
                return Err(ordered_log::Error::Invalid(error.to_string()));
            }
            Err(error) => return Err(self.failed(error)),
        }
        self.recent.push(position, entry.clone(), entry.len());
        Ok(())
    }

    async fn sync(&self) -> Result<u64, ordered_log::Error> {
        hold_up("chain.order.appended").await;
        let durable = self.store().sync().await.map_err(|error| self.failed(error.into()))?;
        hold_up("chain.order.durable").await;
        Ok(durable)
    }

    async fn truncate(&self, height: u64) -> Result<(), ordered_log::Error> {
        if height >= self.height() {
            return Ok(());
        }
        let _nobody_syncs = self.truncating.lock().await;
        let cutting = async {
            blocks::truncate(&self.directory, height).await?;
            open(&self.directory, &self.channel, &self.sync).await
        };
        let store = cutting.await.map_err(|error| self.failed(error))?;
        // First, so that the ring has no block that the store lacks.
        self.recent.clear();
        *self.store.write().unwrap_or_else(PoisonError::into_inner) = store;
        Ok(())
    }

    fn hard_state(&self) -> Result<Bytes, ordered_log::Error> {
        let reading = || {
            let names = self.directory.list()?;
            match names.iter().any(|name| name == HARD_STATE_FILE) {
                false => Ok(Bytes::new()),
                true => {
                    let file = self.directory.open_file(HARD_STATE_FILE, false)?;
                    file.read_exact_at(0, file.len()? as usize)
                }
            }
        };
        reading().map_err(|error| self.failed(Error::io("reading the engine's note", &error)))
    }

    async fn set_hard_state(&self, note: Bytes) -> Result<(), ordered_log::Error> {
        let writing = async {
            let file = self.directory.open_file(NEW_HARD_STATE_FILE, true)?;
            file.truncate(0)?;
            file.write_at(0, &note)?;
            file.sync().await?;
            self.directory.rename(NEW_HARD_STATE_FILE, HARD_STATE_FILE)?;
            self.directory.sync().await
        };
        writing.await.map_err(|error| self.failed(Error::io("writing the engine's note", &error)))
    }
}

/// Opens the ordering engine of a channel.
#[async_trait]
pub trait OrderingEngines: Send + Sync {
    /// Opens this orderer's part of the ordering engine of a channel, on its log store.
    ///
    /// # Errors
    /// The engine's.
    async fn open(
        &self,
        channel: &str,
        log_store: Arc<dyn ordered_log::LogStore>,
    ) -> Result<Arc<dyn ordered_log::OrderedLog>, ordered_log::Error>;
}

/// Orders each channel by this orderer alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct SoloEngines;

#[async_trait]
impl OrderingEngines for SoloEngines {
    async fn open(
        &self,
        _channel: &str,
        journal: Arc<dyn ordered_log::LogStore>,
    ) -> Result<Arc<dyn ordered_log::OrderedLog>, ordered_log::Error> {
        let bytes_max = storage::blocks::RECORD_BYTES_MAX as usize / 2;
        Ok(Arc::new(ordered_log::solo::SoloLog::open(journal, bytes_max).await?))
    }
}
