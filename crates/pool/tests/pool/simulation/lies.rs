//! Mutants: a host or a connection that lies to the code under test, so that the code behaves as if it had a mistake.
//! The host also reports to [`Truth`] which memory is registered.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use base::rt;
use base::{Bytes, BytesMut};
use rma::sim::SimProvider;
use rma::{
    Capability, Completion, Connection, Credential, Endpoint, Error, Host, HostConfig, IncomingEvent, NodeId, Provider,
    ProviderProfile, RegionId, Rights,
};

use super::truth::Truth;

/// A planted mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    /// A donor reports memory as reclaimed, so that a fence is answered, and reclaims it later.
    FenceBeforeRevocation,
    /// A donor reports the capabilities of adopted sections as revoked, and does not revoke them.
    AdoptedUnfenced,
    /// A donor grants memory again with the content that its last owner left.
    NotZeroed,
    /// A donor grants one owner a section that another has.
    GivenTwice,
    /// A donor forgets to reclaim memory.
    NeverTakenBack,
    /// A donor takes every fence for the newest.
    EpochIgnored,
    /// A process ignores what its donors list.
    SweepBlind,
}

impl Lie {
    pub const ALL: [Lie; 7] = [
        Lie::FenceBeforeRevocation,
        Lie::AdoptedUnfenced,
        Lie::NotZeroed,
        Lie::GivenTwice,
        Lie::NeverTakenBack,
        Lie::EpochIgnored,
        Lie::SweepBlind,
    ];

    /// The prefixes of the check messages that may catch it.
    pub fn caught_by(self) -> &'static [&'static str] {
        match self {
            Lie::FenceBeforeRevocation | Lie::NeverTakenBack => &["fence:", "budget:"],
            Lie::AdoptedUnfenced => &["fence:", "shared:"],
            Lie::NotZeroed => &["zero:", "shared:"],
            Lie::GivenTwice => &["shared:", "zero:"],
            Lie::EpochIgnored => &["epochs:"],
            Lie::SweepBlind => &["leak:"],
        }
    }
}

/// A host that reports what it does, and may lie to its caller.
pub struct LyingHost {
    inner: Arc<dyn Host>,
    truth: Arc<Truth>,
    address: &'static str,
    incarnation: u64,
    lie: Option<Lie>,
    /// Regions that are kept although they were reclaimed, or that are granted again, and their lengths in bytes.
    kept: Mutex<BTreeMap<RegionId, u64>>,
    fences: AtomicU64,
}

impl LyingHost {
    pub fn new(
        inner: Arc<dyn Host>,
        truth: Arc<Truth>,
        address: &'static str,
        incarnation: u64,
        lie: Option<Lie>,
    ) -> LyingHost {
        let kept = Mutex::default();
        LyingHost { inner, truth, address, incarnation, lie, kept, fences: AtomicU64::new(1 << 40) }
    }
}

#[async_trait]
impl Host for LyingHost {
    fn node(&self) -> NodeId {
        self.inner.node()
    }

    async fn register(&self, name: &str, bytes: u64) -> Result<RegionId, Error> {
        let again = {
            let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            match self.lie {
                Some(Lie::NotZeroed | Lie::GivenTwice) if rt::random_below(2) == 0 => {
                    kept.first_key_value().map(|(region, _)| *region)
                }
                _ => None,
            }
        };
        let region = match again {
            Some(region) => {
                if self.lie == Some(Lie::NotZeroed) {
                    self.kept.lock().unwrap_or_else(PoisonError::into_inner).remove(&region);
                }
                region
            }
            None => self.inner.register(name, bytes).await?,
        };
        if self.lie == Some(Lie::GivenTwice) {
            self.kept.lock().unwrap_or_else(PoisonError::into_inner).insert(region, bytes);
        }
        self.truth.registers(self.address, self.incarnation, region, name, bytes);
        Ok(region)
    }

    fn grant(&self, region: RegionId, rights: Rights, holder: &str) -> Result<Capability, Error> {
        self.inner.grant(region, rights, holder)
    }

    async fn revoke(&self, capability: &Capability) -> Result<(), Error> {
        if self.lie == Some(Lie::AdoptedUnfenced) {
            return Ok(());
        }
        self.inner.revoke(capability).await
    }

