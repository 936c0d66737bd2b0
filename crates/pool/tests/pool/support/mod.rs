//! An RMA provider within one task: memory is a vector, verbs complete while they are posted, and there are no faults.
//!
//! Tests use it for properties of the pool alone, and to simulate donors that send messages which a correct donor
//! never sends.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use async_trait::async_trait;
use base::rt::channel::{Receiver, Sender, bounded};
use base::{Bytes, BytesMut};
use rma::{
    Atomicity, Capability, CapabilitySecret, Completion, Connection, Credential, Endpoint, Error, GrantId, Host,
    HostConfig, IncomingEvent, NodeId, Provider, ProviderProfile, RegionId, Rights, TokenLookup, VerbOrdering,
};

const MESSAGES_MAX: usize = 256;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
pub struct Loopback {
    hosts: Mutex<BTreeMap<String, Arc<LoopbackHost>>>,
}

struct Region {
    bytes: Vec<u8>,
    /// Each with the name that it was granted to.
    grants: BTreeMap<u16, (Capability, String)>,
}

pub struct LoopbackHost {
    address: String,
    node: NodeId,
    tokens: TokenLookup,
    regions: Mutex<BTreeMap<u32, Region>>,
    regions_next: AtomicU32,
    generations: AtomicU64,
    knocking: Mutex<Option<Sender<Endpoint>>>,
    knocks: base::rt::sync::Mutex<Receiver<Endpoint>>,
    connections: Mutex<Vec<Endpoint>>,
}

/// The senders of both ends; empty when the connection is closed.
type Wires = Mutex<[Option<Sender<IncomingEvent>>; 2]>;

struct LoopbackConnection {
    which: usize,
    name: String,
    host: Arc<LoopbackHost>,
    wires: Arc<Wires>,
    received: Mutex<Receiver<IncomingEvent>>,
}

impl LoopbackHost {
    fn check<'a>(
        regions: &'a mut BTreeMap<u32, Region>,
        capability: &Capability,
        holder: &str,
        rights: Rights,
        offset: u64,
        length: u64,
    ) -> Result<&'a mut [u8], Error> {
        let region = regions.get_mut(&capability.region.0).ok_or(Error::Unknown)?;
        let (grant, name) = region.grants.get(&capability.grant.0).ok_or(Error::Revoked)?;
        let known = grant.secret.matches(&capability.secret) && name == holder;
        if grant.generation != capability.generation || !known {
            return Err(Error::Unknown);
        }
        if !capability.rights.include(rights) {
            return Err(Error::Forbidden);
        }
        let region_bytes = region.bytes.len() as u64;
        if offset > region_bytes || length > region_bytes - offset {
            return Err(Error::OutOfBounds { offset, length, region_bytes });
        }
        Ok(&mut region.bytes[offset as usize..(offset + length) as usize])
    }
}

impl LoopbackConnection {
    fn verb<T>(
        &self,
        capability: &Capability,
        rights: Rights,
        offset: u64,
        length: u64,
        run: impl FnOnce(&mut [u8]) -> T,
    ) -> Completion<T> {
        if lock(&self.wires)[self.which].is_none() {
            return Completion::ready(Err(Error::Closed));
        }
        let mut regions = lock(&self.host.regions);
        Completion::ready(LoopbackHost::check(&mut regions, capability, &self.name, rights, offset, length).map(run))
    }

    fn word(&self, capability: &Capability, offset: u64, change: impl FnOnce(u64) -> u64) -> Completion<u64> {
        self.verb(capability, Rights::ATOMIC, offset, 8, |bytes| {
            let before = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            bytes.copy_from_slice(&change(before).to_le_bytes());
            before
        })
    }
}

