//! A replicated key-value store on the replicated memory (Sift, section 4).
//!
//! ```text
//!  direct area     | log of puts and deletes, circular                            one verb a node and entry
//!  logged memory   | cursor, seal | index | bitmap | blocks, in chains            transactions of the coordinator
//!  coordinator     | cache with all that is not applied | index | bitmap          soft
//! ```
//!
//! 1. A put or delete becomes an entry behind the last one: index, term, checksum of the entry before, its own checksum.
//!    Entries are posted in the order of their indexes; that is the order in which operations take effect. From then on
//!    the cache has what the entry says. The caller is answered when a majority has the entry.
//! 2. A get is answered from the cache, once a majority has what stands there; else from index and chain in remote memory. It
//!    is answered only while the coordinator's lease stands.
//! 3. A compare-and-set looks at what the newest entry left, with no other between the look and its own entry. One that
//!    fails is answered as a get.
//! 4. Entries are applied in the background ([`apply`]): index, chain, bitmap and blocks change in one transaction an entry,
//!    many entries in one where they fit. Then the cursor is moved, in a transaction too, and what is before it is room.
//!    A put waits for room; that is the back-pressure.
//! 5. Whoever watches gets every entry that a majority has, in order, also those that others have overtaken since ([`watch`]).
//! 6. A new coordinator ([`recover`]) reads cursor and seal, and the log behind the cursor from a majority. It writes back
//!    what some node may lack and writes its own seal, which needs not wait until an earlier lease has run out. Then it serves: what
//!    the log holds from the cache, all else from index and chains in remote memory. The index is loaded meanwhile, and the log
//!    applied.
//!
//! Why nothing acknowledged is lost. The *seal* says where the log ended that the coordinator of its term took over. No
//! coordinator posts an entry before its seal is committed. So entries behind the seal that count are of the seal's term, and
//! one coordinator's; those up to it were at a majority before it was committed. A new coordinator reads a majority, which
//! has one node at least with all that was acknowledged. Where two entries continue the chain, the greater term's counts: the
//! other's coordinator posted it before the seal of the greater term, whose takeover did not find it. Places are used again
//! only when the cursor has passed them, which is committed in logged memory, and what it has passed is in logged memory too.
//!
//! Why it may be applied twice. Takeover keeps of each key the newest entry alone. Applying one is a matter of that key, and
//! one that is applied already has its version in the chain. Room: a put is admitted only when the free blocks suffice for all
//! that is not applied, without those that deletes and shorter values would give back. Where the cache knows what the key has, a
//! put needs no more blocks than that has too few. The sum of what a key's entries need more than the one before is at least what
//! applying takes, whichever of them are left out and whatever of them is applied already.
//!
//! Why a get that walks a chain is right. Before a transaction changes a chain, the count of its stripe of buckets becomes
//! odd, and even again behind it. A walk counts only if that count was even, and is the same at its end, and the cache still
//! knows nothing of the key: so that no entry for it came between, or was applied between.
//!
//! Invariants:
//! * No answer tells of an entry that no majority has.
//! * What is not applied is in the cache, whatever its budget.
//! * Live nodes hold the same log behind the cursor.
//! * A store that cannot go on ends its coordinator with it, so that another one can take it over.
//! * Bounded: the log, and by it all that is not applied; the cache beyond that ([`Options::cache_bytes`]); callers
//!   ([`WAITING_MAX`]) and entries on their way ([`IN_FLIGHT_MAX`]); watchers and what they have not taken.
//!
//! A store may be kept in tables of the storage engine ([`persist`]).
//!
//! The log lies in the direct area, where every node holds all of it: it is never coded.

mod apply;
mod cache;
pub mod fault;
#[doc(hidden)]
pub mod fuzz;
mod layout;
mod log;
mod persist;
mod recover;
mod table;
mod watch;

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::rt::sync::{Notify, Semaphore};
use base::rt::{self, Stop};
use base::{Bytes, BytesMut};
use futures_util::FutureExt as _;

use crate::guard::guarded;
use crate::layout::Cursor;
use crate::{Coordinator, Error, Posted, Unopened};
use cache::{Cache, Slot};
use fault::{Mutant, mutant};
pub use layout::{KEY_BYTES_MAX, RECORD_BLOCKS_MAX, Sizes};
pub use persist::Persistent;
pub use watch::{Event, Watch};

