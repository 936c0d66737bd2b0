//! Leases, nodes that are lost, and how a coordinator ends.

use base::rt::{self, Instant};

use super::{Member, Phase, State};
use crate::Error;
use crate::link::Held;

impl State {
    pub(in crate::coordinator) fn ended(&self) -> Option<Error> {
        self.ended.clone()
    }

    pub(in crate::coordinator) fn end(&mut self, error: Error) {
        if self.ended.is_none() {
            tracing::info!(term = %self.term, %error, "a coordinator ends");
            self.ended = Some(error);
            self.changed = true;
            let waiting = std::mem::take(&mut self.waiting).into_iter().map(|(_, waker)| waker);
            waiting.chain(std::mem::take(&mut self.blocked)).for_each(std::task::Waker::wake);
        }
    }

    /// Whether the keepers have something to look at, and whether the coordinator has ended.
    pub(in crate::coordinator) fn take_changed(&mut self) -> (bool, bool) {
        (std::mem::take(&mut self.changed), self.ended.is_some())
    }

    pub(super) fn check_open(&self) -> Result<(), Error> {
        self.ended.clone().map_or(Ok(()), Err)
    }

    /// Whether the coordinator may answer now; it ends when its lease has run out.
    pub(in crate::coordinator) fn check_lease(&mut self) -> Result<(), Error> {
        self.check_open()?;
        let mut leases: Vec<Instant> = self
            .members
            .iter()
            .filter(|member| member.phase == Phase::Live)
            .filter_map(|member| member.lease_at)
            .collect();
        leases.sort_unstable_by_key(|at| std::cmp::Reverse(*at));
        let stands = leases.get(self.majority - 1).is_some_and(|at| rt::now() < *at + self.lease);
        if !stands {
            self.end(Error::LeaseLost(self.term));
        }
        self.check_open()
    }

    /// A node's probe has succeeded that was posted at a time.
    pub(in crate::coordinator) fn renew(&mut self, held: &Held, posted_at: Instant) {
        let member = &mut self.members[held.link.slot];
        if member.is_held_by(held) {
            member.lease_at = Some(posted_at);
            member.slow = member.slow.saturating_sub(1);
        }
    }

    /// A node's verb has failed.
    pub(in crate::coordinator) fn lose(&mut self, held: &Held, error: &rma::Error) {
        if self.members[held.link.slot].is_held_by(held) {
            self.lose_slot(held.link.slot, error);
        }
    }

    pub(super) fn lose_slot(&mut self, slot: usize, error: &rma::Error) {
        if *error == rma::Error::Revoked {
            // Nobody revokes it but a newer coordinator, or we ourselves, who have let go of it before.
            self.end(Error::Fenced(self.term));
        }
        tracing::debug!(slot, %error, "a memory node is lost");
        self.members[slot] = Member::lost();
        self.lost_at = rt::now();
        self.changed = true;
        self.wake_blocked();
    }

    pub(in crate::coordinator) fn note_slow(&mut self, held: &Held) {
        let member = &mut self.members[held.link.slot];
        if member.is_held_by(held) {
            member.slow = (member.slow + 8).min(64);
        }
    }

    /// A node's heartbeat has not completed within the lease.
    pub(in crate::coordinator) fn note_silent(&mut self, held: &Held, patience: std::time::Duration) {
        self.note_slow(held);
        let member = &self.members[held.link.slot];
        if member.is_held_by(held) && member.lease_at.is_none_or(|at| at.elapsed() >= patience) {
            self.lose_slot(held.link.slot, &rma::Error::Ambiguous("the node says nothing"));
        }
    }
}
