//! The world state on pooled memory: index and records in an address space, rows on the storage node, caches on the
//! compute node.
//!
//! The design follows FlexChain (section 4) with one difference: memory nodes are passive. Index and records are laid
//! out so that one-sided verbs suffice to read and write them (docs/adr, passive memory nodes), and a block is applied
//! as one batch instead of record by record (docs/adr, group apply).
//!
//! What lies where, and who may change it:
//!
//! | place | holds | changed by |
//! |---|---|---|
//! | [`record`]s in remote memory | versions; `prev` links newest to oldest, `next` oldest to newest | the writer |
//! | [`index`] in remote memory | for each key, its newest version | the writer |
//! | [`cache`] on the compute node | newest versions by key, bytes by version | apply; reads with a valid token |
//! | [`delta`] on the compute node | keys written after the savepoint, locations of their versions | apply, savepoint |
//! | storage | every version up to the savepoint that a read may need | the storage node, from its blocks |
//!
//! The writer is the task that holds the lock of [`StateWriter`] at the peer's one primary: apply, a fill, eviction,
//! or background maintenance ([`maintenance`]). The peer's other compute nodes, its followers ([`followers`]), read
//! the same memory and follow the updates that the primary sends. They run the same code, except for the parts that
//! change remote memory.
//!
//! 1. A block is durable in storage before [`WorldState::apply`] makes any of its records reachable. Remote memory may
//!    vanish at any moment: everything in it is also in storage, as a row or in a block above the savepoint.
//! 2. [`apply`] writes records, links them, swaps index slots, adds to the delta, replaces the cached versions, sends
//!    an update to the followers, waits for their acknowledgements, and only then raises the height.
//! 3. [`read`] looks into caches, index, delta and storage, in this order. A miss is always safe: the search
//!    continues. A hit on an old version would be wrong; the protocols exclude it.
//! 4. [`reclaim`](maintenance) retires a version once no view needs it, neither here nor on a follower. A reader may
//!    have learnt the address of the version's buffer under a [`lease`]; the buffer is reused only when all such
//!    leases have ended.
//! 5. [`evict`] keeps memory below its budget: it removes from memory cold records that storage has as rows. [`drain`]
//!    returns sections after the budget was lowered.
//! 6. The savepoint moves when storage materialises blocks, on its own or because [`WorldState::persist`] asks. The
//!    delta then drops the blocks that the savepoint covers.
//! 7. A section is abandoned if it is lost, or if an ambiguous verb may still write into it ([`StateCore::give_up`]).
//!    From then on reads find nothing in it, and read from storage or from other sections instead.
//! 8. A new primary opens the address space under a higher epoch, which fences the old primary: the old primary's
//!    verbs have no effect from then on, and its calls fail with [`Error::Fenced`]. The new primary starts with an
//!    empty index in new sections. It raises no height and lets no follower join until every lease that the old
//!    primary can have granted has ended.
//!
//! Invariants:
//! * A slot of the index is empty or leads to the newest applied version of its key.
//! * A buffer is reused only after nothing has led to it for [`lease::REUSE_AFTER`].
//! * Every leased byte is free, live or quarantined. Every live byte belongs to a subtable of the index or to a
//!   reachable record: reachable from an index slot, from the `prev` of a newer version, or from the list of
//!   superseded versions.

mod apply;
mod audit;
mod cache;
mod delta;
mod directory;
mod drain;
mod evict;
pub mod fault;
mod fill;
pub mod followers;
#[doc(hidden)]
pub mod fuzz;
mod grow;
mod index;
mod maintenance;
pub mod memory;
mod pointer;
mod range;
mod read;
mod record;
mod reference_bits;
mod space;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::time::Duration;

use base::rt::net::Link;
use base::rt::sync::{Notify, Semaphore};
use base::rt::{self, AbortOnDrop, Instant};
use base::{Set, Version};
use futures_util::future::join_all;
use replica::offload::WorkPlacement;
use replica::{EarlierLeases, FollowerTable, ReplicatedState, WorkPermit, lease};
use storage::StateStore;

pub use audit::MemoryAudit;
use cache::Caches;
use delta::Delta;
use directory::SubtableDirectory;
use followers::ComputeRole;
pub use followers::Follower;
use followers::changes::ChangeLog;
use index::{KeyHash, Subtable};
use memory::{Memory, MemoryError, Section};
use pointer::{ADDRESS_BYTES_MAX, Pointer};
use record::KeyName;
use reference_bits::ReferenceBits;
use space::{SpaceAccounts, SpaceAllocator};

