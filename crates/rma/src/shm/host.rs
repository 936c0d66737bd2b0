//! The host: regions, grants, and the fence.
//!
//! A *mark* is the word by which a caller shows, in its connection's shared segment, under which grant it runs a verb
//! ([`hazards`]). A revocation ([`ShmHostCore::fence`]):
//! 1. raises the generations of the grants;
//! 2. reads the marks of every connection; for each mark that names one of the grants, it waits until the caller has
//!    cleared or replaced the mark;
//! 3. after a time-out, kills the processes whose marks are still set (by the pidfd taken when they connected) and
//!    waits for their end. A caller in the host's own process cannot be killed: if its mark is still set, the
//!    revocation kills no process and fails as ambiguous. It also fails as ambiguous if a killed process does not end
//!    in time.
//!
//! Invariants:
//! * A connection enters the host's table before its caller can set a mark. The connection leaves the table when the
//!   caller has ended it and no mark is left, or when the caller's process has ended.
//! * A grant's slot is reused only after the fence of its revocation has succeeded.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use base::BytesMut;
use base::rt::channel::{Receiver, Sender, bounded};
use base::rt::{self, CancellationToken};
use rustix::process::Pid;

use super::config::{NAME_BYTES_MAX, ShmConfig};
use super::connection::{AcceptedConnection, ShmConnection};
use super::connection_end::ConnectionEnd;
use super::departure::ConnectionDeparture;
use super::hazards;
use super::local::LocalHosts;
use super::memory::{self, Mapping, MappingAccess, PAGE_BYTES};
use super::segment::ConnectionSegment;
use super::view::{
    GENERATIONS_BYTES, GRANTS_MAX, HolderDigest, HostView, MappedRegion, REGIONS_MAX, generation_offset, is_in_force,
    slot_index,
};
use crate::capability::equal_in_constant_time;
use crate::failure::HostFailure;
use crate::{
    Capability, CapabilitySecret, Credential, Endpoint, Error, GrantId, Host, HostConfig, NodeId, RegionId, Rights,
    TOKEN_BYTES,
};

/// Connections of one host.
pub(super) const CONNECTIONS_MAX: usize = 1024;
/// Connections that wait to be accepted.
const ACCEPTED_MAX: usize = 64;
/// The numbers of accepted connections start here.
const CALLER_NODE_ID_MIN: u32 = 1 << 31;
/// Polls of a mark before its slot is polled less often: most verbs are over within that time.
const SPINS_MAX: u32 = 2000;
/// Time between later polls.
const POLL_PERIOD: Duration = Duration::from_micros(50);
/// How long a killed process may take to end before the fence fails as unconfirmed.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// The hosts of this process that have an address of the form `local:NAME`.
pub(super) static HOSTS: LocalHosts<ShmHostCore> = LocalHosts::new();

/// A process that connected.
pub(super) struct PeerProcess {
    pub(super) pid: Pid,
    /// Refers to that process, and never to a later one with the same number.
    pub(super) pidfd: OwnedFd,
}

