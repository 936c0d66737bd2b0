//! The stores in which a peer keeps the blocks and the states of its channels.
//!
//! A peer opens a channel's block store and its state by the channel's name, and uses both through interfaces only. So
//! the same code runs on the process's own disk ([`LocalStores`]), or on a storage node with the state in pooled memory
//! ([`NodeStores`]).

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use base::rt;
use base::rt::disk::Directory;
use base::{Epoch, ErrorKind};
use ledger::materialize::BlockMaterializer;
use replica::PrimaryRole;
use state::{Monolithic, WorldState};
use storage::blocks::{BlockStore, BlockStoreConfig, Blocks};
use storage::node::{RemoteBlocks, RemotePrivateRows, RemoteStateStore};
use storage::state_store::check_savepoint;
use storage::tables::TablesEngine;
use storage::{GroupSync, History, LocalHistory, LocalPrivateRows, PrivateTable, StateStore, Watermark, WatermarkFile};
use storage_copies::{ChannelCopies, CopiedBlocks, CopySet};

use crate::Error;
use private_data::PrivateStore;

/// The shortest time between two notes of how far a channel has come.
pub(crate) const WATERMARK_PERIOD: Duration = Duration::from_secs(1);

/// The blocks and the state of one channel.
#[derive(Clone)]
pub struct ChannelStores {
    /// The channel's blocks.
    pub blocks: Arc<dyn Blocks>,
    /// The channel's world state; never ahead of the durable blocks.
    pub state: Arc<dyn WorldState>,
    /// Which blocks wrote a key.
    pub history: Arc<dyn History>,
    /// The channel's private data.
    pub private: PrivateStore,
}

/// Opens the stores of a peer's channels.
#[async_trait]
pub trait PeerStores: Send + Sync + 'static {
    /// The channels that have a store, in the order of their names; channels without a block included.
    ///
    /// # Errors
    /// If the stores cannot be listed.
    async fn channels(&self) -> Result<Vec<String>, Error>;

    /// The blocks and the state of a channel; both are empty if the channel is new. The state is not ahead of the
    /// blocks.
    ///
    /// The caller opens a channel only once at a time.
    ///
    /// # Errors
    /// If one of them cannot be opened, or they do not belong together.
    async fn open(&self, channel: &str) -> Result<ChannelStores, Error>;

    /// The role of this node as the primary; `None` where no other compute node can become primary.
    fn primary_role(&self) -> Option<Arc<PrimaryRole>> {
        None
    }

    /// Notes that a channel has stopped in order, and how far its blocks have come: all of them are durable.
    async fn stopped(&self, _channel: &str, _durable: Watermark) {}
}

/// Blocks in a directory and states in the tables of an engine, both in this process.
#[derive(Clone)]
pub struct LocalStores {
    /// The owner of the stores, for logs.
    pub name: String,
    /// Holds a block store for each channel.
    pub directory: Directory,
    /// Shared with everything else that writes to the same disk.
    pub sync: GroupSync,
    /// Holds the world state of each channel.
    pub tables: Arc<dyn TablesEngine>,
    /// The settings of each block store.
    pub blocks: BlockStoreConfig,
    /// The settings of each world state.
    pub state: state::MonolithicConfig,
}

impl LocalStores {
    /// Stores with default settings.
    pub fn new(
        name: impl Into<String>,
        directory: Directory,
        sync: GroupSync,
        tables: Arc<dyn TablesEngine>,
    ) -> LocalStores {
        let (blocks, state) = Default::default();
        LocalStores { name: name.into(), directory, sync, tables, blocks, state }
    }
}

#[async_trait]
impl PeerStores for LocalStores {
    async fn channels(&self) -> Result<Vec<String>, Error> {
        let mut channels = self.directory.list().map_err(|error| Error::io("listing channels", &error))?;
        channels.retain(|name| {
            let is_channel = ledger::config::check_channel_name(name).is_ok();
            if !is_channel {
                tracing::warn!(peer = self.name, name, "passed over: not a channel's ledger");
            }
            is_channel
        });
        Ok(channels)
    }

    async fn open(&self, channel: &str) -> Result<ChannelStores, Error> {
        let directory = self.directory.subdirectory(channel).await;
        let directory = directory.map_err(|error| Error::io(format!("the ledger of channel {channel}"), &error))?;
        let (blocks, report) = BlockStore::open(directory, self.sync.clone(), self.blocks.clone()).await?;
        if let Some(torn) = &report.torn_tail {
            tracing::warn!(peer = self.name, channel, ?torn, "cut an incomplete block off the ledger");
        }
        let tables = self.tables.tables(channel).await?;
        check_savepoint(&blocks, &tables.savepoint()).await?;
        let state = Monolithic::open(tables, self.state.clone());
        let height = blocks.durable_height();
        let blocks: Arc<dyn Blocks> = Arc::new(blocks);
        let history =
            LocalHistory::new(channel, Arc::clone(&blocks), Arc::clone(&self.tables), Arc::new(BlockMaterializer));
        let private = |table| LocalPrivateRows::open(self.tables.as_ref(), channel, table, height);
        let (committed, transient) = (private(PrivateTable::Committed).await?, private(PrivateTable::Transient).await?);
        let private = PrivateStore::new(Arc::new(committed), Arc::new(transient));
        Ok(ChannelStores { blocks, state: Arc::new(state), history: Arc::new(history), private })
    }
}

