//! Numbers of the objects of a simulated world, counted up from 0 in the order of their creation.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $word:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub(in crate::rt) struct $name(pub(in crate::rt) u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($word, " {}"), self.0)
            }
        }
    };
}

id! {
    /// A node; 0 is the driver.
    NodeId, "node"
}
id! {
    /// A task; 0 is the run's own future.
    TaskId, "task"
}
id! {
    /// A link between two nodes.
    LinkId, "link"
}
id! {
    /// A file of one node, independent of its names.
    InodeId, "file"
}

/// The node of the run's own future. It cannot crash.
pub(in crate::rt) const DRIVER: NodeId = NodeId(0);

impl NodeId {
    /// Its index in its world. Nodes are never removed.
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// One incarnation of a node: from a start to the next crash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::rt) struct Incarnation {
    pub(in crate::rt) node: NodeId,
    pub(in crate::rt) incarnation: u64,
}
