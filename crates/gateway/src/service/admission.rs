//! Places for calls: a bounded number of them.

use base::rt::sync::{Permit, Semaphore};

use crate::events::{CallsInFlight, StreamsOpen};

/// How many calls a port works on at once.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Calls with one answer.
    pub calls_max: usize,
    /// Streams of blocks, events and envelopes.
    pub streams_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { calls_max: 4096, streams_max: 2048 }
    }
}

pub(super) struct Admission {
    calls: Semaphore,
    streams: Semaphore,
}

/// A place. Dropping it gives it back.
pub(super) struct Place {
    is_stream: bool,
    _permit: Permit,
}

impl Admission {
    pub(super) fn new(limits: &Limits) -> Admission {
        Admission { calls: Semaphore::new(limits.calls_max), streams: Semaphore::new(limits.streams_max) }
    }

    /// A place, if there is one.
    pub(super) fn enter(&self, is_stream: bool) -> Option<Place> {
        let permit = if is_stream { self.streams.try_acquire() } else { self.calls.try_acquire() }?;
        if is_stream {
            StreamsOpen.add(1);
        } else {
            CallsInFlight.add(1);
        }
        Some(Place { is_stream, _permit: permit })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_stream {
            StreamsOpen.add(-1);
        } else {
            CallsInFlight.add(-1);
        }
    }
}
