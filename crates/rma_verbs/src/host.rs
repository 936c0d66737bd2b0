//! The owner of regions: who may access which region, and how access is revoked.
//!
//! When a holder first presents a capability on a connection, the host registers the region's memory with the adapter,
//! in the connection's own protection domain. So there is one registration for each grant and connection. A grant is
//! revoked in this order:
//!
//! 1. The grant is marked as revoked: from now on no connection gets a key for it.
//! 2. Every connection that has such a key is asked to release it. The holder's provider stops posting under the key,
//!    waits for its verbs in flight, and answers. No code above the provider takes part.
//! 3. A holder that does not answer within [`DRAIN_TIMEOUT`] (paused, partitioned, gone) loses the connection: the host
//!    destroys its end of the queue pair, so that the holder's verbs in flight find no queue pair.
//! 4. The host deregisters the memory from the adapter, which first finishes its work on that memory. A packet that
//!    arrives later bears a key that no longer exists, and makes its queue pair fail.

use std::collections::BTreeMap;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::wire::hello::HelloAnswer;
use async_trait::async_trait;
use base::ErrorKind;
use base::rt::channel::{Receiver, Sender, bounded};
use rma::failure::{HostFailure, may_panic, reason_of};
use rma::{
    Capability, CapabilitySecret, Endpoint, Error, GrantId, Host, HostConfig, NodeId, RegionId, Rights, Token,
    TokenLookup,
};
use rustix::event::{EventfdFlags, PollFd, PollFlags};

use crate::connection::verbs_connection::VerbsConnection;
use crate::connection::{ConnectionCore, ConnectionDraft, RemotePeer};
use crate::device::{Device, RegistrationAccess};
use crate::registered_memory::RegisteredMemory;
use crate::wire::{self, Frame, HandshakeTranscript, PROTOCOL_VERSIONS, PairAddress, Rejection};

/// How long the holders of a revoked capability may take to release it before they lose their connections.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// How long each frame of the handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Handshakes at a time. The kernel accepts further clients, which have to wait or to connect again.
const HANDSHAKES_MAX: usize = 32;
/// Connections that wait to be accepted; further ones are closed.
const ACCEPTED_MAX: usize = 256;
/// Grants of one region that are in force at once.
const GRANTS_MAX: usize = 4096;
const PAGE_BYTES: u64 = 4096;
/// How long closing the host waits for the connections' threads.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

struct HostRegion {
    name: String,
    memory: Arc<RegisteredMemory>,
    grants: Vec<RegionGrant>,
    free: Vec<u16>,
}

struct RegionGrant {
    generation: u64,
    rights: Rights,
    secret: CapabilitySecret,
    /// The name on whose connections the grant is valid.
    holder: Box<str>,
    live: bool,
}

#[derive(Default)]
struct RegionTable {
    regions: BTreeMap<RegionId, HostRegion>,
    next: u32,
}

#[derive(Default)]
struct Connections {
    live: BTreeMap<u64, Arc<ConnectionCore>>,
    next: u64,
    closed: bool,
    /// The listening thread runs.
    listening: bool,
}

