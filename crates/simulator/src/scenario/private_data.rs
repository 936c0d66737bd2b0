//! Whether a seed has private data, how they are distributed, and when they expire.

use base::rt::simulation::Prng;

use crate::coverage::PRIVATE_FAULT_POINTS;
use crate::mutant::Mutant;

/// In one of this many seeds there are no private data.
const WITHOUT_ONE_IN: u64 = 3;
/// The peers that must acknowledge a set, and the peers that get it.
const PEER_COUNTS: [(usize, usize); 3] = [(0, 0), (0, 2), (1, 2)];
/// The numbers of blocks after which private data expire; 0 for never.
const BLOCKS_TO_LIVE: [u64; 4] = [0, 3, 0, 20];
/// The number for planted mistakes in the expiry.
const MUTANT_BLOCKS_TO_LIVE: u64 = 3;

/// How endorsers distribute private data.
#[derive(Clone, Debug)]
pub struct PrivateDataConfig {
    /// The number of other peers that must have acknowledged a set before its transaction is endorsed.
    pub required_peers: usize,
    /// The number of other peers to which an endorser sends a set.
    pub max_peers: usize,
    /// The number of blocks after which a write expires; 0 for never.
    pub block_to_live: u64,
}

impl PrivateDataConfig {
    /// The seed's; `None` if the seed has no private data. Decided without the scenario's generator, so that its other draws do
    /// not depend on private data.
    pub(super) fn of(seed: u64, mutant: Option<Mutant>) -> Option<PrivateDataConfig> {
        let is_planted = mutant.is_some_and(Mutant::is_in_private_data);
        if seed.is_multiple_of(WITHOUT_ONE_IN) && !is_planted {
            return None;
        }
        let counts = match is_planted {
            // Sets are missing where nobody sends them.
            true => PEER_COUNTS[0],
            false => PEER_COUNTS[(seed / WITHOUT_ONE_IN) as usize % PEER_COUNTS.len()],
        };
        let block_to_live = match mutant {
            Some(mutant) if mutant.is_in_expiry() => MUTANT_BLOCKS_TO_LIVE,
            Some(_) => 0,
            None => BLOCKS_TO_LIVE[(seed / 9) as usize % BLOCKS_TO_LIVE.len()],
        };
        Some(PrivateDataConfig { required_peers: counts.0, max_peers: counts.1, block_to_live })
    }
}

/// Draws the fault points of private data: all of them in half of the seeds that have any, since each is passed a few hundred times
/// in a run. A planted mistake shows where they strike often.
pub(super) fn points(seed: u64, mutant: Option<Mutant>) -> Vec<(&'static str, f64)> {
    let mut rng = Prng::new(seed ^ 0x9417_a7e0_da7a_0000);
    if mutant.is_some_and(Mutant::is_in_private_data) {
        return PRIVATE_FAULT_POINTS.to_vec();
    }
    if rng.one_in(2) {
        return Vec::new();
    }
    PRIVATE_FAULT_POINTS.iter().map(|(name, rate)| (*name, rate * *rng.pick(&[0.0, 0.2, 1.0]))).collect()
}
