//! Where the pages are that are not resident.

use std::future::Future;
use std::pin::Pin;

use base::{Bytes, BytesMut};

use crate::page::{PageNumber, PageRange};

/// The outcome of a store's operation.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// A store of one region's pages.
///
/// It is called by the threads that serve the region's page faults. So it must not touch a region, and must not wait for a thread
/// that may: neither for a lock that is held over an access to far memory, nor for a logger.
///
/// The region reads a page only after a write of it was acknowledged, and never has two operations on one page in flight, but for
/// reads that overlap. Dropping the future of a write leaves open what the store holds of its pages.
pub trait PageStore: Send + Sync + 'static {
    /// Reads pages of one [group](crate::PageGroup), and appends them to `into`. The read is posted before the function
    /// returns, if no step has to come before it: so several can be in flight.
    fn read(&self, range: PageRange, into: BytesMut) -> StoreFuture<'_, BytesMut>;

    /// Writes pages; `bytes` has as many. When it succeeds, the store holds them for as long as its nodes live. When it
    /// fails, the store holds none of the pages any more.
    fn write(&self, range: PageRange, bytes: Bytes) -> StoreFuture<'_, ()>;

    /// Whether the store holds a page, as far as it knows. It may learn of a loss later.
    fn holds(&self, page: PageNumber) -> bool;

    /// Forgets pages, which will be written before they are read again.
    fn discard(&self, range: PageRange);
}

/// Why a store could not read or write.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreError {
    /// These pages are lost for good.
    #[error("{range:?} were lost with {node}")]
    Lost {
        /// Pages of the range that was asked for.
        range: PageRange,
        /// The memory node or storage that had them.
        node: String,
    },
    /// The store has no room. It may have later, when the pool grows.
    #[error("no room for more pages: {0}")]
    Full(String),
    /// It did not work this time.
    #[error("{0}")]
    Unavailable(String),
}
