//! The interface of a channel's block store, whether it is local or remote.
//!
//! [`BlockStore`] keeps the blocks in this process; a storage node keeps them for other machines. Both accept only the
//! block that continues the chain, and both find again, after a crash, every block that a sync has covered.
//!
//! 1. [`Blocks::append`] takes a block. After it returns, reads of this object see the block.
//! 2. [`Blocks::sync`] returns once all blocks appended before the call are durable. One call may cover several blocks,
//!    and further blocks can be appended meanwhile.
//! 3. An error of kind `Retry` or `Rejected` refuses one block and leaves the object usable. After any other error the
//!    caller must open the store again; its height then shows which blocks arrived.

use std::sync::Arc;

use base::rt::channel::WatchReceiver;
use base::{BlockNumber, Bytes, TxId};

use super::{BlockStore, ChainTip, NewBlock, StoredBlock, TransactionLocation};
use crate::Error;

/// Blocks of one page of [`Blocks::read_page`].
pub const PAGE_BLOCKS_MAX: usize = 64;
/// A page ends once its blocks reach this size in bytes; the last block may exceed it.
pub const PAGE_BYTES_SOFT_MAX: usize = 8 << 20;

/// The blocks of one channel; see [the module](self).
#[async_trait::async_trait]
pub trait Blocks: Send + Sync + 'static {
    /// Appends the next block. Visible to readers of this object on return, durable after [`Blocks::sync`].
    ///
    /// A future that is dropped may have appended the block or not; ask [`Blocks::tip`].
    ///
    /// # Errors
    /// As [`BlockStore::append`]. A remote store may learn only later that a block was refused; then every following call
    /// fails, [`Blocks::sync`] first.
    async fn append(&self, block: NewBlock<'_>) -> Result<(), Error>;

    /// Makes everything appended before this call durable; returns the number of durable blocks.
    ///
    /// # Errors
    /// As [`BlockStore::sync`], and errors of appends that failed in the meantime.
    async fn sync(&self) -> Result<u64, Error>;

    /// Number of blocks appended.
    fn height(&self) -> u64 {
        self.tip().height
    }

    /// The end of the chain.
    fn tip(&self) -> ChainTip;

    /// Number of blocks that are known to be durable.
    fn durable_height(&self) -> u64;

    /// A subscription to [`Blocks::durable_height`].
    fn subscribe_durable(&self) -> WatchReceiver<u64>;

    /// The bytes of a block, as they were appended; `None` at and above the height.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if they differ from the bytes that were written; errors of the operating system or of the link.
    async fn read(&self, number: BlockNumber) -> Result<Option<Bytes>, Error>;

    /// A block with everything that was appended with it; `None` at and above the height.
    ///
    /// # Errors
    /// As [`Blocks::read`].
    async fn read_stored(&self, number: BlockNumber) -> Result<Option<StoredBlock>, Error>;

    /// The blocks from number `from` on, at most `limit` and [`PAGE_BLOCKS_MAX`], fewer if they are large
    /// ([`PAGE_BYTES_SOFT_MAX`]); empty only at and above the height.
    ///
    /// # Errors
    /// As [`Blocks::read`].
    async fn read_page(&self, from: BlockNumber, limit: usize) -> Result<Vec<StoredBlock>, Error>;

    /// The transactions of a block in order, with their validation codes; `None` at and above the height.
    ///
    /// # Errors
    /// As [`Blocks::read`].
    async fn transactions(&self, number: BlockNumber) -> Result<Option<Vec<(TxId, u8)>>, Error>;

    /// The number of the block with this header hash.
    ///
    /// # Errors
    /// As [`Blocks::read`].
    async fn number_by_hash(&self, header_hash: &[u8; 32]) -> Result<Option<BlockNumber>, Error>;

    /// Where each of these transactions was committed first, valid or not, in the order of `ids`. The duplicate check of a
    /// whole block asks for all of its transactions at once.
    ///
    /// # Errors
    /// As [`Blocks::read`].
    async fn find_transactions(&self, ids: &[TxId]) -> Result<Vec<Option<TransactionLocation>>, Error>;

    /// [`Blocks::find_transactions`] for one transaction.
    ///
    /// # Errors
    /// As [`Blocks::read`].
    async fn find_transaction(&self, id: &TxId) -> Result<Option<TransactionLocation>, Error> {
        Ok(self.find_transactions(std::slice::from_ref(id)).await?.pop().flatten())
    }

    /// Makes everything durable and releases open resources. Reads that do not need them still work.
    ///
    /// # Errors
    /// As [`Blocks::sync`].
    async fn close(&self) -> Result<(), Error>;
}

