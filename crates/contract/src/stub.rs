//! The stub, which is everything that a contract can reach: one transaction's view of one namespace of the world state.
//!
//! All semantics are Fabric's:
//! 1. Every read sees the state at one block boundary, which is fixed when the stub is made. A read never sees the
//!    transaction's own writes.
//! 2. Writes are recorded; the last write of a key counts. An empty value is recorded as a delete (Fabric turns an
//!    empty value into a delete when it commits, so a ledger cannot hold an empty value).
//! 3. A query returns a handle, which the contract reads page by page, so that memory stays bounded however large the
//!    range is. The read set covers every returned page, even if the contract did not look at all of its entries.
//! 4. A transaction has at most one event: the last event that was set by the contract that the client called.

use std::collections::{BTreeMap, VecDeque};

use async_trait::async_trait;
use base::{Bytes, ChannelId, TxId};

use crate::key::KeyRange;
use crate::query::{PAGE_ENTRIES_MAX, QueryId, Timestamp};
use crate::{ContractResponse, HistoryPage, StubError};

/// A page ends early once its keys and values reach this many bytes; one entry may pass it.
pub const PAGE_BYTES_SOFT_MAX: usize = 4 << 20;

/// How deep contracts may call each other in one transaction.
pub const CALL_DEPTH_MAX: usize = 8;

/// One row of a query's result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyValue {
    /// The key, unique within the chaincode.
    pub key: String,
    /// Never empty.
    pub value: Bytes,
}

/// Some rows of a query's result, in the query's order; a range's order is that of the keys' bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StatePage {
    /// At most [`PAGE_ENTRIES_MAX`]; empty only when nothing is left.
    pub entries: Vec<KeyValue>,
    /// Whether another page follows. When false the query is closed already.
    pub has_more: bool,
}

/// One page of a range, and where the next one starts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BookmarkedPage {
    /// The entries, in the order of the keys' bytes.
    pub entries: Vec<KeyValue>,
    /// The start of the next page; empty at the end of the range.
    pub bookmark: String,
}

/// Named values that belong to a key beside its value.
pub type Metadata = BTreeMap<String, Bytes>;

/// The name of the metadata entry that holds the endorsement policy of a key.
pub const KEY_POLICY: &str = "VALIDATION_PARAMETER";

/// One transaction's view of the ledger, as a contract sees it.
///
/// Dropping any of its futures is safe; what was recorded so far stays recorded.
#[async_trait]
pub trait ContractStub: Send {
    /// The value of `key` at the transaction's block boundary; `None` when it has none.
    ///
    /// # Errors
    /// `InvalidKey` for the empty key, `State` when the state could not serve.
    async fn get_state(&mut self, key: &str) -> Result<Option<Bytes>, StubError>;

    /// The values of many keys, in their order. Implementations may read them in parallel; the effect is that of
    /// [`ContractStub::get_state`] on each.
    ///
    /// # Errors
    /// Those of [`ContractStub::get_state`].
    async fn get_states(&mut self, keys: &[String]) -> Result<Vec<Option<Bytes>>, StubError> {
        let mut values = Vec::with_capacity(keys.len());
        for key in keys {
            values.push(self.get_state(key).await?);
        }
        Ok(values)
    }

    /// Records a write. An empty value is recorded as a delete.
    ///
    /// # Errors
    /// `InvalidKey` for the empty key, `LimitExceeded`.
    fn put_state(&mut self, key: &str, value: Bytes) -> Result<(), StubError>;

    /// Records a delete, whether or not the key has a value.
    ///
    /// # Errors
    /// `InvalidKey` for the empty key, `LimitExceeded`.
    fn delete_state(&mut self, key: &str) -> Result<(), StubError>;

    /// Opens a query over `range`. Most contracts use a [`RangeCursor`] instead of the handle.
    ///
    /// # Errors
    /// `LimitExceeded` when too many queries are open, `State`.
    async fn open_range(&mut self, range: KeyRange) -> Result<QueryId, StubError>;

    /// The next page of an open query: at most `entries_max` entries, which is taken as 1 to [`PAGE_ENTRIES_MAX`].
    ///
    /// # Errors
    /// `UnknownQuery` also after the last page, `State`.
    async fn next_page(&mut self, query: QueryId, entries_max: usize) -> Result<StatePage, StubError>;

    /// Closes a query; closing one that is not open does nothing. Queries left open end with the transaction.
    fn close_query(&mut self, query: QueryId);

