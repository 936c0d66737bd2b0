//! The newest versions of recently used keys, in a fixed amount of memory.
//!
//! The engine finds the newest row of a key by a search over all its runs, which costs several times a lookup of a row
//! whose exact key is known, because only exact keys can be answered by the runs' filters. Nearly every read wants the
//! newest row. This table remembers its version, or that there is none:
//!
//! 1. A write enters the version of each row it wrote, after the engine has taken the rows and before the savepoint
//!    moves. The newer version wins, so rows written out of order are harmless.
//! 2. A read that finds no entry takes the shard's write count, searches the engine and enters what it found, unless the
//!    shard has been written meanwhile.
//!
//! So an entry is never older than what the engine holds at the savepoint. Entries are found by a 128-bit hash with a
//! key of the process, which stands for the key itself: clients cannot choose keys that collide.
//! An entry is 40 bytes, four to a bucket; a full bucket forgets one of its entries, round robin.

use std::sync::Mutex;

use base::{Version, rt};
use twox_hash::XxHash3_128;

use crate::lock;

const WAYS: usize = 4;
const ENTRY_BYTES: usize = size_of::<Entry>();
const _: () = assert!(ENTRY_BYTES == 40);
/// Locks that entries are spread over.
const SHARDS: usize = 512;

/// The newest row of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Newest {
    /// The key has no row.
    Absent,
    /// It has this version, which is a deletion if not live.
    Row { version: Version, live: bool },
}

/// See the module.
pub struct Hints {
    seed: u64,
    shards: Vec<Mutex<Shard>>,
}

struct Shard {
    writes: u64,
    buckets: Vec<[Entry; WAYS]>,
    victim: usize,
}

/// 128 bits, in halves so that an entry needs no padding.
type Hash = [u64; 2];

#[derive(Clone, Copy)]
struct Entry {
    hash: Hash,
    /// `None` where the entry is unused.
    newest: Option<Newest>,
}

/// What a lookup came to.
pub enum Lookup {
    Found(Newest),
    /// Nothing is known; what a search finds may be entered with this ticket.
    Unknown(Ticket),
}

/// The state of a shard when a search began.
pub struct Ticket {
    hash: Hash,
    writes: u64,
}

impl Hints {
    /// A table that takes about `bytes` of memory; 0 switches it off.
    pub fn new(bytes: usize) -> Hints {
        let buckets = bytes / (ENTRY_BYTES * WAYS * SHARDS);
        let empty = Entry { hash: [0; 2], newest: None };
        let shard = |_| Mutex::new(Shard { writes: 0, buckets: vec![[empty; WAYS]; buckets], victim: 0 });
        Hints { seed: rt::random_u64(), shards: (0..SHARDS).map(shard).collect() }
    }

    fn hash(&self, prefix: &[u8]) -> Hash {
        let hash = XxHash3_128::oneshot_with_seed(self.seed, prefix);
        [hash as u64, (hash >> 64) as u64]
    }

    fn shard(&self, hash: Hash) -> &Mutex<Shard> {
        &self.shards[hash[1] as usize % SHARDS]
    }

    /// What is known of the newest row of a key.
    pub fn lookup(&self, prefix: &[u8]) -> Lookup {
        let hash = self.hash(prefix);
        let shard = lock(self.shard(hash));
        match shard.known(hash) {
            Some(newest) => Lookup::Found(newest),
            None => Lookup::Unknown(Ticket { hash, writes: shard.writes }),
        }
    }

    /// Enters what a search found, unless a write has come between.
    pub fn found(&self, ticket: Ticket, newest: Newest) {
        let mut shard = lock(self.shard(ticket.hash));
        if shard.writes == ticket.writes {
            shard.enter(ticket.hash, newest);
        }
    }

    /// Enters a row that was written. `is_newest` when it is known to be the newest of its key; a row that was written late
    /// may not be, and is entered only where it can be compared.
    pub fn wrote(&self, prefix: &[u8], version: Version, live: bool, is_newest: bool) {
        let hash = self.hash(prefix);
        let mut shard = lock(self.shard(hash));
        shard.writes += 1;
        let enter = match shard.known(hash) {
            Some(Newest::Row { version: known, .. }) => known <= version,
            Some(Newest::Absent) => true,
            None => is_newest,
        };
        if enter {
            shard.enter(hash, Newest::Row { version, live });
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

impl Shard {
    fn bucket(&self, hash: Hash) -> Option<usize> {
        (!self.buckets.is_empty()).then(|| hash[0] as usize % self.buckets.len())
    }

    fn known(&self, hash: Hash) -> Option<Newest> {
        self.buckets[self.bucket(hash)?].iter().find(|entry| entry.hash == hash)?.newest
    }

    fn enter(&mut self, hash: Hash, newest: Newest) {
        let Some(bucket) = self.bucket(hash) else { return };
        let victim = self.victim;
        let entries = &mut self.buckets[bucket];
        let at = entries
            .iter()
            .position(|entry| entry.hash == hash)
            .or_else(|| entries.iter().position(|entry| entry.newest.is_none()))
            .unwrap_or(victim);
        entries[at] = Entry { hash, newest: Some(newest) };
        self.victim = (victim + 1) % WAYS;
    }
}
