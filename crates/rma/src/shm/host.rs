//! The host: regions, grants, and the fence.
//!
//! A revocation ([`Inner::fence`]):
//! 1. raises the generations of the grants;
//! 2. reads every connection's marks, and awaits those under one of the grants until their slots hold something else;
//! 3. after a bound kills each other process whose mark is still there, through the pidfd taken when it connected, and waits
//!    for its end. Within this process there is nobody to kill: the revocation fails as ambiguous.
//!
//! Invariants:
//! * A connection is in the table before its caller can put a mark, and leaves it when the caller has ended it and its marks
//!   are gone, or its process is.
//! * A grant's place is given out again only after the fence behind its revocation held.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use base::BytesMut;
use base::rt::channel::{Receiver, Sender, bounded};
use base::rt::{self, Stop};
use rustix::process::Pid;

use super::area::Area;
use super::connection::{Accepted, Caller};
use super::marks;
use super::memory::{self, Access, Mapping, PAGE_BYTES};
use super::remote::Departure;
use super::side::Side;
use super::view::{
    GENERATIONS_BYTES, GRANTS_MAX, Holder, REGIONS_MAX, Region, View, generation_offset, is_in_force, place,
};
use super::{ShmOptions, local};
use crate::capability::equal_in_constant_time;
use crate::failure::Failure;
use crate::{
    Capability, Credential, Endpoint, Error, GrantId, Host, HostOptions, NodeId, RegionId, Rights, Secret, TOKEN_BYTES,
};

/// Connections of one host.
pub(super) const CONNECTIONS_MAX: usize = 1024;
/// Connections that wait to be accepted.
const ACCEPTED_MAX: usize = 64;
/// A name in a credential has at most as many bytes.
pub(super) const NAME_BYTES_MAX: usize = 64;
/// The numbers of those who connected begin here.
const CALLERS_FROM: u32 = 1 << 31;
/// Looks at a mark before its slot is looked at less often: most verbs are over within that time.
const LOOKS_SPINNING: u32 = 2000;
/// Time between later looks.
const LOOK_EVERY: Duration = Duration::from_micros(50);
/// A process that was killed has ended by then, or the fence could not be confirmed.
const END_WITHIN: Duration = Duration::from_secs(10);

/// A process that connected.
pub(super) struct Process {
    pub(super) pid: Pid,
    /// Refers to that process and to no other that gets its number later.
    pub(super) pidfd: OwnedFd,
}