use crate::{Durable, Error, RangePage, Snapshot, UpdateBatch, VersionPage, Versioned, WorldState, digest, events};

/// How long to wait for a donor's answer with the writer's lock held.
const DONOR_TIMEOUT: Duration = Duration::from_millis(100);
/// Reads of one caller in flight at once.
const READS_AT_ONCE: usize = 64;

/// Limits of one peer's state in one channel. The budget of remote memory is the address space's.
#[derive(Clone, Debug)]
pub struct DisaggregatedConfig {
    /// Bytes of the metadata cache: where keys are, and their versions.
    pub metadata_cache_bytes: usize,
    /// Bytes of the data cache: records.
    pub data_cache_bytes: usize,
    /// Bytes of the delta above which [`WorldState::wants_persist`] returns true.
    pub delta_bytes_max: usize,
    /// Blocks that a view may lag behind before it is fenced.
    pub view_lag_blocks_max: u64,
    /// Blocks beyond the savepoint above which [`WorldState::wants_persist`] returns true.
    pub savepoint_lag_blocks_max: u64,
    /// Percent of the budget of remote memory above which cold records are evicted.
    pub evict_above_percent: u8,
    /// Percent of the budget that eviction leaves in use; less than `evict_above_percent`.
    pub evict_to_percent: u8,
}

impl Default for DisaggregatedConfig {
    fn default() -> Self {
        DisaggregatedConfig {
            metadata_cache_bytes: 16 << 20,
            data_cache_bytes: 64 << 20,
            delta_bytes_max: 128 << 20,
            view_lag_blocks_max: 1024,
            savepoint_lag_blocks_max: 1024,
            evict_above_percent: 90,
            evict_to_percent: 85,
        }
    }
}

/// [`WorldState`] over pooled memory and a storage node.
pub struct Disaggregated {
    shared: Arc<StateCore>,
    _background: Vec<AbortOnDrop<()>>,
}

struct StateCore {
    memory: Arc<dyn Memory>,
    store: Arc<dyn StateStore>,
    settings: DisaggregatedConfig,
    /// Seed of the key hashes.
    seed: u64,
    caches: Caches,
    heat: ReferenceBits,
    directory: SubtableDirectory,
    delta: RwLock<Delta>,
    gone: GoneSections,
    height: AtomicU64,
    /// Views below this height are fenced.
    admitted: AtomicU64,
    /// Storage has the blocks below this height as rows, and the delta has dropped them.
    savepoint: AtomicU64,
    /// `prev` of a version of a block below this height must not be followed: the record that it leads to may have been
    /// evicted.
    forgotten: AtomicU64,
    /// The block last reported to storage as the oldest that anything still reads.
    reported: AtomicU64,
    current: RwLock<Option<Arc<StateView>>>,
    views: Mutex<VecDeque<(u64, Weak<StateView>)>>,
    writer: rt::sync::Mutex<StateWriter>,
    persisting: rt::sync::Mutex<()>,
    fills: Semaphore,
    /// Wakes reclamation before its period is over.
    wanted: Notify,
    /// Wakes the eviction task: memory is crowded, or an allocation failed for want of space.
    crowded: Notify,
    fenced: AtomicBool,
    role: ComputeRole,
    followers: Arc<FollowerTable>,
    /// Bounds the requests of followers that run at once.
    fill_permits: Semaphore,
    /// The leases of earlier primaries: heights are raised and shown only after they have ended.
    earlier_leases: EarlierLeases,
}

/// Abandoned sections, by their first byte. An entry is never removed: slots in other sections may lead into the
/// section, and its addresses are never reused. The number of entries is bounded by the number of sections that a pool
/// ever grants to one address space ([`pool::space::SECTIONS_EVER_MAX`]), of 8 bytes each.
#[derive(Default)]
struct GoneSections {
    any: AtomicBool,
    bases: RwLock<Set<u64>>,
}

