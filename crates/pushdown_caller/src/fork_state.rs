//! How far forks are.

use std::collections::VecDeque;

use page_coherence::{Access, PageNumber};

/// How far threads are that fork.
#[derive(Default)]
pub(crate) struct Forks {
    /// Threads that gather pages, or have them all.
    pub(crate) gatherers: u32,
    /// Of these, threads that have them all.
    pub(crate) holders: u32,
    /// Pages that the executor has asked for since, and how.
    pub(crate) deferred: VecDeque<(PageNumber, Access)>,
}

impl Forks {
    /// Whether no message may be handled.
    pub(crate) fn is_holding(&self) -> bool {
        self.holders > 0
    }

    /// Notes a request that has to wait.
    pub(crate) fn defer(&mut self, page: PageNumber, access: Access) {
        self.deferred.push_back((page, access));
    }
}
