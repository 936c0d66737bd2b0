//! A channel at a compute node that follows the primary: the state that it follows, and the blocks that storage keeps.

use std::sync::Arc;

use async_trait::async_trait;
use base::rt::channel::WatchReceiver;
use base::{BlockNumber, Bytes, TxId};
use ledger::{Block, Hash};
use state::{Reader, Snapshot};
use storage::blocks::{StoredBlocks, TransactionPlace};
use storage::node::{RemoteOptions, RemoteReads};

use crate::Error;
use crate::access::Rules;
use crate::commit::recent::{CommittedBlock, Recent};
use crate::commit::waiters::TxStatus;
use crate::endorse::EndorsingChannel;
use crate::history::KeyHistory;
use crate::validate::Code;
use crate::view::ChannelView;

/// A channel that another compute node of the peer commits. What it shows is durable, and applied there or about to be.
pub struct FollowedChannel {
    rules: Arc<Rules>,
    reader: Reader,
    blocks: Arc<RemoteReads>,
    history: Arc<KeyHistory>,
    recent: Recent,
}

impl FollowedChannel {
    pub(super) fn new(rules: Arc<Rules>, reader: Reader, remote: RemoteOptions) -> FollowedChannel {
        let blocks = Arc::new(RemoteReads::new(remote));
        let history = Arc::new(KeyHistory::new(blocks.clone(), blocks.clone()));
        FollowedChannel { rules, reader, blocks, history, recent: Recent::default() }
    }

    pub(super) fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Whether it could answer now.
    pub fn is_live(&self) -> bool {
        self.reader.is_live()
    }
}

#[async_trait]
impl ChannelView for FollowedChannel {
    fn rules(&self) -> &Arc<Rules> {
        &self.rules
    }

    fn height(&self) -> u64 {
        *self.reader.heights().borrow()
    }

    fn committed(&self) -> WatchReceiver<u64> {
        self.reader.heights()
    }

    async fn read_block(&self, number: u64) -> Result<Option<Bytes>, Error> {
        if number >= ChannelView::height(self) {
            return Ok(None);
        }
        Ok(self.blocks.read(BlockNumber(number)).await?)
    }

    async fn committed_block(&self, number: u64) -> Result<Option<Arc<CommittedBlock>>, Error> {
        if let Some(block) = self.recent.get(number) {
            return Ok(Some(block));
        }
        let Some(bytes) = self.read_block(number).await? else { return Ok(None) };
        let block = Arc::new(CommittedBlock::of_stored(Block::parse(&bytes)?)?);
        self.recent.offer(block.clone());
        Ok(Some(block))
    }

    async fn tx_status(&self, tx_id: &TxId) -> Result<Option<TxStatus>, Error> {
        let place = self.blocks.find_transaction(tx_id).await?;
        let status = place.map(|place| TxStatus { code: Code(place.code), block: place.block.get() });
        Ok(status.filter(|status| status.block < ChannelView::height(self)))
    }

    async fn wait_committed(&self, tx_id: &TxId) -> Result<TxStatus, Error> {
        let mut committed = self.committed();
        loop {
            committed.borrow_and_update();
            if let Some(status) = self.tx_status(tx_id).await? {
                return Ok(status);
            }
            committed.changed().await.map_err(|_| Error::Stopped)?;
        }
    }

    fn failure(&self) -> Option<Arc<Error>> {
        None
    }

    async fn stopped(&self) {
        std::future::pending().await
    }
}

#[async_trait]
impl EndorsingChannel for FollowedChannel {
    async fn snapshot(&self) -> Result<Arc<dyn Snapshot>, Error> {
        Ok(self.reader.snapshot().await?)
    }

    fn history(&self) -> &Arc<KeyHistory> {
        &self.history
    }

    async fn find_transaction(&self, tx_id: &TxId) -> Result<Option<TransactionPlace>, Error> {
        Ok(self.blocks.find_transaction(tx_id).await?)
    }

    async fn number_by_hash(&self, hash: &Hash) -> Result<Option<BlockNumber>, Error> {
        Ok(self.blocks.number_by_hash(hash).await?)
    }
}