impl PeerProcess {
    /// Whether the process has ended, so that none of its threads runs.
    pub(super) fn has_ended(&self) -> bool {
        let mut poll = [rustix::event::PollFd::new(&self.pidfd, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(rustix::event::poll(&mut poll, Some(&now)), Ok(1..))
    }
}

/// A connection from the host's point of view.
pub(super) struct HostConnection {
    segment: Arc<ConnectionSegment>,
    /// The caller's end if it is in this process and has no socket, otherwise the host's end.
    end: Weak<ConnectionEnd>,
    /// `None` for this process.
    process: Option<Arc<PeerProcess>>,
    /// `None` if there is no socket.
    departure: Option<Arc<ConnectionDeparture>>,
}

impl HostConnection {
    fn local(area: Arc<ConnectionSegment>, caller: &Arc<ConnectionEnd>) -> HostConnection {
        HostConnection { segment: area, end: Arc::downgrade(caller), process: None, departure: None }
    }

    pub(super) fn remote(
        area: Arc<ConnectionSegment>,
        host: &Arc<ConnectionEnd>,
        process: Option<Arc<PeerProcess>>,
        departure: &Arc<ConnectionDeparture>,
    ) -> HostConnection {
        HostConnection { segment: area, end: Arc::downgrade(host), process, departure: Some(Arc::clone(departure)) }
    }

    fn has_ended(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.has_ended())
    }

    /// Whether no mark can be set any more, and none is set.
    fn is_over(&self) -> bool {
        let departed = match &self.departure {
            Some(departure) => departure.has_gone(),
            None => self.end.upgrade().is_none_or(|side| side.is_closed()),
        };
        // Read the marks after the end was read, so that a mark that was set before the end is seen.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        (departed && self.segment.hazards().next().is_none()) || self.has_ended()
    }
}

/// A host. Dropping it ends it.
pub(super) struct ShmHost {
    pub(super) inner: Arc<ShmHostCore>,
    accepted: rt::sync::Mutex<Receiver<Endpoint>>,
}

pub(super) struct ShmHostCore {
    pub(super) node: NodeId,
    pub(super) address: String,
    options: HostConfig,
    settings: ShmConfig,
    pub(super) view: Arc<HostView>,
    generations: Mapping,
    pub(super) generations_fd: OwnedFd,
    state: Mutex<HostState>,
    pub(super) stop: CancellationToken,
    failure: HostFailure,
}

struct HostState {
    /// Indexed by slot.
    regions: Vec<Option<OwnedRegion>>,
    /// Free slots, the one that has been free longest first, with the number of the next region there.
    free: VecDeque<RegionId>,
    peers: Vec<Arc<HostConnection>>,
    callers: u32,
    accept: Option<Sender<Endpoint>>,
}

/// A region from its owner's point of view.
struct OwnedRegion {
    id: RegionId,
    fd: Arc<OwnedFd>,
    bytes: u64,
    /// Set while the region is being deregistered: it gets no further grants.
    closing: bool,
    grants: Vec<ShmGrant>,
}

/// The state of one grant slot.
#[derive(Clone, Copy)]
struct ShmGrant {
    /// The secret of the last capability.
    secret: CapabilitySecret,
    /// The name on whose connections the grant is valid.
    holder: HolderDigest,
    rights: Rights,
    generation: u64,
    /// Whether the fence of its revocation has succeeded, so that the slot can be reused.
    fenced: bool,
}

/// The answer to a caller whose capability is confirmed.
pub(super) struct GrantConfirmation {
    pub(super) fd: Arc<OwnedFd>,
    pub(super) bytes: u64,
    pub(super) rights: Rights,
}

impl ShmHost {
    /// Creates a host that is not reachable yet.
    pub(super) fn new(address: String, options: HostConfig, settings: ShmConfig) -> Result<ShmHost, Error> {
        let generations_fd = memory::create("heddle-generations", GENERATIONS_BYTES)?;
        let generations = Mapping::new(&generations_fd, GENERATIONS_BYTES, MappingAccess::Write, false)?;
        memory::seal_against_writers(&generations_fd)?;
        let view = Arc::new(HostView::new(options.node, &generations_fd)?);
        let (accept, accepted) = bounded(ACCEPTED_MAX);
        let state = HostState {
            regions: (0..REGIONS_MAX).map(|_| None).collect(),
            free: (0..REGIONS_MAX as u32).map(RegionId).collect(),
            peers: Vec::new(),
            callers: 0,
            accept: Some(accept),
        };
        let node = options.node;
        let state = Mutex::new(state);
        let (stop, failure) = (CancellationToken::new(), HostFailure::default());
        let inner = Arc::new(ShmHostCore {
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

impl ShmHostCore {
    fn state(&self) -> MutexGuard<'_, HostState> {
        // Consistent between any two statements that can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Authenticates a client.
    pub(super) fn authenticate(&self, name: &str, token: &[u8]) -> Result<(), Error> {
        // An unknown name takes the same time.
        let known = (self.options.tokens)(name).filter(|_| name.len() <= NAME_BYTES_MAX);
        let expected = known.as_ref().map_or([0; TOKEN_BYTES], |token| *token.bytes());
        if equal_in_constant_time(&expected, token) && known.is_some() {
            return Ok(());
        }
        Err(Error::Rejected("unknown name or wrong token".into()))
    }

    /// Puts a connection into the table.
    pub(super) fn add_peer(&self, peer: HostConnection) -> Result<NodeId, Error> {
        let mut state = self.state();
        if state.accept.is_none() {
            return Err(Error::Closed);
        }
        state.peers.retain(|peer| !peer.is_over());
        if state.peers.len() >= CONNECTIONS_MAX {
            return Err(Error::Exhausted(format!("the host has the maximum of {CONNECTIONS_MAX} connections")));
        }
        state.peers.push(Arc::new(peer));
        let node = NodeId(CALLER_NODE_ID_MIN + state.callers % CALLER_NODE_ID_MIN);
        state.callers = state.callers.wrapping_add(1);
        Ok(node)
    }

    /// Puts a new connection into the accept queue; waits while the queue is full.
    pub(super) async fn hand_over(&self, accepted: AcceptedConnection) -> Result<(), Error> {
        let accept = self.state().accept.clone().ok_or(Error::Closed)?;
        let handing = accept.send(Endpoint::new(Arc::new(accepted)));
        match self.stop.run_until_cancelled(handing).await {
            Some(Ok(())) => Ok(()),
            _ => Err(Error::Closed),
        }
    }

    /// Connects a caller in this process.
    pub(super) async fn connect_local(self: &Arc<ShmHostCore>, credential: &Credential) -> Result<Endpoint, Error> {
        self.authenticate(&credential.name, credential.token.bytes())?;
        let (area, _fd) = ConnectionSegment::create()?;
        let area = Arc::new(area);
        let (caller, host) = ConnectionEnd::pair(&area);
        self.view.add_segment(&area);
        let node = self.add_peer(HostConnection::local(area, &caller))?;
        let name = self.address.clone();
        let (view, holder) = (Arc::clone(&self.view), HolderDigest::of(&credential.name));
        let caller = ShmConnection { side: caller, view, name, holder, waiting: None };
        self.hand_over(AcceptedConnection { side: host, node, name: credential.name.clone() }).await?;
        Ok(Endpoint::new(Arc::new(caller)))
    }

    /// Checks a capability that is presented on a connection of `holder`, whose process has not used it yet.
    pub(super) fn confirm(&self, capability: &Capability, holder: HolderDigest) -> Result<GrantConfirmation, Error> {
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
        Ok(GrantConfirmation { fd: Arc::clone(&owned.fd), bytes: owned.bytes, rights: grant.rights })
    }

    /// The memfd of a region, if the range lies within it.
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
                // A later generation belongs to another grant. If it was raised before, the same value is stored again, for the
                // fence within.
                hazards::raise(word, if current == *generation { current + 1 } else { current });
            }
            state.peers.clone()
        };
        let mut awaited: Vec<(Arc<HostConnection>, usize, u64)> = Vec::new();
        for peer in peers {
            let under = |mark: u64| grants.iter().any(|(grant, _)| hazards::is_under(mark, region.0, grant.0));
            awaited.extend(
                peer.segment
                    .hazards()
                    .filter(|(_, mark)| under(*mark))
                    .map(|(slot, mark)| (Arc::clone(&peer), slot, mark)),
            );
        }
        let still = |(peer, slot, mark): &(Arc<HostConnection>, usize, u64)| {
            !hazards::is_over(peer.segment.slot(*slot), *mark) && !peer.has_ended()
        };
        for _ in 0..SPINS_MAX {
            awaited.retain(|(peer, slot, mark)| !hazards::is_over(peer.segment.slot(*slot), *mark));
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
                until = rt::now() + KILL_TIMEOUT;
                for process in awaited.iter().filter_map(|(peer, ..)| peer.process.as_ref()) {
                    kill(process)?;
                }
            }
            rt::sleep(POLL_PERIOD).await;
        }
    }

