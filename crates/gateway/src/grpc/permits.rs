//! Permits bound the calls of each kind that a port works on at once, in total and for each client.
//!
//! 1. [`PermitPool::acquire`] gives a permit before the caller's signature is verified. Each connection has a limit.
//!    Unary calls also count against the limit of the connection's organisation, where all unauthenticated connections
//!    together count as one organisation.
//! 2. [`PermitPool::acquire_stream`] is for a stream whose signer is verified: the limits of the signer's organisation
//!    and identity apply. Before that, the stream holds no permit. The exception is a stream to an orderer, where only
//!    the orderer's acceptance proves the signer: until then it holds a permit of [`PermitKind::Unproven`].
//!
//! Invariant: for unary calls, neither the unauthenticated connections together nor any one organisation can take all
//! permits.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::admission::Principal;
use base::rt::sync::{Semaphore, SemaphorePermit};

use super::caller::Caller;
use super::status::{GrpcCode, GrpcStatus};
use crate::events::{CallsInFlight, CallsRejected, StreamsOpen};

/// Streams of one identity at a port.
const IDENTITY_STREAMS_MAX: usize = 256;
/// Every organisation may have at least this many streams, as long as permits are left.
const ORGANIZATION_STREAMS_MIN: usize = 64;
/// Streams that have not proved who opened them.
const UNPROVEN_STREAMS_MAX: usize = 256;

/// How many calls a port works on at once.
#[derive(Clone, Debug)]
pub struct CallLimits {
    /// Calls with one answer. One connection may hold half of the permits; all strangers together, and each organisation,
    /// three quarters.
    pub calls_max: usize,
    /// Streams of blocks, events and envelopes.
    pub streams_max: usize,
    /// Watchers. They may show no certificate and stay for long, so they have separate permits, of which one connection may
    /// hold half.
    pub watches_max: usize,
    /// Organisations that share the port.
    pub organizations: usize,
}

impl Default for CallLimits {
    fn default() -> CallLimits {
        CallLimits { calls_max: 4096, streams_max: 2048, watches_max: 256, organizations: 1 }
    }
}

/// What a permit is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PermitKind {
    /// One answer.
    Call,
    /// A stream that has not proved who opened it.
    Unproven,
    /// A watcher.
    Watch,
}

/// The permits of one port.
pub struct PermitPool {
    kinds: [KindPermits; 3],
    unauthenticated_calls: Arc<AtomicUsize>,
    organizations_calls: Mutex<BTreeMap<Arc<str>, Arc<AtomicUsize>>>,
    group_calls_max: usize,
    streams: Arc<Mutex<StreamCounts>>,
}

struct KindPermits {
    free: Semaphore,
    connection_max: usize,
}

#[derive(Default)]
struct StreamCounts {
    open: usize,
    max: usize,
    organization_max: usize,
    by_organization: BTreeMap<Arc<str>, usize>,
    by_identity: BTreeMap<Principal, usize>,
}

/// A permit. Dropping it releases it.
pub struct CallPermit {
    kind: PermitKind,
    caller: Arc<Caller>,
    group_calls: Option<Arc<AtomicUsize>>,
    _permit: SemaphorePermit,
}

/// A permit for a stream. Dropping it releases it.
pub struct StreamPermit {
    streams: Arc<Mutex<StreamCounts>>,
    principal: Principal,
}

impl PermitPool {
    /// The numbers of permits that the limits give.
    pub fn new(limits: &CallLimits) -> PermitPool {
        let max = [limits.calls_max, UNPROVEN_STREAMS_MAX, limits.watches_max];
        let organization_max = (limits.streams_max / (limits.organizations + 1)).max(ORGANIZATION_STREAMS_MIN);
        let streams = StreamCounts { max: limits.streams_max, organization_max, ..StreamCounts::default() };
        PermitPool {
            kinds: max.map(|max| KindPermits { free: Semaphore::new(max), connection_max: max.div_ceil(2) }),
            unauthenticated_calls: Arc::default(),
            organizations_calls: Mutex::default(),
            group_calls_max: (limits.calls_max - limits.calls_max / 4).max(1),
            streams: Arc::new(Mutex::new(streams)),
        }
    }

    /// A permit, if one is left and the caller's limits are not reached.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED`.
    pub fn acquire(&self, kind: PermitKind, caller: &Arc<Caller>) -> Result<CallPermit, GrpcStatus> {
        self.try_acquire(kind, caller).ok_or_else(|| {
            CallsRejected.add(1);
            exhausted("the server has reached its limit of calls; retry with a growing back-off")
        })
    }

    fn try_acquire(&self, kind: PermitKind, caller: &Arc<Caller>) -> Option<CallPermit> {
        let places = &self.kinds[kind as usize];
        let permit = places.free.try_acquire()?;
        let share = (kind == PermitKind::Call).then(|| Arc::clone(self.call_count_of(caller)));
        // From here the permit counts as held; dropping it releases it.
        let before = caller.permits_held[kind as usize].fetch_add(1, Ordering::Relaxed);
        let shared = share.as_ref().map_or(0, |share| share.fetch_add(1, Ordering::Relaxed));
        kind.gauge(1);
        let place = CallPermit { kind, caller: Arc::clone(caller), group_calls: share, _permit: permit };
        (before < places.connection_max && shared < self.group_calls_max).then_some(place)
    }

