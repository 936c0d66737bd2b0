//! gRPC's length-prefixed messages: one flag byte, four bytes of big-endian length, the message.
//!
//! 1. [`Messages`] reads them from the body of a request. A message that lies within one DATA frame is a slice of it;
//!    one that spans several is put together in memory that grows with what has arrived, never with what was announced.
//! 2. At a server, that memory is claimed from the sender's budget as it grows, and so is each call whose first message
//!    is not there yet ([`super::caller`]).
//! 3. A server waits for a message that has begun, and for the first one of a call, as long as bytes keep arriving at
//!    [`ARRIVAL_BYTES_PER_SECOND_MIN`] on its connection ([`Pace`]). The bytes of all calls count: a message may wait behind
//!    others of its connection, for the line or for the connection's window.
//!
//! Invariant: the sender has flow-control credit back once a handler has taken all messages of a frame, or once their bytes are
//! claimed, so that a slow handler slows the sender and bytes that nobody has claimed stay within HTTP/2's windows.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::FutureExt as _;
use h2::RecvStream;
use prost::Message;
use tokio::time::Instant;

use super::caller::{CALL_BYTES, Caller, Claim};
use super::status::{Code, Status};

/// Bytes before each message.
pub const PREFIX_BYTES: usize = 5;
/// Memory taken at once for a message that spans frames; it grows as more arrives.
const FIRST_RESERVE_BYTES: usize = 64 << 10;
/// A message whose connection has been slower since the message began is not waited for.
const ARRIVAL_BYTES_PER_SECOND_MIN: u64 = 64 << 10;
/// A stranger's message that is not there by then is not waited for, however fast it arrives.
const STRANGER_MESSAGE_TIME_MAX: Duration = Duration::from_secs(30);

/// How fast the messages of a call have to arrive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// The connection may pause for this long, and has as much time before its rate counts.
    pub(crate) pause_max: Duration,
    /// The beginning of the message that is expected; nothing while the next one need not come.
    pub(crate) begun: Option<Beginning>,
}

/// When a message began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beginning {
    pub(crate) at: Instant,
    /// Bytes that had arrived on the connection by then.
    pub(crate) arrived: u64,
}

impl Pace {
    /// Until when the next bytes are waited for, where `arrived` bytes have arrived on the connection.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    fn deadline(&self, now: Instant, arrived: u64, is_member: bool) -> Option<Instant> {
        let begun = self.begun?;
        let bytes = arrived.saturating_sub(begun.arrived);
        let by_rate = Duration::from_millis(bytes.saturating_mul(1000) / ARRIVAL_BYTES_PER_SECOND_MIN);
        let by = (now + self.pause_max).min(begun.at + self.pause_max + by_rate);
        Some(if is_member { by } else { by.min(begun.at + STRANGER_MESSAGE_TIME_MAX) })
    }
}

/// The messages of one direction of a call.
pub struct Messages {
    /// Taken when this is dropped.
    body: Option<RecvStream>,
    /// Whole or part of the next message, and what follows it.
    pending: Bytes,
    partial: Vec<u8>,
    /// Bytes for which the sender does not have its credit back.
    uncredited: usize,
    message_bytes_max: usize,
    /// At a server.
    receiving: Option<Receiving>,
}

/// What a server keeps of the messages that it receives.
struct Receiving {
    claim: Claim,
    pace: Pace,
    /// What was received is wrong, and the rest of it is not wanted.
    is_broken: bool,
}

impl Receiving {
    /// A message begins, unless it has begun already.
    fn begin(&mut self) {
        let arrived = self.claim.caller().arrived_bytes();
        self.pace.begun.get_or_insert_with(|| Beginning { at: Instant::now(), arrived });
    }

    /// The next bytes of a body, which are waited for as long as the pace allows.
    async fn in_time(&self, body: &mut RecvStream) -> Result<Option<Result<Bytes, h2::Error>>, Status> {
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
                return Err(Status::new(Code::DeadlineExceeded, "the request's message did not arrive in time"));
            }
        }
    }
}

impl Messages {
    /// At a client.
    pub(crate) fn answers(body: RecvStream, message_bytes_max: usize) -> Messages {
        let (pending, partial) = (Bytes::new(), Vec::new());
        Messages { body: Some(body), pending, partial, uncredited: 0, message_bytes_max, receiving: None }
    }

    /// At a server.
    pub(crate) fn requests(body: RecvStream, message_bytes_max: usize, caller: Arc<Caller>, pace: Pace) -> Messages {
        let mut messages = Messages::answers(body, message_bytes_max);
        messages.receiving = Some(Receiving { claim: Claim::new(caller), pace, is_broken: false });
        messages
    }

    /// Waits until the first message is there, which [`Messages::next`] then returns at once, or until it is certain
    /// that there is none.
    ///
    /// # Errors
    /// As [`Messages::next`]; also when too many calls wait for theirs.
    pub(crate) async fn arrive(&mut self) -> Result<(), Status> {
        let caller = self.receiving.as_ref().map(|receiving| Arc::clone(receiving.claim.caller()));
        let mut filled = pin!(self.fill());
        let arrived = match filled.as_mut().now_or_never() {
            Some(arrived) => arrived,
            None => {
                let mut cost = caller.map(Claim::new);
                if let Some(cost) = &mut cost {
                    cost.add(CALL_BYTES)?;
                }
                filled.await
            }
        };
        arrived.map(|_| ())
    }

