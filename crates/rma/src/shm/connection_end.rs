//! One end of a connection: messages and notices over the two rings of its shared segment.
//!
//! 1. A send writes records into the ring while there is space. The rest waits in a queue, and the completion of the
//!    send is pending. When there is space again, the consumer rings the producer's doorbell, and the thread that
//!    handles the doorbell continues with the queue. Within one process the consumer's own thread handles it, so that
//!    no other thread has to wake up.
//! 2. A record is a header word (`length:u32 | kind:u8 | zeros`) and its bytes, padded to a multiple of a word. A
//!    message of at most [`CHUNK_BYTES_MAX`] is one record. For a longer message, one record announces its size, and
//!    its pieces follow.
//! 3. A receiver that finds no record stores its waker, sets its sleep flag in shared memory, checks the ring once
//!    more, and waits for its doorbell. Within one process the doorbell is a function call, otherwise an eventfd.
//!
//! Invariants: messages and notices arrive in the order of posting. No lock is held while a doorbell is rung. All data
//! that the other end wrote is checked, and an impossible value ends the connection.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use base::rt::CancellationToken;
use base::{Bytes, BytesMut};

use super::ring::{CorruptRing, RingConsumer, RingProducer, padded};
use super::segment::{ConnectionSegment, RingDirection, SegmentRing};
use crate::{
    Completer, Completion, Error, IN_FLIGHT_MAX, IncomingEvent, MESSAGE_BYTES_MAX, PARTS_MAX, RegionId, WORD_BYTES,
};

/// Bytes of one piece of a message in the ring, and of the longest message that needs no pieces.
const CHUNK_BYTES_MAX: usize = 64 << 10;
/// Free space below this is not worth a piece of a longer message.
const CHUNK_BYTES_MIN: usize = 16 << 10;

/// Bytes reserved for a message in pieces before any of them arrives; later the buffer doubles.
const FIRST_RESERVE_BYTES: usize = 1 << 20;

/// Polls of the ring before a receiver goes to sleep: some microseconds.
const SPINS_MAX: usize = 200;

/// A message in one record.
const KIND_MESSAGE: u64 = 1;
/// The size of a message that follows in pieces.
const KIND_LARGE: u64 = 2;
/// A piece of such a message.
const KIND_CHUNK: u64 = 3;
/// Immediate data: `immediate:u32 | region:u32 | offset:u64 | length:u64`.
const KIND_IMMEDIATE: u64 = 4;
const IMMEDIATE_BYTES: usize = 24;
/// The next record is at the start of the ring; this one has no bytes.
const KIND_WRAP: u64 = 5;

/// How the other end is notified of a change in a ring.
pub(super) enum Doorbell {
    /// The other end is in this process.
    Local(Weak<ConnectionEnd>),
    /// The other end waits for an eventfd.
    Remote(OwnedFd),
}

/// One end of a connection.
pub(super) struct ConnectionEnd {
    pub(super) segment: Arc<ConnectionSegment>,
    sender: Mutex<MessageSender>,
    receiver: Mutex<MessageReceiver>,
    /// The task that waits to receive.
    waker: Mutex<Option<Waker>>,
    /// Messages that wait for space.
    waiting: AtomicUsize,
    closed: AtomicBool,
    /// Stopped when the connection has ended.
    pub(super) ended: CancellationToken,
    doorbell: OnceLock<Doorbell>,
}

struct MessageSender {
    producer: RingProducer<SegmentRing>,
    queue: VecDeque<QueuedMessage>,
}

struct QueuedMessage {
    outgoing: OutgoingMessage,
    parts: Vec<Bytes>,
    pub(super) completer: Completer<()>,
}

struct MessageReceiver {
    consumer: RingConsumer<SegmentRing>,
    /// The partly received message and its size.
    partial: Option<(BytesMut, usize)>,
}

/// How much of a message is in the ring.
#[derive(Clone, Copy)]
struct OutgoingMessage {
    kind: u64,
    length: usize,
    announced: bool,
    sent: usize,
}

