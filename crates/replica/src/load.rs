//! How loaded a compute node is, by its own measure: how busy its processors are, and what waits for them.
//!
//! 1. A node measures its processors with a [`LoadMeter`], and counts the proposals and work items that it has accepted
//!    and not answered ([`NodeLoad::enter`]).
//! 2. A follower reports both with each acknowledgement ([`LoadReport`], at least every
//!    [`HEARTBEAT`](crate::followers::HEARTBEAT)). Its primary keeps the newest report.
//! 3. Gateways ask the primary for the reports of all nodes, each with its age ([`ReportedNode`]), and send proposals to
//!    the least loaded node. The primary sends the signatures of a block to the most idle one ([`crate::offload`]).
//!
//! Invariant: nothing but speed depends on a report. A node that reports less load than it has gets work that it is slow
//! to do, at most as much as its callers allow one node to have outstanding.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The load of processors that nothing measures: neither idle nor busy.
pub const UNKNOWN_PERCENT: u8 = 50;

/// Measures how busy this node's cores are, in percent.
#[derive(Clone)]
pub struct LoadMeter(Arc<dyn Fn() -> u8 + Send + Sync>);

impl LoadMeter {
    /// A meter that calls this function, often and from any task.
    pub fn new(percent: impl Fn() -> u8 + Send + Sync + 'static) -> LoadMeter {
        LoadMeter(Arc::new(percent))
    }

    /// The load, 100 at most.
    pub fn percent(&self) -> u8 {
        (self.0)().min(100)
    }
}

impl Default for LoadMeter {
    /// The meter of a node without a measurement.
    fn default() -> LoadMeter {
        LoadMeter::new(|| UNKNOWN_PERCENT)
    }
}

impl fmt::Debug for LoadMeter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meter")
    }
}

/// The load of one node. Clones share the count of what waits.
#[derive(Clone, Debug)]
pub struct NodeLoad {
    meter: LoadMeter,
    processors: Arc<str>,
    queue: Arc<AtomicUsize>,
}

impl Default for NodeLoad {
    /// The load of a node without a measurement.
    fn default() -> NodeLoad {
        NodeLoad::new(LoadMeter::default(), "")
    }
}

impl NodeLoad {
    /// The load of a node with this meter and nothing to do yet. `processors` names what the meter measures: two nodes
    /// with the same name share processors, so that neither can do anything for the other. An empty name is like no
    /// other.
    pub fn new(meter: LoadMeter, processors: &str) -> NodeLoad {
        NodeLoad { meter, processors: processors.into(), queue: Arc::default() }
    }

    /// The load of another node of the same machine: it has the same meter, and counts for itself.
    pub fn of_another_node(&self) -> NodeLoad {
        NodeLoad::new(self.meter.clone(), &self.processors)
    }

    /// The name of the processors.
    pub fn processors(&self) -> &Arc<str> {
        &self.processors
    }

    /// Whether a node shares its processors, which have this name, with this one.
    pub fn shares_with(&self, processors: &str) -> bool {
        !processors.is_empty() && *self.processors == *processors
    }

    /// How busy the cores are, in percent.
    pub fn percent(&self) -> u8 {
        self.meter.percent()
    }

    /// What the node has accepted and not answered.
    pub fn queued(&self) -> usize {
        self.queue.load(Ordering::Relaxed)
    }

    /// Counts one proposal or work item until the value is dropped.
    pub fn enter(&self) -> QueuedWork {
        self.queue.fetch_add(1, Ordering::Relaxed);
        QueuedWork(Arc::clone(&self.queue))
    }

    /// The load as it is now.
    pub fn report(&self) -> LoadReport {
        LoadReport { percent: self.percent(), queued: u16::try_from(self.queued()).unwrap_or(u16::MAX) }
    }
}

/// A proposal or work item that counts as load until the value is dropped.
#[derive(Debug)]
pub struct QueuedWork(Arc<AtomicUsize>);

impl Drop for QueuedWork {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The load of a node at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LoadReport {
    /// How busy its cores are, in percent.
    pub percent: u8,
    /// What it has accepted and not answered.
    pub queued: u16,
}

/// Where a compute node answers, as it says itself; empty texts where it does not.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeAddresses {
    /// For the gateways of its organisation.
    pub own: String,
    /// For other organisations.
    pub others: String,
}

/// A compute node of a peer as its primary knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReportedNode {
    /// The name that its link proves.
    pub name: Arc<str>,
    /// Where it answers.
    pub addresses: NodeAddresses,
    /// Its newest report.
    pub load: LoadReport,
    /// The age of that report.
    pub age: Duration,
    /// Whether it is about to leave, and takes nothing new.
    pub is_draining: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_has_accepted_counts_until_it_is_answered() {
        let load = NodeLoad::new(LoadMeter::new(|| 130), "one");
        assert!(load.shares_with("one") && !load.shares_with("two") && !NodeLoad::default().shares_with(""));
        let entered: Vec<QueuedWork> = (0..3).map(|_| load.clone().enter()).collect();
        assert_eq!(load.report(), LoadReport { percent: 100, queued: 3 });
        assert_eq!(load.of_another_node().report(), LoadReport { percent: 100, queued: 0 });
        drop(entered);
        assert_eq!(load.queued(), 0);
        assert_eq!(NodeLoad::default().percent(), UNKNOWN_PERCENT);
    }
}
