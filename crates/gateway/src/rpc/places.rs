//! Places: a bounded number of calls of each kind at a port, and of those a share for each connection, organisation and
//! identity.
//!
//! 1. [`Places::enter`] is for a call whose message is there. Nobody is known yet, so the connection's share counts, and
//!    the share of all strangers or of the organisation that the connection has proved to be of.
//! 2. [`Places::enter_stream`] is for a stream whose request was verified: the share of the organisation and of the
//!    identity that signed it counts. Until then a stream holds no place, or one of [`Kind::Unproven`] where the proof
//!    takes a while.
//!
//! Invariant: neither strangers nor one organisation can take the last place from the others.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::admission::Principal;
use base::rt::sync::{Permit, Semaphore};

use super::caller::Caller;
use super::status::{Code, Status};
use crate::events::{CallsInFlight, CallsRefused, StreamsOpen};

/// Streams of one identity at a port.
const IDENTITY_STREAMS_MAX: usize = 256;
/// An organisation has at least as many places for streams, as long as there are any.
const ORGANIZATION_STREAMS_MIN: usize = 64;
/// Streams that have not proved who opened them.
const UNPROVEN_MAX: usize = 256;

/// How many calls a port works on at once.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Calls with one answer. One connection may hold half of them; all strangers, and each organisation, three quarters.
    pub calls_max: usize,
    /// Streams of blocks, events and envelopes.
    pub streams_max: usize,
    /// Watchers. They may show no certificate and stay for long, so they have places of their own, of which one
    /// connection may hold half.
    pub watches_max: usize,
    /// Organisations that share the port.
    pub organizations: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { calls_max: 4096, streams_max: 2048, watches_max: 256, organizations: 1 }
    }
}

/// What a place is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// One answer.
    Call,
    /// A stream that has not proved who opened it.
    Unproven,
    /// Something that is watched.
    Watch,
}

/// The places of one port.
pub struct Places {
    kinds: [OfKind; 3],
    strangers_calls: Arc<AtomicUsize>,
    organizations_calls: Mutex<BTreeMap<Arc<str>, Arc<AtomicUsize>>>,
    calls_share: usize,
    streams: Arc<Mutex<Streams>>,
}

struct OfKind {
    free: Semaphore,
    connection_max: usize,
}

#[derive(Default)]
struct Streams {
    open: usize,
    max: usize,
    organization_max: usize,
    by_organization: BTreeMap<Arc<str>, usize>,
    by_identity: BTreeMap<Principal, usize>,
}

/// A place. Dropping it gives it back.
pub struct Place {
    kind: Kind,
    caller: Arc<Caller>,
    share: Option<Arc<AtomicUsize>>,
    _permit: Permit,
}

/// A place for a stream. Dropping it gives it back.
pub struct StreamPlace {
    streams: Arc<Mutex<Streams>>,
    principal: Principal,
}

impl Places {
    /// As many as the limits say.
    pub fn new(limits: &Limits) -> Places {
        let max = [limits.calls_max, UNPROVEN_MAX, limits.watches_max];
        let organization_max = (limits.streams_max / (limits.organizations + 1)).max(ORGANIZATION_STREAMS_MIN);
        let streams = Streams { max: limits.streams_max, organization_max, ..Streams::default() };
        Places {
            kinds: max.map(|max| OfKind { free: Semaphore::new(max), connection_max: max.div_ceil(2) }),
            strangers_calls: Arc::default(),
            organizations_calls: Mutex::default(),
            calls_share: (limits.calls_max - limits.calls_max / 4).max(1),
            streams: Arc::new(Mutex::new(streams)),
        }
    }

    /// A place, if there is one and nobody's share of them is used up.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED`.
    pub fn enter(&self, kind: Kind, caller: &Arc<Caller>) -> Result<Place, Status> {
        self.try_enter(kind, caller).ok_or_else(|| {
            CallsRefused.add(1);
            exhausted("the server works on as many calls as it may; retry after a pause that grows")
        })
    }

    fn try_enter(&self, kind: Kind, caller: &Arc<Caller>) -> Option<Place> {
        let places = &self.kinds[kind as usize];
        let permit = places.free.try_acquire()?;
        let share = (kind == Kind::Call).then(|| Arc::clone(self.calls_of(caller)));
        // From here the place counts as held; dropping it takes that back.
        let before = caller.places[kind as usize].fetch_add(1, Ordering::Relaxed);
        let shared = share.as_ref().map_or(0, |share| share.fetch_add(1, Ordering::Relaxed));
        kind.gauge(1);
        let place = Place { kind, caller: Arc::clone(caller), share, _permit: permit };
        (before < places.connection_max && shared < self.calls_share).then_some(place)
    }

    /// Calls of the caller's organisation, or of all strangers.
    fn calls_of<'a>(&'a self, caller: &'a Caller) -> &'a Arc<AtomicUsize> {
        match caller.principal() {
            None => &self.strangers_calls,
            Some(principal) => caller.organization_calls.get_or_init(|| {
                let mut calls = self.organizations_calls.lock().unwrap_or_else(PoisonError::into_inner);
                Arc::clone(calls.entry(Arc::clone(&principal.organization)).or_default())
            }),
        }
    }

