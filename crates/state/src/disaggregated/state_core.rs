//! The state that reading, writing, following and maintenance share.

use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::time::Duration;

use base::rt::sync::{Notify, Semaphore};
use base::rt::{AbortOnDrop, CancellationToken, Instant};
use base::{Set, Version, rt};
use futures_util::future::join_all;
use replica::{EarlierLeases, FollowerTable, lease};
use storage::StateStore;

use super::apply_workers::ApplyWorkers;
use super::cache::Caches;
use super::delta::Delta;
use super::directory::SubtableDirectory;
use super::followers::ComputeRole;
use super::followers::changes::ChangeLog;
use super::index::{KeyHash, Subtable};
use super::memory::{Memory, MemoryError, Section};
use super::pointer::Pointer;
use super::reference_bits::ReferenceBits;
use super::section_headers::SectionHeaders;
use super::space::SpaceAllocator;
use crate::empty_namespaces::EmptyNamespaces;
use crate::{Error, RangePage, Snapshot, VersionPage, Versioned};

/// How long to wait for a donor's answer with the writer's lock held.
pub(super) const DONOR_TIMEOUT: Duration = Duration::from_millis(100);
/// Reads of one caller in flight at once.
pub(super) const READS_AT_ONCE: usize = 64;

/// Limits of one peer's state in one channel. The budget of remote memory is the address space's.
#[derive(Clone, Debug)]
pub struct DisaggregatedConfig {
    /// Bytes of the metadata cache: where keys are, and their versions.
    pub metadata_cache_bytes: usize,
    /// Bytes of the data cache: records.
    pub data_cache_bytes: usize,
    /// Bytes of the delta above which [`WorldState::wants_persist`](crate::WorldState::wants_persist) returns true.
    pub delta_bytes_max: usize,
    /// Blocks that a view may lag behind before it is fenced.
    pub view_lag_blocks_max: u64,
    /// Blocks beyond the savepoint above which [`WorldState::wants_persist`](crate::WorldState::wants_persist) returns true.
    pub savepoint_lag_blocks_max: u64,
    /// Percent of the budget of remote memory above which cold records are evicted.
    pub evict_above_percent: u8,
    /// Percent of the budget that eviction leaves in use; less than `evict_above_percent`.
    pub evict_to_percent: u8,
    /// How many tasks apply the writes of a block.
    pub apply_workers: ApplyWorkers,
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
            apply_workers: ApplyWorkers::ONE,
        }
    }
}

pub(super) struct StateCore {
    pub(super) memory: Arc<dyn Memory>,
    pub(super) store: Arc<dyn StateStore>,
    pub(super) settings: DisaggregatedConfig,
    /// Seed of the key hashes.
    pub(super) seed: u64,
    pub(super) caches: Caches,
    pub(super) heat: ReferenceBits,
    pub(super) directory: SubtableDirectory,
    delta: RwLock<Delta>,
    pub(super) empty: EmptyNamespaces,
    gone: GoneSections,
    pub(super) height: AtomicU64,
    /// Views below this height are fenced.
    pub(super) admitted: AtomicU64,
    /// Storage has the blocks below this height as rows, and the delta has dropped them.
    pub(super) savepoint: AtomicU64,
    /// `prev` of a version of a block below this height must not be followed: the record that it leads to may have been
    /// evicted.
    pub(super) forgotten: AtomicU64,
    /// Stopped once every subtable of an adopted index was read.
    pub(super) surveyed: CancellationToken,
    /// Blocks below this height may be in the index that was adopted: applying them again mends their keys.
    pub(super) mends_below: u64,
    /// The block last reported to storage as the oldest that anything still reads.
    pub(super) reported: AtomicU64,
    pub(super) current: RwLock<Option<Arc<StateView>>>,
    views: Mutex<VecDeque<(u64, Weak<StateView>)>>,
    pub(super) writer: rt::sync::Mutex<StateWriter>,
    persisting: rt::sync::Mutex<()>,
    pub(super) fills: Semaphore,
    /// Wakes reclamation before its period is over.
    pub(super) wanted: Notify,
    /// Wakes the eviction task: memory is crowded, or an allocation failed for want of space.
    pub(super) crowded: Notify,
    /// Wakes the task that vacates memory nodes.
    pub(super) vacating: Notify,
    pub(super) fenced: AtomicBool,
    pub(super) role: ComputeRole,
    pub(super) followers: Arc<FollowerTable>,
    /// Bounds the requests of followers that run at once.
    pub(super) fill_permits: Semaphore,
    /// The leases of earlier primaries: heights are raised and shown only after they have ended.
    pub(super) earlier_leases: EarlierLeases,
}

