//! A replicated key-value store on the replicated memory of [`sift`] (Sift, section 4).
//!
//! ```
//! use base::Bytes;
//! use base::rt::{self, CancellationToken, simulation::Simulation};
//! use kv::{KvConfig, KvStore, Precondition, StoreGeometry, SwapOutcome};
//! use rma::{HostConfig, NodeId, Provider, TOKEN_BYTES, Token, sim::SimProvider};
//! use sift::{
//!     GroupId, GroupMemory, LogMemoryNode, LogMemoryNodeConfig, MemoryNodeAddress, SiftGroup, SiftTimeouts, Standby,
//! };
//! use std::{sync::Arc, time::Duration};
//!
//! const ADDRESSES: [&str; 3] = ["memory0", "memory1", "memory2"];
//! const TOKEN: Token = Token::new([3; TOKEN_BYTES]);
//! const ID: GroupId = GroupId(1);
//! const SIZES: StoreGeometry = StoreGeometry { log_bytes: 8192, buckets: 8, blocks: 1024, block_bytes: 128 };
//!
//! let report = Simulation::new(7).run(|sim| async move {
//!     let (provider, layout) = (SimProvider::new(&sim), SIZES.group_layout(64 << 10)?);
//!     for (number, address) in ADDRESSES.into_iter().enumerate() {
//!         let provider = provider.clone();
//!         drop(sim.node(address).spawn(async move {
//!             let options = HostConfig { node: NodeId(number as u32), tokens: Arc::new(|_| Some(TOKEN)) };
//!             let host = provider.host(address, options).await.expect("the address is free");
//!             let groups = vec![GroupMemory { id: ID, layout }];
//!             let config = LogMemoryNodeConfig { host, groups, stop: CancellationToken::new() };
//!             let node = LogMemoryNode::start(config).await.expect("the sizes are valid");
//!             node.failed().await; // It serves until then.
//!         }));
//!     }
//!     rt::sleep(Duration::from_millis(20)).await; // The memory nodes listen by then.
//!
//!     let place = |at: &str| MemoryNodeAddress { address: at.to_owned(), name: "cpu".to_owned(), token: TOKEN };
//!     let nodes = ADDRESSES.map(place).to_vec();
//!     let (provider, timing) = (Arc::new(provider), SiftTimeouts::of_busy_machines());
//!     let group = SiftGroup { id: ID, layout, nodes, provider, timing };
//!     sift::format(&group).await?;
//!
//!     // The coordinator of the group serves the store. A put returns once a majority of memory nodes has it.
//!     let first = Standby::new(group.clone(), 1)?.take_over().await?;
//!     let store = KvStore::take_over(first, SIZES, KvConfig::default()).await?;
//!     let version = store.put(Bytes::from_static(b"key"), Bytes::from_static(b"one")).await?;
//!     let condition = Precondition::Version(version);
//!     let swap = store.compare_and_set(Bytes::from_static(b"key"), condition, Some(Bytes::from_static(b"two"))).await?;
//!     assert!(matches!(swap, SwapOutcome::Done(newer) if newer > version));
//!
//!     // The coordinator ends; the next one has the store.
//!     store.coordinator().step_down();
//!     let second = Standby::new(group, 2)?.take_over().await?;
//!     let store = KvStore::take_over(second, SIZES, KvConfig::default()).await?;
//!     assert_eq!(&store.get(b"key").await?.expect("it was put").value[..], b"two");
//!     Ok::<(), kv::Error>(())
//! });
//! report.expect("the run succeeds").value.expect("a majority of memory nodes answers");
//! ```
//!
//! # Protocol
//!
//! ```text
//!  unlogged region | log of puts and deletes, circular                            one verb a node and entry
//!  logged memory   | cursor, seal | index | bitmap | blocks, in chains            transactions of the coordinator
//!  coordinator     | cache with all unapplied entries | index | bitmap            soft state
//! ```
//!
//! 1. A put or delete becomes an entry at the end of the log, with its index, term, the checksum of the previous entry and its
//!    own checksum. Entries are posted in the order of their indexes; that is the order in which operations take effect. Once
//!    the entry is posted, the cache has the new value. The caller is acknowledged when a majority has the entry.
//! 2. A get is answered from the cache, once a majority has the cached entry. If the cache does not have the key, the get is
//!    answered from index and chain in remote memory. A get is answered only while the coordinator's lease stands.
//! 3. A compare-and-set is compared with the newest entry of its key; no other entry comes between the comparison and its own
//!    entry. A compare-and-set that fails is answered like a get.
//! 4. Entries are applied in the background ([`apply`]): each transaction applies as many whole entries as fit, with all their
//!    changes of index, chain, bitmap and blocks. The last transaction of a run of entries also moves the cursor, and then the
//!    log before the cursor is free. A put waits for free space in the log; this wait is the back-pressure.
//! 5. A watcher gets every entry that a majority has, in order, including those that later entries have overwritten
//!    ([`watch`]).
//! 6. A new coordinator ([`recover`]) reads cursor and seal, and the log behind the cursor from a majority. It writes back the
//!    entries that some node may lack and writes its own seal; for this it need not wait until an earlier lease has ended. Then
//!    it serves: keys of the log from the cache, all others from index and chains in remote memory. While it serves, it loads
//!    the index and applies the log.
//!
//! Why nothing acknowledged is lost. The *seal* says where the log ended when the coordinator of the seal's term took it over.
//! A coordinator posts entries only once its seal is committed. So the valid entries behind the seal are of the seal's term,
//! and of one coordinator; a majority had the entries up to the seal before the seal was committed. A new coordinator reads a
//! majority, in which at least one node has every acknowledged entry. Where two entries continue the chain, the entry of the
//! greater term counts. The entry of the smaller term was posted before the seal of the greater term, and the takeover that
//! wrote this seal did not find it. The space of entries is reused only when the cursor has passed them. The cursor is moved by
//! the last of the transactions that apply the entries which it passes, so these entries are then in logged memory.
//!
//! Why an entry may be applied twice. A takeover keeps only the newest entry of each key. Applying an entry changes the record
//! of its key alone, and an applied entry is recognised by its version in the chain.
//!
//! Why the blocks suffice. A put is admitted only when the free blocks suffice for all unapplied entries, not counting the
//! blocks that deletes and shorter values would free. If the cache knows the key's value, a put reserves only the blocks by
//! which the new value exceeds it. For each key, add up the blocks by which each entry exceeds the previous entry. Applying the
//! key's entries allocates at most this sum, whichever of them are left out and whichever are already applied.
//!
//! Why a get that walks a chain is right. Buckets are divided into *stripes*, each with a counter. The counter of a chain's
//! stripe becomes odd before a transaction changes the chain, and even again after the transaction. A walk is valid only if the
//! counter was even at its start and is the same at its end, and if the cache still does not have the key. So no entry of the
//! key was posted or applied during the walk.
//!
//! # Guarantees
//!
//! The simulation in `tests/kv/kv_simulation` checks them under faults:
//! * Gets, puts, deletes and compare-and-sets are linearizable, also across coordinators.
//! * An answer shows only entries that a majority has.
//! * Every unapplied entry is in the cache, whatever the cache's budget.
//! * Live nodes hold the same log behind the cursor.
//! * A store that fails ends its coordinator with it, so that another coordinator can take the store over.
//! * Bounded: the log, and with it the unapplied entries; the rest of the cache ([`KvConfig::cache_bytes`]); waiting callers
//!   ([`WAITING_MAX`]); entries in flight ([`IN_FLIGHT_MAX`]); watchers, and the changes that wait for them.
//!
//! A store may also be kept in tables of the storage engine ([`persist`]).
//!
//! The store's log is in the unlogged region of the replicated memory, which every node holds in full: it is never
//! erasure-coded.
//!
//! # What it needs around it
//!
//! * [`sift`] elects the coordinator and replicates the memory; `storage` has the tables of a store that persists.
//! * `node` runs a store's memory nodes and CPU nodes, and serves its clients over gRPC.
//! * The module [`raft_baseline`] has the same store on the crate `raft`. It is what the store is
//!   measured against, in benchmarks and in its own simulation; no product runs it.
#![deny(missing_docs)]