    /// A place for a stream that this identity has proved to have opened.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED`, which says whose share is used up.
    pub fn enter_stream(&self, principal: &Principal) -> Result<StreamPlace, Status> {
        let mut streams = lock(&self.streams);
        let of_organization = streams.by_organization.get(&principal.organization).copied().unwrap_or(0);
        let of_identity = streams.by_identity.get(principal).copied().unwrap_or(0);
        let (limit, whose) = if streams.open >= streams.max {
            (streams.max, "the port")
        } else if of_organization >= streams.organization_max {
            (streams.organization_max, "its organisation")
        } else if of_identity >= IDENTITY_STREAMS_MAX {
            (IDENTITY_STREAMS_MAX, "its identity")
        } else {
            streams.open += 1;
            *streams.by_organization.entry(Arc::clone(&principal.organization)).or_default() += 1;
            *streams.by_identity.entry(principal.clone()).or_default() += 1;
            drop(streams);
            StreamsOpen.add(1);
            return Ok(StreamPlace { streams: Arc::clone(&self.streams), principal: principal.clone() });
        };
        CallsRefused.add(1);
        Err(exhausted(&format!(
            "all {limit} streams of {whose} are open; close some, or retry after a pause that grows"
        )))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.caller.places[self.kind as usize].fetch_sub(1, Ordering::Relaxed);
        if let Some(share) = &self.share {
            share.fetch_sub(1, Ordering::Relaxed);
        }
        self.kind.gauge(-1);
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        let mut streams = lock(&self.streams);
        streams.open -= 1;
        give_back(&mut streams.by_organization, &self.principal.organization);
        give_back(&mut streams.by_identity, &self.principal);
        StreamsOpen.add(-1);
    }
}

impl Kind {
    fn gauge(self, change: i64) {
        match self {
            Kind::Call => CallsInFlight.add(change),
            Kind::Unproven | Kind::Watch => StreamsOpen.add(change),
        }
    }
}

fn lock(streams: &Mutex<Streams>) -> MutexGuard<'_, Streams> {
    // Each change leaves the counts whole.
    streams.lock().unwrap_or_else(PoisonError::into_inner)
}

fn give_back<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

fn exhausted(message: &str) -> Status {
    Status::new(Code::ResourceExhausted, message)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use base::admission::{Admission, AdmissionLimits};

    use super::*;

    fn caller() -> Arc<Caller> {
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let admission = Admission::new(AdmissionLimits::in_proportion(64, 1 << 20, 2));
        Caller::new(peer, admission.admit(peer.ip()), 1 << 20)
    }

    fn member(organization: &str) -> Arc<Caller> {
        let caller = caller();
        caller.authenticate(|| Principal::new(organization, "user1"));
        caller
    }

    fn all(places: &Places, kind: Kind, caller: &Arc<Caller>) -> Vec<Place> {
        std::iter::from_fn(|| places.try_enter(kind, caller)).collect()
    }

    /// The story: two connections without any certificate opened 2048 calls each and sent nothing more. They held all
    /// places of a port, and every member was refused. One connection of streams was enough for all places of streams.
    #[test]
    fn one_connection_leaves_places_to_others() {
        let places = Places::new(&Limits { calls_max: 8, ..Limits::default() });
        for (kind, share) in [(Kind::Call, 4), (Kind::Unproven, 128), (Kind::Watch, 128)] {
            let (greedy, modest) = (caller(), caller());
            let mut held = all(&places, kind, &greedy);
            assert_eq!(held.len(), share, "{kind:?}");
            assert!(places.enter(kind, &modest).is_ok(), "{kind:?}");
            held.pop();
            assert!(places.enter(kind, &greedy).is_ok(), "a place that was given back, {kind:?}");
        }
    }

    #[test]
    fn strangers_and_organizations_leave_calls_to_others() {
        let places = Places::new(&Limits { calls_max: 8, ..Limits::default() });
        for takes in [caller as fn() -> Arc<Caller>, || member("Org1MSP")] {
            let held: Vec<Place> = (0..4).flat_map(|_| all(&places, Kind::Call, &takes())).collect();
            assert_eq!(held.len(), 6);
            assert!(places.enter(Kind::Call, &takes()).is_err());
            assert!(places.enter(Kind::Call, &member("Org2MSP")).is_ok());
        }
    }

    /// The story: a member of one organisation opened streams until there was no place left, and nobody else could follow
    /// the ledger.
    #[test]
    fn streams_of_one_organization_leave_places_to_another() {
        let places = Places::new(&Limits { streams_max: 300, organizations: 2, ..Limits::default() });
        let greedy = Principal::new("Org1MSP", "user1");
        let mut held: Vec<StreamPlace> = std::iter::from_fn(|| places.enter_stream(&greedy).ok()).collect();
        assert_eq!(held.len(), 100);
        assert!(places.enter_stream(&Principal::new("Org1MSP", "user2")).is_err());
        assert!(places.enter_stream(&Principal::new("Org2MSP", "user1")).is_ok());
        held.pop();
        assert!(places.enter_stream(&greedy).is_ok());
        drop(held);
        let streams = lock(&places.streams);
        assert!(streams.open == 0 && streams.by_organization.is_empty() && streams.by_identity.is_empty());
    }

    #[test]
    fn streams_of_one_identity_leave_places_to_its_organization() {
        let places = Places::new(&Limits::default());
        let greedy = Principal::new("Org1MSP", "user1");
        let held: Vec<StreamPlace> = std::iter::from_fn(|| places.enter_stream(&greedy).ok()).collect();
        assert_eq!(held.len(), IDENTITY_STREAMS_MAX);
        assert!(places.enter_stream(&Principal::new("Org1MSP", "user2")).is_ok());
    }

    #[test]
    fn one_connection_may_have_as_many_calls_as_http_lets_it_open() {
        let streams = crate::rpc::Settings::default().concurrent_streams_max as usize;
        assert!(Limits::default().calls_max.div_ceil(2) >= streams);
    }
}
