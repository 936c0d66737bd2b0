//! What goes on behind the callers: completions, commits, applying, headers, and room in the log.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use base::Bytes;

use super::member::Posted;
use super::{Member, Phase, State, Woken};
use crate::Error;
use crate::entry::Kind;
use crate::layout::{Cursor, Header};

impl State {
    /// Takes in what has completed, applies what is committed, and makes room; `cx` is woken for more.
    pub(in crate::coordinator) fn advance(&mut self, cx: &mut Context<'_>) -> Woken {
        let woken = self.take_in(u64::MAX, cx);
        self.apply();
        if self.used_bytes > self.layout.log_bytes / 2 {
            self.post_headers();
        }
        self.reclaim();
        woken
    }

    /// Takes in what has completed. Then waits until a majority has everything up to a ticket, and for nothing else, which matters
    /// where waiting is spinning; `cx` is woken for that.
    pub(in crate::coordinator) fn take_in(&mut self, until: u64, cx: &mut Context<'_>) -> Woken {
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
            if self.common(|member| member.acked) >= until {
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
        if progress { self.progressed() } else { Woken::default() }
    }

    /// The verb that was posted first to a node, of those that are under way, has completed.
    fn completed(&mut self, slot: usize, outcome: Result<(), rma::Error>) {
        match outcome {
            Ok(()) => {
                let member = &mut self.members[slot];
                let Posted { ticket, header, .. } = member.posted.pop_front().expect("one is under way");
                member.complete(ticket, header);
            }
            Err(error) => self.lose_slot(slot, &error),
        }
    }

    /// Something was acknowledged, or a node was lost.
    pub(super) fn progressed(&mut self) -> Woken {
        let mut woken = Woken::default();
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
        // Whoever polled last may not poll again: one of those that remain takes the completions over.
        if let Some(first) = first.filter(|first| *first < self.waiting.len()) {
            woken.0.push(self.waiting.swap_remove(first).1);
        }
        woken.0.append(&mut self.blocked);
        woken
    }

    /// What a majority of all nodes have reached, all of them live; 0 when there are not so many.
    fn common(&self, reached: impl Fn(&Member) -> u64) -> u64 {
        let mut all = [0; crate::group::NODES_MAX];
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
        self.committed = self.committed.max(self.common(|member| member.acked));
        self.published.committed.store(self.committed, Ordering::Release);
    }

    pub(in crate::coordinator) fn poll_committed(&mut self, ticket: u64, cx: &Context<'_>) -> Poll<Result<(), Error>> {
        if self.committed >= ticket {
            return Poll::Ready(Ok(()));
        }
        if self.ended.is_some() {
            // It was posted, and may be found by the next takeover.
            return Poll::Ready(Err(Error::Ambiguous));
        }
        self.waiting.push((ticket, cx.waker().clone()));
        Poll::Pending
    }

    /// Applies what is committed: posts it to the nodes' memory and unlocks its blocks.
    pub(super) fn apply(&mut self) {
        let mut applied = false;
        while self.unapplied.front().is_some_and(|entry| entry.ticket <= self.committed) && self.ended.is_none() {
            let entry = self.unapplied.pop_front().expect("it was just seen");
            if entry.kind == Kind::Writes {
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

    /// Up to here the log is no more needed by a node that has all of it applied.
    pub(super) fn watermark(&self) -> Cursor {
        let Some(record) = self.records.front().filter(|record| **record <= self.applied.index) else {
            return self.applied;
        };
        let before = record - 1;
        match before.checked_sub(self.kept_from.index) {
            Some(0) | None => self.kept_from,
            Some(distance) => self.kept[distance as usize - 1].after,
        }
    }

    pub(super) fn header(&self, sequence: u64, applied: Cursor) -> Header {
        Header { sequence, term: self.term, adopted: self.adopted, applied, nodes: self.nodes }
    }

    /// Tells the nodes how far they are.
    pub(super) fn post_headers(&mut self) {
        if self.ended.is_some() || !self.makes_room {
            return;
        }
        let watermark = self.watermark();
        for slot in 0..self.members.len() {
            let member = &self.members[slot];
            if member.phase == Phase::Live && !member.header_posted && member.applied < watermark.index {
                self.post_header(slot, watermark, self.ticket);
            }
        }
        self.flush();
    }

    pub(super) fn post_header(&mut self, slot: usize, watermark: Cursor, ticket: u64) {
        let sequence = self.members[slot].sequence + 1;
        let header = self.header(sequence, watermark);
        let member = &mut self.members[slot];
        member.sequence = sequence;
        member.header_posted = true;
        let bytes = Bytes::copy_from_slice(&header.encode());
        if let Err(error) = member.post(header.at(), &[bytes], ticket, Some(watermark.index)) {
            self.lose_slot(slot, &error);
        }
    }

    /// Makes room of what the headers of a majority cover; in a coded group of what those of every live node do, all of
    /// which have answered since one was lost.
    pub(super) fn reclaim(&mut self) {
        let mut covered = self.common(|member| member.applied);
        if self.shares.is_some() {
            if self.live().any(|member| member.lease_at.is_none_or(|at| at <= self.lost_at)) {
                return;
            }
            covered = self.live().map(|member| member.applied).fold(covered, u64::min);
        }
        let mut freed = false;
        while let Some(kept) = self.kept.front().filter(|kept| kept.after.index <= covered) {
            self.used_bytes -= kept.bytes;
            self.kept_from = kept.after;
            self.kept.pop_front();
            freed = true;
        }
        if freed {
            self.wake_blocked();
        }
    }

    /// Applies what can be, and tells the nodes.
    pub(in crate::coordinator) fn apply_all(&mut self) {
        self.apply();
        self.post_headers();
        self.reclaim();
    }

    pub(in crate::coordinator) fn is_settled(&self) -> bool {
        let watermark = self.watermark().index;
        self.unapplied.is_empty() && self.live().all(|member| member.applied >= watermark)
    }
}
