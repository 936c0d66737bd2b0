//! Places for calls: a bounded number of each kind, and of those a share for one connection.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::rt::sync::{Permit, Semaphore};

use crate::events::{CallsInFlight, StreamsOpen};
use crate::rpc::call::Held;

/// Watchers of a port's health. They show no certificate and may stay for ever, so they have places of their own.
const WATCHES_MAX: usize = 256;

/// How many calls a port works on at once. One connection may hold half of each.
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

/// What a place is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// One answer.
    Call,
    /// Blocks, events or envelopes.
    Stream,
    /// The port's health.
    Watch,
}

pub(super) struct Admission {
    places: [Places; 3],
}

struct Places {
    free: Semaphore,
    connection_max: usize,
}

/// A place. Dropping it gives it back.
pub(super) struct Place {
    kind: Kind,
    held: Arc<Held>,
    _permit: Permit,
}

impl Admission {
    pub(super) fn new(limits: &Limits) -> Admission {
        let places = [limits.calls_max, limits.streams_max, WATCHES_MAX];
        Admission { places: places.map(|max| Places { free: Semaphore::new(max), connection_max: max.div_ceil(2) }) }
    }

    /// A place, if there is one and the connection has not its share of them.
    pub(super) fn enter(&self, kind: Kind, held: &Arc<Held>) -> Option<Place> {
        let places = &self.places[kind as usize];
        let permit = places.free.try_acquire()?;
        // From here the place counts as held; dropping it takes that back.
        let before = held.0[kind as usize].fetch_add(1, Ordering::Relaxed);
        kind.gauge(1);
        let place = Place { kind, held: Arc::clone(held), _permit: permit };
        (before < places.connection_max).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.held.0[self.kind as usize].fetch_sub(1, Ordering::Relaxed);
        self.kind.gauge(-1);
    }
}

impl Kind {
    fn gauge(self, change: i64) {
        match self {
            Kind::Call => CallsInFlight.add(change),
            Kind::Stream | Kind::Watch => StreamsOpen.add(change),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The story: two connections without any certificate opened 2048 calls each and sent nothing more. They held all
    /// places of a port, and every member was refused. One connection of streams was enough for all places of streams.
    #[test]
    fn one_connection_leaves_places_to_others() {
        let admission = Admission::new(&Limits { calls_max: 4, streams_max: 5 });
        for (kind, share) in [(Kind::Call, 2), (Kind::Stream, 3), (Kind::Watch, 128)] {
            let (greedy, modest) = (Arc::new(Held::default()), Arc::new(Held::default()));
            let mut places: Vec<Place> = std::iter::from_fn(|| admission.enter(kind, &greedy)).collect();
            assert_eq!(places.len(), share, "{kind:?}");
            assert!(admission.enter(kind, &modest).is_some(), "{kind:?}");
            places.pop();
            assert!(admission.enter(kind, &greedy).is_some(), "a place that was given back, {kind:?}");
        }
    }

    #[test]
    fn one_connection_may_have_as_many_calls_as_http_lets_it_open() {
        let streams = crate::rpc::Settings::default().concurrent_streams_max as usize;
        assert!(Limits::default().calls_max.div_ceil(2) >= streams);
    }
}
