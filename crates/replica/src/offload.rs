//! Decides which node of a peer verifies the signatures of a block, and which nodes the primary trusts.
//!
//! The caller, `validation::offload`, makes the checks and the messages that carry them; the steps are in its
//! head. This module decides in step 1 whether the primary offloads a part of a block, and to whom; in step 5, which
//! verdicts the primary checks itself; in step 6, that a follower that lied gets no more work.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::rt;

use crate::events;
use crate::followers::WorkPermit;
use crate::followers::work::WORK_ITEM_BYTES_MAX;
use crate::load::NodeLoad;

/// The followers that may do work for their primary.
pub trait WorkPlacement: Send + Sync {
    /// Their number.
    fn followers(&self) -> usize;

    /// A work permit at a follower whose load is at most `load_max` percent, and whose name `trusts` accepts
    /// ([`crate::followers::work`]); `None` if there is none.
    fn work_permit(&self, load_max: u8, trusts: &dyn Fn(&str) -> bool) -> Option<WorkPermit>;
}

/// How long the primary waits for the verdicts on a part of a block.
pub const OFFLOAD_TIMEOUT: Duration = Duration::from_millis(20);
/// How much longer for each transaction of the part: as long as a slow core takes for four signatures.
pub const OFFLOAD_TIMEOUT_PER_TRANSACTION: Duration = Duration::from_micros(500);
/// By how many percent a follower must be less loaded than its primary to count as the more idle one: sending a part
/// costs both of them something, and the loads were measured some time ago.
pub const IDLE_MARGIN_PERCENT: u32 = 20;

/// One in how many accepted verdicts is verified again, unless the operator configures another number.
pub const SPOT_CHECK_ONE_IN: u32 = 64;
/// The largest number of liars that are remembered: a peer has fewer other compute nodes, each with one name.
const LIARS_MAX: usize = 64;
/// At least one in each such group of consecutive accepted verdicts is verified again.
pub const SPOT_CHECK_GROUP: usize = 16;

/// When a primary offloads the verification of signatures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OffloadMode {
    /// Never: the primary verifies all signatures itself.
    Never,
    /// When a follower is more idle than the primary.
    #[default]
    Idle,
    /// Whenever there are followers, however busy; the primary keeps its share.
    Always,
}

/// How a compute node offloads verification and verifies for others, and how much it has done of both.
#[derive(Clone, Debug)]
pub struct OffloadConfig {
    /// When a primary offloads.
    pub mode: OffloadMode,
    /// The primary verifies one in this many of the transactions that a follower called valid, besides one in
    /// [`SPOT_CHECK_GROUP`].
    /// The value 1 means all of them.
    pub spot_check_one_in: u32,
    /// This node's own load.
    pub load: NodeLoad,
    /// Where the results are counted; clones of the settings share it.
    pub counts: Arc<OffloadCounts>,
}

impl Default for OffloadConfig {
    fn default() -> OffloadConfig {
        let (mode, load, counts) = Default::default();
        OffloadConfig { mode, spot_check_one_in: SPOT_CHECK_ONE_IN, load, counts }
    }
}

/// The results of offloading since the node was started, counted in transactions.
#[derive(Default, Debug)]
pub struct OffloadCounts {
    offloaded: AtomicU64,
    verified_for_others: AtomicU64,
    parts: AtomicU64,
    parts_offloaded: AtomicU64,
    liars: Mutex<BTreeSet<Arc<str>>>,
}

impl OffloadCounts {
    /// Transactions whose signatures others have verified for this node.
    pub fn offloaded(&self) -> u64 {
        self.offloaded.load(Ordering::Relaxed)
    }

