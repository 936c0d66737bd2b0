//! Reads at a block boundary.
//!
//! Steps of a read of one key at height `h`:
//! 1. The caches know the key's newest version. If it is too new, go to step 4. If it is visible at `h`, its cached
//!    value is the answer; if its value is not cached, read the record once.
//! 2. The caches do not know the key. Take a token, read the two buckets that may lead to the key, then each record
//!    whose fingerprint matches. A record counts only if incarnation, key and checksum agree. If the lease under which
//!    the addresses were learnt has ended by the last read, the whole read starts over.
//! 3. If the record has a `next`, follow it, as long as the next record is visible at `h`.
//! 4. If the record is too new, follow `prev` until a record is visible at `h`.
//! 5. If no record was found, look into the delta for the visible version and its location. If remote memory has lost
//!    that version, have storage materialise its block, and read the row.
//! 6. If the delta has no visible version of the key, read the key from storage, as of block `h - 1`.
//! 7. If no newer version exists, enter the version that was found into the caches, under the token. If it was found in
//!    storage, bring it back to remote memory ([`super::fill`]).
//!
//! A miss in steps 2 to 4 is always safe, whatever its cause: a stale directory, a lost section, torn bytes.
//!
//! Steps 1 and 2 never give a version that is too old at `h`: every block below `h` had replaced its keys in index and
//! caches before the height became `h`, and this read started after that.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::event::Counter;
use base::{BlockNumber, Bytes, BytesMut, Version, rt};
use replica::lease::Lease;

use super::cache::{CacheLookup, CachedValue, CachedVersion, FillToken, VersionKind, buffer_pool};
use super::delta::{DeltaVersion, ValueLocation};
use super::fault::{hold_up, pause};
use super::index::{BucketProbe, KeyHash, PROBE_BYTES};
use super::memory::{completed, completed_meanwhile};
use super::pointer::Pointer;
use super::record::{KeyName, Record};
use super::{StateCore, StateView, record};
use crate::{Error, Versioned, events};

pub(super) use std::cell::Cell;

/// Times that a read starts over because its lease ended during the read.
const ATTEMPTS_MAX: u32 = 16;
/// Records that a walk along a chain visits at most; reads of longer chains turn to delta and storage.
const WALK_MAX: usize = 64;
/// Most records that may have one fingerprint in two buckets.
const CANDIDATES_MAX: usize = 14;

thread_local! {
    static PROBE: Cell<BytesMut> = Cell::default();
}

/// A record, and the bytes that its buffer takes here.
struct FetchedRecord {
    pointer: Pointer,
    record: Record,
    bytes: usize,
}

impl FetchedRecord {
    fn cached_version(&self) -> CachedVersion {
        let kind = if self.record.is_deletion() { VersionKind::Deleted } else { VersionKind::Live };
        CachedVersion { pointer: self.pointer, version: self.record.version, kind, bytes: self.record.len() as u32 }
    }

    fn into_cached_value(self) -> CachedValue {
        CachedValue::of(self.record, self.bytes)
    }
}

/// The result of a look into remote memory.
enum RemoteLookup {
    /// The version that is visible.
    Found(CachedValue),
    /// Nothing that can be trusted.
    Missing,
    /// The lease ended during the look.
    LeaseEnded,
}

impl StateView {
    #[inline]
    pub(super) fn hash(&self, name: KeyName<'_>) -> KeyHash {
        KeyHash::new(name, self.shared.seed)
    }

    /// The answer of the caches, if they have it: takes no lock but one cache shard's, allocates nothing, never waits.
    #[inline]
    pub fn cached(&self, namespace: &str, key: &str) -> Option<Result<Option<Versioned>, Error>> {
        let name = KeyName { namespace, key };
        match self.shared.caches.get(self.hash(name), name, self.height) {
            CacheLookup::Hit(answer) => self.answered().map(|admitted| admitted.map(|()| answer)),
            _ => None,
        }
    }

