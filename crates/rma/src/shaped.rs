//! The `shaped` wrapper, which makes any provider as slow as a given network.
//!
//! 1. The wrapper posts a verb to the inner provider at once, and the verb takes effect when the inner provider
//!    executes it. The wrapper delays only the completion: first until the link has carried the bytes of the earlier
//!    verbs and of this one, then by the latency. Latencies of verbs in flight overlap, so many verbs together cost one
//!    latency.
//! 2. Every endpoint has two links of its own: one for bytes to the other end, and one for bytes from it.
//! 3. The wrapper holds back an incoming message, or immediate data, for half the latency and for the time that its
//!    bytes take on the link. So a request and its reply cost as much as a read, when both ends are shaped.
//! 4. Waiting is exact to a fraction of a microsecond. In a long wait the task sleeps first. Then it yields to other
//!    tasks, and checks the clock each time it runs again. For the last ten microseconds the task spins. In simulation
//!    the task only sleeps.
//!
//! Invariants: the wrapper reorders nothing. The time that the inner provider takes counts towards the delay.
//!
//! The wrapper delays completions, not effects: if the inner provider is synchronous, a read returns the bytes that
//! were there when it was posted.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use base::rt::{self, Instant};
use base::{Bytes, BytesMut};

use super::deadline::Deadline;
use crate::{
    Capability, Completion, Connection, Credential, Endpoint, Error, Host, HostConfig, IncomingEvent,
    MESSAGE_BYTES_MAX, NodeId, Provider, ProviderProfile, RegionId, Rights, WORD_BYTES,
};

/// Messages that have arrived and are held back; later ones stay with the inner provider.
const DELAYED_EVENTS_MAX: usize = 1024;

/// Latency and bandwidth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShapingConfig {
    /// Time from posting a verb of no bytes to its completion.
    pub latency: Duration,
    /// The capacity of a link, in each direction; [`ShapingConfig::UNLIMITED`] for no limit.
    pub bytes_per_second: u64,
}

impl ShapingConfig {
    /// A link without limit.
    pub const UNLIMITED: u64 = u64::MAX;

    /// A shape with a latency and no limit on bandwidth.
    pub const fn from_latency(latency: Duration) -> ShapingConfig {
        ShapingConfig { latency, bytes_per_second: ShapingConfig::UNLIMITED }
    }

    /// How long a link is busy with this many bytes.
    fn busy(&self, bytes: usize) -> u64 {
        if self.bytes_per_second == ShapingConfig::UNLIMITED {
            return 0;
        }
        let nanos = bytes as u128 * 1_000_000_000 / u128::from(self.bytes_per_second.max(1));
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }
}

/// A provider that is slowed down.
#[derive(Clone)]
pub struct ShapedProvider {
    inner: Arc<dyn Provider>,
    shape: ShapingConfig,
}

impl ShapedProvider {
    /// Slows a provider down: outgoing connections, and those that hosts accept.
    pub fn new(inner: Arc<dyn Provider>, shape: ShapingConfig) -> ShapedProvider {
        ShapedProvider { inner, shape }
    }
}

#[async_trait]
impl Provider for ShapedProvider {
    async fn connect(&self, address: &str, credential: &Credential) -> Result<Endpoint, Error> {
        Ok(shaped(self.inner.connect(address, credential).await?, self.shape))
    }

    async fn host(&self, address: &str, options: HostConfig) -> Result<Arc<dyn Host>, Error> {
        let inner = self.inner.host(address, options).await?;
        Ok(Arc::new(ShapedHost { inner, shape: self.shape }))
    }

    fn name(&self) -> &'static str {
        self.inner.name()
    }
}

impl fmt::Debug for ShapedProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shaped({} {:?})", self.inner.name(), self.shape)
    }
}

/// One direction of an endpoint's link.
#[derive(Default)]
struct BandwidthLane(AtomicU64);

impl BandwidthLane {
    /// Occupies the link for `bytes` bytes, behind earlier transfers; returns when they are through.
    fn take(&self, shape: &ShapingConfig, bytes: usize, now: Instant) -> Instant {
        let busy = shape.busy(bytes);
        // A transfer above the limit is rejected before it reaches the link.
        if busy == 0 || bytes > MESSAGE_BYTES_MAX {
            return now;
        }
        let through = |free: u64| free.max(now.nanos()).saturating_add(busy);
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| Some(through(free)));
        let before = before.expect("the update never refuses");
        Instant::from_nanos(through(before))
    }
}

struct ShapedConnection {
    inner: Endpoint,
    shape: ShapingConfig,
    to: BandwidthLane,
    from: BandwidthLane,
    arriving: Mutex<DelayedArrivals>,
}

/// Messages that the inner provider has delivered and that are held back.
#[derive(Default)]
struct DelayedArrivals {
    held: VecDeque<(Deadline, IncomingEvent)>,
    ended: Option<Error>,
}

