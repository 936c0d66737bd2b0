//! A memory node as its coordinator knows it, and the outstanding verbs to it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use base::Bytes;
use base::rt::Instant;
use rma::Completion;

use super::PENDING_VERBS_MAX;
use super::persistence::PersistTracker;
use crate::link::FencedNode;

/// Whether a node takes part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::coordinator) enum NodePhase {
    Lost,
    Joining,
    Live,
}

/// A memory node.
pub(in crate::coordinator) struct MemberState {
    pub(in crate::coordinator) phase: NodePhase,
    pub(in crate::coordinator) node: Option<FencedNode>,
    pub(super) posted: VecDeque<PostedVerb>,
    /// Verbs up to this ticket have completed.
    pub(super) acked: u64,
    /// The number of the last header.
    pub(super) sequence: u64,
    pub(super) header_posted: bool,
    /// The applied index in the last header that has arrived.
    pub(super) applied: u64,
    pub(super) lease_at: Option<Instant>,
    /// The node is known to have its vote.
    pub(super) has_vote: bool,
    /// Of a joining node: the regions that are copied.
    pub(super) copied: Vec<bool>,
    /// Of a joining node: the regions that were written since it joined.
    pub(super) touched: Vec<bool>,
    /// Blocks that are being copied to it.
    pub(super) copying: Range<usize>,
    /// A score of how slow the node is: raised by reads and heartbeats that take too long, lowered by heartbeats that
    /// succeed.
    pub(super) slow: u32,
    /// Of a persistent node: the verbs that its disk has.
    pub(super) persist_tracker: Option<PersistTracker>,
}

/// A verb.
pub(super) struct PostedVerb {
    pub sequence: u64,
    pub header: Option<u64>,
    pub completion: Completion<()>,
}

impl MemberState {
    pub(super) fn lost() -> MemberState {
        MemberState {
            phase: NodePhase::Lost,
            node: None,
            posted: VecDeque::new(),
            acked: 0,
            sequence: 0,
            header_posted: false,
            applied: 0,
            lease_at: None,
            has_vote: false,
            copied: Vec::new(),
            touched: Vec::new(),
            copying: 0..0,
            slow: 0,
            persist_tracker: None,
        }
    }

    pub(super) fn is_node(&self, held: &FencedNode) -> bool {
        self.node.as_ref().is_some_and(|own| Arc::ptr_eq(&own.link, &held.link))
    }

    /// Posts a verb; returns an error if it has failed already.
    pub(super) fn post(
        &mut self,
        at: u64,
        parts: &[Bytes],
        sequence: u64,
        header: Option<u64>,
    ) -> Result<(), rma::Error> {
        let Some(held) = &self.node else { return Ok(()) };
        let completion = held.write(at, parts);
        if let Some(journal) = &mut self.persist_tracker {
            journal.add(at, parts, sequence, header);
        }
        if self.posted.is_empty() && completion.is_success() {
            self.complete(sequence, header);
            return Ok(());
        }
        let completion = match self.posted.is_empty() {
            false => completion,
            true => match completion.now() {
                Ok(Ok(())) => {
                    self.complete(sequence, header);
                    return Ok(());
                }
                Ok(Err(error)) => return Err(error),
                Err(completion) => completion,
            },
        };
        if self.posted.len() >= PENDING_VERBS_MAX {
            return Err(rma::Error::Busy);
        }
        self.posted.push_back(PostedVerb { sequence, header, completion });
        Ok(())
    }

    /// Notes that a verb has completed.
    pub(super) fn complete(&mut self, sequence: u64, header: Option<u64>) {
        match &mut self.persist_tracker {
            None => self.acknowledge(sequence, header),
            Some(journal) => {
                journal.complete();
                self.acknowledge_persisted();
            }
        }
    }

    /// Acknowledges the verbs that have completed and are on disk.
    pub(super) fn acknowledge_persisted(&mut self) {
        while let Some((ticket, header)) = self.persist_tracker.as_mut().and_then(PersistTracker::next_persisted) {
            self.acknowledge(ticket, header);
        }
    }

    fn acknowledge(&mut self, sequence: u64, header: Option<u64>) {
        self.acked = sequence;
        if let Some(applied) = header {
            self.header_posted = false;
            self.applied = applied;
        }
    }

    pub(super) fn flush(&self) {
        if let Some(held) = &self.node
            && !self.posted.is_empty()
        {
            held.link.endpoint.flush();
        }
    }
}
