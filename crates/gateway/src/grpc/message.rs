//! gRPC's length-prefixed messages: one flag byte, four bytes of big-endian length, the message.
//!
//! 1. [`MessageStream`] reads messages from the body of a request. A message within one DATA frame is a slice of that
//!    frame. A message that spans several frames is assembled in memory that grows with the bytes received, never with
//!    the announced length.
//! 2. A server claims the memory of a partial message from the sender's budget as the memory grows. It also claims a
//!    fixed amount for each call whose first message has not arrived ([`super::caller`]).
//! 3. A server waits for the rest of a message, and for the first message of a call, as long as bytes arrive on the
//!    connection at [`ARRIVAL_BYTES_PER_SECOND_MIN`] or faster ([`ArrivalPace`]). The bytes of all calls on the
//!    connection count, because a message may be delayed by other messages of the connection, by the network, or by the
//!    connection's flow-control window. On an unauthenticated connection a message must arrive within
//!    [`UNAUTHENTICATED_MESSAGE_TIME_MAX`].
//!
//! Invariant: the server returns flow-control credit for a frame only when a handler has taken all messages in the
//! frame, or when the frame's bytes are claimed from the budget. So a slow handler slows the sender, and unclaimed
//! bytes stay within HTTP/2's windows.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::FutureExt as _;
use h2::RecvStream;
use prost::Message;
use tokio::time::Instant;

use super::caller::{BufferClaim, CALL_BYTES, Caller};
use super::status::{GrpcCode, GrpcStatus};

/// Bytes before each message.
pub const PREFIX_BYTES: usize = 5;
/// Memory reserved at first for a message that spans frames; it grows as more arrives.
const FIRST_RESERVE_BYTES: usize = 64 << 10;
/// If a message's connection has been slower than this since the message began, the server stops waiting for it.
const ARRIVAL_BYTES_PER_SECOND_MIN: u64 = 64 << 10;
/// The server stops waiting for a stranger's message after this long, however fast it arrives.
const UNAUTHENTICATED_MESSAGE_TIME_MAX: Duration = Duration::from_secs(30);

/// How fast the messages of a call have to arrive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrivalPace {
    /// The connection may pause for this long, and has the same time before its rate counts.
    pub(crate) pause_max: Duration,
    /// The beginning of the expected message; `None` while no further message is due.
    pub(crate) started: Option<MessageStart>,
}

/// When a message began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageStart {
    pub(crate) at: Instant,
    /// Bytes that had arrived on the connection by then.
    pub(crate) arrived: u64,
}

impl ArrivalPace {
    /// How long to wait for the next bytes, if `arrived` bytes have arrived on the connection.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    fn deadline(&self, now: Instant, arrived: u64, is_member: bool) -> Option<Instant> {
        let begun = self.started?;
        let bytes = arrived.saturating_sub(begun.arrived);
        let by_rate = Duration::from_millis(bytes.saturating_mul(1000) / ARRIVAL_BYTES_PER_SECOND_MIN);
        let by = (now + self.pause_max).min(begun.at + self.pause_max + by_rate);
        Some(if is_member { by } else { by.min(begun.at + UNAUTHENTICATED_MESSAGE_TIME_MAX) })
    }
}

/// The messages of one direction of a call.
pub struct MessageStream {
    /// `None` only while this is being dropped.
    body: Option<RecvStream>,
    /// The next message, whole or in part, and the bytes that follow it.
    pending: Bytes,
    partial: Vec<u8>,
    /// Bytes for which the sender has not got its credit back.
    uncredited: usize,
    message_bytes_max: usize,
    /// Only at a server.
    receiving: Option<ReceiveState>,
}

/// What a server tracks of the messages that it receives.
struct ReceiveState {
    claim: BufferClaim,
    pace: ArrivalPace,
    /// The body is malformed, and the rest of it is not read.
    is_broken: bool,
}

impl ReceiveState {
    /// Notes that a message begins, unless one has begun already.
    fn start_message(&mut self) {
        let arrived = self.claim.caller().arrived_bytes();
        self.pace.started.get_or_insert_with(|| MessageStart { at: Instant::now(), arrived });
    }

    /// The next bytes of a body; waits for them as long as the pace allows.
    async fn next_chunk(&self, body: &mut RecvStream) -> Result<Option<Result<Bytes, h2::Error>>, GrpcStatus> {
        let caller = self.claim.caller();
        let mut arrived = caller.arrived_bytes();
        loop {
            let now = Instant::now();
            let Some(by) = self.pace.deadline(now, arrived, caller.is_member()) else { return Ok(body.data().await) };
            if by > now
                && let Ok(chunk) = tokio::time::timeout_at(by, body.data()).await
            {
                return Ok(chunk);
            }
            let before = std::mem::replace(&mut arrived, caller.arrived_bytes());
            if arrived == before {
                return Err(GrpcStatus::new(
                    GrpcCode::DeadlineExceeded,
                    "the request's message did not arrive in time",
                ));
            }
        }
    }
}

