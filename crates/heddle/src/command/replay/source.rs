//! Reads the recorded blocks from their files, and serves them to the peer as an orderer does.
//!
//! Each block is read from its file when it is needed, and served without the metadata that Fabric's peer added to it.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::Bytes;
use base::rt::channel::{WatchReceiver, WatchSender, watch};
use base::rt::net::LinkAcceptor;
use base::rt::{self, CancellationToken};
use block_transport::{BlockSource, ChannelBlocks};
use ledger::Block;
use ledger::config::ChannelConfig;

use crate::failure::CommandError;

/// The metadata slot of a block in which peers keep the commit hash.
const COMMIT_HASH_SLOT: usize = 4;

/// The recorded blocks as an orderer would deliver them: without the metadata that peers add.
pub struct RecordedBlocks {
    folder: PathBuf,
    genesis: Block,
    channel: String,
    count: u64,
    /// The number of blocks that are served.
    height: WatchSender<u64>,
    stop: CancellationToken,
}

impl RecordedBlocks {
    /// The first `count` blocks in this folder, of which the genesis block is served. Reads that block.
    pub fn open(folder: &Path, count: u64) -> Result<RecordedBlocks, CommandError> {
        let genesis = read_block(folder, 0)?;
        let config = ChannelConfig::from_block(&genesis).map_err(|error| {
            CommandError::about(
                &block_file(folder, 0),
                format!("it is no genesis block: {error}; record the channel from block 0"),
            )
        })?;
        let (height, _) = watch(1);
        Ok(RecordedBlocks {
            folder: folder.to_owned(),
            genesis,
            channel: config.channel().to_string(),
            count,
            height,
            stop: CancellationToken::new(),
        })
    }

    pub fn genesis(&self) -> &Block {
        &self.genesis
    }

    /// The number of blocks, including the genesis block.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Serves all blocks from now on, and not the genesis block alone.
    pub fn release(&self) {
        self.height.send(self.count);
    }

    /// The file of this block.
    pub fn file(&self, number: u64) -> PathBuf {
        block_file(&self.folder, number)
    }

    /// Reads a block as an orderer would deliver it.
    pub fn read(&self, number: u64) -> Result<Block, CommandError> {
        let block = read_block(&self.folder, number)?;
        let mut metadata = block.metadata().clone();
        metadata.set_filter(Bytes::new());
        metadata.set_slot(COMMIT_HASH_SLOT, Bytes::new());
        Ok(block.with_metadata(metadata))
    }

    /// Makes the checks that a peer makes on a received block, with the configuration after the blocks before it.
    pub fn check_received(&self, number: u64, config: &ChannelConfig) -> Result<(), String> {
        let text = |error: CommandError| error.message().unwrap_or_default().to_owned();
        let block = self.read(number).map_err(text)?;
        let previous = number.checked_sub(1).map(|previous| self.read(previous)).transpose().map_err(text)?;
        let follows = block.check_follows(number, previous.map(|previous| previous.hash()).as_ref());
        let checked = follows.and_then(|()| block.check_data_hash()).and_then(|()| block.verify_signatures(config));
        checked.map_err(|error| error.to_string())
    }
}

impl ChannelBlocks for RecordedBlocks {
    fn is_member(&self, _organization: &str) -> bool {
        // A link within a process does not prove a name.
        true
    }

    fn deliverable(&self) -> WatchReceiver<u64> {
        self.height.subscribe()
    }

    fn may_lag(&self) -> bool {
        false
    }

    fn block(&self, number: u64) -> Result<Option<Bytes>, Box<dyn Error + Send + Sync>> {
        if number >= *self.height.borrow() {
            return Ok(None);
        }
        let block = self.read(number).map_err(|error| error.message().unwrap_or_default().to_owned())?;
        Ok(Some(block.to_bytes()))
    }

    fn stopping(&self) -> &CancellationToken {
        &self.stop
    }
}

/// Serves the blocks to the links that arrive here, until the returned guard is dropped.
pub fn serve(blocks: &Arc<RecordedBlocks>, acceptor: LinkAcceptor) -> StopServing {
    drop(rt::spawn(block_transport::serve(Arc::new(RecordedSource(blocks.clone())), acceptor)));
    StopServing(blocks.stop.clone())
}

/// Ends the source of the blocks and its links when it is dropped, however the replay ends.
pub struct StopServing(CancellationToken);

impl Drop for StopServing {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// An orderer that has one channel.
struct RecordedSource(Arc<RecordedBlocks>);

impl BlockSource for RecordedSource {
    fn channel(&self, name: &str) -> Option<Arc<dyn ChannelBlocks>> {
        (name == self.0.channel).then(|| self.0.clone() as Arc<dyn ChannelBlocks>)
    }

    fn stopping(&self) -> &CancellationToken {
        &self.0.stop
    }
}

/// The file of this block in a folder of recorded blocks.
pub fn block_file(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number:04}.block"))
}

/// Reads a block as it was recorded, with the metadata of Fabric's peer.
pub fn read_block(folder: &Path, number: u64) -> Result<Block, CommandError> {
    let path = block_file(folder, number);
    let bytes = std::fs::read(&path).map_err(|error| CommandError::about(&path, error))?;
    let block = Block::parse(&bytes.into()).map_err(|error| {
        CommandError::about(
            &path,
            format!("it is no block ({error}); it must hold one common.Block, as a peer delivers it"),
        )
    })?;
    match block.number().get() {
        found if found == number => Ok(block),
        found => Err(CommandError::about(
            &path,
            format!("it holds block {found}; the names of the files must be the blocks' numbers"),
        )),
    }
}