mod apply;
mod cache;
mod error;
pub mod fault;
#[doc(hidden)]
pub mod fuzz;
mod layout;
mod log;
mod persist;
pub mod raft_baseline;
mod recover;
mod table;
mod watch;

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::rt::sync::{Notify, Semaphore};
use base::rt::{self, CancellationToken, guarded};
use base::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use sift::layout::LogCursor;
use sift::{Coordinator, RecoveredCoordinator, WriteHandle};

use cache::{CacheSlot, KvCache};
pub use error::Error;
use fault::{Mutant, mutant};
pub use layout::{KEY_BYTES_MAX, RECORD_BLOCKS_MAX, StoreGeometry};
pub use persist::PersistentTables;
pub use watch::{ChangeEvent, KeyWatch};

/// Callers that wait.
pub const WAITING_MAX: usize = 1 << 16;
/// Entries that are posted and whose callers have not been answered.
pub const IN_FLIGHT_MAX: usize = 1024;
/// Stripes of buckets.
const STRIPES: usize = 4096;
/// In the cached index: the bucket is not loaded yet.
const UNKNOWN: u64 = u64::MAX;

/// How a store is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvConfig {
    /// Bytes of the cache, in addition to the unapplied entries.
    pub cache_bytes: usize,
}

impl Default for KvConfig {
    fn default() -> KvConfig {
        KvConfig { cache_bytes: 256 << 20 }
    }
}