/// State that the host and its connections share.
pub struct HostRegions {
    node: NodeId,
    tokens: TokenLookup,
    device: Arc<Device>,
    table: Mutex<RegionTable>,
    connections: Mutex<Connections>,
    /// A connection's thread, or the listening one, has ended.
    ended: Condvar,
    handshakes: AtomicUsize,
    stop: AtomicBool,
    wake: OwnedFd,
    /// A defect of the listening thread.
    failure: HostFailure,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Both tables are consistent between any two statements that could panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HostRegions {
    /// The access that a capability gives on a connection of `holder`, if it is valid now.
    pub fn find(
        &self,
        capability: &Capability,
        holder: &str,
    ) -> Result<(Arc<RegisteredMemory>, RegistrationAccess, Rights), Rejection> {
        let table = lock(&self.table);
        if capability.node != self.node || capability.region.0 >= table.next {
            return Err(Rejection::Unknown);
        }
        // A region that existed has had all its grants revoked.
        let region = table.regions.get(&capability.region).ok_or(Rejection::Revoked)?;
        let grant = region.grants.get(usize::from(capability.grant.0)).ok_or(Rejection::Unknown)?;
        if capability.generation < grant.generation || (capability.generation == grant.generation && !grant.live) {
            return Err(Rejection::Revoked);
        }
        let known = capability.secret.matches(&grant.secret) && *grant.holder == *holder;
        if capability.generation > grant.generation || !known {
            return Err(Rejection::Unknown);
        }
        let access = RegistrationAccess {
            read: grant.rights.include(Rights::READ),
            write: grant.rights.include(Rights::WRITE),
            atomic: grant.rights.include(Rights::ATOMIC),
        };
        Ok((Arc::clone(&region.memory), access, grant.rights))
    }

    /// A connection's thread has ended, and no region is exposed to the connection any more.
    pub fn forget(&self, number: u64) {
        lock(&self.connections).live.remove(&number);
        self.ended.notify_all();
    }

    /// Steps 2 to 4 of a revocation; see the module.
    async fn fence(self: &Arc<Self>, region: RegionId, grant: GrantId) -> Result<(), Error> {
        let live: Vec<Arc<ConnectionCore>> = lock(&self.connections).live.values().cloned().collect();
        let ask =
            |connection: Arc<ConnectionCore>| connection.ask_to_drain(region, grant).map(|answer| (connection, answer));
        let asked: Vec<_> = live.into_iter().filter_map(ask).collect();
        let start = base::rt::now();
        let mut failed = false;
        for (connection, answer) in asked {
            let left = DRAIN_TIMEOUT.saturating_sub(start.elapsed());
            let answered = matches!(base::rt::timeout(left, answer).await, Ok(Ok(())));
            // Both calls wait for the adapter.
            let ended = base::rt::blocking(move || {
                if !answered {
                    connection.cut();
                }
                connection.withdraw(region, grant)
            });
            failed |= ended.await.is_err();
        }
        if failed { Err(Error::Ambiguous("the host's adapter did not let go of the region")) } else { Ok(()) }
    }

    /// Ends every connection.
    fn close(&self) {
        self.stop.store(true, Ordering::Release);
        // The write fails only on a full counter, and that wakes the thread too.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        let live: Vec<Arc<ConnectionCore>> = {
            let mut connections = lock(&self.connections);
            connections.closed = true;
            connections.live.values().cloned().collect()
        };
        live.iter().for_each(|connection| connection.cut());
    }