enum PushProgress {
    All,
    /// The ring has not this many free bytes.
    Blocked(usize),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic leaves at worst indices that are checked at their next use.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn header(kind: u64, length: usize) -> u64 {
    length as u64 | kind << 32
}

impl MessageSender {
    /// Writes as much as the ring has space for.
    fn push(&mut self, outgoing: &mut OutgoingMessage, parts: &[Bytes]) -> Result<PushProgress, CorruptRing> {
        if outgoing.length <= CHUNK_BYTES_MAX {
            self.producer.wrap(outgoing.length, header(KIND_WRAP, 0))?;
            let gap = self.producer.gap(outgoing.length);
            let wanted = WORD_BYTES + gap + padded(outgoing.length);
            if self.producer.free_bytes(wanted)? < wanted {
                return Ok(PushProgress::Blocked(wanted));
            }
            self.producer.word(header(outgoing.kind, outgoing.length));
            self.producer.skip(gap);
            parts.iter().for_each(|part| self.producer.write(part));
            self.producer.publish();
            return Ok(PushProgress::All);
        }
        if !outgoing.announced {
            let wanted = 2 * WORD_BYTES;
            if self.producer.free_bytes(wanted)? < wanted {
                return Ok(PushProgress::Blocked(wanted));
            }
            self.producer.word(header(KIND_LARGE, WORD_BYTES));
            self.producer.word(outgoing.length as u64);
            self.producer.publish();
            outgoing.announced = true;
        }
        while outgoing.sent < outgoing.length {
            let left = outgoing.length - outgoing.sent;
            let wanted = WORD_BYTES + padded(left.min(CHUNK_BYTES_MAX));
            let enough = WORD_BYTES + padded(left.min(CHUNK_BYTES_MIN));
            let room = self.producer.free_bytes(wanted)?;
            if room < enough {
                return Ok(PushProgress::Blocked(enough));
            }
            let length = left.min(CHUNK_BYTES_MAX).min((room - WORD_BYTES) / WORD_BYTES * WORD_BYTES);
            self.producer.word(header(KIND_CHUNK, length));
            let (mut skip, mut rest) = (outgoing.sent, length);
            for part in parts {
                let from = skip.min(part.len());
                let taken = rest.min(part.len() - from);
                self.producer.write(&part[from..from + taken]);
                skip -= from;
                rest -= taken;
            }
            assert_eq!(rest, 0, "the parts are as long as the message");
            self.producer.publish();
            outgoing.sent += length;
        }
        Ok(PushProgress::All)
    }
}

impl MessageReceiver {
    /// The next message or notice; `None` when there is none yet.
    fn next(&mut self) -> Result<Option<IncomingEvent>, CorruptRing> {
        loop {
            let available = self.consumer.available()?;
            if available == 0 {
                return Ok(None);
            }
            let header = self.consumer.word();
            let (kind, length) = (header >> 32, header as u32 as usize);
            let gap = if kind == KIND_MESSAGE { self.consumer.gap(length) } else { 0 };
            if available < WORD_BYTES + gap + padded(length) {
                return Err(CorruptRing);
            }
            match (kind, &mut self.partial) {
                (KIND_WRAP, None) if length == 0 => self.consumer.wrap()?,
                (KIND_MESSAGE, None) => {
                    let mut message = BytesMut::with_capacity(length);
                    self.consumer.skip(gap);
                    self.consumer.read(length, &mut message);
                    self.consumer.publish();
                    return Ok(Some(IncomingEvent::Message(message.freeze())));
                }
                (KIND_LARGE, None) if length == WORD_BYTES => {
                    let total = self.consumer.word();
                    self.consumer.publish();
                    if total <= CHUNK_BYTES_MAX as u64 || total > MESSAGE_BYTES_MAX as u64 {
                        return Err(CorruptRing);
                    }
                    let total = total as usize;
                    self.partial = Some((BytesMut::with_capacity(total.min(FIRST_RESERVE_BYTES)), total));
                }
                (KIND_CHUNK, Some((message, total))) if length > 0 && length <= *total - message.len() => {
                    if message.capacity() - message.len() < length {
                        message.reserve((*total - message.len()).min(message.len().max(FIRST_RESERVE_BYTES)));
                    }
                    self.consumer.read(length, message);
                    self.consumer.publish();
                    if message.len() == *total {
                        let message = std::mem::take(message).freeze();
                        self.partial = None;
                        return Ok(Some(IncomingEvent::Message(message)));
                    }
                }
                (KIND_IMMEDIATE, None) if length == IMMEDIATE_BYTES => {
                    let first = self.consumer.word();
                    let (offset, length) = (self.consumer.word(), self.consumer.word());
                    self.consumer.publish();
                    let region = RegionId((first >> 32) as u32);
                    return Ok(Some(IncomingEvent::Immediate { immediate: first as u32, region, offset, length }));
                }
                _ => return Err(CorruptRing),
            }
        }
    }
}

impl ConnectionEnd {
    /// The end that sends in `direction`. Set its bell before using it.
    pub(super) fn new(area: &Arc<ConnectionSegment>, direction: RingDirection) -> Arc<ConnectionEnd> {
        Arc::new(ConnectionEnd {
            segment: Arc::clone(area),
            sender: Mutex::new(MessageSender {
                producer: RingProducer::new(SegmentRing::new(area, direction)),
                queue: VecDeque::new(),
            }),
            receiver: Mutex::new(MessageReceiver {
                consumer: RingConsumer::new(SegmentRing::new(area, direction.reversed())),
                partial: None,
            }),
            waker: Mutex::new(None),
            waiting: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            ended: CancellationToken::new(),
            doorbell: OnceLock::new(),
        })
    }

