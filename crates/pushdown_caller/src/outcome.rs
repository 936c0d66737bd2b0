//! How calls end, and what their threads do until then.

use page_coherence::{CallId, PageNumber};
use pushdown::Ended;

/// How a call ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// The function returned, or a signal ended it.
    Ended(Ended),
    /// The executor is gone.
    Lost,
    /// Too many calls wait.
    Busy,
    /// The executor has ended the function at this instruction, because its time was over.
    Killed { call: CallId, instruction: u64 },
    /// It was removed from the executor's queue.
    Cancelled,
}

impl Outcome {
    /// Whether the function has certainly not run.
    pub(crate) fn has_not_run(self) -> bool {
        matches!(self, Outcome::Busy | Outcome::Cancelled)
    }
}

/// What a thread in a call does next.
pub(crate) enum Task {
    /// A system call for its function.
    SystemCall(u64, [u64; 6]),
    /// It waits for these pages, and then the call is over.
    End(Outcome, Vec<PageNumber>),
}
