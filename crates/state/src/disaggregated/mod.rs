//! The world state on pooled memory: index and records in an address space, tables in storage, caches here.
//!
//! It follows FlexChain (section 4) and leaves it in one decision: memory nodes are passive. Index and records are laid out
//! so that one-sided verbs are all that reads and writes them (docs/adr, passive memory nodes), and a block is applied as
//! one batch instead of one record at a time (docs/adr, group apply).
//!
//! What is where, and who may change it:
//!
//! | place | holds | changed by |
//! |---|---|---|
//! | [`record`]s in remote memory | versions, newest first linked by `prev`, oldest first by `next` | the writer |
//! | [`index`] in remote memory | from a key to its newest version | the writer |
//! | [`cache`] here | newest versions by key, bytes by version | apply, and readers under a token |
//! | [`delta`] here | which keys the blocks after the savepoint wrote, and where each version is | apply, savepoint |
//! | storage | every version up to the savepoint that a reader may need | itself, from its blocks |
//!
//! The writer is whoever holds the lock of [`Writer`]: apply, a fill, eviction, or the keeper, at the one primary of the peer. Other
//! compute nodes of the peer, its [`readers`], read the same memory and follow what the primary tells them; all but what
//! changes something is the same code there.
//!
//! 1. A block is durable in storage before [`WorldState::apply`] is called with it. Remote memory may vanish at any moment:
//!    whatever it holds is in the delta's blocks or in storage.
//! 2. [`apply`](apply) writes records, links them, swaps index slots, adds to the delta, replaces what the caches know, tells the
//!    readers, waits for them, and only then raises the height.
//! 3. [`read`](read) looks into caches, index, delta, storage, in this order. To find nothing in one of them is never wrong;
//!    to find something that is not the newest would be, and is what the protocols prevent.
//! 4. [`reclaim`](keeper) puts a version aside once no view can need it, here or at a reader, and uses its buffer again only when
//!    every [`lease`] that could hold its address has ended.
//! 5. [`evict`](evict) keeps memory below its budget: it takes cold records out that storage has as rows. [`drain`](drain)
//!    gives sections back when the budget was lowered.
//! 6. The savepoint moves by itself, or when [`WorldState::persist`] asks; the delta then forgets what it covers.
//! 7. A lost section, and one into which an ambiguous verb may still write, is given up ([`Shared::give_up`]): readers find
//!    nothing there from that moment on, and storage and other sections take its place.
//! 8. A new primary opens the address space under a higher epoch, which fences this one: its verbs have no effect from then
//!    on, and its calls fail with [`Error::Fenced`]. It begins with an empty index in new sections, and neither raises a
//!    height nor lets readers join before every lease has ended that the old one can have granted.
//!
//! Invariants:
//! * A slot of the index leads to the newest applied version of its key, or there is none.
//! * A buffer is used again only after nothing has led to it for [`lease::REUSE_AFTER`].
//! * Every leased byte is free, live or quarantined; every live one is a subtable, or a record that an index slot, a newer
//!   version's `prev` or the list of superseded versions leads to.

mod apply;
mod audit;
mod cache;
mod delta;
mod directory;
mod drain;
mod evict;
pub mod fault;
mod fill;
#[doc(hidden)]
pub mod fuzz;
mod grow;
mod heat;
mod index;
mod keeper;
pub mod lease;
pub mod memory;
mod pointer;
mod range;
mod read;
pub mod readers;
mod record;
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
use base::rt::{self, AbortOnDrop, Instant, Stop};
use base::{Set, Version};
use futures_util::future::join_all;
use storage::StateStore;

pub use audit::Audit;
use cache::Caches;
use delta::Delta;
use directory::Directory;
use heat::Heat;
use index::{KeyHash, Subtable};
use memory::{Memory, MemoryError, Section};
use pointer::{ADDRESS_BYTES_MAX, Pointer};
pub use readers::Reader;
use readers::{Holders, Role};
use record::Name;
use space::{Accounts, Space};