    /// Parts of blocks, most of them whole blocks, of which others have sent the verdicts to this node.
    pub fn parts_offloaded(&self) -> u64 {
        self.parts_offloaded.load(Ordering::Relaxed)
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
        self.parts_offloaded.fetch_add(1, Ordering::Relaxed);
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

impl OffloadConfig {
    /// Step 1: a permit to send a part of a block to a follower; `None` if the primary keeps the part.
    pub fn reserve(&self, followers: &dyn WorkPlacement, part_bytes: usize) -> Option<WorkPermit> {
        let count = followers.followers();
        if self.mode == OffloadMode::Never || count == 0 || part_bytes > WORK_ITEM_BYTES_MAX {
            return None;
        }
        let load_max = self.load_limit(count)?;
        let permit = followers.work_permit(load_max, &|name| self.counts.trusts(name))?;
        (self.mode == OffloadMode::Always || self.is_more_idle(&permit)).then_some(permit)
    }

    /// The load that a follower may have reported; `None` if no follower is to be asked.
    fn load_limit(&self, followers: usize) -> Option<u8> {
        match self.mode {
            OffloadMode::Never => None,
            OffloadMode::Idle => self.load.percent().checked_sub(IDLE_MARGIN_PERCENT as u8),
            OffloadMode::Always => {
                let turn = self.counts.parts.fetch_add(1, Ordering::Relaxed) % (followers as u64 + 1);
                (turn > 0).then_some(100)
            }
        }
    }

    /// Whether a follower, with what it has in flight, is more idle than this node. One that runs on the same processors
    /// never is: their loads were only measured at different moments.
    fn is_more_idle(&self, permit: &WorkPermit) -> bool {
        self.has_margin(permit.load()) && !self.load.shares_with(permit.processors())
    }

    fn has_margin(&self, load: u32) -> bool {
        load + IDLE_MARGIN_PERCENT <= u32::from(self.load.percent())
    }

    /// Step 5: which of these verdicts the primary checks itself, each given as whether it says "valid".
    pub fn choose_doubted(&self, are_valid: impl ExactSizeIterator<Item = bool>) -> Vec<bool> {
        let (mut chosen, count) = (0, are_valid.len());
        let is_doubted = |(index, is_valid): (usize, bool)| {
            let place = (index % SPOT_CHECK_GROUP) as u64;
            if place == 0 {
                chosen = rt::random_below((count - index).min(SPOT_CHECK_GROUP) as u64);
            }
            let by_chance = place == chosen || rt::random_below(u64::from(self.spot_check_one_in.max(1))) == 0;
            (!is_valid || by_chance) && !rt::fault_point("chain.offload.mutant.believed")
        };
        are_valid.enumerate().map(is_doubted).collect()
    }
}

#[cfg(test)]
mod tests {
    use base::rt::production;

    use super::*;
    use crate::load::LoadMeter;

    fn config(mode: OffloadMode, percent: u8) -> OffloadConfig {
        OffloadConfig { mode, load: NodeLoad::new(LoadMeter::new(move || percent), ""), ..OffloadConfig::default() }
    }

    #[test]
    fn a_part_goes_to_a_follower_only_if_it_is_more_idle_or_all_have_their_share() {
        let turns = |mode, percent, followers| {
            let config = config(mode, percent);
            (0..6).filter_map(|_| config.load_limit(followers)).collect::<Vec<u8>>()
        };
        assert!(turns(OffloadMode::Never, 100, 2).is_empty());
        assert_eq!(turns(OffloadMode::Always, 0, 2), [100; 4], "every third is the primary's own");
        assert_eq!(turns(OffloadMode::Always, 0, 1), [100; 3], "every second is");
        assert_eq!(turns(OffloadMode::Idle, 90, 1), [70; 6]);
        assert!(turns(OffloadMode::Idle, 19, 1).is_empty(), "nobody is more idle");
        let busy = config(OffloadMode::Idle, 80);
        assert!(busy.has_margin(60) && !busy.has_margin(61), "what is in flight counts");
        let unmeasured = OffloadConfig::default();
        assert!(!unmeasured.has_margin(crate::load::UNKNOWN_PERCENT.into()), "nothing is known of either");
    }

    #[test]
    fn one_verdict_of_each_group_is_verified_again_and_every_bad_one() {
        production::run(async {
            let config = OffloadConfig { spot_check_one_in: u32::MAX, ..OffloadConfig::default() };
            for count in [1, 15, 16, 17, 200] {
                let doubted = config.choose_doubted(vec![true; count].into_iter());
                for group in doubted.chunks(SPOT_CHECK_GROUP) {
                    assert!(group.contains(&true), "{count}");
                }
                assert!(doubted.iter().filter(|doubted| **doubted).count() <= count.div_ceil(SPOT_CHECK_GROUP) + 1);
            }
            let verdicts: Vec<bool> = (0..64).map(|index| index % 3 != 0).collect();
            let doubted = config.choose_doubted(verdicts.iter().copied());
            assert!(verdicts.iter().zip(doubted).all(|(is_valid, doubted)| *is_valid || doubted));
        });
    }
}
