//! The state that the tasks of a serving store share: pending entries, the cache, and the position of the log.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use base::rt::CancellationToken;
use base::rt::sync::{Notify, Semaphore};
use base::{Bytes, BytesMut, rt};
use futures_util::FutureExt as _;
use sift::layout::LogCursor;
use sift::{Coordinator, WriteHandle};

use crate::cache::{CacheSlot, KvCache};
use crate::error::Error;
use crate::fault::{Mutant, mutant};
use crate::layout::StoreGeometry;
use crate::request::{Precondition, SwapOutcome, VersionedValue};

/// Entries that are worth applying together, and the most that are.
pub(super) const WINDOW: usize = 64;

/// Callers that wait.
pub const WAITING_MAX: usize = 1 << 16;
/// Stripes of buckets.
pub(crate) const STRIPES: usize = 4096;
/// In the cached index: the bucket is not loaded yet.
pub(crate) const UNKNOWN: u64 = u64::MAX;

pub(crate) struct KvCore {
    pub(super) coordinator: Coordinator,
    pub(super) geometry: StoreGeometry,
    /// The seed of the index.
    pub(super) seed: u64,
    /// Held by the caller that appends an entry; contains the memory for the entry's bytes.
    pub(super) log: rt::sync::Mutex<BytesMut>,
    pub(super) state: Mutex<KvState>,
    pub(super) feed: Mutex<crate::watch::ChangeFeed>,
    /// There may be something to apply.
    pub(super) work: Notify,
    /// Log space or blocks may have become free.
    pub(super) space_freed: Notify,
    /// A window of entries was applied.
    pub(super) applied: Notify,
    /// There may be something to write to the tables.
    pub(super) unpersisted: Notify,
    /// The tables have more entries.
    pub(super) persisted: Notify,
    /// The store is kept in tables.
    pub(super) is_persistent: bool,
    /// Callers see only entries that the tables have.
    pub(super) is_synchronous: bool,
    pub(super) in_flight: Semaphore,
    pub(super) waiting: AtomicUsize,
    pub(super) stop: CancellationToken,
}

/// An entry that is not applied.
#[derive(Clone)]
pub(crate) struct PendingEntry {
    /// The log position behind it.
    pub(super) after: LogCursor,
    /// Bytes of the log that it takes, including those skipped before it.
    pub(super) bytes: u64,
    /// Blocks that applying it may take, beyond those that its key has by then.
    pub(super) blocks: u64,
    pub(super) posted: WriteHandle,
    pub(super) key: Bytes,
    pub(super) value: Option<Bytes>,
}

/// Space for an entry.
pub(crate) struct LogReservation {
    offset: u64,
    /// Bytes of the log that it takes, including those skipped.
    bytes: u64,
    /// Blocks that it may take.
    blocks: u64,
    /// The end of the entry before.
    last: LogCursor,
}

pub(crate) struct KvState {
    /// The log position behind the last entry.
    pub(super) last: LogCursor,
    pub(super) used_bytes: u64,
    pub(super) pending: VecDeque<PendingEntry>,
    /// The most blocks that the pending entries need.
    pub(super) reserved: u64,
    pub(super) free: u64,
    /// Everything up to this entry is applied.
    pub(super) applied: u64,
    /// Everything up to this entry is in the tables; `u64::MAX` for a store without tables.
    pub(super) persisted: u64,
    pub(super) cache: KvCache,
    pub(super) index: Vec<u64>,
    pub(super) known: u64,
    pub(super) stripes: Vec<u32>,
    pub(super) recovered: usize,
    /// A caller waits for space.
    pub(super) is_space_wanted: bool,
    pub(super) ended: Option<Error>,
}

pub(crate) fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl KvState {
    fn stripe(&self, bucket: u64) -> u32 {
        self.stripes[bucket as usize % STRIPES]
    }

    /// Whether an entry fits; if so, its offset, and the bytes that it takes including those skipped.
    fn find_offset(&self, length: u64, blocks: u64, sizes: &StoreGeometry) -> Option<(u64, u64)> {
        let (offset, skipped) = crate::log::offset_of(self.last.position, length, sizes.log_bytes);
        let has_blocks = blocks == 0 || self.reserved + blocks <= self.free;
        let fits = self.used_bytes + skipped + length <= sizes.log_bytes && has_blocks;
        fits.then_some((offset, skipped + length))
    }
}

/// What the cache has for a key.
pub(crate) struct CachedValue {
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
pub(crate) struct WaiterGuard<'a>(&'a AtomicUsize);

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl KvCore {
    pub(super) fn end(&self, error: Error) {
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
    pub(super) fn fail(&self, error: Error) {
        self.end(error);
        self.coordinator.step_down();
    }

    pub(super) fn bucket(&self, key: &[u8]) -> u64 {
        self.geometry.bucket(self.seed, key)
    }

    pub(super) fn check_open(&self) -> Result<(), Error> {
        lock(&self.state).ended.clone().map_or(Ok(()), Err)
    }

    fn cached(&self, key: &[u8]) -> Option<CachedValue> {
        lock(&self.state).cache.get(key).map(CachedValue::of)
    }

    /// Waits until a majority has a posted entry.
    pub(super) async fn confirm(&self, posted: WriteHandle) -> Result<(), Error> {
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
    pub(super) fn get_confirmed(&self, key: &[u8]) -> Option<Result<Option<VersionedValue>, Error>> {
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

    pub(super) async fn get(&self, key: &[u8]) -> Result<Option<VersionedValue>, Error> {
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
            let found = crate::table::find(self, key, bucket).await;
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
    pub(super) async fn change(
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
        let length = crate::log::padded(crate::log::entry_bytes(&key, value.as_ref()));
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
        let (raw, chain) =
            crate::log::encode(index, self.coordinator.term(), last.chain, &key, value.as_ref(), &mut log);
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
            state.pending.len() == 1 || state.pending.len() == WINDOW
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
