//! Reads at a block boundary.
//!
//! Steps of a read of one key at height `h`:
//! 1. The caches know the key's newest version. Seen at `h` and its value here: that is the answer. Its value elsewhere: one
//!    read of the record. Too new: step 4.
//! 2. They do not: a token is taken, then the two buckets are read that may lead to the key, then each record whose
//!    fingerprint fits. It counts only when incarnation, key and checksum agree, and when the lease under which the
//!    addresses were learnt is still live after the last read; else the read begins anew.
//! 3. Whoever comes upon a record with a `next` follows it, for as long as what it leads to is seen at `h`.
//! 4. A record that is too new is left by `prev`, until one is seen at `h`.
//! 5. What that did not find is in the delta: which version is seen, and where it is. A version that remote memory has lost
//!    is waited for until the savepoint covers it.
//! 6. What the delta does not have is in storage, as of block `h - 1`.
//! 7. What was found is brought to the caches, under the token, if no newer version exists; and from storage to remote
//!    memory ([`super::fill`]).
//!
//! To find nothing in steps 2 to 4 is never wrong, whatever the reason: a directory out of date, a lost section, torn bytes.
//!
//! Why step 1 and 2 give the newest version below `h`: every block below `h` had replaced its keys in index and caches
//! before the height became `h`, and this read began after that.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::event::Counter;
use base::{BlockNumber, Bytes, BytesMut, Version, rt};

use super::cache::{Found, Kept, Kind, Known, Token, spare};
use super::delta::{Place, Written};
use super::fault::{hold_up, pause};
use super::index::{KeyHash, PROBE_BYTES, Probe};
use super::lease::Lease;
use super::memory::{completed, completed_meanwhile};
use super::pointer::Pointer;
use super::record::{self, Name, Record};
use super::{Shared, View};
use crate::{Error, Versioned, events};

/// Times that a read begins anew because its lease ended under it.
const ATTEMPTS_MAX: u32 = 16;
/// Records that a walk along a chain visits at most; longer chains are given up for delta and storage.
const WALK_MAX: usize = 64;
/// Records that may have one fingerprint in two buckets.
const CANDIDATES_MAX: usize = 14;

thread_local! {
    static PROBE: Cell<BytesMut> = Cell::default();
}

/// A record, and the bytes that its buffer takes here.
struct Fetched {
    pointer: Pointer,
    record: Record,
    bytes: usize,
}

impl Fetched {
    fn known(&self) -> Known {
        let kind = if self.record.is_deletion() { Kind::Deleted } else { Kind::Live };
        Known { pointer: self.pointer, version: self.record.version, kind, bytes: self.record.len() as u32 }
    }

    fn into_kept(self) -> Kept {
        Kept::of(self.record, self.bytes)
    }
}

/// What a look into remote memory gave.
enum Looked {
    /// The version that is seen.
    Seen(Kept),
    /// Nothing that is to be trusted.
    Nothing,
    /// The lease ended meanwhile.
    Late,
}

impl View {
    #[inline]
    pub(super) fn hash(&self, name: Name<'_>) -> KeyHash {
        KeyHash::new(name, self.shared.seed)
    }

    /// The answer of the caches, if they have it: takes no lock but one shard's, allocates nothing, waits for nothing.
    #[inline]
    pub fn cached(&self, namespace: &str, key: &str) -> Option<Result<Option<Versioned>, Error>> {
        let name = Name { namespace, key };
        match self.shared.caches.get(self.hash(name), name, self.height) {
            Found::Answer(answer) => self.answered().map(|admitted| admitted.map(|()| answer)),
            _ => None,
        }
    }

    /// Whether what the caches said counts; `None` where a lease is to be waited for.
    #[inline]
    fn answered(&self) -> Option<Result<(), Error>> {
        match self.shared.admitted(self.height) {
            Err(Error::NoLease) => None,
            admitted => Some(admitted),
        }
    }

    /// As [`View::cached`], of the version alone.
    #[inline]
    pub fn cached_version(&self, namespace: &str, key: &str) -> Option<Result<Option<Version>, Error>> {
        let name = Name { namespace, key };
        let answer = self.shared.caches.version(self.hash(name), name, self.height)?;
        self.answered().map(|admitted| admitted.map(|()| answer))
    }