    /// Reads one page of `range` at once: at most `entries_max` entries, or as many as a peer returns if it is 0. The page
    /// tells where the next one starts, in this transaction or a later one. As in Fabric, a transaction that reads such a
    /// page must not write.
    ///
    /// # Errors
    /// `ReadOnly` if the transaction has written, `LimitExceeded`, `State`.
    async fn read_page(&mut self, range: KeyRange, entries_max: usize) -> Result<BookmarkedPage, StubError> {
        let _ = (range, entries_max);
        Err(StubError::Unsupported("a query by pages"))
    }

    /// The metadata of `key`, by name; without an entry if there is none. Recorded as a read of the key.
    ///
    /// # Errors
    /// Those of [`ContractStub::get_state`].
    async fn get_metadata(&mut self, key: &str) -> Result<Metadata, StubError> {
        let _ = key;
        Err(StubError::Unsupported("the metadata of a key"))
    }

    /// Replaces the metadata of `key`. The entry [`KEY_POLICY`] is the endorsement policy of the key, a bare
    /// `SignaturePolicyEnvelope`. On a key without a value it has no effect.
    ///
    /// # Errors
    /// Those of [`ContractStub::put_state`].
    fn set_metadata(&mut self, key: &str, metadata: Metadata) -> Result<(), StubError> {
        let _ = (key, metadata);
        Err(StubError::Unsupported("the metadata of a key"))
    }

    /// The value of `key` in a private collection.
    ///
    /// # Errors
    /// `InvalidKey` for the empty key; `Collection` if there is no such collection, the client may not read it, or this peer
    /// does not have the value whose hash is on the ledger; `State`.
    async fn get_private(&mut self, collection: &str, key: &str) -> Result<Option<Bytes>, StubError> {
        let _ = (collection, key);
        Err(StubError::Unsupported("private data"))
    }

    /// The SHA-256 of the value of `key` in a private collection. Every peer knows it, whether or not its organisation is a
    /// member of the collection, and every client may ask for it.
    ///
    /// # Errors
    /// `InvalidKey` for the empty key; `Collection` if there is no such collection; `State`.
    async fn get_private_hash(&mut self, collection: &str, key: &str) -> Result<Option<Bytes>, StubError> {
        let _ = (collection, key);
        Err(StubError::Unsupported("private data"))
    }

    /// Records a write to a private collection. An empty value is recorded as a delete.
    ///
    /// # Errors
    /// `InvalidKey` for the empty key; `Collection` if there is no such collection or the client may not write to it;
    /// `LimitExceeded`, `State`.
    async fn put_private(&mut self, collection: &str, key: &str, value: Bytes) -> Result<(), StubError> {
        let _ = (collection, key, value);
        Err(StubError::Unsupported("private data"))
    }

    /// Records a delete in a private collection.
    ///
    /// # Errors
    /// Those of [`ContractStub::put_private`].
    async fn delete_private(&mut self, collection: &str, key: &str) -> Result<(), StubError> {
        self.put_private(collection, key, Bytes::new()).await
    }

    /// Records a delete in a private collection that also removes every earlier value of the key from the peers' disks.
    ///
    /// # Errors
    /// Those of [`ContractStub::put_private`]; `Unsupported` unless the channel has the capability `V2_5`.
    async fn purge_private(&mut self, collection: &str, key: &str) -> Result<(), StubError> {
        let _ = (collection, key);
        Err(StubError::Unsupported("private data"))
    }

    /// Opens a query over a range of a private collection, read by [`ContractStub::next_page`]. Its result is not checked
    /// again at commit, so a transaction with such a query must not write.
    ///
    /// # Errors
    /// Those of [`ContractStub::open_range`] and [`ContractStub::get_private`]; `ReadOnly` if the transaction has written.
    async fn open_private_range(&mut self, collection: &str, range: KeyRange) -> Result<QueryId, StubError> {
        let _ = (collection, range);
        Err(StubError::Unsupported("private data"))
    }

    /// The metadata of a private key; see [`ContractStub::get_metadata`].
    ///
    /// # Errors
    /// Those of [`ContractStub::get_private`].
    async fn get_private_metadata(&mut self, collection: &str, key: &str) -> Result<Metadata, StubError> {
        let _ = (collection, key);
        Err(StubError::Unsupported("private data"))
    }

    /// Replaces the metadata of a private key; see [`ContractStub::set_metadata`].
    ///
    /// # Errors
    /// Those of [`ContractStub::put_private`].
    async fn set_private_metadata(&mut self, collection: &str, key: &str, metadata: Metadata) -> Result<(), StubError> {
        let _ = (collection, key, metadata);
        Err(StubError::Unsupported("private data"))
    }

    /// Opens a rich query (CouchDB's selector syntax). Its result is not checked again at commit.
    ///
    /// # Errors
    /// `Unsupported` unless the channel's state evaluates such queries.
    async fn open_query(&mut self, selector: &str) -> Result<QueryId, StubError> {
        let _ = selector;
        Err(StubError::Unsupported("a rich query"))
    }

