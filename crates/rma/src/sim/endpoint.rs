//! Endpoints and hosts, as tasks hold them.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use base::{Bytes, BytesMut, rt};

use super::memory::Access;
use super::wire::{ConnectionKey, Side, Teller, Work};
use super::{SimFabric, poll_accept};
use crate::{
    Capability, Completion, Connection, Endpoint, Error, Host, Incoming, MESSAGE_BYTES_MAX, NodeId, PARTS_MAX, Profile,
    RegionId, Rights, Secret, TRANSFER_BYTES_MAX, WORD_BYTES,
};

/// How long a revocation takes at a fault point.
const LATE_FENCE: std::ops::Range<Duration> = Duration::from_millis(1)..Duration::from_millis(50);

pub(super) struct SimConnection {
    fabric: SimFabric,
    key: ConnectionKey,
    side: Side,
    node: NodeId,
    name: Arc<str>,
    profile: Profile,
}

impl SimConnection {
    pub(super) fn take(fabric: &SimFabric, key: ConnectionKey, side: Side, name: Arc<str>) -> SimConnection {
        let (node, profile) = fabric.locked(|state| {
            let accepted = NodeId(key as u32);
            let Some(connection) = state.connections.get_mut(&key) else { return (accepted, state.profile) };
            connection.ends[side].held = true;
            let host = state.hosts.get(&connection.host).map(|host| host.memory.node());
            (host.filter(|_| side == 0).unwrap_or(accepted), state.profile)
        });
        SimConnection { fabric: fabric.clone(), key, side, node, name, profile }
    }

    fn post(&self, work: Work, access: Option<Access>, teller: Teller) {
        self.fabric.act(|state, effects| state.post((self.key, self.side), work, access, teller, effects));
    }
}

/// The parts as one, or what is wrong with them.
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

    fn profile(&self) -> Profile {
        self.profile
    }

    fn read(&self, capability: &Capability, offset: u64, length: usize, into: BytesMut) -> Completion<BytesMut> {
        if length > TRANSFER_BYTES_MAX {
            return Completion::ready(Err(Error::TooLarge(length)));
        }
        let (completer, completion) = Completion::pending();
        let (capability, length) = (*capability, length as u64);
        let access = Access { capability, needs: Rights::READ, offset, length, atomic: false };
        self.post(Work::Read { into }, Some(access), Teller::Read(completer));
        completion
    }

    fn write(&self, capability: &Capability, offset: u64, parts: &[Bytes], immediate: Option<u32>) -> Completion<()> {
        if immediate.is_some() && !self.profile.immediate {
            let refused = "this provider has no writes with immediate data";
            return Completion::ready(Err(Error::Refused(refused.to_owned())));
        }
        let bytes = match joined(parts, TRANSFER_BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(error) => return Completion::ready(Err(error)),
        };
        let (completer, completion) = Completion::pending();
        let (capability, length) = (*capability, bytes.len() as u64);
        let access = Access { capability, needs: Rights::WRITE, offset, length, atomic: false };
        self.post(Work::Write { bytes, immediate }, Some(access), Teller::Done(completer));
        completion
    }

    fn compare_swap(&self, capability: &Capability, offset: u64, expected: u64, new: u64) -> Completion<u64> {
        let (completer, completion) = Completion::pending();
        let access = atomic(capability, offset);
        self.post(Work::CompareSwap { expected, new }, Some(access), Teller::Word(completer));
        completion
    }

    fn fetch_add(&self, capability: &Capability, offset: u64, add: u64) -> Completion<u64> {
        let (completer, completion) = Completion::pending();
        self.post(Work::FetchAdd { add }, Some(atomic(capability, offset)), Teller::Word(completer));
        completion
    }

    fn send(&self, parts: &[Bytes]) -> Completion<()> {
        let bytes = match joined(parts, MESSAGE_BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(error) => return Completion::ready(Err(error)),
        };
        let (completer, completion) = Completion::pending();
        self.post(Work::Message(bytes), None, Teller::Done(completer));
        completion
    }

    fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<Result<Incoming, Error>> {
        let received = self.fabric.act(|state, effects| state.receive((self.key, self.side), cx.waker(), effects));
        received.map_or(Poll::Pending, Poll::Ready)
    }

    fn flush(&self) {}

    fn close(&self) {
        self.fabric.act(|state, effects| state.end((self.key, self.side), false, effects));
    }
}

fn atomic(capability: &Capability, offset: u64) -> Access {
    let length = WORD_BYTES as u64;
    Access { capability: *capability, needs: Rights::ATOMIC, offset, length, atomic: true }
}

impl Drop for SimConnection {
    fn drop(&mut self) {
        self.fabric.act(|state, effects| state.let_go((self.key, self.side), effects));
    }
}

pub(super) struct SimHost {
    fabric: SimFabric,
    host: u64,
    node: NodeId,
    address: String,
}

impl SimHost {
    pub(super) fn new(fabric: &SimFabric, host: u64, node: NodeId, address: &str) -> SimHost {
        SimHost { fabric: fabric.clone(), host, node, address: address.to_owned() }
    }

    fn memory<T>(&self, access: impl FnOnce(&mut super::Memory) -> Result<T, Error>) -> Result<T, Error> {
        self.fabric.locked(|state| {
            let host = state.hosts.get_mut(&self.host).ok_or(Error::Closed)?;
            access(&mut host.memory)
        })
    }

    /// The time until a fence stands.
    async fn delay_fence(&self) {
        let late = rt::fault_point("rma.sim.delay_revocation");
        let delay = self.fabric.locked(|state| {
            let range = if late { LATE_FENCE } else { state.timing.fence.clone() };
            // Some find nothing in their way.
            if state.chance.one_in(3) && !late { Duration::ZERO } else { state.chance.duration(&range) }
        });
        if !delay.is_zero() {
            rt::sleep(delay).await;
        }
    }

    fn end(&self) {
        self.fabric.act(|state, effects| state.end_host(self.host, effects));
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
        let secret = Secret::random();
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
            // Those that were granted meanwhile go with the region.
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
        let (key, name) = std::future::poll_fn(|cx| poll_accept(&self.fabric, self.host, cx)).await?;
        Ok(Endpoint::new(Arc::new(SimConnection::take(&self.fabric, key, 1, name))))
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
