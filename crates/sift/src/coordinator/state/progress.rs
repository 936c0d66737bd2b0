//! The steps after a verb completes: commits and applies entries, writes headers that record how far each memory node
//! is, and frees log space.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use base::Bytes;

use super::member::PostedVerb;
use super::{CoordinatorState, MemberState, NodePhase, WakeList};
use crate::Error;
use crate::entry::EntryKind;
use crate::layout::{CopyHeader, LogCursor};

impl CoordinatorState {
    /// Processes completions, applies committed entries, and frees log space; wakes `cx` at the next completion.
    pub(in crate::coordinator) fn advance(&mut self, cx: &mut Context<'_>) -> WakeList {
        let woken = self.poll_completions(u64::MAX, cx);
        self.apply();
        if self.used_bytes > self.layout.log_bytes / 2 {
            self.post_headers();
        }
        self.reclaim();
        woken
    }

    /// Processes completions. Then polls only as many nodes as a majority for `until` needs, which matters where
    /// waiting is spinning; `cx` is woken for those.
    pub(in crate::coordinator) fn poll_completions(&mut self, until: u64, cx: &mut Context<'_>) -> WakeList {
        let mut progress = false;
        for slot in 0..self.members.len() {
            while let Some(front) = self.members[slot].posted.front_mut()
                && let Some(outcome) = front.completion.take_now()
            {
                self.completed(slot, outcome);
                progress = true;
            }
        }
        for slot in 0..self.members.len() {
            if self.majority_reached(|member| member.acked) >= until {
                break;
            }
            while self.members[slot].acked < until
                && let Some(front) = self.members[slot].posted.front_mut()
                && let Poll::Ready(outcome) = Pin::new(&mut front.completion).poll(cx)
            {
                self.completed(slot, outcome);
                progress = true;
            }
        }
        if progress { self.handle_progress() } else { WakeList::default() }
    }

    /// The oldest outstanding verb to a node has completed.
    fn completed(&mut self, slot: usize, outcome: Result<(), rma::Error>) {
        match outcome {
            Ok(()) => {
                let member = &mut self.members[slot];
                let PostedVerb { sequence, header, .. } = member.posted.pop_front().expect("one is under way");
                member.complete(sequence, header);
            }
            Err(error) => self.lose_slot(slot, &error),
        }
    }

    /// Called after a verb was acknowledged, or a node was lost.
    pub(super) fn handle_progress(&mut self) -> WakeList {
        let mut woken = WakeList::default();
        self.commit();
        let committed = self.committed;
        let mut first: Option<usize> = None;
        let mut at = 0;
        while at < self.waiting.len() {
            if self.waiting[at].0 <= committed {
                woken.0.push(self.waiting.swap_remove(at).1);
                continue;
            }
            if first.is_none_or(|first| self.waiting[at].0 < self.waiting[first].0) {
                first = Some(at);
            }
            at += 1;
        }
        // The caller that polled last may not poll again, so one of the remaining callers takes over the completions.
        if let Some(first) = first.filter(|first| *first < self.waiting.len()) {
            woken.0.push(self.waiting.swap_remove(first).1);
        }
        woken.0.append(&mut self.blocked);
        woken
    }

    /// The value that a majority of all nodes has reached, counting live nodes only; 0 when fewer than a majority are
    /// live.
    fn majority_reached(&self, reached: impl Fn(&MemberState) -> u64) -> u64 {
        let mut all = [0; crate::quorum::NODES_MAX];
        let mut live = 0;
        for member in self.live() {
            all[live] = reached(member);
            live += 1;
        }
        if live < self.majority {
            return 0;
        }
        all[..live].sort_unstable_by_key(|value| std::cmp::Reverse(*value));
        all[self.majority - 1]
    }

    pub(super) fn commit(&mut self) {
        self.committed = self.committed.max(self.majority_reached(|member| member.acked));
        self.published.committed.store(self.committed, Ordering::Release);
    }

