//! The queue between the handler and the prefetcher.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::page::PageRange;

/// Requests that wait; one more is refused, and its pages are fetched when the program touches them.
const REQUESTS_MAX: usize = 16;

/// Pages to fetch, which are filling.
pub(crate) struct ReadAheadRequest {
    pub(super) ranges: Vec<PageRange>,
    pub(super) writable: bool,
}

/// Requests in order.
#[derive(Default)]
pub(crate) struct ReadAheadQueue {
    waiting: Mutex<WaitingRequests>,
    changed: Condvar,
}

#[derive(Default)]
struct WaitingRequests {
    requests: VecDeque<ReadAheadRequest>,
    is_closed: bool,
}

impl ReadAheadQueue {
    fn lock(&self) -> MutexGuard<'_, WaitingRequests> {
        // Consistent between any two statements.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has pages fetched. Returns the request if too many wait.
    pub(super) fn push(&self, request: ReadAheadRequest) -> Result<(), ReadAheadRequest> {
        let mut waiting = self.lock();
        if waiting.requests.len() >= REQUESTS_MAX {
            return Err(request);
        }
        waiting.requests.push_back(request);
        drop(waiting);
        self.changed.notify_one();
        Ok(())
    }

    /// The next request; `None` when the region ends.
    pub(super) fn next(&self) -> Option<ReadAheadRequest> {
        let mut waiting = self.lock();
        while !waiting.is_closed {
            if let Some(request) = waiting.requests.pop_front() {
                return Some(request);
            }
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    /// Ends the prefetcher. Requests that wait are dropped with their region.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }
}
