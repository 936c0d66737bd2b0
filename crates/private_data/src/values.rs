//! Reads the private values that a peer has.

use async_trait::async_trait;
use base::Bytes;

use crate::Error;

/// Some private keys of a collection, in the byte order of the keys, with the newest values that this peer has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrivatePage {
    /// Keys and values.
    pub entries: Vec<(String, Bytes)>,
    /// The start of the next page; `None` at the end of the range.
    pub next: Option<String>,
}

/// The private values of a channel that a peer has. They may be older than the state, or missing: callers compare each value's
/// hash with that in the state.
#[async_trait]
pub trait PrivateValues: Send + Sync {
    /// The newest value of a key among those written by blocks below `height`.
    ///
    /// # Errors
    /// The store's; `Retry` if the store no longer has the values at that height.
    async fn value(&self, contract: &str, collection: &str, key: &str, height: u64) -> Result<Option<Bytes>, Error>;

    /// The keys in a range (start, and end unless it is empty) with their newest values among those written by blocks below
    /// `height`; at most `limit`.
    ///
    /// # Errors
    /// As [`PrivateValues::value`].
    async fn range(
        &self,
        contract: &str,
        collection: &str,
        range: (&str, &str),
        height: u64,
        limit: usize,
    ) -> Result<PrivatePage, Error>;
}