/// Abandoned sections, by their first byte. An entry is never removed: slots in other sections may lead into the
/// section, and its addresses are never reused. The number of entries is bounded by the number of sections that a pool
/// ever grants to one address space ([`pool::space::SECTIONS_EVER_MAX`]), of 8 bytes each.
#[derive(Default)]
pub(super) struct GoneSections {
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
    /// Sections emptied and given back so far: the budget was lowered, or their memory node was vacated.
    pub sections_drained: u64,
    /// Sections moved to another memory node so far.
    pub sections_migrated: u64,
}

/// The pool had no section to grant under this budget.
#[derive(Clone, Copy)]
pub(super) struct PoolExhausted {
    /// The pool is not asked again before this time.
    pub(super) until: Instant,
    budget_bytes: u64,
}

impl PoolExhausted {
    pub(super) fn now(budget_bytes: u64) -> PoolExhausted {
        PoolExhausted { until: rt::now() + super::limits::EXHAUSTED_PAUSE, budget_bytes }
    }

    /// Whether the pool still need not be asked: only a higher budget changes its answer.
    pub(super) fn holds(&self, budget_bytes: u64) -> bool {
        budget_bytes <= self.budget_bytes
    }
}

/// State that only the writer touches.
#[derive(Default)]
pub(super) struct StateWriter {
    pub(super) space: SpaceAllocator,
    holders: Arc<FollowerTable>,
    /// Buffers to which nothing leads any more, each with the position of the update that reports this to the
    /// followers.
    pub(super) unacknowledged: VecDeque<(u64, Pointer)>,
    /// Section numbers by first byte.
    pub(super) sections: BTreeMap<u64, u32>,
    /// Versions that a block superseded, in the order of blocks.
    pub(super) superseded: VecDeque<SupersededVersion>,
    /// Tombstones that no savepoint covers yet, in the order of blocks.
    pub(super) tombstones: VecDeque<Tombstone>,
    /// Subtables were lost: some live records may be unreachable.
    pub(super) orphans: bool,
    /// Length in bytes of the longest buffer that could not be allocated since eviction last looked.
    pub(super) short: u64,
    /// Position of the hand of eviction's clock.
    pub(super) hand: u64,
    /// Evicted records that are marked invalid and still in quarantine, each with the time of its eviction.
    pub(super) evicted: VecDeque<(Instant, Pointer)>,
    /// Set while the pool has no section to grant.
    pub(super) exhausted: Option<PoolExhausted>,
    /// A section requested from the pool whose donor has not answered yet.
    pub(super) growing: Option<AbortOnDrop<Result<Section, MemoryError>>>,
    /// What the headers of the sections say.
    pub(super) headers: SectionHeaders,
    /// Buffers of unsurveyed sections to which nothing leads any more.
    pub(super) retired_unsurveyed: Vec<Pointer>,
    /// Sections that were lost while `growing` was in flight and are not in `sections`.
    pub(super) lost: Vec<u32>,
    /// Counters of completed work; the byte counts come from `space`.
    pub(super) usage: StateUsage,
}

pub(super) struct SupersededVersion {
    pub(super) pointer: Pointer,
    /// The block that superseded it.
    pub(super) since: u64,
}

pub(super) struct Tombstone {
    pub(super) block: u64,
    pub(super) hash: KeyHash,
    pub(super) namespace: Arc<str>,
    pub(super) key: Arc<str>,
    pub(super) pointer: Pointer,
}

/// A block boundary at which at least one reader may be looking.
pub struct StateView {
    pub(super) shared: Arc<StateCore>,
    pub(super) height: u64,
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

    async fn may_have_rows(&self, namespace: &str) -> Result<bool, Error> {
        if let Some(known) = self.shared.empty.may_have_rows(namespace, self.height) {
            return self.shared.admitted(self.height).map(|()| known);
        }
        let is_empty = self.version_page(namespace, "", "", 1).await?.entries.is_empty();
        self.shared.empty.note_found(namespace, self.height, is_empty);
        Ok(!is_empty)
    }
}

