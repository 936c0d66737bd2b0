//! The caches of a compute node. The metadata cache knows each key's newest version and its location; the data cache
//! has the values of versions that the node has read or written.
//!
//! The caches are split into shards by the hash of the key. A shard has its part of both caches, under one lock, so a
//! warm read takes one lock, one look-up and no allocation. Each part has an exact budget of bytes.
//!
//! The entry of a key is always its newest applied version. Two operations enter a version: applying a block, on the
//! primary or on a follower ([`Caches::replace`]), and a reader that has found the version outside the caches
//! ([`Caches::learn`]). The reader's version may be out of date when it arrives here. Hence:
//! 1. the reader takes the token of the key's hash ([`FillToken`]) before it looks anywhere else;
//! 2. once the index leads to the new version, and before the height is raised, apply replaces the entry and
//!    invalidates all tokens of that hash, under the lock of the shard;
//! 3. under the same lock, [`Caches::learn`] does nothing if the token is invalid.
//!
//! Tokens are counters shared by many hashes. A write of another key may therefore invalidate a token; this costs
//! another look-up and is never wrong.
//!
//! A version that a reader found displaces other entries only if its key was asked for before ([`doorkeeper`]), so a
//! key that is read only once evicts nothing. When a block writes a key, the new value is cached only if the value of
//! the previous version was cached, since that value had a reader.
//!
//! Invariants: an entry is the newest version that any visible height can see; no shard ever exceeds its budgets.

pub mod buffer_pool;
mod data;
mod doorkeeper;
mod metadata;
mod slot_table;
mod version;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use base::Version;

use self::data::DataCache;
use self::doorkeeper::Doorkeeper;
use self::metadata::MetadataCache;
use super::fault::{Mutant, mutant};
use super::index::KeyHash;
use super::pointer::Pointer;
use super::record::KeyName;
use crate::{Versioned, events};
pub use version::{CachedValue, CachedVersion, VersionKind, VersionTag};

/// Number of token counters.
const TOKENS: usize = 4096;
/// Most shards, a power of two, and the bytes below which another shard is not worthwhile.
const SHARDS_MAX: usize = 64;
const SHARD_BYTES_MIN: usize = 1 << 20;

/// Proof of when a look-up started; see [the module](self).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FillToken {
    count: u64,
    /// Set once it is known.
    worth: Option<FillWorth>,
}

/// Whether a finding about a key is to be cached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FillWorth {
    /// No: the key was not asked for before, and the cache is full.
    Nothing,
    /// While there is free space.
    Room,
    /// Yes, and it may displace other entries.
    Others,
}

impl FillToken {
    /// Whether learning under the token can have an effect, as far as is known.
    #[inline]
    pub fn is_worth_learning(&self) -> bool {
        self.worth != Some(FillWorth::Nothing)
    }

    /// The same token with its worth still to be determined: the key was asked for just now.
    pub fn reweighed(self) -> FillToken {
        FillToken { worth: None, ..self }
    }
}

/// The result of a look-up in the caches at a height.
#[derive(Debug)]
pub enum CacheLookup {
    /// The answer.
    Hit(Option<Versioned>),
    /// The newest version, which is visible; its value is not cached.
    Newest(CachedVersion),
    /// The newest version, which is too new to be visible.
    TooNew(CachedVersion),
    /// Nothing, with a token for learning a finding.
    Miss(FillToken),
}

#[derive(Default)]
struct CacheShard {
    metadata: MetadataCache,
    data: DataCache,
    doorkeeper: Doorkeeper,
    /// Hits that the events do not count yet.
    metadata_hits: u64,
    data_hits: u64,
}

/// Hits are reported to the events in batches of this size: an event costs a good part of a hit.
const HITS_REPORTED_AT_ONCE: u64 = 64;

impl CacheShard {
    #[inline]
    fn count_metadata_hit(&mut self) {
        self.metadata_hits += 1;
        if self.metadata_hits >= HITS_REPORTED_AT_ONCE {
            self.report_hits();
        }
    }

    #[inline]
    fn count_data_hit(&mut self) {
        self.data_hits += 1;
        if self.data_hits >= HITS_REPORTED_AT_ONCE {
            self.report_hits();
        }
    }

    #[cold]
    fn report_hits(&mut self) {
        events::MetadataCacheHits.add(std::mem::take(&mut self.metadata_hits));
        events::DataCacheHits.add(std::mem::take(&mut self.data_hits));
    }
}

/// See [the module](self).
pub struct Caches {
    shards: Box<[Mutex<CacheShard>]>,
    tokens: Box<[AtomicU64]>,
    /// Tags of versions without a pointer.
    next_local_tag: AtomicU64,
}