    /// Both ends of a connection within this process: the caller's and the host's.
    pub(super) fn pair(area: &Arc<ConnectionSegment>) -> (Arc<ConnectionEnd>, Arc<ConnectionEnd>) {
        let caller = ConnectionEnd::new(area, RingDirection::ToHost);
        let host = ConnectionEnd::new(area, RingDirection::ToCaller);
        caller.set_doorbell(Doorbell::Local(Arc::downgrade(&host)));
        host.set_doorbell(Doorbell::Local(Arc::downgrade(&caller)));
        (caller, host)
    }

    pub(super) fn set_doorbell(&self, bell: Doorbell) {
        let set = self.doorbell.set(bell);
        assert!(set.is_ok(), "an end has one bell");
    }

    /// Whether the connection has ended.
    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Sends a message.
    pub(super) fn send(&self, parts: &[Bytes]) -> Completion<()> {
        let length: usize = parts.iter().map(Bytes::len).sum();
        if length > MESSAGE_BYTES_MAX || parts.len() > PARTS_MAX {
            return Completion::ready(Err(Error::TooLarge(length.max(parts.len()))));
        }
        self.post(KIND_MESSAGE, length, parts)
    }

    /// Notifies the other end of a write that has landed.
    pub(super) fn notify(&self, immediate: u32, region: RegionId, offset: u64, length: u64) -> Completion<()> {
        let mut bytes = BytesMut::with_capacity(IMMEDIATE_BYTES);
        bytes.extend_from_slice(&immediate.to_le_bytes());
        bytes.extend_from_slice(&region.0.to_le_bytes());
        bytes.extend_from_slice(&offset.to_le_bytes());
        bytes.extend_from_slice(&length.to_le_bytes());
        self.post(KIND_IMMEDIATE, IMMEDIATE_BYTES, &[bytes.freeze()])
    }

    fn post(&self, kind: u64, length: usize, parts: &[Bytes]) -> Completion<()> {
        let mut outgoing = OutgoingMessage { kind, length, announced: false, sent: 0 };
        let mut sender = lock(&self.sender);
        if self.is_closed() {
            return Completion::ready(Err(Error::Closed));
        }
        if sender.queue.is_empty() {
            match sender.push(&mut outgoing, parts) {
                Ok(PushProgress::All) => {
                    let rings = sender.producer.must_ring();
                    drop(sender);
                    if rings {
                        self.ring();
                    }
                    return Completion::ready(Ok(()));
                }
                Ok(PushProgress::Blocked(_)) => {}
                Err(CorruptRing) => {
                    drop(sender);
                    self.end();
                    return Completion::ready(Err(Error::Closed));
                }
            }
        } else if sender.queue.len() >= IN_FLIGHT_MAX {
            return Completion::ready(Err(Error::Busy));
        }
        let (completer, completion) = Completion::pending();
        sender.queue.push_back(QueuedMessage { outgoing, parts: parts.to_vec(), completer });
        self.waiting.store(sender.queue.len(), Ordering::Relaxed);
        drop(sender);
        self.advance();
        completion
    }