use crate::{Durable, Error, RangePage, Snapshot, UpdateBatch, VersionPage, Versioned, WorldState, digest, events};

/// How long a donor's answer is waited for with the writer's lock held.
const DONOR_WAIT_MAX: Duration = Duration::from_millis(100);
/// Reads of one caller that are under way at once.
const READS_AT_ONCE: usize = 64;

/// Limits of one peer's state in one channel. The budget of remote memory is the address space's.
#[derive(Clone, Debug)]
pub struct DisaggregatedSettings {
    /// Bytes of the metadata cache: where keys are, and their versions.
    pub metadata_cache_bytes: usize,
    /// Bytes of the data cache: records.
    pub data_cache_bytes: usize,
    /// Bytes of the delta above which [`WorldState::wants_persist`] says so.
    pub delta_bytes_max: usize,
    /// Blocks that a view may lag behind before it is fenced.
    pub view_lag_blocks_max: u64,
    /// Blocks beyond the savepoint above which it says so too.
    pub savepoint_lag_blocks_max: u64,
    /// Percent of the budget of remote memory above which cold records are evicted.
    pub evict_above_percent: u8,
    /// Percent of it that eviction leaves in use; less than the above.
    pub evict_to_percent: u8,
}

impl Default for DisaggregatedSettings {
    fn default() -> Self {
        DisaggregatedSettings {
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
    shared: Arc<Shared>,
    _keepers: Vec<AbortOnDrop<()>>,
}

struct Shared {
    memory: Arc<dyn Memory>,
    store: Arc<dyn StateStore>,
    settings: DisaggregatedSettings,
    /// Of the hashes of keys.
    seed: u64,
    caches: Caches,
    heat: Heat,
    directory: Directory,
    delta: RwLock<Delta>,
    gone: Gone,
    height: AtomicU64,
    /// Views below this height are fenced.
    admitted: AtomicU64,
    /// The delta has forgotten the blocks below this height, which storage has as rows.
    settled: AtomicU64,
    /// Versions of blocks below this height are not left by `prev`: what it leads to may have been evicted.
    forgotten: AtomicU64,
    /// What storage was last told: nobody reads below this block.
    told: AtomicU64,
    current: RwLock<Option<Arc<View>>>,
    views: Mutex<VecDeque<(u64, Weak<View>)>>,
    writer: rt::sync::Mutex<Writer>,
    persisting: rt::sync::Mutex<()>,
    fills: Semaphore,
    /// Something is for the keeper to do.
    wanted: Notify,
    /// Memory is crowded, or something found no room.
    crowded: Notify,
    fenced: AtomicBool,
    role: Role,
    holders: Arc<Holders>,
    /// Stopped once readers may join.
    admits_readers: Stop,
    /// What readers ask for.
    wishes: Semaphore,
    /// Leases that an earlier primary granted have ended by then; heights are raised and shown only after that.
    reigns_from: Instant,
}

/// Sections that were given up, by their first byte. They stay here: slots elsewhere may lead into them, and their addresses are
/// never used again. There are no more than the sections that a pool gives in the life of a space
/// ([`pool::space::SECTIONS_EVER_MAX`]), of 8 bytes each.
#[derive(Default)]
struct Gone {
    any: AtomicBool,
    bases: RwLock<Set<u64>>,
}

/// How much remote memory a state uses, in bytes, and what it has done to use no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Sections that the budget allows.
    pub allowed: u64,
    /// Sections that are leased. Above the former while a lower budget takes effect.
    pub leased: u64,
    /// Of the leased, what is free, in use, and put aside until every lease has ended.
    pub free: u64,
    pub live: u64,
    pub quarantined: u64,
    /// Records evicted so far, and the bytes that they took.
    pub evicted_records: u64,
    pub evicted_bytes: u64,
    /// Sections emptied and given back so far because the budget was lowered.
    pub sections_drained: u64,
}

/// The pool had nothing to give to an owner with this budget.
#[derive(Clone, Copy)]
struct Exhausted {
    /// It is not asked again before that time.
    until: Instant,
    budget_bytes: u64,
}

impl Exhausted {
    fn now(budget_bytes: u64) -> Exhausted {
        Exhausted { until: rt::now() + keeper::EXHAUSTED_PAUSE, budget_bytes }
    }

