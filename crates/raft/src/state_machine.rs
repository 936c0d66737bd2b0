//! The interface of the state machine that a Raft node applies entries to.

use base::rt::net::BoxFuture;
use base::{Bytes, Term};

use crate::error::Error;

/// The state machine that the entries change. Every node of a group has one, and all of them reach the same state.
pub trait StateMachine: Send + 'static {
    /// The result of an entry, for its proposer.
    type Output: Default + Send + 'static;

    /// Applies entries, in order; returns an output for each. Its behaviour may depend only on these entries and the earlier
    /// ones.
    fn apply(&mut self, entries: Vec<AppliedEntry>) -> Vec<Self::Output>;

    /// A snapshot of the current state, which the future may complete later and on another thread.
    fn snapshot(&mut self) -> BoxFuture<'static, Result<Bytes, Error>>;

    /// Replaces the state by a snapshot, which has everything up to an index.
    ///
    /// # Errors
    /// [`Error::Corrupt`]; ends the node.
    fn restore(&mut self, index: u64, snapshot: Bytes) -> Result<(), Error>;

    /// Whether this node may start with the group's first snapshot: it has no log, and is one of the founders of the group.
    ///
    /// # Errors
    /// Evidence that this is not its first start; ends the node.
    fn check_bootstrap(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Whether it has capacity for more entries. While it has not, a follower accepts no entries from its leader. A leader
    /// proposes regardless, and must wait by itself.
    fn has_capacity(&self) -> bool {
        true
    }
}

/// A committed entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AppliedEntry {
    /// Its index. Indexes of entries that are no proposals are skipped.
    pub index: u64,
    /// The term of the leader that appended it.
    pub term: Term,
    /// The proposed bytes; never empty.
    pub data: Bytes,
}

/// The outcome of a proposal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProposalOutcome<O> {
    /// The entry's index.
    pub index: u64,
    /// The entry's term.
    pub term: Term,
    /// The machine's output.
    pub output: O,
}
