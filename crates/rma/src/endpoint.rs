//! Endpoints: reliable, ordered connections to one other node.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use base::{Bytes, BytesMut};

use crate::{Capability, Completion, Error, NodeId, ProviderProfile, RegionId};

/// The interface that a provider implements for one connection. [`Endpoint`] describes each verb.
pub trait Connection: Send + Sync + 'static {
    /// The node at the other end; at the host's end, a number that the provider chooses.
    fn node(&self) -> NodeId;
    /// The name that the other end has proved.
    fn name(&self) -> &str;
    /// The guarantees of the provider, the same for the whole life of the connection.
    fn profile(&self) -> ProviderProfile;
    /// Posts a read of `length` bytes at byte `offset` of the region; completes with `into` and the bytes appended to it.
    fn read(&self, capability: &Capability, offset: u64, length: usize, into: BytesMut) -> Completion<BytesMut>;
    /// Posts a write of the parts, one behind the other, from byte `offset` of the region on. With `immediate`, the other end
    /// receives that number behind the bytes ([`IncomingEvent::Immediate`]).
    fn write(&self, capability: &Capability, offset: u64, parts: &[Bytes], immediate: Option<u32>) -> Completion<()>;
    /// Posts a compare-and-swap of the word at byte `offset`; completes with the previous value.
    fn compare_swap(&self, capability: &Capability, offset: u64, expected: u64, new: u64) -> Completion<u64>;
    /// Posts a wrapping addition to the word at byte `offset`; completes with the previous value.
    fn fetch_add(&self, capability: &Capability, offset: u64, add: u64) -> Completion<u64>;
    /// Posts the parts as one message; completes when the provider has accepted it, which is no receipt.
    fn send(&self, parts: &[Bytes]) -> Completion<()>;
    /// The next message or immediate data, for one task at a time; otherwise wakes `cx` when there is one.
    ///
    /// # Errors
    /// [`Error::Closed`] when the connection has ended and all that arrived has been received.
    fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<Result<IncomingEvent, Error>>;
    /// Starts the verbs that were posted and held back for a batch.
    fn flush(&self);
    /// Ends the connection: verbs in flight complete as ambiguous, later ones fail with [`Error::Closed`].
    fn close(&self);
}

/// What an endpoint receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IncomingEvent {
    /// A message of [`Endpoint::send`].
    Message(Bytes),
    /// A write with immediate data has landed in a region of this end.
    Immediate {
        /// The immediate data.
        immediate: u32,
        /// The region that was written.
        region: RegionId,
        /// The first byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
}

/// A connection to one node. Clones share it; it closes when the last clone is dropped.
///
/// All verbs are posted without blocking; each returns a [`Completion`]. A provider may hold posted verbs back to batch them,
/// until [`Endpoint::flush`] or until a completion is awaited.
#[derive(Clone)]
pub struct Endpoint(Arc<dyn Connection>);

impl Endpoint {
    /// An endpoint over a provider's connection.
    pub fn new(connection: Arc<dyn Connection>) -> Endpoint {
        Endpoint(connection)
    }

    /// The node at the other end. For an accepted endpoint the provider chooses a number.
    pub fn node(&self) -> NodeId {
        self.0.node()
    }

    /// The name that the other end has proved.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// The guarantees of the provider.
    pub fn profile(&self) -> ProviderProfile {
        self.0.profile()
    }

    /// Reads `length` bytes and appends them to `into`, whose allocation is reused.
    #[inline]
    pub fn read(&self, capability: &Capability, offset: u64, length: usize, into: BytesMut) -> Completion<BytesMut> {
        self.0.read(capability, offset, length, into)
    }

    /// Writes the parts one behind the other. Completes when they are in the region: a read that starts after the completion,
    /// by any node, returns them.
    #[inline]
    pub fn write(&self, capability: &Capability, offset: u64, parts: &[Bytes]) -> Completion<()> {
        self.0.write(capability, offset, parts, None)
    }

    /// As [`Endpoint::write`]; after the bytes have landed, the other end receives `immediate`
    /// ([`IncomingEvent::Immediate`]).
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

    /// Replaces `expected` by `new` and returns the previous value; the swap took place if that is `expected`.
    #[inline]
    pub fn compare_swap(&self, capability: &Capability, offset: u64, expected: u64, new: u64) -> Completion<u64> {
        self.0.compare_swap(capability, offset, expected, new)
    }

    /// Adds to a word, wrapping, and returns the previous value.
    #[inline]
    pub fn fetch_add(&self, capability: &Capability, offset: u64, add: u64) -> Completion<u64> {
        self.0.fetch_add(capability, offset, add)
    }

    /// Sends the parts as one message. It arrives after the writes that were posted before it on this endpoint; verbs posted
    /// after it may overtake it. The completion means that the provider has accepted the message. It is back-pressure, not a
    /// receipt: if the connection is lost later, the message may never have arrived.
    pub fn send(&self, parts: &[Bytes]) -> Completion<()> {
        self.0.send(parts)
    }

    /// The next message or immediate data, for one task at a time. Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`Error::Closed`] when the connection has ended and all that arrived has been received.
    pub async fn receive(&self) -> Result<IncomingEvent, Error> {
        poll_fn(|cx| self.0.poll_receive(cx)).await
    }

    /// As [`Endpoint::receive`], for hand-written futures.
    pub fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<Result<IncomingEvent, Error>> {
        self.0.poll_receive(cx)
    }

    /// Starts the verbs that were posted and held back for a batch.
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
