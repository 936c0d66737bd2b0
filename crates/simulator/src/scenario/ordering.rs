//! The ordering engine of a seed.

/// Orderers of a group.
pub const ORDERERS: usize = 3;
/// One seed of this many has orderers on memory nodes.
const SIFT_SEEDS: u64 = 10;
/// One seed of this many has orderers on Raft.
const RAFT_SEEDS: u64 = 20;

/// The engine with which the channel is ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderingEngine {
    /// One orderer, by itself.
    Solo,
    /// A group on passive memory nodes.
    Sift {
        /// How many there are: 2F + 1.
        memory_nodes: usize,
    },
    /// A group on logs and messages.
    Raft,
}

impl OrderingEngine {
    /// The engine of a seed: chosen without a draw, so that a seed is otherwise the same with any of them.
    pub(super) fn of(seed: u64) -> OrderingEngine {
        match (seed % SIFT_SEEDS, seed % RAFT_SEEDS) {
            (0, _) => OrderingEngine::sift(seed / SIFT_SEEDS),
            (_, 1) => OrderingEngine::Raft,
            _ => OrderingEngine::Solo,
        }
    }

    /// On three memory nodes, sometimes on five.
    pub(super) fn sift(number: u64) -> OrderingEngine {
        OrderingEngine::Sift { memory_nodes: if number % 4 == 3 { 5 } else { 3 } }
    }

    /// Whether several orderers order together.
    pub fn is_group(self) -> bool {
        self != OrderingEngine::Solo
    }

    /// The orderers.
    pub fn orderers(self) -> Vec<String> {
        (0..if self.is_group() { ORDERERS } else { 1 }).map(super::orderer).collect()
    }

    /// The memory nodes that hold their log.
    pub fn logs(self) -> Vec<String> {
        let count = match self {
            OrderingEngine::Sift { memory_nodes } => memory_nodes,
            OrderingEngine::Solo | OrderingEngine::Raft => 0,
        };
        (0..count).map(super::log_memory_node).collect()
    }
}