impl Connection for LoopbackConnection {
    fn node(&self) -> NodeId {
        self.host.node
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn profile(&self) -> ProviderProfile {
        ProviderProfile {
            provider: "loopback",
            atomicity: Atomicity::Processor,
            ordering: VerbOrdering::Words,
            immediate: false,
            synchronous: true,
            host_progress: false,
        }
    }

    fn read(&self, capability: &Capability, offset: u64, length: usize, mut into: BytesMut) -> Completion<BytesMut> {
        self.verb(capability, Rights::READ, offset, length as u64, |bytes| {
            into.extend_from_slice(bytes);
            into
        })
    }

    fn write(&self, capability: &Capability, offset: u64, parts: &[Bytes], _: Option<u32>) -> Completion<()> {
        let whole = parts.concat();
        self.verb(capability, Rights::WRITE, offset, whole.len() as u64, |bytes| bytes.copy_from_slice(&whole))
    }

    fn compare_swap(&self, capability: &Capability, offset: u64, expected: u64, new: u64) -> Completion<u64> {
        self.word(capability, offset, |before| if before == expected { new } else { before })
    }

    fn fetch_add(&self, capability: &Capability, offset: u64, add: u64) -> Completion<u64> {
        self.word(capability, offset, |before| before.wrapping_add(add))
    }

    fn send(&self, parts: &[Bytes]) -> Completion<()> {
        let message = IncomingEvent::Message(parts.concat().into());
        let sent = lock(&self.wires)[self.which].as_ref().is_some_and(|wire| wire.try_send(message).is_ok());
        Completion::ready(if sent { Ok(()) } else { Err(Error::Closed) })
    }

    fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<Result<IncomingEvent, Error>> {
        lock(&self.received).poll_recv(cx).map(|received| received.ok_or(Error::Closed))
    }

    fn flush(&self) {}

    fn close(&self) {
        *lock(&self.wires) = [None, None];
    }
}

impl Drop for LoopbackConnection {
    fn drop(&mut self) {
        self.close();
    }
}

#[async_trait]
impl Provider for Loopback {
    async fn connect(&self, address: &str, credential: &Credential) -> Result<Endpoint, Error> {
        let unreachable =
            || Error::Unreachable { address: address.to_owned(), reason: "nobody is a host there".to_owned() };
        let host = lock(&self.hosts).get(address).cloned().ok_or_else(unreachable)?;
        if !(host.tokens)(&credential.name).is_some_and(|token| token.matches(&credential.token)) {
            return Err(Error::Rejected("unknown name or wrong token".to_owned()));
        }
        let (to_host, at_host) = bounded(MESSAGES_MAX);
        let (to_owner, at_owner) = bounded(MESSAGES_MAX);
        let wires = Arc::new(Mutex::new([Some(to_host), Some(to_owner)]));
        let side = |which: usize, received| {
            Endpoint::new(Arc::new(LoopbackConnection {
                which,
                name: credential.name.clone(),
                host: Arc::clone(&host),
                wires: Arc::clone(&wires),
                received: Mutex::new(received),
            }))
        };
        let theirs = side(1, at_host);
        let knocking = lock(&host.knocking).clone().ok_or_else(unreachable)?;
        lock(&host.connections).push(theirs.clone());
        knocking.send(theirs).await.map_err(|_| unreachable())?;
        Ok(side(0, at_owner))
    }

    async fn host(&self, address: &str, options: HostConfig) -> Result<Arc<dyn Host>, Error> {
        let (knocking, knocks) = bounded(MESSAGES_MAX);
        let host = Arc::new(LoopbackHost {
            address: address.to_owned(),
            node: options.node,
            tokens: options.tokens,
            regions: Mutex::default(),
            regions_next: AtomicU32::new(1),
            generations: AtomicU64::new(1),
            knocking: Mutex::new(Some(knocking)),
            knocks: base::rt::sync::Mutex::new(knocks),
            connections: Mutex::default(),
        });
        lock(&self.hosts).insert(address.to_owned(), Arc::clone(&host));
        Ok(host)
    }

    fn name(&self) -> &'static str {
        "loopback"
    }
}

#[async_trait]
impl Host for LoopbackHost {
    fn node(&self) -> NodeId {
        self.node
    }

    async fn register(&self, _: &str, bytes: u64) -> Result<RegionId, Error> {
        let region = self.regions_next.fetch_add(1, Ordering::Relaxed);
        let fresh = Region { bytes: vec![0; bytes as usize], grants: BTreeMap::new() };
        lock(&self.regions).insert(region, fresh);
        Ok(RegionId(region))
    }

    fn grant(&self, region: RegionId, rights: Rights, holder: &str) -> Result<Capability, Error> {
        let mut regions = lock(&self.regions);
        let grants = &mut regions.get_mut(&region.0).ok_or(Error::Unknown)?.grants;
        let grant = grants.last_key_value().map_or(0, |(grant, _)| grant + 1);
        let generation = self.generations.fetch_add(1, Ordering::Relaxed);
        let (node, secret) = (self.node, CapabilitySecret::random());
        let capability = Capability { node, region, grant: GrantId(grant), rights, generation, secret };
        grants.insert(grant, (capability, holder.to_owned()));
        Ok(capability)
    }

    async fn revoke(&self, capability: &Capability) -> Result<(), Error> {
        let mut regions = lock(&self.regions);
        regions.get_mut(&capability.region.0).ok_or(Error::Unknown)?.grants.remove(&capability.grant.0);
        Ok(())
    }

    async fn deregister(&self, region: RegionId) -> Result<(), Error> {
        lock(&self.regions).remove(&region.0).map(|_| ()).ok_or(Error::Unknown)
    }

    async fn accept(&self) -> Result<Endpoint, Error> {
        self.knocks.lock().await.recv().await.ok_or(Error::Closed)
    }

    fn address(&self) -> String {
        self.address.clone()
    }

    async fn close(&self) {
        *lock(&self.knocking) = None;
        lock(&self.regions).clear();
        for endpoint in std::mem::take(&mut *lock(&self.connections)) {
            endpoint.close();
        }
    }
}