impl Caches {
    pub fn new(metadata_bytes: usize, data_bytes: usize) -> Caches {
        let shards = (metadata_bytes.min(data_bytes) / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX);
        let shards = 1 << shards.ilog2();
        let shard = || {
            let (metadata, data) = (MetadataCache::new(metadata_bytes / shards), DataCache::new(data_bytes / shards));
            let doorkeeper = Doorkeeper::new(metadata_bytes / shards / metadata::ENTRY_BYTES);
            Mutex::new(CacheShard { metadata, data, doorkeeper, ..CacheShard::default() })
        };
        Caches {
            shards: (0..shards).map(|_| shard()).collect(),
            tokens: (0..TOKENS).map(|_| AtomicU64::new(0)).collect(),
            next_local_tag: AtomicU64::new(0),
        }
    }

    #[inline]
    fn shard(&self, hash: KeyHash) -> MutexGuard<'_, CacheShard> {
        // The tables within a shard use higher bits.
        let at = hash.0 as usize & (self.shards.len() - 1);
        self.shards[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counter(&self, hash: KeyHash) -> &AtomicU64 {
        // Those of a shard are together: tasks that apply a block have shards of their own, and share no cache line.
        let (shard, within) = (hash.0 as usize % SHARDS_MAX, (hash.0 >> 40) as usize % (TOKENS / SHARDS_MAX));
        &self.tokens[shard * (TOKENS / SHARDS_MAX) + within]
    }

    /// Step 1 of learning.
    #[inline]
    pub fn token(&self, hash: KeyHash) -> FillToken {
        FillToken { count: self.counter(hash).load(Ordering::Acquire), worth: None }
    }

    /// Whether a finding under the token may still be used.
    pub fn is_alive(&self, hash: KeyHash, token: FillToken) -> bool {
        self.token(hash).count == token.count || mutant(Mutant::FillSurvives)
    }

    /// The entry of a key, with its value, at a height.
    #[inline]
    pub fn get(&self, hash: KeyHash, name: KeyName<'_>, height: u64) -> CacheLookup {
        let mut shard = self.shard(hash);
        let Some(entry) = shard.metadata.find(hash, name) else { return CacheLookup::Miss(self.token(hash)) };
        let known = entry.cached_version();
        if !known.is_seen(height) {
            return CacheLookup::TooNew(known);
        }
        let answer = match known.kind {
            VersionKind::Live => match entry.value() {
                Some(value) => Some(Versioned { value, version: known.version }),
                None => return CacheLookup::Newest(known),
            },
            VersionKind::Deleted | VersionKind::Absent => None,
        };
        shard.count_data_hit();
        CacheLookup::Hit(answer)
    }

    /// The version visible at a height, if the caches know it.
    #[inline]
    pub fn version(&self, hash: KeyHash, name: KeyName<'_>, height: u64) -> Option<Option<Version>> {
        let mut shard = self.shard(hash);
        let entry = shard.metadata.find(hash, name)?;
        let known = entry.cached_version();
        if !known.is_seen(height) {
            return None;
        }
        shard.count_metadata_hit();
        Some((known.kind == VersionKind::Live).then_some(known.version))
    }

    /// A key's newest version, and whether its value is cached.
    pub fn newest(&self, hash: KeyHash, name: KeyName<'_>) -> Option<(CachedVersion, bool)> {
        let mut shard = self.shard(hash);
        shard.metadata.find(hash, name).map(|entry| (entry.cached_version(), entry.has_value()))
    }

    /// The bytes of a version of a key with this hash.
    pub fn value_at(&self, hash: KeyHash, pointer: Pointer) -> Option<CachedValue> {
        self.shard(hash).data.find(hash, VersionTag::of(pointer)).map(|slot| slot.cached_value())
    }

    /// Caches the bytes of a version, whether it is the newest or not.
    pub fn keep(&self, hash: KeyHash, name: KeyName<'_>, pointer: Pointer, kept: CachedValue) {
        let mut shard = self.shard(hash);
        let CacheShard { metadata, data, .. } = &mut *shard;
        let tag = VersionTag::of(pointer);
        let at = data.put(hash, tag, kept, metadata);
        if let Some(owner) = metadata.slot_of(hash, name) {
            data.hand_to(owner, at, tag, metadata);
        }
    }

    /// Determines whether the result of a look-up is worth caching; to be called while the look-up's verbs are in
    /// flight.
    #[inline]
    pub fn weigh(&self, token: &mut FillToken, hash: KeyHash, name: KeyName<'_>) {
        token.worth = Some(weigh(&mut self.shard(hash), hash, name));
    }

    /// Step 3 of learning: the finding is the newest version of the key, unless the token has become invalid.
    pub fn learn(
        &self,
        token: FillToken,
        hash: KeyHash,
        name: KeyName<'_>,
        known: CachedVersion,
        kept: Option<&CachedValue>,
    ) {
        if !token.is_worth_learning() {
            return;
        }
        let mut shard = self.shard(hash);
        if !self.is_alive(hash, token) {
            return;
        }
        let worth = token.worth.unwrap_or_else(|| weigh(&mut shard, hash, name));
        if worth != FillWorth::Nothing {
            let has_room = |kept: &&CachedValue| worth == FillWorth::Others || shard.data.has_capacity(kept.bytes);
            let kept = kept.filter(has_room).cloned();
            self.put(&mut shard, hash, name, known, kept);
        }
    }

    /// Step 2: a block has written the key. Earlier findings become void.
    pub fn replace(&self, hash: KeyHash, name: KeyName<'_>, known: CachedVersion, kept: Option<CachedValue>) {
        let mut shard = self.shard(hash);
        self.counter(hash).fetch_add(1, Ordering::AcqRel);
        self.put(&mut shard, hash, name, known, kept);
    }

    /// The key's record is gone from remote memory; earlier findings become void.
    pub fn detach(&self, hash: KeyHash, name: KeyName<'_>, pointer: Pointer) {
        let mut shard = self.shard(hash);
        self.counter(hash).fetch_add(1, Ordering::AcqRel);
        if shard.metadata.find(hash, name).is_some_and(|entry| entry.cached_version().pointer == pointer) {
            shard.metadata.remove(hash, name);
        }
    }

    /// The key's record was evicted from remote memory: the version is still the newest, and its value is still good,
    /// but findings about its location become void.
    pub fn evict(&self, hash: KeyHash, name: KeyName<'_>, pointer: Pointer) {
        let mut shard = self.shard(hash);
        if !mutant(Mutant::LearntOutlivesEviction) {
            self.counter(hash).fetch_add(1, Ordering::AcqRel);
        }
        shard.metadata.detach(hash, name, pointer);
    }

    /// Whether the data cache has the version at a pointer. Does not count as a use.
    pub fn has(&self, hash: KeyHash, pointer: Pointer) -> bool {
        self.shard(hash).data.has(hash, VersionTag::of(pointer))
    }

    /// Removes every entry for whose pointer `gone` holds, and invalidates every token. By now such pointers cannot be
    /// found anywhere else.
    pub fn forget(&self, gone: impl Fn(Pointer) -> bool) {
        // A reader that takes a token from now on no longer finds such pointers.
        self.tokens.iter().for_each(|token| {
            token.fetch_add(1, Ordering::AcqRel);
        });
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.metadata.retain(|known| known.pointer.is_null() || !gone(known.pointer));
        }
    }