    /// A budget that was raised may change it.
    fn holds(&self, budget_bytes: u64) -> bool {
        budget_bytes <= self.budget_bytes
    }
}

/// What only the writer touches.
#[derive(Default)]
struct Writer {
    space: Space,
    holders: Arc<Holders>,
    /// Buffers to which nothing leads any more, with the update by which readers learn of that.
    untold: VecDeque<(u64, Pointer)>,
    /// The numbers of sections by their first byte.
    sections: BTreeMap<u64, u32>,
    /// Versions that a block superseded, in the order of blocks.
    superseded: VecDeque<Superseded>,
    /// Records of deletions that no savepoint covers yet, in the order of blocks.
    tombstones: VecDeque<Tombstone>,
    /// Subtables were lost: records may be live to which nothing leads.
    orphans: bool,
    /// Bytes of the longest buffer for which there was no room since this was last looked at.
    short: u64,
    /// Where the hand of the eviction's clock is.
    hand: u64,
    /// Records that were evicted, marked as given up, and are still put aside, with the time at which they were.
    evicted: VecDeque<(Instant, Pointer)>,
    /// The pool had nothing to give.
    exhausted: Option<Exhausted>,
    /// A section that the pool is asked for, whose donor takes its time.
    growing: Option<AbortOnDrop<Result<Section, MemoryError>>>,
    /// What was lost meanwhile and is not among the sections.
    lost: Vec<u32>,
    /// The counts of what was done; the bytes are the space's.
    usage: Usage,
}

struct Superseded {
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

/// A block boundary that at least one reader may be looking at.
pub struct View {
    shared: Arc<Shared>,
    height: u64,
}

impl Disaggregated {
    /// Opens the state with empty memory, at the height of storage's savepoint: the caller applies later blocks again.
    ///
    /// `memory` was opened under an epoch higher than that of any primary before, which fenced them.
    pub async fn open(
        memory: Arc<dyn Memory>,
        store: Arc<dyn StateStore>,
        settings: DisaggregatedSettings,
    ) -> Result<Disaggregated, Error> {
        let height = store.savepoint().height;
        let budget_bytes = memory.budget_bytes();
        let seed = rt::random_u64();
        let shared = Arc::new(Shared::new(memory, store, settings, Role::Primary, seed, height, budget_bytes));
        Shared::publish(&shared, height);
        let keepers = keeper::start(&shared);
        Ok(Disaggregated { shared, _keepers: keepers })
    }

    /// Lets readers join, once every lease has ended that an earlier primary can have granted: until then its readers may
    /// answer at lower heights, and whoever opened this state shows it to nobody. To be called when every durable block has
    /// been applied: before that, a reader would show heights below those that an earlier primary has shown.
    pub async fn admit_readers(&self) {
        self.shared.outlast_leases().await;
        self.shared.admits_readers.stop();
    }

    /// Serves a reader over a link until that ends ([`readers`]). Dropping the future ends it.
    ///
    /// # Errors
    /// [`Error::Fenced`]; [`Error::Busy`] when there are too many, or joining took too long.
    pub async fn serve_reader(&self, link: Link) -> Result<(), Error> {
        Shared::serve_reader(&self.shared, link).await
    }

    /// The view of the last applied block, with the reads that do not go through [`Snapshot`].
    pub fn view(&self) -> Arc<View> {
        self.shared.newest_view()
    }

