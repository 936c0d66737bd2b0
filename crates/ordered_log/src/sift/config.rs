//! The configuration of an orderer's log on memory nodes.

use std::sync::Arc;
use std::time::Duration;

use sift::SiftGroup;

use crate::{CpuNodeId, LogStore};

/// A CPU node of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CpuNode {
    /// Its number.
    pub id: CpuNodeId,
    /// The address of its acceptor.
    pub address: String,
}

/// The configuration of one CPU node's engine.
pub struct SiftConfig {
    /// The memory nodes, as this CPU node reaches them.
    pub group: SiftGroup,
    /// The number of this CPU node.
    pub me: CpuNodeId,
    /// All CPU nodes; the same list at each of them.
    pub cpu_nodes: Vec<CpuNode>,
    /// The log store of this CPU node.
    pub log_store: Arc<dyn LogStore>,
    /// Whether entries are delivered once they are committed in memory, before they are on disks.
    pub volatile: bool,
    /// The longest time that an acceptor may take to answer, its disk included.
    pub disk_timeout: Duration,
}
