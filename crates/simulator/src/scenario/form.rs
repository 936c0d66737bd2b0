//! Where a peer's blocks and state lie: on its own disk, or in pools.

use std::time::Duration;

use base::rt::simulation::Chance;
use chain::validate::borrow::When;

/// A peer's form.
#[derive(Clone, Debug)]
pub enum Form {
    /// Blocks and tables on the disk of the one node that it is.
    Monolithic,
    /// Compute nodes without a disk, memory nodes, and a storage node.
    Disaggregated(Pools),
}

/// The pools of a disaggregated peer, and how it uses them.
#[derive(Clone, Debug)]
pub struct Pools {
    pub memory_nodes: usize,
    /// Whether a second compute node stands by.
    pub has_spare: bool,
    /// Whether the compute nodes find out by themselves who is the primary, and the other one answers beside it. Else the
    /// simulator says so, and the spare waits.
    pub follows: bool,
    /// Whether the one that is the primary then has the other verify signatures.
    pub borrow: When,
    /// How long the primary must have been away before the spare is made the primary.
    pub patience: Duration,
    /// How often the spare is made the primary although nothing is wrong; never if zero.
    pub whims_every: Duration,
    pub section_bytes: u64,
    /// Sections that each memory node has to give.
    pub donor_sections: u64,
    /// Sections that the peer may have.
    pub sections_max: u64,
    pub metadata_cache_bytes: usize,
    pub data_cache_bytes: usize,
    /// Blocks that a view may lag behind before it is fenced.
    pub view_lag_blocks_max: u64,
    /// Blocks beyond the savepoint at which the peer persists before it goes on.
    pub savepoint_lag_blocks_max: u64,
}

impl Form {
    /// The pools of a disaggregated peer.
    pub fn pools(&self) -> Option<&Pools> {
        match self {
            Form::Monolithic => None,
            Form::Disaggregated(pools) => Some(pools),
        }
    }

    pub(super) fn draw(chance: &mut Chance) -> Form {
        match chance.one_in(2) {
            true => Form::Monolithic,
            false => Form::Disaggregated(Pools::draw(chance)),
        }
    }
}

impl Pools {
    pub(super) fn draw(chance: &mut Chance) -> Pools {
        let has_spare = chance.one_in(2);
        // The smallest ones are full all the time; an index needs a few pages.
        let section_bytes = *chance.pick(&[16 << 10, 64 << 10, 256 << 10]);
        let memory_nodes = 1 + chance.index(3);
        let patience = Duration::from_millis(10 + chance.below(200));
        Pools {
            memory_nodes,
            has_spare,
            // Without a draw of its own, so that seeds of before stay what they were.
            follows: has_spare && patience.as_millis().is_multiple_of(2),
            borrow: if patience.as_millis().is_multiple_of(3) { When::Idle } else { When::Always },
            patience,
            whims_every: if chance.one_in(3) { Duration::from_millis(200 + chance.below(800)) } else { Duration::ZERO },
            section_bytes,
            donor_sections: 1 + chance.below(8),
            sections_max: 1 + chance.below(16),
            metadata_cache_bytes: *chance.pick(&[0, 2_000, 1 << 20]),
            data_cache_bytes: *chance.pick(&[0, 2_000, 1 << 20]),
            view_lag_blocks_max: *chance.pick(&[4, 1_000]),
            savepoint_lag_blocks_max: *chance.pick(&[6, 40, 1_000]),
        }
    }
}
