//! Incarnations of simulated nodes.

use base::rt::simulation::SimNode;

/// One incarnation of a simulated node.
#[derive(Clone)]
pub(super) struct NodeIncarnation {
    pub(super) node: SimNode,
    pub(super) incarnation: u64,
}

impl NodeIncarnation {
    pub(super) fn is_alive(&self) -> bool {
        self.node.is_up() && self.node.crashes() == self.incarnation
    }

    pub(super) fn is_same(&self, other: &NodeIncarnation) -> bool {
        self.node.name() == other.node.name() && self.incarnation == other.incarnation
    }

    pub(super) fn is_cut_to(&self, other: &NodeIncarnation) -> bool {
        self.node.is_cut_to(&other.node)
    }
}
