//! The interface to a channel's rows, and the materializer that makes the rows from blocks.

use base::rt::channel::WatchReceiver;
use base::rt::net::GatherList;
use base::{BlockNumber, Version};

use crate::Error;
use crate::blocks::{Blocks, NO_PREVIOUS};
use crate::tables::{RangePage, RangeQuery, Row, RowBatch, Savepoint};

/// Keys that one call of [`StateStore::get_many`] or [`StateStore::versions`] takes at most.
pub const KEYS_MAX: usize = 65_536;
/// Blocks that are read back and materialised in one batch.
pub const MATERIALIZE_BLOCKS_MAX: usize = 16;
/// A batch takes no further block once its rows reach this size in bytes.
pub const MATERIALIZE_BYTES_SOFT_MAX: usize = 64 << 20;
/// No further block is prepared once the blocks whose memory the prepared values share reach this size in bytes.
pub(super) const SHARED_BYTES_SOFT_MAX: usize = 2 * MATERIALIZE_BYTES_SOFT_MAX;

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

    /// The versions of those rows, and whether each is live (not a deletion). Cheaper, because values are not fetched.
    ///
    /// # Errors
    /// As [`StateStore::get_many`].
    async fn versions(
        &self,
        keys: &[(&str, &[u8])],
        through: BlockNumber,
    ) -> Result<Vec<Option<(Version, bool)>>, Error>;

    /// The live entries of a range. A page may end early, like one of [`crate::tables::Tables::range`].
    ///
    /// # Errors
    /// As [`StateStore::get`].
    async fn range(&self, query: RangeQuery<'_>) -> Result<RangePage, Error>;

    /// The namespaces that have rows, in byte order.
    ///
    /// # Errors
    /// Errors of the engine or of the link.
    async fn namespaces(&self) -> Result<Vec<String>, Error>;

    /// The last known durable savepoint: the rows of all blocks below its height are durable in the tables. A remote store
    /// may be further.
    fn savepoint(&self) -> Savepoint;

    /// A subscription to the height of [`StateStore::savepoint`].
    fn subscribe_savepoint(&self) -> WatchReceiver<u64>;

    /// Materialises the blocks below `height`, from the store's own blocks, durably. The call does not wait for blocks that
    /// are not durable yet: the savepoint returned shows how far it came.
    ///
    /// Dropping the future is safe; the work may continue.
    ///
    /// # Errors
    /// [`Error::Fenced`] if a newer primary has opened the channel; [`Error::Unreadable`]; errors of the engine or of the
    /// link.
    async fn materialize(&self, height: u64) -> Result<Savepoint, Error>;

    /// Declares that no reader will ask for a block below `oldest`: the store may remove versions that no such reader sees,
    /// a bounded number at each call. `oldest` may lie above the savepoint: versions in those blocks that no reader will
    /// see are not written.
    ///
    /// # Errors
    /// [`Error::Fenced`] if a newer primary has opened the channel; errors of the engine or of the link.
    async fn prune(&self, oldest: BlockNumber) -> Result<(), Error>;

    /// Confirms that the store still takes this client's changes: when this was called, no newer primary had opened the
    /// channel. Changes nothing. A local store has no other primary.
    ///
    /// # Errors
    /// [`Error::Fenced`] if a newer primary has opened the channel; errors of the link.
    async fn confirm(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// Extracts the writes of blocks. Storage cannot read transactions; the layers above can, and provide this.
pub trait Materializer: Send + Sync + 'static {
    /// Adds the rows that the valid transactions of a block write to `batch`, in the order of the transactions.
    ///
    /// `block` is the block as it was appended, its validity filter included, in one piece or in the parts in which it was
    /// appended. The same bytes must always give the same rows. Rows are kept for a while: [`RowBatch::shares`] says
    /// whether their values may be slices of the block or must be copies.
    ///
    /// # Errors
    /// [`Error::Unreadable`] if the bytes are not a block; errors of the batch.
    fn materialize(&self, number: BlockNumber, block: &GatherList, batch: &mut RowBatch) -> Result<(), Error>;

    /// Calls `visit` with the namespace and the key of each public write of the valid transactions of a block, in any order
    /// and possibly several times. These include writes that leave no row. By default, the keys of the rows.
    ///
    /// # Errors
    /// As [`Materializer::materialize`].
    fn visit_written(
        &self,
        number: BlockNumber,
        block: &GatherList,
        visit: &mut dyn FnMut(&str, &[u8]),
    ) -> Result<(), Error> {
        let mut batch = RowBatch::new(Savepoint { height: number.get().saturating_add(1), ..Savepoint::default() });
        self.materialize(number, block, &mut batch)?;
        batch.written().for_each(|(namespace, key)| visit(&namespace, &key));
        Ok(())
    }
}

/// Checks that tables at `savepoint` were made from these blocks.
///
/// A savepoint without a hash, as earlier versions wrote it, is compared by its height only.
///
/// # Errors
/// [`Error::Mismatched`], which names the remedy; errors of the block store.
pub async fn check_savepoint(blocks: &dyn Blocks, savepoint: &Savepoint) -> Result<(), Error> {
    let Some(newest) = savepoint.height.checked_sub(1) else { return Ok(()) };
    let advice = "restore the directory that was lost, or remove the tables, which are then made again from the blocks";
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
