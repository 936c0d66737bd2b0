//! The world state of one logical peer in one channel: what contracts read and what blocks change.
//!
//! [`WorldState`] is the contract between the chain and whatever holds the state. [`Monolithic`] keeps it in the storage
//! engine of its own process; the disaggregated form keeps it on pooled memory behind the same trait (FlexChain,
//! section 4). A reader takes a [`Snapshot`], which sees one block boundary for as long as it lives: never half a block.
//!
//! Invariants:
//! 1. Blocks are applied in order and each one whole: block `n` is visible to no reader or to every snapshot taken after.
//! 2. A snapshot at height `h` returns for each key the newest version written by a block below `h`.
//! 3. What [`WorldState::persist`] has returned from survives a crash; what came after it is re-applied from the ledger,
//!    starting at [`WorldState::savepoint`]. The caller stores a block durably before it applies it.
//!
//! The ledger of blocks, conflict checks and read-write sets are the chain's.

mod cache;
mod delta;
mod digest;
pub mod disaggregated;
mod error;
pub mod events;
#[doc(hidden)]
pub mod fuzz;
mod monolithic;
mod update;

pub use disaggregated::{Disaggregated, DisaggregatedSettings, Reader, Usage};
pub use error::Error;
pub use monolithic::{Monolithic, Settings};
pub use update::{Update, UpdateBatch};

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use base::{Bytes, Version};

/// A value together with the transaction that wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned {
    pub value: Bytes,
    pub version: Version,
}

/// One entry of a range: key, value, version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: Arc<str>,
    pub versioned: Versioned,
}

/// Keys and values of one page of a range, in bytes, at which it ends.
pub const RANGE_BYTES_SOFT_MAX: usize = 4 << 20;

/// Some entries of a range, in byte order of keys.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct RangePage {
    pub entries: Vec<Entry>,
    /// Whether a live entry follows the last one; never true of a page without entries.
    pub more: bool,
}

/// Keys and versions of some entries of a range, in byte order of keys.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct VersionPage {
    pub entries: Vec<(Arc<str>, Version)>,
    /// Whether a live entry follows the last one; never true of a page without entries.
    pub more: bool,
}

/// Ends once a block is durable, or cannot be.
pub type Durable<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + Send + 'a>>;

/// The world state of one peer in one channel.
#[async_trait::async_trait]
pub trait WorldState: Send + Sync + 'static {
    /// Number of blocks applied: the next block to apply has this number.
    fn height(&self) -> u64;

    /// A view of the state after the last applied block.
    fn snapshot(&self) -> Arc<dyn Snapshot>;

    /// Applies block `number` as one batch. On return every later snapshot sees it; it is not yet durable here.
    ///
    /// Values may be parts of the block they came in: a state that holds one for longer holds a copy.
    ///
    /// Not cancellation safe: drive it to its end.
    ///
    /// # Errors
    /// [`Error::OutOfOrder`] unless `number` equals [`WorldState::height`]; storage errors otherwise.
    async fn apply(&self, number: u64, batch: UpdateBatch) -> Result<(), Error>;

    /// Applies block `number` while it becomes durable: what nobody sees is done meanwhile, the rest once `durable` has ended well.
    /// `durable` must not wait for this state, whose savepoint may have to wait for the block.
    ///
    /// Not cancellation safe: drive it to its end.
    ///
    /// # Errors
    /// Those of [`WorldState::apply`], and what `durable` ended with: then the block is not applied, and may be given again.
    async fn apply_when(&self, number: u64, batch: UpdateBatch, durable: Durable<'_>) -> Result<(), Error> {
        durable.await?;
        self.apply(number, batch).await
    }

    /// Whether so much waits to be persisted that the caller should do that before it applies the next block. Apply itself
    /// never waits for the disk, so that a full one is waited out in one place.
    fn wants_persist(&self) -> bool {
        false
    }

    /// How many other compute nodes of the peer follow this one.
    fn readers(&self) -> usize {
        0
    }

    /// Room for a piece of work at another compute node of the peer that is at most so busy, in percent, and that `trusts`
    /// takes by its name ([`disaggregated::readers::work`]).
    fn place_work(&self, _load_max: u8, _trusts: &dyn Fn(&str) -> bool) -> Option<disaggregated::readers::Place> {
        None
    }

    /// Makes every applied block durable and moves the savepoint to the current height.
    async fn persist(&self) -> Result<u64, Error>;

    /// Blocks below this number are durable in the state and are not replayed after a crash.
    fn savepoint(&self) -> u64;

    /// SHA-256 over every live (namespace, key, value, version) in order: equal states have equal digests.
    async fn digest(&self) -> Result<[u8; 32], Error>;
}

/// The state at one block boundary.
#[async_trait::async_trait]
pub trait Snapshot: Send + Sync {
    /// Number of blocks this snapshot sees.
    fn height(&self) -> u64;

    /// The live value of `key`, or `None` where it was never written or was deleted.
    async fn get(&self, namespace: &str, key: &str) -> Result<Option<Versioned>, Error>;

    /// The version of `key` alone: what a conflict check needs.
    async fn version(&self, namespace: &str, key: &str) -> Result<Option<Version>, Error>;

    /// The versions of many keys at once, in the order asked.
    async fn versions(&self, keys: &[(&str, &str)]) -> Result<Vec<Option<Version>>, Error> {
        let mut versions = Vec::with_capacity(keys.len());
        for (namespace, key) in keys {
            versions.push(self.version(namespace, key).await?);
        }
        Ok(versions)
    }

    /// At most `limit` live entries with `start <= key < end` in byte order of keys; an empty `end` means no upper bound.
    ///
    /// A page also ends once its keys and values have [`RANGE_BYTES_SOFT_MAX`] bytes; one entry may pass that. Where a page
    /// ends depends on the entries alone, so that it is the same at all peers.
    async fn range(&self, namespace: &str, start: &str, end: &str, limit: usize) -> Result<RangePage, Error>;

    /// [`Snapshot::range`] without the values: what a conflict check needs. Where a page ends short of `limit` is the
    /// implementation's business.
    async fn range_versions(
        &self,
        namespace: &str,
        start: &str,
        end: &str,
        limit: usize,
    ) -> Result<VersionPage, Error> {
        let RangePage { entries, more } = self.range(namespace, start, end, limit).await?;
        let entries = entries.into_iter().map(|entry| (entry.key, entry.versioned.version)).collect();
        Ok(VersionPage { entries, more })
    }
}
