//! What the disk of a persistent memory node has ("Persistent memory nodes" at the head of [`crate::coordinator`]).

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use base::Bytes;

use super::{Phase, State, Woken};
use crate::coordinator::UNKEPT_BYTES_MAX;
use crate::fault::{Mutant, mutant};
use crate::link::Held;

/// Bytes of one message, where a single write has not more.
const MESSAGE_BYTES: u64 = 4 << 20;

/// Verbs of a persistent node, counted from its coming on.
#[derive(Default)]
pub(super) struct Journal {
    posted: u64,
    completed: u64,
    kept: u64,
    /// Those that were not sent, with the number of each.
    unsent: VecDeque<(u64, u64, Bytes)>,
    /// Bytes of those, and of what is being sent.
    bytes: u64,
    sending_bytes: u64,
    sending: bool,
    /// Verbs that are not acknowledged: number, ticket, and what a header says.
    open: VecDeque<(u64, u64, Option<u64>)>,
}

/// What is to be kept.
pub(in crate::coordinator) struct Unkept {
    pub held: Held,
    pub writes: Vec<(u64, Bytes)>,
    /// The number of the last verb.
    pub until: u64,
}

impl Journal {
    /// That of a node, if it is persistent.
    pub(super) fn of(held: &Held) -> Option<Journal> {
        held.link.is_persistent.then(Journal::default)
    }

    pub(super) fn add(&mut self, at: u64, parts: &[Bytes], ticket: u64, header: Option<u64>) {
        self.posted += 1;
        self.open.push_back((self.posted, ticket, header));
        let mut at = at;
        for part in parts.iter().filter(|part| !part.is_empty()) {
            self.unsent.push_back((self.posted, at, part.clone()));
            self.bytes += part.len() as u64;
            at += part.len() as u64;
        }
    }

    /// One more verb has completed; they do so in order.
    pub(super) fn complete(&mut self) {
        self.completed += 1;
    }

    /// The next verb that has completed and is kept.
    pub(super) fn settled(&mut self) -> Option<(u64, Option<u64>)> {
        let kept = if mutant(Mutant::CountUnsynced) { u64::MAX } else { self.kept };
        let reached = self.completed.min(kept);
        let (_, ticket, header) = *self.open.front().filter(|(number, ..)| *number <= reached)?;
        self.open.pop_front();
        Some((ticket, header))
    }

    /// Whether something can be sent.
    fn has_unsent(&self) -> bool {
        !self.sending && !self.unsent.is_empty()
    }

    /// What is to be sent next: whole verbs.
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

    fn note_kept(&mut self, until: u64) {
        self.kept = until;
        self.bytes -= std::mem::take(&mut self.sending_bytes);
        self.sending = false;
    }
}

impl State {
    /// Whether too much waits for some disk.
    pub(super) fn is_behind(&self) -> bool {
        let behind = |journal: &Journal| journal.bytes >= UNKEPT_BYTES_MAX;
        self.members.iter().any(|member| member.phase != Phase::Lost && member.journal.as_ref().is_some_and(behind))
    }

    /// Wakes those who have something to send.
    pub(super) fn tell_unkept(&mut self) {
        for (member, waker) in self.members.iter().zip(&mut self.unkept) {
            if member.journal.as_ref().is_some_and(Journal::has_unsent) {
                waker.take().into_iter().for_each(Waker::wake);
            }
        }
    }

    /// Completes when there is something for a node to keep.
    pub(in crate::coordinator) fn poll_unkept(&mut self, slot: usize, cx: &Context<'_>) -> Poll<()> {
        if self.members[slot].journal.as_ref().is_some_and(Journal::has_unsent) {
            return Poll::Ready(());
        }
        self.unkept[slot] = Some(cx.waker().clone());
        Poll::Pending
    }

    /// What a node is to keep.
    pub(in crate::coordinator) fn take_unkept(&mut self, slot: usize) -> Option<Unkept> {
        let member = &mut self.members[slot];
        let (held, journal) = (member.held.as_ref()?, member.journal.as_mut()?);
        let (writes, until) = journal.take()?;
        Some(Unkept { held: held.clone(), writes, until })
    }

    /// A node's disk has everything up to a verb.
    pub(in crate::coordinator) fn note_kept(&mut self, held: &Held, until: u64) -> Woken {
        let member = &mut self.members[held.link.slot];
        if !member.is_held_by(held) {
            return Woken::default();
        }
        if let Some(journal) = &mut member.journal {
            journal.note_kept(until);
        }
        member.settle();
        self.progressed()
    }
}
