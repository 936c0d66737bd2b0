//! The world state in the storage engine of its own process.
//!
//! The state is held in three structures, which a reader asks in this order:
//! - the **delta**: every version that a block after the savepoint wrote;
//! - the **cache**: for recently used keys, the newest version that the tables have;
//! - the **tables**: everything up to the savepoint, and older versions while a reader may need them.
//!
//! Apply of block `n`:
//! 1. add its writes to the delta under the write lock;
//! 2. raise the height to `n + 1` and publish a new view, which later snapshots share.
//!
//! Persist to a savepoint `s`, the current height. First, views that lag too far behind are fenced; `f` is the height
//! of the oldest live view that is not fenced. Then:
//! 1. collect from the delta, for each key, the newest write below `s` and the newest write below `f`;
//! 2. write both to the tables together with the savepoint, and wait until they are durable;
//! 3. replace the newest versions in the cache;
//! 4. drop from the delta the versions below `f`;
//! 5. let the tables drop versions that no live view can see.
//!
//! Invariants:
//! 1. If a view at `f` or above can see a version, persist drops the version from the delta only once the tables have
//!    it durably. So a reader that asks the delta first and the tables second finds its version.
//! 2. Every version in the cache is also in the tables.
//! 3. The reads of a fenced view fail with [`Error::TooOld`] rather than return a wrong value.
//!
//! The monolithic form is the baseline of measurements, and the oracle for tests of the disaggregated form.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};
use std::time::Duration;

use base::{BlockNumber, Bytes, Version};
use storage::tables::{RangeEntry, RangeQuery, RowBatch, Savepoint, Tables};

use crate::cache::RecordCache;
use crate::delta::{Delta, NewestWrite};
use crate::empty_namespaces::EmptyNamespaces;
use crate::{
    Error, RANGE_BYTES_SOFT_MAX, RangePage, Snapshot, StateEntry, Update, UpdateBatch, VersionPage, Versioned,
    WorldState, digest, events,
};

/// Limits of one peer's state in one channel.
#[derive(Clone, Debug)]
pub struct MonolithicConfig {
    /// Bytes of clean records kept in memory.
    pub cache_bytes: usize,
    /// Bytes of unpersisted writes above which [`WorldState::wants_persist`] returns true.
    pub delta_bytes_max: usize,
    /// Blocks that a view may lag behind the savepoint before it is fenced.
    pub view_lag_blocks_max: u64,
}

impl Default for MonolithicConfig {
    fn default() -> Self {
        MonolithicConfig { cache_bytes: 64 << 20, delta_bytes_max: 128 << 20, view_lag_blocks_max: 1024 }
    }
}

/// [`WorldState`] over [`Tables`] in this process.
pub struct Monolithic {
    inner: Arc<MonolithicCore>,
    current: RwLock<Arc<MonolithicView>>,
    persisting: base::rt::sync::Mutex<()>,
}

struct MonolithicCore {
    tables: Arc<dyn Tables>,
    delta: RwLock<Delta>,
    empty: EmptyNamespaces,
    cache: Mutex<RecordCache>,
    height: AtomicU64,
    /// The height and the header hash of the last block applied.
    newest: Mutex<(u64, [u8; 32])>,
    /// Views below this height are fenced.
    admitted: AtomicU64,
    views: Mutex<VecDeque<(u64, Weak<MonolithicView>)>>,
    settings: MonolithicConfig,
}

/// The result of writing a savepoint.
struct PersistedDelta {
    /// No live view is below this height, and no later one will be.
    floor: u64,
    newest: Vec<NewestWrite>,
}

/// A block boundary that at least one reader may be looking at.
struct MonolithicView {
    inner: Arc<MonolithicCore>,
    height: u64,
}

impl Monolithic {
    /// Opens the state over tables that hold everything up to their savepoint.
    pub fn open(tables: Arc<dyn Tables>, settings: MonolithicConfig) -> Monolithic {
        let Savepoint { height, block_hash, .. } = tables.savepoint();
        let inner = Arc::new(MonolithicCore {
            delta: RwLock::default(),
            empty: EmptyNamespaces::default(),
            cache: Mutex::new(RecordCache::new(settings.cache_bytes)),
            height: AtomicU64::new(height),
            newest: Mutex::new((height, block_hash)),
            admitted: AtomicU64::new(height),
            views: Mutex::default(),
            tables,
            settings,
        });
        let view = inner.publish(height);
        Monolithic { inner, current: RwLock::new(view), persisting: base::rt::sync::Mutex::new(()) }
    }
}

#[async_trait::async_trait]
impl WorldState for Monolithic {
    fn height(&self) -> u64 {
        self.inner.height.load(Ordering::Acquire)
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        self.current.read().expect("no reader panics").clone()
    }

