//! Decides which signature checks of a block a primary offloads to its followers, and which followers it trusts.
//!
//! The caller, `validation::offload`, makes the checks and the messages that carry them; the steps are in its
//! head. This module decides in step 1 whether the primary offloads a chunk, and how busy the follower that gets it may
//! be; in step 5, which verdicts the primary checks itself; in step 6, that a follower that lied gets no more work.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::rt;

use crate::events;
use crate::followers::WorkPermit;
use crate::followers::work::WORK_ITEM_BYTES_MAX;

/// The followers that may do work for their primary.
pub trait WorkPlacement: Send + Sync {
    /// Their number.
    fn followers(&self) -> usize;

    /// A work permit at a follower whose load is at most `load_max` percent, and whose name `trusts` accepts
    /// ([`crate::followers::work`]); `None` if there is none.
    fn work_permit(&self, load_max: u8, trusts: &dyn Fn(&str) -> bool) -> Option<WorkPermit>;
}

/// How long the primary waits for the verdicts on a chunk.
pub const OFFLOAD_TIMEOUT: Duration = Duration::from_millis(20);
/// How busy a primary's cores must be before it offloads to idle followers.
pub const BUSY_PERCENT: u8 = 70;
/// How busy a follower's cores may be if only idle followers are asked.
pub const IDLE_PERCENT: u8 = 50;

/// One in how many accepted verdicts is verified again, unless the operator configures another number.
pub const SPOT_CHECK_ONE_IN: u32 = 64;
/// The largest number of liars that are remembered: a peer has fewer other compute nodes, each with one name.
const LIARS_MAX: usize = 64;

/// When a primary offloads the verification of signatures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OffloadMode {
    /// Never: the primary verifies all signatures itself.
    Never,
    /// When the primary is busy and a follower is idle.
    #[default]
    Idle,
    /// Whenever there are followers, however busy.
    Always,
}

/// Measures how busy this node's cores are, in percent.
#[derive(Clone)]
pub struct LoadMeter(Arc<dyn Fn() -> u8 + Send + Sync>);

impl LoadMeter {
    /// A meter that calls this function, often and from any task.
    pub fn new(percent: impl Fn() -> u8 + Send + Sync + 'static) -> LoadMeter {
        LoadMeter(Arc::new(percent))
    }

    /// The load, 100 at most.
    pub fn percent(&self) -> u8 {
        (self.0)().min(100)
    }
}

impl Default for LoadMeter {
    /// The load of a node without a measurement: it neither offers nor needs help.
    fn default() -> LoadMeter {
        LoadMeter::new(|| BUSY_PERCENT - 1)
    }
}

impl fmt::Debug for LoadMeter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meter")
    }
}

/// How a compute node offloads verification and verifies for others, and how much it has done of both.
#[derive(Clone, Debug)]
pub struct OffloadConfig {
    /// When a primary offloads.
    pub mode: OffloadMode,
    /// The primary verifies one in this many of the transactions that a follower called valid, besides one per chunk.
    /// The value 1 means all of them.
    pub spot_check_one_in: u32,
    /// Measures this node's own cores.
    pub meter: LoadMeter,
    /// Where the results are counted; clones of the settings share it.
    pub counts: Arc<OffloadCounts>,
}

impl Default for OffloadConfig {
    fn default() -> OffloadConfig {
        let (when, meter, counts) = Default::default();
        OffloadConfig { mode: when, spot_check_one_in: SPOT_CHECK_ONE_IN, meter, counts }
    }
}

/// The results of offloading since the node was started, counted in transactions.
#[derive(Default, Debug)]
pub struct OffloadCounts {
    offloaded: AtomicU64,
    verified_for_others: AtomicU64,
    chunks: AtomicU64,
    liars: Mutex<BTreeSet<Arc<str>>>,
}

impl OffloadCounts {
    /// Transactions whose signatures others have verified for this node.
    pub fn offloaded(&self) -> u64 {
        self.offloaded.load(Ordering::Relaxed)
    }

    /// Transactions whose signatures this node has verified for others.
    pub fn verified_for_others(&self) -> u64 {
        self.verified_for_others.load(Ordering::Relaxed)
    }

    /// The other nodes that were found to lie about signatures.
    pub fn liars(&self) -> Vec<Arc<str>> {
        self.liars_lock().iter().cloned().collect()
    }

