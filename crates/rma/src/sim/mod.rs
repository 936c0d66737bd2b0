//! The `sim` provider: remote memory in a simulated world. It delays, loses and tears verbs as far as the guarantees allow.
//!
//! 1. A host lives on the simulated node whose task called [`Provider::host`]; an endpoint lives on the node of its caller. A
//!    crash of the host's node loses the host's regions. While that node is paused, one-sided verbs still take effect, because
//!    they need none of its tasks; messages do need them.
//! 2. A verb leaves its node, arrives at the host, and completes, each at a random time. A crash of its node loses a verb that
//!    has not left. Verbs of one endpoint take effect in the order of posting, whatever happens to their sender meanwhile.
//!    Messages and immediate data arrive in order and behind the writes posted before them; verbs posted later may overtake
//!    them.
//! 3. A read or a write takes effect in bursts of words. Other endpoints' verbs, revocations and crashes may come between two
//!    bursts.
//! 4. A cut of the network delays verbs and completions. Each connection is represented by a link of the simulated network:
//!    when the link breaks, verbs in flight complete as ambiguous. A random prefix of the posted verbs still takes effect:
//!    perhaps at once, perhaps seconds later, long after another node has started to use the memory. Only a revocation ends
//!    that.
//! 5. A revocation first rejects verbs that have not started, and returns once no started verb can continue. A write that is
//!    cut off between two bursts completes as ambiguous.
//!
//! Fault points: `rma.sim.lose_verb` and `rma.sim.lose_completion` (each also loses the connection), `rma.sim.delay_verb`,
//! `rma.sim.tear` (a long time between two bursts), `rma.sim.delay_revocation`, `rma.sim.exhausted` (a host has no memory
//! left).
//!
//! Invariant: no word lands under a grant whose revocation has returned. The provider asserts this, and a violation fails the
//! run.
//!
//! Not simulated: failures within the provider's own process or host, such as a lack of memory for a message.

mod endpoint;
mod memory;
mod wire;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use base::rt::net::Link;
use base::rt::simulation::{Sim, SimNode};
use base::{Bytes, rt};

use self::endpoint::{SimConnection, SimHost};
use self::memory::HostMemory;
use self::wire::{ConnectRequest, ConnectionKey, Effects, EndIndex, HostState, SimVerb, WireEvent, WireState};
use crate::{Atomicity, Credential, Endpoint, Error, Host, HostConfig, Provider, ProviderProfile, VerbOrdering};

/// Bytes of memory of a host, unless [`SimProvider::with_host_bytes`] sets another number.
const HOST_BYTES: u64 = 1 << 30;
/// Bytes of the name in a credential.
const NAME_BYTES_MAX: usize = 64;
/// Prefix of a host's address in the names of the simulated network.
const SCHEME: &str = "rma:";
const WELCOME: &[u8] = b"welcome";

/// The weakest guarantees of any provider.
pub const WEAKEST: ProviderProfile = ProviderProfile {
    provider: "sim",
    atomicity: Atomicity::Adapter,
    ordering: VerbOrdering::Verbs,
    immediate: true,
    synchronous: false,
    host_progress: false,
};

/// The distributions of simulated times.
#[derive(Clone, Debug)]
pub struct SimDelays {
    /// Time of a verb to the host, and of its completion back.
    pub delay: Range<Duration>,
    /// Time between two bursts of one verb.
    pub tear: Range<Duration>,
    /// The same for a slow verb.
    pub tear_slow: Range<Duration>,
    /// Time between rejecting new verbs and the fence.
    pub fence: Range<Duration>,
    /// One delay in this many is slow.
    pub slow_one_in: u64,
    /// Slow delays are longer by this factor.
    pub slow_factor: u32,
}

impl Default for SimDelays {
    /// The times of a fast network that is sometimes busy.
    fn default() -> SimDelays {
        SimDelays {
            delay: Duration::from_micros(1)..Duration::from_micros(8),
            tear: Duration::ZERO..Duration::from_micros(3),
            tear_slow: Duration::from_micros(10)..Duration::from_micros(500),
            fence: Duration::ZERO..Duration::from_micros(20),
            slow_one_in: 50,
            slow_factor: 20,
        }
    }
}

/// Numbers of posted verbs.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct VerbCounts {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Compare-and-swaps.
    pub compare_swaps: u64,
    /// Fetch-and-adds.
    pub fetch_adds: u64,
    /// Messages.
    pub messages: u64,
    /// Bytes that were requested by reads and carried by writes.
    pub bytes: u64,
    /// Verbs that were posted and have not completed.
    pub in_flight: u64,
    /// Verbs that were still in transit when their connection was lost.
    pub stray: u64,
}

impl VerbCounts {
    fn count(&mut self, work: &SimVerb, length: u64) {
        match work {
            SimVerb::Read { .. } => self.reads += 1,
            SimVerb::Write { .. } => self.writes += 1,
            SimVerb::CompareSwap { .. } => self.compare_swaps += 1,
            SimVerb::FetchAdd { .. } => self.fetch_adds += 1,
            SimVerb::Message(_) => self.messages += 1,
        }
        self.bytes += length;
    }
}

/// One incarnation of a simulated node.
#[derive(Clone)]
struct NodeIncarnation {
    node: SimNode,
    incarnation: u64,
}

impl NodeIncarnation {
    fn is_alive(&self) -> bool {
        self.node.is_up() && self.node.crashes() == self.incarnation
    }

    fn is_same(&self, other: &NodeIncarnation) -> bool {
        self.node.name() == other.node.name() && self.incarnation == other.incarnation
    }