    async fn apply(&self, number: u64, batch: UpdateBatch) -> Result<(), Error> {
        let height = self.height();
        if number != height {
            return Err(Error::OutOfOrder { given: number, height });
        }
        let block_hash = batch.block_hash();
        self.inner.empty.note_block(number, batch.namespaces().map(|namespace| &**namespace));
        self.inner.delta.write().expect("no writer panics").add(batch);
        let view = self.inner.publish(number + 1);
        let before = self.inner.height.swap(number + 1, Ordering::AcqRel);
        assert_eq!(before, number, "one committer applies blocks in order");
        *self.inner.newest.lock().expect("no holder panics") = (number + 1, block_hash);
        *self.current.write().expect("no reader panics") = view;
        Ok(())
    }

    fn wants_persist(&self) -> bool {
        self.inner.is_crowded()
    }

    async fn persist(&self) -> Result<u64, Error> {
        let _one_at_a_time = self.persisting.lock().await;
        let newest = *self.inner.newest.lock().expect("no holder panics");
        let target = newest.0;
        let inner = self.inner.clone();
        // The durable savepoint, not the written one: an earlier call may have written one and failed to persist it.
        if target > inner.tables.durable_savepoint().height {
            let written = base::rt::blocking(move || inner.write_savepoint(newest)).await?;
            hold_up("state.persist.written").await;
            self.inner.tables.persist().await?;
            hold_up("state.persist.durable").await;
            let inner = self.inner.clone();
            base::rt::blocking(move || inner.finish_persist(written)).await?;
        }
        Ok(target)
    }

    fn savepoint(&self) -> u64 {
        self.inner.tables.durable_savepoint().height
    }

    async fn digest(&self) -> Result<[u8; 32], Error> {
        let view = self.current.read().expect("no reader panics").clone();
        digest::of(&*view, self.inner.namespaces()?).await
    }
}

/// How long a step waits that a simulation delays.
const HOLD_UP_TIME: Duration = Duration::from_millis(100);

/// A named fault point: in a simulation a step may wait here, so that crashes and reads fall between two steps.
#[inline(always)]
fn hold_up(name: &'static str) -> impl Future<Output = ()> + Send {
    base::rt::fault::hold_up(name, HOLD_UP_TIME)
}

/// Blocks that a view may lag behind the savepoint while the delta is crowded.
const CROWDED_LAG_BLOCKS_MAX: u64 = 16;

/// Rows that one persist lets the tables examine for versions that no view can see any more.
const PRUNE_ROWS_MAX: usize = 65_536;

impl MonolithicCore {
    /// Makes `height` the boundary that new snapshots see.
    fn publish(self: &Arc<Self>, height: u64) -> Arc<MonolithicView> {
        let view = Arc::new(MonolithicView { inner: self.clone(), height });
        self.views.lock().expect("no holder panics").push_back((height, Arc::downgrade(&view)));
        view
    }

    /// The lowest height that a live view looks at.
    fn oldest_view(&self) -> u64 {
        let mut views = self.views.lock().expect("no holder panics");
        while views.front().is_some_and(|(_, view)| view.strong_count() == 0) {
            views.pop_front();
        }
        views.front().map_or_else(|| self.height.load(Ordering::Acquire), |(height, _)| *height)
    }

    /// Whether the delta holds more than it should.
    fn is_crowded(&self) -> bool {
        self.delta.read().expect("no writer panics").bytes() > self.settings.delta_bytes_max
    }

    /// Steps 1 and 2 of persist, short of the wait for the disk.
    fn write_savepoint(&self, (target, block_hash): (u64, [u8; 32])) -> Result<PersistedDelta, Error> {
        // While the delta is crowded, only the newest views may keep it so.
        let lag_max = if self.is_crowded() { CROWDED_LAG_BLOCKS_MAX } else { u64::MAX };
        let lag = target.saturating_sub(lag_max.min(self.settings.view_lag_blocks_max));
        self.admitted.fetch_max(lag, Ordering::AcqRel);
        let floor = self.oldest_view().clamp(lag, target);
        let (newest, seen) = {
            let delta = self.delta.read().expect("no writer panics");
            let seen = if floor < target { delta.newest_below(floor) } else { Vec::new() };
            (delta.newest_below(target), seen)
        };
        // A local store has no epochs: keep the last one written to the tables.
        let savepoint = Savepoint { height: target, epoch: self.tables.savepoint().epoch, block_hash };
        let mut batch = RowBatch::new(savepoint);
        for NewestWrite { namespace, key, value, version } in newest.iter().chain(&seen) {
            batch.put(namespace, key.as_bytes(), *version, value.clone())?;
        }
        self.tables.write(batch)?;
        Ok(PersistedDelta { floor, newest })
    }

