//! A bounded cache of validated identities.
//!
//! The cache is a table of fixed size. It consists of shards, so that threads seldom contend for a lock, and a shard
//! consists of buckets of [`WAYS`] entries. A look-up hashes the whole key, finds one bucket under a shared lock and
//! compares all bytes of the key. A hit allocates nothing and changes at most one flag. A full bucket evicts by second
//! chance: the search for a victim clears the hit flag of each entry that it passes, and takes the first entry whose
//! flag is clear. [`crate::manager`] decides what the keys are and what is cached.
//!
//! Invariants: an entry depends on its key alone, so a hit and a miss give the same answer. A key or an identity larger
//! than [`REMEMBERED_BYTES_MAX`] is not cached, so memory is bounded. A shard allocates its buckets with its first
//! entry, since a configuration may define many organisations whose members never appear.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, RwLock};

use base::collections::Hashing;
use bytes::Bytes;

use crate::identity::Identity;

/// How many entries a bucket has.
const WAYS: usize = 4;
/// How many shards the table has, each with its own lock.
const SHARDS: usize = 16;
/// The default number of identities that a cache holds.
pub(crate) const ENTRIES_DEFAULT: usize = 4096;
/// The largest serialized identity that is remembered, in bytes.
pub(crate) const REMEMBERED_BYTES_MAX: usize = 8 * 1024;

#[derive(Debug)]
pub(crate) struct IdentityCache {
    hashing: Hashing,
    /// Made with the first insertion.
    shards: OnceLock<Box<[RwLock<CacheShard>]>>,
    buckets_per_shard: usize,
}

#[derive(Debug)]
struct CacheShard {
    buckets: Vec<CacheBucket>,
}

#[derive(Default, Debug)]
struct CacheBucket {
    entries: [Option<CacheEntry>; WAYS],
    /// Where the search for an entry to give up begins.
    hand: u8,
}

#[derive(Debug)]
struct CacheEntry {
    hash: u64,
    key: Bytes,
    identity: Arc<Identity>,
    was_hit: AtomicBool,
}

impl IdentityCache {
    /// A cache of at least `entries` identities, rounded up to whole buckets in every shard.
    pub(crate) fn new(entries: usize) -> IdentityCache {
        let buckets_per_shard = entries.div_ceil(SHARDS * WAYS).max(1);
        IdentityCache { hashing: Hashing::default(), shards: OnceLock::new(), buckets_per_shard }
    }

    fn shards(&self) -> &[RwLock<CacheShard>] {
        self.shards.get_or_init(|| (0..SHARDS).map(|_| RwLock::new(CacheShard { buckets: Vec::new() })).collect())
    }

    /// The identity under this key, if it is remembered.
    pub(crate) fn get(&self, key: &[u8]) -> Option<Arc<Identity>> {
        let hash = self.hashing.hash_one(key);
        let (shard, bucket) = self.locate(hash);
        let shard = self.shards.get()?[shard].read().expect("no code panics while it holds the lock");
        let entry = shard.buckets.get(bucket)?.find(hash, key)?;
        if !entry.was_hit.load(Ordering::Relaxed) {
            entry.was_hit.store(true, Ordering::Relaxed);
        }
        Some(entry.identity.clone())
    }

    /// Remembers an identity. The key has bytes of its own, so that no larger buffer is kept alive.
    pub(crate) fn insert(&self, key: Bytes, identity: &Arc<Identity>) {
        if key.len().max(identity.serialized().len()) > REMEMBERED_BYTES_MAX {
            return;
        }
        let hash = self.hashing.hash_one(&key[..]);
        let (shard, bucket) = self.locate(hash);
        let mut shard = self.shards()[shard].write().expect("no code panics while it holds the lock");
        if shard.buckets.is_empty() {
            shard.buckets.resize_with(self.buckets_per_shard, CacheBucket::default);
        }
        let bucket = &mut shard.buckets[bucket];
        if bucket.find(hash, &key).is_none() {
            let way = bucket.way_to_fill();
            let was_hit = AtomicBool::new(false);
            bucket.entries[way] = Some(CacheEntry { hash, key, identity: identity.clone(), was_hit });
        }
    }

