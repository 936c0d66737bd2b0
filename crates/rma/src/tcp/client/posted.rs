//! Verbs in flight, and what happens to their outcomes.

use std::collections::VecDeque;

use base::BytesMut;

use crate::{Completer, Completion, Error};

/// Verbs in flight. Locked before the outgoing queue, so that both have the same order.
pub(super) struct PostedVerbs {
    pub(super) in_flight: VecDeque<PendingVerb>,
    /// The number of the next verb to be posted. Frames carry its lower half.
    pub(super) next: u64,
    /// The task waits for the replies of verbs before this one.
    pub(super) asked: u64,
    /// Nothing more is posted.
    pub(super) closed: bool,
    /// The connection is lost.
    pub(super) lost: bool,
}

pub(super) struct PendingVerb {
    pub(super) sequence: u64,
    pub(super) outcome: VerbOutcome,
}

pub(super) enum VerbOutcome {
    Read { into: BytesMut, offset: u64, length: usize, completer: Completer<BytesMut> },
    Write { offset: u64, length: u64, completer: Completer<()> },
    Word { offset: u64, completer: Completer<u64> },
}

impl VerbOutcome {
    /// The same outcome without a waiter.
    pub(super) fn nobodys(&self) -> VerbOutcome {
        match *self {
            VerbOutcome::Read { offset, length, .. } => {
                VerbOutcome::Read { into: BytesMut::new(), offset, length, completer: Completion::pending().0 }
            }
            VerbOutcome::Write { offset, length, .. } => {
                VerbOutcome::Write { offset, length, completer: Completion::pending().0 }
            }
            VerbOutcome::Word { offset, .. } => VerbOutcome::Word { offset, completer: Completion::pending().0 },
        }
    }

    pub(super) fn fail(self, error: &Error) {
        match self {
            VerbOutcome::Read { completer, .. } => completer.complete(Err(error.clone())),
            VerbOutcome::Write { completer, .. } => completer.complete(Err(error.clone())),
            VerbOutcome::Word { completer, .. } => completer.complete(Err(error.clone())),
        }
    }
}
