//! What a world state that is kept elsewhere asks of storage.
//!
//! A world state in pooled memory keeps what was written since the savepoint itself, and storage keeps the rest
//! (FlexChain, section 4.1.2). Values are not sent to storage a second time: it has the blocks, and makes them into rows.
//!
//! 1. The primary appends a block with its validity filter to the [block store](crate::blocks::Blocks) and waits until it
//!    is durable.
//! 2. The storage side has a [`Materializer`] name the rows that the valid transactions of each durable block wrote, while the
//!    block's bytes are still at hand or else when they are read back. By itself, or when [`StateStore::materialize`] asks,
//!    it writes the rows of the blocks behind the savepoint to the tables, with the new savepoint, as one batch.
//! 3. Once that is durable it is the savepoint: readers are told, and from then on may drop what it covers from memory.
//! 4. A reader asks for the rows of keys as of a block. It merges them with what it keeps itself above the savepoint.
//!
//! Invariants:
//! * The savepoint never goes back, never covers a block that is not durable, and carries that block's header hash.
//! * Rows are a function of the blocks: making them twice, or after a crash again, changes nothing.
//! * A read through block `b` below the savepoint sees every row of blocks up to `b` and none of a later one. A read at or
//!   above the savepoint reads at the savepoint.

mod local;
mod memory;

#[cfg(test)]
pub(crate) mod tests;

use base::rt::channel::WatchReceiver;
use base::rt::net::Parts;
use base::{BlockNumber, Version};

pub use local::LocalStateStore;
pub use memory::MemoryStateStore;

use crate::Error;
use crate::blocks::{Blocks, NO_PREVIOUS};
use crate::tables::{RangePage, Row, RowBatch, Savepoint};

/// Keys that one call of [`StateStore::get_many`] or [`StateStore::versions`] takes at most.
pub const KEYS_MAX: usize = 65_536;
/// Blocks that are read back and made into rows in one batch.
pub const MATERIALIZE_BLOCKS_MAX: usize = 16;
/// A batch takes no further block once its rows have so many bytes.
pub const MATERIALIZE_BYTES_SOFT_MAX: usize = 64 << 20;
/// No further block is prepared once those that prepared values are parts of have so many bytes.
const SHARED_BYTES_SOFT_MAX: usize = 2 * MATERIALIZE_BYTES_SOFT_MAX;

