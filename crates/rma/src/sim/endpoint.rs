//! The endpoints and hosts of the `sim` provider, as their users hold them.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use base::{Bytes, BytesMut, rt};

use super::connection::{ConnectionKey, EndIndex};
use super::memory::VerbAccess;
use super::verb::{SimVerb, VerbCompleter};
use super::{SimProvider, poll_accept};
use crate::{
    Capability, CapabilitySecret, Completion, Connection, Endpoint, Error, Host, IncomingEvent, MESSAGE_BYTES_MAX,
    NodeId, PARTS_MAX, ProviderProfile, RegionId, Rights, TRANSFER_BYTES_MAX, WORD_BYTES,
};

/// How long a revocation takes at a fault point.
const LATE_FENCE: std::ops::Range<Duration> = Duration::from_millis(1)..Duration::from_millis(50);

pub(super) struct SimConnection {
    provider: SimProvider,
    key: ConnectionKey,
    side: EndIndex,
    node: NodeId,
    name: Arc<str>,
    profile: ProviderProfile,
}

impl SimConnection {
    pub(super) fn take(provider: &SimProvider, key: ConnectionKey, side: EndIndex, name: Arc<str>) -> SimConnection {
        let (node, profile) = provider.locked(|state| {
            let accepted = NodeId(key as u32);
            let Some(connection) = state.connections.get_mut(&key) else { return (accepted, state.profile) };
            connection.ends[side].held = true;
            let host = state.hosts.get(&connection.host).map(|host| host.memory.node());
            (host.filter(|_| side == 0).unwrap_or(accepted), state.profile)
        });
        SimConnection { provider: provider.clone(), key, side, node, name, profile }
    }

    fn post(&self, work: SimVerb, access: Option<VerbAccess>, teller: VerbCompleter) {
        self.provider.update(|state, effects| state.post((self.key, self.side), work, access, teller, effects));
    }
}

/// The parts as one piece, or the error of their sizes.
fn joined(parts: &[Bytes], bytes_max: usize) -> Result<Bytes, Error> {
    let length = parts.iter().map(Bytes::len).sum();
    if length > bytes_max {
        return Err(Error::TooLarge(length));
    }
    match parts {
        [] => Ok(Bytes::new()),
        [only] => Ok(only.clone()),
        parts if parts.len() > PARTS_MAX => Err(Error::TooLarge(parts.len())),
        parts => Ok(parts.concat().into()),
    }
}

impl Connection for SimConnection {
    fn node(&self) -> NodeId {
        self.node
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn profile(&self) -> ProviderProfile {
        self.profile
    }

    fn read(&self, capability: &Capability, offset: u64, length: usize, into: BytesMut) -> Completion<BytesMut> {
        if length > TRANSFER_BYTES_MAX {
            return Completion::ready(Err(Error::TooLarge(length)));
        }
        let (completer, completion) = Completion::pending();
        let (capability, length) = (*capability, length as u64);
        let access = VerbAccess { capability, needs: Rights::READ, offset, length, atomic: false };
        self.post(SimVerb::Read { into }, Some(access), VerbCompleter::Read(completer));
        completion
    }

    fn write(&self, capability: &Capability, offset: u64, parts: &[Bytes], immediate: Option<u32>) -> Completion<()> {
        if immediate.is_some() && !self.profile.immediate {
            let refused = "this provider has no writes with immediate data";
            return Completion::ready(Err(Error::Rejected(refused.to_owned())));
        }
        let bytes = match joined(parts, TRANSFER_BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(error) => return Completion::ready(Err(error)),
        };
        let (completer, completion) = Completion::pending();
        let (capability, length) = (*capability, bytes.len() as u64);
        let access = VerbAccess { capability, needs: Rights::WRITE, offset, length, atomic: false };
        self.post(SimVerb::Write { bytes, immediate }, Some(access), VerbCompleter::Done(completer));
        completion
    }

    fn compare_swap(&self, capability: &Capability, offset: u64, expected: u64, new: u64) -> Completion<u64> {
        let (completer, completion) = Completion::pending();
        let access = atomic(capability, offset);
        self.post(SimVerb::CompareSwap { expected, new }, Some(access), VerbCompleter::Word(completer));
        completion
    }

    fn fetch_add(&self, capability: &Capability, offset: u64, add: u64) -> Completion<u64> {
        let (completer, completion) = Completion::pending();
        self.post(SimVerb::FetchAdd { add }, Some(atomic(capability, offset)), VerbCompleter::Word(completer));
        completion
    }

    fn send(&self, parts: &[Bytes]) -> Completion<()> {
        let bytes = match joined(parts, MESSAGE_BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(error) => return Completion::ready(Err(error)),
        };
        let (completer, completion) = Completion::pending();
        self.post(SimVerb::Message(bytes), None, VerbCompleter::Done(completer));
        completion
    }

    fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<Result<IncomingEvent, Error>> {
        let received = self.provider.update(|state, effects| state.receive((self.key, self.side), cx.waker(), effects));
        received.map_or(Poll::Pending, Poll::Ready)
    }

    fn flush(&self) {}

    fn close(&self) {
        self.provider.update(|state, effects| state.end((self.key, self.side), false, effects));
    }
}

fn atomic(capability: &Capability, offset: u64) -> VerbAccess {
    let length = WORD_BYTES as u64;
    VerbAccess { capability: *capability, needs: Rights::ATOMIC, offset, length, atomic: true }
}

impl Drop for SimConnection {
    fn drop(&mut self) {
        self.provider.update(|state, effects| state.release((self.key, self.side), effects));
    }
}

pub(super) struct SimHost {
    provider: SimProvider,
    host: u64,
    node: NodeId,
    address: String,
}

impl SimHost {
    pub(super) fn new(provider: &SimProvider, host: u64, node: NodeId, address: &str) -> SimHost {
        SimHost { provider: provider.clone(), host, node, address: address.to_owned() }
    }