    /// Whether the caches' answer counts; `None` if the read must wait for a lease.
    #[inline]
    fn answered(&self) -> Option<Result<(), Error>> {
        match self.shared.admitted(self.height) {
            Err(Error::NoLease) => None,
            admitted => Some(admitted),
        }
    }

    /// As [`StateView::cached`], for the version alone.
    #[inline]
    pub fn cached_version(&self, namespace: &str, key: &str) -> Option<Result<Option<Version>, Error>> {
        let name = KeyName { namespace, key };
        let answer = self.shared.caches.version(self.hash(name), name, self.height)?;
        self.answered().map(|admitted| admitted.map(|()| answer))
    }

    /// The live value of a key; see [the module](super::read). Dropping the future does no harm.
    ///
    /// # Errors
    /// [`Error::TooOld`] for a view that is no longer kept; [`Error::Fenced`]; [`Error::Busy`]; storage errors.
    #[inline]
    pub async fn read(&self, namespace: &str, key: &str) -> Result<Option<Versioned>, Error> {
        let name = KeyName { namespace, key };
        let hash = self.hash(name);
        match self.shared.caches.get(hash, name, self.height) {
            CacheLookup::Hit(answer) => match self.answered() {
                Some(admitted) => admitted.map(|()| answer),
                None => self.read_remote(name, hash, CacheLookup::Hit(answer)).await,
            },
            found => self.read_remote(name, hash, found).await,
        }
    }

    /// The version of a key. If the caches know the version, the value is not read.
    ///
    /// # Errors
    /// As [`StateView::read`].
    #[inline]
    pub async fn read_version(&self, namespace: &str, key: &str) -> Result<Option<Version>, Error> {
        match self.cached_version(namespace, key) {
            Some(answer) => answer,
            None => Ok(self.read(namespace, key).await?.map(|versioned| versioned.version)),
        }
    }

    /// [`StateView::read`] after the caches did not give the answer.
    async fn read_remote(
        &self,
        name: KeyName<'_>,
        hash: KeyHash,
        found: CacheLookup,
    ) -> Result<Option<Versioned>, Error> {
        let mut found = found;
        for _ in 0..ATTEMPTS_MAX {
            let lease = self.begin().await?;
            if self.shared.role.joined().is_some() {
                // An entry that a follower cached before it had a lease may have been void by then.
                found = self.shared.caches.get(hash, name, self.height);
            }
            let answer = match found {
                CacheLookup::Hit(answer) => Some(answer),
                found => self
                    .look(hash, name, found, lease)
                    .await?
                    .map(|answer| answer.and_then(CachedValue::into_versioned)),
            };
            // An answer that was found while a follower's lease lapsed does not count: the read starts over.
            if let Some(answer) = answer
                && let Some(admitted) = self.answered()
            {
                return admitted.map(|()| answer);
            }
            events::ReadsLate.add(1);
            found = self.shared.caches.get(hash, name, self.height);
        }
        Err(Error::Busy)
    }

    /// Starts a lease under which addresses may be used. A follower waits a little for its own lease from the primary:
    /// the new lease starts before that one was seen to be live.
    #[inline]
    async fn begin(&self) -> Result<Lease, Error> {
        let lease = Lease::begin(rt::ticked());
        match self.shared.role.joined() {
            None => Ok(lease),
            Some(life) if life.is_live() => Ok(lease),
            Some(life) => {
                if !life.is_live_soon().await {
                    return Err(Error::NoLease);
                }
                let lease = Lease::begin(rt::ticked());
                if life.is_live() { Ok(lease) } else { Err(Error::NoLease) }
            }
        }
    }