    /// Opens a query of what `key` held: every change by a valid transaction below the transaction's block boundary, newest
    /// first (Fabric's `GetHistoryForKey`). Not part of the read set. Most contracts use a
    /// [`HistoryCursor`](crate::HistoryCursor) instead of the handle.
    ///
    /// # Errors
    /// `InvalidKey` for the empty key, `LimitExceeded` when too many queries are open, `State`; `Unsupported` unless the
    /// channel's ledger is at hand.
    async fn open_history(&mut self, key: &str) -> Result<QueryId, StubError> {
        let _ = key;
        Err(StubError::Unsupported("the history of a key"))
    }

    /// The next page of an open history: at most `entries_max` changes, which is taken as 1 to [`PAGE_ENTRIES_MAX`].
    ///
    /// # Errors
    /// `UnknownQuery` also after the last page, `State`.
    async fn next_modifications(&mut self, query: QueryId, entries_max: usize) -> Result<HistoryPage, StubError> {
        let _ = entries_max;
        Err(StubError::UnknownQuery(query.0))
    }

    /// Calls another contract within this transaction. On the same channel (`channel` empty or this one's) its reads and
    /// writes join the transaction's; on another channel it only reads. A failed call comes back as a response with its
    /// status, and the caller decides.
    ///
    /// # Errors
    /// `CallRefused` if the contract is unknown, not approved or not initialised, if it is running already, or if the channel is
    /// unknown; `LimitExceeded` beyond [`CALL_DEPTH_MAX`], `Unsupported`, `State`.
    async fn invoke_contract(
        &mut self,
        name: &str,
        args: Vec<Bytes>,
        channel: &str,
    ) -> Result<ContractResponse, StubError>;

    /// Sets the transaction's event, replacing an earlier one. Only the contract that the client called has its event
    /// recorded.
    ///
    /// # Errors
    /// `InvalidEvent` for an empty name.
    fn set_event(&mut self, name: &str, payload: Bytes) -> Result<(), StubError>;

    /// The transaction's id.
    fn tx_id(&self) -> &TxId;

    /// The channel it runs on.
    fn channel_id(&self) -> &ChannelId;

    /// The client's time of the proposal.
    fn timestamp(&self) -> Timestamp;

    /// Who signed the proposal: `SerializedIdentity` bytes, already verified by the peer.
    fn creator(&self) -> &Bytes;

    /// Data for the endorsers' eyes only; never on the ledger.
    fn transient(&self) -> &BTreeMap<String, Bytes>;

    /// All of the invocation's arguments, the function name first.
    fn args(&self) -> &[Bytes];

    /// Whether the client initialises the contract with this call.
    fn is_init(&self) -> bool {
        false
    }

    /// The encoded `SignedProposal` of the client, which a contract outside of this process expects; empty if there is none.
    fn signed_proposal(&self) -> Bytes {
        Bytes::new()
    }
}

/// Reads an open query entry by entry, holding one page at most.
///
/// It does not borrow the stub, so that a contract can read and write between two entries.
#[derive(Debug)]
pub struct RangeCursor {
    query: QueryId,
    page: VecDeque<KeyValue>,
    page_entries: usize,
    has_more: bool,
}

impl RangeCursor {
    /// Opens a query over `range`.
    ///
    /// # Errors
    /// Those of [`ContractStub::open_range`].
    pub async fn open(tx: &mut dyn ContractStub, range: KeyRange) -> Result<Self, StubError> {
        Ok(Self::over(tx.open_range(range).await?))
    }

    /// Reads a query that is open already.
    pub fn over(query: QueryId) -> Self {
        Self { query, page: VecDeque::new(), page_entries: PAGE_ENTRIES_MAX, has_more: true }
    }

    /// Reads at most `entries` at a time, so that a contract that wants few does not depend on many.
    #[must_use]
    pub fn with_page_entries(mut self, entries: usize) -> Self {
        self.page_entries = entries.clamp(1, PAGE_ENTRIES_MAX);
        self
    }

    /// The next entry; `None` at the end, again and again.
    ///
    /// # Errors
    /// Those of [`ContractStub::next_page`].
    pub async fn next(&mut self, tx: &mut dyn ContractStub) -> Result<Option<KeyValue>, StubError> {
        while self.page.is_empty() && self.has_more {
            let page = tx.next_page(self.query, self.page_entries).await?;
            self.has_more = page.has_more;
            self.page = page.entries.into();
        }
        Ok(self.page.pop_front())
    }

    /// Gives the query up before its end.
    pub fn close(self, tx: &mut dyn ContractStub) {
        if self.has_more {
            tx.close_query(self.query);
        }
    }
}
