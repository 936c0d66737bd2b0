//! Cancelling (section 3.2).
//!
//! 1. When a call's time-out has passed, or another thread asks for it, the caller sends *cancel*. A call that waits for its turn is removed from the
//!    executor's queue. One that runs is not cancelled, and its thread waits on.
//! 2. What follows a call that has not run is for its terms to say: nothing, another push, or running the function here.

use std::ops::Range;
use std::time::Duration;

use bare::alarm::now;
use page_coherence::CallId;

use crate::caller::Caller;
use crate::outcome::Outcome;
use crate::stacks::on_private_stack;
use crate::terms::Cancelling;
use crate::tickets::Ticket;
use crate::wait::{CALLER, wait_until};

/// What came of an attempt to cancel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CancelOutcome {
    /// The function has not run.
    Removed,
    /// It runs, or has ended.
    Declined,
    /// The executor is gone.
    Lost,
    /// There is no such ticket.
    Unknown,
}

impl Caller {
    /// Cancels the calls whose time-out has passed.
    pub(crate) fn cancel_late(&mut self) {
        if self.calls.values().all(|call| call.cancel_at.is_none()) {
            return;
        }
        let now = now();
        let late = self.calls.iter().filter(|(_, call)| call.cancel_at.is_some_and(|at| at <= now));
        let late: Vec<CallId> = late.map(|(call, _)| *call).collect();
        for call in late {
            self.cancel(call);
        }
    }

    /// When [`Caller::cancel_late`] has something to do.
    pub(crate) fn next_cancel(&self) -> Option<Duration> {
        self.calls.values().filter_map(|call| call.cancel_at).min()
    }

    /// Asks the executor to remove a call from its queue, once.
    fn cancel(&mut self, call: CallId) {
        let Some(open) = self.calls.get_mut(&call) else { return };
        open.cancel_at = None;
        if open.cancelling == Cancelling::No && open.outcome.is_none() && !self.is_lost {
            open.cancelling = Cancelling::Asked;
            let mut out = Vec::new();
            // The coherence protocol has forgotten a call whose reply is here.
            if self.side.try_cancel(call, &mut out).is_ok() {
                let sent = self.carry_out(out, &[]);
                self.check(sent);
            }
        }
    }

    /// The executor has declined to cancel a call.
    pub(crate) fn declined(&mut self, call: CallId) {
        self.call_counts.declined += 1;
        if let Some(open) = self.calls.get_mut(&call) {
            open.cancelling = Cancelling::Declined;
        }
    }

    fn open_ticket(&mut self) -> u64 {
        self.tickets.last += 1;
        self.tickets.open.insert(self.tickets.last, Ticket::default());
        self.tickets.last
    }

    fn close_ticket(&mut self, number: u64) {
        if let Some(ticket) = self.tickets.open.get_mut(&number) {
            ticket.is_over = true;
        }
        self.tickets.remove_if_over(number);
    }

    /// Begins to cancel: the call whose answer is to be waited for, or what came of it at once.
    fn begin_cancel(&mut self, number: u64) -> Result<CallId, CancelOutcome> {
        let last = self.tickets.last;
        let Some(ticket) = self.tickets.open.get_mut(&number) else {
            let was_there = (1..=last).contains(&number);
            return Err(if was_there { CancelOutcome::Declined } else { CancelOutcome::Unknown });
        };
        let Some(call) = ticket.call else {
            if ticket.is_over {
                return Err(CancelOutcome::Declined);
            }
            if self.is_lost {
                return Err(CancelOutcome::Lost);
            }
            // Before the first push, between two, or behind one that was in vain.
            ticket.is_cancelled = true;
            return Err(CancelOutcome::Removed);
        };
        ticket.cancellers += 1;
        self.cancel(call);
        Ok(call)
    }

    /// What came of cancelling a call, once it is known.
    fn cancel_outcome(&mut self, number: u64, call: CallId) -> Option<CancelOutcome> {
        let outcome = match self.calls.get(&call) {
            Some(open) => match open.outcome {
                Some(Outcome::Cancelled) => CancelOutcome::Removed,
                Some(Outcome::Lost) => CancelOutcome::Lost,
                Some(_) => CancelOutcome::Declined,
                None if open.cancelling == Cancelling::Declined => CancelOutcome::Declined,
                None => return None,
            },
            // Its thread has gone on.
            None => match self.tickets.open.get(&number).and_then(|ticket| ticket.removed) {
                Some(removed) if removed >= call => CancelOutcome::Removed,
                _ if self.is_lost => CancelOutcome::Lost,
                _ => CancelOutcome::Declined,
            },
        };
        if let Some(ticket) = self.tickets.open.get_mut(&number) {
            ticket.cancellers -= 1;
        }
        self.tickets.remove_if_over(number);
        Some(outcome)
    }
}

/// A new ticket; `None` if the library is not open.
pub(crate) fn open_ticket() -> Option<u64> {
    on_private_stack(|_, _| CALLER.acquire().as_mut().map(Caller::open_ticket))
}

/// The thread of a ticket goes on.
pub(crate) fn close_ticket(number: u64) {
    on_private_stack(move |_, _| {
        if let Some(caller) = CALLER.acquire().as_mut() {
            caller.close_ticket(number);
        }
    });
}

/// Cancels the call of a ticket, unless it runs or has ended.
pub(crate) fn try_cancel(number: u64) -> CancelOutcome {
    on_private_stack(move |_, _| {
        let begun = CALLER.acquire().as_mut().map(|caller| caller.begin_cancel(number));
        match begun {
            None => CancelOutcome::Unknown,
            Some(Err(outcome)) => outcome,
            Some(Ok(call)) => {
                wait_until(|caller| caller.cancel_outcome(number, call)).unwrap_or(CancelOutcome::Unknown)
            }
        }
    })
}

/// The pages that a killed call may have left torn; `None` if they are not remembered any more.
pub(crate) fn torn_pages(call: CallId) -> Option<Vec<Range<u64>>> {
    on_private_stack(move |_, _| CALLER.acquire().as_ref()?.tickets.killed.get(&call).cloned())
}