/// A value and its version: the index of the entry that wrote it. Versions of all keys grow together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VersionedValue {
    /// The value.
    pub value: Bytes,
    /// Its version.
    pub version: u64,
}

/// The condition of a compare-and-set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Precondition {
    /// The key has no value.
    Absent,
    /// It has this version.
    Version(u64),
    /// It has this value.
    Value(Bytes),
    /// It has some value.
    Present,
}

impl Precondition {
    pub(crate) fn holds(&self, found: Option<&VersionedValue>) -> bool {
        match (self, found) {
            (Precondition::Absent, None) | (Precondition::Present, Some(_)) => true,
            (Precondition::Version(version), Some(found)) => found.version == *version,
            (Precondition::Value(value), Some(found)) => found.value == *value,
            _ => false,
        }
    }
}

/// The outcome of a compare-and-set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SwapOutcome {
    /// The key was changed; this is the new version.
    Done(u64),
    /// The condition did not hold; this is the current value.
    Mismatch(Option<VersionedValue>),
}

/// The state of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvStatus {
    /// The last entry.
    pub last: u64,
    /// The last entry that is applied.
    pub applied: u64,
    /// Bytes of the log in use.
    pub log_used_bytes: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Bytes of the cache.
    pub cache_bytes: usize,
    /// Buckets of the index that are loaded here.
    pub buckets_known: u64,
    /// Entries that the takeover found in the log.
    pub recovered: usize,
    /// The last entry in the tables, if the store is kept in tables.
    pub persisted: Option<u64>,
}

/// A store that is served by its coordinator. All clones are the same store; it ends with its coordinator, or when the last
/// clone is dropped.
#[derive(Clone)]
pub struct KvStore {
    shared: Arc<KvCore>,
    _alive: Arc<StopOnDrop>,
}

struct StopOnDrop(Arc<KvCore>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.end(Error::Closed);
    }
}