    pub(in crate::coordinator) fn poll_committed(
        &mut self,
        sequence: u64,
        cx: &Context<'_>,
    ) -> Poll<Result<(), Error>> {
        if self.committed >= sequence {
            return Poll::Ready(Ok(()));
        }
        if self.ended.is_some() {
            // It was posted, so the next takeover may find it.
            return Poll::Ready(Err(Error::Ambiguous));
        }
        self.waiting.push((sequence, cx.waker().clone()));
        Poll::Pending
    }

    /// Applies committed entries: posts their writes to the nodes' memory and unlocks their blocks.
    pub(super) fn apply(&mut self) {
        let mut applied = false;
        while self.unapplied.front().is_some_and(|entry| entry.sequence <= self.committed) && self.ended.is_none() {
            let entry = self.unapplied.pop_front().expect("it was just seen");
            if entry.kind == EntryKind::Writes {
                for write in entry.writes.as_slice() {
                    self.post_memory(write.address, &write.bytes, self.ticket);
                    for block in self.blocks(write.address, write.bytes.len() as u64) {
                        self.locked[block / 64] &= !(1 << (block % 64));
                    }
                }
            }
            self.unapplied_bytes -= entry.bytes;
            self.applied = entry.after;
            self.committed_index = entry.after.index;
            applied = true;
        }
        if applied {
            self.flush();
            self.wake_blocked();
        }
    }

    /// The position up to which a node that has applied everything no longer needs the log.
    pub(super) fn watermark(&self) -> LogCursor {
        let Some(record) = self.records.front().filter(|record| **record <= self.applied.index) else {
            return self.applied;
        };
        let before = record - 1;
        match before.checked_sub(self.retained_from.index) {
            Some(0) | None => self.retained_from,
            Some(distance) => self.retained[distance as usize - 1].after,
        }
    }

    pub(super) fn header(&self, sequence: u64, applied: LogCursor) -> CopyHeader {
        CopyHeader { sequence, term: self.term, adopted: self.adopted, applied, nodes: self.nodes }
    }

    /// Posts headers that tell the nodes how far they are.
    pub(super) fn post_headers(&mut self) {
        if self.ended.is_some() || !self.reclaims_log {
            return;
        }
        let watermark = self.watermark();
        for slot in 0..self.members.len() {
            let member = &self.members[slot];
            if member.phase == NodePhase::Live && !member.header_posted && member.applied < watermark.index {
                self.post_header(slot, watermark, self.ticket);
            }
        }
        self.flush();
    }

    pub(super) fn post_header(&mut self, slot: usize, watermark: LogCursor, verb_sequence: u64) {
        let sequence = self.members[slot].sequence + 1;
        let header = self.header(sequence, watermark);
        let member = &mut self.members[slot];
        member.sequence = sequence;
        member.header_posted = true;
        let bytes = Bytes::copy_from_slice(&header.encode());
        if let Err(error) = member.post(header.at(), &[bytes], verb_sequence, Some(watermark.index)) {
            self.lose_slot(slot, &error);
        }
    }

    /// Frees the log space that the headers of a majority cover. In an erasure-coded group, frees what the headers of
    /// every live node cover, once all live nodes have answered since a node was last lost.
    pub(super) fn reclaim(&mut self) {
        let mut covered = self.majority_reached(|member| member.applied);
        if self.shards.is_some() {
            if self.live().any(|member| member.lease_at.is_none_or(|at| at <= self.lost_at)) {
                return;
            }
            covered = self.live().map(|member| member.applied).fold(covered, u64::min);
        }
        let mut freed = false;
        while let Some(kept) = self.retained.front().filter(|kept| kept.after.index <= covered) {
            self.used_bytes -= kept.bytes;
            self.retained_from = kept.after;
            self.retained.pop_front();
            freed = true;
        }
        if freed {
            self.wake_blocked();
        }
    }

    /// Applies committed entries, posts headers, and frees log space.
    pub(in crate::coordinator) fn apply_all(&mut self) {
        self.apply();
        self.post_headers();
        self.reclaim();
    }

    pub(in crate::coordinator) fn is_fully_applied(&self) -> bool {
        let watermark = self.watermark().index;
        self.unapplied.is_empty() && self.live().all(|member| member.applied >= watermark)
    }
}