    /// Revokes grants and records that the fence succeeded.
    async fn revoke_all(&self, region: RegionId, grants: &[(GrantId, u64)]) -> Result<(), Error> {
        self.fence(region, grants).await?;
        let mut state = self.state();
        if let Some(owned) = state.find_mut(region) {
            for (grant, generation) in grants {
                let place = &mut owned.grants[grant.0 as usize];
                // A concurrent call may have been faster, and the slot may be in use again.
                place.fenced |= place.generation == *generation;
            }
        }
        Ok(())
    }

    /// Ends the host because of a defect after which it cannot serve.
    pub(super) fn fail(&self, reason: String) {
        self.failure.fail(reason);
        self.end();
    }

    /// Ends the host.
    pub(super) fn end(&self) {
        self.stop.cancel();
        HOSTS.remove(&self.address, self);
        let peers = {
            let mut state = self.state();
            state.accept = None;
            for owned in state.regions.iter_mut().filter_map(Option::take) {
                // Callers that still map the region read zeros, and learn that the connection is lost.
                let _harmless = memory::discard(&owned.fd, owned.bytes);
            }
            std::mem::take(&mut state.peers)
        };
        for side in peers.iter().filter_map(|peer| peer.end.upgrade()) {
            side.end();
        }
        self.view.clear();
    }
}

/// Kills a process that did not finish its verbs. Never this one.
fn kill(process: &PeerProcess) -> Result<(), Error> {
    assert_ne!(process.pid, rustix::process::getpid(), "a connection within this process has no process to kill");
    match rustix::process::pidfd_send_signal(&process.pidfd, rustix::process::Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(_) => Err(Error::Ambiguous("a process that holds a revoked grant cannot be killed")),
    }
}

impl HostState {
    fn find(&self, region: RegionId) -> Option<&OwnedRegion> {
        self.regions[slot_index(region)].as_ref().filter(|owned| owned.id == region)
    }

