//! The `sim` provider: remote memory in a simulated world, as slow, lossy and torn as the contract allows.
//!
//! 1. A host lives on the simulated node whose task called [`Fabric::host`]; so does an endpoint. A host's regions are lost
//!    when that node crashes. They answer while it is paused: one-sided verbs ask nothing of its tasks, messages do.
//! 2. A verb leaves its node (before that a crash takes it along), arrives at the host, and completes, each at a time drawn
//!    by chance. Verbs of one endpoint take effect in the order of posting, however their sender fares meanwhile.
//!    Messages and immediate data arrive in order and behind the writes before them; verbs posted later overtake them.
//! 3. A read or a write takes effect in bursts of words, between which other endpoints' verbs, revocations and crashes fall.
//! 4. A cut holds verbs and completions up. A link of the simulated network stands for the connection: when it breaks, what is
//!    in flight completes as ambiguous. Of what was posted, a beginning drawn by chance still takes effect: perhaps at once,
//!    perhaps seconds later, when somebody else has long been at work. Only a revocation ends that.
//! 5. A revocation first refuses what has not begun, and returns when nothing that has begun goes on. Who is cut off between
//!    two bursts of a write completes as ambiguous.
//!
//! Fault points: `rma.sim.lose_verb` and `rma.sim.lose_completion` (the connection is lost with it), `rma.sim.delay_verb`,
//! `rma.sim.tear` (long between two bursts), `rma.sim.delay_revocation`, `rma.sim.exhausted` (a host has no memory to give).
//!
//! Invariants, which are asserted and fail the run: no word lands under a grant whose revocation has returned.
//!
//! Left out: what a provider may do within its own process or host, such as failing to get memory for a message.

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
use base::rt::simulation::{Node, Sim};
use base::{Bytes, rt};

use self::endpoint::{SimConnection, SimHost};
use self::memory::Memory;
use self::wire::{ConnectionKey, Effects, Event, HostState, Knock, Side, State, Work};
use crate::{Atomicity, Credential, Endpoint, Error, Fabric, Host, HostOptions, Ordering, Profile};

/// Bytes of memory that a host has to give, unless [`SimFabric::with_host_bytes`] says otherwise.
const HOST_BYTES: u64 = 1 << 30;
/// Bytes of the name in a credential.
const NAME_BYTES_MAX: usize = 64;
/// Stands before the address of a host in the names of the simulated network.
const SCHEME: &str = "rma:";
const WELCOME: &[u8] = b"welcome";

/// The weakest promises of any provider.
pub const WEAKEST: Profile = Profile {
    provider: "sim",
    atomicity: Atomicity::Adapter,
    ordering: Ordering::Verbs,
    immediate: true,
    synchronous: false,
    host_progress: false,
};

/// How long things take.
#[derive(Clone, Debug)]
pub struct Timing {
    /// Of a verb to the host, and of its completion back.
    pub delay: Range<Duration>,
    /// Between two bursts of one verb.
    pub tear: Range<Duration>,
    /// The same, where it takes long.
    pub tear_slow: Range<Duration>,
    /// Between refusing new verbs and the fence.
    pub fence: Range<Duration>,
    /// One in so many takes longer.
    pub slow_one_in: u64,
    /// Slow delays are longer by this.
    pub slow_factor: u32,
}

impl Default for Timing {
    /// Of a fast network that is sometimes busy.
    fn default() -> Timing {
        Timing {
            delay: Duration::from_micros(1)..Duration::from_micros(8),
            tear: Duration::ZERO..Duration::from_micros(3),
            tear_slow: Duration::from_micros(10)..Duration::from_micros(500),
            fence: Duration::ZERO..Duration::from_micros(20),
            slow_one_in: 50,
            slow_factor: 20,
        }
    }
}

/// What was posted so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
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
    /// Bytes that reads asked for and writes brought.
    pub bytes: u64,
    /// Posted and not completed.
    pub in_flight: u64,
    /// Verbs that were still on their way when their connection was lost.
    pub stray: u64,
}

impl Counts {
    fn count(&mut self, work: &Work, length: u64) {
        match work {
            Work::Read { .. } => self.reads += 1,
            Work::Write { .. } => self.writes += 1,
            Work::CompareSwap { .. } => self.compare_swaps += 1,
            Work::FetchAdd { .. } => self.fetch_adds += 1,
            Work::Message(_) => self.messages += 1,
        }
        self.bytes += length;
    }
}