    /// Continues with the messages that wait for space.
    fn advance(&self) {
        let mut completed = Vec::new();
        let mut guard = lock(&self.sender);
        let sender = &mut *guard;
        let outcome = loop {
            let Some(mut queued) = sender.queue.pop_front() else { break Ok(()) };
            let wanted = match sender.push(&mut queued.outgoing, &queued.parts) {
                Ok(PushProgress::All) => {
                    completed.push(queued.completer);
                    continue;
                }
                Ok(PushProgress::Blocked(wanted)) => wanted,
                Err(corrupt) => break Err(corrupt),
            };
            sender.queue.push_front(queued);
            match sender.producer.wait(wanted) {
                Ok(true) => break Ok(()),
                Ok(false) => {}
                Err(corrupt) => break Err(corrupt),
            }
        };
        self.waiting.store(sender.queue.len(), Ordering::Relaxed);
        let rings = sender.producer.must_ring();
        drop(guard);
        completed.into_iter().for_each(|completer| completer.complete(Ok(())));
        if rings {
            self.ring();
        }
        if outcome.is_err() {
            self.end();
        }
    }

    /// Rings the other end's bell.
    fn ring(&self) {
        match self.doorbell.get() {
            Some(Doorbell::Local(other)) => {
                if let Some(other) = other.upgrade() {
                    other.rung();
                }
            }
            // The write fails only on a full counter, and then the other end is awake.
            Some(Doorbell::Remote(bell)) => drop(rustix::io::write(bell, &1u64.to_ne_bytes())),
            None => {}
        }
    }

    /// Handles the other end's bell.
    pub(super) fn rung(&self) {
        let waker = lock(&self.waker).take();
        if let Some(waker) = waker {
            waker.wake();
        }
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.advance();
        }
    }

    /// See [`crate::Endpoint::receive`].
    pub(super) fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<Result<IncomingEvent, Error>> {
        let mut receiver = lock(&self.receiver);
        loop {
            // Read the flag before the ring, so that messages that arrived before the end are received.
            let closed = self.is_closed();
            let next = receiver.next();
            let rings = receiver.consumer.must_ring();
            if rings {
                drop(receiver);
                self.ring();
                receiver = lock(&self.receiver);
            }
            match next {
                Ok(Some(incoming)) => return Poll::Ready(Ok(incoming)),
                Err(CorruptRing) => {
                    drop(receiver);
                    self.end();
                    return Poll::Ready(Err(Error::Closed));
                }
                Ok(None) if closed => return Poll::Ready(Err(Error::Closed)),
                Ok(None) => {}
            }
            if self.spins(&mut receiver) {
                continue;
            }
            *lock(&self.waker) = Some(cx.waker().clone());
            match receiver.consumer.sleep() {
                // An end between the reading of the flag and the storing of the waker is seen in one more round.
                Ok(true) if !self.is_closed() => return Poll::Pending,
                Ok(_) => {}
                Err(CorruptRing) => {
                    drop(receiver);
                    self.end();
                    return Poll::Ready(Err(Error::Closed));
                }
            }
        }
    }

    /// Polls for a short time for data from another process, since a wake-up costs more. Within one process the sender may need
    /// this very thread.
    fn spins(&self, receiver: &mut MessageReceiver) -> bool {
        if !matches!(self.doorbell.get(), Some(Doorbell::Remote(_))) {
            return false;
        }
        (0..SPINS_MAX).any(|_| {
            std::hint::spin_loop();
            // The caller finds and handles an impossible index.
            receiver.consumer.available() != Ok(0)
        })
    }

    /// Closes this end: nothing more is sent, and messages that have arrived can still be received.
    pub(super) fn end(&self) {
        if self.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        // A verb that set its mark before this is seen in flight; a later one sees that the connection has ended.
        std::sync::atomic::fence(Ordering::SeqCst);
        self.ended.cancel();
        let queue = {
            let mut sender = lock(&self.sender);
            self.waiting.store(0, Ordering::Relaxed);
            std::mem::take(&mut sender.queue)
        };
        for queued in queue {
            queued.completer.complete(Err(Error::Ambiguous("the connection ended")));
        }
        let waker = lock(&self.waker).take();
        if let Some(waker) = waker {
            waker.wake();
        }
        if let Some(Doorbell::Local(other)) = self.doorbell.get()
            && let Some(other) = other.upgrade()
        {
            other.end();
        }
    }
}