struct KvCore {
    coordinator: Coordinator,
    geometry: StoreGeometry,
    /// The seed of the index.
    seed: u64,
    /// Held by the caller that appends an entry; contains the memory for the entry's bytes.
    log: rt::sync::Mutex<BytesMut>,
    state: Mutex<KvState>,
    feed: Mutex<watch::ChangeFeed>,
    /// There may be something to apply.
    work: Notify,
    /// Log space or blocks may have become free.
    space_freed: Notify,
    /// A window of entries was applied.
    applied: Notify,
    /// There may be something to write to the tables.
    unpersisted: Notify,
    /// The tables have more entries.
    persisted: Notify,
    /// The store is kept in tables.
    is_persistent: bool,
    /// Callers see only entries that the tables have.
    is_synchronous: bool,
    in_flight: Semaphore,
    waiting: AtomicUsize,
    stop: CancellationToken,
}

/// An entry that is not applied.
#[derive(Clone)]
struct PendingEntry {
    /// The log position behind it.
    after: LogCursor,
    /// Bytes of the log that it takes, including those skipped before it.
    bytes: u64,
    /// Blocks that applying it may take, beyond those that its key has by then.
    blocks: u64,
    posted: WriteHandle,
    key: Bytes,
    value: Option<Bytes>,
}

/// Space for an entry.
struct LogReservation {
    offset: u64,
    /// Bytes of the log that it takes, including those skipped.
    bytes: u64,
    /// Blocks that it may take.
    blocks: u64,
    /// The end of the entry before.
    last: LogCursor,
}

struct KvState {
    /// The log position behind the last entry.
    last: LogCursor,
    used_bytes: u64,
    pending: VecDeque<PendingEntry>,
    /// The most blocks that the pending entries need.
    reserved: u64,
    free: u64,
    /// Everything up to this entry is applied.
    applied: u64,
    /// Everything up to this entry is in the tables; `u64::MAX` for a store without tables.
    persisted: u64,
    cache: KvCache,
    index: Vec<u64>,
    known: u64,
    stripes: Vec<u32>,
    recovered: usize,
    /// A caller waits for space.
    is_space_wanted: bool,
    ended: Option<Error>,
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl KvState {
    fn stripe(&self, bucket: u64) -> u32 {
        self.stripes[bucket as usize % STRIPES]
    }

    /// Whether an entry fits; if so, its offset, and the bytes that it takes including those skipped.
    fn find_offset(&self, length: u64, blocks: u64, sizes: &StoreGeometry) -> Option<(u64, u64)> {
        let (offset, skipped) = log::offset_of(self.last.position, length, sizes.log_bytes);
        let has_blocks = blocks == 0 || self.reserved + blocks <= self.free;
        let fits = self.used_bytes + skipped + length <= sizes.log_bytes && has_blocks;
        fits.then_some((offset, skipped + length))
    }
}

impl KvStore {
    /// Takes over the store that a group holds; creates a new one in a group that was never used. The sizes must be those with
    /// which the store was created. On return the store serves.
    ///
    /// # Errors
    /// [`Error::Invalid`] for other sizes; [`Error::Corrupt`]; as [`Coordinator::read`].
    pub async fn take_over(
        coordinator: Coordinator,
        sizes: StoreGeometry,
        options: KvConfig,
    ) -> Result<KvStore, Error> {
        KvStore::take_over_recovered(coordinator.into(), sizes, options).await
    }

    /// As [`KvStore::take_over`], with a coordinator that may not answer clients yet: the log is read and written back while it
    /// waits.
    ///
    /// # Errors
    /// As [`KvStore::take_over`].
    pub async fn take_over_recovered(
        recovered: RecoveredCoordinator,
        sizes: StoreGeometry,
        options: KvConfig,
    ) -> Result<KvStore, Error> {
        KvStore::start(recovered, sizes, options, None).await
    }