/// A life of a simulated node.
#[derive(Clone)]
struct Place {
    node: Node,
    life: u64,
}

impl Place {
    fn is_alive(&self) -> bool {
        self.node.is_up() && self.node.crashes() == self.life
    }

    fn is_same(&self, other: &Place) -> bool {
        self.node.name() == other.node.name() && self.life == other.life
    }

    fn is_cut_to(&self, other: &Place) -> bool {
        self.node.is_cut_to(&other.node)
    }
}

/// Remote memory among the nodes of a simulation. Clones are the same fabric.
#[derive(Clone)]
pub struct SimFabric(Arc<Inner>);

struct Inner {
    sim: Sim,
    state: Mutex<State>,
    watched: Mutex<BTreeSet<(String, u64)>>,
    host_bytes: u64,
}

impl SimFabric {
    /// A fabric of a world, with the [`WEAKEST`] profile.
    pub fn new(sim: &Sim) -> SimFabric {
        let state = State {
            chance: sim.chance(),
            timing: Timing::default(),
            profile: WEAKEST,
            now: 0,
            hosts: BTreeMap::new(),
            knocks: BTreeMap::new(),
            connections: BTreeMap::new(),
            made: 0,
            counts: Counts::default(),
        };
        SimFabric(Arc::new(Inner {
            sim: sim.clone(),
            state: Mutex::new(state),
            watched: Mutex::default(),
            host_bytes: HOST_BYTES,
        }))
    }

    /// With other promises, which it then keeps and no more. With `synchronous` one-sided verbs take effect while they are
    /// posted, whole, unless a cut or another verb is in their way.
    #[must_use]
    pub fn with_profile(self, profile: Profile) -> SimFabric {
        self.locked(|state| state.profile = Profile { provider: "sim", ..profile });
        self
    }

    /// With other times.
    #[must_use]
    pub fn with_timing(self, timing: Timing) -> SimFabric {
        self.locked(|state| state.timing = timing);
        self
    }

    /// With other bytes of memory of each host. To be called before the fabric is shared.
    #[must_use]
    pub fn with_host_bytes(mut self, bytes: u64) -> SimFabric {
        let inner = Arc::get_mut(&mut self.0).expect("the fabric is not shared yet");
        inner.host_bytes = bytes;
        self
    }

    /// What was posted so far, by all.
    pub fn counts(&self) -> Counts {
        self.locked(|state| state.counts)
    }

    /// Bytes of memory that are registered at the host of an address; `None` where there is none.
    pub fn registered_bytes(&self, address: &str) -> Option<u64> {
        self.locked(|state| {
            let host = state.hosts.values().find(|host| host.address == address);
            host.map(|host| host.memory.bytes())
        })
    }

