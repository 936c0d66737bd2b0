//! How a peer's remote memory is used, as its operator is shown it.

use serde::{Deserialize, Serialize};

/// The remote memory of one peer. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryReport {
    /// The peer, such as `compute-org1`.
    pub name: String,
    /// What it may have.
    pub budget_bytes: u64,
    /// What the configuration says, which counts at a start unless the budget was set later.
    pub configured_bytes: u64,
    /// The unit in which memory is given.
    pub section_bytes: u64,
    /// Whole sections within the budget.
    pub allowed_bytes: u64,
    /// Sections that it has. Above the former while a lower budget takes effect.
    pub leased_bytes: u64,
    /// Of them, what the index and records take.
    pub used_bytes: u64,
    /// Of them, what was given up and is used again once nobody can look there any more.
    pub waiting_bytes: u64,
    /// Of them, what is free.
    pub free_bytes: u64,
    /// The memory nodes.
    pub nodes: Vec<NodeMemory>,
    /// Records evicted since the peer started.
    pub evicted_records: u64,
    /// The bytes that they took.
    pub evicted_bytes: u64,
    /// Sections given back since then because the budget was lowered.
    pub sections_drained: u64,
    /// How often what was looked for was there.
    pub hits: Vec<HitRate>,
    /// Whether the hits are those of several peers: all that run in the process.
    pub hits_of_process: bool,
}

/// What a compute node is to its peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComputeReport {
    /// Such as `compute-org1`.
    pub name: String,
    /// Its process.
    pub process: u32,
    /// `primary`, `reader`, `waiting` (for a primary, or to be one), or `alone`: the only one of its peer.
    pub role: String,
    /// As the primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// The number of blocks that it shows.
    pub height: u64,
    /// The first block that it applied when it became the primary last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_block: Option<FirstBlockReport>,
    /// Transactions whose signatures other compute nodes have verified for it since it was started.
    #[serde(default)]
    pub borrowed: u64,
    /// Transactions whose signatures it has verified for others.
    #[serde(default)]
    pub lent: u64,
    /// The other compute nodes that were found to lie to it about signatures.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub liars: Vec<String>,
}

/// The first block of a primary, those not counted that were there before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FirstBlockReport {
    /// The primary's.
    pub epoch: u64,
    /// The block.
    pub number: u64,
    /// When it was applied, by the machine's clock.
    pub at_unix_ns: u64,
}

/// One memory node, from the peer's view.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeMemory {
    /// Where it is.
    pub address: String,
    /// Whether it can be asked for sections.
    pub connected: bool,
    /// Sections of this peer there.
    pub sections: u64,
    /// What it may give to all peers, 0 while it is not connected.
    pub budget_bytes: u64,
    /// What it could still give when it was last heard of.
    pub free_bytes: u64,
    /// Why it is not connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// How often something was found in one place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HitRate {
    /// The place.
    pub place: String,
    /// Found.
    pub hits: u64,
    /// Not found.
    pub misses: u64,
}

impl HitRate {
    /// The part of look-ups that found something; `None` while there were none.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub fn percent(&self) -> Option<f64> {
        let all = self.hits + self.misses;
        (all > 0).then(|| 100.0 * self.hits as f64 / all as f64)
    }
}

impl MemoryReport {
    /// Whether everything above the budget has been given back.
    pub fn is_settled(&self) -> bool {
        self.leased_bytes <= self.allowed_bytes
    }
}