    /// Lists a connection, unless the host has closed meanwhile.
    fn adopt(self: &Arc<Self>, draft: ConnectionDraft, peer: RemotePeer) -> io::Result<Arc<ConnectionCore>> {
        let mut connections = lock(&self.connections);
        if connections.closed {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let number = connections.next;
        connections.next += 1;
        let node = NodeId(u32::try_from(number % u64::from(u32::MAX)).unwrap_or(0));
        let shared = ConnectionCore::start(draft, number, RemotePeer { node, ..peer }, Some(Arc::clone(self)))?;
        connections.live.insert(number, Arc::clone(&shared));
        let running = ConnectionCore::run(&shared);
        running.inspect_err(|_| {
            connections.live.remove(&number);
        })?;
        Ok(shared)
    }

    /// The host's part of the handshake.
    fn welcome(self: &Arc<Self>, control: TcpStream) -> io::Result<Arc<ConnectionCore>> {
        control.set_nodelay(true)?;
        control.set_read_timeout(Some(HANDSHAKE_TIMEOUT))?;
        control.set_write_timeout(Some(HANDSHAKE_TIMEOUT))?;
        let refuse = |rejection| {
            wire::send(&control, &Frame::Rejected { request: 0, rejection })?;
            Err(io::Error::from(io::ErrorKind::PermissionDenied))
        };
        let Frame::Hello { versions, name, nonce: client_nonce } = wire::receive(&control)? else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let answer = HelloAnswer::to(PROTOCOL_VERSIONS, versions);
        let mut host_nonce = [0; wire::NONCE_BYTES];
        if answer.is_refusal() {
            wire::send(&control, &Frame::Challenge { answer, nonce: host_nonce })?;
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        base::rt::fill_random(&mut host_nonce);
        wire::send(&control, &Frame::Challenge { answer, nonce: host_nonce })?;
        let Frame::Join { pair: client_pair, proof } = wire::receive(&control)? else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let transcript = HandshakeTranscript {
            versions,
            answer,
            name: &name,
            client_nonce: &client_nonce,
            host_nonce: &host_nonce,
            client_pair: &client_pair,
        };
        let token = (self.tokens)(&name);
        // An unknown name is rejected as late as a wrong token.
        let known = transcript.client_proved(token.as_ref().unwrap_or(&Token::random()), &proof);
        let Some(token) = token.filter(|_| known) else { return refuse(Rejection::Unauthenticated) };

        let draft = ConnectionDraft::new(&self.device)?;
        draft.connect(&client_pair)?;
        let pair = draft.address();
        let proof = transcript.host_proof(&token, self.node, &pair);
        wire::send(&control, &Frame::Welcome { node: self.node, pair, proof })?;
        let Frame::Ready = wire::receive(&control)? else { return Err(io::ErrorKind::InvalidData.into()) };
        self.adopt(draft, RemotePeer { node: self.node, name, control })
    }

    fn listen(self: Arc<Self>, listener: &TcpListener, accepted: &Sender<Endpoint>) {
        while !self.stop.load(Ordering::Acquire) {
            let mut waiting = [PollFd::new(listener, PollFlags::IN), PollFd::new(&self.wake, PollFlags::IN)];
            if !matches!(rustix::event::poll(&mut waiting, None), Ok(_) | Err(rustix::io::Errno::INTR)) {
                return;
            }
            may_panic();
            // The listener does not block: the client may have gone again.
            let Ok((control, _)) = listener.accept() else { continue };
            if self.stop.load(Ordering::Acquire) || self.handshakes.load(Ordering::Relaxed) >= HANDSHAKES_MAX {
                continue;
            }
            self.handshakes.fetch_add(1, Ordering::Relaxed);
            let (regions, accepted) = (Arc::clone(&self), accepted.clone());
            let thread = std::thread::Builder::new().name("rma-verbs-join".to_owned());
            // Each handshake blocks on the other end, so it has its own thread; no simulation comes here.
            #[allow(clippy::disallowed_methods)]
            let spawned = thread.spawn(move || {
                let joined = control.set_nonblocking(false).and_then(|()| regions.welcome(control));
                regions.handshakes.fetch_sub(1, Ordering::Relaxed);
                if let Ok(shared) = joined {
                    // If the queue is full the endpoint is dropped, which closes the connection.
                    let _ = accepted.try_send(Endpoint::new(Arc::new(VerbsConnection::new(shared))));
                }
            });
            if spawned.is_err() {
                self.handshakes.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

/// The client's part of the handshake.
pub fn join(device: &Arc<Device>, control: TcpStream, name: &str, token: &Token) -> Result<Arc<ConnectionCore>, Error> {
    let adapter = |error: io::Error| Error::system("making a queue pair", &error);
    let lost = |error: io::Error| match error.kind() {
        io::ErrorKind::InvalidData => Error::Malformed("the host does not speak this protocol"),
        _ => Error::Rejected(format!("the host ended the handshake: {error}")),
    };
    let limits = || {
        control.set_nodelay(true)?;
        control.set_read_timeout(Some(HANDSHAKE_TIMEOUT))?;
        control.set_write_timeout(Some(HANDSHAKE_TIMEOUT))
    };
    limits().map_err(|error| Error::system("preparing a socket", &error))?;
    let mut client_nonce = [0; wire::NONCE_BYTES];
    base::rt::fill_random(&mut client_nonce);
    let versions = PROTOCOL_VERSIONS;
    let hello = Frame::Hello { versions, name: name.to_owned(), nonce: client_nonce };
    wire::send(&control, &hello).map_err(lost)?;
    let (answer, host_nonce) = match wire::receive(&control).map_err(lost)? {
        Frame::Challenge { answer, nonce } => (answer, nonce),
        frame => return Err(refused(frame)),
    };
    answer.chosen_by(versions)?;
    let draft = ConnectionDraft::new(device).map_err(adapter)?;
    let client_pair: PairAddress = draft.address();
    let (client_nonce, host_nonce, client_pair_at) = (&client_nonce, &host_nonce, &client_pair);
    let transcript =
        HandshakeTranscript { versions, answer, name, client_nonce, host_nonce, client_pair: client_pair_at };
    let join = Frame::Join { pair: client_pair, proof: transcript.client_proof(token) };
    wire::send(&control, &join).map_err(lost)?;
    let (node, pair, proof) = match wire::receive(&control).map_err(lost)? {
        Frame::Welcome { node, pair, proof } => (node, pair, proof),
        frame => return Err(refused(frame)),
    };
    if !transcript.host_proved(token, node, &pair, &proof) {
        return Err(Error::Rejected("the host did not prove that it knows the token".to_owned()));
    }
    draft.connect(&pair).map_err(adapter)?;
    wire::send(&control, &Frame::Ready).map_err(lost)?;
    let peer = RemotePeer { node, name: name.to_owned(), control };
    let shared = ConnectionCore::start(draft, 0, peer, None).map_err(adapter)?;
    ConnectionCore::run(&shared).map_err(|error| Error::system("starting a thread", &error))?;
    Ok(shared)
}

fn refused(frame: Frame) -> Error {
    match frame {
        Frame::Rejected { .. } => Error::Rejected("the host does not know this name, or has another token".to_owned()),
        _ => Error::Malformed("a frame out of turn"),
    }
}

/// A host of regions over verbs. Dropping it ends it.
pub struct VerbsHost {
    regions: Arc<HostRegions>,
    accepted: base::rt::sync::Mutex<Receiver<Endpoint>>,
    address: String,
    /// Held during a revocation, so that repeating it waits for the one in progress.
    fencing: base::rt::sync::Mutex<()>,
}

impl VerbsHost {
    /// Blocks while names are resolved.
    pub fn start(device: &Arc<Device>, address: &str, options: HostConfig) -> Result<VerbsHost, Error> {
        let system = |error: io::Error| Error::system("listening", &error);
        let listener = TcpListener::bind(address).map_err(system)?;
        listener.set_nonblocking(true).map_err(system)?;
        // The system may have chosen the port; the name stays the caller's.
        let port = listener.local_addr().map_err(system)?.port();
        let name = address.rsplit_once(':').map_or(address, |(name, _)| name);
        let address = format!("{name}:{port}");
        let wake = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let regions = Arc::new(HostRegions {
            node: options.node,
            tokens: options.tokens,
            device: Arc::clone(device),
            table: Mutex::default(),
            connections: Mutex::default(),
            ended: Condvar::new(),
            handshakes: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            wake: wake.map_err(|error| system(error.into()))?,
            failure: HostFailure::default(),
        });
        let (sender, accepted) = bounded(ACCEPTED_MAX);
        lock(&regions.connections).listening = true;
        let listening = Arc::clone(&regions);
        let thread = std::thread::Builder::new().name("rma-verbs-host".to_owned());
        // Only the provider starts this thread, and only in production; no simulation comes here.
        #[allow(clippy::disallowed_methods)]
        let spawned = thread.spawn(move || {
            let regions = Arc::clone(&listening);
            let outcome = catch_unwind(AssertUnwindSafe(|| regions.listen(&listener, &sender)));
            drop(listener);
            lock(&listening.connections).listening = false;
            listening.ended.notify_all();
            // A host that clients cannot reach any more ends as a whole, and reports the reason before the end is visible.
            let reason = match outcome {
                Err(panic) => Some(format!("its listening thread panicked: {}", reason_of(&*panic))),
                Ok(()) if !listening.stop.load(Ordering::Acquire) => Some("polling its port failed".to_owned()),
                Ok(()) => None,
            };
            if let Some(reason) = reason {
                listening.failure.fail(reason);
                listening.close();
            }
            drop(sender);
        });
        spawned.map_err(system)?;
        let accepted = base::rt::sync::Mutex::new(accepted);
        Ok(VerbsHost { regions, accepted, address, fencing: base::rt::sync::Mutex::new(()) })
    }

    /// For tests: loses the connection of an accepted endpoint as a broken cable would. Neither end is notified.
    pub fn lose(&self, accepted: &Endpoint) {
        let connections = lock(&self.regions.connections);
        let mut live = connections.live.values();
        if let Some(connection) = live.find(|connection| connection.node() == accepted.node()) {
            connection.lose();
        }
    }
}

#[async_trait]
impl Host for VerbsHost {
    fn node(&self) -> NodeId {
        self.regions.node
    }

    async fn register(&self, name: &str, bytes: u64) -> Result<RegionId, Error> {
        if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES) {
            return Err(Error::System {
                doing: "registering a region",
                reason: format!("{bytes} bytes are not a multiple of {PAGE_BYTES}"),
                kind: ErrorKind::Rejected,
            });
        }
        let exhausted = || Error::Exhausted(format!("no memory for the {bytes} bytes of region {name}"));
        let size = usize::try_from(bytes).map_err(|_| exhausted())?;
        let memory = base::rt::blocking(move || RegisteredMemory::new(size)).await.map_err(|_| exhausted())?;
        if lock(&self.regions.connections).closed {
            return Err(Error::Closed);
        }
        let mut table = lock(&self.regions.table);
        let region = RegionId(table.next);
        table.next = table.next.checked_add(1).ok_or_else(exhausted)?;
        table
            .regions
            .insert(region, HostRegion { name: name.to_owned(), memory, grants: Vec::new(), free: Vec::new() });
        Ok(region)
    }

    fn grant(&self, region: RegionId, rights: Rights, holder: &str) -> Result<Capability, Error> {
        let mut table = lock(&self.regions.table);
        let entry = table.regions.get_mut(&region).ok_or(Error::Unknown)?;
        let secret = CapabilitySecret::random();
        let holder: Box<str> = holder.into();
        let number = match entry.free.pop() {
            Some(number) => number,
            None if entry.grants.len() >= GRANTS_MAX => {
                return Err(Error::Exhausted(format!("the region {} has the maximum number of grants", entry.name)));
            }
            None => {
                entry.grants.push(RegionGrant { generation: 0, rights, secret, holder: holder.clone(), live: false });
                u16::try_from(entry.grants.len() - 1).expect("fewer grants than that")
            }
        };
        let grant = &mut entry.grants[usize::from(number)];
        let generation = grant.generation + 1;
        *grant = RegionGrant { generation, rights, secret, holder, live: true };
        Ok(Capability { node: self.regions.node, region, grant: GrantId(number), rights, generation, secret })
    }

    async fn revoke(&self, capability: &Capability) -> Result<(), Error> {
        let _fencing = self.fencing.lock().await;
        let (region, number) = (capability.region, capability.grant);
        {
            let mut table = lock(&self.regions.table);
            if capability.node != self.regions.node || region.0 >= table.next {
                return Err(Error::Unknown);
            }
            // Deregistering has revoked the grant, under the lock that is held here.
            let Some(entry) = table.regions.get_mut(&region) else { return Ok(()) };
            let grant = entry.grants.get_mut(usize::from(number.0)).ok_or(Error::Unknown)?;
            if capability.generation < grant.generation {
                return Ok(());
            }
            if capability.generation > grant.generation || !capability.secret.matches(&grant.secret) {
                return Err(Error::Unknown);
            }
            grant.live = false;
        }
        self.regions.fence(region, number).await?;
        // Only now may the number be used again: until then connections may still expose the old grant under it.
        let mut table = lock(&self.regions.table);
        if let Some(entry) = table.regions.get_mut(&region)
            && !entry.free.contains(&number.0)
        {
            entry.free.push(number.0);
        }
        Ok(())
    }

    async fn deregister(&self, region: RegionId) -> Result<(), Error> {
        let _fencing = self.fencing.lock().await;
        let count = {
            let mut table = lock(&self.regions.table);
            if region.0 >= table.next {
                return Err(Error::Unknown);
            }
            let Some(entry) = table.regions.get_mut(&region) else { return Ok(()) };
            entry.grants.iter_mut().for_each(|grant| grant.live = false);
            entry.grants.len()
        };
        for number in 0..count {
            self.regions.fence(region, GrantId(u16::try_from(number).expect("fewer grants than that"))).await?;
        }
        lock(&self.regions.table).regions.remove(&region);
        Ok(())
    }

    async fn accept(&self) -> Result<Endpoint, Error> {
        self.accepted.lock().await.recv().await.ok_or(Error::Closed)
    }

    async fn failed(&self) -> String {
        self.regions.failure.wait().await
    }

    fn address(&self) -> String {
        self.address.clone()
    }

    async fn close(&self) {
        let regions = Arc::clone(&self.regions);
        base::rt::blocking(move || {
            regions.close();
            let connections = lock(&regions.connections);
            let going = |connections: &mut Connections| connections.listening || !connections.live.is_empty();
            drop(regions.ended.wait_timeout_while(connections, CLOSE_TIMEOUT, going));
        })
        .await;
        lock(&self.regions.table).regions.clear();
    }
}

impl Drop for VerbsHost {
    fn drop(&mut self) {
        self.regions.close();
    }
}
