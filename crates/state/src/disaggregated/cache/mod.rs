//! What the compute node remembers: where a key's newest version is, and the bytes of versions it has read or written.
//!
//! The caches are split into shards by the hash of the key; a shard has its part of both, under one lock, so that a warm
//! read takes one lock, one look-up and no allocation. Each shard has an exact budget of bytes for each part.
//!
//! What is remembered of a key is its newest applied version, always. Two things change it: the primary's apply
//! ([`Caches::replace`]), and readers that have found it elsewhere ([`Caches::learn`]). A reader's finding may be out of
//! date by the time it is brought here, hence:
//! 1. the reader takes the [`Token`] of the key's hash before it looks anywhere else;
//! 2. apply, once the index leads to the new version and before the height does, replaces the entry and kills all tokens
//!    of that hash, under the shard's lock;
//! 3. [`Caches::learn`] does nothing under a dead token, under the same lock.
//!
//! Tokens are counters shared by many hashes: a token may die for another key's sake, which costs a look-up and is never
//! wrong.
//!
//! What a reader found makes others leave only when its key was asked for before ([`doorkeeper`]): what is read once costs no
//! more than its read. What a block wrote keeps its value here if the version before had its own here: values follow readers.
//!
//! Invariants: an entry is the newest version that any visible height can see; no part is ever above its budget.

mod data;
mod doorkeeper;
mod metadata;
mod places;
pub mod spare;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use base::{Bytes, Version};

use self::data::Data;
use self::doorkeeper::Doorkeeper;
use self::metadata::Metadata;
use super::fault::{Mutant, mutant};
use super::index::KeyHash;
use super::pointer::Pointer;
use super::record::{Name, Record};
use crate::{Versioned, events};

/// Counters that tokens are taken from.
const TOKENS: usize = 4096;
/// Shards at most, and the bytes below which a further one is not worth having.
const SHARDS_MAX: usize = 64;
const SHARD_BYTES_MIN: usize = 1 << 20;

/// Proof of when a look-up began; see [the module](self).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Token {
    count: u64,
    /// Once that is known.
    worth: Option<Worth>,
}

/// Whether what is found of a key is to be remembered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Worth {
    /// No: it was not asked for before, and there is no room.
    Nothing,
    /// For as long as there is room.
    Room,
    /// Others leave for it.
    Others,
}

impl Token {
    /// Whether learning under it can have an effect, as far as is known.
    #[inline]
    pub fn is_worth_learning(&self) -> bool {
        self.worth != Some(Worth::Nothing)
    }

    /// The same, to be weighed anew: the key was asked for until now.
    pub fn unweighed(self) -> Token {
        Token { worth: None, ..self }
    }
}

/// What tells the data of one version from those of others: its pointer, or a number of its own where it has none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag(u64);

impl Tag {
    const LOCAL: u64 = 1 << 63;

    fn of(pointer: Pointer) -> Tag {
        // A reader that trusts any life of a buffer takes the bytes of one for those of another.
        let mask = if mutant(Mutant::NoIncarnation) { (1 << 40) - 1 } else { u64::MAX };
        Tag(pointer.bits() & mask)
    }
}

/// The newest applied version of a key, without its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// Null where remote memory does not hold it.
    pub pointer: Pointer,
    pub version: Version,
    pub kind: Kind,
    /// Bytes of its record.
    pub bytes: u32,
}

/// What a version says of its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Live,
    Deleted,
    /// Nothing up to the version, which nobody wrote.
    Absent,
}

impl Known {
    /// Neither remote memory, delta nor storage had the key for a reader at `height`, which is not 0. Older readers may have
    /// to see a version that was deleted, and of which storage has kept nothing.
    pub const fn absent(height: u64) -> Known {
        let version = Version { block: height - 1, tx: u32::MAX };
        Known { pointer: Pointer::NULL, version, kind: Kind::Absent, bytes: 0 }
    }

    /// Whether a reader at this height sees it.
    #[inline]
    pub fn is_seen(&self, height: u64) -> bool {
        self.version.block < height
    }
}

/// A version with its value.
#[derive(Clone, Debug)]
pub struct Kept {
    pub version: Version,
    /// `None` for a deletion.
    pub value: Option<Bytes>,
    /// The version before it, in remote memory.
    pub prev: Pointer,
    /// Bytes that keeping it costs, besides the cache's own.
    pub bytes: usize,
}

impl Kept {
    /// From a record whose buffer has `bytes` bytes.
    pub fn of(record: Record, bytes: usize) -> Kept {
        Kept { version: record.version, prev: record.prev, value: record.into_value(), bytes }
    }

    pub fn into_versioned(self) -> Option<Versioned> {
        let version = self.version;
        self.value.map(|value| Versioned { value, version })
    }
}

/// What the caches say of a key at a height.
#[derive(Debug)]
pub enum Found {
    /// The answer.
    Answer(Option<Versioned>),
    /// The newest version, which is the one that is seen; its value is not here.
    Newest(Known),
    /// The newest version, which is too new to be seen.
    TooNew(Known),
    /// Nothing. Here is a token to learn something under.
    Nothing(Token),
}