fn shaped(inner: Endpoint, shape: ShapingConfig) -> Endpoint {
    let (to, from, arriving) = Default::default();
    Endpoint::new(Arc::new(ShapedConnection { inner, shape, to, from, arriving }))
}

impl ShapedConnection {
    fn until(&self, lane: &BandwidthLane, bytes: usize) -> Instant {
        lane.take(&self.shape, bytes, rt::now()) + self.shape.latency
    }
}

fn bytes_of(parts: &[Bytes]) -> usize {
    parts.iter().map(Bytes::len).sum()
}

impl Connection for ShapedConnection {
    fn node(&self) -> NodeId {
        self.inner.node()
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn profile(&self) -> ProviderProfile {
        ProviderProfile { synchronous: false, ..self.inner.profile() }
    }

    fn read(&self, capability: &Capability, offset: u64, length: usize, into: BytesMut) -> Completion<BytesMut> {
        let until = self.until(&self.from, length);
        self.inner.read(capability, offset, length, into).deferred(until)
    }

    fn write(&self, capability: &Capability, offset: u64, parts: &[Bytes], immediate: Option<u32>) -> Completion<()> {
        let until = self.until(&self.to, bytes_of(parts));
        let completion = match immediate {
            Some(immediate) => self.inner.write_with_immediate(capability, offset, parts, immediate),
            None => self.inner.write(capability, offset, parts),
        };
        completion.deferred(until)
    }

    fn compare_swap(&self, capability: &Capability, offset: u64, expected: u64, new: u64) -> Completion<u64> {
        let until = self.until(&self.to, WORD_BYTES);
        self.inner.compare_swap(capability, offset, expected, new).deferred(until)
    }

    fn fetch_add(&self, capability: &Capability, offset: u64, add: u64) -> Completion<u64> {
        let until = self.until(&self.to, WORD_BYTES);
        self.inner.fetch_add(capability, offset, add).deferred(until)
    }

    fn send(&self, parts: &[Bytes]) -> Completion<()> {
        // The provider accepts the message when the link has; the transfer to the other end is counted there.
        let until = self.to.take(&self.shape, bytes_of(parts), rt::now());
        self.inner.send(parts).deferred(until)
    }

    fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<Result<IncomingEvent, Error>> {
        // Consistent between any two statements.
        let mut arriving = self.arriving.lock().unwrap_or_else(PoisonError::into_inner);
        let DelayedArrivals { held, ended } = &mut *arriving;
        while ended.is_none() && held.len() < DELAYED_EVENTS_MAX {
            match self.inner.poll_receive(cx) {
                Poll::Ready(Ok(incoming)) => {
                    let bytes = match &incoming {
                        IncomingEvent::Message(bytes) => bytes.len(),
                        IncomingEvent::Immediate { length, .. } => usize::try_from(*length).unwrap_or(usize::MAX),
                    };
                    let through = self.from.take(&self.shape, bytes, rt::now());
                    held.push_back((Deadline::new(through + self.shape.latency / 2), incoming));
                }
                Poll::Ready(Err(error)) => *ended = Some(error),
                Poll::Pending => break,
            }
        }
        match (held.front_mut(), ended) {
            (Some((deadline, _)), _) => {
                std::task::ready!(deadline.poll(cx));
                let (_, incoming) = held.pop_front().expect("the front was just seen");
                Poll::Ready(Ok(incoming))
            }
            (None, Some(error)) => Poll::Ready(Err(error.clone())),
            (None, None) => Poll::Pending,
        }
    }

    fn flush(&self) {
        self.inner.flush();
    }

    fn close(&self) {
        self.inner.close();
    }
}

struct ShapedHost {
    inner: Arc<dyn Host>,
    shape: ShapingConfig,
}

#[async_trait]
impl Host for ShapedHost {
    fn node(&self) -> NodeId {
        self.inner.node()
    }

    async fn register(&self, name: &str, bytes: u64) -> Result<RegionId, Error> {
        self.inner.register(name, bytes).await
    }

    fn grant(&self, region: RegionId, rights: Rights, holder: &str) -> Result<Capability, Error> {
        self.inner.grant(region, rights, holder)
    }

    async fn failed(&self) -> String {
        self.inner.failed().await
    }

    async fn revoke(&self, capability: &Capability) -> Result<(), Error> {
        self.inner.revoke(capability).await
    }

    async fn deregister(&self, region: RegionId) -> Result<(), Error> {
        self.inner.deregister(region).await
    }

    fn load(&self, region: RegionId, offset: u64, length: usize) -> Result<BytesMut, Error> {
        self.inner.load(region, offset, length)
    }

    fn store(&self, region: RegionId, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.inner.store(region, offset, bytes)
    }

    async fn accept(&self) -> Result<Endpoint, Error> {
        Ok(shaped(self.inner.accept().await?, self.shape))
    }

    fn address(&self) -> String {
        self.inner.address()
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
