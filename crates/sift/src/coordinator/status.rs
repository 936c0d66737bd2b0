//! The state that a takeover hands to a coordinator, and the status that a coordinator reports.

use crate::Term;
use crate::layout::LogCursor;
use crate::link::FencedNode;
use crate::scan::LocatedEntry;

/// What a takeover hands over to the coordinator.
pub(crate) struct RecoveredState {
    /// The generation of the group: the term under which it was formatted.
    pub format_term: Term,
    /// The last entry.
    pub end: LogCursor,
    /// The log is needed after this position.
    pub log_start: LogCursor,
    /// The log entries that were not applied everywhere, with the entries after `log_start`.
    pub entries: Vec<LocatedEntry>,
    /// The nodes that are up to date.
    pub nodes: Vec<RecoveredNode>,
}

/// A node that is up to date, and the number of its last header.
pub(crate) struct RecoveredNode {
    pub node: FencedNode,
    pub sequence: u64,
}

/// The state of a coordinator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CoordinatorStatus {
    /// Its term.
    pub term: Term,
    /// Memory nodes that are complete and have their vote.
    pub live: usize,
    /// Memory nodes that are being copied to, or that are about to get their vote.
    pub joining: usize,
    /// Memory nodes that are lost.
    pub lost: usize,
    /// How many more may be lost before the group can commit nothing.
    pub spare: usize,
    /// The last entry that was committed.
    pub committed: u64,
    /// The last entry that was applied.
    pub applied: u64,
    /// Bytes of the log that are in use.
    pub log_used_bytes: u64,
    /// Bytes of memory that this coordinator has copied to memory nodes that came back.
    pub copied_bytes: u64,
}