    /// Changes the budget of remote memory while everything goes on. On return there is no growth above it; sections above a
    /// lower budget are emptied and given back in the background, one by one ([`Disaggregated::usage`] says how many bytes
    /// are leased).
    ///
    /// # Errors
    /// [`Error::BudgetTooSmall`] below one section.
    pub fn set_budget(&self, bytes: u64) -> Result<(), Error> {
        let section_bytes = self.shared.memory.section_bytes();
        if bytes < section_bytes {
            return Err(Error::BudgetTooSmall { bytes, section_bytes });
        }
        // Bits first: what is written into new sections is noted at once.
        self.shared.heat.enlarge(bytes);
        self.shared.memory.set_budget(bytes);
        self.shared.crowded.notify_one();
        Ok(())
    }

    /// How much remote memory is used. Waits for the writer's turn, and reads nothing.
    pub async fn usage(&self) -> Usage {
        let writer = self.shared.writer.lock().await;
        let Accounts { leased, free, live, quarantined } = writer.space.accounts();
        let allowed = self.shared.allowed();
        Usage { allowed, leased, free, live, quarantined, ..writer.usage }
    }

    /// How remote memory is used, and whether everything in it is accounted for. Reads all of the index.
    ///
    /// # Errors
    /// [`Error::Busy`] when a verb fails.
    pub async fn audit(&self) -> Result<Audit, Error> {
        self.shared.audit().await
    }
}

impl Drop for Disaggregated {
    fn drop(&mut self) {
        // The view leads back here. Views that readers hold stay as they are.
        *self.shared.current.write().unwrap_or_else(PoisonError::into_inner) = None;
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

    fn readers(&self) -> usize {
        self.shared.holders.count()
    }

    fn place_work(&self, load_max: u8, trusts: &dyn Fn(&str) -> bool) -> Option<readers::Place> {
        self.shared.holders.place(load_max, WorldState::height(self), trusts)
    }

    async fn apply(&self, number: u64, batch: UpdateBatch) -> Result<(), Error> {
        Shared::apply(&self.shared, number, &batch, None).await
    }

    async fn apply_when(&self, number: u64, batch: UpdateBatch, durable: Durable<'_>) -> Result<(), Error> {
        Shared::apply(&self.shared, number, &batch, Some(durable)).await
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
impl Snapshot for View {
    fn height(&self) -> u64 {
        self.height
    }

    // Written out what the attribute makes of an `async fn`, so that what the caches answer needs no room for the rest.
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
        // Many at once, so that what they wait for is waited for together.
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

impl Shared {
    /// With empty memory, at this height.
    fn new(
        memory: Arc<dyn Memory>,
        store: Arc<dyn StateStore>,
        settings: DisaggregatedSettings,
        role: Role,
        seed: u64,
        height: u64,
        budget_bytes: u64,
    ) -> Shared {
        let holders: Arc<Holders> = Arc::default();
        let early = fault::mutant(fault::Mutant::ReignEarly);
        Shared {
            memory,
            store,
            seed,
            caches: Caches::new(settings.metadata_cache_bytes, settings.data_cache_bytes),
            heat: Heat::new(budget_bytes),
            directory: Directory::default(),
            delta: RwLock::default(),
            gone: Gone::default(),
            height: AtomicU64::new(height),
            admitted: AtomicU64::new(height),
            settled: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
            told: AtomicU64::new(height.saturating_sub(1)),
            current: RwLock::new(None),
            views: Mutex::default(),
            writer: rt::sync::Mutex::new(Writer { holders: Arc::clone(&holders), ..Writer::default() }),
            persisting: rt::sync::Mutex::new(()),
            fills: Semaphore::new(fill::FILLS_MAX),
            wanted: Notify::new(),
            crowded: Notify::new(),
            fenced: AtomicBool::new(false),
            settings,
            role,
            holders,
            admits_readers: Stop::new(),
            wishes: Semaphore::new(fill::FILLS_MAX),
            reigns_from: if early { rt::now() } else { rt::now() + lease::REUSE_AFTER },
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

    /// The delta with every block in order that any height so far shows.
    fn delta_in_order(&self) -> RwLockReadGuard<'_, Delta> {
        if !self.delta().is_ordered() {
            self.delta_mut().order();
        }
        // A block that is added in between is too new for whoever asks.
        self.delta()
    }

    fn delta_mut(&self) -> RwLockWriteGuard<'_, Delta> {
        self.delta.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn views(&self) -> MutexGuard<'_, VecDeque<(u64, Weak<View>)>> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A view of a height, for every later snapshot.
    fn publish(shared: &Arc<Shared>, height: u64) {
        let view = Arc::new(View { shared: Arc::clone(shared), height });
        shared.views().push_back((height, Arc::downgrade(&view)));
        *shared.current.write().unwrap_or_else(PoisonError::into_inner) = Some(view);
    }

    /// The height of the oldest view that may still be read: of those that lag too far none is.
    fn floor(&self) -> u64 {
        let height = self.height.load(Ordering::Acquire);
        let mut views = self.views();
        let oldest_kept = height.saturating_sub(self.settings.view_lag_blocks_max);
        while views.front().is_some_and(|(height, view)| *height < oldest_kept || view.strong_count() == 0) {
            views.pop_front();
        }
        let own = views.front().map_or(height, |(height, _)| *height);
        drop(views);
        let floor = self.holders.floor(own);
        self.admitted.fetch_max(floor.min(height), Ordering::AcqRel);
        floor
    }

    /// Waits until every lease has ended that an earlier primary can have granted.
    async fn outlast_leases(&self) {
        if rt::now() < self.reigns_from {
            rt::sleep_until(self.reigns_from).await;
        }
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

    /// Has storage make rows of the blocks below `height`, unless it has.
    async fn materialize(&self, height: u64) -> Result<(), Error> {
        if let Some(life) = self.role.life() {
            return self.await_rows(life, height).await;
        }
        let _one_at_a_time = self.persisting.lock().await;
        if self.store.savepoint().height < height {
            fault::hold_up("state.savepoint").await;
            self.prune().await?;
            self.store.materialize(height).await?;
        }
        let reached = self.store.savepoint().height;
        self.settle(reached).await;
        match reached >= height {
            true => Ok(()),
            false => Err(Error::Busy),
        }
    }

    /// The first byte of the section of an address.
    fn base(&self, address: u64) -> u64 {
        address - address % self.memory.section_bytes()
    }

    /// Whether the section of an address was given up.
    #[inline]
    fn is_gone(&self, address: u64) -> bool {
        self.gone.any.load(Ordering::Acquire) && {
            let bases = self.gone.bases.read().unwrap_or_else(PoisonError::into_inner);
            bases.contains(&self.base(address))
        }
    }

    /// Marks a section: nobody finds anything there from now on.
    fn mark_gone(&self, base: u64) {
        self.gone.bases.write().unwrap_or_else(PoisonError::into_inner).insert(base);
        self.gone.any.store(true, Ordering::Release);
        self.caches.forget(|pointer| self.base(pointer.address()) == base);
    }

    /// Gives up the section of an address, whatever is in it: 1. readers find nothing there any more; 2. the directory, the
    /// allocator and the lists forget it; 3. it is given back, after which no verb takes effect in it, ever. Slots elsewhere
    /// that lead into it lead nowhere: its addresses are never used again.
    fn give_up(&self, writer: &mut Writer, address: u64) {
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
        writer.untold.retain(|(_, pointer)| !within(pointer.address()));
        self.holders.log(|changes| changes.gone(base));
        self.release(id);
        self.wanted.notify_one();
    }

    /// Leases one more section. Not asked for again for a while when there was none. A donor may be silent while its memory
    /// works: what does not come within [`DONOR_WAIT_MAX`] is entered when it is there, and until then there is none.
    async fn grow_space(&self, writer: &mut Writer) -> bool {
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
        match rt::timeout(DONOR_WAIT_MAX, &mut growing).await {
            Ok(grown) => self.enter_section(writer, grown).await,
            Err(rt::Elapsed) => {
                writer.growing = Some(growing);
                writer.exhausted = Some(Exhausted::now(budget_bytes));
                false
            }
        }
    }

    /// Enters the section that the pool was asked for, if it has come by now.
    async fn enter_late_section(&self, writer: &mut Writer) -> bool {
        match writer.growing.take_if(|growing| growing.is_finished()) {
            Some(grown) => self.enter_section(writer, grown.await).await,
            None => false,
        }
    }

    /// Makes a section known that the pool has given, if it has.
    async fn enter_section(
        &self,
        writer: &mut Writer,
        grown: Result<Result<Section, MemoryError>, rt::Aborted>,
    ) -> bool {
        let lost = std::mem::take(&mut writer.lost);
        let grown = grown.unwrap_or_else(|_| Err(MemoryError::Failed("asking the pool has ended".to_owned())));
        let refused = match grown {
            Ok(section) if lost.contains(&section.id) => MemoryError::Failed("it was lost at once".to_owned()),
            Ok(section) if section.address + section.bytes <= ADDRESS_BYTES_MAX => {
                writer.space.add(section.address, section.bytes);
                writer.sections.insert(section.address, section.id);
                writer.exhausted = None;
                events::SectionsLeased.add(1);
                self.share_with_readers(&section).await;
                return true;
            }
            Ok(section) => {
                self.release(section.id);
                MemoryError::Failed("it lies beyond what pointers can say".to_owned())
            }
            Err(error) => error,
        };
        if refused == MemoryError::Fenced {
            self.fenced.store(true, Ordering::Relaxed);
        }
        tracing::debug!(error = %refused, "no further section");
        writer.exhausted = Some(Exhausted::now(self.memory.budget_bytes()));
        false
    }

    /// Lets readers read a section that is new. One that goes without finds in storage what lies there.
    async fn share_with_readers(&self, section: &Section) {
        for holder in self.holders.ids() {
            fault::hold_up("state.readers.share").await;
            match rt::timeout(DONOR_WAIT_MAX, self.memory.share(section.id, holder)).await {
                Ok(Ok(place)) => self.holders.log_for(holder, |changes| changes.section(section, &place)),
                Ok(Err(error)) => tracing::debug!(%error, section = section.id, "a reader goes without a section"),
                Err(rt::Elapsed) => {
                    tracing::debug!(section = section.id, "readers go without a section: its donor is silent");
                    return;
                }
            }
        }
    }

    /// Gives a section back. On its way the pool lets verbs to it fail; nothing waits for the donor's answer.
    fn release(&self, section: u32) {
        let memory = Arc::clone(&self.memory);
        drop(rt::spawn(async move {
            if let Err(error) = memory.release(section).await {
                tracing::debug!(%error, section, "a section that was given up is given back in the background");
            }
        }));
    }
}

impl Writer {
    /// There was no room for a buffer.
    fn is_short_of(&mut self, bytes: usize) {
        self.short = self.short.max(bytes as u64);
    }

    /// Puts a live buffer aside to which nothing leads any more, once all readers know that.
    fn put_aside(&mut self, pointer: Pointer) {
        match self.holders.position() {
            Some(position) => self.untold.push_back((position, pointer)),
            None => self.put_aside_told(pointer),
        }
    }

    fn put_aside_told(&mut self, pointer: Pointer) {
        if self.space.extent(pointer.address()).is_some() {
            let early = [fault::Mutant::ReuseEarly, fault::Mutant::NoIncarnation].into_iter().any(fault::mutant);
            let wait = if early { Duration::ZERO } else { lease::REUSE_AFTER };
            self.space.quarantine(pointer.address(), rt::now() + wait);
        }
    }

    /// Puts aside what every reader knows of by now.
    fn put_aside_what_is_told(&mut self) {
        if self.untold.is_empty() {
            return;
        }
        let told = self.holders.told_below();
        while let Some((position, pointer)) = self.untold.front().copied()
            && position <= told
        {
            self.untold.pop_front();
            self.put_aside_told(pointer);
        }
    }
}
