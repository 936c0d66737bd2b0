//! Tables and the engine that opens them.

use std::sync::Arc;

use base::{BlockNumber, Bytes, Version};

use crate::Error;
use crate::private::RowsPage;
use crate::tables::batch::RowBatch;
use crate::tables::savepoint::Savepoint;

/// Rows that one call of [`Tables::range`] passes over at most; beyond that it returns what it has.
pub const SCAN_ROWS_MAX: usize = 100_000;
/// A page of a range ends once its keys and values reach this size in bytes; the last entry may exceed it.
pub const SCAN_BYTES_SOFT_MAX: usize = 4 << 20;

/// The least number of rows that one call of [`Tables::prune`] examines, if any: a deletion and one row below it, so that
/// each call makes progress.
pub const PRUNE_ROWS_MIN: usize = 2;

/// A version of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The transaction that wrote it.
    pub version: Version,
    /// The value; `None` if it deleted the key.
    pub value: Option<Bytes>,
}

/// One entry of a range: a live key with its newest readable version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeEntry {
    /// The key, without its namespace.
    pub key: Bytes,
    /// The value of that version.
    pub value: Bytes,
    /// The transaction that wrote it.
    pub version: Version,
}

/// A question for the entries of a range of keys: those with `start <= key < end`, in byte order.
#[derive(Clone, Copy, Debug)]
pub struct RangeQuery<'a> {
    /// The namespace of the keys.
    pub namespace: &'a str,
    /// The first key that may be in the range.
    pub start: &'a [u8],
    /// The first key behind the range; empty if there is no upper bound.
    pub end: &'a [u8],
    /// The answer holds the rows as of this block.
    pub through: BlockNumber,
    /// The most entries of the answer.
    pub limit: usize,
}

/// Part of a range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangePage {
    /// In the byte order of keys.
    pub entries: Vec<RangeEntry>,
    /// The `start` of the call that continues; `None` if the range is exhausted.
    pub next: Option<Bytes>,
}

/// What a call of [`Tables::prune`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PruneOutcome {
    /// Rows examined.
    pub scanned: usize,
    /// Rows removed.
    pub removed: usize,
    /// Whether the end of the tables was reached; the next call begins at their start again.
    pub finished: bool,
}

/// Opens the tables of channels. One engine serves all channels of a node.
#[async_trait::async_trait]
pub trait TablesEngine: Send + Sync + 'static {
    /// The tables of this name, created empty if they do not exist. The same name always gives the same tables.
    ///
    /// # Errors
    /// [`Error::Version`] for tables of another format; [`Error::Corrupt`] for damage; engine errors.
    async fn tables(&self, name: &str) -> Result<Arc<dyn Tables>, Error> {
        self.open(name, ReadableFrom::Savepoint).await
    }

    /// As [`TablesEngine::tables`]; `readable` says what can be read before the first [`Tables::prune`]. It counts when the
    /// tables are opened for the first time in this process.
    ///
    /// # Errors
    /// As [`TablesEngine::tables`].
    async fn open(&self, name: &str, readable: ReadableFrom) -> Result<Arc<dyn Tables>, Error>;

    /// Removes all rows of the tables of this name and their savepoint. Durable on return. Handles of these tables must not be
    /// used any more; opening the name again gives empty tables.
    ///
    /// # Errors
    /// [`Error::Invalid`] from an engine that cannot; errors of the engine, after which some rows may be gone.
    async fn clear(&self, _name: &str) -> Result<(), Error> {
        Err(Error::Invalid("this engine does not remove tables"))
    }
}

/// Below which block reads are refused until [`Tables::prune`] raises the bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadableFrom {
    /// The last block before the savepoint: earlier processes may have pruned rows that only older readers see.
    Savepoint,
    /// This block, if it is older: for rows whose savepoint may be ahead of the channel's blocks. Earlier processes pruned for
    /// readers at this block or older ones, promises the caller.
    Block(BlockNumber),
}

impl ReadableFrom {
    /// The oldest readable block of tables with this savepoint.
    pub(super) fn oldest(self, savepoint: Savepoint) -> u64 {
        match self {
            ReadableFrom::Savepoint => savepoint.height.saturating_sub(1),
            ReadableFrom::Block(oldest) => oldest.get().min(savepoint.height.saturating_sub(1)),
        }
    }
}