    async fn deregister(&self, region: RegionId) -> Result<(), Error> {
        match self.lie {
            Some(Lie::FenceBeforeRevocation) => {
                let (inner, truth) = (Arc::clone(&self.inner), Arc::clone(&self.truth));
                let (address, incarnation) = (self.address, self.incarnation);
                rt::spawn(async move {
                    rt::sleep(Duration::from_millis(20)).await;
                    if inner.deregister(region).await.is_ok() {
                        truth.deregisters(address, incarnation, region);
                    }
                });
                return Ok(());
            }
            Some(Lie::NotZeroed) => {
                self.kept.lock().unwrap_or_else(PoisonError::into_inner).insert(region, 0);
                self.truth.deregisters(self.address, self.incarnation, region);
                return Ok(());
            }
            Some(Lie::NeverTakenBack) => return Ok(()),
            _ => {}
        }
        let outcome = self.inner.deregister(region).await;
        if outcome.is_ok() {
            self.truth.deregisters(self.address, self.incarnation, region);
        }
        outcome
    }

    async fn accept(&self) -> Result<Endpoint, Error> {
        let endpoint = self.inner.accept().await?;
        if self.lie != Some(Lie::EpochIgnored) {
            return Ok(endpoint);
        }
        let newest = self.fences.fetch_add(1, Ordering::Relaxed);
        let change = move |message: Bytes| {
            // A fence: make its epoch the newest.
            match message.first() {
                Some(0x02) => [&message[..8], &newest.to_le_bytes(), &message[16..]].concat().into(),
                _ => message,
            }
        };
        Ok(Endpoint::new(Arc::new(ChangedConnection { inner: endpoint, change: Box::new(change) })))
    }

    fn address(&self) -> String {
        self.inner.address()
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

/// The fabric of the processes under test, which may lie to them.
pub fn provider(inner: SimProvider, lie: Option<Lie>) -> Arc<dyn Provider> {
    match lie {
        Some(Lie::SweepBlind) => Arc::new(BlindProvider(inner)),
        _ => Arc::new(inner),
    }
}

/// On its connections every list is empty.
struct BlindProvider(SimProvider);

#[async_trait]
impl Provider for BlindProvider {
    async fn connect(&self, address: &str, credential: &Credential) -> Result<Endpoint, Error> {
        let inner = self.0.connect(address, credential).await?;
        let change = |message: Bytes| match message.first() {
            Some(0x85) => [&message[..16], &[0; 8]].concat().into(),
            _ => message,
        };
        Ok(Endpoint::new(Arc::new(ChangedConnection { inner, change: Box::new(change) })))
    }

    async fn host(&self, address: &str, options: HostConfig) -> Result<Arc<dyn Host>, Error> {
        self.0.host(address, options).await
    }

    fn name(&self) -> &'static str {
        self.0.name()
    }
}

/// A connection that changes incoming messages.
struct ChangedConnection {
    inner: Endpoint,
    change: Box<dyn Fn(Bytes) -> Bytes + Send + Sync>,
}

impl Connection for ChangedConnection {
    fn node(&self) -> NodeId {
        self.inner.node()
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn profile(&self) -> ProviderProfile {
        self.inner.profile()
    }

    fn read(&self, capability: &Capability, offset: u64, length: usize, into: BytesMut) -> Completion<BytesMut> {
        self.inner.read(capability, offset, length, into)
    }

    fn write(&self, capability: &Capability, offset: u64, parts: &[Bytes], immediate: Option<u32>) -> Completion<()> {
        match immediate {
            Some(immediate) => self.inner.write_with_immediate(capability, offset, parts, immediate),
            None => self.inner.write(capability, offset, parts),
        }
    }

    fn compare_swap(&self, capability: &Capability, offset: u64, expected: u64, new: u64) -> Completion<u64> {
        self.inner.compare_swap(capability, offset, expected, new)
    }

    fn fetch_add(&self, capability: &Capability, offset: u64, add: u64) -> Completion<u64> {
        self.inner.fetch_add(capability, offset, add)
    }

    fn send(&self, parts: &[Bytes]) -> Completion<()> {
        self.inner.send(parts)
    }

    fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<Result<IncomingEvent, Error>> {
        let received = std::pin::pin!(self.inner.receive()).poll(cx);
        received.map(|received| {
            received.map(|incoming| match incoming {
                IncomingEvent::Message(message) => IncomingEvent::Message((self.change)(message)),
                incoming => incoming,
            })
        })
    }

    fn flush(&self) {
        self.inner.flush();
    }

    fn close(&self) {
        self.inner.close();
    }
}