#[derive(Default)]
struct Shard {
    metadata: Metadata,
    data: Data,
    doorkeeper: Doorkeeper,
    /// Hits that the events do not know of yet.
    metadata_hits: u64,
    data_hits: u64,
}

/// Hits are told to the events so many at a time: an event costs a good part of what a hit does.
const HITS_TOLD: u64 = 64;

impl Shard {
    #[inline]
    fn count_metadata_hit(&mut self) {
        self.metadata_hits += 1;
        if self.metadata_hits >= HITS_TOLD {
            self.tell_hits();
        }
    }

    #[inline]
    fn count_data_hit(&mut self) {
        self.data_hits += 1;
        if self.data_hits >= HITS_TOLD {
            self.tell_hits();
        }
    }

    #[cold]
    fn tell_hits(&mut self) {
        events::MetadataCacheHits.add(std::mem::take(&mut self.metadata_hits));
        events::DataCacheHits.add(std::mem::take(&mut self.data_hits));
    }
}

/// See [the module](self).
pub struct Caches {
    shards: Box<[Mutex<Shard>]>,
    tokens: Box<[AtomicU64]>,
    /// Tags of versions without a pointer.
    local: AtomicU64,
}

impl Caches {
    pub fn new(metadata_bytes: usize, data_bytes: usize) -> Caches {
        let shards = (metadata_bytes.min(data_bytes) / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX);
        let shards = 1 << shards.ilog2();
        let shard = || {
            let (metadata, data) = (Metadata::new(metadata_bytes / shards), Data::new(data_bytes / shards));
            let doorkeeper = Doorkeeper::new(metadata_bytes / shards / metadata::ENTRY_BYTES);
            Mutex::new(Shard { metadata, data, doorkeeper, ..Shard::default() })
        };
        Caches {
            shards: (0..shards).map(|_| shard()).collect(),
            tokens: (0..TOKENS).map(|_| AtomicU64::new(0)).collect(),
            local: AtomicU64::new(0),
        }
    }

