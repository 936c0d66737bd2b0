//! gRPC's length-prefixed messages: one flag byte, four bytes of big-endian length, the message.
//!
//! 1. [`Messages`] reads them from the body of a request. A message that lies within one DATA frame is a slice of it;
//!    one that spans several is put together in memory that grows with what has arrived, never with what was announced.
//! 2. Bytes that are being put together count against a [`Budget`] that all connections of a server share, and so do
//!    calls whose first message is not there yet.
//! 3. A server waits for a first message for a limited time, which grows with the bytes that arrive ([`Arrival`]).
//!
//! Invariant: flow-control credit is returned to the sender as bytes are taken, so that a slow handler slows the sender.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base::rt::sync::Semaphore;
use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::FutureExt as _;
use h2::RecvStream;
use prost::Message;
use tokio::time::Instant;

use super::status::{Code, Status};
use crate::events::CallsRefused;

/// Bytes before each message.
pub const PREFIX_BYTES: usize = 5;
/// Memory taken at once for a message that spans frames; it grows as more arrives.
const FIRST_RESERVE_BYTES: usize = 64 << 10;
/// Calls of a server that wait for their first message, each with little more than its headers. A call whose message
/// arrives together with its headers, as most do, is not among them.
const CALLS_WAITING_MAX: usize = 16 << 10;
/// A first message that arrives more slowly is not waited for.
const ARRIVAL_BYTES_PER_SECOND_MIN: u64 = 16 << 10;

/// A bound on what a server holds of messages that have not arrived: their bytes, and the calls that wait for them.
pub struct Budget {
    used: AtomicUsize,
    limit: usize,
    waiting: Semaphore,
}

/// Until when a first message is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// Moves on as bytes arrive.
    pub(crate) by: Instant,
    /// `by` never moves beyond.
    pub(crate) at_most: Instant,
}

impl Budget {
    /// At most `limit` bytes.
    pub fn new(limit: usize) -> Arc<Budget> {
        Arc::new(Budget { used: AtomicUsize::new(0), limit, waiting: Semaphore::new(CALLS_WAITING_MAX) })
    }

