//! The number of a group.

/// The number of a group. Its operator chooses it; it is never 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupId(pub u64);