    fn memory<T>(&self, access: impl FnOnce(&mut super::memory::HostMemory) -> Result<T, Error>) -> Result<T, Error> {
        self.provider.locked(|state| {
            let host = state.hosts.get_mut(&self.host).ok_or(Error::Closed)?;
            access(&mut host.memory)
        })
    }

    /// Waits for the time that a fence takes.
    async fn delay_fence(&self) {
        let late = rt::fault_point("rma.sim.delay_revocation");
        let delay = self.provider.locked(|state| {
            let range = if late { LATE_FENCE } else { state.delays.fence.clone() };
            // Some fences take no time.
            if state.rng.one_in(3) && !late { Duration::ZERO } else { state.rng.duration(&range) }
        });
        if !delay.is_zero() {
            rt::sleep(delay).await;
        }
    }

    fn end(&self) {
        self.provider.update(|state, effects| state.end_host(self.host, effects));
    }
}

#[async_trait]
impl Host for SimHost {
    fn node(&self) -> NodeId {
        self.node
    }

    async fn register(&self, _name: &str, bytes: u64) -> Result<RegionId, Error> {
        if rt::fault_point("rma.sim.exhausted") {
            return Err(Error::Exhausted("injected".to_owned()));
        }
        self.memory(|memory| memory.register(bytes))
    }

    fn grant(&self, region: RegionId, rights: Rights, holder: &str) -> Result<Capability, Error> {
        let secret = CapabilitySecret::random();
        self.memory(|memory| memory.grant(region, rights, holder, secret))
    }

    async fn revoke(&self, capability: &Capability) -> Result<(), Error> {
        self.memory(|memory| memory.raise(capability))?;
        self.delay_fence().await;
        self.memory(|memory| memory.fence(capability))
    }

    async fn deregister(&self, region: RegionId) -> Result<(), Error> {
        let capabilities = self.memory(|memory| memory.capabilities(region))?;
        capabilities.iter().try_for_each(|capability| self.memory(|memory| memory.raise(capability)))?;
        self.delay_fence().await;
        self.memory(|memory| {
            // Capabilities that were granted meanwhile end with the region.
            capabilities.iter().try_for_each(|capability| memory.fence(capability))?;
            memory.remove(region);
            Ok(())
        })
    }

    fn load(&self, region: RegionId, offset: u64, length: usize) -> Result<BytesMut, Error> {
        self.memory(|memory| memory.owned(region, offset, length).map(|bytes| BytesMut::from(&*bytes)))
    }

    fn store(&self, region: RegionId, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.memory(|memory| memory.owned(region, offset, bytes.len()).map(|owned| owned.copy_from_slice(bytes)))
    }

    async fn accept(&self) -> Result<Endpoint, Error> {
        let (key, name) = std::future::poll_fn(|cx| poll_accept(&self.provider, self.host, cx)).await?;
        Ok(Endpoint::new(Arc::new(SimConnection::take(&self.provider, key, 1, name))))
    }

    fn address(&self) -> String {
        self.address.clone()
    }

    async fn close(&self) {
        self.end();
    }
}

impl Drop for SimHost {
    fn drop(&mut self) {
        self.end();
    }
}