/// Callers that wait.
pub const WAITING_MAX: usize = 1 << 16;
/// Entries that are posted and whose callers have not been answered.
pub const IN_FLIGHT_MAX: usize = 1024;
/// Stripes of buckets.
const STRIPES: usize = 4096;
/// In the cached index: not known yet.
const UNKNOWN: u64 = u64::MAX;

/// How a store is to be served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Bytes of the cache, beside what is not applied.
    pub cache_bytes: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { cache_bytes: 256 << 20 }
    }
}

/// A value and its version: the index of the entry that wrote it. Versions of all keys grow together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Versioned {
    /// The value.
    pub value: Bytes,
    /// Its version.
    pub version: u64,
}

/// What a compare-and-set asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Expected {
    /// The key has no value.
    Absent,
    /// It has this version.
    Version(u64),
    /// It has this value.
    Value(Bytes),
    /// It has some value.
    Present,
}

impl Expected {
    pub(crate) fn holds(&self, found: Option<&Versioned>) -> bool {
        match (self, found) {
            (Expected::Absent, None) | (Expected::Present, Some(_)) => true,
            (Expected::Version(version), Some(found)) => found.version == *version,
            (Expected::Value(value), Some(found)) => found.value == *value,
            _ => false,
        }
    }
}

/// What came of a compare-and-set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Swap {
    /// It was done, as this version.
    Done(u64),
    /// It was not: this is what the key has.
    Found(Option<Versioned>),
}

/// How a store is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// The last entry.
    pub last: u64,
    /// The last entry that is applied.
    pub applied: u64,
    /// Bytes of the log in use.
    pub log_used_bytes: u64,
    /// Blocks that are free.
    pub blocks_free: u64,
    /// Bytes of the cache.
    pub cache_bytes: usize,
    /// Buckets of the index that are known here.
    pub buckets_known: u64,
    /// Entries that the takeover found in the log.
    pub recovered: usize,
    /// The last entry that the tables have, of a store that is kept in tables.
    pub persisted: Option<u64>,
}

/// A store that is served by its coordinator. Clones are the same one; it ends with its coordinator, or when the last clone
/// is dropped.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
    _alive: Arc<Alive>,
}

struct Alive(Arc<Shared>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.end(Error::Closed);
    }
}

struct Shared {
    coordinator: Coordinator,
    sizes: Sizes,
    /// Of the index.
    seed: u64,
    /// Held by whoever makes an entry, for which it has the memory.
    log: rt::sync::Mutex<BytesMut>,
    state: Mutex<State>,
    feed: Mutex<watch::Feed>,
    /// There may be something to apply.
    work: Notify,
    /// There may be room.
    room: Notify,
    /// A transaction is over.
    applied: Notify,
    /// There may be something to write to the tables.
    unpersisted: Notify,
    /// The tables have more.
    persisted: Notify,
    /// There are tables.
    is_persistent: bool,
    /// Nothing is told that the tables have not.
    is_synchronous: bool,
    in_flight: Semaphore,
    waiting: AtomicUsize,
    stop: Stop,
}

/// An entry that is not applied.
#[derive(Clone)]
struct Pending {
    /// Behind it.
    after: Cursor,
    /// Bytes of the log, with what was skipped before it.
    bytes: u64,
    /// Blocks that applying it may take, beside those that its key has by then.
    blocks: u64,
    posted: Posted,
    key: Bytes,
    value: Option<Bytes>,
}

/// Where an entry goes.
struct Room {
    offset: u64,
    /// Of the log that it takes, with what is skipped.
    bytes: u64,
    /// Blocks that it may take.
    blocks: u64,
    /// The entry before.
    last: Cursor,
}

struct State {
    /// Behind the last entry.
    last: Cursor,
    used_bytes: u64,
    pending: VecDeque<Pending>,
    /// Blocks that those need at most.
    reserved: u64,
    free: u64,
    /// Everything up to this entry is applied.
    applied: u64,
    /// Everything up to this entry is in the tables; of a store without tables, as if it were.
    persisted: u64,
    cache: Cache,
    index: Vec<u64>,
    known: u64,
    stripes: Vec<u32>,
    recovered: usize,
    /// Somebody waits for room.
    is_short: bool,
    ended: Option<Error>,
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn stripe(&self, bucket: u64) -> u32 {
        self.stripes[bucket as usize % STRIPES]
    }

    /// Whether an entry fits; then its offset, and the bytes it takes with what is skipped.
    fn place(&self, length: u64, blocks: u64, sizes: &Sizes) -> Option<(u64, u64)> {
        let (offset, skipped) = log::place(self.last.position, length, sizes.log_bytes);
        let has_blocks = blocks == 0 || self.reserved + blocks <= self.free;
        let fits = self.used_bytes + skipped + length <= sizes.log_bytes && has_blocks;
        fits.then_some((offset, skipped + length))
    }
}

