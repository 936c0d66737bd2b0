//! Leases, lost nodes, and the end of a coordinator.

use std::sync::atomic::Ordering;

use base::rt::{self, Instant};

use super::{CoordinatorState, MemberState};
use crate::Error;
use crate::link::FencedNode;

impl CoordinatorState {
    pub(in crate::coordinator) fn ended(&self) -> Option<Error> {
        self.ended.clone()
    }

    pub(in crate::coordinator) fn end(&mut self, error: Error) {
        if self.ended.is_none() {
            tracing::info!(term = %self.term, %error, "a coordinator ends");
            self.ended = Some(error);
            self.publish_lease();
            self.note_changed();
            let waiting = std::mem::take(&mut self.waiting).into_iter().map(|(_, waker)| waker);
            waiting.chain(std::mem::take(&mut self.blocked)).for_each(std::task::Waker::wake);
        }
    }

    pub(in crate::coordinator) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Notes a change that background tasks, or all tasks, must see.
    pub(super) fn note_changed(&self) {
        self.published.changed.store(true, Ordering::Release);
    }

    /// Publishes the end of the lease: its length after the time at which the probes of a majority were posted.
    pub(super) fn publish_lease(&self) {
        let mut all = [None; crate::quorum::NODES_MAX];
        for (at, member) in all.iter_mut().zip(self.live()) {
            *at = member.lease_at;
        }
        all.sort_unstable_by_key(|at| std::cmp::Reverse(*at));
        let until = all[self.majority - 1].filter(|_| self.ended.is_none()).map(|at| at + self.lease);
        self.published.lease_until_ns.store(until.map_or(0, Instant::nanos), Ordering::SeqCst);
    }

    pub(super) fn check_open(&self) -> Result<(), Error> {
        self.ended.clone().map_or(Ok(()), Err)
    }

    /// Whether the coordinator may answer now; ends it if its lease has run out.
    pub(in crate::coordinator) fn check_lease(&mut self) -> Result<(), Error> {
        self.check_open()?;
        if !self.published.is_leased() {
            self.end(Error::LeaseLost(self.term));
        }
        self.check_open()
    }

    /// Notes that a node's probe, posted at `posted_at`, has succeeded.
    pub(in crate::coordinator) fn renew(&mut self, held: &FencedNode, posted_at: Instant) {
        let member = &mut self.members[held.link.slot];
        if member.is_node(held) {
            member.lease_at = Some(posted_at);
            member.slow = member.slow.saturating_sub(1);
            self.publish_lease();
        }
    }

    /// Marks a node as lost because its verb has failed.
    pub(in crate::coordinator) fn lose(&mut self, held: &FencedNode, error: &rma::Error) {
        if self.members[held.link.slot].is_node(held) {
            self.lose_slot(held.link.slot, error);
        }
    }

    pub(super) fn lose_slot(&mut self, slot: usize, error: &rma::Error) {
        if *error == rma::Error::Revoked {
            // Only a newer coordinator revokes the capability, or we ourselves, after we have given the node up.
            self.end(Error::Fenced(self.term));
        }
        tracing::debug!(slot, %error, "a memory node is lost");
        self.members[slot] = MemberState::lost();
        self.lost_at = rt::now();
        self.publish_lease();
        self.note_changed();
        self.wake_blocked();
    }

    pub(in crate::coordinator) fn note_slow(&mut self, held: &FencedNode) {
        let member = &mut self.members[held.link.slot];
        if member.is_node(held) {
            member.slow = (member.slow + 8).min(64);
        }
    }

    /// Notes that a node's heartbeat has not completed within the lease; the node is lost when it is silent for
    /// `timeout`.
    pub(in crate::coordinator) fn note_silent(&mut self, held: &FencedNode, timeout: std::time::Duration) {
        self.note_slow(held);
        let member = &self.members[held.link.slot];
        if member.is_node(held) && member.lease_at.is_none_or(|at| at.elapsed() >= timeout) {
            self.lose_slot(held.link.slot, &rma::Error::Ambiguous("the node says nothing"));
        }
    }
}
