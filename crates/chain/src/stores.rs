//! Where a peer keeps the blocks and the states of its channels.
//!
//! A peer asks for both by the channel's name and knows them by their interfaces only, so that the same peer runs over the
//! disk of its own process ([`LocalStores`]), or over a storage node ([`NodeStores`]) with its state in pooled memory.

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use base::rt;
use base::rt::disk::Directory;
use base::rt::net::Parts;
use base::{BlockNumber, Bytes, Epoch, ErrorKind};
use ledger::Block;
use state::{Monolithic, WorldState};
use storage::blocks::{BlockOptions, BlockStore, Blocks, StoredBlocks};
use storage::node::{RemoteBlocks, RemoteOptions, RemoteReads, RemoteStateStore};
use storage::state_store::check_savepoint;
use storage::tables::{RowBatch, TablesEngine};
use storage::{GroupSync, History, LocalHistory, Materializer, StateStore, Watermark, WatermarkFile};

use crate::Error;
use crate::commit::replay::{StoredWrite, stored_writes};
use crate::succession::Office;

/// The time between two notes of how far a channel has come, at least.
pub(crate) const NOTE_PERIOD: Duration = Duration::from_secs(1);

/// The blocks and the state of one channel.
#[derive(Clone)]
pub struct ChannelStores {
    pub blocks: Arc<dyn Blocks>,
    pub state: Arc<dyn WorldState>,
    /// Which blocks wrote a key.
    pub history: Arc<dyn History>,
}

/// Opens what a peer keeps of its channels.
#[async_trait]
pub trait Stores: Send + Sync + 'static {
    /// The channels of which something is kept, in the order of their names; those without a block included.
    ///
    /// # Errors
    /// If that cannot be found out.
    async fn channels(&self) -> Result<Vec<String>, Error>;

    /// Blocks and state of a channel, both empty where it is new. The state is not ahead of the blocks.
    ///
    /// A channel is open once at a time.
    ///
    /// # Errors
    /// If one of them cannot be opened, or they do not belong together.
    async fn open(&self, channel: &str) -> Result<ChannelStores, Error>;

    /// By what right the states are shown, where another compute node may take it over.
    fn office(&self) -> Option<Arc<Office>> {
        None
    }

    /// Notes that a channel has stopped in order, and how far its blocks have come: all of them are durable.
    async fn stopped(&self, _channel: &str, _durable: Watermark) {}
}

/// Blocks in a directory and states in the tables of an engine, both of this process.
#[derive(Clone)]
pub struct LocalStores {
    /// For logs: whose they are.
    pub name: String,
    /// Holds a block store for each channel.
    pub directory: Directory,
    /// Shared with whoever else writes to the same disk.
    pub sync: GroupSync,
    /// Holds the world state of each channel.
    pub tables: Arc<dyn TablesEngine>,
    pub blocks: BlockOptions,
    pub state: state::Settings,
}

impl LocalStores {
    /// Stores with usual settings.
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
impl Stores for LocalStores {
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
        let blocks: Arc<dyn Blocks> = Arc::new(blocks);
        let history = LocalHistory::new(channel, Arc::clone(&blocks), Arc::clone(&self.tables), Arc::new(BlockRows));
        Ok(ChannelStores { blocks, state: Arc::new(state), history: Arc::new(history) })
    }
}

/// Makes the state of a channel over the rows that a storage node keeps of it.
#[async_trait]
pub trait States: Send + Sync + 'static {
    /// The state of a channel, at the height of the rows' savepoint.
    ///
    /// # Errors
    /// If it cannot be opened.
    async fn open(&self, channel: &str, rows: Arc<dyn StateStore>) -> Result<Arc<dyn WorldState>, Error>;
}

/// Blocks and rows at a storage node, written under one epoch; see [`storage::node`].
#[derive(Clone)]
pub struct NodeStores {
    /// Where the node serves links.
    pub address: String,
    /// What the node asks for.
    pub token: Bytes,
    /// Of this compute node's time as primary.
    pub epoch: Epoch,
    pub states: Arc<dyn States>,
    /// Where it is noted how far the one channel has come there.
    pub watermark: Option<Arc<WatermarkFile>>,
}

#[async_trait]
impl Stores for NodeStores {
    async fn channels(&self) -> Result<Vec<String>, Error> {
        let mut channels = storage::node::channels(&self.address, &self.token).await?;
        channels.retain(|name| ledger::config::check_channel_name(name).is_ok());
        Ok(channels)
    }

    async fn open(&self, channel: &str) -> Result<ChannelStores, Error> {
        let options = RemoteOptions {
            address: self.address.clone(),
            token: self.token.clone(),
            channel: channel.to_owned(),
            epoch: self.epoch,
        };
        // First, because it fences whoever was primary before.
        let blocks = Arc::new(RemoteBlocks::open(options.clone()).await?);
        if let Some(watermark) = &self.watermark {
            drop(rt::spawn(note_blocks(Arc::downgrade(&blocks), watermark.clone())));
        }
        let rows = Arc::new(RemoteStateStore::open(options).await?);
        let state = self.states.open(channel, rows.clone()).await?;
        // Opening may take long, and notices of the savepoint come meanwhile, whoever is the primary by then.
        if state.height() > blocks.tip().height {
            return Err(Error::Storage(storage::Error::Remote {
                node: self.address.as_str().into(),
                kind: ErrorKind::Fenced,
                text: format!("block {} there is not of epoch {}", state.height() - 1, self.epoch),
            }));
        }
        Ok(ChannelStores { blocks, state, history: rows })
    }

