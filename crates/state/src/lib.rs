//! The world state of one logical peer in one channel, which contracts read and blocks change.
//!
//! ```
//! use base::rt::{disk::Directory, simulation::Simulation};
//! use base::{Bytes, Version};
//! use state::{Error, Monolithic, MonolithicConfig, UpdateBatch, Versioned, WorldState};
//! use storage::tables::{ModelEngine, TablesEngine};
//!
//! let report = Simulation::new(7).run(|_sim| async {
//!     let directory = Directory::open("tables").await.expect("the simulated disk works");
//!     let engine = ModelEngine::open(directory).await?;
//!     let state = Monolithic::open(engine.tables("trade").await?, MonolithicConfig::default());
//!
//!     // Block 0, which the caller has stored durably, writes one key.
//!     let before = state.snapshot();
//!     let (version, red) = (Version::new(0, 0), Bytes::from_static(b"red"));
//!     let mut batch = UpdateBatch::default();
//!     batch.put(&"basic".into(), "car1".into(), Some(red.clone()), version);
//!     state.apply(0, batch).await?;
//!
//!     // A snapshot sees one block boundary for as long as it lives.
//!     let after = state.snapshot();
//!     assert_eq!(before.get("basic", "car1").await?, None);
//!     assert_eq!(after.get("basic", "car1").await?, Some(Versioned { value: red, version }));
//!
//!     // From the savepoint on, the state needs block 0 no longer.
//!     assert_eq!(state.savepoint(), 0);
//!     assert_eq!(state.persist().await?, 1);
//!     assert_eq!(state.savepoint(), 1);
//!     Ok::<(), Error>(())
//! });
//! report.expect("the run succeeds").value.expect("the state answers");
//! ```
//!
//! [`WorldState`] is the contract between the chain and any implementation of the state. [`Monolithic`] keeps it in the
//! storage engine of its own process; the disaggregated form ([`Disaggregated`]) keeps it on pooled memory behind the
//! same trait (FlexChain, section 4). A reader takes a [`Snapshot`], which sees one block boundary for as long as it
//! lives: never half a block.
//!
//! # Guarantees
//!
//! 1. Blocks are applied in order, each as a whole: a snapshot sees all of block `n` or none of it. Once block `n` is
//!    visible, every snapshot taken later sees it.
//! 2. A snapshot at height `h` returns for each key the newest version written by a block below `h`.
//! 3. A block that [`WorldState::persist`] covered when it returned survives a crash. After a crash the caller
//!    re-applies the later blocks from the ledger, starting at [`WorldState::savepoint`]; for this it stores each
//!    block durably before it applies it.
//!
//! # What it needs around it
//!
//! * `chain` takes snapshots to endorse and to check conflicts, applies the blocks that it has stored, and decides
//!   when to persist. It is responsible for the ledger of blocks, conflict checks and read-write sets.
//! * `replica` decides which compute node of a peer is its primary, keeps the followers, and grants them leases; the
//!   disaggregated form implements its traits ([`disaggregated::followers`]).
//! * `storage` provides the tables of [`Monolithic`], and the storage node that materialises rows for
//!   [`Disaggregated`].
//! * `pool` provides the address space of [`Disaggregated`] on the donors' memory, and fences an older primary there.
//! * `node` chooses the peer form, and provides links, memory and storage.
#![deny(missing_docs)]

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

pub use disaggregated::{Disaggregated, DisaggregatedConfig, Follower, StateUsage};
pub use error::Error;
pub use monolithic::{Monolithic, MonolithicConfig};
pub use update::{Update, UpdateBatch};

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use base::{Bytes, Version};

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
}
