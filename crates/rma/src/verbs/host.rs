//! The owner of regions: who may reach which, and how that ends.
//!
//! A region's memory is registered with the adapter once for each grant and connection that uses it, in the
//! connection's own domain, when the holder first shows the capability. Revoking a grant is, in this order:
//!
//! 1. The grant's generation goes up: from now on nobody is given a key for the old one.
//! 2. Every connection that has such a key is asked to let go. The holder's provider stops posting under it, waits for
//!    what is in flight, and answers. No code above the provider has a part in this.
//! 3. A holder that does not answer within [`DRAIN_TIME`] (paused, partitioned, gone) loses the connection: its queue
//!    pair here is destroyed, and whatever it had posted finds none.
//! 4. The registrations are taken from the adapter, which waits for what it is doing under them. A packet that arrives
//!    later bears a key that no longer exists, and its queue pair fails.

use std::collections::BTreeMap;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use base::ErrorKind;
use base::rt::channel::{Receiver, Sender, bounded};
use rustix::event::{EventfdFlags, PollFd, PollFlags};

use super::connection::{Draft, Link, Peer, Shared};
use super::device::{Access, Device};
use super::memory::Memory;
use super::wire::{self, Frame, PairAddress, Refusal, Transcript, VERSION};
use crate::failure::{Failure, may_panic, reason_of};
use crate::{Capability, Endpoint, Error, GrantId, Host, HostOptions, NodeId, RegionId, Rights, Secret, Token, Tokens};

/// How long the holders of a revoked capability may take to let go before they lose their connections.
const DRAIN_TIME: Duration = Duration::from_secs(2);
/// How long each frame of the handshake may take.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// Handshakes at a time; whoever comes then is let in by the kernel and has to wait, or to come again.
const HANDSHAKES_MAX: usize = 32;
/// Connections that wait to be accepted; further ones are closed.
const ACCEPTED_MAX: usize = 256;
/// Grants of one region that hold at once.
const GRANTS_MAX: usize = 4096;
const PAGE_BYTES: u64 = 4096;
/// How long closing waits for the connections' threads.
const CLOSE_TIME: Duration = Duration::from_secs(10);

struct Region {
    name: String,
    memory: Arc<Memory>,
    grants: Vec<Grant>,
    free: Vec<u16>,
}

struct Grant {
    generation: u64,
    rights: Rights,
    secret: Secret,
    /// On whose connections it is good.
    holder: Box<str>,
    live: bool,
}

#[derive(Default)]
struct Table {
    regions: BTreeMap<RegionId, Region>,
    next: u32,
}

#[derive(Default)]
struct Connections {
    live: BTreeMap<u64, Arc<Shared>>,
    next: u64,
    closed: bool,
    /// The thread that lets them in runs.
    listening: bool,
}

