//! Tickets, by which threads cancel the calls of others, and what is remembered of killed calls.

use std::collections::BTreeMap;
use std::ops::Range;

use page_coherence::CallId;

use crate::outcome::Outcome;

/// Killed calls whose pages are remembered.
const KILLED_MAX: usize = 64;

/// A ticket. There is one as long as its thread may push its function down, or another thread waits for an answer.
#[derive(Default)]
pub(crate) struct Ticket {
    /// The call that is open.
    pub(crate) call: Option<CallId>,
    /// The last call that was removed from the queue.
    pub(crate) removed: Option<CallId>,
    /// It was cancelled while no call was open: the next one is not made.
    pub(crate) is_cancelled: bool,
    /// Threads that wait for an answer.
    pub(crate) cancellers: u32,
    /// Its function has run, or its thread pushes nothing down any more.
    pub(crate) is_over: bool,
}

/// The tickets, and what is remembered of killed calls.
#[derive(Default)]
pub(crate) struct Tickets {
    pub(crate) last: u64,
    pub(crate) open: BTreeMap<u64, Ticket>,
    pub(crate) killed: BTreeMap<CallId, Vec<Range<u64>>>,
}

impl Tickets {
    /// Whether the call that the thread of a ticket is about to open was cancelled before. It is asked once.
    pub(crate) fn is_cancelled(&mut self, ticket: Option<u64>) -> bool {
        let ticket = ticket.and_then(|ticket| self.open.get_mut(&ticket));
        ticket.is_some_and(|ticket| std::mem::take(&mut ticket.is_cancelled))
    }

    /// The thread of a ticket opens a call.
    pub(crate) fn open_call(&mut self, ticket: Option<u64>, call: CallId) {
        if let Some(ticket) = ticket.and_then(|ticket| self.open.get_mut(&ticket)) {
            ticket.call = Some(call);
        }
    }

    /// A call with a ticket, or without, has ended so. If it was killed, the pages may be torn.
    pub(crate) fn close_call(&mut self, ticket: Option<u64>, call: CallId, outcome: Outcome, torn: Vec<Range<u64>>) {
        if let Some(ticket) = ticket.and_then(|ticket| self.open.get_mut(&ticket)) {
            ticket.call = None;
            // A thread that asks between the end of the call and that of its ticket must not take it for one that was never made.
            ticket.is_over = !outcome.has_not_run();
            if outcome == Outcome::Cancelled {
                ticket.removed = Some(call);
            }
        }
        if matches!(outcome, Outcome::Killed { .. }) {
            self.killed.insert(call, torn);
            while self.killed.len() > KILLED_MAX {
                self.killed.pop_first();
            }
        }
    }

    /// Forgets a ticket that nobody needs any more.
    pub(crate) fn remove_if_over(&mut self, number: u64) {
        if self.open.get(&number).is_some_and(|ticket| ticket.is_over && ticket.cancellers == 0) {
            self.open.remove(&number);
        }
    }
}
