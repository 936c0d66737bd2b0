//! When a node is tried for the next copy: each at its own pace, so that one that never answers delays no other.

use std::collections::BTreeMap;

use base::rt::{self, Backoff, Instant};

use crate::limits::{BUILD_PAUSES, PROBE_PAUSES};

/// The failed attempts at one node, and when it is tried next.
struct NodeAttempts {
    probes: Backoff,
    builds: Backoff,
    next_at: Instant,
}

/// The failed attempts to build a copy at each node.
#[derive(Default)]
pub(crate) struct Attempts {
    nodes: BTreeMap<String, NodeAttempts>,
}

impl Attempts {
    /// Whether it is time to try a node. One that was never tried is due.
    pub fn is_due(&self, name: &str) -> bool {
        self.nodes.get(name).is_none_or(|node| node.next_at <= rt::now())
    }

    /// The node did not say what it has.
    pub fn probe_failed(&mut self, name: &str) {
        let node = self.node(name);
        node.next_at = rt::now() + node.probes.next_pause();
    }

    /// A copy was begun there and not completed, or was lost.
    pub fn build_failed(&mut self, name: &str) {
        let node = self.node(name);
        node.next_at = rt::now() + node.builds.next_pause();
    }

    /// A copy is complete there, or an operator asks for one: the node counts as never tried.
    pub fn forget(&mut self, name: &str) {
        self.nodes.remove(name);
    }

    fn node(&mut self, name: &str) -> &mut NodeAttempts {
        self.nodes.entry(name.to_owned()).or_insert_with(|| NodeAttempts {
            probes: Backoff::new(PROBE_PAUSES.0, PROBE_PAUSES.1),
            builds: Backoff::new(BUILD_PAUSES.0, BUILD_PAUSES.1),
            next_at: rt::now(),
        })
    }
}
