//! The interface of a world state: versioned values, ranges, snapshots, and the application of blocks.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use base::{Bytes, Version};

use crate::error::Error;
use crate::update::UpdateBatch;

/// A value together with the transaction that wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned {
    /// The value. A key that was deleted has none, and no `Versioned`.
    pub value: Bytes,
    /// The transaction that wrote the value.
    pub version: Version,
}

/// One entry of a range: key, value, version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateEntry {
    /// The key, without its namespace.
    pub key: Arc<str>,
    /// The value and its version.
    pub versioned: Versioned,
}

/// Bytes of keys and values at which a page of a range ends.
pub const RANGE_BYTES_SOFT_MAX: usize = 4 << 20;

/// Some entries of a range, in byte order of keys.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct RangePage {
    /// The live entries, in byte order of keys.
    pub entries: Vec<StateEntry>,
    /// Whether a live entry follows the last one; never true of a page without entries.
    pub more: bool,
}

/// Keys and versions of some entries of a range, in byte order of keys.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct VersionPage {
    /// The keys of live entries, in byte order, each with its version.
    pub entries: Vec<(Arc<str>, Version)>,
    /// Whether a live entry follows the last one; never true of a page without entries.
    pub more: bool,
}

/// Completes once a block is durable, or with the error if it cannot be.
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
    /// Values may be slices of the block they came in: a state that keeps one for longer copies it.
    ///
    /// Not cancellation safe: poll it to completion.
    ///
    /// # Errors
    /// [`Error::OutOfOrder`] unless `number` equals [`WorldState::height`]; storage errors otherwise.
    async fn apply(&self, number: u64, batch: UpdateBatch) -> Result<(), Error>;

    /// Applies block `number` while it becomes durable: does the invisible part meanwhile, the rest once `durable` has
    /// succeeded. `durable` must not wait for this state, whose savepoint may have to wait for the block.
    ///
    /// Not cancellation safe: poll it to completion.
    ///
    /// # Errors
    /// Those of [`WorldState::apply`], and the error of `durable`: then the block is not applied, and may be given
    /// again.
    async fn apply_when(&self, number: u64, batch: UpdateBatch, durable: Durable<'_>) -> Result<(), Error> {
        durable.await?;
        self.apply(number, batch).await
    }

    /// Whether the caller should persist before it applies the next block, because too much is unpersisted. Apply
    /// itself never waits for the disk, so that a full disk is waited for in one place.
    fn wants_persist(&self) -> bool {
        false
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

    /// The live value of `key`, or `None` if it was never written or was deleted.
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
    /// A page also ends once its keys and values have [`RANGE_BYTES_SOFT_MAX`] bytes; one entry may exceed that. Where
    /// a page ends depends only on the entries, so it ends at the same entry on all peers.
    async fn range(&self, namespace: &str, start: &str, end: &str, limit: usize) -> Result<RangePage, Error>;

    /// [`Snapshot::range`] without the values: what a conflict check needs. If a page ends short of `limit`, the
    /// implementation decides where.
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

    /// Whether a namespace may have live rows. False only if it has none. Cheap for a namespace that has had none since an
    /// earlier call.
    async fn may_have_rows(&self, namespace: &str) -> Result<bool, Error> {
        Ok(!self.range_versions(namespace, "", "", 1).await?.entries.is_empty())
    }
}