impl MessageStream {
    /// The messages of answers, at a client.
    pub(crate) fn responses(body: RecvStream, message_bytes_max: usize) -> MessageStream {
        let (pending, partial) = (Bytes::new(), Vec::new());
        MessageStream { body: Some(body), pending, partial, uncredited: 0, message_bytes_max, receiving: None }
    }

    /// The messages of requests, at a server.
    pub(crate) fn requests(
        body: RecvStream,
        message_bytes_max: usize,
        caller: Arc<Caller>,
        pace: ArrivalPace,
    ) -> MessageStream {
        let mut messages = MessageStream::responses(body, message_bytes_max);
        messages.receiving = Some(ReceiveState { claim: BufferClaim::new(caller), pace, is_broken: false });
        messages
    }

    /// Waits until the first message has arrived, which [`MessageStream::next`] then returns at once, or until it is certain
    /// that there is none.
    ///
    /// # Errors
    /// As [`MessageStream::next`]; also if too many calls wait for their first message.
    pub(crate) async fn wait_first(&mut self) -> Result<(), GrpcStatus> {
        let caller = self.receiving.as_ref().map(|receiving| Arc::clone(receiving.claim.caller()));
        let mut filled = pin!(self.fill());
        let arrived = match filled.as_mut().now_or_never() {
            Some(arrived) => arrived,
            None => {
                let mut cost = caller.map(BufferClaim::new);
                if let Some(cost) = &mut cost {
                    cost.add(CALL_BYTES)?;
                }
                filled.await
            }
        };
        arrived.map(|_| ())
    }

    /// The next message; `None` once the sender has closed its side. Dropping the future loses nothing.
    ///
    /// The previous message counts as unfinished until this call, or until [`MessageStream::release`].
    ///
    /// # Errors
    /// A status for the sender: too large, compressed, cut short, too slow, or the stream was reset.
    pub async fn next(&mut self) -> Result<Option<Bytes>, GrpcStatus> {
        if self.partial.is_empty() {
            self.release();
        }
        if !self.fill().await? {
            return Ok(None);
        }
        if !self.partial.is_empty() {
            self.pending = std::mem::take(&mut self.partial).into();
        }
        let length = self.announced(&self.pending)?.expect("what is there whole has a prefix");
        let mut message = self.pending.split_to(PREFIX_BYTES.saturating_add(length));
        bytes::Buf::advance(&mut message, PREFIX_BYTES);
        if self.pending.is_empty() {
            self.credit();
        }
        if let Some(receiving) = &mut self.receiving {
            receiving.pace.started = None;
        }
        Ok(Some(message))
    }

    /// Reads until the next message has arrived in full; false once the sender has closed its side. Dropping the future
    /// loses nothing.
    async fn fill(&mut self) -> Result<bool, GrpcStatus> {
        let filled = self.fill_or_break().await;
        if filled.is_err()
            && let Some(receiving) = &mut self.receiving
        {
            receiving.is_broken = true;
        }
        filled
    }

    async fn fill_or_break(&mut self) -> Result<bool, GrpcStatus> {
        loop {
            let available = if self.partial.is_empty() { &self.pending[..] } else { &self.partial[..] };
            let needed = match self.announced(available)? {
                Some(length) if available.len() >= PREFIX_BYTES.saturating_add(length) => return Ok(true),
                Some(length) => PREFIX_BYTES.saturating_add(length),
                None => PREFIX_BYTES,
            };
            // The rest may need the whole window, so the bytes received so far return their credit, and are claimed
            // instead.
            if !self.pending.is_empty() {
                let pending = std::mem::take(&mut self.pending);
                self.append(pending, needed)?;
            }
            self.credit();
            let Some(chunk) = self.chunk().await? else {
                if self.partial.is_empty() {
                    return Ok(false);
                }
                return Err(GrpcStatus::new(GrpcCode::Internal, "the request ended within a message"));
            };
            if self.partial.is_empty() {
                self.pending = chunk;
            } else {
                self.append(chunk, needed)?;
            }
        }
    }

    /// The next bytes of the body.
    async fn chunk(&mut self) -> Result<Option<Bytes>, GrpcStatus> {
        let body = self.body.as_mut().expect("taken when this is dropped");
        // Usually they are there already, and no timer is needed.
        let chunk = match body.data().now_or_never() {
            Some(chunk) => chunk,
            None => match &mut self.receiving {
                None => body.data().await,
                Some(receiving) => {
                    // A message may have begun in the frame that ended the previous one.
                    if !(self.pending.is_empty() && self.partial.is_empty()) {
                        receiving.start_message();
                    }
                    receiving.next_chunk(body).await?
                }
            },
        };
        let Some(chunk) = chunk else { return Ok(None) };
        let chunk = chunk.map_err(|error| from_h2(&error))?;
        self.uncredited = self.uncredited.saturating_add(chunk.len());
        if let Some(receiving) = &mut self.receiving {
            receiving.start_message();
            receiving.claim.caller().arrived(chunk.len());
        }
        Ok(Some(chunk))
    }