    /// Steps 3 to 5 of persist.
    fn finish_persist(&self, PersistedDelta { floor, newest }: PersistedDelta) -> Result<(), Error> {
        {
            let mut cache = self.cache.lock().expect("no holder panics");
            for NewestWrite { namespace, key, value, version } in newest {
                let record = value.map(|value| Versioned { value, version });
                cache.replace(&namespace, &key, record);
            }
        }
        self.delta.write().expect("no writer panics").forget_below(floor);
        if let Some(oldest) = floor.checked_sub(1) {
            self.tables.prune(BlockNumber(oldest), PRUNE_ROWS_MAX)?;
        }
        Ok(())
    }

    fn namespaces(&self) -> Result<Vec<String>, Error> {
        let mut namespaces = self.tables.namespaces()?;
        namespaces.extend(self.delta.read().expect("no writer panics").namespaces().map(|name| name.to_string()));
        namespaces.sort_unstable();
        namespaces.dedup();
        Ok(namespaces)
    }
}

impl MonolithicView {
    /// The newest block that this view sees; `None` before the first.
    fn through(&self) -> Option<BlockNumber> {
        self.height.checked_sub(1).map(BlockNumber)
    }

    /// Rejects a view whose versions may already be gone. Called after a read, to confirm that the read was complete.
    fn admitted(&self) -> Result<(), Error> {
        match self.inner.admitted.load(Ordering::Acquire) > self.height {
            true => {
                events::ViewsRejected.add(1);
                Err(Error::TooOld { height: self.height })
            }
            false => Ok(()),
        }
    }

    /// Passes the live entries of a range to `visit` in key order: `limit` and one more, to know whether more follow.
    fn scan(
        &self,
        namespace: &str,
        start: &str,
        end: &str,
        limit: usize,
        visit: impl FnMut(StateEntry) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let wanted = limit.saturating_add(1);
        // The delta is copied before the tables are read: a version that leaves the delta meanwhile is in the tables by
        // then.
        let delta: Vec<(Arc<str>, Update)> = {
            let delta = self.inner.delta.read().expect("no writer panics");
            let writes = delta.range(namespace, start, end, self.height);
            // Deletes hide rows of the tables, so all writes up to the last live one that is wanted are needed.
            let mut live = 0;
            writes
                .take_while(|(_, update)| {
                    live += usize::from(update.value.is_some());
                    live <= wanted
                })
                .map(|(key, update)| (key.clone(), update.clone()))
                .collect()
        };
        merge(delta, TableRange::new(self, namespace, start, end, wanted), visit)
    }

    /// The answer of the delta and the cache for a key: `None` means that the tables must be read.
    fn in_memory(&self, namespace: &str, key: &str) -> Option<Option<Versioned>> {
        let delta = self.inner.delta.read().expect("no writer panics");
        if let Some(update) = delta.get(namespace, key, self.height) {
            events::DeltaHits.add(1);
            let version = update.version;
            return Some(update.value.clone().map(|value| Versioned { value, version }));
        }
        drop(delta);
        let cached = self.inner.cache.lock().expect("no holder panics").get(namespace, key)?;
        let seen = match &cached {
            Some(record) => record.version.block < self.height,
            // Absent in the tables as of the savepoint; an older view might still see what was deleted since.
            None => self.height >= self.inner.tables.savepoint().height,
        };
        seen.then(|| {
            events::CacheHits.add(1);
            cached
        })
    }

    /// Reads the tables, and caches the result if it is the newest that they hold.
    fn read_tables(&self, namespace: &str, key: &str) -> Result<Option<Versioned>, Error> {
        let Some(through) = self.through() else { return Ok(None) };
        events::CacheMisses.add(1);
        let ticket = self.inner.cache.lock().expect("no holder panics").token();
        let current = self.height >= self.inner.tables.savepoint().height;
        let row = self.inner.tables.get(namespace, key.as_bytes(), through)?;
        let record = row.and_then(|row| Some(Versioned { value: row.value?, version: row.version }));
        if current {
            let kept = record
                .as_ref()
                .map(|record| Versioned { value: Bytes::copy_from_slice(&record.value), version: record.version });
            let mut cache = self.inner.cache.lock().expect("no holder panics");
            cache.fill(ticket, &Arc::from(namespace), &Arc::from(key), kept);
        }
        Ok(record)
    }
}

#[async_trait::async_trait]
impl Snapshot for MonolithicView {
    fn height(&self) -> u64 {
        self.height
    }

    async fn get(&self, namespace: &str, key: &str) -> Result<Option<Versioned>, Error> {
        let found = match self.in_memory(namespace, key) {
            Some(found) => found,
            None => self.read_tables(namespace, key)?,
        };
        self.admitted().map(|()| found)
    }

