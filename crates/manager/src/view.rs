//! The manager's view of a pool at one moment. All of it may be late, missing or false: only speed and cost, within the
//! limits, depend on it.

use std::collections::BTreeMap;
use std::time::Duration;

/// Where a compute node comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeOrigin {
    /// It is part of the peer's plan. It gets quotas, and is never drained.
    Planned,
    /// A manager launched it. It is never the primary.
    Managed,
    /// An operator added it. It counts, and is left alone.
    Added,
}

/// A compute node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeView {
    /// Its name, such as `compute-org1-3`.
    pub name: String,
    /// Where it comes from.
    pub origin: NodeOrigin,
    /// The age of its newest report; `None` if it has not been heard since this manager started.
    pub heard: Option<Duration>,
    /// `primary`, `follower` and so on, in its own words.
    pub role: String,
    /// How busy the processors of its quota are, in percent.
    pub busy_percent: u32,
    /// What it has accepted and not answered.
    pub queued: u32,
    /// The quota in force, in percent of one processor; `None` without one.
    pub quota_percent: Option<u32>,
}

/// The remote memory of a peer, as its primary reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryView {
    /// The budget in force.
    pub budget_bytes: u64,
    /// Bytes that the peer holds of it: those that nobody else can have.
    pub leased_bytes: u64,
    /// Bytes of it that records, the index and retired buffers take.
    pub used_bytes: u64,
    /// What the memory nodes could give to this peer altogether.
    pub available_bytes: u64,
    /// Look-ups in memory so far that found nothing there. Starts again with a new primary.
    pub misses: u64,
}

/// What a storage node has of a peer's blocks and tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StorageCopy {
    /// Nothing that counts.
    None,
    /// A copy that is being built.
    Building,
    /// A complete copy.
    Complete,
}

/// A storage node that may have a copy of a peer's blocks and tables.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StorageNodeView {
    /// Its name, such as `storage-2`.
    pub name: String,
    /// Whether its process runs, or is being restarted by its supervisor.
    pub runs: bool,
    /// Whether an operator has had it started, for a copy that no report shows yet. Then it is not stopped.
    pub is_kept: bool,
    /// What it has.
    pub copy: StorageCopy,
}

/// The copies of a peer's blocks and tables, as its primary reports them, or last reported them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StorageView {
    /// Whether a primary has just said so.
    pub heard: bool,
    /// How many copies the primary keeps complete.
    pub wanted: usize,
    /// The storage nodes of its plan.
    pub nodes: Vec<StorageNodeView>,
}

/// A peer and the resources that serve it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PeerView {
    /// Its compute nodes: those of the plan, running or not, and all others that run.
    pub nodes: Vec<NodeView>,
    /// Its memory, if its primary has been heard.
    pub memory: Option<MemoryView>,
    /// Its storage, if it has copies and a primary has been heard since this manager started.
    pub storage: Option<StorageView>,
    /// The name that a launched node would have.
    pub free_name: Option<String>,
    /// Whether the processes of this pool can have quotas.
    pub has_quotas: bool,
}

/// All peers of a pool, by name.
pub type PoolView = BTreeMap<String, PeerView>;
