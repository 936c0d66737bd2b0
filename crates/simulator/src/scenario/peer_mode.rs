//! The form of a peer: blocks and state on its own disk, or in pools.

use std::time::Duration;

use base::rt::simulation::Prng;
use replica::offload::OffloadMode;

/// A peer's form.
#[derive(Clone, Debug)]
pub enum PeerMode {
    /// One node, with blocks and tables on its disk.
    Monolithic,
    /// Compute nodes without a disk, memory nodes, and a storage node.
    Disaggregated(PoolConfig),
}

/// The pools of a disaggregated peer, and how it uses them.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// How many memory nodes the peer has.
    pub memory_nodes: usize,
    /// Whether a second compute node stands by.
    pub has_standby: bool,
    /// Whether the compute nodes find out by themselves who is the primary, and a spare and a guest answer beside it.
    /// Otherwise the simulator chooses the primary, and the spare waits.
    pub automatic_failover: bool,
    /// Whether the primary then offloads signature checks to the other node.
    pub offload: OffloadMode,
    /// How long the primary must have been away before the spare is made the primary.
    pub failover_timeout: Duration,
    /// How often the spare is made the primary although the primary is healthy; never if zero.
    pub spurious_failover_interval: Duration,
    /// Bytes of one section.
    pub section_bytes: u64,
    /// Sections that each memory node can give.
    pub donor_sections: u64,
    /// Sections that the peer may have.
    pub sections_max: u64,
    /// Bytes of a compute node's cache of record addresses.
    pub metadata_cache_bytes: usize,
    /// Bytes of a compute node's cache of values.
    pub data_cache_bytes: usize,
    /// Blocks that a view may lag behind before it is fenced.
    pub view_lag_blocks_max: u64,
    /// Blocks beyond the savepoint at which the peer persists before it continues.
    pub savepoint_lag_blocks_max: u64,
}

impl PeerMode {
    /// The pools of a disaggregated peer.
    pub fn pools(&self) -> Option<&PoolConfig> {
        match self {
            PeerMode::Monolithic => None,
            PeerMode::Disaggregated(pools) => Some(pools),
        }
    }

    pub(super) fn draw(rng: &mut Prng) -> PeerMode {
        match rng.one_in(2) {
            true => PeerMode::Monolithic,
            false => PeerMode::Disaggregated(PoolConfig::draw(rng)),
        }
    }
}

impl PoolConfig {
    pub(super) fn draw(rng: &mut Prng) -> PoolConfig {
        let has_spare = rng.one_in(2);
        // The smallest are always full; an index needs a few pages.
        let section_bytes = *rng.pick(&[16 << 10, 64 << 10, 256 << 10]);
        let memory_nodes = 1 + rng.index(3);
        let failover_timeout = Duration::from_millis(10 + rng.below(200));
        PoolConfig {
            memory_nodes,
            has_standby: has_spare,
            // Without a draw of its own, so that earlier seeds keep their meaning.
            automatic_failover: failover_timeout.as_millis().is_multiple_of(2),
            offload: if failover_timeout.as_millis().is_multiple_of(3) {
                OffloadMode::Idle
            } else {
                OffloadMode::Always
            },
            failover_timeout,
            spurious_failover_interval: if rng.one_in(3) {
                Duration::from_millis(200 + rng.below(800))
            } else {
                Duration::ZERO
            },
            section_bytes,
            donor_sections: 1 + rng.below(8),
            sections_max: 1 + rng.below(16),
            metadata_cache_bytes: *rng.pick(&[0, 2_000, 1 << 20]),
            data_cache_bytes: *rng.pick(&[0, 2_000, 1 << 20]),
            view_lag_blocks_max: *rng.pick(&[4, 1_000]),
            savepoint_lag_blocks_max: *rng.pick(&[6, 40, 1_000]),
        }
    }
}
