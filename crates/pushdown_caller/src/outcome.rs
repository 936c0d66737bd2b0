//! How calls end, and what their threads do until then.

use page_coherence::{CallId, PageNumber};
use pushdown::{Ended, Stamps};

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

/// When the message of a call was sent, when the executor did what, and when the calling thread noticed the end; in cycles. All zero if the
/// function has not run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct CallStamps {
    pub(crate) sent: u64,
    pub(crate) executor: Stamps,
    pub(crate) noticed: u64,
}

/// What a thread in a call does next.
pub(crate) enum Task {
    /// A system call for its function.
    SystemCall(u64, [u64; 6]),
    /// It waits for these pages, and then the call is over.
    End(Outcome, CallStamps, Vec<PageNumber>),
}