    fn try_take(&self, bytes: usize) -> bool {
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > self.limit {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        true
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The messages of one direction of a call.
pub struct Messages {
    body: RecvStream,
    /// Whole or part of the next message, and what follows it.
    pending: Bytes,
    partial: BytesMut,
    message_bytes_max: usize,
    budget: Option<Arc<Budget>>,
    taken: usize,
    /// At a server, until the first message is there.
    arrival: Option<Arrival>,
}

impl Messages {
    pub(crate) fn new(body: RecvStream, message_bytes_max: usize, budget: Option<Arc<Budget>>) -> Messages {
        let (pending, partial) = (Bytes::new(), BytesMut::new());
        Messages { body, pending, partial, message_bytes_max, budget, taken: 0, arrival: None }
    }

    /// Waits until the first message is there, which [`Messages::next`] then returns at once, or until it is certain
    /// that there is none.
    ///
    /// # Errors
    /// As [`Messages::next`]; also when the message does not arrive in time, or too many calls wait for theirs.
    pub(crate) async fn arrive(&mut self, arrival: Arrival, budget: &Budget) -> Result<(), Status> {
        self.arrival = Some(arrival);
        let arrived = {
            let mut filled = pin!(self.fill());
            match filled.as_mut().now_or_never() {
                Some(arrived) => arrived,
                None => {
                    let Some(_waits) = budget.waiting.try_acquire() else {
                        CallsRefused.add(1);
                        return Err(Status::new(
                            Code::ResourceExhausted,
                            "too many calls wait for their messages; retry after a pause that grows",
                        ));
                    };
                    filled.await
                }
            }
        };
        self.arrival = None;
        arrived.map(|_| ())
    }

    /// The next message; `None` when the sender has closed its side. Dropping the future loses nothing.
    ///
    /// The budget that the previous message took is given back by this call, or when the reader is dropped.
    ///
    /// # Errors
    /// A status for the sender: too large, compressed, cut short, or the stream was reset.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        if self.partial.is_empty() {
            self.release();
        }
        if !self.fill().await? {
            return Ok(None);
        }
        if !self.partial.is_empty() {
            self.pending = std::mem::take(&mut self.partial).freeze();
        }
        let length = self.announced(&self.pending)?.expect("what is there whole has a prefix");
        let mut message = self.pending.split_to(PREFIX_BYTES + length);
        bytes::Buf::advance(&mut message, PREFIX_BYTES);
        Ok(Some(message))
    }

    /// Reads until the next message is there whole; false when the sender has closed its side. Dropping the future
    /// loses nothing.
    async fn fill(&mut self) -> Result<bool, Status> {
        loop {
            let available = if self.partial.is_empty() { &self.pending[..] } else { &self.partial[..] };
            let needed = match self.announced(available)? {
                Some(length) if available.len() >= PREFIX_BYTES + length => return Ok(true),
                Some(length) => PREFIX_BYTES + length,
                None => PREFIX_BYTES,
            };
            let chunk = match self.arrival {
                None => self.body.data().await,
                Some(arrival) => tokio::time::timeout_at(arrival.by, self.body.data())
                    .await
                    .map_err(|_| Status::new(Code::DeadlineExceeded, "the request's message did not arrive in time"))?,
            };
            let Some(chunk) = chunk else {
                if available_is_empty(&self.pending, &self.partial) {
                    return Ok(false);
                }
                return Err(Status::new(Code::Internal, "the request ended within a message"));
            };
            let chunk = chunk.map_err(|error| from_h2(&error))?;
            // Failing means the stream has gone, which the next read reports.
            let _ = self.body.flow_control().release_capacity(chunk.len());
            if let Some(arrival) = &mut self.arrival {
                let more = Duration::from_micros(chunk.len() as u64 * 1_000_000 / ARRIVAL_BYTES_PER_SECOND_MIN);
                arrival.by = (arrival.by + more).min(arrival.at_most);
            }
            self.append(chunk, needed)?;
        }
    }

    /// The only message of a call that has one.
    ///
    /// # Errors
    /// As [`Messages::next`]; also when there is none.
    pub async fn only(&mut self) -> Result<Bytes, Status> {
        self.next().await?.ok_or_else(|| Status::new(Code::Internal, "the request has no message"))
    }

    /// The headers after the last message.
    pub(crate) async fn trailers(&mut self) -> Result<Option<http::HeaderMap>, Status> {
        self.body.trailers().await.map_err(|error| from_h2(&error))
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

    fn append(&mut self, chunk: Bytes, needed: usize) -> Result<(), Status> {
        if self.partial.is_empty() && self.pending.is_empty() {
            self.pending = chunk;
            return Ok(());
        }
        if self.partial.is_empty() {
            let pending = std::mem::take(&mut self.pending);
            self.take(pending.len())?;
            self.partial.reserve(needed.min(FIRST_RESERVE_BYTES).max(pending.len() + chunk.len()));
            self.partial.put(pending);
        }
        self.take(chunk.len())?;
        self.partial.put(chunk);
        Ok(())
    }

    fn take(&mut self, bytes: usize) -> Result<(), Status> {
        if let Some(budget) = &self.budget {
            if !budget.try_take(bytes) {
                return Err(Status::new(
                    Code::ResourceExhausted,
                    "the server holds too many unfinished messages; retry later",
                ));
            }
            self.taken += bytes;
        }
        Ok(())
    }

    fn release(&mut self) {
        if let Some(budget) = &self.budget
            && self.taken > 0
        {
            budget.give_back(std::mem::take(&mut self.taken));
        }
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        self.release();
    }
}

fn available_is_empty(pending: &Bytes, partial: &BytesMut) -> bool {
    pending.is_empty() && partial.is_empty()
}

/// A message with its prefix, ready to be sent.
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