    /// As [`KvStore::take_over`], for a store that is kept in tables ([`persist`]). In a group that was never used, the store
    /// is restored from the tables.
    ///
    /// # Errors
    /// As [`KvStore::take_over`]; [`Error::Disk`]; [`Error::Invalid`] for tables of another store.
    pub async fn take_over_persistent(
        coordinator: Coordinator,
        sizes: StoreGeometry,
        options: KvConfig,
        persistent: PersistentTables,
    ) -> Result<KvStore, Error> {
        KvStore::start(coordinator.into(), sizes, options, Some(persistent)).await
    }

    async fn start(
        standby: RecoveredCoordinator,
        sizes: StoreGeometry,
        options: KvConfig,
        persistent: Option<PersistentTables>,
    ) -> Result<KvStore, Error> {
        // Boxed, so that the compiler sees at once that the future is `Send`.
        let recovered = recover::recover(standby.coordinator(), &sizes, persistent.as_ref()).boxed().await?;
        let (seed, kept) = (recovered.seed, recovered.savepoint);
        let (state, feed, bitmap) = recovered.into_state(&sizes, options);
        let coordinator = match mutant(Mutant::OpenAtOnce) {
            true => standby.into_coordinator_unchecked(),
            false => standby.open().await?,
        };
        let shared = Arc::new(KvCore {
            coordinator,
            geometry: sizes,
            seed,
            log: rt::sync::Mutex::default(),
            state: Mutex::new(state),
            feed: Mutex::new(feed),
            work: Notify::new(),
            space_freed: Notify::new(),
            applied: Notify::new(),
            unpersisted: Notify::new(),
            persisted: Notify::new(),
            is_persistent: persistent.is_some(),
            is_synchronous: persistent.as_ref().is_some_and(|persistent| persistent.is_synchronous),
            in_flight: Semaphore::new(IN_FLIGHT_MAX),
            waiting: AtomicUsize::new(0),
            stop: CancellationToken::new(),
        });
        let store = KvStore { _alive: Arc::new(StopOnDrop(Arc::clone(&shared))), shared: Arc::clone(&shared) };
        let ends = || {
            let shared = Arc::clone(&shared);
            move || shared.fail(Error::Panicked("a task of a key-value store"))
        };
        rt::spawn(guarded(apply::apply(Arc::clone(&shared), bitmap), ends()));
        if let (Some(persistent), Some(kept)) = (persistent, kept) {
            rt::spawn(guarded(persist::persist(Arc::clone(&shared), persistent, kept), ends()));
        }
        rt::spawn(guarded(apply::load(Arc::clone(&shared)), ends()));
        Ok(store)
    }

    /// The value of a key. Linearizable. Dropping the future is safe.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a key that is empty or too long; else as [`Coordinator::read`].
    pub async fn get(&self, key: &[u8]) -> Result<Option<VersionedValue>, Error> {
        match self.shared.get_confirmed(key) {
            Some(answer) => answer,
            None => {
                self.shared.geometry.check_key(key)?;
                // Boxed, so that not every get has to hold this larger future.
                self.shared.get(key).boxed().await
            }
        }
    }

    /// Sets the value of a key and returns its version. On return a majority has the entry. If the future is dropped, the put
    /// may still take effect.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a key or value that is too long; [`Error::StoreFull`]; [`Error::Busy`]; [`Error::Ambiguous`]; and
    /// as [`Coordinator::read`], in which case the put had no effect.
    pub async fn put(&self, key: Bytes, value: Bytes) -> Result<u64, Error> {
        self.shared.geometry.check(&key, Some(&value))?;
        match self.shared.change(key, None, Some(value)).await? {
            SwapOutcome::Done(version) => Ok(version),
            SwapOutcome::Mismatch(_) => unreachable!("nothing was expected"),
        }
    }

    /// Deletes a key; returns the version of the deletion, or `None` where the key had no value.
    ///
    /// # Errors
    /// As [`KvStore::put`].
    pub async fn delete(&self, key: Bytes) -> Result<Option<u64>, Error> {
        self.shared.geometry.check(&key, None)?;
        match self.shared.change(key, Some(Precondition::Present), None).await? {
            SwapOutcome::Done(version) => Ok(Some(version)),
            SwapOutcome::Mismatch(_) => Ok(None),
        }
    }