    /// What came after the last note of [`note_blocks`] would not be missed otherwise.
    async fn stopped(&self, _channel: &str, durable: Watermark) {
        if let Some(watermark) = &self.watermark
            && let Err(error) = watermark.note(durable).await
        {
            watermark.missed(&error);
        }
    }
}

/// Begins an epoch of a channel at a storage node, for the next primary; the next one after `newest`, where that is given.
///
/// A node that has less than what was noted, or another chain, is refused before: neither it nor the note has changed then, so that
/// another try ends in the same way. The epoch is noted before anything is done under it.
///
/// # Errors
/// [`storage::Error::RolledBack`]; as [`storage::node::begin_epoch`] and [`storage::node::begin_epoch_after`].
pub async fn begin_epoch(
    options: RemoteOptions,
    newest: Option<Epoch>,
    watermark: Option<&WatermarkFile>,
) -> Result<Epoch, Error> {
    if let Some(watermark) = watermark {
        check_node(&options, watermark).await?;
    }
    let RemoteOptions { address, token, channel, .. } = options;
    let epoch = match newest {
        None => storage::node::begin_epoch(&address, &token, &channel).await?,
        Some(newest) => storage::node::begin_epoch_after(&address, &token, &channel, newest).await?,
    };
    if let Some(watermark) = watermark {
        watermark.note(Watermark { epoch, ..Watermark::default() }).await?;
    }
    Ok(epoch)
}

/// Compares what a storage node has with what was noted.
async fn check_node(options: &RemoteOptions, watermark: &WatermarkFile) -> Result<(), Error> {
    let (known, RemoteOptions { address, token, channel, .. }) = (watermark.noted().await, options);
    if known == Watermark::default() {
        return Ok(());
    }
    let newest = storage::node::newest_epoch(address, token, channel).await?;
    if newest < known.epoch {
        let epoch = known.epoch;
        let found = format!("storage node {address} has begun epoch {newest} of channel {channel}, and {epoch} before");
        return Err(watermark.rolled_back(found).into());
    }
    let Some(last) = known.height.checked_sub(1) else { return Ok(()) };
    let found = match RemoteReads::new(options.clone()).number_by_hash(&known.block_hash).await {
        // It has no such channel.
        Err(error) if error.kind() == ErrorKind::Rejected => None,
        found => found?,
    };
    if found != Some(BlockNumber(last)) {
        let found = format!("storage node {address} lacks block {last} of channel {channel}, which was durable there");
        return Err(watermark.rolled_back(found).into());
    }
    Ok(())
}

/// Notes how many blocks are durable at the storage node, until they are used no more.
async fn note_blocks(blocks: Weak<RemoteBlocks>, watermark: Arc<WatermarkFile>) {
    let Some(mut durable) = blocks.upgrade().map(|blocks| blocks.subscribe_durable()) else { return };
    loop {
        durable.borrow_and_update();
        let Some((height, block_hash)) = blocks.upgrade().map(|blocks| blocks.durable_tip()) else { return };
        if let Err(error) = watermark.note(Watermark { height, block_hash, ..Watermark::default() }).await {
            watermark.missed(&error);
        }
        rt::sleep(NOTE_PERIOD).await;
        if durable.changed().await.is_err() {
            return;
        }
    }
}

impl fmt::Debug for NodeStores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the token.
        f.debug_struct("NodeStores").field("address", &self.address).field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

/// Reads the rows that stored blocks write, for a storage node that makes them.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockRows;

impl Materializer for BlockRows {
    fn materialize(&self, number: BlockNumber, block: &Parts, batch: &mut RowBatch) -> Result<(), storage::Error> {
        let unreadable = |reason: String| storage::Error::Unreadable { block: number, reason };
        let parsed = Block::parse_pieces(block.as_slice()).map_err(|error| unreadable(error.to_string()))?;
        if parsed.number() != number {
            return Err(unreadable(format!("its bytes say that it is block {}", parsed.number())));
        }
        if number == BlockNumber(0) {
            // The genesis block writes nothing; its configuration is read from the block itself.
            return Ok(());
        }
        let writes = stored_writes(&parsed).map_err(|error| unreadable(error.to_string()))?;
        let value_bytes = writes.iter().filter_map(|write| write.value).map(<[u8]>::len).sum();
        let shares = batch.shares(block.len(), value_bytes);
        let [_, data, _] = parsed.parts();
        writes.into_iter().try_for_each(|StoredWrite { namespace, key, value, version }| {
            let own = |value| if shares { data.slice_ref(value) } else { Bytes::copy_from_slice(value) };
            batch.put(namespace, key.as_bytes(), version, value.map(own))
        })
    }
}

impl fmt::Debug for LocalStores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalStores").field("directory", &self.directory.path()).finish_non_exhaustive()
    }
}