/// Opens the state of a channel over the rows that a storage node keeps of it.
#[async_trait]
pub trait WorldStateFactory: Send + Sync + 'static {
    /// The state of a channel, at the height of the rows' savepoint.
    ///
    /// # Errors
    /// If it cannot be opened.
    async fn open(&self, channel: &str, rows: Arc<dyn StateStore>) -> Result<Arc<dyn WorldState>, Error>;
}

/// Blocks and rows at a storage node, or at several that have copies, written under one epoch; see [`storage::node`] and
/// [`storage_copies`].
#[derive(Clone)]
pub struct NodeStores {
    /// The storage nodes; the first one has a channel that has no other copies.
    pub storage: CopySet,
    /// The epoch of this compute node as the primary.
    pub epoch: Epoch,
    /// Opens the world state over the rows of the storage node.
    pub states: Arc<dyn WorldStateFactory>,
    /// The durable note of how far the one channel has come at the storage node.
    pub watermark: Option<Arc<WatermarkFile>>,
}

#[async_trait]
impl PeerStores for NodeStores {
    async fn channels(&self) -> Result<Vec<String>, Error> {
        let mut channels = storage_copies::channels(&self.storage).await?;
        channels.retain(|name| ledger::config::check_channel_name(name).is_ok());
        Ok(channels)
    }

    async fn open(&self, channel: &str) -> Result<ChannelStores, Error> {
        if storage_copies::has_copies(&self.storage, channel).await? {
            let copies = ChannelCopies::open(self.storage.clone(), channel, self.epoch).await?;
            let (blocks, rows, [committed, transient]) = (copies.blocks(), copies.rows(), copies.private());
            return self.finish(channel, blocks, rows, PrivateStore::new(committed, transient)).await;
        }
        let options = self.storage.first_remote(channel, self.epoch);
        // First, because it fences the old primary.
        let blocks = Arc::new(RemoteBlocks::open(options.clone()).await?);
        let private = PrivateStore::remote(RemotePrivateRows::of_primary(options.clone()));
        let rows = Arc::new(RemoteStateStore::open(options).await?);
        self.finish(channel, blocks, rows, private).await
    }

    /// Records the blocks that became durable after the last note of [`record_watermark`]: without this, their loss would go
    /// unnoticed.
    async fn stopped(&self, _channel: &str, durable: Watermark) {
        if let Some(watermark) = &self.watermark
            && let Err(error) = watermark.advance(durable).await
        {
            watermark.report_missed(&error);
        }
    }
}

impl NodeStores {
    /// Opens the state over rows whose blocks are open.
    async fn finish<B: DurableTip, R: StateStore + History>(
        &self,
        channel: &str,
        blocks: Arc<B>,
        rows: Arc<R>,
        private: PrivateStore,
    ) -> Result<ChannelStores, Error> {
        if let Some(watermark) = &self.watermark {
            drop(rt::spawn(record_watermark(Arc::downgrade(&blocks), watermark.clone())));
        }
        let state = self.states.open(channel, rows.clone()).await?;
        // Opening may take long. Meanwhile the savepoint may move, even on behalf of a newer primary.
        if state.height() > blocks.tip().height {
            return Err(Error::Storage(storage::Error::Remote {
                node: self.storage.first().address.as_str().into(),
                kind: ErrorKind::Fenced,
                text: format!("block {} there was not written under epoch {}", state.height() - 1, self.epoch),
            }));
        }
        Ok(ChannelStores { blocks, state, history: rows, private })
    }
}

/// Blocks that tell the last one that is durable.
trait DurableTip: Blocks {
    fn durable_tip(&self) -> (u64, [u8; 32]);
}

impl DurableTip for RemoteBlocks {
    fn durable_tip(&self) -> (u64, [u8; 32]) {
        RemoteBlocks::durable_tip(self)
    }
}

impl DurableTip for CopiedBlocks {
    fn durable_tip(&self) -> (u64, [u8; 32]) {
        CopiedBlocks::durable_tip(self)
    }
}

/// Notes how many blocks are durable at the storage node, until the blocks are dropped.
async fn record_watermark<B: DurableTip>(blocks: Weak<B>, watermark: Arc<WatermarkFile>) {
    let Some(mut durable) = blocks.upgrade().map(|blocks| blocks.subscribe_durable()) else { return };
    loop {
        durable.borrow_and_update();
        let Some((height, block_hash)) = blocks.upgrade().map(|blocks| blocks.durable_tip()) else { return };
        if let Err(error) = watermark.advance(Watermark { height, block_hash, ..Watermark::default() }).await {
            watermark.report_missed(&error);
        }
        rt::sleep(WATERMARK_PERIOD).await;
        if durable.changed().await.is_err() {
            return;
        }
    }
}

impl fmt::Debug for NodeStores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the token.
        f.debug_struct("NodeStores").field("storage", &self.storage).field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl fmt::Debug for LocalStores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalStores").field("directory", &self.directory.path()).finish_non_exhaustive()
    }
}