    /// Whether a follower may be asked: it was not found to lie.
    pub fn trusts(&self, follower: &str) -> bool {
        let liars = self.liars_lock();
        liars.len() < LIARS_MAX && !liars.contains(follower)
    }

    /// Counts transactions whose signatures a follower has verified for this node.
    pub fn add_offloaded(&self, transactions: u64) {
        self.offloaded.fetch_add(transactions, Ordering::Relaxed);
    }

    /// Counts transactions whose signatures this node has verified for its primary.
    pub fn add_verified_for_others(&self, transactions: u64) {
        self.verified_for_others.fetch_add(transactions, Ordering::Relaxed);
    }

    /// Step 6: gives a follower that lied no more work until this process ends.
    pub fn distrust(&self, follower: &Arc<str>) {
        events::FollowersDistrusted.add(1);
        self.liars_lock().insert(Arc::clone(follower));
    }

    fn liars_lock(&self) -> MutexGuard<'_, BTreeSet<Arc<str>>> {
        self.liars.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const _: () = assert!(IDLE_PERCENT < BUSY_PERCENT);

impl OffloadConfig {
    /// Step 1: a permit to send a chunk of this length to a follower; `None` if the primary keeps the chunk.
    pub fn reserve(&self, followers: &dyn WorkPlacement, chunk_bytes: impl FnOnce() -> usize) -> Option<WorkPermit> {
        match (self.mode, followers.followers()) {
            (OffloadMode::Never, _) | (_, 0) => None,
            (_, count) => {
                let load_max = self.load_limit(count, chunk_bytes())?;
                followers.work_permit(load_max, &|name| self.counts.trusts(name))
            }
        }
    }

    /// How busy a follower may be that is asked to verify a chunk of `chunk_bytes`; `None` if no follower is to be
    /// asked.
    fn load_limit(&self, followers: usize, chunk_bytes: usize) -> Option<u8> {
        if chunk_bytes > WORK_ITEM_BYTES_MAX {
            return None;
        }
        let load_max = match self.mode {
            OffloadMode::Never => return None,
            OffloadMode::Idle if self.meter.percent() < BUSY_PERCENT => return None,
            OffloadMode::Idle => IDLE_PERCENT,
            OffloadMode::Always => 100,
        };
        let turn = self.counts.chunks.fetch_add(1, Ordering::Relaxed) % (followers as u64 + 1);
        (turn > 0).then_some(load_max)
    }

    /// Step 5: which of these verdicts the primary checks itself, each given as whether it says "valid".
    pub fn choose_doubted(&self, are_valid: impl ExactSizeIterator<Item = bool>) -> Vec<bool> {
        let chosen = rt::random_below(are_valid.len().max(1) as u64);
        let is_doubted = |(index, is_valid): (u64, bool)| {
            let by_chance = index == chosen || rt::random_below(u64::from(self.spot_check_one_in.max(1))) == 0;
            (!is_valid || by_chance) && !rt::fault_point("chain.offload.mutant.believed")
        };
        (0..).zip(are_valid).map(is_doubted).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_primary_asks_when_it_is_to_and_keeps_its_share() {
        let asked = |when, percent, readers, bytes| {
            let borrowing =
                OffloadConfig { mode: when, meter: LoadMeter::new(move || percent), ..OffloadConfig::default() };
            let turns: Vec<_> = (0..6).map(|_| borrowing.load_limit(readers, bytes)).collect();
            let load_max = turns.iter().flatten().next().copied();
            (load_max, turns.iter().flatten().count())
        };
        assert_eq!(asked(OffloadMode::Never, 100, 2, 100), (None, 0));
        assert_eq!(asked(OffloadMode::Always, 0, 2, 100), (Some(100), 4), "every third is its own");
        assert_eq!(asked(OffloadMode::Always, 0, 1, 100), (Some(100), 3), "every second is");
        assert_eq!(asked(OffloadMode::Always, 0, 1, WORK_ITEM_BYTES_MAX + 1), (None, 0), "it is too large");
        assert_eq!(asked(OffloadMode::Idle, BUSY_PERCENT, 1, 100), (Some(IDLE_PERCENT), 3));
        assert_eq!(asked(OffloadMode::Idle, BUSY_PERCENT - 1, 1, 100), (None, 0), "it has time itself");
        let unknown = OffloadConfig::default();
        assert_eq!(unknown.load_limit(3, 100), None, "nothing is known of its load");
        assert!(unknown.meter.percent() > IDLE_PERCENT, "nor is it asked");
    }
}