/// What the host and its connections share.
pub struct Regions {
    node: NodeId,
    tokens: Tokens,
    device: Arc<Device>,
    table: Mutex<Table>,
    connections: Mutex<Connections>,
    /// A connection's thread, or the listening one, has ended.
    ended: Condvar,
    handshakes: AtomicUsize,
    stop: AtomicBool,
    wake: OwnedFd,
    /// A defect of the listening thread.
    failure: Failure,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Both tables are whole between any two statements that could panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Regions {
    /// What a capability gives access to on a connection of `holder`, if it is good now.
    pub fn find(&self, capability: &Capability, holder: &str) -> Result<(Arc<Memory>, Access, Rights), Refusal> {
        let table = lock(&self.table);
        if capability.node != self.node || capability.region.0 >= table.next {
            return Err(Refusal::Unknown);
        }
        // A region that was here has had all its grants revoked.
        let region = table.regions.get(&capability.region).ok_or(Refusal::Revoked)?;
        let grant = region.grants.get(usize::from(capability.grant.0)).ok_or(Refusal::Unknown)?;
        if capability.generation < grant.generation || (capability.generation == grant.generation && !grant.live) {
            return Err(Refusal::Revoked);
        }
        let known = capability.secret.matches(&grant.secret) && *grant.holder == *holder;
        if capability.generation > grant.generation || !known {
            return Err(Refusal::Unknown);
        }
        let access = Access {
            read: grant.rights.include(Rights::READ),
            write: grant.rights.include(Rights::WRITE),
            atomic: grant.rights.include(Rights::ATOMIC),
        };
        Ok((Arc::clone(&region.memory), access, grant.rights))
    }

    /// A connection's thread has ended, and with it everything that the connection could reach.
    pub fn forget(&self, number: u64) {
        lock(&self.connections).live.remove(&number);
        self.ended.notify_all();
    }

    /// Steps 2 to 4 of a revocation; see the module.
    async fn fence(self: &Arc<Self>, region: RegionId, grant: GrantId) -> Result<(), Error> {
        let live: Vec<Arc<Shared>> = lock(&self.connections).live.values().cloned().collect();
        let ask = |connection: Arc<Shared>| connection.ask_to_drain(region, grant).map(|answer| (connection, answer));
        let asked: Vec<_> = live.into_iter().filter_map(ask).collect();
        let start = base::rt::now();
        let mut failed = false;
        for (connection, answer) in asked {
            let left = DRAIN_TIME.saturating_sub(start.elapsed());
            let answered = matches!(base::rt::timeout(left, answer).await, Ok(Ok(())));
            // Both wait for the adapter.
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
        // Only a full counter refuses, and that wakes the thread too.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        let live: Vec<Arc<Shared>> = {
            let mut connections = lock(&self.connections);
            connections.closed = true;
            connections.live.values().cloned().collect()
        };
        live.iter().for_each(|connection| connection.cut());
    }

    /// Lists a connection, unless the host has ended meanwhile.
    fn adopt(self: &Arc<Self>, draft: Draft, peer: Peer) -> io::Result<Arc<Shared>> {
        let mut connections = lock(&self.connections);
        if connections.closed {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let number = connections.next;
        connections.next += 1;
        let node = NodeId(u32::try_from(number % u64::from(u32::MAX)).unwrap_or(0));
        let shared = Shared::start(draft, number, Peer { node, ..peer }, Some(Arc::clone(self)))?;
        connections.live.insert(number, Arc::clone(&shared));
        let running = Shared::run(&shared);
        running.inspect_err(|_| {
            connections.live.remove(&number);
        })?;
        Ok(shared)
    }

    /// The host's side of the handshake.
    fn welcome(self: &Arc<Self>, control: TcpStream) -> io::Result<Arc<Shared>> {
        control.set_nodelay(true)?;
        control.set_read_timeout(Some(HANDSHAKE_TIME))?;
        control.set_write_timeout(Some(HANDSHAKE_TIME))?;
        let refuse = |refusal| {
            wire::send(&control, &Frame::Refused { request: 0, refusal })?;
            Err(io::Error::from(io::ErrorKind::PermissionDenied))
        };
        let Frame::Hello { version, name, nonce: client_nonce } = wire::receive(&control)? else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        if version != VERSION {
            return refuse(Refusal::Version(VERSION));
        }
        let mut host_nonce = [0; wire::NONCE_BYTES];
        base::rt::fill_random(&mut host_nonce);
        wire::send(&control, &Frame::Challenge { nonce: host_nonce })?;
        let Frame::Join { pair: client_pair, proof } = wire::receive(&control)? else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let transcript =
            Transcript { name: &name, client_nonce: &client_nonce, host_nonce: &host_nonce, client_pair: &client_pair };
        let token = (self.tokens)(&name);
        // Somebody unknown is refused as late as somebody with a wrong token.
        let known = transcript.client_proved(token.as_ref().unwrap_or(&Token::random()), &proof);
        let Some(token) = token.filter(|_| known) else { return refuse(Refusal::Stranger) };

        let draft = Draft::new(&self.device)?;
        draft.connect(&client_pair)?;
        let pair = draft.address();
        let proof = transcript.host_proof(&token, self.node, &pair);
        wire::send(&control, &Frame::Welcome { node: self.node, pair, proof })?;
        let Frame::Ready = wire::receive(&control)? else { return Err(io::ErrorKind::InvalidData.into()) };
        self.adopt(draft, Peer { node: self.node, name, control })
    }

    fn listen(self: Arc<Self>, listener: &TcpListener, accepted: &Sender<Endpoint>) {
        while !self.stop.load(Ordering::Acquire) {
            let mut waiting = [PollFd::new(listener, PollFlags::IN), PollFd::new(&self.wake, PollFlags::IN)];
            if !matches!(rustix::event::poll(&mut waiting, None), Ok(_) | Err(rustix::io::Errno::INTR)) {
                return;
            }
            may_panic();
            // The listener does not block: who came may have gone again.
            let Ok((control, _)) = listener.accept() else { continue };
            if self.stop.load(Ordering::Acquire) || self.handshakes.load(Ordering::Relaxed) >= HANDSHAKES_MAX {
                continue;
            }
            self.handshakes.fetch_add(1, Ordering::Relaxed);
            let (regions, accepted) = (Arc::clone(&self), accepted.clone());
            let thread = std::thread::Builder::new().name("rma-verbs-join".to_owned());
            // A handshake waits for the other side, each in a thread of its own; no simulation comes here.
            #[allow(clippy::disallowed_methods)]
            let spawned = thread.spawn(move || {
                let joined = control.set_nonblocking(false).and_then(|()| regions.welcome(control));
                regions.handshakes.fetch_sub(1, Ordering::Relaxed);
                if let Ok(shared) = joined {
                    // Without room the endpoint is dropped, which closes the connection.
                    let _ = accepted.try_send(Endpoint::new(Arc::new(Link::new(shared))));
                }
            });
            if spawned.is_err() {
                self.handshakes.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

/// The connecting side of the handshake.
pub fn join(device: &Arc<Device>, control: TcpStream, name: &str, token: &Token) -> Result<Arc<Shared>, Error> {
    let adapter = |error: io::Error| Error::system("making a queue pair", &error);
    let lost = |error: io::Error| match error.kind() {
        io::ErrorKind::InvalidData => Error::Malformed("the host does not speak this protocol"),
        _ => Error::Refused(format!("the host ended the handshake: {error}")),
    };
    let limits = || {
        control.set_nodelay(true)?;
        control.set_read_timeout(Some(HANDSHAKE_TIME))?;
        control.set_write_timeout(Some(HANDSHAKE_TIME))
    };
    limits().map_err(|error| Error::system("preparing a socket", &error))?;
    let mut client_nonce = [0; wire::NONCE_BYTES];
    base::rt::fill_random(&mut client_nonce);
    let hello = Frame::Hello { version: VERSION, name: name.to_owned(), nonce: client_nonce };
    wire::send(&control, &hello).map_err(lost)?;
    let host_nonce = match wire::receive(&control).map_err(lost)? {
        Frame::Challenge { nonce } => nonce,
        frame => return Err(refused(frame)),
    };
    let draft = Draft::new(device).map_err(adapter)?;
    let client_pair: PairAddress = draft.address();
    let transcript =
        Transcript { name, client_nonce: &client_nonce, host_nonce: &host_nonce, client_pair: &client_pair };
    let join = Frame::Join { pair: client_pair, proof: transcript.client_proof(token) };
    wire::send(&control, &join).map_err(lost)?;
    let (node, pair, proof) = match wire::receive(&control).map_err(lost)? {
        Frame::Welcome { node, pair, proof } => (node, pair, proof),
        frame => return Err(refused(frame)),
    };
    if !transcript.host_proved(token, node, &pair, &proof) {
        return Err(Error::Refused("the host did not prove that it knows the token".to_owned()));
    }
    draft.connect(&pair).map_err(adapter)?;
    wire::send(&control, &Frame::Ready).map_err(lost)?;
    let peer = Peer { node, name: name.to_owned(), control };
    let shared = Shared::start(draft, 0, peer, None).map_err(adapter)?;
    Shared::run(&shared).map_err(|error| Error::system("starting a thread", &error))?;
    Ok(shared)
}

fn refused(frame: Frame) -> Error {
    match frame {
        Frame::Refused { refusal: Refusal::Version(theirs), .. } => Error::Version { ours: VERSION, theirs },
        Frame::Refused { .. } => Error::Refused("the host knows no such name, or another token".to_owned()),
        _ => Error::Malformed("a frame that may not come now"),
    }
}

/// A host of regions over verbs. Dropping it ends it.
pub struct VerbsHost {
    regions: Arc<Regions>,
    accepted: base::rt::sync::Mutex<Receiver<Endpoint>>,
    address: String,
    /// Held through a revocation, so that doing it again waits for the one that is under way.
    fencing: base::rt::sync::Mutex<()>,
}

impl VerbsHost {
    /// Waits for names to be resolved.
    pub fn start(device: &Arc<Device>, address: &str, options: HostOptions) -> Result<VerbsHost, Error> {
        let system = |error: io::Error| Error::system("listening", &error);
        let listener = TcpListener::bind(address).map_err(system)?;
        listener.set_nonblocking(true).map_err(system)?;
        // What was left to chance is the port; the name stays the caller's.
        let port = listener.local_addr().map_err(system)?.port();
        let name = address.rsplit_once(':').map_or(address, |(name, _)| name);
        let address = format!("{name}:{port}");
        let wake = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let regions = Arc::new(Regions {
            node: options.node,
            tokens: options.tokens,
            device: Arc::clone(device),
            table: Mutex::default(),
            connections: Mutex::default(),
            ended: Condvar::new(),
            handshakes: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            wake: wake.map_err(|error| system(error.into()))?,
            failure: Failure::default(),
        });
        let (sender, accepted) = bounded(ACCEPTED_MAX);
        lock(&regions.connections).listening = true;
        let listening = Arc::clone(&regions);
        let thread = std::thread::Builder::new().name("rma-verbs-host".to_owned());
        // The thread is the provider's own and of production only; no simulation comes here.
        #[allow(clippy::disallowed_methods)]
        let spawned = thread.spawn(move || {
            let regions = Arc::clone(&listening);
            let outcome = catch_unwind(AssertUnwindSafe(|| regions.listen(&listener, &sender)));
            drop(listener);
            lock(&listening.connections).listening = false;
            listening.ended.notify_all();
            // A host that nobody can reach any more ends as a whole, and says so before anybody can see the end.
            let reason = match outcome {
                Err(panic) => Some(format!("its listening thread panicked: {}", reason_of(&*panic))),
                Ok(()) if !listening.stop.load(Ordering::Acquire) => Some("its port cannot be waited for".to_owned()),
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

    /// For tests: loses the connection of an accepted endpoint as a broken cable would. Nobody is told.
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
                reason: format!("{bytes} bytes are no multiple of {PAGE_BYTES}"),
                kind: ErrorKind::Rejected,
            });
        }
        let exhausted = || Error::Exhausted(format!("{bytes} bytes for the region {name}"));
        let size = usize::try_from(bytes).map_err(|_| exhausted())?;
        let memory = base::rt::blocking(move || Memory::new(size)).await.map_err(|_| exhausted())?;
        if lock(&self.regions.connections).closed {
            return Err(Error::Closed);
        }
        let mut table = lock(&self.regions.table);
        let region = RegionId(table.next);
        table.next = table.next.checked_add(1).ok_or_else(exhausted)?;
        table.regions.insert(region, Region { name: name.to_owned(), memory, grants: Vec::new(), free: Vec::new() });
        Ok(region)
    }

    fn grant(&self, region: RegionId, rights: Rights, holder: &str) -> Result<Capability, Error> {
        let mut table = lock(&self.regions.table);
        let entry = table.regions.get_mut(&region).ok_or(Error::Unknown)?;
        let secret = Secret::random();
        let holder: Box<str> = holder.into();
        let number = match entry.free.pop() {
            Some(number) => number,
            None if entry.grants.len() >= GRANTS_MAX => {
                return Err(Error::Exhausted(format!("grants of the region {}", entry.name)));
            }
            None => {
                entry.grants.push(Grant { generation: 0, rights, secret, holder: holder.clone(), live: false });
                u16::try_from(entry.grants.len() - 1).expect("fewer grants than that")
            }
        };
        let grant = &mut entry.grants[usize::from(number)];
        let generation = grant.generation + 1;
        *grant = Grant { generation, rights, secret, holder, live: true };
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
            // Deregistering has revoked it, under the lock that is held here.
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
        // Only now may the place be given again: what is found under its number is the old grant's until then.
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
            drop(regions.ended.wait_timeout_while(connections, CLOSE_TIME, going));
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