/// Rows of one channel's world state, made from its blocks; see [the module](self).
#[async_trait::async_trait]
pub trait StateStore: Send + Sync + 'static {
    /// The newest row of a key that was written by a block numbered at most `through`. A deletion is a row too.
    ///
    /// # Errors
    /// [`Error::TooOld`] below the block that [`StateStore::prune`] was last given; errors of the engine or of the link.
    async fn get(&self, namespace: &str, key: &[u8], through: BlockNumber) -> Result<Option<Row>, Error>;

    /// [`StateStore::get`] for at most [`KEYS_MAX`] pairs of namespace and key, in the order asked.
    ///
    /// # Errors
    /// As [`StateStore::get`]; [`Error::TooLarge`].
    async fn get_many(&self, keys: &[(&str, &[u8])], through: BlockNumber) -> Result<Vec<Option<Row>>, Error>;

    /// The versions of those rows and whether each is live (not a deletion). Cheaper: values are not fetched.
    ///
    /// # Errors
    /// As [`StateStore::get_many`].
    async fn versions(
        &self,
        keys: &[(&str, &[u8])],
        through: BlockNumber,
    ) -> Result<Vec<Option<(Version, bool)>>, Error>;

    /// At most `limit` live entries with `start <= key < end` in byte order of keys, as of block `through`; an empty `end`
    /// means no upper bound. A page may end early, as that of [`crate::tables::Tables::range`].
    ///
    /// # Errors
    /// As [`StateStore::get`].
    async fn range(
        &self,
        namespace: &str,
        start: &[u8],
        end: &[u8],
        through: BlockNumber,
        limit: usize,
    ) -> Result<RangePage, Error>;

    /// The namespaces that have rows, in byte order.
    ///
    /// # Errors
    /// Errors of the engine or of the link.
    async fn namespaces(&self) -> Result<Vec<String>, Error>;

    /// The last known durable savepoint: the rows of all blocks below its height are durable in the tables. What lies
    /// behind a link may be further.
    fn savepoint(&self) -> Savepoint;

    /// Follows the height of [`StateStore::savepoint`].
    fn subscribe_savepoint(&self) -> WatchReceiver<u64>;

    /// Makes the blocks below `height` into rows, from the store's own blocks, and makes that durable. Blocks that are
    /// not durable yet are waited for by nobody: the savepoint returned says how far it came.
    ///
    /// Dropping the future is safe; the work may go on.
    ///
    /// # Errors
    /// [`Error::Fenced`] when a newer primary has opened the channel; [`Error::Unreadable`]; errors of engine or link.
    async fn materialize(&self, height: u64) -> Result<Savepoint, Error>;

    /// From now on nobody reads below block `oldest`: versions that no such reader sees may go, a bounded number at each
    /// call. Blocks from the savepoint up to `oldest` count too: versions of theirs that nobody will see are not written.
    ///
    /// # Errors
    /// [`Error::Fenced`] when a newer primary has opened the channel; errors of engine or link.
    async fn prune(&self, oldest: BlockNumber) -> Result<(), Error>;

    /// Whether changes of this client's would still be taken: on return no newer primary had opened the channel when this was
    /// called. Changes nothing. A store of one process has no other.
    ///
    /// # Errors
    /// [`Error::Fenced`] when a newer primary has opened the channel; errors of the link.
    async fn confirm(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// Says what blocks write. Storage cannot read transactions; the layers above can, and give it this.
pub trait Materializer: Send + Sync + 'static {
    /// Adds the rows that the valid transactions of a block write to `batch`, in the order of the transactions.
    ///
    /// `block` is what was appended, its validity filter included, in one piece or in the parts in which it was appended. The same
    /// bytes give the same rows, always. Rows are held for a while: [`RowBatch::shares`] says whether their values are to be parts
    /// of the block or copies.
    ///
    /// # Errors
    /// [`Error::Unreadable`] where the block is not one; the batch's own.
    fn materialize(&self, number: BlockNumber, block: &Parts, batch: &mut RowBatch) -> Result<(), Error>;
}

/// Checks that tables at `savepoint` were made from these blocks.
///
/// A savepoint without a hash, as earlier versions wrote it, is compared by its height only.
///
/// # Errors
/// [`Error::Mismatched`], which names what to do; the block store's.
pub async fn check_savepoint(blocks: &dyn Blocks, savepoint: &Savepoint) -> Result<(), Error> {
    let Some(newest) = savepoint.height.checked_sub(1) else { return Ok(()) };
    let advice = "restore the directory that was lost, or remove the tables: they are made again from the blocks";
    let height = blocks.height();
    if savepoint.height > height {
        let found = format!("the tables hold {} blocks, the block store {height}", savepoint.height);
        return Err(Error::Mismatched { reason: format!("{found}; {advice}") });
    }
    if savepoint.block_hash == NO_PREVIOUS {
        return Ok(());
    }
    let hash = match savepoint.height == height {
        true => Some(blocks.tip().header_hash),
        false => blocks.read_stored(BlockNumber(newest)).await?.map(|block| block.header_hash),
    };
    if hash != Some(savepoint.block_hash) {
        let found = format!("the tables were made from another block {newest} than the one stored");
        return Err(Error::Mismatched { reason: format!("{found}; {advice}") });
    }
    Ok(())
}

/// Refuses a batch of keys that is too long.
pub(crate) fn check_keys(count: usize) -> Result<(), Error> {
    match count <= KEYS_MAX {
        true => Ok(()),
        false => Err(Error::TooLarge { what: "keys of one call", given: count as u64, max: KEYS_MAX as u64 }),
    }
}
