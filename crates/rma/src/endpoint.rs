//! Endpoints: reliable, ordered connections to one other node.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use base::{Bytes, BytesMut};

use crate::{Capability, Completion, Error, NodeId, Profile, RegionId};

/// What a provider implements for one connection. See [`Endpoint`] for what each verb does.
pub trait Connection: Send + Sync + 'static {
    fn node(&self) -> NodeId;
    fn name(&self) -> &str;
    fn profile(&self) -> Profile;
    fn read(&self, capability: &Capability, offset: u64, length: usize, into: BytesMut) -> Completion<BytesMut>;
    fn write(&self, capability: &Capability, offset: u64, parts: &[Bytes], immediate: Option<u32>) -> Completion<()>;
    fn compare_swap(&self, capability: &Capability, offset: u64, expected: u64, new: u64) -> Completion<u64>;
    fn fetch_add(&self, capability: &Capability, offset: u64, add: u64) -> Completion<u64>;
    fn send(&self, parts: &[Bytes]) -> Completion<()>;
    fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<Result<Incoming, Error>>;
    fn flush(&self);
    fn close(&self);
}

/// What arrives at an endpoint without being asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// A message of [`Endpoint::send`].
    Message(Bytes),
    /// A write with immediate data has landed in a region of this side.
    Immediate {
        /// The immediate data.
        immediate: u32,
        /// Where it landed.
        region: RegionId,
        /// The first byte.
        offset: u64,
        /// How many bytes.
        length: u64,
    },
}

/// A connection to one node. Clones share it; it closes when the last is dropped.
///
/// All verbs are posted without waiting and complete as [`Completion`]s do. A provider may hold posted verbs back for
/// a batch until [`Endpoint::flush`] or until it sees a completion awaited.
#[derive(Clone)]
pub struct Endpoint(Arc<dyn Connection>);

impl Endpoint {
    /// An endpoint over a provider's connection.
    pub fn new(connection: Arc<dyn Connection>) -> Endpoint {
        Endpoint(connection)
    }

    /// The node at the other end. For an endpoint that a host accepted, a number of the provider's choosing.
    pub fn node(&self) -> NodeId {
        self.0.node()
    }

    /// The name that the other side proved to bear.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// What the provider promises.
    pub fn profile(&self) -> Profile {
        self.0.profile()
    }

    /// Reads `length` bytes and appends them to `into`, whose allocation is used again.
    #[inline]
    pub fn read(&self, capability: &Capability, offset: u64, length: usize, into: BytesMut) -> Completion<BytesMut> {
        self.0.read(capability, offset, length, into)
    }

    /// Writes the parts one behind the other. Completes when they are in the region: whoever learns of that and then reads
    /// sees them.
    #[inline]
    pub fn write(&self, capability: &Capability, offset: u64, parts: &[Bytes]) -> Completion<()> {
        self.0.write(capability, offset, parts, None)
    }

    /// As [`Endpoint::write`]; then the other side receives `immediate` ([`Incoming::Immediate`]), never before the bytes.
    #[inline]
    pub fn write_with_immediate(
        &self,
        capability: &Capability,
        offset: u64,
        parts: &[Bytes],
        immediate: u32,
    ) -> Completion<()> {
        self.0.write(capability, offset, parts, Some(immediate))
    }

    /// Puts `new` where `expected` stands; gives what stood there, so it was swapped if that is `expected`.
    #[inline]
    pub fn compare_swap(&self, capability: &Capability, offset: u64, expected: u64, new: u64) -> Completion<u64> {
        self.0.compare_swap(capability, offset, expected, new)
    }

    /// Adds to a word, wrapping; gives what stood there.
    #[inline]
    pub fn fetch_add(&self, capability: &Capability, offset: u64, add: u64) -> Completion<u64> {
        self.0.fetch_add(capability, offset, add)
    }

    /// Sends the parts as one message. It arrives behind what was written on this endpoint before it; verbs posted behind it
    /// may overtake it. Completes when the provider has taken it, which is back-pressure, not receipt: a message of a
    /// connection that is lost later may never have arrived.
    pub fn send(&self, parts: &[Bytes]) -> Completion<()> {
        self.0.send(parts)
    }

    /// The next message or immediate data. One task at a time. Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`Error::Closed`] when the connection has ended and everything that arrived was received.
    pub async fn receive(&self) -> Result<Incoming, Error> {
        poll_fn(|cx| self.0.poll_receive(cx)).await
    }

    /// As [`Endpoint::receive`], for hand-written futures.
    pub fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<Result<Incoming, Error>> {
        self.0.poll_receive(cx)
    }

    /// Starts whatever was posted and held back for a batch.
    pub fn flush(&self) {
        self.0.flush();
    }

    /// Ends the connection: verbs in flight complete as ambiguous, later ones fail with [`Error::Closed`].
    pub fn close(&self) {
        self.0.close();
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({:?} {})", self.node(), self.profile().provider)
    }
}