    /// The live value of a key; see [the module](super::read). Dropping the future does no harm.
    ///
    /// # Errors
    /// [`Error::TooOld`] for a view that is no longer kept; [`Error::Fenced`]; [`Error::Busy`]; storage errors.
    #[inline]
    pub async fn read(&self, namespace: &str, key: &str) -> Result<Option<Versioned>, Error> {
        let name = Name { namespace, key };
        let hash = self.hash(name);
        match self.shared.caches.get(hash, name, self.height) {
            Found::Answer(answer) => match self.answered() {
                Some(admitted) => admitted.map(|()| answer),
                None => self.read_elsewhere(name, hash, Found::Answer(answer)).await,
            },
            found => self.read_elsewhere(name, hash, found).await,
        }
    }

    /// The version of a key; its value stays where it is if the caches know the version.
    ///
    /// # Errors
    /// As [`View::read`].
    #[inline]
    pub async fn read_version(&self, namespace: &str, key: &str) -> Result<Option<Version>, Error> {
        match self.cached_version(namespace, key) {
            Some(answer) => answer,
            None => Ok(self.read(namespace, key).await?.map(|versioned| versioned.version)),
        }
    }

    /// [`View::read`] of what the caches have just not answered.
    async fn read_elsewhere(&self, name: Name<'_>, hash: KeyHash, found: Found) -> Result<Option<Versioned>, Error> {
        let mut found = found;
        for _ in 0..ATTEMPTS_MAX {
            let lease = self.begin().await?;
            if self.shared.role.life().is_some() {
                // What a reader knew before it had a lease may have been void by then.
                found = self.shared.caches.get(hash, name, self.height);
            }
            if let Found::Answer(answer) = found {
                return self.shared.admitted(self.height).map(|()| answer);
            }
            if let Some(answer) = self.look(hash, name, found, lease).await? {
                return self.shared.admitted(self.height).map(|()| answer.and_then(Kept::into_versioned));
            }
            events::ReadsLate.add(1);
            found = self.shared.caches.get(hash, name, self.height);
        }
        Err(Error::Busy)
    }