    /// Calls of the caller's organisation, or of all strangers.
    fn call_count_of<'a>(&'a self, caller: &'a Caller) -> &'a Arc<AtomicUsize> {
        match caller.principal() {
            None => &self.unauthenticated_calls,
            Some(principal) => caller.organization_calls.get_or_init(|| {
                let mut calls = self.organizations_calls.lock().unwrap_or_else(PoisonError::into_inner);
                Arc::clone(calls.entry(Arc::clone(&principal.organization)).or_default())
            }),
        }
    }

    /// A permit for a stream that this identity has proved to have opened.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED`, which names the limit that is reached.
    pub fn acquire_stream(&self, principal: &Principal) -> Result<StreamPermit, GrpcStatus> {
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
            return Ok(StreamPermit { streams: Arc::clone(&self.streams), principal: principal.clone() });
        };
        CallsRejected.add(1);
        Err(exhausted(&format!(
            "all {limit} streams of {whose} are open; close some, or retry with a growing back-off"
        )))
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        self.caller.permits_held[self.kind as usize].fetch_sub(1, Ordering::Relaxed);
        if let Some(share) = &self.group_calls {
            share.fetch_sub(1, Ordering::Relaxed);
        }
        self.kind.gauge(-1);
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut streams = lock(&self.streams);
        streams.open -= 1;
        decrement(&mut streams.by_organization, &self.principal.organization);
        decrement(&mut streams.by_identity, &self.principal);
        StreamsOpen.add(-1);
    }
}

impl PermitKind {
    fn gauge(self, change: i64) {
        match self {
            PermitKind::Call => CallsInFlight.add(change),
            PermitKind::Unproven | PermitKind::Watch => StreamsOpen.add(change),
        }
    }
}

fn lock(streams: &Mutex<StreamCounts>) -> MutexGuard<'_, StreamCounts> {
    // Each change leaves the counts consistent.
    streams.lock().unwrap_or_else(PoisonError::into_inner)
}

fn decrement<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

fn exhausted(message: &str) -> GrpcStatus {
    GrpcStatus::new(GrpcCode::ResourceExhausted, message)
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

    fn all(places: &PermitPool, kind: PermitKind, caller: &Arc<Caller>) -> Vec<CallPermit> {
        std::iter::from_fn(|| places.try_acquire(kind, caller)).collect()
    }

    /// The story: two connections without any certificate opened 2048 calls each and sent nothing more. They held all
    /// permits of a port, and every member was refused. One connection could also take all permits for streams.
    #[test]
    fn one_connection_leaves_places_to_others() {
        let places = PermitPool::new(&CallLimits { calls_max: 8, ..CallLimits::default() });
        for (kind, share) in [(PermitKind::Call, 4), (PermitKind::Unproven, 128), (PermitKind::Watch, 128)] {
            let (greedy, modest) = (caller(), caller());
            let mut held = all(&places, kind, &greedy);
            assert_eq!(held.len(), share, "{kind:?}");
            assert!(places.acquire(kind, &modest).is_ok(), "{kind:?}");
            held.pop();
            assert!(places.acquire(kind, &greedy).is_ok(), "a place that was given back, {kind:?}");
        }
    }

    #[test]
    fn strangers_and_organizations_leave_calls_to_others() {
        let places = PermitPool::new(&CallLimits { calls_max: 8, ..CallLimits::default() });
        for takes in [caller as fn() -> Arc<Caller>, || member("Org1MSP")] {
            let held: Vec<CallPermit> = (0..4).flat_map(|_| all(&places, PermitKind::Call, &takes())).collect();
            assert_eq!(held.len(), 6);
            assert!(places.acquire(PermitKind::Call, &takes()).is_err());
            assert!(places.acquire(PermitKind::Call, &member("Org2MSP")).is_ok());
        }
    }

    /// The story: a member of one organisation opened streams until no permit was left, and no other organisation could
    /// follow the ledger.
    #[test]
    fn streams_of_one_organization_leave_places_to_another() {
        let places = PermitPool::new(&CallLimits { streams_max: 300, organizations: 2, ..CallLimits::default() });
        let greedy = Principal::new("Org1MSP", "user1");
        let mut held: Vec<StreamPermit> = std::iter::from_fn(|| places.acquire_stream(&greedy).ok()).collect();
        assert_eq!(held.len(), 100);
        assert!(places.acquire_stream(&Principal::new("Org1MSP", "user2")).is_err());
        assert!(places.acquire_stream(&Principal::new("Org2MSP", "user1")).is_ok());
        held.pop();
        assert!(places.acquire_stream(&greedy).is_ok());
        drop(held);
        let streams = lock(&places.streams);
        assert!(streams.open == 0 && streams.by_organization.is_empty() && streams.by_identity.is_empty());
    }

    #[test]
    fn streams_of_one_identity_leave_places_to_its_organization() {
        let places = PermitPool::new(&CallLimits::default());
        let greedy = Principal::new("Org1MSP", "user1");
        let held: Vec<StreamPermit> = std::iter::from_fn(|| places.acquire_stream(&greedy).ok()).collect();
        assert_eq!(held.len(), IDENTITY_STREAMS_MAX);
        assert!(places.acquire_stream(&Principal::new("Org1MSP", "user2")).is_ok());
    }

    #[test]
    fn one_connection_may_have_as_many_calls_as_http_lets_it_open() {
        let streams = crate::grpc::ConnectionConfig::default().concurrent_streams_max as usize;
        assert!(CallLimits::default().calls_max.div_ceil(2) >= streams);
    }
}
