//! Who orders, and on what.

/// Orderers of a group.
pub const ORDERERS: usize = 3;
/// One seed of so many has orderers on memory nodes.
const SIFT_SEEDS: u64 = 10;
/// One seed of so many has orderers with logs of their own, which talk to one another.
const RAFT_SEEDS: u64 = 20;

/// The engine with which the channel is ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ordering {
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

impl Ordering {
    /// What a seed has: without a draw, so that a seed is otherwise the same with any of them.
    pub(super) fn of(seed: u64) -> Ordering {
        match (seed % SIFT_SEEDS, seed % RAFT_SEEDS) {
            (0, _) => Ordering::sift(seed / SIFT_SEEDS),
            (_, 1) => Ordering::Raft,
            _ => Ordering::Solo,
        }
    }

    /// On three memory nodes, now and then on five.
    pub(super) fn sift(number: u64) -> Ordering {
        Ordering::Sift { memory_nodes: if number % 4 == 3 { 5 } else { 3 } }
    }

    /// Whether several orderers order together.
    pub fn is_group(self) -> bool {
        self != Ordering::Solo
    }

    /// The orderers.
    pub fn orderers(self) -> Vec<String> {
        (0..if self.is_group() { ORDERERS } else { 1 }).map(super::orderer).collect()
    }

    /// The memory nodes that they have their log on.
    pub fn logs(self) -> Vec<String> {
        let count = match self {
            Ordering::Sift { memory_nodes } => memory_nodes,
            Ordering::Solo | Ordering::Raft => 0,
        };
        (0..count).map(super::log).collect()
    }
}
