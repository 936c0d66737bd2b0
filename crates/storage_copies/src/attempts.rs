//! When a node is tried for the next copy: each at its own pace, so that one that never answers delays no other.

use std::collections::BTreeMap;

use base::rt::{self, Backoff, Instant};

use crate::limits::{BUILD_PAUSES, PROBE_PAUSES};

/// The failed attempts at one node, and when it is tried next.
struct NodeAttempts {
    probes: Backoff,
    builds: Backoff,
    next_at: Instant,
    /// When a copy was last completed there.
    completed_at: Option<Instant>,
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
        // Copies that are lost as soon as they are complete count as failures, too.
        if node.completed_at.take().is_some_and(|at| at.elapsed() >= BUILD_PAUSES.1) {
            node.builds.reset();
        }
        node.next_at = rt::now() + node.builds.next_pause();
    }

    /// A copy is complete there.
    pub fn build_completed(&mut self, name: &str) {
        let node = self.node(name);
        node.completed_at = Some(rt::now());
        node.probes.reset();
    }

    /// Resets the node's back-off, after an operator has asked for a copy there.
    pub fn forget(&mut self, name: &str) {
        self.nodes.remove(name);
    }

    fn node(&mut self, name: &str) -> &mut NodeAttempts {
        self.nodes.entry(name.to_owned()).or_insert_with(|| NodeAttempts {
            probes: Backoff::new(PROBE_PAUSES.0, PROBE_PAUSES.1),
            builds: Backoff::new(BUILD_PAUSES.0, BUILD_PAUSES.1),
            next_at: rt::now(),
            completed_at: None,
        })
    }
}