impl Process {
    /// Whether it has ended: none of its threads runs.
    pub(super) fn has_ended(&self) -> bool {
        let mut poll = [rustix::event::PollFd::new(&self.pidfd, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(rustix::event::poll(&mut poll, Some(&now)), Ok(1..))
    }
}

/// A connection as its host sees it.
pub(super) struct Peer {
    area: Arc<Area>,
    /// The caller's where it is in this process and has no socket, else the host's.
    side: Weak<Side>,
    /// `None` where it is this one.
    process: Option<Arc<Process>>,
    /// `None` where there is no socket.
    departure: Option<Arc<Departure>>,
}

impl Peer {
    fn local(area: Arc<Area>, caller: &Arc<Side>) -> Peer {
        Peer { area, side: Arc::downgrade(caller), process: None, departure: None }
    }

    pub(super) fn remote(
        area: Arc<Area>,
        host: &Arc<Side>,
        process: Option<Arc<Process>>,
        departure: &Arc<Departure>,
    ) -> Peer {
        Peer { area, side: Arc::downgrade(host), process, departure: Some(Arc::clone(departure)) }
    }

    fn has_ended(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.has_ended())
    }

    /// Whether no mark can be put any more, and none stands.
    fn is_over(&self) -> bool {
        let departed = match &self.departure {
            Some(departure) => departure.has_gone(),
            None => self.side.upgrade().is_none_or(|side| side.is_closed()),
        };
        // Behind the reading of the end, so that a mark that was put before the end is seen.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        (departed && self.area.marks().next().is_none()) || self.has_ended()
    }
}

/// A host. Dropping it ends it.
pub(super) struct ShmHost {
    pub(super) inner: Arc<Inner>,
    accepted: rt::sync::Mutex<Receiver<Endpoint>>,
}

pub(super) struct Inner {
    pub(super) node: NodeId,
    pub(super) address: String,
    options: HostOptions,
    settings: ShmOptions,
    pub(super) view: Arc<View>,
    generations: Mapping,
    pub(super) generations_fd: OwnedFd,
    state: Mutex<State>,
    pub(super) stop: Stop,
    failure: Failure,
}

struct State {
    /// By place.
    regions: Vec<Option<Owned>>,
    /// Places that are free, the one that has been for longest first, with the number of the next region there.
    free: VecDeque<RegionId>,
    peers: Vec<Arc<Peer>>,
    callers: u32,
    accept: Option<Sender<Endpoint>>,
}

/// A region, as its owner knows it.
struct Owned {
    id: RegionId,
    fd: Arc<OwnedFd>,
    bytes: u64,
    /// Set when it is being deregistered: nothing is granted any more.
    closing: bool,
    grants: Vec<Grant>,
}

/// A grant's place.
#[derive(Clone, Copy)]
struct Grant {
    /// Of the last capability.
    secret: Secret,
    /// On whose connections it is good.
    holder: Holder,
    rights: Rights,
    generation: u64,
    /// Whether the fence behind its revocation held, so that the place can be used again.
    fenced: bool,
}

/// What a caller gets when its capability is confirmed.
pub(super) struct Confirmation {
    pub(super) fd: Arc<OwnedFd>,
    pub(super) bytes: u64,
    pub(super) rights: Rights,
}

impl ShmHost {
    /// Makes a host without any way to reach it yet.
    pub(super) fn new(address: String, options: HostOptions, settings: ShmOptions) -> Result<ShmHost, Error> {
        let generations_fd = memory::create("heddle-generations", GENERATIONS_BYTES)?;
        let generations = Mapping::new(&generations_fd, GENERATIONS_BYTES, Access::Write, false)?;
        memory::seal_against_writers(&generations_fd)?;
        let view = Arc::new(View::new(options.node, &generations_fd)?);
        let (accept, accepted) = bounded(ACCEPTED_MAX);
        let state = State {
            regions: (0..REGIONS_MAX).map(|_| None).collect(),
            free: (0..REGIONS_MAX as u32).map(RegionId).collect(),
            peers: Vec::new(),
            callers: 0,
            accept: Some(accept),
        };
        let node = options.node;
        let state = Mutex::new(state);
        let (stop, failure) = (Stop::new(), Failure::default());
        let inner = Arc::new(Inner {
            node,
            address,
            options,
            settings,
            view,
            generations,
            generations_fd,
            state,
            stop,
            failure,
        });
        Ok(ShmHost { inner, accepted: rt::sync::Mutex::new(accepted) })
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        // Whole between any two statements that can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks who connects.
    pub(super) fn authenticate(&self, name: &str, token: &[u8]) -> Result<(), Error> {
        // A name that nobody bears takes the same time.
        let known = (self.options.tokens)(name).filter(|_| name.len() <= NAME_BYTES_MAX);
        let expected = known.as_ref().map_or([0; TOKEN_BYTES], |token| *token.bytes());
        if equal_in_constant_time(&expected, token) && known.is_some() {
            return Ok(());
        }
        Err(Error::Refused("unknown name or wrong token".into()))
    }

    /// Puts a connection into the table.
    pub(super) fn add_peer(&self, peer: Peer) -> Result<NodeId, Error> {
        let mut state = self.state();
        if state.accept.is_none() {
            return Err(Error::Closed);
        }
        state.peers.retain(|peer| !peer.is_over());
        if state.peers.len() >= CONNECTIONS_MAX {
            return Err(Error::Exhausted(format!("the host has {CONNECTIONS_MAX} connections")));
        }
        state.peers.push(Arc::new(peer));
        let node = NodeId(CALLERS_FROM + state.callers % CALLERS_FROM);
        state.callers = state.callers.wrapping_add(1);
        Ok(node)
    }

    /// Hands a new connection to whoever accepts; waits while many do.
    pub(super) async fn hand_over(&self, accepted: Accepted) -> Result<(), Error> {
        let accept = self.state().accept.clone().ok_or(Error::Closed)?;
        let handing = accept.send(Endpoint::new(Arc::new(accepted)));
        match self.stop.or_stopped(handing).await {
            Some(Ok(())) => Ok(()),
            _ => Err(Error::Closed),
        }
    }

    /// Connects somebody in this process.
    pub(super) async fn connect_local(self: &Arc<Inner>, credential: &Credential) -> Result<Endpoint, Error> {
        self.authenticate(&credential.name, credential.token.bytes())?;
        let (area, _fd) = Area::create()?;
        let area = Arc::new(area);
        let (caller, host) = Side::pair(&area);
        self.view.add_area(&area);
        let node = self.add_peer(Peer::local(area, &caller))?;
        let name = self.address.clone();
        let (view, holder) = (Arc::clone(&self.view), Holder::of(&credential.name));
        let caller = Caller { side: caller, view, name, holder, waiting: None };
        self.hand_over(Accepted { side: host, node, name: credential.name.clone() }).await?;
        Ok(Endpoint::new(Arc::new(caller)))
    }

    /// Checks a capability that is shown on a connection of `holder`, whose process has not yet used it.
    pub(super) fn confirm(&self, capability: &Capability, holder: Holder) -> Result<Confirmation, Error> {
        let offset = generation_offset(capability.region, capability.grant).ok_or(Error::Unknown)?;
        let state = self.state();
        let current = self.generations.word(offset).load(std::sync::atomic::Ordering::Relaxed);
        if capability.generation < current {
            return Err(Error::Revoked);
        }
        let owned = state.find(capability.region).ok_or(Error::Unknown)?;
        let grant = owned.grants.get(capability.grant.0 as usize).ok_or(Error::Unknown)?;
        let known = grant.secret.matches(&capability.secret) && grant.holder == holder;
        if capability.generation != current || !is_in_force(current) || !known {
            return Err(Error::Unknown);
        }
        Ok(Confirmation { fd: Arc::clone(&owned.fd), bytes: owned.bytes, rights: grant.rights })
    }

    /// The memfd of a region that has a part.
    fn owned(&self, region: RegionId, offset: u64, length: usize) -> Result<Arc<OwnedFd>, Error> {
        let state = self.state();
        let owned = state.find(region).ok_or(Error::Unknown)?;
        match offset.checked_add(length as u64) {
            Some(end) if end <= owned.bytes => Ok(Arc::clone(&owned.fd)),
            _ => Err(Error::OutOfBounds { offset, length: length as u64, region_bytes: owned.bytes }),
        }
    }

    /// Steps 1 to 3 for grants of one region, each with the generation that is revoked.
    async fn fence(&self, region: RegionId, grants: &[(GrantId, u64)]) -> Result<(), Error> {
        let peers = {
            let state = self.state();
            for (grant, generation) in grants {
                let offset = generation_offset(region, *grant).expect("the host gave only such grants");
                let word = self.generations.word(offset);
                let current = word.load(std::sync::atomic::Ordering::Relaxed);
                // A later generation is another grant's. This one's again, when it was raised before, for the fence within.
                marks::raise(word, if current == *generation { current + 1 } else { current });
            }
            state.peers.clone()
        };
        let mut awaited: Vec<(Arc<Peer>, usize, u64)> = Vec::new();
        for peer in peers {
            let under = |mark: u64| grants.iter().any(|(grant, _)| marks::is_under(mark, region.0, grant.0));
            awaited.extend(
                peer.area.marks().filter(|(_, mark)| under(*mark)).map(|(slot, mark)| (Arc::clone(&peer), slot, mark)),
            );
        }
        let still = |(peer, slot, mark): &(Arc<Peer>, usize, u64)| {
            !marks::is_over(peer.area.slot(*slot), *mark) && !peer.has_ended()
        };
        for _ in 0..LOOKS_SPINNING {
            awaited.retain(|(peer, slot, mark)| !marks::is_over(peer.area.slot(*slot), *mark));
            if awaited.is_empty() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        let mut until = rt::now() + self.settings.drain;
        let mut killed = false;
        loop {
            awaited.retain(still);
            if awaited.is_empty() {
                return Ok(());
            }
            if rt::now() >= until {
                if killed || awaited.iter().any(|(peer, ..)| peer.process.is_none()) {
                    return Err(Error::Ambiguous("verbs under the revoked grant are still in flight"));
                }
                killed = true;
                until = rt::now() + END_WITHIN;
                for process in awaited.iter().filter_map(|(peer, ..)| peer.process.as_ref()) {
                    kill(process)?;
                }
            }
            rt::sleep(LOOK_EVERY).await;
        }
    }

    /// Revokes grants and notes that the fence held.
    async fn revoke_all(&self, region: RegionId, grants: &[(GrantId, u64)]) -> Result<(), Error> {
        self.fence(region, grants).await?;
        let mut state = self.state();
        if let Some(owned) = state.find_mut(region) {
            for (grant, generation) in grants {
                let place = &mut owned.grants[grant.0 as usize];
                // Another call may have been quicker, and the place be given out again.
                place.fenced |= place.generation == *generation;
            }
        }
        Ok(())
    }

    /// Ends everything, for a defect that leaves nobody to serve.
    pub(super) fn fail(&self, reason: String) {
        self.failure.fail(reason);
        self.end();
    }

    /// Ends everything.
    pub(super) fn end(&self) {
        self.stop.stop();
        local::remove(&self.address, self);
        let peers = {
            let mut state = self.state();
            state.accept = None;
            for owned in state.regions.iter_mut().filter_map(Option::take) {
                // Callers that still map it see zeros, and that the connection is lost.
                let _harmless = memory::discard(&owned.fd, owned.bytes);
            }
            std::mem::take(&mut state.peers)
        };
        for side in peers.iter().filter_map(|peer| peer.side.upgrade()) {
            side.end();
        }
        self.view.clear();
    }
}

/// Kills a process that did not end its verbs. Never this one.
fn kill(process: &Process) -> Result<(), Error> {
    assert_ne!(process.pid, rustix::process::getpid(), "a connection within this process has no process to kill");
    match rustix::process::pidfd_send_signal(&process.pidfd, rustix::process::Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(_) => Err(Error::Ambiguous("a process that holds a revoked grant cannot be killed")),
    }
}

impl State {
    fn find(&self, region: RegionId) -> Option<&Owned> {
        self.regions[place(region)].as_ref().filter(|owned| owned.id == region)
    }

    fn find_mut(&mut self, region: RegionId) -> Option<&mut Owned> {
        self.regions[place(region)].as_mut().filter(|owned| owned.id == region)
    }
}

#[async_trait]
impl Host for ShmHost {
    fn node(&self) -> NodeId {
        self.inner.node
    }

    async fn register(&self, name: &str, bytes: u64) -> Result<RegionId, Error> {
        if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES) {
            return Err(Error::Exhausted(format!("a region has a multiple of {PAGE_BYTES} bytes, not {bytes}")));
        }
        // The name shows in /proc; the system takes 249 bytes.
        let name: String = name.chars().filter(|c| !c.is_control()).take(NAME_BYTES_MAX / 4).collect();
        let made = rt::blocking(move || {
            let fd = memory::create(&format!("heddle-region-{name}"), bytes)?;
            memory::seal_finally(&fd)?;
            let mapping = Mapping::new(&fd, bytes, Access::Write, false)?;
            memory::reserve(&fd, &mapping)?;
            mapping.populate();
            Ok::<_, Error>((fd, mapping))
        });
        let (fd, mapping) = made.await?;
        let mut state = self.inner.state();
        if state.accept.is_none() {
            return Err(Error::Closed);
        }
        let id = state.free.pop_front().ok_or_else(|| Error::Exhausted(format!("{REGIONS_MAX} regions")))?;
        self.inner.view.replace(Region::new(id, mapping));
        state.regions[place(id)] = Some(Owned { id, fd: Arc::new(fd), bytes, closing: false, grants: Vec::new() });
        Ok(id)
    }

    fn grant(&self, region: RegionId, rights: Rights, holder: &str) -> Result<Capability, Error> {
        let holder = Holder::of(holder);
        let mut state = self.inner.state();
        let owned = state.find_mut(region).filter(|owned| !owned.closing).ok_or(Error::Unknown)?;
        let secret = Secret::random();
        let free = owned.grants.iter().position(|grant| grant.fenced);
        let at = match free {
            Some(at) => at,
            None if owned.grants.len() < GRANTS_MAX => {
                owned.grants.push(Grant { secret, holder, rights, generation: 0, fenced: false });
                owned.grants.len() - 1
            }
            None => return Err(Error::Exhausted(format!("a region has {GRANTS_MAX} grants"))),
        };
        let grant = GrantId(u16::try_from(at).expect("a region has fewer grants"));
        let offset = generation_offset(region, grant).expect("the place is within the bounds");
        let word = self.inner.generations.word(offset);
        let generation = word.load(std::sync::atomic::Ordering::Relaxed) + 1;
        assert!(is_in_force(generation), "a place that is free has an even generation");
        owned.grants[at] = Grant { secret, holder, rights, generation, fenced: false };
        let capability = Capability { node: self.inner.node, region, grant, rights, generation, secret };
        let mapped = self.inner.view.confirm(&capability, rights, holder);
        assert!(mapped, "the host maps its own regions");
        marks::raise(word, generation);
        Ok(capability)
    }

    async fn revoke(&self, capability: &Capability) -> Result<(), Error> {
        {
            let state = self.inner.state();
            let grant = capability.grant.0 as usize;
            let Some(grant) = state.find(capability.region).and_then(|owned| owned.grants.get(grant)) else {
                return Err(Error::Unknown);
            };
            if grant.generation > capability.generation {
                // The place was given out again, which the fence behind this one's revocation went before.
                return Ok(());
            }
            if grant.generation != capability.generation || !grant.secret.matches(&capability.secret) {
                return Err(Error::Unknown);
            }
            if grant.fenced {
                return Ok(());
            }
        }
        self.inner.revoke_all(capability.region, &[(capability.grant, capability.generation)]).await
    }

    async fn deregister(&self, region: RegionId) -> Result<(), Error> {
        let grants: Vec<(GrantId, u64)> = {
            let mut state = self.inner.state();
            let owned = state.find_mut(region).ok_or(Error::Unknown)?;
            owned.closing = true;
            let open = owned.grants.iter().enumerate().filter(|(_, grant)| !grant.fenced);
            open.map(|(at, grant)| (GrantId(at as u16), grant.generation)).collect()
        };
        self.inner.revoke_all(region, &grants).await?;
        let owned = {
            let mut state = self.inner.state();
            // Another call may have been quicker.
            state.find(region).ok_or(Error::Unknown)?;
            state.regions[place(region)].take()
        };
        self.inner.view.remove(region);
        let peers = self.inner.state().peers.clone();
        peers.iter().filter_map(|peer| peer.departure.as_ref()).for_each(|departure| departure.announce(region));
        let Some(owned) = owned else { return Err(Error::Unknown) };
        // Holders may map it still, so that closing it alone would not give the memory back.
        let (fd, bytes) = (owned.fd, owned.bytes);
        rt::blocking(move || memory::discard(&fd, bytes)).await?;
        // A place whose numbers have run out is not used again.
        if let Some(next) = region.0.checked_add(REGIONS_MAX as u32) {
            self.inner.state().free.push_back(RegionId(next));
        }
        Ok(())
    }

    fn load(&self, region: RegionId, offset: u64, length: usize) -> Result<BytesMut, Error> {
        let fd = self.inner.owned(region, offset, length)?;
        memory::load(&fd, offset, length)
    }

    fn store(&self, region: RegionId, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let fd = self.inner.owned(region, offset, bytes.len())?;
        memory::store(&fd, offset, bytes)
    }

    async fn accept(&self) -> Result<Endpoint, Error> {
        self.accepted.lock().await.recv().await.ok_or(Error::Closed)
    }

    async fn failed(&self) -> String {
        self.inner.failure.wait().await
    }

    fn address(&self) -> String {
        self.inner.address.clone()
    }

    async fn close(&self) {
        self.inner.end();
    }
}

impl Drop for ShmHost {
    fn drop(&mut self) {
        self.inner.end();
    }
}