    /// The only message of a call that has one.
    ///
    /// # Errors
    /// As [`MessageStream::next`]; also if there is none.
    pub async fn only(&mut self) -> Result<Bytes, GrpcStatus> {
        self.next().await?.ok_or_else(|| GrpcStatus::new(GrpcCode::Internal, "the request has no message"))
    }

    /// Notes that the last message is no longer held.
    pub fn release(&mut self) {
        if let Some(receiving) = &mut self.receiving {
            receiving.claim.release();
        }
    }

    /// The headers after the last message.
    pub(crate) async fn trailers(&mut self) -> Result<Option<http::HeaderMap>, GrpcStatus> {
        let body = self.body.as_mut().expect("taken when this is dropped");
        body.trailers().await.map_err(|error| from_h2(&error))
    }

    fn announced(&self, available: &[u8]) -> Result<Option<usize>, GrpcStatus> {
        let Some(prefix) = available.get(..PREFIX_BYTES) else { return Ok(None) };
        match prefix[0] {
            0 => {}
            1 => return Err(GrpcStatus::new(GrpcCode::Unimplemented, "compressed messages are not understood")),
            _ => return Err(GrpcStatus::new(GrpcCode::Internal, "a message prefix has an unknown flag")),
        }
        let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
        if length > self.message_bytes_max {
            return Err(GrpcStatus::new(
                GrpcCode::ResourceExhausted,
                format!("a message of {length} bytes is larger than the maximum of {}", self.message_bytes_max),
            ));
        }
        Ok(Some(length))
    }

    /// Adds bytes to a message of `needed` bytes that is being assembled.
    fn append(&mut self, chunk: Bytes, needed: usize) -> Result<(), GrpcStatus> {
        self.grow(chunk.len(), needed)?;
        self.partial.put(chunk);
        Ok(())
    }

    /// Returns the sender's credit.
    fn credit(&mut self) {
        let credited = std::mem::take(&mut self.uncredited);
        if credited > 0
            && let Some(body) = &mut self.body
        {
            // If this fails, the stream has gone, which the next read reports.
            let _ = body.flow_control().release_capacity(credited);
        }
    }

    /// Reserves memory for `more` bytes of a message of `needed` bytes.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    fn grow(&mut self, more: usize, needed: usize) -> Result<(), GrpcStatus> {
        let (capacity, length) = (self.partial.capacity(), self.partial.len() + more);
        if length <= capacity {
            return Ok(());
        }
        let grown = (2 * capacity).max(FIRST_RESERVE_BYTES).min(needed).max(length);
        if let Some(receiving) = &mut self.receiving {
            receiving.claim.add(grown - capacity)?;
        }
        self.partial.reserve_exact(grown - self.partial.len());
        Ok(())
    }
}

impl Drop for MessageStream {
    fn drop(&mut self) {
        self.credit();
        if let (Some(receiving), Some(body)) = (&self.receiving, self.body.take())
            && !receiving.is_broken
            && !body.is_end_stream()
        {
            receiving.claim.caller().defer_drain(body);
        }
    }
}

/// A message with its prefix, ready to be sent.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
pub fn frame<M: Message>(message: &M) -> Bytes {
    let length = message.encoded_len();
    let mut framed = BytesMut::with_capacity(PREFIX_BYTES + length);
    put_prefix(&mut framed, length);
    message.encode_raw(&mut framed);
    framed.freeze()
}

/// Writes the prefix of a message of `length` bytes.
pub fn put_prefix(buffer: &mut BytesMut, length: usize) {
    buffer.put_u8(0);
    buffer.put_u32(u32::try_from(length).expect("messages are bounded far below 4 GiB"));
}

/// Decodes a request.
///
/// # Errors
/// `INVALID_ARGUMENT`.
pub fn decode<M: Message + Default>(bytes: Bytes) -> Result<M, GrpcStatus> {
    M::decode(bytes).map_err(|error| GrpcStatus::invalid_argument(format!("the request cannot be decoded: {error}")))
}

/// The status of a call whose stream broke with this error.
pub(crate) fn from_h2(error: &h2::Error) -> GrpcStatus {
    let code = match error.reason() {
        Some(h2::Reason::CANCEL) => GrpcCode::Cancelled,
        Some(h2::Reason::REFUSED_STREAM | h2::Reason::NO_ERROR) => GrpcCode::Unavailable,
        Some(h2::Reason::ENHANCE_YOUR_CALM) => GrpcCode::ResourceExhausted,
        Some(h2::Reason::INADEQUATE_SECURITY) => GrpcCode::PermissionDenied,
        Some(_) => GrpcCode::Internal,
        None => GrpcCode::Unavailable,
    };
    GrpcStatus::new(code, format!("the stream broke: {error}"))
}
