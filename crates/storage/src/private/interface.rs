//! The interface to private rows.

use base::{BlockNumber, Bytes, Version};

use crate::Error;
use crate::tables::{RangePage, RangeQuery, Row};

/// Which of a channel's private rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrivateTable {
    /// Private data of committed transactions.
    Committed,
    /// Private data of transactions that may be ordered later.
    Transient,
}

impl PrivateTable {
    /// The suffix of the tables' name after the channel's name. No channel's name contains it.
    pub(crate) const fn suffix(self) -> &'static str {
        match self {
            PrivateTable::Committed => "_private",
            PrivateTable::Transient => "_transient",
        }
    }
}

/// A row to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrivateRow {
    /// At most [`NAMESPACE_BYTES_MAX`](crate::tables::NAMESPACE_BYTES_MAX) bytes.
    pub namespace: String,
    /// At most [`KEY_BYTES_MAX`](crate::tables::KEY_BYTES_MAX) bytes.
    pub key: Bytes,
    /// The version that the row adds to its key. Of rows with the same key and version the last one counts.
    pub version: Version,
    /// The value; `None` deletes the key.
    pub value: Option<Bytes>,
}

/// Rows of all versions, in the order of their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowsPage {
    /// The rows.
    pub rows: Vec<PrivateRow>,
    /// Where the next page begins; `None` if there are no more rows.
    pub next: Option<Bytes>,
}

/// One table of private rows of a channel; see [the module](super).
#[async_trait::async_trait]
pub trait PrivateRows: Send + Sync + 'static {
    /// Writes rows atomically. They are visible and durable on return.
    ///
    /// Dropping the future is safe; the rows may be written.
    ///
    /// # Errors
    /// [`Error::Fenced`] if a newer primary has opened the channel; [`Error::TooLarge`]; errors of the engine or of the link,
    /// after which the rows may have been written.
    async fn write(&self, rows: Vec<PrivateRow>) -> Result<(), Error>;

    /// The newest row of each of at most [`KEYS_MAX`](crate::state_store::KEYS_MAX) keys that has a version of a block numbered
    /// at most `through`, in the order asked. A deletion is a row too.
    ///
    /// # Errors
    /// [`Error::TooOld`] below the block that [`PrivateRows::prune`] was last given, or if the process has been restarted since;
    /// errors of the engine or of the link.
    async fn get_many(&self, keys: &[(&str, &[u8])], through: BlockNumber) -> Result<Vec<Option<Row>>, Error>;

    /// The live entries of a range. A page may end early, like one of [`crate::tables::Tables::range`].
    ///
    /// # Errors
    /// As [`PrivateRows::get_many`].
    async fn range(&self, query: RangeQuery<'_>) -> Result<RangePage, Error>;

    /// Declares that no reader will ask for a block below `oldest`, and removes superseded and deleted rows, a bounded number at
    /// each call. Returns whether this call has reached the end of the table.
    ///
    /// # Errors
    /// [`Error::Fenced`] if a newer primary has opened the channel; errors of the engine or of the link.
    async fn prune(&self, oldest: BlockNumber) -> Result<bool, Error>;
}