/// The rows of one channel's world state.
///
/// Calls touch memory, or files through the page cache, and return; only [`Tables::persist`] waits for the device. A write
/// waits while the engine is syncing or its merging has fallen behind: call it where a stall does no harm
/// ([`base::rt::blocking`]).
#[async_trait::async_trait]
pub trait Tables: Send + Sync + 'static {
    /// Adds rows and moves the savepoint, atomically. Visible on return, durable after [`Tables::persist`].
    ///
    /// # Errors
    /// [`Error::Fenced`] under an older epoch than the savepoint's; [`Error::Invalid`] for a savepoint that goes back, or
    /// rows that it does not cover. In these cases nothing has changed.
    fn write(&self, batch: RowBatch) -> Result<(), Error>;

    /// Makes everything written before this call durable; returns the savepoint that is now durable.
    ///
    /// Dropping the future is safe; it is then unknown how much has become durable.
    ///
    /// # Errors
    /// Engine errors; after a failed fsync the tables take no further writes until they are opened again.
    async fn persist(&self) -> Result<Savepoint, Error>;

    /// The savepoint of all written rows.
    fn savepoint(&self) -> Savepoint;

    /// The savepoint that is known to be durable.
    fn durable_savepoint(&self) -> Savepoint;

    /// The newest row of a key that was written by a block numbered at most `through`. A deletion is a row too.
    ///
    /// A `through` at or above the savepoint's height reads at the savepoint.
    ///
    /// # Errors
    /// [`Error::TooOld`] below the block that [`Tables::prune`] was last given, or below the savepoint found at opening;
    /// engine errors.
    fn get(&self, namespace: &str, key: &[u8], through: BlockNumber) -> Result<Option<Row>, Error>;

    /// The version of that row and whether it is live (not a deletion). Cheaper: the value is not fetched.
    ///
    /// # Errors
    /// As [`Tables::get`].
    fn version(&self, namespace: &str, key: &[u8], through: BlockNumber) -> Result<Option<(Version, bool)>, Error> {
        Ok(self.get(namespace, key, through)?.map(|row| (row.version, row.value.is_some())))
    }

    /// [`Tables::get`] for many keys of a namespace, in the order asked.
    ///
    /// # Errors
    /// As [`Tables::get`].
    fn get_many(&self, namespace: &str, keys: &[&[u8]], through: BlockNumber) -> Result<Vec<Option<Row>>, Error> {
        keys.iter().map(|key| self.get(namespace, key, through)).collect()
    }

    /// The live entries of a range. Fewer than `limit` entries with a `next` mean that [`SCAN_ROWS_MAX`] rows were passed
    /// over, or that the entries have [`SCAN_BYTES_SOFT_MAX`] bytes.
    ///
    /// # Errors
    /// As [`Tables::get`].
    fn range(&self, query: RangeQuery<'_>) -> Result<RangePage, Error>;

    /// The namespaces that have rows, in byte order.
    ///
    /// # Errors
    /// Engine errors.
    fn namespaces(&self) -> Result<Vec<String>, Error>;

    /// Whether the tables hold this very row.
    ///
    /// # Errors
    /// [`Error::Invalid`] from tables that cannot tell; engine errors.
    fn has_row(&self, _namespace: &str, _key: &[u8], _version: Version, _is_live: bool) -> Result<bool, Error> {
        Err(Error::Invalid("these tables do not tell single rows"))
    }

    /// The rows of all keys and versions, in the order of row keys, from a place on (empty: from the first row on); at most
    /// `limit`, fewer if they are large ([`SCAN_BYTES_SOFT_MAX`]). For copying tables; sees rows that are not durable yet.
    ///
    /// # Errors
    /// [`Error::Invalid`] from tables that cannot be scanned; engine errors.
    fn scan(&self, _from: &[u8], _limit: usize) -> Result<RowsPage, Error> {
        Err(Error::Invalid("these tables cannot be scanned"))
    }

    /// Declares that no reader will ask for a block below `oldest`: for each key, the call may remove the versions that the
    /// newest one at or below `oldest` supersedes, and that one too if it is a deletion that is durably covered. Examines
    /// at most `rows_max` rows (at least [`PRUNE_ROWS_MIN`]; 0 only raises the bound), and continues where the last call
    /// stopped.
    ///
    /// # Errors
    /// Engine errors.
    fn prune(&self, oldest: BlockNumber, rows_max: usize) -> Result<PruneOutcome, Error>;
}

/// Refuses a read whose rows may have been pruned.
pub(super) fn check_readable(through: u64, oldest: u64) -> Result<(), Error> {
    if through < oldest {
        return Err(Error::TooOld { through: BlockNumber(through), oldest: BlockNumber(oldest) });
    }
    Ok(())
}