    fn is_cut_to(&self, other: &NodeIncarnation) -> bool {
        self.node.is_cut_to(&other.node)
    }
}

/// Remote memory among the nodes of a simulation. Clones share one provider.
#[derive(Clone)]
pub struct SimProvider(Arc<SimProviderCore>);

struct SimProviderCore {
    sim: Sim,
    state: Mutex<WireState>,
    watched: Mutex<BTreeSet<(String, u64)>>,
    host_bytes: u64,
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
        SimProvider(Arc::new(SimProviderCore {
            sim: sim.clone(),
            state: Mutex::new(state),
            watched: Mutex::default(),
            host_bytes: HOST_BYTES,
        }))
    }

    /// Sets other guarantees; the provider then guarantees these and no more. With `synchronous`, one-sided verbs take effect
    /// while they are posted, as a whole, unless a cut or another verb delays them.
    #[must_use]
    pub fn with_profile(self, profile: ProviderProfile) -> SimProvider {
        self.locked(|state| state.profile = ProviderProfile { provider: "sim", ..profile });
        self
    }

    /// Sets other times.
    #[must_use]
    pub fn with_delays(self, timing: SimDelays) -> SimProvider {
        self.locked(|state| state.delays = timing);
        self
    }

    /// Sets the bytes of memory of each host. Call this before the provider is shared.
    #[must_use]
    pub fn with_host_bytes(mut self, bytes: u64) -> SimProvider {
        let inner = Arc::get_mut(&mut self.0).expect("the fabric is not shared yet");
        inner.host_bytes = bytes;
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

    fn locked<T>(&self, access: impl FnOnce(&mut WireState) -> T) -> T {
        // After a panic under this lock, which fails the run, the state is still read while tasks are dropped.
        access(&mut self.0.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the state; then carries out the effects without the lock.
    fn update<T>(&self, access: impl FnOnce(&mut WireState, &mut Effects) -> T) -> T {
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
        outcomes.into_iter().for_each(wire::VerbOutcome::complete);
        wakers.into_iter().for_each(std::task::Waker::wake);
        drop(tasks);
        result
    }

    fn run_event(&self, event: WireEvent) {
        self.update(|state, effects| state.event(event, effects));
    }

    /// The caller's node and incarnation. Panics outside a simulation.
    fn current_incarnation(&self) -> NodeIncarnation {
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
    fn monitor_link(&self, key: ConnectionKey, side: EndIndex, mut link: Link) {
        let provider = self.clone();
        let task = rt::spawn(async move {
            while link.receive().await.is_ok() {}
            provider.update(|state, effects| state.end((key, side), true, effects));
        });
        self.update(|state, effects| state.set_monitor(key, side, task.abort_on_drop(), effects));
    }

    /// The host's part of a new connection.
    async fn accept_caller(&self, host: u64, mut link: Link) {
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

fn unreachable_at(address: &str, reason: impl fmt::Display) -> Error {
    Error::Unreachable { address: address.to_owned(), reason: reason.to_string() }
}

#[async_trait]
impl Provider for SimProvider {
    async fn connect(&self, address: &str, credential: &Credential) -> Result<Endpoint, Error> {
        let place = self.current_incarnation();
        let mut link =
            rt::net::connect(&format!("{SCHEME}{address}")).await.map_err(|error| unreachable_at(address, error))?;
        let number = self.locked(|state| {
            let number = state.number();
            let Credential { name, token } = credential.clone();
            state.connect_requests.insert(number, ConnectRequest { place: place.clone(), name, token });
            number
        });
        let lost = |_| unreachable_at(address, "the connection was lost");
        link.send(Bytes::copy_from_slice(&number.to_le_bytes())).await.map_err(lost)?;
        let reply = link.receive().await.map_err(lost)?;
        let Some((key, WELCOME)) = reply.split_first_chunk::<8>() else {
            return Err(Error::Rejected(format!(
                "the host does not know the name or the token of {}",
                credential.name
            )));
        };
        let key = u64::from_le_bytes(*key);
        let connection = SimConnection::take(self, key, 0, address.into());
        self.monitor_link(key, 0, link);
        Ok(Endpoint::new(Arc::new(connection)))
    }

    async fn host(&self, address: &str, options: HostConfig) -> Result<Arc<dyn Host>, Error> {
        let place = self.current_incarnation();
        let mut listener =
            rt::net::listen(&format!("{SCHEME}{address}")).await.map_err(|error| Error::system("listening", &error))?;
        let host = self.locked(|state| {
            let host = state.number();
            let state_of_host = HostState {
                address: address.to_owned(),
                place,
                tokens: options.tokens,
                memory: HostMemory::new(options.node, self.0.host_bytes),
                backlog: VecDeque::new(),
                accept_wakers: Vec::new(),
                acceptor: None,
            };
            state.hosts.insert(host, state_of_host);
            host
        });
        let provider = self.clone();
        let acceptor = rt::spawn(async move {
            while let Ok(link) = listener.accept().await {
                let provider = provider.clone();
                rt::spawn(async move { provider.accept_caller(host, link).await });
            }
        });
        self.update(|state, effects| match state.hosts.get_mut(&host) {
            Some(state) => state.acceptor = Some(acceptor.abort_on_drop()),
            None => effects.tasks.push(acceptor.abort_on_drop()),
        });
        Ok(Arc::new(SimHost::new(self, host, options.node, address)))
    }

    fn name(&self) -> &'static str {
        "sim"
    }
}

impl fmt::Debug for SimProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimFabric")
    }
}

/// The next connection that waits to be accepted at a host.
fn poll_accept(
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