    /// From now on addresses may be used for as long as a lease lasts. A reader waits a little for one of its own: this begins
    /// before that was seen to be live.
    #[inline]
    async fn begin(&self) -> Result<Lease, Error> {
        let lease = Lease::begin(rt::ticked());
        match self.shared.role.life() {
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
        name: Name<'_>,
        found: Found,
        lease: Lease,
    ) -> Result<Option<Option<Kept>>, Error> {
        let shared = &*self.shared;
        if shared.is_fenced() {
            return Err(Error::Fenced);
        }
        let (looked, token) = match found {
            Found::Answer(_) => unreachable!("whoever has the answer does not look for it"),
            // A reader is not told when the primary brings a record back.
            Found::Newest(known) if known.pointer.is_null() && shared.role.life().is_some() => {
                let mut token = shared.caches.token(hash);
                (self.see_indexed(hash, name, &mut token, lease, &events::DataCacheMisses).await, token)
            }
            Found::Newest(known) | Found::TooNew(known) => {
                events::MetadataCacheHits.add(1);
                events::DataCacheMisses.add(1);
                let looked = self.see_known(hash, name, known, lease).await;
                // What it found out may have killed a token from before. Delta and storage are yet to be looked into.
                (looked, shared.caches.token(hash))
            }
            Found::Nothing(mut token) => {
                (self.see_indexed(hash, name, &mut token, lease, &events::MetadataCacheMisses).await, token)
            }
        };
        match looked {
            Looked::Seen(kept) => Ok(Some(Some(kept))),
            Looked::Late => Ok(None),
            Looked::Nothing => self.see_stored(hash, name, token).await.map(Some),
        }
    }

    /// Step 1: the newest version is known.
    async fn see_known(&self, hash: KeyHash, name: Name<'_>, known: Known, lease: Lease) -> Looked {
        let caches = &self.shared.caches;
        if known.pointer.is_null() {
            return Looked::Nothing;
        }
        let kept = match caches.kept(hash, known.pointer).filter(|kept| kept.version == known.version) {
            Some(kept) => kept,
            None => {
                hold_up("state.read.record").await;
                let fetched = match self.fetch(known.pointer, known.bytes as usize, lease, u64::MAX).await {
                    Ok(Some(fetched)) if fetched.record.is_of(name) && fetched.record.version == known.version => {
                        fetched
                    }
                    Ok(fetched) => {
                        // Bytes that are whole, and yet not what was known to be there.
                        events::RecordsUntrusted.add(u64::from(fetched.is_some()));
                        // Whatever took the record away: what is known of it is not worth keeping.
                        caches.detach(hash, name, known.pointer);
                        return Looked::Nothing;
                    }
                    Err(Late) => return Looked::Late,
                };
                let kept = fetched.into_kept();
                caches.keep(hash, name, known.pointer, kept.clone());
                kept
            }
        };
        match kept.version.block < self.height {
            true => Looked::Seen(kept),
            false => self.walk_back(name, kept, lease).await,
        }
    }

    /// Step 2, after a miss of this kind, which is counted while the first verb is under way.
    async fn see_indexed(
        &self,
        hash: KeyHash,
        name: Name<'_>,
        token: &mut Token,
        lease: Lease,
        missed: &'static Counter,
    ) -> Looked {
        let shared = &*self.shared;
        let Some(subtable) = shared.find_subtable(hash) else {
            missed.add(1);
            return Looked::Nothing;
        };
        hold_up("state.read.bucket").await;
        // The buffer of this thread's last probe is used again, unless another read has it.
        let mut into = PROBE.take();
        into.clear();
        into.reserve(PROBE_BYTES);
        let read = shared.memory.read(subtable.address + hash.probe_offset(), PROBE_BYTES, into);
        // What has no need to wait for the verb.
        missed.add(1);
        shared.caches.weigh(token, hash, name);
        let bytes = match completed_meanwhile(&*shared.memory, read, spare::prepare).await {
            Ok(bytes) => bytes,
            Err(error) => {
                shared.memory.note_failure(subtable.address, &error);
                return Looked::Nothing;
            }
        };
        let Some(probe) = Probe::new(&bytes, &subtable) else {
            events::DirectoriesStale.add(1);
            return Looked::Nothing;
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
                        return Looked::Seen(fetched.into_kept());
                    }
                    return self.see_newest(hash, name, fetched, *token, lease).await;
                }
                Ok(_) => {}
                Err(Late) => return Looked::Late,
            }
        }
        Looked::Nothing
    }

    /// Steps 3 and 4 from a record that the index led to.
    async fn see_newest(
        &self,
        hash: KeyHash,
        name: Name<'_>,
        mut fetched: Fetched,
        token: Token,
        lease: Lease,
    ) -> Looked {
        let caches = &self.shared.caches;
        for _ in 0..WALK_MAX {
            let next = fetched.record.word.next;
            if fetched.record.version.block >= self.height {
                return self.walk_back(name, fetched.into_kept(), lease).await;
            }
            if next.is_null() {
                let known = fetched.known();
                let kept = fetched.into_kept();
                if rt::fault_point("state.read.learn") {
                    return Box::pin(self.learn_late(hash, name, known, kept, token)).await;
                }
                caches.learn(token, hash, name, known, Some(&kept));
                return Looked::Seen(kept);
            }
            match self.fetch(next, next.class().bytes(), lease, u64::MAX).await {
                Ok(Some(newer)) if newer.record.is_of(name) && newer.record.version > fetched.record.version => {
                    if newer.record.version.block >= self.height {
                        return Looked::Seen(fetched.into_kept());
                    }
                    fetched = newer;
                }
                Ok(_) => return Looked::Nothing,
                Err(Late) => return Looked::Late,
            }
        }
        Looked::Nothing
    }

    /// Step 7 by a reader that a simulation holds up.
    #[cold]
    async fn learn_late(&self, hash: KeyHash, name: Name<'_>, known: Known, kept: Kept, token: Token) -> Looked {
        pause().await;
        self.shared.caches.learn(token, hash, name, known, Some(&kept));
        Looked::Seen(kept)
    }

    /// Step 4: from a version that is too new to the one before, until one is seen.
    async fn walk_back(&self, name: Name<'_>, from: Kept, lease: Lease) -> Looked {
        let mut kept = from;
        for _ in 0..WALK_MAX {
            if kept.prev.is_null() || kept.version.block < self.shared.forgotten.load(Ordering::Acquire) {
                return Looked::Nothing;
            }
            events::ChainSteps.add(1);
            // Not from the cache: its tags repeat after all lives of a buffer, and which version is before is not known. In
            // memory whatever has the buffer in a later life is of another key, or newer.
            let before = match self.fetch(kept.prev, kept.prev.class().bytes(), lease, u64::MAX).await {
                Ok(Some(fetched)) if fetched.record.is_of(name) => fetched.into_kept(),
                Ok(_) => return Looked::Nothing,
                Err(Late) => return Looked::Late,
            };
            if before.version >= kept.version {
                return Looked::Nothing;
            }
            if before.version.block < self.height {
                return Looked::Seen(before);
            }
            kept = before;
        }
        Looked::Nothing
    }

    /// Steps 5 to 7.
    async fn see_stored(&self, hash: KeyHash, name: Name<'_>, token: Token) -> Result<Option<Kept>, Error> {
        let shared = &*self.shared;
        let seen = shared.delta().see(hash, name, self.height);
        // Newest of all, if no block wrote the key behind what this view sees: the delta is older than the token's death.
        let is_newest = !seen.newer && shared.height.load(Ordering::Acquire) == self.height;
        if let Some(written) = seen.newest {
            events::DeltaHits.add(1);
            let kept = self.written(name, &written).await?;
            if is_newest {
                let known = match written.place {
                    // Not what it takes here: it may have come from storage, while memory could not be read.
                    Place::Remote(pointer, bytes) => Known { bytes, ..known_of(&kept, pointer) },
                    _ => known_of(&kept, Pointer::NULL),
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
                    .map(|row| kept_of(row.version, row.value))
            }
        };
        if is_newest && self.height > 0 {
            let known = kept.as_ref().map_or(Known::absent(self.height), |kept| known_of(kept, Pointer::NULL));
            let value = kept.clone().filter(|kept| kept.value.is_some());
            shared.caches.learn(token, hash, name, known, value.as_ref());
            if let Some(value) = value {
                Shared::fill(&self.shared, hash, name, token.unweighed(), value);
            }
        }
        Ok(kept)
    }

    /// The value of a version that the delta knows.
    pub(super) async fn written(&self, name: Name<'_>, written: &Written) -> Result<Kept, Error> {
        let version = written.version;
        match &written.place {
            Place::Deleted => Ok(Kept { version, value: None, prev: Pointer::NULL, bytes: 0 }),
            Place::Here(value) => {
                Ok(Kept { version, bytes: value.len(), value: Some(Bytes::clone(value)), prev: Pointer::NULL })
            }
            Place::Remote(pointer, bytes) => {
                for _ in 0..ATTEMPTS_MAX {
                    let lease = self.begin().await?;
                    match self.fetch(*pointer, *bytes as usize, lease, version.block).await {
                        Ok(Some(fetched)) if fetched.record.is_of(name) && fetched.record.version == version => {
                            return Ok(fetched.into_kept());
                        }
                        Ok(_) => return self.lost(name, version).await,
                        Err(Late) => {}
                    }
                }
                Err(Error::Busy)
            }
            Place::Storage => self.lost(name, version).await,
        }
    }

    /// A version that memory has lost: storage makes it from its block.
    async fn lost(&self, name: Name<'_>, version: Version) -> Result<Kept, Error> {
        let shared = &*self.shared;
        events::VersionsRefetched.add(1);
        shared.materialize(version.block + 1).await?;
        // It is the newest that this view sees; older ones may have been pruned.
        let through = BlockNumber(self.height.saturating_sub(1));
        let row = shared.store.get(name.namespace, name.key.as_bytes(), through).await;
        match row.map_err(|error| shared.storage_error(error, self.height))? {
            Some(row) if row.version == version => Ok(kept_of(version, row.value)),
            _ => {
                // It may have gone while this view was no longer kept.
                shared.admitted(self.height)?;
                Err(Error::Lost { version })
            }
        }
    }

    /// The record that a pointer means, if its bytes are to be trusted. A pointer that was learnt from the delta is older than
    /// the lease: it may lead nowhere once the delta has forgotten `block`, which wrote the version. Others never do so.
    async fn fetch(&self, pointer: Pointer, bytes: usize, lease: Lease, block: u64) -> Result<Option<Fetched>, Late> {
        let shared = &*self.shared;
        let address = pointer.address();
        if shared.is_gone(address) {
            return Ok(None);
        }
        // A class may reach beyond the end of the section.
        let section_bytes = shared.memory.section_bytes();
        let room = (section_bytes - address % section_bytes) as usize;
        let length = bytes.min(room);
        let read = shared.memory.read(address, length, spare::take(length));
        let read = match completed(&*shared.memory, read).await {
            Ok(bytes) => {
                // Here, so that the bit is on its way while the checksum is taken.
                shared.heat.touch(address);
                Record::read(bytes, pointer)
            }
            Err(error) => {
                shared.memory.note_failure(address, &error);
                return Ok(None);
            }
        };
        if !lease.is_live(rt::now()) {
            return Err(Late);
        }
        match read {
            Ok(record) => Ok(Some(Fetched { pointer, record, bytes: length })),
            Err(unread) => {
                self.count_untrusted(&unread, pointer, block);
                Ok(None)
            }
        }
    }

    /// Bytes that are not the record sought are damage or a defect, unless it was evicted since its address was learnt, or is
    /// one that a view which is kept no longer looks for.
    #[cold]
    fn count_untrusted(&self, bytes: &[u8], pointer: Pointer, block: u64) {
        let shared = &*self.shared;
        let is_kept = self.height >= shared.admitted.load(Ordering::Acquire);
        // Without a lease a reader is not told.
        let is_kept = is_kept && shared.role.life().is_none_or(super::readers::Life::is_live);
        let is_there = block >= shared.settled.load(Ordering::Acquire) && !shared.is_gone(pointer.address());
        if is_kept && is_there && !record::is_given_up(bytes, pointer) {
            events::RecordsUntrusted.add(1);
        }
    }
}