    #[inline]
    fn shard(&self, hash: KeyHash) -> MutexGuard<'_, Shard> {
        // Bits that neither the table within a shard nor the index spends first.
        let at = (hash.0 >> 26) as usize & (self.shards.len() - 1);
        self.shards[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counter(&self, hash: KeyHash) -> &AtomicU64 {
        &self.tokens[(hash.0 >> 40) as usize % TOKENS]
    }

    /// Step 1 of learning.
    #[inline]
    pub fn token(&self, hash: KeyHash) -> Token {
        Token { count: self.counter(hash).load(Ordering::Acquire), worth: None }
    }

    /// Whether anything learnt under the token may still be used.
    pub fn is_alive(&self, hash: KeyHash, token: Token) -> bool {
        self.token(hash).count == token.count || mutant(Mutant::FillSurvives)
    }

    /// What is known of a key, with its value, at a height.
    #[inline]
    pub fn get(&self, hash: KeyHash, name: Name<'_>, height: u64) -> Found {
        let mut shard = self.shard(hash);
        let Some(entry) = shard.metadata.find(hash, name) else { return Found::Nothing(self.token(hash)) };
        let known = entry.known();
        if !known.is_seen(height) {
            return Found::TooNew(known);
        }
        let answer = match known.kind {
            Kind::Live => match entry.value() {
                Some(value) => Some(Versioned { value, version: known.version }),
                None => return Found::Newest(known),
            },
            Kind::Deleted | Kind::Absent => None,
        };
        shard.count_data_hit();
        Found::Answer(answer)
    }

    /// The version that is seen at a height, if the caches know.
    #[inline]
    pub fn version(&self, hash: KeyHash, name: Name<'_>, height: u64) -> Option<Option<Version>> {
        let mut shard = self.shard(hash);
        let entry = shard.metadata.find(hash, name)?;
        let known = entry.known();
        if !known.is_seen(height) {
            return None;
        }
        shard.count_metadata_hit();
        Some((known.kind == Kind::Live).then_some(known.version))
    }

    /// What is known of a key's newest version, and whether its value is here.
    pub fn newest(&self, hash: KeyHash, name: Name<'_>) -> Option<(Known, bool)> {
        let mut shard = self.shard(hash);
        shard.metadata.find(hash, name).map(|entry| (entry.known(), entry.has_value()))
    }

    /// The bytes of a version of a key with this hash.
    pub fn kept(&self, hash: KeyHash, pointer: Pointer) -> Option<Kept> {
        self.shard(hash).data.find(hash, Tag::of(pointer)).map(|slot| slot.kept())
    }

    /// Keeps the bytes of a version, whether it is the newest or not.
    pub fn keep(&self, hash: KeyHash, name: Name<'_>, pointer: Pointer, kept: Kept) {
        let mut shard = self.shard(hash);
        let Shard { metadata, data, .. } = &mut *shard;
        let tag = Tag::of(pointer);
        let at = data.put(hash, tag, kept, metadata);
        if let Some(owner) = metadata.place(hash, name) {
            data.hand_to(owner, at, tag, metadata);
        }
    }

    /// Finds out whether what a look-up may find is worth remembering: while its verbs are under way there is time for that.
    #[inline]
    pub fn weigh(&self, token: &mut Token, hash: KeyHash, name: Name<'_>) {
        token.worth = Some(weigh(&mut self.shard(hash), hash, name));
    }

    /// Step 3 of learning: what was found is the newest version of the key, unless the token died.
    pub fn learn(&self, token: Token, hash: KeyHash, name: Name<'_>, known: Known, kept: Option<&Kept>) {
        if !token.is_worth_learning() {
            return;
        }
        let mut shard = self.shard(hash);
        if !self.is_alive(hash, token) {
            return;
        }
        let worth = token.worth.unwrap_or_else(|| weigh(&mut shard, hash, name));
        if worth != Worth::Nothing {
            let has_room = |kept: &&Kept| worth == Worth::Others || shard.data.has_room(kept.bytes);
            let kept = kept.filter(has_room).cloned();
            self.put(&mut shard, hash, name, known, kept);
        }
    }

    /// Step 2: a block has written the key. What was learnt before is void.
    pub fn replace(&self, hash: KeyHash, name: Name<'_>, known: Known, kept: Option<Kept>) {
        let mut shard = self.shard(hash);
        self.counter(hash).fetch_add(1, Ordering::AcqRel);
        self.put(&mut shard, hash, name, known, kept);
    }

    /// The record that remote memory held of this key is gone from it; what was learnt before is void.
    pub fn detach(&self, hash: KeyHash, name: Name<'_>, pointer: Pointer) {
        let mut shard = self.shard(hash);
        self.counter(hash).fetch_add(1, Ordering::AcqRel);
        if shard.metadata.find(hash, name).is_some_and(|entry| entry.known().pointer == pointer) {
            shard.metadata.remove(hash, name);
        }
    }

    /// The record that remote memory held of this key was evicted from it: the version is still the newest, and its value is
    /// still good, but whoever learnt where it is has learnt nothing.
    pub fn evict(&self, hash: KeyHash, name: Name<'_>, pointer: Pointer) {
        let mut shard = self.shard(hash);
        if !mutant(Mutant::LearntOutlivesEviction) {
            self.counter(hash).fetch_add(1, Ordering::AcqRel);
        }
        shard.metadata.detach(hash, name, pointer);
    }

    /// Whether the data cache has the version at a pointer. Does not count as a use.
    pub fn has(&self, hash: KeyHash, pointer: Pointer) -> bool {
        self.shard(hash).data.has(hash, Tag::of(pointer))
    }

    /// Forgets every entry for whose pointer `gone` holds, and kills every token. Nobody finds such pointers elsewhere by now.
    pub fn forget(&self, gone: impl Fn(Pointer) -> bool) {
        // Whoever takes a token from now on does not find such pointers any more.
        self.tokens.iter().for_each(|token| {
            token.fetch_add(1, Ordering::AcqRel);
        });
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.metadata.retain(|known| known.pointer.is_null() || !gone(known.pointer));
        }
    }

    /// Where the newest versions are, as far as the caches know.
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

    fn put(&self, shard: &mut Shard, hash: KeyHash, name: Name<'_>, known: Known, kept: Option<Kept>) {
        let tag = match known.pointer.is_null() {
            true => Tag(Tag::LOCAL | self.local.fetch_add(1, Ordering::Relaxed)),
            false => Tag::of(known.pointer),
        };
        let Shard { metadata, data, .. } = shard;
        // The version before makes room, if it is here.
        if let Some(before) = metadata.find(hash, name).map(|entry| entry.tag())
            && before != tag
        {
            data.remove(hash, before, metadata);
        }
        let at = match kept {
            Some(kept) => data.put(hash, tag, kept, metadata),
            None => data.place(hash, tag),
        };
        if let Some(owner) = metadata.put(hash, name, known, tag) {
            data.hand_to(owner, at, tag, metadata);
        }
    }
}

fn weigh(shard: &mut Shard, hash: KeyHash, name: Name<'_>) -> Worth {
    if shard.doorkeeper.saw(hash) {
        Worth::Others
    } else if shard.metadata.has_room(name) || shard.metadata.place(hash, name).is_some() {
        Worth::Room
    } else {
        Worth::Nothing
    }
}

impl Drop for Caches {
    fn drop(&mut self) {
        for shard in &mut self.shards {
            shard.get_mut().unwrap_or_else(PoisonError::into_inner).tell_hits();
        }
        let (metadata, data) = self.bytes();
        events::MetadataCacheBytes.add(-(metadata as i64));
        events::DataCacheBytes.add(-(data as i64));
    }
}

#[cfg(test)]
mod tests;