    /// Steps 1 to 7 once; `None` when the lease ended.
    async fn look(
        &self,
        hash: KeyHash,
        name: KeyName<'_>,
        found: CacheLookup,
        lease: Lease,
    ) -> Result<Option<Option<CachedValue>>, Error> {
        let shared = &*self.shared;
        if shared.is_fenced() {
            return Err(Error::Fenced);
        }
        let (looked, token) = match found {
            CacheLookup::Hit(_) => unreachable!("a read that has the answer does not look further"),
            // The primary does not report to followers when it brings a record back.
            CacheLookup::Newest(known) if known.pointer.is_null() && shared.role.joined().is_some() => {
                let mut token = shared.caches.token(hash);
                (self.find_indexed(hash, name, &mut token, lease, &events::DataCacheMisses).await, token)
            }
            CacheLookup::Newest(known) | CacheLookup::TooNew(known) => {
                events::MetadataCacheHits.add(1);
                events::DataCacheMisses.add(1);
                let looked = self.find_known(hash, name, known, lease).await;
                // The read of the record may have invalidated an older token. Delta and storage are still to be looked
                // into.
                (looked, shared.caches.token(hash))
            }
            CacheLookup::Miss(mut token) => {
                (self.find_indexed(hash, name, &mut token, lease, &events::MetadataCacheMisses).await, token)
            }
        };
        match looked {
            RemoteLookup::Found(kept) => Ok(Some(Some(kept))),
            RemoteLookup::LeaseEnded => Ok(None),
            RemoteLookup::Missing => self.find_stored(hash, name, token).await.map(Some),
        }
    }

    /// Step 1: the newest version is known.
    async fn find_known(&self, hash: KeyHash, name: KeyName<'_>, known: CachedVersion, lease: Lease) -> RemoteLookup {
        let caches = &self.shared.caches;
        if known.pointer.is_null() {
            return RemoteLookup::Missing;
        }
        let kept = match caches.value_at(hash, known.pointer).filter(|kept| kept.version == known.version) {
            Some(kept) => kept,
            None => {
                hold_up("state.read.record").await;
                let fetched = match self.fetch(known.pointer, known.bytes as usize, lease, u64::MAX).await {
                    Ok(Some(fetched)) if fetched.record.is_of(name) && fetched.record.version == known.version => {
                        fetched
                    }
                    Ok(fetched) => {
                        // The bytes are intact, but not the record that was expected there.
                        events::RecordsUntrusted.add(u64::from(fetched.is_some()));
                        // Whatever the cause, the cached entry is of no more use.
                        caches.detach(hash, name, known.pointer);
                        return RemoteLookup::Missing;
                    }
                    Err(LeaseEnded) => return RemoteLookup::LeaseEnded,
                };
                let kept = fetched.into_cached_value();
                caches.keep(hash, name, known.pointer, kept.clone());
                kept
            }
        };
        match kept.version.block < self.height {
            true => RemoteLookup::Found(kept),
            false => self.walk_back(name, kept, lease).await,
        }
    }

    /// Step 2, after a miss of the given kind, which is counted while the first verb is in flight.
    async fn find_indexed(
        &self,
        hash: KeyHash,
        name: KeyName<'_>,
        token: &mut FillToken,
        lease: Lease,
        missed: &'static Counter,
    ) -> RemoteLookup {
        let shared = &*self.shared;
        let Some(subtable) = shared.find_subtable(hash) else {
            missed.add(1);
            return RemoteLookup::Missing;
        };
        hold_up("state.read.bucket").await;
        // Reuse the buffer of this thread's last probe, unless another read has it.
        let mut into = PROBE.take();
        into.clear();
        into.reserve(PROBE_BYTES);
        let read = shared.memory.read(subtable.address + hash.probe_offset(), PROBE_BYTES, into);
        // Work that need not wait for the verb.
        missed.add(1);
        shared.caches.weigh(token, hash, name);
        let bytes = match completed_meanwhile(&*shared.memory, read, buffer_pool::prepare).await {
            Ok(bytes) => bytes,
            Err(error) => {
                shared.memory.note_failure(subtable.address, &error);
                return RemoteLookup::Missing;
            }
        };
        let Some(probe) = BucketProbe::new(&bytes, &subtable) else {
            events::DirectoriesStale.add(1);
            return RemoteLookup::Missing;
        };
        let mut candidates = [Pointer::NULL; CANDIDATES_MAX];
        let count = candidates.iter_mut().zip(probe.candidates(hash)).map(|(place, found)| *place = found).count();
        PROBE.set(bytes);
        hold_up("state.read.record").await;
        for pointer in &candidates[..count] {
            match self.fetch(*pointer, pointer.class().bytes(), lease, u64::MAX).await {
                Ok(Some(fetched)) if fetched.record.is_of(name) => {
                    let is_newest = fetched.record.word.next.is_null() && fetched.record.version.block < self.height;
                    if is_newest && !token.is_worth_learning() {
                        return RemoteLookup::Found(fetched.into_cached_value());
                    }
                    return self.find_newest(hash, name, fetched, *token, lease).await;
                }
                Ok(_) => {}
                Err(LeaseEnded) => return RemoteLookup::LeaseEnded,
            }
        }
        RemoteLookup::Missing
    }

