//! A table of the newest versions of recently used keys, in a fixed amount of memory.
//!
//! Nearly every read wants the newest row of a key. The engine must search all its runs for it, because the runs'
//! filters can answer only for exact row keys. This search costs several times as much as a lookup of an exact row key.
//! This table stores, for a key, the version of its newest row, or that the key has no row. With the version a read
//! looks up the exact row key.
//!
//! 1. A write enters the version of each row that it wrote, after the engine has taken the rows and before the
//!    savepoint moves. Rows may be written out of order: an entry with a newer version stays, and a late row of a key
//!    without an entry is not entered.
//! 2. A read that finds no entry notes the write count of the key's shard, searches the engine, and enters the result.
//!    If the shard was written meanwhile, the read does not enter the result.
//!
//! So an entry is never older than the engine's rows at the savepoint.
//!
//! An entry holds a 128-bit hash instead of the key. The hash is keyed with a secret of the process, so clients cannot
//! choose keys that collide. An entry has 40 bytes, and a bucket four entries; a full bucket replaces one of its
//! entries, round robin.

use std::sync::Mutex;

use base::{Version, rt};
use twox_hash::XxHash3_128;

use crate::lock;

const WAYS: usize = 4;
const ENTRY_BYTES: usize = size_of::<HintEntry>();
const _: () = assert!(ENTRY_BYTES == 40);
/// Locks over which entries are spread.
const SHARDS: usize = 512;

/// The newest row of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewestRow {
    /// The key has no row.
    Absent,
    /// It has this version; a deletion if not live.
    Row { version: Version, live: bool },
}

/// See the module.
pub struct NewestRowHints {
    seed: u64,
    shards: Vec<Mutex<HintShard>>,
}

struct HintShard {
    writes: u64,
    buckets: Vec<[HintEntry; WAYS]>,
    victim: usize,
}

/// 128 bits, in halves so that an entry needs no padding.
type Hash = [u64; 2];

#[derive(Clone, Copy)]
struct HintEntry {
    hash: Hash,
    /// `None` if the entry is unused.
    newest: Option<NewestRow>,
}

/// The outcome of a lookup.
pub enum HintLookup {
    Found(NewestRow),
    /// Nothing is known; the result of a search may be entered with this ticket.
    Miss(FillToken),
}

/// The state of a shard when a search began.
pub struct FillToken {
    hash: Hash,
    writes: u64,
}

impl NewestRowHints {
    /// A table that takes about `bytes` of memory; 0 switches it off.
    pub fn new(bytes: usize) -> NewestRowHints {
        let buckets = bytes / (ENTRY_BYTES * WAYS * SHARDS);
        let empty = HintEntry { hash: [0; 2], newest: None };
        let shard = |_| Mutex::new(HintShard { writes: 0, buckets: vec![[empty; WAYS]; buckets], victim: 0 });
        NewestRowHints { seed: rt::random_u64(), shards: (0..SHARDS).map(shard).collect() }
    }

    fn hash(&self, prefix: &[u8]) -> Hash {
        let hash = XxHash3_128::oneshot_with_seed(self.seed, prefix);
        [hash as u64, (hash >> 64) as u64]
    }

    fn shard(&self, hash: Hash) -> &Mutex<HintShard> {
        &self.shards[hash[1] as usize % SHARDS]
    }

    /// What the table knows of the newest row of a key.
    pub fn lookup(&self, prefix: &[u8]) -> HintLookup {
        let hash = self.hash(prefix);
        let shard = lock(self.shard(hash));
        match shard.known(hash) {
            Some(newest) => HintLookup::Found(newest),
            None => HintLookup::Miss(FillToken { hash, writes: shard.writes }),
        }
    }

    /// Enters the result of a search, unless a write has come between.
    pub fn found(&self, ticket: FillToken, newest: NewestRow) {
        let mut shard = lock(self.shard(ticket.hash));
        if shard.writes == ticket.writes {
            shard.enter(ticket.hash, newest);
        }
    }

    /// Enters a written row. `is_newest` if it is known to be the newest of its key; a row that was written late may not
    /// be, and is entered only if there is an entry to compare it with.
    pub fn wrote(&self, prefix: &[u8], version: Version, live: bool, is_newest: bool) {
        let hash = self.hash(prefix);
        let mut shard = lock(self.shard(hash));
        shard.writes += 1;
        let enter = match shard.known(hash) {
            Some(NewestRow::Row { version: known, .. }) => known <= version,
            Some(NewestRow::Absent) => true,
            None => is_newest,
        };
        if enter {
            shard.enter(hash, NewestRow::Row { version, live });
        }
    }

    /// Forgets a key, because rows of it are being removed.
    pub fn forget(&self, prefix: &[u8]) {
        let hash = self.hash(prefix);
        let mut shard = lock(self.shard(hash));
        shard.writes += 1;
        if let Some(bucket) = shard.bucket(hash) {
            for entry in &mut shard.buckets[bucket] {
                if entry.hash == hash {
                    entry.newest = None;
                }
            }
        }
    }
}

impl HintShard {
    fn bucket(&self, hash: Hash) -> Option<usize> {
        (!self.buckets.is_empty()).then(|| hash[0] as usize % self.buckets.len())
    }

    fn known(&self, hash: Hash) -> Option<NewestRow> {
        self.buckets[self.bucket(hash)?].iter().find(|entry| entry.hash == hash)?.newest
    }

    fn enter(&mut self, hash: Hash, newest: NewestRow) {
        let Some(bucket) = self.bucket(hash) else { return };
        let victim = self.victim;
        let entries = &mut self.buckets[bucket];
        let at = entries
            .iter()
            .position(|entry| entry.hash == hash)
            .or_else(|| entries.iter().position(|entry| entry.newest.is_none()))
            .unwrap_or(victim);
        entries[at] = HintEntry { hash, newest: Some(newest) };
        self.victim = (victim + 1) % WAYS;
    }
}
