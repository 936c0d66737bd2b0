//! Tracks which verbs are on the disk of a persistent memory node ("Persistent memory nodes" at the head of
//! [`crate::coordinator`]).

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use base::Bytes;

use super::{CoordinatorState, NodePhase, WakeList};
use crate::coordinator::UNPERSISTED_BYTES_MAX;
use crate::fault::{Mutant, mutant};
use crate::link::FencedNode;

/// Bytes of one message, unless a single write has more.
const MESSAGE_BYTES: u64 = 4 << 20;

/// The verbs posted to a persistent node, numbered from its joining.
#[derive(Default)]
pub(super) struct PersistTracker {
    posted: u64,
    completed: u64,
    persisted: u64,
    /// Writes that were not sent yet, each with the number of its verb.
    unsent: VecDeque<(u64, u64, Bytes)>,
    /// Bytes of the unsent writes and of those being sent.
    bytes: u64,
    sending_bytes: u64,
    sending: bool,
    /// Verbs that are not acknowledged: number, ticket, and the applied index of a header.
    unacknowledged: VecDeque<(u64, u64, Option<u64>)>,
}

/// Writes for a node's disk.
pub(in crate::coordinator) struct UnpersistedWrites {
    pub node: FencedNode,
    pub writes: Vec<(u64, Bytes)>,
    /// The number of the last verb.
    pub until: u64,
}

impl PersistTracker {
    /// The tracker for a node, if the node is persistent.
    pub(super) fn new(held: &FencedNode) -> Option<PersistTracker> {
        held.link.is_persistent.then(PersistTracker::default)
    }

    pub(super) fn add(&mut self, at: u64, parts: &[Bytes], sequence: u64, header: Option<u64>) {
        self.posted += 1;
        self.unacknowledged.push_back((self.posted, sequence, header));
        let mut at = at;
        for part in parts.iter().filter(|part| !part.is_empty()) {
            self.unsent.push_back((self.posted, at, part.clone()));
            self.bytes += part.len() as u64;
            at += part.len() as u64;
        }
    }

    /// One more verb has completed; verbs complete in order.
    pub(super) fn complete(&mut self) {
        self.completed += 1;
    }

    /// The next verb that has completed and is on disk.
    pub(super) fn next_persisted(&mut self) -> Option<(u64, Option<u64>)> {
        let kept = if mutant(Mutant::CountUnsynced) { u64::MAX } else { self.persisted };
        let reached = self.completed.min(kept);
        let (_, ticket, header) = *self.unacknowledged.front().filter(|(number, ..)| *number <= reached)?;
        self.unacknowledged.pop_front();
        Some((ticket, header))
    }

    /// Whether there are writes to send and no message is in flight.
    fn has_unsent(&self) -> bool {
        !self.sending && !self.unsent.is_empty()
    }

    /// The next writes to send: those of whole verbs, with the number of the last verb.
    fn take(&mut self) -> Option<(Vec<(u64, Bytes)>, u64)> {
        if !self.has_unsent() {
            return None;
        }
        let (mut writes, mut until) = (Vec::new(), 0);
        while let Some((number, at, bytes)) = self.unsent.pop_front() {
            self.sending_bytes += bytes.len() as u64;
            until = number;
            writes.push((at, bytes));
            let is_whole = self.unsent.front().is_none_or(|(next, ..)| *next > number);
            if is_whole && self.sending_bytes >= MESSAGE_BYTES {
                break;
            }
        }
        self.sending = true;
        Some((writes, until))
    }

    fn set_persisted(&mut self, until: u64) {
        self.persisted = until;
        self.bytes -= std::mem::take(&mut self.sending_bytes);
        self.sending = false;
    }
}

impl CoordinatorState {
    /// Whether too many bytes wait for some disk.
    pub(super) fn is_behind(&self) -> bool {
        let behind = |journal: &PersistTracker| journal.bytes >= UNPERSISTED_BYTES_MAX;
        self.members
            .iter()
            .any(|member| member.phase != NodePhase::Lost && member.persist_tracker.as_ref().is_some_and(behind))
    }

    /// Wakes the tasks of nodes that have writes to send.
    pub(super) fn wake_persisters(&mut self) {
        for (member, waker) in self.members.iter().zip(&mut self.persisters) {
            if member.persist_tracker.as_ref().is_some_and(PersistTracker::has_unsent) {
                waker.take().into_iter().for_each(Waker::wake);
            }
        }
    }

    /// Completes when there are writes for a node's disk.
    pub(in crate::coordinator) fn poll_unpersisted(&mut self, slot: usize, cx: &Context<'_>) -> Poll<()> {
        if self.members[slot].persist_tracker.as_ref().is_some_and(PersistTracker::has_unsent) {
            return Poll::Ready(());
        }
        self.persisters[slot] = Some(cx.waker().clone());
        Poll::Pending
    }

    /// The next writes for a node's disk.
    pub(in crate::coordinator) fn take_unpersisted(&mut self, slot: usize) -> Option<UnpersistedWrites> {
        let member = &mut self.members[slot];
        let (held, journal) = (member.node.as_ref()?, member.persist_tracker.as_mut()?);
        let (writes, until) = journal.take()?;
        Some(UnpersistedWrites { node: held.clone(), writes, until })
    }

    /// Notes that a node's disk has everything up to a verb.
    pub(in crate::coordinator) fn note_persisted(&mut self, held: &FencedNode, until: u64) -> WakeList {
        let member = &mut self.members[held.link.slot];
        if !member.is_node(held) {
            return WakeList::default();
        }
        if let Some(journal) = &mut member.persist_tracker {
            journal.set_persisted(until);
        }
        member.acknowledge_persisted();
        self.handle_progress()
    }
}