    /// Steps 3 and 4, from a record that the index led to.
    async fn find_newest(
        &self,
        hash: KeyHash,
        name: KeyName<'_>,
        mut fetched: FetchedRecord,
        token: FillToken,
        lease: Lease,
    ) -> RemoteLookup {
        let caches = &self.shared.caches;
        for _ in 0..WALK_MAX {
            let next = fetched.record.word.next;
            if fetched.record.version.block >= self.height {
                return self.walk_back(name, fetched.into_cached_value(), lease).await;
            }
            if next.is_null() {
                let known = fetched.cached_version();
                let kept = fetched.into_cached_value();
                if rt::fault_point("state.read.learn") {
                    return Box::pin(self.learn_late(hash, name, known, kept, token)).await;
                }
                caches.learn(token, hash, name, known, Some(&kept));
                return RemoteLookup::Found(kept);
            }
            match self.fetch(next, next.class().bytes(), lease, u64::MAX).await {
                Ok(Some(newer)) if newer.record.is_of(name) && newer.record.version > fetched.record.version => {
                    if newer.record.version.block >= self.height {
                        return RemoteLookup::Found(fetched.into_cached_value());
                    }
                    fetched = newer;
                }
                Ok(_) => return RemoteLookup::Missing,
                Err(LeaseEnded) => return RemoteLookup::LeaseEnded,
            }
        }
        RemoteLookup::Missing
    }

    /// Step 7 of a read that a simulation delays.
    #[cold]
    async fn learn_late(
        &self,
        hash: KeyHash,
        name: KeyName<'_>,
        known: CachedVersion,
        kept: CachedValue,
        token: FillToken,
    ) -> RemoteLookup {
        pause().await;
        self.shared.caches.learn(token, hash, name, known, Some(&kept));
        RemoteLookup::Found(kept)
    }

    /// Step 4: from a version that is too new to the ones before it, until one is visible.
    async fn walk_back(&self, name: KeyName<'_>, from: CachedValue, lease: Lease) -> RemoteLookup {
        let mut kept = from;
        for _ in 0..WALK_MAX {
            if kept.prev.is_null() || kept.version.block < self.shared.forgotten.load(Ordering::Acquire) {
                return RemoteLookup::Missing;
            }
            events::ChainSteps.add(1);
            // Not from the cache: its tags repeat after all incarnations of a buffer, and the version number of the
            // previous record is unknown. In memory, a later incarnation of the buffer holds another key or a newer
            // version.
            let before = match self.fetch(kept.prev, kept.prev.class().bytes(), lease, u64::MAX).await {
                Ok(Some(fetched)) if fetched.record.is_of(name) => fetched.into_cached_value(),
                Ok(_) => return RemoteLookup::Missing,
                Err(LeaseEnded) => return RemoteLookup::LeaseEnded,
            };
            if before.version >= kept.version {
                return RemoteLookup::Missing;
            }
            if before.version.block < self.height {
                return RemoteLookup::Found(before);
            }
            kept = before;
        }
        RemoteLookup::Missing
    }

