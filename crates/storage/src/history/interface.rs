//! The interface of a history, and its query.

use base::BlockNumber;

use crate::Error;

/// Blocks in one answer.
pub const HISTORY_BLOCKS_MAX: usize = 256;

/// Asks which blocks wrote a key.
#[derive(Clone, Copy, Debug)]
pub struct HistoryQuery<'a> {
    /// The namespace of the key.
    pub namespace: &'a str,
    /// The key.
    pub key: &'a [u8],
    /// The answer holds only blocks with lower numbers.
    pub below: BlockNumber,
    /// The most blocks of the answer, which are the newest.
    pub limit: usize,
}

/// The history of one channel: which blocks wrote a key.
#[async_trait::async_trait]
pub trait History: Send + Sync + 'static {
    /// The numbers of the blocks whose valid transactions wrote a key, newest first, and at most [`HISTORY_BLOCKS_MAX`]. To
    /// continue, ask below the last one; an empty answer is the end.
    ///
    /// In rare cases the answer includes a block that wrote only another key.
    ///
    /// # Errors
    /// `Retry` while the index is being built, and if a block below `below` is not durable yet; errors of engine, disk or
    /// link.
    async fn blocks_of(&self, query: HistoryQuery<'_>) -> Result<Vec<BlockNumber>, Error>;
}