impl StateCore {
    /// A core with no memory yet, at this height.
    pub(super) fn new(
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
            empty: EmptyNamespaces::default(),
            gone: GoneSections::default(),
            height: AtomicU64::new(height),
            admitted: AtomicU64::new(height),
            savepoint: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
            surveyed: CancellationToken::new(),
            mends_below: 0,
            reported: AtomicU64::new(height.saturating_sub(1)),
            current: RwLock::new(None),
            views: Mutex::default(),
            writer: rt::sync::Mutex::new(StateWriter { holders: Arc::clone(&holders), ..StateWriter::default() }),
            persisting: rt::sync::Mutex::new(()),
            fills: Semaphore::new(super::limits::FILLS_MAX),
            wanted: Notify::new(),
            crowded: Notify::new(),
            vacating: Notify::new(),
            fenced: AtomicBool::new(false),
            settings,
            role,
            followers: holders,
            fill_permits: Semaphore::new(super::limits::FILLS_MAX),
            earlier_leases: EarlierLeases::new(),
        }
    }

    /// The subtable that serves a hash.
    #[inline]
    pub(super) fn find_subtable(&self, hash: KeyHash) -> Option<Subtable> {
        self.directory.find(hash)
    }

    pub(super) fn delta(&self) -> RwLockReadGuard<'_, Delta> {
        self.delta.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The delta, with every block ordered that is visible at any height so far.
    pub(super) fn delta_in_order(&self) -> RwLockReadGuard<'_, Delta> {
        if !self.delta().is_ordered() {
            self.delta_mut().order();
        }
        // A block that is added in between is too new for the caller.
        self.delta()
    }

    pub(super) fn delta_mut(&self) -> RwLockWriteGuard<'_, Delta> {
        self.delta.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn views(&self) -> MutexGuard<'_, VecDeque<(u64, Weak<StateView>)>> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes a view of a height, which every later snapshot returns.
    pub(super) fn publish(shared: &Arc<StateCore>, height: u64) {
        let view = Arc::new(StateView { shared: Arc::clone(shared), height });
        shared.views().push_back((height, Arc::downgrade(&view)));
        *shared.current.write().unwrap_or_else(PoisonError::into_inner) = Some(view);
    }

    /// The height of the oldest view that may still be read. Views that lag too far behind may not.
    pub(super) fn floor(&self) -> u64 {
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
    pub(super) fn is_fenced(&self) -> bool {
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
    pub(super) async fn materialize(&self, height: u64) -> Result<(), Error> {
        if let Some(life) = self.role.joined() {
            return self.await_rows(life, height).await;
        }
        let _one_at_a_time = self.persisting.lock().await;
        if self.store.savepoint().height < height {
            super::fault::hold_up("state.savepoint").await;
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
    pub(super) fn log_change(&self, log: impl FnOnce(&mut ChangeLog<'_>)) {
        self.followers.log(|bytes| log(&mut ChangeLog(bytes)));
    }

    /// The first byte of the section of an address.
    pub(super) fn base(&self, address: u64) -> u64 {
        address - address % self.memory.section_bytes()
    }

    /// Whether the section of an address was abandoned.
    #[inline]
    pub(super) fn is_gone(&self, address: u64) -> bool {
        self.gone.any.load(Ordering::Acquire) && {
            let bases = self.gone.bases.read().unwrap_or_else(PoisonError::into_inner);
            bases.contains(&self.base(address))
        }
    }

    /// Marks a section as abandoned: from now on no read finds anything there.
    pub(super) fn mark_gone(&self, base: u64) {
        self.gone.bases.write().unwrap_or_else(PoisonError::into_inner).insert(base);
        self.gone.any.store(true, Ordering::Release);
        self.caches.forget(|pointer| self.base(pointer.address()) == base);
    }
}

impl StateWriter {
    /// Records that a buffer of this length could not be allocated.
    pub(super) fn is_short_of(&mut self, bytes: usize) {
        self.short = self.short.max(bytes as u64);
    }

    /// Retires a live buffer to which nothing leads any more, once all followers know that.
    pub(super) fn retire(&mut self, pointer: Pointer) {
        match self.holders.position() {
            Some(position) => self.unacknowledged.push_back((position, pointer)),
            None => self.retire_now(pointer),
        }
    }

    pub(super) fn retire_now(&mut self, pointer: Pointer) {
        if self.space.is_unsurveyed(pointer.address()) {
            // The survey looks for what is in use, and leaves this out.
            if !super::fault::mutant(super::fault::Mutant::RetiredUnnoted) {
                self.retired_unsurveyed.push(pointer);
            }
            return;
        }
        if self.space.extent(pointer.address()).is_some() {
            let early = [super::fault::Mutant::ReuseEarly, super::fault::Mutant::NoIncarnation]
                .into_iter()
                .any(super::fault::mutant);
            let wait = if early { Duration::ZERO } else { lease::REUSE_AFTER };
            self.space.quarantine(pointer.address(), rt::now() + wait);
        }
    }

    /// Retires the buffers whose updates every follower has acknowledged by now.
    pub(super) fn retire_acknowledged(&mut self) {
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