    /// Sets or deletes the value of a key, if the condition holds.
    ///
    /// # Errors
    /// As [`KvStore::put`].
    pub async fn compare_and_set(
        &self,
        key: Bytes,
        expected: Precondition,
        new: Option<Bytes>,
    ) -> Result<SwapOutcome, Error> {
        self.shared.geometry.check(&key, new.as_ref())?;
        self.shared.change(key, Some(expected), new).await
    }

    /// Every change of the keys that start with a prefix, from a version on. Without a version the watch starts now, and may
    /// include a change whose caller was acknowledged just before.
    ///
    /// # Errors
    /// [`Error::Compacted`] when the changes from that version on are no longer all remembered; [`Error::Busy`]; as
    /// [`Coordinator::read`].
    pub fn watch(&self, prefix: Bytes, from: Option<u64>) -> Result<KeyWatch, Error> {
        self.shared.coordinator.check_serving()?;
        let mut feed = lock(&self.shared.feed);
        // A store that ends after this check closes the feed, and this watcher with it.
        self.shared.check_open()?;
        feed.watch(prefix, from)
    }

    /// The state of the store.
    pub fn status(&self) -> KvStatus {
        let state = lock(&self.shared.state);
        KvStatus {
            last: state.last.index,
            applied: state.applied,
            log_used_bytes: state.used_bytes,
            blocks_free: state.free,
            cache_bytes: state.cache.bytes(),
            buckets_known: state.known,
            recovered: state.recovered,
            persisted: Some(state.persisted).filter(|persisted| *persisted < u64::MAX),
        }
    }

    /// The coordinator of the store.
    pub fn coordinator(&self) -> &Coordinator {
        &self.shared.coordinator
    }

    /// Completes when the store has ended, with the reason.
    pub async fn ended(&self) -> Error {
        self.shared.stop.cancelled().await;
        lock(&self.shared.state).ended.clone().unwrap_or(Error::Closed)
    }
}

impl fmt::Debug for KvStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({:?})", self.shared.coordinator)
    }
}

/// What the cache has for a key.
struct CachedValue {
    found: Option<VersionedValue>,
    version: u64,
    posted: WriteHandle,
}

impl CachedValue {
    fn of(slot: &CacheSlot) -> CachedValue {
        let found = slot.value.clone().map(|value| VersionedValue { value, version: slot.version });
        CachedValue { found, version: slot.version, posted: slot.posted }
    }
}