/// How much remote memory a state uses, in bytes, and what it has freed to stay within the budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StateUsage {
    /// Bytes of whole sections that the budget allows.
    pub allowed: u64,
    /// Bytes of leased sections. Above `allowed` while a lower budget takes effect.
    pub leased: u64,
    /// Bytes of the leased sections that are free.
    pub free: u64,
    /// Bytes of the leased sections in buffers that are in use.
    pub live: u64,
    /// Bytes of the leased sections in retired buffers that wait until every lease has ended.
    pub quarantined: u64,
    /// Records evicted so far.
    pub evicted_records: u64,
    /// Bytes that the records evicted so far took.
    pub evicted_bytes: u64,
    /// Sections emptied and given back so far because the budget was lowered.
    pub sections_drained: u64,
}

/// The pool had no section to grant under this budget.
#[derive(Clone, Copy)]
struct PoolExhausted {
    /// The pool is not asked again before this time.
    until: Instant,
    budget_bytes: u64,
}

impl PoolExhausted {
    fn now(budget_bytes: u64) -> PoolExhausted {
        PoolExhausted { until: rt::now() + maintenance::EXHAUSTED_PAUSE, budget_bytes }
    }

    /// Whether the pool still need not be asked: only a higher budget changes its answer.
    fn holds(&self, budget_bytes: u64) -> bool {
        budget_bytes <= self.budget_bytes
    }
}

/// State that only the writer touches.
#[derive(Default)]
struct StateWriter {
    space: SpaceAllocator,
    holders: Arc<FollowerTable>,
    /// Buffers to which nothing leads any more, each with the position of the update that reports this to the
    /// followers.
    unacknowledged: VecDeque<(u64, Pointer)>,
    /// Section numbers by first byte.
    sections: BTreeMap<u64, u32>,
    /// Versions that a block superseded, in the order of blocks.
    superseded: VecDeque<SupersededVersion>,
    /// Tombstones that no savepoint covers yet, in the order of blocks.
    tombstones: VecDeque<Tombstone>,
    /// Subtables were lost: some live records may be unreachable.
    orphans: bool,
    /// Length in bytes of the longest buffer that could not be allocated since eviction last looked.
    short: u64,
    /// Position of the hand of eviction's clock.
    hand: u64,
    /// Evicted records that are marked invalid and still in quarantine, each with the time of its eviction.
    evicted: VecDeque<(Instant, Pointer)>,
    /// Set while the pool has no section to grant.
    exhausted: Option<PoolExhausted>,
    /// A section requested from the pool whose donor has not answered yet.
    growing: Option<AbortOnDrop<Result<Section, MemoryError>>>,
    /// Sections that were lost while `growing` was in flight and are not in `sections`.
    lost: Vec<u32>,
    /// Counters of completed work; the byte counts come from `space`.
    usage: StateUsage,
}

struct SupersededVersion {
    pointer: Pointer,
    /// The block that superseded it.
    since: u64,
}

struct Tombstone {
    block: u64,
    hash: KeyHash,
    namespace: Arc<str>,
    key: Arc<str>,
    pointer: Pointer,
}

/// A block boundary at which at least one reader may be looking.
pub struct StateView {
    shared: Arc<StateCore>,
    height: u64,
}

impl Disaggregated {
    /// Opens the state with empty memory, at the height of storage's savepoint: the caller applies later blocks again.
    ///
    /// `memory` was opened under an epoch higher than that of any earlier primary, which fenced them.
    pub async fn open(
        memory: Arc<dyn Memory>,
        store: Arc<dyn StateStore>,
        settings: DisaggregatedConfig,
    ) -> Result<Disaggregated, Error> {
        let height = store.savepoint().height;
        let budget_bytes = memory.budget_bytes();
        let seed = rt::random_u64();
        let shared =
            Arc::new(StateCore::new(memory, store, settings, ComputeRole::Primary, seed, height, budget_bytes));
        StateCore::publish(&shared, height);
        let background = maintenance::start(&shared);
        Ok(Disaggregated { shared, _background: background })
    }

    /// The view of the last applied block, with the reads that do not go through [`Snapshot`].
    pub fn view(&self) -> Arc<StateView> {
        self.shared.newest_view()
    }

    /// Changes the budget of remote memory during operation. On return, memory no longer grows above the new budget.
    /// Sections above a lower budget are emptied and returned in the background, one by one ([`Disaggregated::usage`]
    /// reports the leased bytes).
    ///
    /// # Errors
    /// [`Error::BudgetTooSmall`] below one section.
    pub fn set_budget(&self, bytes: u64) -> Result<(), Error> {
        let section_bytes = self.shared.memory.section_bytes();
        if bytes < section_bytes {
            return Err(Error::BudgetTooSmall { bytes, section_bytes });
        }
        // The reference bits first: uses of records in new sections are noted at once.
        self.shared.heat.enlarge(bytes);
        self.shared.memory.set_budget(bytes);
        self.shared.crowded.notify_one();
        Ok(())
    }