    /// Steps 5 to 7.
    async fn find_stored(
        &self,
        hash: KeyHash,
        name: KeyName<'_>,
        token: FillToken,
    ) -> Result<Option<CachedValue>, Error> {
        let shared = &*self.shared;
        let seen = shared.delta().look_up(hash, name, self.height);
        // The newest of all, if no block wrote the key after the height of this view: the delta is updated before the
        // token is invalidated.
        let is_newest = !seen.newer && shared.height.load(Ordering::Acquire) == self.height;
        if let Some(written) = seen.newest {
            events::DeltaHits.add(1);
            let kept = self.written(name, &written).await?;
            if is_newest {
                let known = match written.location {
                    // Not the length here: the value may have come from storage, while memory could not be read.
                    ValueLocation::Remote(pointer, bytes) => {
                        CachedVersion { bytes, ..cached_version_of(&kept, pointer) }
                    }
                    _ => cached_version_of(&kept, Pointer::NULL),
                };
                shared.caches.learn(token, hash, name, known, Some(&kept).filter(|kept| kept.value.is_some()));
            }
            return Ok(Some(kept));
        }
        hold_up("state.read.storage").await;
        let kept = match self.height.checked_sub(1) {
            None => None,
            Some(through) => {
                events::StorageReads.add(1);
                let row = shared.store.get(name.namespace, name.key.as_bytes(), BlockNumber(through)).await;
                row.map_err(|error| shared.storage_error(error, self.height))?
                    .map(|row| cached_value_of(row.version, row.value))
            }
        };
        if is_newest && self.height > 0 {
            let known =
                kept.as_ref().map_or(CachedVersion::absent(self.height), |kept| cached_version_of(kept, Pointer::NULL));
            let value = kept.clone().filter(|kept| kept.value.is_some());
            shared.caches.learn(token, hash, name, known, value.as_ref());
            if let Some(value) = value {
                StateCore::fill(&self.shared, hash, name, token.reweighed(), value);
            }
        }
        Ok(kept)
    }

    /// The value of a version that the delta knows.
    pub(super) async fn written(&self, name: KeyName<'_>, written: &DeltaVersion) -> Result<CachedValue, Error> {
        let version = written.version;
        match &written.location {
            ValueLocation::Deleted => Ok(CachedValue { version, value: None, prev: Pointer::NULL, bytes: 0 }),
            ValueLocation::Inline(value) => {
                Ok(CachedValue { version, bytes: value.len(), value: Some(Bytes::clone(value)), prev: Pointer::NULL })
            }
            ValueLocation::Remote(pointer, bytes) => {
                for _ in 0..ATTEMPTS_MAX {
                    let lease = self.begin().await?;
                    match self.fetch(*pointer, *bytes as usize, lease, version.block).await {
                        Ok(Some(fetched)) if fetched.record.is_of(name) && fetched.record.version == version => {
                            return Ok(fetched.into_cached_value());
                        }
                        Ok(_) => return self.lost(name, version).await,
                        Err(LeaseEnded) => {}
                    }
                }
                Err(Error::Busy)
            }
            ValueLocation::Storage => self.lost(name, version).await,
        }
    }

    /// A version that memory has lost: storage materialises its block.
    async fn lost(&self, name: KeyName<'_>, version: Version) -> Result<CachedValue, Error> {
        let shared = &*self.shared;
        events::VersionsRefetched.add(1);
        shared.materialize(version.block + 1).await?;
        // This is the newest version that this view sees; older ones may have been pruned.
        let through = BlockNumber(self.height.saturating_sub(1));
        let row = shared.store.get(name.namespace, name.key.as_bytes(), through).await;
        match row.map_err(|error| shared.storage_error(error, self.height))? {
            Some(row) if row.version == version => Ok(cached_value_of(version, row.value)),
            _ => {
                // It may have been pruned if this view was no longer kept.
                shared.admitted(self.height)?;
                Err(Error::Lost { version })
            }
        }
    }