    fn find_mut(&mut self, region: RegionId) -> Option<&mut OwnedRegion> {
        self.regions[slot_index(region)].as_mut().filter(|owned| owned.id == region)
    }
}

#[async_trait]
impl Host for ShmHost {
    fn node(&self) -> NodeId {
        self.inner.node
    }

    async fn register(&self, name: &str, bytes: u64) -> Result<RegionId, Error> {
        if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES) {
            return Err(Error::Exhausted(format!("a region's size must be a multiple of {PAGE_BYTES}, not {bytes}")));
        }
        // The name shows in /proc; the system accepts 249 bytes.
        let name: String = name.chars().filter(|c| !c.is_control()).take(NAME_BYTES_MAX / 4).collect();
        let made = rt::blocking(move || {
            let fd = memory::create(&format!("heddle-region-{name}"), bytes)?;
            memory::seal_finally(&fd)?;
            let mapping = Mapping::new(&fd, bytes, MappingAccess::Write, false)?;
            memory::reserve(&fd, &mapping)?;
            mapping.populate();
            Ok::<_, Error>((fd, mapping))
        });
        let (fd, mapping) = made.await?;
        let mut state = self.inner.state();
        if state.accept.is_none() {
            return Err(Error::Closed);
        }
        let id = state.free.pop_front().ok_or_else(|| Error::Exhausted(format!("{REGIONS_MAX} regions are in use")))?;
        self.inner.view.replace(MappedRegion::new(id, mapping));
        state.regions[slot_index(id)] =
            Some(OwnedRegion { id, fd: Arc::new(fd), bytes, closing: false, grants: Vec::new() });
        Ok(id)
    }

    fn grant(&self, region: RegionId, rights: Rights, holder: &str) -> Result<Capability, Error> {
        let holder = HolderDigest::of(holder);
        let mut state = self.inner.state();
        let owned = state.find_mut(region).filter(|owned| !owned.closing).ok_or(Error::Unknown)?;
        let secret = CapabilitySecret::random();
        let free = owned.grants.iter().position(|grant| grant.fenced);
        let at = match free {
            Some(at) => at,
            None if owned.grants.len() < GRANTS_MAX => {
                owned.grants.push(ShmGrant { secret, holder, rights, generation: 0, fenced: false });
                owned.grants.len() - 1
            }
            None => return Err(Error::Exhausted(format!("the region has the maximum of {GRANTS_MAX} grants"))),
        };
        let grant = GrantId(u16::try_from(at).expect("a region has fewer grants"));
        let offset = generation_offset(region, grant).expect("the place is within the bounds");
        let word = self.inner.generations.word(offset);
        let generation = word.load(std::sync::atomic::Ordering::Relaxed) + 1;
        assert!(is_in_force(generation), "a place that is free has an even generation");
        owned.grants[at] = ShmGrant { secret, holder, rights, generation, fenced: false };
        let capability = Capability { node: self.inner.node, region, grant, rights, generation, secret };
        let mapped = self.inner.view.confirm(&capability, rights, holder);
        assert!(mapped, "the host maps its own regions");
        hazards::raise(word, generation);
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
                // The slot is in use again, so the fence of this grant's revocation has succeeded before.
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
            // A concurrent call may have been faster.
            state.find(region).ok_or(Error::Unknown)?;
            state.regions[slot_index(region)].take()
        };
        self.inner.view.remove(region);
        let peers = self.inner.state().peers.clone();
        peers.iter().filter_map(|peer| peer.departure.as_ref()).for_each(|departure| departure.announce(region));
        let Some(owned) = owned else { return Err(Error::Unknown) };
        // Holders may still map it, so closing the descriptor alone would not free the memory.
        let (fd, bytes) = (owned.fd, owned.bytes);
        rt::blocking(move || memory::discard(&fd, bytes)).await?;
        // A slot whose numbers have run out is not used again.
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