    /// The next message; `None` when the sender has closed its side. Dropping the future loses nothing.
    ///
    /// The previous message counts as unfinished until this call, or until [`Messages::release`].
    ///
    /// # Errors
    /// A status for the sender: too large, compressed, cut short, too slow, or the stream was reset.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Status> {
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
            receiving.pace.begun = None;
        }
        Ok(Some(message))
    }

    /// Reads until the next message is there whole; false when the sender has closed its side. Dropping the future
    /// loses nothing.
    async fn fill(&mut self) -> Result<bool, Status> {
        let filled = self.fill_or_break().await;
        if filled.is_err()
            && let Some(receiving) = &mut self.receiving
        {
            receiving.is_broken = true;
        }
        filled
    }

    async fn fill_or_break(&mut self) -> Result<bool, Status> {
        loop {
            let available = if self.partial.is_empty() { &self.pending[..] } else { &self.partial[..] };
            let needed = match self.announced(available)? {
                Some(length) if available.len() >= PREFIX_BYTES.saturating_add(length) => return Ok(true),
                Some(length) => PREFIX_BYTES.saturating_add(length),
                None => PREFIX_BYTES,
            };
            // The rest may need all of the window, so what is there gives its credit back, and is claimed instead.
            if !self.pending.is_empty() {
                let pending = std::mem::take(&mut self.pending);
                self.append(pending, needed)?;
            }
            self.credit();
            let Some(chunk) = self.chunk().await? else {
                if self.partial.is_empty() {
                    return Ok(false);
                }
                return Err(Status::new(Code::Internal, "the request ended within a message"));
            };
            if self.partial.is_empty() {
                self.pending = chunk;
            } else {
                self.append(chunk, needed)?;
            }
        }
    }

    /// The next bytes of the body.
    async fn chunk(&mut self) -> Result<Option<Bytes>, Status> {
        let body = self.body.as_mut().expect("taken when this is dropped");
        // As a rule they are there already, and there is no timer.
        let chunk = match body.data().now_or_never() {
            Some(chunk) => chunk,
            None => match &mut self.receiving {
                None => body.data().await,
                Some(receiving) => {
                    // A message may have begun in the frame that ended the one before it.
                    if !(self.pending.is_empty() && self.partial.is_empty()) {
                        receiving.begin();
                    }
                    receiving.in_time(body).await?
                }
            },
        };
        let Some(chunk) = chunk else { return Ok(None) };
        let chunk = chunk.map_err(|error| from_h2(&error))?;
        self.uncredited = self.uncredited.saturating_add(chunk.len());
        if let Some(receiving) = &mut self.receiving {
            receiving.begin();
            receiving.claim.caller().arrived(chunk.len());
        }
        Ok(Some(chunk))
    }

    /// The only message of a call that has one.
    ///
    /// # Errors
    /// As [`Messages::next`]; also when there is none.
    pub async fn only(&mut self) -> Result<Bytes, Status> {
        self.next().await?.ok_or_else(|| Status::new(Code::Internal, "the request has no message"))
    }

    /// Says that the last message is not kept any more.
    pub fn release(&mut self) {
        if let Some(receiving) = &mut self.receiving {
            receiving.claim.release();
        }
    }

    /// The headers after the last message.
    pub(crate) async fn trailers(&mut self) -> Result<Option<http::HeaderMap>, Status> {
        let body = self.body.as_mut().expect("taken when this is dropped");
        body.trailers().await.map_err(|error| from_h2(&error))
    }

    fn announced(&self, available: &[u8]) -> Result<Option<usize>, Status> {
        let Some(prefix) = available.get(..PREFIX_BYTES) else { return Ok(None) };
        match prefix[0] {
            0 => {}
            1 => return Err(Status::new(Code::Unimplemented, "compressed messages are not understood")),
            _ => return Err(Status::new(Code::Internal, "a message prefix has an unknown flag")),
        }
        let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
        if length > self.message_bytes_max {
            return Err(Status::new(
                Code::ResourceExhausted,
                format!("a message of {length} bytes is larger than the maximum of {}", self.message_bytes_max),
            ));
        }
        Ok(Some(length))
    }

    /// Adds bytes to a message of `needed` bytes that is put together.
    fn append(&mut self, chunk: Bytes, needed: usize) -> Result<(), Status> {
        self.grow(chunk.len(), needed)?;
        self.partial.put(chunk);
        Ok(())
    }

    /// Gives the sender its credit back.
    fn credit(&mut self) {
        let credited = std::mem::take(&mut self.uncredited);
        if credited > 0
            && let Some(body) = &mut self.body
        {
            // Failing means the stream has gone, which the next read reports.
            let _ = body.flow_control().release_capacity(credited);
        }
    }

    /// Makes room for `more` bytes of a message of `needed` bytes.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    fn grow(&mut self, more: usize, needed: usize) -> Result<(), Status> {
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

impl Drop for Messages {
    fn drop(&mut self) {
        self.credit();
        if let (Some(receiving), Some(body)) = (&self.receiving, self.body.take())
            && !receiving.is_broken
            && !body.is_end_stream()
        {
            receiving.claim.caller().leave(body);
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
pub fn decode<M: Message + Default>(bytes: Bytes) -> Result<M, Status> {
    M::decode(bytes).map_err(|error| Status::invalid_argument(format!("the request cannot be decoded: {error}")))
}

/// The status of a call whose stream broke.
pub(crate) fn from_h2(error: &h2::Error) -> Status {
    let code = match error.reason() {
        Some(h2::Reason::CANCEL) => Code::Cancelled,
        Some(h2::Reason::REFUSED_STREAM | h2::Reason::NO_ERROR) => Code::Unavailable,
        Some(h2::Reason::ENHANCE_YOUR_CALM) => Code::ResourceExhausted,
        Some(h2::Reason::INADEQUATE_SECURITY) => Code::PermissionDenied,
        Some(_) => Code::Internal,
        None => Code::Unavailable,
    };
    Status::new(code, format!("the stream broke: {error}"))
}