/// The reads of a channel's durable blocks, for a user that does not append; see [`Blocks`] for each.
#[async_trait::async_trait]
pub trait StoredBlocks: Send + Sync + 'static {
    /// The bytes of a block, as they were appended; `None` at and above the height.
    ///
    /// # Errors
    /// As [`Blocks::read`].
    async fn read(&self, number: BlockNumber) -> Result<Option<Bytes>, Error>;

    /// The number of the block with this header hash.
    ///
    /// # Errors
    /// As [`Blocks::read`].
    async fn number_by_hash(&self, header_hash: &[u8; 32]) -> Result<Option<BlockNumber>, Error>;

    /// Where a transaction was committed first, valid or not.
    ///
    /// # Errors
    /// As [`Blocks::read`].
    async fn find_transaction(&self, id: &TxId) -> Result<Option<TransactionLocation>, Error>;
}

#[async_trait::async_trait]
impl StoredBlocks for Arc<dyn Blocks> {
    async fn read(&self, number: BlockNumber) -> Result<Option<Bytes>, Error> {
        self.as_ref().read(number).await
    }

    async fn number_by_hash(&self, header_hash: &[u8; 32]) -> Result<Option<BlockNumber>, Error> {
        self.as_ref().number_by_hash(header_hash).await
    }

    async fn find_transaction(&self, id: &TxId) -> Result<Option<TransactionLocation>, Error> {
        self.as_ref().find_transaction(id).await
    }
}

#[async_trait::async_trait]
impl Blocks for BlockStore {
    async fn append(&self, block: NewBlock<'_>) -> Result<(), Error> {
        BlockStore::append(self, block).await
    }

    async fn sync(&self) -> Result<u64, Error> {
        BlockStore::sync(self).await
    }

    fn tip(&self) -> ChainTip {
        BlockStore::tip(self)
    }

    fn durable_height(&self) -> u64 {
        BlockStore::durable_height(self)
    }

    fn subscribe_durable(&self) -> WatchReceiver<u64> {
        BlockStore::subscribe_durable(self)
    }

    async fn read(&self, number: BlockNumber) -> Result<Option<Bytes>, Error> {
        BlockStore::read(self, number)
    }

    async fn read_stored(&self, number: BlockNumber) -> Result<Option<StoredBlock>, Error> {
        BlockStore::read_stored(self, number)
    }

    async fn read_page(&self, from: BlockNumber, limit: usize) -> Result<Vec<StoredBlock>, Error> {
        let mut page = Vec::new();
        let mut bytes = 0;
        for block in self.iterate(from).take(limit.min(PAGE_BLOCKS_MAX)) {
            let block = block?;
            bytes += block.payload.len();
            page.push(block);
            if bytes >= PAGE_BYTES_SOFT_MAX {
                break;
            }
        }
        Ok(page)
    }

    async fn transactions(&self, number: BlockNumber) -> Result<Option<Vec<(TxId, u8)>>, Error> {
        BlockStore::transactions(self, number)
    }

    async fn number_by_hash(&self, header_hash: &[u8; 32]) -> Result<Option<BlockNumber>, Error> {
        BlockStore::number_by_hash(self, header_hash)
    }

    async fn find_transactions(&self, ids: &[TxId]) -> Result<Vec<Option<TransactionLocation>>, Error> {
        ids.iter().map(|id| BlockStore::find_transaction(self, id)).collect()
    }

    async fn close(&self) -> Result<(), Error> {
        BlockStore::close(self).await
    }
}
