//! Pages that go to the executor before a function asks for them.
//!
//! A page that a function needs costs a fault, a request and an answer. Those that the executor has asked for in earlier calls of a function
//! ([`History`](pushdown::History) has which) go home right before the call instead, as if they were evicted (`page_coherence`, step 10): each
//! costs one message, and the executor maps it while the next one is taken.
//!
//! Only the default mode does so: in weaker ones both sides keep a page. A page that the executor only reads stays, since it will be on
//! both sides.

use bare::system_call::Errno;
use page_coherence::{Access, CoherenceMode, PageNumber, Right, ToCaller as CoherenceToCaller};
use pushdown::Runner;

use crate::caller::{Broken, Caller};

impl Caller {
    /// The executor asks for a page: notes it for the function that runs. If several run, nobody knows which one needs it, and nothing is
    /// noted.
    pub(crate) fn note_request(&mut self, message: &CoherenceToCaller) {
        if let CoherenceToCaller::Request { page, access } = message
            && self.calls.len() == 1
            && let Some(call) = self.calls.values().next()
        {
            self.asked_for.note(call.runner, *page, *access);
        }
    }

    /// Sends the pages home that a function is expected to need.
    pub(crate) fn send_ahead(&mut self, runner: Runner, mode: CoherenceMode) -> Result<(), Broken> {
        let is_other_mode = self.side.mode().is_some_and(|open| open != CoherenceMode::Coherent);
        if mode != CoherenceMode::Coherent || is_other_mode || self.is_remapping || self.forks.is_gathering() {
            return Ok(());
        }
        for (page, access) in self.asked_for.begin(runner) {
            if access == Access::Write && self.can_leave(page) {
                match self.pages.take(page) {
                    Ok(contents) => {
                        let mut out = Vec::new();
                        self.side.evict(page, &mut out).map_err(|_| Broken::Protocol("a page that is on its way"))?;
                        self.carry_out_taken((page, Some(contents)), out)?;
                    }
                    // The program may not write it any more, or a device is using it. Events that were read meanwhile are handled.
                    Err(Errno(libc::EINVAL | libc::EBUSY)) => self.carry_out(Vec::new(), &[])?,
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    /// Whether a page is the program's alone, and nothing is happening to it.
    fn can_leave(&self, page: PageNumber) -> bool {
        self.side.right(page) == Right::Write
            && self.side.is_dirty(page)
            && !self.side.is_waiting(page)
            && self.pages.has_registered(page.0..page.0 + 1)
            && !self.dropping.iter().any(|pages| pages.contains(&page.0))
    }
}