    /// The record that a pointer refers to, if its bytes can be trusted. A pointer from the delta is older than the
    /// lease: it may dangle once the delta has dropped `block`, which wrote the version. Other pointers never dangle.
    async fn fetch(
        &self,
        pointer: Pointer,
        bytes: usize,
        lease: Lease,
        block: u64,
    ) -> Result<Option<FetchedRecord>, LeaseEnded> {
        let shared = &*self.shared;
        let address = pointer.address();
        if shared.is_gone(address) {
            return Ok(None);
        }
        // A size class may reach beyond the end of the section.
        let section_bytes = shared.memory.section_bytes();
        let room = (section_bytes - address % section_bytes) as usize;
        let length = bytes.min(room);
        let read = shared.memory.read(address, length, buffer_pool::take(length));
        let read = match completed(&*shared.memory, read).await {
            Ok(bytes) => {
                // Here, so that the reference bit is fetched while the checksum is computed.
                shared.heat.touch(address);
                Record::read(bytes, pointer)
            }
            Err(error) => {
                shared.memory.note_failure(address, &error);
                return Ok(None);
            }
        };
        if !lease.is_live(rt::now()) {
            return Err(LeaseEnded);
        }
        match read {
            Ok(record) => Ok(Some(FetchedRecord { pointer, record, bytes: length })),
            Err(unread) => {
                self.count_untrusted(&unread, pointer, block);
                Ok(None)
            }
        }
    }

    /// Bytes that are not the expected record mean damage or a defect, unless the record was evicted since its address
    /// was learnt, or no kept view needs it any more.
    #[cold]
    fn count_untrusted(&self, bytes: &[u8], pointer: Pointer, block: u64) {
        let shared = &*self.shared;
        let is_kept = self.height >= shared.admitted.load(Ordering::Acquire);
        // A follower without a lease gets no updates that it could rely on.
        let is_kept = is_kept && shared.role.joined().is_none_or(replica::JoinedState::is_live);
        let is_there = block >= shared.savepoint.load(Ordering::Acquire) && !shared.is_gone(pointer.address());
        if is_kept && is_there && !record::is_given_up(bytes, pointer) {
            events::RecordsUntrusted.add(1);
        }
    }
}

pub(super) fn cached_value_of(version: Version, value: Option<Bytes>) -> CachedValue {
    // A value from storage may be a slice of a longer buffer.
    let value = value.map(|value| Bytes::copy_from_slice(&value));
    CachedValue { version, bytes: value.as_ref().map_or(0, Bytes::len), value, prev: Pointer::NULL }
}

fn cached_version_of(kept: &CachedValue, pointer: Pointer) -> CachedVersion {
    let kind = if kept.value.is_some() { VersionKind::Live } else { VersionKind::Deleted };
    CachedVersion { pointer, version: kept.version, kind, bytes: kept.bytes as u32 }
}

/// The lease ended before what was learnt under it could be used.
struct LeaseEnded;

impl StateCore {
    /// Maps an error of storage to the one that a reader at this height gets.
    pub(super) fn storage_error(&self, error: storage::Error, height: u64) -> Error {
        match error {
            storage::Error::TooOld { .. } => Error::TooOld { height },
            error => Error::Storage(error),
        }
    }

    /// Rejects the result of a view that is no longer kept.
    #[inline]
    pub(super) fn admitted(&self, height: u64) -> Result<(), Error> {
        if height < self.admitted.load(Ordering::Acquire) {
            events::ViewsRejected.add(1);
            return Err(Error::TooOld { height });
        }
        match self.role.joined() {
            Some(life) if !life.is_live() => {
                events::ReadsWithoutLease.add(1);
                Err(Error::NoLease)
            }
            _ => Ok(()),
        }
    }

    /// The view through which the newest block is read.
    pub(super) fn newest_view(&self) -> Arc<StateView> {
        self.current.read().expect("no writer panics").clone().expect("a view was published at opening")
    }
}