    async fn version(&self, namespace: &str, key: &str) -> Result<Option<Version>, Error> {
        Ok(self.get(namespace, key).await?.map(|record| record.version))
    }

    async fn versions(&self, keys: &[(&str, &str)]) -> Result<Vec<Option<Version>>, Error> {
        let mut versions = Vec::with_capacity(keys.len());
        for (namespace, key) in keys {
            let found = match self.in_memory(namespace, key) {
                Some(found) => found,
                None => self.read_tables(namespace, key)?,
            };
            versions.push(found.map(|record| record.version));
        }
        self.admitted().map(|()| versions)
    }

    async fn range(&self, namespace: &str, start: &str, end: &str, limit: usize) -> Result<RangePage, Error> {
        let mut page = RangePage::default();
        let mut bytes = 0;
        self.scan(namespace, start, end, limit, |entry| {
            if page.entries.len() >= limit || bytes >= RANGE_BYTES_SOFT_MAX {
                page.more = !page.entries.is_empty();
                return ControlFlow::Break(());
            }
            bytes += entry.key.len() + entry.versioned.value.len();
            page.entries.push(entry);
            ControlFlow::Continue(())
        })?;
        self.admitted().map(|()| page)
    }

    async fn range_versions(
        &self,
        namespace: &str,
        start: &str,
        end: &str,
        limit: usize,
    ) -> Result<VersionPage, Error> {
        let mut page = VersionPage::default();
        self.scan(namespace, start, end, limit, |StateEntry { key, versioned }| {
            if page.entries.len() >= limit {
                page.more = !page.entries.is_empty();
                return ControlFlow::Break(());
            }
            page.entries.push((key, versioned.version));
            ControlFlow::Continue(())
        })?;
        self.admitted().map(|()| page)
    }

    async fn may_have_rows(&self, namespace: &str) -> Result<bool, Error> {
        if let Some(known) = self.inner.empty.may_have_rows(namespace, self.height) {
            return Ok(known);
        }
        let is_empty = self.range_versions(namespace, "", "", 1).await?.entries.is_empty();
        self.inner.empty.note_found(namespace, self.height, is_empty);
        Ok(!is_empty)
    }
}

/// Live rows of the tables in key order, read page by page.
struct TableRange<'a> {
    view: &'a MonolithicView,
    namespace: &'a str,
    end: &'a str,
    page: std::vec::IntoIter<RangeEntry>,
    next: Option<Bytes>,
    page_entries: usize,
}

impl<'a> TableRange<'a> {
    fn new(view: &'a MonolithicView, namespace: &'a str, start: &'a str, end: &'a str, limit: usize) -> Self {
        let next = Some(Bytes::copy_from_slice(start.as_bytes()));
        let page_entries = limit.clamp(1, digest::PAGE_ENTRIES);
        TableRange { view, namespace, end, page: Vec::new().into_iter(), next, page_entries }
    }

    fn next(&mut self) -> Result<Option<StateEntry>, Error> {
        loop {
            if let Some(RangeEntry { key, value, version }) = self.page.next() {
                let key =
                    std::str::from_utf8(&key).map_err(|_| Error::KeyNotText { namespace: self.namespace.into() })?;
                return Ok(Some(StateEntry { key: key.into(), versioned: Versioned { value, version } }));
            }
            let (Some(start), Some(through)) = (self.next.take(), self.view.through()) else { return Ok(None) };
            let tables = &self.view.inner.tables;
            let page = tables.range(RangeQuery {
                namespace: self.namespace,
                start: &start,
                end: self.end.as_bytes(),
                through,
                limit: self.page_entries,
            })?;
            self.next = page.next;
            self.page = page.entries.into_iter();
        }
    }
}

/// Passes the live entries of both to `visit` in key order, until it breaks; a write of the delta hides the row of the
/// same key.
fn merge(
    delta: Vec<(Arc<str>, Update)>,
    mut tables: TableRange<'_>,
    mut visit: impl FnMut(StateEntry) -> ControlFlow<()>,
) -> Result<(), Error> {
    let mut delta = delta.into_iter().peekable();
    let mut row = tables.next()?;
    loop {
        let order = match (delta.peek(), &row) {
            (None, None) => return Ok(()),
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some((key, _)), Some(row)) => key.as_ref().cmp(row.key.as_ref()),
        };
        let stored = if order.is_ge() { row.take() } else { None };
        let entry = if order.is_le() {
            let (key, update) = delta.next().expect("a write was compared");
            update.value.map(|value| StateEntry { key, versioned: Versioned { value, version: update.version } })
        } else {
            stored
        };
        if let Some(entry) = entry
            && visit(entry).is_break()
        {
            return Ok(());
        }
        if order.is_ge() {
            row = tables.next()?;
        }
    }
}