    fn locked<T>(&self, access: impl FnOnce(&mut State) -> T) -> T {
        // After a panic in here, which fails the run, the state is still read while tasks are dropped.
        access(&mut self.0.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the state; then, with the lock free, does what follows from that.
    fn act<T>(&self, access: impl FnOnce(&mut State, &mut Effects) -> T) -> T {
        let mut effects = Effects::default();
        let now = wire::nanos(self.0.sim.elapsed());
        let result = self.locked(|state| {
            state.now = now;
            access(state, &mut effects)
        });
        let Effects { events, outcomes, wakers, tasks } = effects;
        for (delay, event) in events {
            let fabric = self.clone();
            self.0.sim.call_after(delay, move || fabric.happen(event));
        }
        outcomes.into_iter().for_each(wire::Outcome::tell);
        wakers.into_iter().for_each(std::task::Waker::wake);
        drop(tasks);
        result
    }

    fn happen(&self, event: Event) {
        self.act(|state, effects| state.event(event, effects));
    }

    /// Where the caller is. Panics outside of a simulation.
    fn here(&self) -> Place {
        let node = Node::current().expect("the sim provider is used within its simulation");
        let life = node.crashes();
        let place = Place { node, life };
        let key = (place.node.name().to_owned(), life);
        let is_new = self.0.watched.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
        if is_new {
            let (fabric, ended) = (Arc::downgrade(&self.0), place.clone());
            place.node.when_crashed(move || {
                if let Some(inner) = fabric.upgrade() {
                    SimFabric(inner).act(|state, effects| state.crashed(&ended, effects));
                }
            });
        }
        place
    }

    /// Holds an end's link until the end ends or the link does.
    fn hold(&self, key: ConnectionKey, side: Side, mut link: Link) {
        let fabric = self.clone();
        let task = rt::spawn(async move {
            while link.receive().await.is_ok() {}
            fabric.act(|state, effects| state.end((key, side), true, effects));
        });
        self.act(|state, effects| state.set_monitor(key, side, task.abort_on_drop(), effects));
    }

    /// The host's part of a new connection.
    async fn answer(&self, host: u64, mut link: Link) {
        let Ok(message) = link.receive().await else { return };
        let Ok(number) = <[u8; 8]>::try_from(&message[..]) else { return };
        let admitted = self.act(|state, effects| {
            let knock = state.knocks.remove(&u64::from_le_bytes(number))?;
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
                // A link that is broken is noticed by whoever holds it.
                let _ = link.send(reply).await;
                self.hold(key, 1, link);
            }
            None => drop(link.send(Bytes::from_static(b"refused")).await),
        }
    }
}

fn unreachable_at(address: &str, reason: impl fmt::Display) -> Error {
    Error::Unreachable { address: address.to_owned(), reason: reason.to_string() }
}

#[async_trait]
impl Fabric for SimFabric {
    async fn connect(&self, address: &str, credential: &Credential) -> Result<Endpoint, Error> {
        let place = self.here();
        let mut link =
            rt::net::connect(&format!("{SCHEME}{address}")).await.map_err(|error| unreachable_at(address, error))?;
        let number = self.locked(|state| {
            let number = state.number();
            let Credential { name, token } = credential.clone();
            state.knocks.insert(number, Knock { place: place.clone(), name, token });
            number
        });
        let lost = |_| unreachable_at(address, "the connection was lost");
        link.send(Bytes::copy_from_slice(&number.to_le_bytes())).await.map_err(lost)?;
        let reply = link.receive().await.map_err(lost)?;
        let Some((key, WELCOME)) = reply.split_first_chunk::<8>() else {
            return Err(Error::Refused(format!("the host does not know the name or the token of {}", credential.name)));
        };
        let key = u64::from_le_bytes(*key);
        let connection = SimConnection::take(self, key, 0, address.into());
        self.hold(key, 0, link);
        Ok(Endpoint::new(Arc::new(connection)))
    }

    async fn host(&self, address: &str, options: HostOptions) -> Result<Arc<dyn Host>, Error> {
        let place = self.here();
        let mut listener =
            rt::net::listen(&format!("{SCHEME}{address}")).await.map_err(|error| Error::system("listening", &error))?;
        let host = self.locked(|state| {
            let host = state.number();
            let state_of_host = HostState {
                address: address.to_owned(),
                place,
                tokens: options.tokens,
                memory: Memory::new(options.node, self.0.host_bytes),
                backlog: VecDeque::new(),
                accept_wakers: Vec::new(),
                acceptor: None,
            };
            state.hosts.insert(host, state_of_host);
            host
        });
        let fabric = self.clone();
        let acceptor = rt::spawn(async move {
            while let Ok(link) = listener.accept().await {
                let fabric = fabric.clone();
                rt::spawn(async move { fabric.answer(host, link).await });
            }
        });
        self.act(|state, effects| match state.hosts.get_mut(&host) {
            Some(state) => state.acceptor = Some(acceptor.abort_on_drop()),
            None => effects.tasks.push(acceptor.abort_on_drop()),
        });
        Ok(Arc::new(SimHost::new(self, host, options.node, address)))
    }

    fn provider(&self) -> &'static str {
        "sim"
    }
}

impl fmt::Debug for SimFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimFabric")
    }
}

/// The next connection that a host has not accepted.
fn poll_accept(
    fabric: &SimFabric,
    host: u64,
    cx: &std::task::Context<'_>,
) -> Poll<Result<(ConnectionKey, Arc<str>), Error>> {
    fabric.act(|state, _| {
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
