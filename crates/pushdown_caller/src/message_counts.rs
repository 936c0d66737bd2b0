//! Messages about pages, in numbers.

/// Messages about pages. They say what a mode costs.
#[derive(Clone, Copy, Default)]
pub(crate) struct MessageCounts {
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

/// Ranges of bytes that are asked for. There is one batch at a time.
#[derive(Clone, Copy, Default)]
pub(crate) struct PullCounts {
    /// Answers that are on their way.
    pub(crate) open: u64,
    pub(crate) begun: u64,
    pub(crate) done: u64,
}

impl PullCounts {
    /// An answer has come.
    pub(crate) fn has_come(&mut self) {
        self.open = self.open.saturating_sub(1);
        if self.open == 0 {
            self.done = self.begun;
        }
    }
}