impl Store {
    /// Takes the store over that a group holds; makes a new one in a group that was never used. The sizes are those with
    /// which it was made. On return it serves.
    ///
    /// # Errors
    /// [`Error::Invalid`] for other sizes; [`Error::Corrupt`]; as [`Coordinator::read`].
    pub async fn take_over(coordinator: Coordinator, sizes: Sizes, options: Options) -> Result<Store, Error> {
        Store::take_over_unopened(coordinator.into(), sizes, options).await
    }

    /// As [`Store::take_over`], of a coordinator that may not answer anybody yet: the log is read and written back while it waits.
    ///
    /// # Errors
    /// As [`Store::take_over`].
    pub async fn take_over_unopened(unopened: Unopened, sizes: Sizes, options: Options) -> Result<Store, Error> {
        Store::begin(unopened, sizes, options, None).await
    }

    /// As [`Store::take_over`], of a store that is kept in tables ([`persist`]). In a group that was never used it becomes what
    /// the tables have.
    ///
    /// # Errors
    /// And [`Error::Disk`]; [`Error::Invalid`] for tables of another store.
    pub async fn take_over_persistent(
        coordinator: Coordinator,
        sizes: Sizes,
        options: Options,
        persistent: Persistent,
    ) -> Result<Store, Error> {
        Store::begin(coordinator.into(), sizes, options, Some(persistent)).await
    }