/// Counts a waiting caller.
struct WaiterGuard<'a>(&'a AtomicUsize);

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl KvCore {
    fn end(&self, error: Error) {
        let mut state = lock(&self.state);
        if state.ended.is_none() {
            tracing::debug!(%error, "a key-value store ends");
            state.ended = Some(error);
        }
        drop(state);
        lock(&self.feed).close();
        self.stop.cancel();
        self.applied.notify_waiters();
        self.persisted.notify_waiters();
    }

    /// Ends the store and its coordinator: while that coordinator runs, no other one can take the store over.
    fn fail(&self, error: Error) {
        self.end(error);
        self.coordinator.step_down();
    }

    fn bucket(&self, key: &[u8]) -> u64 {
        self.geometry.bucket(self.seed, key)
    }

    fn check_open(&self) -> Result<(), Error> {
        lock(&self.state).ended.clone().map_or(Ok(()), Err)
    }

    fn cached(&self, key: &[u8]) -> Option<CachedValue> {
        lock(&self.state).cache.get(key).map(CachedValue::of)
    }

    /// Waits until a majority has a posted entry.
    async fn confirm(&self, posted: WriteHandle) -> Result<(), Error> {
        if !self.coordinator.is_confirmed(posted) {
            self.coordinator.confirm(posted).await?;
        }
        Ok(())
    }

    /// Waits until the tables have an entry, if callers may see only such entries.
    async fn wait_persisted(&self, index: u64) -> Result<(), Error> {
        if !self.is_synchronous {
            return Ok(());
        }
        loop {
            let persisted = self.persisted.notified();
            {
                let state = lock(&self.state);
                if state.persisted >= index {
                    return Ok(());
                }
                state.ended.clone().map_or(Ok(()), Err)?;
            }
            persisted.await;
        }
    }

    /// Answers with the cached value, once a majority has its entry.
    async fn confirm_cached(&self, cached: CachedValue) -> Result<Option<VersionedValue>, Error> {
        if !mutant(Mutant::AnswerUncommitted) && self.confirm(cached.posted).await.is_err() {
            // The caller changes nothing, so that the outcome is not ambiguous.
            self.coordinator.check_serving()?;
            return Err(Error::Closed);
        }
        self.wait_persisted(cached.version).await?;
        self.coordinator.check_serving()?;
        Ok(cached.found)
    }

    /// The cached value, if a majority has its entry already; does not wait.
    #[inline]
    fn get_confirmed(&self, key: &[u8]) -> Option<Result<Option<VersionedValue>, Error>> {
        let found = {
            let mut state = lock(&self.state);
            let slot = state.cache.get(key)?;
            if self.is_synchronous || !self.coordinator.is_confirmed(slot.posted) {
                return None;
            }
            slot.value.clone().map(|value| VersionedValue { value, version: slot.version })
        };
        Some(self.coordinator.check_serving().map(|()| found).map_err(Error::from))
    }

    async fn get(&self, key: &[u8]) -> Result<Option<VersionedValue>, Error> {
        if let Some(cached) = self.cached(key) {
            return self.confirm_cached(cached).await;
        }
        let cached = self.load(key).await?;
        self.confirm_cached(cached).await
    }

    /// Loads a key that the cache lacks from index and chain into the cache.
    async fn load(&self, key: &[u8]) -> Result<CachedValue, Error> {
        let bucket = self.bucket(key);
        loop {
            let applied = self.applied.notified();
            let before = lock(&self.state).stripe(bucket);
            if before % 2 == 1 && !mutant(Mutant::WalkUnguarded) {
                self.check_open()?;
                applied.await;
                continue;
            }
            let found = table::find(self, key, bucket).await;
            let mut state = lock(&self.state);
            if let Some(slot) = state.cache.get(key) {
                return Ok(CachedValue::of(slot));
            }
            if state.stripe(bucket) != before && !mutant(Mutant::WalkUnguarded) {
                continue;
            }
            let found = found?;
            let (value, version) = match &found {
                Some(found) => (Some(found.value.clone()), found.version),
                None => (None, 0),
            };
            let applied = state.applied;
            state.cache.put(key, CacheSlot::new(value, version, WriteHandle::default()), applied);
            return Ok(CachedValue { found, version, posted: WriteHandle::default() });
        }
    }

    /// Appends an entry, if the condition holds for the key, and waits until a majority has it.
    async fn change(
        &self,
        key: Bytes,
        expected: Option<Precondition>,
        value: Option<Bytes>,
    ) -> Result<SwapOutcome, Error> {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= WAITING_MAX {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(Error::Busy);
        }
        let _waiting = WaiterGuard(&self.waiting);
        let _permit = self.in_flight.acquire().await;
        let length = log::padded(log::entry_bytes(&key, value.as_ref()));
        let needed = self.blocks_of(&key, value.as_ref());
        if let Some(Precondition::Version(_) | Precondition::Value(_) | Precondition::Present | Precondition::Absent) =
            &expected
            && self.cached(&key).is_none()
        {
            // Loaded before the lock is taken, so that other callers do not wait for the load.
            self.load(&key).boxed().await?;
        }
        let mut log = self.log.lock().await;
        if let Some(expected) = &expected {
            // No other caller can append an entry now, so that the loaded value stays current.
            let cached = match self.cached(&key) {
                Some(cached) => cached,
                None => self.load(&key).boxed().await?,
            };
            if !expected.holds(cached.found.as_ref()) {
                drop(log);
                return self.confirm_cached(cached).await.map(SwapOutcome::Mismatch);
            }
        }
        let LogReservation { offset, bytes, blocks, last } = match self.try_reserve(&key, length, needed, None)? {
            Some(found) => found,
            None => self.reserve(&key, length, needed).boxed().await?,
        };
        let index = last.index + 1;
        let (raw, chain) = log::encode(index, self.coordinator.term(), last.chain, &key, value.as_ref(), &mut log);
        let posted = self.coordinator.post_unlogged(offset, raw).await?;
        // From here to the end of the lock nothing awaits: every posted entry is registered.
        let is_applying_due = {
            let mut state = lock(&self.state);
            let after = LogCursor { index, position: offset + length, chain };
            state.last = after;
            state.used_bytes += bytes;
            state.reserved += blocks;
            let applied = state.applied;
            state.cache.put(&key, CacheSlot::new(value.clone(), index, posted), applied);
            state.pending.push_back(PendingEntry { after, bytes, blocks, posted, key, value });
            // The first pending entry makes the applier wait for more; a full window ends that wait.
            state.pending.len() == 1 || state.pending.len() == apply::WINDOW
        };
        drop(log);
        if is_applying_due {
            self.work.notify_one();
        }
        if self.is_persistent {
            self.unpersisted.notify_one();
        }
        self.confirm(posted).await?;
        self.wait_persisted(index).await.map_err(|_| Error::Ambiguous)?;
        Ok(SwapOutcome::Done(index))
    }

    /// Blocks of a record.
    fn blocks_of(&self, key: &[u8], value: Option<&Bytes>) -> u64 {
        value.map_or(0, |value| self.geometry.record_blocks(key.len(), value.len()) as u64)
    }

    /// Space for an entry, if it fits; otherwise the applier is woken to free space at once. `has` is the number of blocks that
    /// the newest entry gives the key; without it the cache is asked.
    fn try_reserve(
        &self,
        key: &[u8],
        length: u64,
        needed: u64,
        has: Option<u64>,
    ) -> Result<Option<LogReservation>, Error> {
        let mut state = lock(&self.state);
        state.ended.clone().map_or(Ok(()), Err)?;
        let has = has.or_else(|| state.cache.get(key).map(|slot| self.blocks_of(key, slot.value.as_ref())));
        let blocks = if mutant(Mutant::AdmitUnreserved) { 0 } else { needed.saturating_sub(has.unwrap_or_default()) };
        if let Some((offset, bytes)) = state.find_offset(length, blocks, &self.geometry) {
            return Ok(Some(LogReservation { offset, bytes, blocks, last: state.last }));
        }
        if state.pending.is_empty() && has.is_some() && blocks > state.free {
            return Err(Error::StoreFull);
        }
        state.is_space_wanted = true;
        drop(state);
        self.work.notify_one();
        Ok(None)
    }

    /// Waits until an entry fits; returns the same as [`KvCore::room`].
    async fn reserve(&self, key: &[u8], length: u64, needed: u64) -> Result<LogReservation, Error> {
        let cached = match self.cached(key) {
            Some(cached) => cached,
            None => self.load(key).await?,
        };
        // No other caller can append an entry now, so that this stays current.
        let has = self.blocks_of(key, cached.found.as_ref().map(|found| &found.value));
        loop {
            if let Some(found) = self.try_reserve(key, length, needed, Some(has))? {
                return Ok(found);
            }
            if self.stop.run_until_cancelled(self.space_freed.notified()).await.is_none() {
                self.check_open()?;
            }
        }
    }
}
