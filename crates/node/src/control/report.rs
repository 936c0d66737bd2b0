//! Reports on a peer's remote memory and its compute nodes, for the operator.

use serde::{Deserialize, Serialize};

/// The remote memory of one peer. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryReport {
    /// The peer, such as `compute-org1`.
    pub name: String,
    /// The budget in force.
    pub budget_bytes: u64,
    /// The budget of the configuration, which applies at a start unless the operator set another one later.
    pub configured_bytes: u64,
    /// The unit in which memory is given.
    pub section_bytes: u64,
    /// Whole sections within the budget.
    pub allowed_bytes: u64,
    /// Bytes of the sections that the peer holds. Exceeds `allowed_bytes` while a lower budget takes effect.
    pub leased_bytes: u64,
    /// Bytes of them that the index and records use.
    pub used_bytes: u64,
    /// Bytes of them in quarantine: retired buffers, which are reused once no reader can reach them any more.
    pub waiting_bytes: u64,
    /// Bytes of them that are free.
    pub free_bytes: u64,
    /// The memory nodes.
    pub nodes: Vec<DonorMemoryReport>,
    /// Records evicted since the peer started.
    pub evicted_records: u64,
    /// The bytes of those records.
    pub evicted_bytes: u64,
    /// Sections emptied and returned since then, because the budget was lowered or a memory node was vacated.
    pub sections_drained: u64,
    /// Sections moved to another memory node since then.
    #[serde(default)]
    pub sections_migrated: u64,
    /// The hit rate of each cache.
    pub hits: Vec<HitRate>,
    /// Whether the hit rates cover several peers: all that run in the process.
    pub hits_of_process: bool,
}

/// The role of a compute node in its peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComputeReport {
    /// Such as `compute-org1`.
    pub name: String,
    /// Its process ID.
    pub process: u32,
    /// `primary`, `follower`, `waiting` (for a primary, or to become it), or `single`: the only one of its
    /// peer.
    pub role: String,
    /// Its epoch, if it is the primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// The block height that it shows.
    pub height: u64,
    /// The first block that it applied after it last became the primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_block: Option<FailoverSampleReport>,
    /// Its load, if it is one of several compute nodes or may become one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<NodeLoadReport>,
    /// Transactions whose signatures other compute nodes have verified for it since it started.
    #[serde(default, alias = "borrowed")]
    pub offloaded: u64,
    /// Transactions whose signatures it has verified for others.
    #[serde(default, alias = "lent")]
    pub verified_for_primary: u64,
    /// The other compute nodes that returned false verdicts to it.
    #[serde(default, alias = "liars", skip_serializing_if = "Vec::is_empty")]
    pub distrusted: Vec<String>,
}

/// How loaded a compute node is, by its own measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeLoadReport {
    /// How busy the processors of its quota are, or of the machine, in percent.
    pub percent: u8,
    /// Proposals and work items that it has accepted and not answered.
    pub queued: u16,
}

/// The first block that a primary applied; blocks that it found applied do not count.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FailoverSampleReport {
    /// The primary's epoch.
    pub epoch: u64,
    /// The block's number.
    pub number: u64,
    /// When it was applied, by the machine's clock.
    pub at_unix_ns: u64,
}

/// One memory node, from the peer's view.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DonorMemoryReport {
    /// Its address.
    pub address: String,
    /// Whether the peer can request sections from it.
    pub connected: bool,
    /// Sections that this peer holds there.
    pub sections: u64,
    /// Bytes that it may give to all peers; 0 while it is not connected.
    pub budget_bytes: u64,
    /// Bytes that it could still give when it was last heard from.
    pub free_bytes: u64,
    /// Why it is not connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Whether the peer takes no more memory from it, and moves away what it has there.
    #[serde(default)]
    pub vacated: bool,
}

/// The hit rate of one cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HitRate {
    /// The cache.
    pub place: String,
    /// Look-ups that found an entry.
    pub hits: u64,
    /// Look-ups that found none.
    pub misses: u64,
}

impl HitRate {
    /// The percentage of look-ups that found an entry; `None` while there were none.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub fn percent(&self) -> Option<f64> {
        let all = self.hits + self.misses;
        (all > 0).then(|| 100.0 * self.hits as f64 / all as f64)
    }
}

impl MemoryReport {
    /// Whether the peer has returned everything above the budget.
    pub fn is_within_budget(&self) -> bool {
        self.leased_bytes <= self.allowed_bytes
    }

    /// Sections on memory nodes that are being vacated.
    pub fn sections_to_vacate(&self) -> u64 {
        self.nodes.iter().filter(|node| node.vacated).map(|node| node.sections).sum()
    }
}