    /// How many identities are remembered.
    pub(crate) fn len(&self) -> usize {
        let count = |shard: &RwLock<CacheShard>| {
            let shard = shard.read().expect("no code panics while it holds the lock");
            shard.buckets.iter().map(|bucket| bucket.entries.iter().flatten().count()).sum::<usize>()
        };
        self.shards.get().map_or(0, |shards| shards.iter().map(count).sum())
    }

    fn locate(&self, hash: u64) -> (usize, usize) {
        let shard = hash as usize % SHARDS;
        let bucket = (hash >> 32) as usize % self.buckets_per_shard;
        (shard, bucket)
    }
}

impl CacheBucket {
    fn find(&self, hash: u64, key: &[u8]) -> Option<&CacheEntry> {
        self.entries.iter().flatten().find(|entry| entry.hash == hash && entry.key == key)
    }

    fn way_to_fill(&mut self) -> usize {
        if let Some(empty) = self.entries.iter().position(Option::is_none) {
            return empty;
        }
        // Twice around ends the search: the first round takes every entry's second chance away.
        for _ in 0..2 * WAYS {
            let way = usize::from(self.hand) % WAYS;
            self.hand = self.hand.wrapping_add(1);
            let entry = self.entries[way].as_ref().expect("the bucket is full");
            if !entry.was_hit.swap(false, Ordering::Relaxed) {
                return way;
            }
        }
        usize::from(self.hand) % WAYS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::issue::{CertificateTerms, IssuingOrganization};
    use crate::principal::MemberRole;

    fn identities(count: usize) -> Vec<Arc<Identity>> {
        let organization =
            IssuingOrganization::create("A", "a.example.com", &CertificateTerms::seeded([1; 32])).expect("founded");
        let msp = organization.membership().expect("valid");
        let identify = |i: usize| {
            let signer = organization.issue(MemberRole::Client, &format!("u{i}")).expect("issued");
            Arc::new(msp.identify(signer.serialized()).expect("valid"))
        };
        (0..count).map(identify).collect()
    }

    fn insert(cache: &IdentityCache, identity: &Arc<Identity>) {
        cache.insert(identity.serialized().clone(), identity);
    }

    #[test]
    fn it_holds_no_more_than_it_was_made_for() {
        let cache = IdentityCache::new(SHARDS * WAYS);
        let identities = identities(3 * SHARDS * WAYS);
        for identity in &identities {
            insert(&cache, identity);
            insert(&cache, identity);
            let found = cache.get(identity.serialized()).expect("just remembered");
            assert!(Arc::ptr_eq(&found, identity));
        }
        assert!(cache.len() <= SHARDS * WAYS);
        // Whatever is still there is the right one.
        let remembered = identities
            .iter()
            .filter(|identity| cache.get(identity.serialized()).is_some_and(|found| Arc::ptr_eq(&found, identity)));
        assert_eq!(remembered.count(), cache.len());
    }

    #[test]
    fn what_is_in_use_outlives_what_passes_by() {
        let cache = IdentityCache::new(1);
        let identities = identities(400);
        let (regular, passers_by) = identities.split_first().expect("many");
        insert(&cache, regular);
        for passer_by in passers_by {
            assert!(cache.get(regular.serialized()).is_some());
            insert(&cache, passer_by);
        }
        assert!(cache.get(regular.serialized()).is_some());
        assert!(cache.len() <= SHARDS * WAYS);
    }

    #[test]
    fn prefixes_and_extensions_of_a_remembered_identity_are_not_it() {
        let cache = IdentityCache::new(64);
        let identity = identities(1).remove(0);
        insert(&cache, &identity);
        let bytes = identity.serialized();
        assert!(cache.get(&bytes[..bytes.len() - 1]).is_none());
        assert!(cache.get(&[&bytes[..], &[0]].concat()).is_none());
        assert!(cache.get(b"").is_none());
    }
}