    /// The pointers of the newest versions that the caches know.
    pub fn pointers(&self) -> Vec<Pointer> {
        let mut pointers = Vec::new();
        for shard in &self.shards {
            pointers.extend(shard.lock().unwrap_or_else(PoisonError::into_inner).metadata.pointers());
        }
        pointers
    }

    /// Bytes that both parts are charged with.
    pub fn bytes(&self) -> (usize, usize) {
        let shards = self.shards.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner));
        shards.fold((0, 0), |(metadata, data), shard| (metadata + shard.metadata.bytes(), data + shard.data.bytes()))
    }

    fn put(
        &self,
        shard: &mut CacheShard,
        hash: KeyHash,
        name: KeyName<'_>,
        known: CachedVersion,
        kept: Option<CachedValue>,
    ) {
        let tag = match known.pointer.is_null() {
            true => VersionTag(VersionTag::LOCAL | self.next_local_tag.fetch_add(1, Ordering::Relaxed)),
            false => VersionTag::of(known.pointer),
        };
        let CacheShard { metadata, data, .. } = shard;
        // The version before makes space, if it is cached.
        if let Some(before) = metadata.find(hash, name).map(|entry| entry.tag())
            && before != tag
        {
            data.remove(hash, before, metadata);
        }
        let at = match kept {
            Some(kept) => data.put(hash, tag, kept, metadata),
            None => data.slot_of(hash, tag),
        };
        if let Some(owner) = metadata.put(hash, name, known, tag) {
            data.hand_to(owner, at, tag, metadata);
        }
    }
}

fn weigh(shard: &mut CacheShard, hash: KeyHash, name: KeyName<'_>) -> FillWorth {
    if shard.doorkeeper.was_seen(hash) {
        FillWorth::Others
    } else if shard.metadata.has_capacity(name) || shard.metadata.slot_of(hash, name).is_some() {
        FillWorth::Room
    } else {
        FillWorth::Nothing
    }
}

impl Drop for Caches {
    fn drop(&mut self) {
        for shard in &mut self.shards {
            shard.get_mut().unwrap_or_else(PoisonError::into_inner).report_hits();
        }
        let (metadata, data) = self.bytes();
        events::MetadataCacheBytes.add(-(metadata as i64));
        events::DataCacheBytes.add(-(data as i64));
    }
}

#[cfg(test)]
mod tests;