    /// How much remote memory is used. Waits for the writer's lock; reads no remote memory.
    pub async fn usage(&self) -> StateUsage {
        let writer = self.shared.writer.lock().await;
        let SpaceAccounts { leased, free, live, quarantined } = writer.space.accounts();
        let allowed = self.shared.allowed();
        StateUsage { allowed, leased, free, live, quarantined, ..writer.usage }
    }

    /// How remote memory is used, and whether every byte of it is accounted for. Reads the whole index.
    ///
    /// # Errors
    /// [`Error::Busy`] when a verb fails.
    pub async fn audit(&self) -> Result<MemoryAudit, Error> {
        self.shared.audit().await
    }
}

impl Drop for Disaggregated {
    fn drop(&mut self) {
        // The view refers back to this state. Views that readers hold stay as they are.
        *self.shared.current.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

#[async_trait::async_trait]
impl ReplicatedState for Disaggregated {
    async fn admit_followers(&self) {
        self.shared.earlier_leases.admit_followers().await;
    }

    async fn serve_follower(&self, link: Link) -> Result<(), replica::Error> {
        replica::followers::serve_follower(&self.shared, link).await
    }
}

impl WorkPlacement for Disaggregated {
    fn followers(&self) -> usize {
        self.shared.followers.count()
    }

    fn work_permit(&self, load_max: u8, trusts: &dyn Fn(&str) -> bool) -> Option<WorkPermit> {
        self.shared.followers.work_permit(load_max, WorldState::height(self), trusts)
    }
}

#[async_trait::async_trait]
impl WorldState for Disaggregated {
    fn height(&self) -> u64 {
        self.shared.height.load(Ordering::Acquire)
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        self.shared.newest_view()
    }

    async fn apply(&self, number: u64, batch: UpdateBatch) -> Result<(), Error> {
        StateCore::apply(&self.shared, number, &batch, None).await
    }

    async fn apply_when(&self, number: u64, batch: UpdateBatch, durable: Durable<'_>) -> Result<(), Error> {
        StateCore::apply(&self.shared, number, &batch, Some(durable)).await
    }

    fn wants_persist(&self) -> bool {
        let settings = &self.shared.settings;
        let lag = self.height().saturating_sub(self.savepoint());
        lag >= settings.savepoint_lag_blocks_max || self.shared.delta().bytes() > settings.delta_bytes_max
    }

    async fn persist(&self) -> Result<u64, Error> {
        let target = self.height();
        self.shared.materialize(target).await?;
        Ok(self.savepoint())
    }

    fn savepoint(&self) -> u64 {
        self.shared.store.savepoint().height
    }

    async fn digest(&self) -> Result<[u8; 32], Error> {
        let view = self.shared.newest_view();
        let mut namespaces: std::collections::BTreeSet<String> =
            self.shared.delta_in_order().namespaces().map(|name| name.to_string()).collect();
        namespaces.extend(self.shared.store.namespaces().await?);
        digest::of(&*view, namespaces).await
    }
}

#[async_trait::async_trait]
impl Snapshot for StateView {
    fn height(&self) -> u64 {
        self.height
    }

    // The attribute's expansion of an `async fn`, written out so that an answer from the caches does not allocate the
    // future of a full read.
    fn get<'view, 'namespace, 'key, 'read>(
        &'view self,
        namespace: &'namespace str,
        key: &'key str,
    ) -> Pin<Box<dyn Future<Output = Result<Option<Versioned>, Error>> + Send + 'read>>
    where
        'view: 'read,
        'namespace: 'read,
        'key: 'read,
    {
        match self.cached(namespace, key) {
            Some(answer) => Box::pin(ready(answer)),
            None => Box::pin(self.read(namespace, key)),
        }
    }

    fn version<'view, 'namespace, 'key, 'read>(
        &'view self,
        namespace: &'namespace str,
        key: &'key str,
    ) -> Pin<Box<dyn Future<Output = Result<Option<Version>, Error>> + Send + 'read>>
    where
        'view: 'read,
        'namespace: 'read,
        'key: 'read,
    {
        match self.cached_version(namespace, key) {
            Some(answer) => Box::pin(ready(answer)),
            None => Box::pin(async move { Ok(self.read(namespace, key).await?.map(|found| found.version)) }),
        }
    }

    async fn versions(&self, keys: &[(&str, &str)]) -> Result<Vec<Option<Version>>, Error> {
        let mut versions = Vec::with_capacity(keys.len());
        let mut unknown = Vec::new();
        for (at, (namespace, key)) in keys.iter().enumerate() {
            let known = self.cached_version(namespace, key).transpose()?;
            if known.is_none() {
                unknown.push(at);
            }
            versions.push(known.flatten());
        }
        // Issue many reads at once, so that their waits overlap.
        for some in unknown.chunks(READS_AT_ONCE) {
            let reads = some.iter().map(|at| self.read_version(keys[*at].0, keys[*at].1));
            for (at, version) in some.iter().zip(join_all(reads).await) {
                versions[*at] = version?;
            }
        }
        Ok(versions)
    }

    async fn range(&self, namespace: &str, start: &str, end: &str, limit: usize) -> Result<RangePage, Error> {
        self.page(namespace, start, end, limit).await
    }

    async fn range_versions(
        &self,
        namespace: &str,
        start: &str,
        end: &str,
        limit: usize,
    ) -> Result<VersionPage, Error> {
        self.version_page(namespace, start, end, limit).await
    }
}

impl StateCore {
    /// A core with empty memory, at this height.
    fn new(
        memory: Arc<dyn Memory>,
        store: Arc<dyn StateStore>,
        settings: DisaggregatedConfig,
        role: ComputeRole,
        seed: u64,
        height: u64,
        budget_bytes: u64,
    ) -> StateCore {
        let holders: Arc<FollowerTable> = Arc::default();
        StateCore {
            memory,
            store,
            seed,
            caches: Caches::new(settings.metadata_cache_bytes, settings.data_cache_bytes),
            heat: ReferenceBits::new(budget_bytes),
            directory: SubtableDirectory::default(),
            delta: RwLock::default(),
            gone: GoneSections::default(),
            height: AtomicU64::new(height),
            admitted: AtomicU64::new(height),
            savepoint: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
            reported: AtomicU64::new(height.saturating_sub(1)),
            current: RwLock::new(None),
            views: Mutex::default(),
            writer: rt::sync::Mutex::new(StateWriter { holders: Arc::clone(&holders), ..StateWriter::default() }),
            persisting: rt::sync::Mutex::new(()),
            fills: Semaphore::new(fill::FILLS_MAX),
            wanted: Notify::new(),
            crowded: Notify::new(),
            fenced: AtomicBool::new(false),
            settings,
            role,
            followers: holders,
            fill_permits: Semaphore::new(fill::FILLS_MAX),
            earlier_leases: EarlierLeases::new(),
        }
    }

    /// The subtable that serves a hash.
    #[inline]
    fn find_subtable(&self, hash: KeyHash) -> Option<Subtable> {
        self.directory.find(hash)
    }

    fn delta(&self) -> RwLockReadGuard<'_, Delta> {
        self.delta.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The delta, with every block ordered that is visible at any height so far.
    fn delta_in_order(&self) -> RwLockReadGuard<'_, Delta> {
        if !self.delta().is_ordered() {
            self.delta_mut().order();
        }
        // A block that is added in between is too new for the caller.
        self.delta()
    }

    fn delta_mut(&self) -> RwLockWriteGuard<'_, Delta> {
        self.delta.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn views(&self) -> MutexGuard<'_, VecDeque<(u64, Weak<StateView>)>> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes a view of a height, which every later snapshot returns.
    fn publish(shared: &Arc<StateCore>, height: u64) {
        let view = Arc::new(StateView { shared: Arc::clone(shared), height });
        shared.views().push_back((height, Arc::downgrade(&view)));
        *shared.current.write().unwrap_or_else(PoisonError::into_inner) = Some(view);
    }

    /// The height of the oldest view that may still be read. Views that lag too far behind may not.
    fn floor(&self) -> u64 {
        let height = self.height.load(Ordering::Acquire);
        let mut views = self.views();
        let oldest_kept = height.saturating_sub(self.settings.view_lag_blocks_max);
        while views.front().is_some_and(|(height, view)| *height < oldest_kept || view.strong_count() == 0) {
            views.pop_front();
        }
        let own = views.front().map_or(height, |(height, _)| *height);
        drop(views);
        let floor = self.followers.floor(own);
        self.admitted.fetch_max(floor.min(height), Ordering::AcqRel);
        floor
    }

    /// Whether a newer primary has taken over.
    fn is_fenced(&self) -> bool {
        if self.fenced.load(Ordering::Relaxed) {
            return true;
        }
        let fenced = self.memory.is_fenced();
        if fenced {
            self.fenced.store(true, Ordering::Relaxed);
        }
        fenced
    }

    /// Has storage materialise the blocks below `height`, unless it already has.
    async fn materialize(&self, height: u64) -> Result<(), Error> {
        if let Some(life) = self.role.joined() {
            return self.await_rows(life, height).await;
        }
        let _one_at_a_time = self.persisting.lock().await;
        if self.store.savepoint().height < height {
            fault::hold_up("state.savepoint").await;
            self.prune().await?;
            self.store.materialize(height).await?;
        }
        let reached = self.store.savepoint().height;
        self.advance_savepoint(reached).await;
        match reached >= height {
            true => Ok(()),
            false => Err(Error::Busy),
        }
    }

    /// Logs changes for all followers, to be sent with the next update.
    fn log_change(&self, log: impl FnOnce(&mut ChangeLog<'_>)) {
        self.followers.log(|bytes| log(&mut ChangeLog(bytes)));
    }

    /// The first byte of the section of an address.
    fn base(&self, address: u64) -> u64 {
        address - address % self.memory.section_bytes()
    }

    /// Whether the section of an address was abandoned.
    #[inline]
    fn is_gone(&self, address: u64) -> bool {
        self.gone.any.load(Ordering::Acquire) && {
            let bases = self.gone.bases.read().unwrap_or_else(PoisonError::into_inner);
            bases.contains(&self.base(address))
        }
    }

    /// Marks a section as abandoned: from now on no read finds anything there.
    fn mark_gone(&self, base: u64) {
        self.gone.bases.write().unwrap_or_else(PoisonError::into_inner).insert(base);
        self.gone.any.store(true, Ordering::Release);
        self.caches.forget(|pointer| self.base(pointer.address()) == base);
    }

    /// Abandons the section of an address with everything in it: 1. reads find nothing in it any more; 2. the
    /// directory, the allocator and the lists drop it; 3. it is returned to the pool, after which no verb ever takes
    /// effect in it. Slots in other sections that lead into it become dangling but harmless: its addresses are never
    /// reused.
    fn give_up(&self, writer: &mut StateWriter, address: u64) {
        let base = self.base(address);
        let Some(id) = writer.sections.remove(&base) else { return };
        events::SectionsGivenUp.add(1);
        self.mark_gone(base);
        let within = |address: u64| self.base(address) == base;
        writer.space.remove(base);
        writer.orphans |= !self.directory.forget(|subtable| within(subtable.address)).is_empty();
        writer.superseded.retain(|superseded| !within(superseded.pointer.address()));
        writer.tombstones.retain(|tombstone| !within(tombstone.pointer.address()));
        writer.evicted.retain(|(_, pointer)| !within(pointer.address()));
        writer.unacknowledged.retain(|(_, pointer)| !within(pointer.address()));
        self.log_change(|changes| changes.section_gone(base));
        self.release(id);
        self.wanted.notify_one();
    }

    /// Leases one more section. After a failure the pool is not asked again for a while. A donor's process may be
    /// silent while its memory works: a section that does not arrive within [`DONOR_TIMEOUT`] is added when it
    /// arrives, and until then this returns false.
    async fn grow_space(&self, writer: &mut StateWriter) -> bool {
        if writer.growing.is_some() {
            return self.enter_late_section(writer).await;
        }
        let budget_bytes = self.memory.budget_bytes();
        if writer.exhausted.is_some_and(|exhausted| exhausted.holds(budget_bytes) && rt::now() < exhausted.until) {
            return false;
        }
        let memory = Arc::clone(&self.memory);
        let mut growing = rt::spawn(async move {
            fault::hold_up("state.grow").await;
            memory.grow().await
        })
        .abort_on_drop();
        match rt::timeout(DONOR_TIMEOUT, &mut growing).await {
            Ok(grown) => self.enter_section(writer, grown).await,
            Err(rt::Elapsed) => {
                writer.growing = Some(growing);
                writer.exhausted = Some(PoolExhausted::now(budget_bytes));
                false
            }
        }
    }

    /// Adds the section that was requested from the pool, if it has arrived by now.
    async fn enter_late_section(&self, writer: &mut StateWriter) -> bool {
        match writer.growing.take_if(|growing| growing.is_finished()) {
            Some(grown) => self.enter_section(writer, grown.await).await,
            None => false,
        }
    }

    /// Adds a section that the pool granted, unless the pool refused.
    async fn enter_section(
        &self,
        writer: &mut StateWriter,
        grown: Result<Result<Section, MemoryError>, rt::TaskAborted>,
    ) -> bool {
        let lost = std::mem::take(&mut writer.lost);
        let grown = grown.unwrap_or_else(|_| Err(MemoryError::Failed("the request has ended".to_owned())));
        let refused = match grown {
            Ok(section) if lost.contains(&section.id) => MemoryError::Failed("it was lost while granted".to_owned()),
            Ok(section) if section.address + section.bytes <= ADDRESS_BYTES_MAX => {
                writer.space.add(section.address, section.bytes);
                writer.sections.insert(section.address, section.id);
                writer.exhausted = None;
                events::SectionsLeased.add(1);
                self.grant_to_followers(&section).await;
                return true;
            }
            Ok(section) => {
                self.release(section.id);
                MemoryError::Failed("the section lies beyond the highest address that a pointer can hold".to_owned())
            }
            Err(error) => error,
        };
        if refused == MemoryError::Fenced {
            self.fenced.store(true, Ordering::Relaxed);
        }
        tracing::debug!(error = %refused, "no further section");
        writer.exhausted = Some(PoolExhausted::now(self.memory.budget_bytes()));
        false
    }

    /// Gives followers read grants of a new section. A follower without a grant reads the section's records from
    /// storage instead.
    async fn grant_to_followers(&self, section: &Section) {
        for holder in self.followers.ids() {
            fault::hold_up("state.followers.share").await;
            match rt::timeout(DONOR_TIMEOUT, self.memory.grant_read(section.id, holder)).await {
                Ok(Ok(place)) => self.followers.log_for(holder, |bytes| ChangeLog(bytes).section(section, &place)),
                Ok(Err(error)) => tracing::debug!(%error, section = section.id, "a follower goes without a section"),
                Err(rt::Elapsed) => {
                    tracing::debug!(section = section.id, "followers go without a section: its donor is silent");
                    return;
                }
            }
        }
    }

    /// Returns a section. As a first step the pool fails all verbs to it; nobody waits for the donor's answer.
    fn release(&self, section: u32) {
        let memory = Arc::clone(&self.memory);
        drop(rt::spawn(async move {
            if let Err(error) = memory.release(section).await {
                tracing::debug!(%error, section, "an abandoned section is returned to the pool in the background");
            }
        }));
    }
}

impl StateWriter {
    /// Records that a buffer of this length could not be allocated.
    fn is_short_of(&mut self, bytes: usize) {
        self.short = self.short.max(bytes as u64);
    }

    /// Retires a live buffer to which nothing leads any more, once all followers know that.
    fn retire(&mut self, pointer: Pointer) {
        match self.holders.position() {
            Some(position) => self.unacknowledged.push_back((position, pointer)),
            None => self.retire_now(pointer),
        }
    }

    fn retire_now(&mut self, pointer: Pointer) {
        if self.space.extent(pointer.address()).is_some() {
            let early = [fault::Mutant::ReuseEarly, fault::Mutant::NoIncarnation].into_iter().any(fault::mutant);
            let wait = if early { Duration::ZERO } else { lease::REUSE_AFTER };
            self.space.quarantine(pointer.address(), rt::now() + wait);
        }
    }

    /// Retires the buffers whose updates every follower has acknowledged by now.
    fn retire_acknowledged(&mut self) {
        if self.unacknowledged.is_empty() {
            return;
        }
        let told = self.holders.acknowledged_below();
        while let Some((position, pointer)) = self.unacknowledged.front().copied()
            && position <= told
        {
            self.unacknowledged.pop_front();
            self.retire_now(pointer);
        }
    }
}
