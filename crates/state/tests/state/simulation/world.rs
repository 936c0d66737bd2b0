//! The world of a simulation: the blocks that were made, which are what every reader must find, and the store.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use base::rt::simulation::Prng;
use base::{Bytes, ErrorKind, Version};
use state::{DisaggregatedConfig, Error, Snapshot, UpdateBatch};
use storage::MemoryStateStore;

use crate::support::{Donors, rows};

pub const NAMESPACE: &str = "cc";

/// The blocks, and the nodes that make them.
pub struct World {
    pub donors: Donors,
    pub store: MemoryStateStore,
    pub keys: u64,
    pub value_bytes: u64,
    pub budget_bytes: u64,
    pub settings: DisaggregatedConfig,
    pub ledger: Mutex<Ledger>,
    /// The epoch of the primary from which storage accepts blocks.
    pub epoch: AtomicU64,
    /// The greatest height that any primary has shown.
    pub shown: AtomicU64,
    /// The node on which the primary of each epoch runs.
    pub seats: Mutex<BTreeMap<u64, String>>,
    /// Followers that have not yet read everything at the end.
    pub readers: AtomicU64,
    pub reads: AtomicU64,
    /// The primary is to give most of its memory back.
    pub shrinks: AtomicBool,
    /// One of this many primaries does not adopt the memory of the last one.
    pub opens_one_in: u64,
    /// Whether there are followers for sure.
    pub is_followed: bool,
    /// Whether the budget changes now and then.
    pub is_resized: bool,
    /// After one of this many blocks the primary vacates a memory node, or uses it again.
    pub vacates_one_in: u64,
    /// It vacates the memory node with the most sections, again and again.
    pub vacates_fullest: bool,
}

#[derive(Default)]
pub struct Ledger {
    pub blocks: Vec<UpdateBatch>,
    /// The live records after each block.
    pub after: Vec<Arc<BTreeMap<String, (Bytes, Version)>>>,
    /// The epoch of the primary that made each block. Storage rejects the block from any earlier primary.
    pub epochs: Vec<u64>,
}

impl World {
    pub fn ledger(&self) -> std::sync::MutexGuard<'_, Ledger> {
        self.ledger.lock().expect("nobody panics with it")
    }

    /// The node of the newest primary.
    pub fn seat(&self) -> String {
        let epoch = self.epoch.load(Ordering::Acquire);
        self.seats.lock().expect("nobody panics with it")[&epoch].clone()
    }

    pub fn key(&self, rng: &mut Prng) -> String {
        // Half of the accesses go to a few keys.
        let number = if rng.one_in(2) { rng.below(4) } else { rng.below(self.keys) };
        format!("k{number:03}")
    }

    /// Makes a durable block, if this primary may still make one.
    pub fn make_block(&self, epoch: u64, rng: &mut Prng) -> bool {
        if self.epoch.load(Ordering::Acquire) != epoch {
            return false;
        }
        let mut ledger = self.ledger();
        let number = ledger.blocks.len() as u64;
        let mut batch = UpdateBatch::default();
        let mut after = ledger.after.last().map(|live| BTreeMap::clone(live)).unwrap_or_default();
        let namespace: Arc<str> = NAMESPACE.into();
        let writes = if number == 0 && self.keys > 100 {
            2 * self.keys
        } else if rng.one_in(12) {
            rng.below(self.keys)
        } else {
            rng.below(8)
        };
        for tx in 0..writes as u32 {
            let key = self.key(rng);
            let version = Version { block: number, tx };
            let value = (!rng.one_in(5)).then(|| {
                let mut value = format!("{key}@{version}").into_bytes();
                value.resize(value.len() + rng.below(self.value_bytes) as usize, tx as u8);
                Bytes::from(value)
            });
            batch.put(&namespace, key.as_str().into(), value.clone(), version);
            match value {
                Some(value) => after.insert(key, (value, version)),
                None => after.remove(&key),
            };
        }
        self.store.add_block(rows(&batch));
        ledger.blocks.push(batch);
        ledger.after.push(Arc::new(after));
        ledger.epochs.push(epoch);
        true
    }

    pub fn expected(&self, height: u64) -> Arc<BTreeMap<String, (Bytes, Version)>> {
        height.checked_sub(1).map_or_else(Arc::default, |last| self.ledger().after[last as usize].clone())
    }

    /// Check 1, for one read or range. False when the snapshot can no longer be used.
    pub async fn check_one(&self, snapshot: &dyn Snapshot, rng: &mut Prng) -> bool {
        let height = snapshot.height();
        let expected = self.expected(height);
        self.reads.fetch_add(1, Ordering::Relaxed);
        // The first blocks are those that write to an empty namespace.
        if height <= 3 && matches!(snapshot.may_have_rows(NAMESPACE).await, Ok(false)) {
            assert!(expected.is_empty(), "rows at height {height}");
        }
        let outcome = match rng.below(8) {
            0 => {
                let (start, end) = (self.key(rng), self.key(rng));
                let limit = rng.below(12) as usize;
                snapshot.range(NAMESPACE, &start, &end, limit).await.map(|page| {
                    let found: Vec<_> = page
                        .entries
                        .into_iter()
                        .map(|entry| (entry.key.to_string(), (entry.versioned.value, entry.versioned.version)))
                        .collect();
                    let within = expected.iter().filter(|(key, _)| **key >= start && **key < end);
                    let wanted: Vec<_> =
                        within.take(limit).map(|(key, record)| (key.clone(), record.clone())).collect();
                    assert_eq!(found, wanted, "{start}..{end} limit {limit} at height {height}");
                })
            }
            1 | 2 => {
                let keys: Vec<String> = (0..rng.below(6)).map(|_| self.key(rng)).collect();
                let names: Vec<(&str, &str)> = keys.iter().map(|key| (NAMESPACE, key.as_str())).collect();
                snapshot.versions(&names).await.map(|versions| {
                    for (key, version) in keys.iter().zip(versions) {
                        assert_eq!(version, expected.get(key).map(|(_, version)| *version), "{key} at height {height}");
                    }
                })
            }
            _ => {
                let key = self.key(rng);
                snapshot.get(NAMESPACE, &key).await.map(|found| {
                    let found = found.map(|found| (found.value, found.version));
                    assert_eq!(found, expected.get(&key).cloned(), "{key} at height {height}");
                })
            }
        };
        match outcome {
            Ok(()) => true,
            Err(Error::Busy) => true,
            Err(error) => {
                let kinds = [ErrorKind::Retry, ErrorKind::Fenced];
                assert!(kinds.contains(&error.kind()), "at height {height}: {error}");
                false
            }
        }
    }
}
