//! The name of a group: its memory nodes and CPU nodes agree on it.

/// The number of a group. Its operator chooses it; it is never 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupId(pub u64);