pub(super) fn kept_of(version: Version, value: Option<Bytes>) -> Kept {
    // What storage gives may be a part of something longer.
    let value = value.map(|value| Bytes::copy_from_slice(&value));
    Kept { version, bytes: value.as_ref().map_or(0, Bytes::len), value, prev: Pointer::NULL }
}

fn known_of(kept: &Kept, pointer: Pointer) -> Known {
    let kind = if kept.value.is_some() { Kind::Live } else { Kind::Deleted };
    Known { pointer, version: kept.version, kind, bytes: kept.bytes as u32 }
}

/// The lease ended before what was learnt under it could be used.
struct Late;

impl Shared {
    /// An error of storage as a reader at this height is told.
    pub(super) fn storage_error(&self, error: storage::Error, height: u64) -> Error {
        match error {
            storage::Error::TooOld { .. } => Error::TooOld { height },
            error => Error::Storage(error),
        }
    }

    /// Refuses what a view read that is no longer kept.
    #[inline]
    pub(super) fn admitted(&self, height: u64) -> Result<(), Error> {
        if height < self.admitted.load(Ordering::Acquire) {
            events::ViewsRefused.add(1);
            return Err(Error::TooOld { height });
        }
        match self.role.life() {
            Some(life) if !life.is_live() => {
                events::ReadsWithoutLease.add(1);
                Err(Error::NoLease)
            }
            _ => Ok(()),
        }
    }

    /// What a view of the newest block is to be read through.
    pub(super) fn newest_view(&self) -> Arc<View> {
        self.current.read().expect("no writer panics").clone().expect("a view was published at opening")
    }
}
