//! How calls have ended, in numbers.

use crate::outcome::Outcome;

/// How calls have ended.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct CallCounts {
    pub(crate) returned: u64,
    pub(crate) signalled: u64,
    pub(crate) killed: u64,
    pub(crate) cancelled: u64,
    pub(crate) busy: u64,
    pub(crate) lost: u64,
    /// Attempts to cancel a call whose function ran, or had ended.
    pub(crate) declined: u64,
}

impl CallCounts {
    /// A call has ended so.
    pub(crate) fn add(&mut self, outcome: Outcome) {
        let count = match outcome {
            Outcome::Ended(ended) if ended.signal == 0 => &mut self.returned,
            Outcome::Ended(_) => &mut self.signalled,
            Outcome::Killed { .. } => &mut self.killed,
            Outcome::Cancelled => &mut self.cancelled,
            Outcome::Busy => &mut self.busy,
            Outcome::Lost => &mut self.lost,
        };
        *count += 1;
    }
}