    async fn begin(
        unopened: Unopened,
        sizes: Sizes,
        options: Options,
        persistent: Option<Persistent>,
    ) -> Result<Store, Error> {
        // In a box, so that the compiler sees at once that it may be sent.
        let recovered = recover::recover(unopened.coordinator(), &sizes, persistent.as_ref()).boxed().await?;
        let (seed, kept) = (recovered.seed, recovered.kept);
        let (state, feed, bitmap) = recovered.into_state(&sizes, options);
        let coordinator = match mutant(Mutant::OpenAtOnce) {
            true => unopened.into_coordinator_at_once(),
            false => unopened.open().await?,
        };
        let shared = Arc::new(Shared {
            coordinator,
            sizes,
            seed,
            log: rt::sync::Mutex::default(),
            state: Mutex::new(state),
            feed: Mutex::new(feed),
            work: Notify::new(),
            room: Notify::new(),
            applied: Notify::new(),
            unpersisted: Notify::new(),
            persisted: Notify::new(),
            is_persistent: persistent.is_some(),
            is_synchronous: persistent.as_ref().is_some_and(|persistent| persistent.is_synchronous),
            in_flight: Semaphore::new(IN_FLIGHT_MAX),
            waiting: AtomicUsize::new(0),
            stop: Stop::new(),
        });
        let store = Store { _alive: Arc::new(Alive(Arc::clone(&shared))), shared: Arc::clone(&shared) };
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
    /// [`Error::Invalid`] for a key that none has; else as [`Coordinator::read`].
    pub async fn get(&self, key: &[u8]) -> Result<Option<Versioned>, Error> {
        match self.shared.at_once(key) {
            Some(answer) => answer,
            None => {
                self.shared.sizes.check_key(key)?;
                // In a box, lest every get make room for it.
                self.shared.get(key).boxed().await
            }
        }
    }

    /// Gives a key a value. A majority has it on return; gives its version. When the future is dropped it may still be done.
    ///
    /// # Errors
    /// [`Error::Invalid`] for what is too long; [`Error::NoRoom`]; [`Error::Busy`]; [`Error::Ambiguous`]; and as
    /// [`Coordinator::read`], in which case nothing was done.
    pub async fn put(&self, key: Bytes, value: Bytes) -> Result<u64, Error> {
        self.shared.sizes.check(&key, Some(&value))?;
        match self.shared.change(key, None, Some(value)).await? {
            Swap::Done(version) => Ok(version),
            Swap::Found(_) => unreachable!("nothing was expected"),
        }
    }

    /// Takes a key's value away; gives the version under which that was done, or nothing where it had none.
    ///
    /// # Errors
    /// As [`Store::put`].
    pub async fn delete(&self, key: Bytes) -> Result<Option<u64>, Error> {
        self.shared.sizes.check(&key, None)?;
        match self.shared.change(key, Some(Expected::Present), None).await? {
            Swap::Done(version) => Ok(Some(version)),
            Swap::Found(_) => Ok(None),
        }
    }

    /// Gives a key a value, or takes it away, if it has what is expected.
    ///
    /// # Errors
    /// As [`Store::put`].
    pub async fn compare_and_set(&self, key: Bytes, expected: Expected, new: Option<Bytes>) -> Result<Swap, Error> {
        self.shared.sizes.check(&key, new.as_ref())?;
        self.shared.change(key, Some(expected), new).await
    }

    /// Every change of the keys that begin with a prefix, from a version on; without one, from now on: then one
    /// whose caller was answered just before may be told too.
    ///
    /// # Errors
    /// [`Error::Forgotten`] when changes from that version on are not all remembered; [`Error::Busy`]; as
    /// [`Coordinator::read`].
    pub fn watch(&self, prefix: Bytes, from: Option<u64>) -> Result<Watch, Error> {
        self.shared.coordinator.check_serving()?;
        let mut feed = lock(&self.shared.feed);
        // Whoever ends the store closes the feed after that.
        self.shared.check_open()?;
        feed.watch(prefix, from)
    }

    /// How it is.
    pub fn status(&self) -> Status {
        let state = lock(&self.shared.state);
        Status {
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

    /// Its coordinator.
    pub fn coordinator(&self) -> &Coordinator {
        &self.shared.coordinator
    }

    /// Completes when it has ended, with the reason.
    pub async fn ended(&self) -> Error {
        self.shared.stop.stopped().await;
        lock(&self.shared.state).ended.clone().unwrap_or(Error::Closed)
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({:?})", self.shared.coordinator)
    }
}

/// What the cache says of a key.
struct Cached {
    found: Option<Versioned>,
    version: u64,
    posted: Posted,
}

impl Cached {
    fn of(slot: &Slot) -> Cached {
        let found = slot.value.clone().map(|value| Versioned { value, version: slot.version });
        Cached { found, version: slot.version, posted: slot.posted }
    }
}

/// Counts a caller that waits.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shared {
    fn end(&self, error: Error) {
        let mut state = lock(&self.state);
        if state.ended.is_none() {
            tracing::debug!(%error, "a key-value store ends");
            state.ended = Some(error);
        }
        drop(state);
        lock(&self.feed).close();
        self.stop.stop();
        self.applied.notify_waiters();
        self.persisted.notify_waiters();
    }

    /// Ends it and its coordinator: as long as that one goes on, nobody else can take the store over.
    fn fail(&self, error: Error) {
        self.end(error);
        self.coordinator.step_down();
    }

    fn bucket(&self, key: &[u8]) -> u64 {
        self.sizes.bucket(self.seed, key)
    }

    fn check_open(&self) -> Result<(), Error> {
        lock(&self.state).ended.clone().map_or(Ok(()), Err)
    }

    fn cached(&self, key: &[u8]) -> Option<Cached> {
        lock(&self.state).cache.get(key).map(Cached::of)
    }

    /// Waits until a majority has what was posted.
    async fn confirm(&self, posted: Posted) -> Result<(), Error> {
        match self.coordinator.is_confirmed(posted) {
            true => Ok(()),
            false => self.coordinator.confirm(posted).await,
        }
    }

    /// Waits until the tables have an entry, where callers are told of nothing else.
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

    /// Answers what the cache says, once it is true.
    async fn answer(&self, cached: Cached) -> Result<Option<Versioned>, Error> {
        if !mutant(Mutant::AnswerUncommitted) && self.confirm(cached.posted).await.is_err() {
            // Nothing of this caller's is in doubt.
            self.coordinator.check_serving()?;
            return Err(Error::Closed);
        }
        self.wait_persisted(cached.version).await?;
        self.coordinator.check_serving()?;
        Ok(cached.found)
    }

    /// What the cache says, where a majority has that already: nothing is waited for.
    #[inline]
    fn at_once(&self, key: &[u8]) -> Option<Result<Option<Versioned>, Error>> {
        let found = {
            let mut state = lock(&self.state);
            let slot = state.cache.get(key)?;
            if self.is_synchronous || !self.coordinator.is_confirmed(slot.posted) {
                return None;
            }
            slot.value.clone().map(|value| Versioned { value, version: slot.version })
        };
        Some(self.coordinator.check_serving().map(|()| found))
    }

    async fn get(&self, key: &[u8]) -> Result<Option<Versioned>, Error> {
        if let Some(cached) = self.cached(key) {
            return self.answer(cached).await;
        }
        let cached = self.load(key).await?;
        self.answer(cached).await
    }

    /// What a key has that the cache did not know: from index and chain. It is in the cache then.
    async fn load(&self, key: &[u8]) -> Result<Cached, Error> {
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
                return Ok(Cached::of(slot));
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
            state.cache.put(key, Slot::new(value, version, Posted::default()), applied);
            return Ok(Cached { found, version, posted: Posted::default() });
        }
    }

    /// Makes an entry, if the key has what is expected, and waits until a majority has it.
    async fn change(&self, key: Bytes, expected: Option<Expected>, value: Option<Bytes>) -> Result<Swap, Error> {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= WAITING_MAX {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(Error::Busy);
        }
        let _waiting = Waiting(&self.waiting);
        let _permit = self.in_flight.acquire().await;
        let length = log::padded(log::entry_bytes(&key, value.as_ref()));
        let needed = self.blocks_of(&key, value.as_ref());
        if let Some(Expected::Version(_) | Expected::Value(_) | Expected::Present | Expected::Absent) = &expected
            && self.cached(&key).is_none()
        {
            // So that others do not wait for it behind this one.
            self.load(&key).boxed().await?;
        }
        let mut log = self.log.lock().await;
        if let Some(expected) = &expected {
            // Nobody else makes an entry now, so that what is loaded stays true.
            let cached = match self.cached(&key) {
                Some(cached) => cached,
                None => self.load(&key).boxed().await?,
            };
            if !expected.holds(cached.found.as_ref()) {
                drop(log);
                return self.answer(cached).await.map(Swap::Found);
            }
        }
        let Room { offset, bytes, blocks, last } = match self.room(&key, length, needed, None)? {
            Some(found) => found,
            None => self.wait_for_room(&key, length, needed).boxed().await?,
        };
        let index = last.index + 1;
        let (raw, chain) = log::encode(index, self.coordinator.term(), last.chain, &key, value.as_ref(), &mut log);
        let posted = self.coordinator.post_direct(offset, raw).await?;
        // From here to the end of the lock nothing waits: what is posted is known.
        let is_applying_due = {
            let mut state = lock(&self.state);
            let after = Cursor { index, position: offset + length, chain };
            state.last = after;
            state.used_bytes += bytes;
            state.reserved += blocks;
            let applied = state.applied;
            state.cache.put(&key, Slot::new(value.clone(), index, posted), applied);
            state.pending.push_back(Pending { after, bytes, blocks, posted, key, value });
            // The first has somebody wait for more, and enough are not waited for.
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
        Ok(Swap::Done(index))
    }

    /// Blocks of a record.
    fn blocks_of(&self, key: &[u8], value: Option<&Bytes>) -> u64 {
        value.map_or(0, |value| self.sizes.record_blocks(key.len(), value.len()) as u64)
    }

    /// Where an entry goes, if it fits; else others are applied at once. `has` are the blocks that the newest entry gives its key;
    /// without them the cache is asked.
    fn room(&self, key: &[u8], length: u64, needed: u64, has: Option<u64>) -> Result<Option<Room>, Error> {
        let mut state = lock(&self.state);
        state.ended.clone().map_or(Ok(()), Err)?;
        let has = has.or_else(|| state.cache.get(key).map(|slot| self.blocks_of(key, slot.value.as_ref())));
        let blocks = if mutant(Mutant::AdmitUnreserved) { 0 } else { needed.saturating_sub(has.unwrap_or_default()) };
        if let Some((offset, bytes)) = state.place(length, blocks, &self.sizes) {
            return Ok(Some(Room { offset, bytes, blocks, last: state.last }));
        }
        if state.pending.is_empty() && has.is_some() && blocks > state.free {
            return Err(Error::NoRoom);
        }
        state.is_short = true;
        drop(state);
        self.work.notify_one();
        Ok(None)
    }

    /// Waits until an entry fits; gives what [`Shared::room`] does.
    async fn wait_for_room(&self, key: &[u8], length: u64, needed: u64) -> Result<Room, Error> {
        let cached = match self.cached(key) {
            Some(cached) => cached,
            None => self.load(key).await?,
        };
        // Nobody else makes an entry now, so that this stays true.
        let has = self.blocks_of(key, cached.found.as_ref().map(|found| &found.value));
        loop {
            if let Some(found) = self.room(key, length, needed, Some(has))? {
                return Ok(found);
            }
            if self.stop.or_stopped(self.room.notified()).await.is_none() {
                self.check_open()?;
            }
        }
    }
}
