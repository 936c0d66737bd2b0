//! The simulated network of hosts and endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use base::rt::net::Link;
use base::rt::simulation::{Sim, SimNode};
use base::{Bytes, rt};

use crate::sim::config::{SimDelays, WEAKEST};
use crate::sim::connection::{ConnectionKey, EndIndex};
use crate::sim::counts::VerbCounts;
use crate::sim::incarnation::NodeIncarnation;
use crate::sim::verb::VerbOutcome;
use crate::sim::wire::{self, Effects, WireEvent, WireState};
use crate::{Error, ProviderProfile};

/// Bytes of memory of a host.
pub(super) const HOST_BYTES: u64 = 1 << 30;
/// Bytes of the name in a credential.
const NAME_BYTES_MAX: usize = 64;
/// Prefix of a host's address in the names of the simulated network.
pub(super) const SCHEME: &str = "rma:";
pub(super) const WELCOME: &[u8] = b"welcome";

/// Remote memory among the nodes of a simulation. Clones share one provider.
#[derive(Clone)]
pub struct SimProvider(pub(super) Arc<SimProviderCore>);

pub(super) struct SimProviderCore {
    sim: Sim,
    state: Mutex<WireState>,
    watched: Mutex<BTreeSet<(String, u64)>>,
}

impl SimProvider {
    /// A provider for a world, with the [`WEAKEST`] profile.
    pub fn new(sim: &Sim) -> SimProvider {
        let state = WireState {
            rng: sim.rng(),
            delays: SimDelays::default(),
            profile: WEAKEST,
            now: 0,
            hosts: BTreeMap::new(),
            connect_requests: BTreeMap::new(),
            connections: BTreeMap::new(),
            made: 0,
            counts: VerbCounts::default(),
        };
        SimProvider(Arc::new(SimProviderCore { sim: sim.clone(), state: Mutex::new(state), watched: Mutex::default() }))
    }

    /// Sets other guarantees; the provider then guarantees these and no more. With `synchronous`, one-sided verbs take effect
    /// while they are posted, as a whole, unless a cut or another verb delays them.
    #[must_use]
    pub fn with_profile(self, profile: ProviderProfile) -> SimProvider {
        self.locked(|state| state.profile = ProviderProfile { provider: "sim", ..profile });
        self
    }

    /// The verbs posted so far, by all endpoints.
    pub fn counts(&self) -> VerbCounts {
        self.locked(|state| state.counts)
    }

    /// Bytes of memory that are registered at the host of an address; `None` if there is no host.
    pub fn registered_bytes(&self, address: &str) -> Option<u64> {
        self.locked(|state| {
            let host = state.hosts.values().find(|host| host.address == address);
            host.map(|host| host.memory.bytes())
        })
    }

    pub(super) fn locked<T>(&self, access: impl FnOnce(&mut WireState) -> T) -> T {
        // After a panic under this lock, which fails the run, the state is still read while tasks are dropped.
        access(&mut self.0.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the state; then carries out the effects without the lock.
    pub(super) fn update<T>(&self, access: impl FnOnce(&mut WireState, &mut Effects) -> T) -> T {
        let mut effects = Effects::default();
        let now = wire::nanos(self.0.sim.elapsed());
        let result = self.locked(|state| {
            state.now = now;
            access(state, &mut effects)
        });
        let Effects { events, outcomes, wakers, tasks } = effects;
        for (delay, event) in events {
            let provider = self.clone();
            self.0.sim.call_after(delay, move || provider.run_event(event));
        }
        outcomes.into_iter().for_each(VerbOutcome::complete);
        wakers.into_iter().for_each(std::task::Waker::wake);
        drop(tasks);
        result
    }

    fn run_event(&self, event: WireEvent) {
        self.update(|state, effects| state.event(event, effects));
    }

    /// The caller's node and incarnation. Panics outside a simulation.
    pub(super) fn current_incarnation(&self) -> NodeIncarnation {
        let node = SimNode::current().expect("the sim provider is used within its simulation");
        let life = node.crashes();
        let place = NodeIncarnation { node, incarnation: life };
        let key = (place.node.name().to_owned(), life);
        let is_new = self.0.watched.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
        if is_new {
            let (provider, ended) = (Arc::downgrade(&self.0), place.clone());
            place.node.when_crashed(move || {
                if let Some(inner) = provider.upgrade() {
                    SimProvider(inner).update(|state, effects| state.crashed(&ended, effects));
                }
            });
        }
        place
    }

    /// Holds the link of one end until the end closes or the link breaks.
    pub(super) fn monitor_link(&self, key: ConnectionKey, side: EndIndex, mut link: Link) {
        let provider = self.clone();
        let task = rt::spawn(async move {
            while link.receive().await.is_ok() {}
            provider.update(|state, effects| state.end((key, side), true, effects));
        });
        self.update(|state, effects| state.set_monitor(key, side, task.abort_on_drop(), effects));
    }

    /// The host's part of a new connection.
    pub(super) async fn accept_caller(&self, host: u64, mut link: Link) {
        let Ok(message) = link.receive().await else { return };
        let Ok(number) = <[u8; 8]>::try_from(&message[..]) else { return };
        let admitted = self.update(|state, effects| {
            let knock = state.connect_requests.remove(&u64::from_le_bytes(number))?;
            let host_state = state.hosts.get(&host)?;
            let place = host_state.place.clone();
            let known = (host_state.tokens)(&knock.name).is_some_and(|token| token.matches(&knock.token));
            if !known || knock.name.len() > NAME_BYTES_MAX {
                return None;
            }
            let name: Arc<str> = knock.name.into();
            let key = state.connect(host, Arc::clone(&name), knock.place, place);
            let host_state = state.hosts.get_mut(&host)?;
            host_state.backlog.push_back((key, name));
            effects.wakers.append(&mut host_state.accept_wakers);
            Some(key)
        });
        match admitted {
            Some(key) => {
                let reply = [&key.to_le_bytes()[..], WELCOME].concat();
                // The task that holds the link notices when it is broken.
                let _ = link.send(reply).await;
                self.monitor_link(key, 1, link);
            }
            None => drop(link.send(Bytes::from_static(b"refused")).await),
        }
    }
}

pub(super) fn unreachable_at(address: &str, reason: impl fmt::Display) -> Error {
    Error::Unreachable { address: address.to_owned(), reason: reason.to_string() }
}

impl fmt::Debug for SimProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimFabric")
    }
}

/// The next connection that waits to be accepted at a host.
pub(super) fn poll_accept(
    provider: &SimProvider,
    host: u64,
    cx: &std::task::Context<'_>,
) -> Poll<Result<(ConnectionKey, Arc<str>), Error>> {
    provider.update(|state, _| {
        let Some(state) = state.hosts.get_mut(&host) else { return Poll::Ready(Err(Error::Closed)) };
        match state.backlog.pop_front() {
            Some(connected) => Poll::Ready(Ok(connected)),
            None => {
                if !state.accept_wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                    state.accept_wakers.push(cx.waker().clone());
                }
                Poll::Pending
            }
        }
    })
}
