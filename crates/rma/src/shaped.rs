//! The `shaped` wrapper: any provider, as slow as a given network.
//!
//! 1. A verb is posted to the provider beneath at once, and takes effect there when it does. Its completion is there no
//!    earlier than its bytes need on the link, one verb's behind the other's, plus the latency. So verbs in flight overlap:
//!    many cost one latency.
//! 2. Bytes to the other side and bytes from it have a link each. Every endpoint has its own.
//! 3. What arrives (messages, immediate data) is held back for half the latency and for its bytes, so that a request and its
//!    reply cost what a read does, when both sides are shaped.
//! 4. Waiting is exact to a fraction of a microsecond: the last [`SPIN_MAX`] are spun, before that other tasks run in
//!    between, and only what is long sleeps. In simulation all waiting is sleep.
//!
//! Invariants: nothing is reordered. What the provider beneath takes counts towards the latency.
//!
//! It slows down what callers see and not what happens: a reader sees what stood there when the verb was posted, where the
//! provider beneath is synchronous.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use base::rt::{self, Instant};
use base::{Bytes, BytesMut};

use crate::{
    Capability, Completion, Connection, Credential, Endpoint, Error, Fabric, Host, HostOptions, Incoming,
    MESSAGE_BYTES_MAX, NodeId, Profile, RegionId, Rights, WORD_BYTES,
};

/// Waiting that is spun, because anything else would take longer.
const SPIN_MAX: Duration = Duration::from_micros(10);
/// What a timer may be late by; the time before a deadline that is not slept.
const TIMER_GRAIN: Duration = Duration::from_millis(2);
/// Messages that have arrived and are held back; what comes behind them stays with the provider beneath.
const HELD_MAX: usize = 1024;

/// How slow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// From posting a verb of no bytes to its completion.
    pub latency: Duration,
    /// What a link carries, in each direction; [`Shape::UNLIMITED`] for as much as there is.
    pub bytes_per_second: u64,
}

impl Shape {
    /// A link without limit.
    pub const UNLIMITED: u64 = u64::MAX;

    /// A latency alone.
    pub const fn of_latency(latency: Duration) -> Shape {
        Shape { latency, bytes_per_second: Shape::UNLIMITED }
    }

    /// How long a link is busy with so many bytes.
    fn busy(&self, bytes: usize) -> u64 {
        if self.bytes_per_second == Shape::UNLIMITED {
            return 0;
        }
        let nanos = bytes as u128 * 1_000_000_000 / u128::from(self.bytes_per_second.max(1));
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }
}

/// A provider that is made slower.
#[derive(Clone)]
pub struct Shaped {
    inner: Arc<dyn Fabric>,
    shape: Shape,
}

impl Shaped {
    /// Slows a provider down: connections that are made, and those that hosts accept.
    pub fn new(inner: Arc<dyn Fabric>, shape: Shape) -> Shaped {
        Shaped { inner, shape }
    }
}

#[async_trait]
impl Fabric for Shaped {
    async fn connect(&self, address: &str, credential: &Credential) -> Result<Endpoint, Error> {
        Ok(shaped(self.inner.connect(address, credential).await?, self.shape))
    }

    async fn host(&self, address: &str, options: HostOptions) -> Result<Arc<dyn Host>, Error> {
        let inner = self.inner.host(address, options).await?;
        Ok(Arc::new(ShapedHost { inner, shape: self.shape }))
    }

    fn provider(&self) -> &'static str {
        self.inner.provider()
    }
}

impl fmt::Debug for Shaped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shaped({} {:?})", self.inner.provider(), self.shape)
    }
}

/// One direction of an endpoint's way to the other side.
#[derive(Default)]
struct Lane(AtomicU64);

impl Lane {
    /// Takes the link for so many bytes, behind those who took it before; when they are through.
    fn take(&self, shape: &Shape, bytes: usize, now: Instant) -> Instant {
        let busy = shape.busy(bytes);
        // More than a message may have is refused before it comes to the link.
        if busy == 0 || bytes > MESSAGE_BYTES_MAX {
            return now;
        }
        let through = |free: u64| free.max(now.nanos()).saturating_add(busy);
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| Some(through(free)));
        let before = before.expect("the update never refuses");
        Instant::from_nanos(through(before))
    }
}

/// A point in time that somebody waits for.
pub(crate) struct Deadline {
    until: Instant,
    timer: Option<Pin<Box<rt::Sleep>>>,
}

impl Deadline {
    pub(crate) fn new(until: Instant) -> Deadline {
        Deadline { until, timer: None }
    }

    pub(crate) fn has_passed(&self) -> bool {
        rt::now() >= self.until
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let left = self.until.since(rt::now());
            if left.is_zero() {
                return Poll::Ready(());
            }
            let grain = if rt::is_simulation() { Duration::ZERO } else { TIMER_GRAIN };
            if left > grain {
                let timer = self.timer.get_or_insert_with(|| Box::pin(rt::sleep(left - grain)));
                if timer.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                self.timer = None;
            } else if left > SPIN_MAX {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

struct ShapedConnection {
    inner: Endpoint,
    shape: Shape,
    to: Lane,
    from: Lane,
    arriving: Mutex<Arriving>,
}

/// What the provider beneath has given, and is held back.
#[derive(Default)]
struct Arriving {
    held: VecDeque<(Deadline, Incoming)>,
    ended: Option<Error>,
}

fn shaped(inner: Endpoint, shape: Shape) -> Endpoint {
    let (to, from, arriving) = Default::default();
    Endpoint::new(Arc::new(ShapedConnection { inner, shape, to, from, arriving }))
}

impl ShapedConnection {
    fn until(&self, lane: &Lane, bytes: usize) -> Instant {
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

    fn profile(&self) -> Profile {
        Profile { synchronous: false, ..self.inner.profile() }
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
        // The provider has taken it when the link has; the way to the other side is counted there.
        let until = self.to.take(&self.shape, bytes_of(parts), rt::now());
        self.inner.send(parts).deferred(until)
    }

    fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<Result<Incoming, Error>> {
        // Whole between any two statements.
        let mut arriving = self.arriving.lock().unwrap_or_else(PoisonError::into_inner);
        let Arriving { held, ended } = &mut *arriving;
        while ended.is_none() && held.len() < HELD_MAX {
            match self.inner.poll_receive(cx) {
                Poll::Ready(Ok(incoming)) => {
                    let bytes = match &incoming {
                        Incoming::Message(bytes) => bytes.len(),
                        Incoming::Immediate { length, .. } => usize::try_from(*length).unwrap_or(usize::MAX),
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
    shape: Shape,
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
