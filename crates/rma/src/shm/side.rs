//! One end of a connection: messages and notices over the two rings of its area.
//!
//! 1. A send writes records into the ring while there is room. What does not fit waits in a queue, its completion
//!    pending; the consumer rings when there is room, and whoever is rung goes on with the queue: within one process that
//!    is the receiver's own thread, so that nothing waits for another to wake.
//! 2. A record is a word (`length:u32 | kind:u8 | zeros`) and its bytes, padded to a word. A message of at most
//!    [`PIECE_BYTES_MAX`] is one record; a larger one is announced with its size and follows in pieces.
//! 3. A receiver that finds nothing leaves its waker, says in shared memory that it sleeps, looks once more, and waits to be
//!    rung: within one process by a call, else through an eventfd.
//!
//! Invariants: messages and notices arrive in the order of posting; a bell is never rung under a lock; what the other
//! side wrote is checked, and what is impossible ends the connection.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use base::rt::Stop;
use base::{Bytes, BytesMut};

use super::area::{Area, AreaRing, Direction};
use super::ring::{Consumer, Corrupt, Producer, padded};
use crate::{
    Completer, Completion, Error, IN_FLIGHT_MAX, Incoming, MESSAGE_BYTES_MAX, PARTS_MAX, RegionId, WORD_BYTES,
};

/// Bytes of a message's piece in the ring, and of a message that needs no pieces.
const PIECE_BYTES_MAX: usize = 64 << 10;
/// Room for less than this is not worth a piece of a longer message.
const PIECE_BYTES_MIN: usize = 16 << 10;

/// Bytes reserved for a message in pieces before any of them has come; later as many as have come.
const FIRST_RESERVE_BYTES: usize = 1 << 20;

/// Looks into the ring before a receiver goes to sleep: some microseconds.
const LOOKS_MAX: usize = 200;

/// A message in one record.
const KIND_MESSAGE: u64 = 1;
/// The size of a message that follows in pieces.
const KIND_LARGE: u64 = 2;
/// A piece of it.
const KIND_PIECE: u64 = 3;
/// Immediate data: `immediate:u32 | region:u32 | offset:u64 | length:u64`.
const KIND_IMMEDIATE: u64 = 4;
const IMMEDIATE_BYTES: usize = 24;
/// What follows is at the start of the ring; of no bytes.
const KIND_BEGIN_AGAIN: u64 = 5;

/// How the other side is told that something has changed in a ring.
pub(super) enum Bell {
    /// It is in this process.
    Local(Weak<Side>),
    /// It waits for an eventfd.
    Remote(OwnedFd),
}

/// One end of a connection.
pub(super) struct Side {
    pub(super) area: Arc<Area>,
    sender: Mutex<Sender>,
    receiver: Mutex<Receiver>,
    /// Who waits for something to receive.
    waker: Mutex<Option<Waker>>,
    /// Messages that wait for room.
    waiting: AtomicUsize,
    closed: AtomicBool,
    /// Stopped when the connection has ended.
    pub(super) ended: Stop,
    bell: OnceLock<Bell>,
}

struct Sender {
    producer: Producer<AreaRing>,
    queue: VecDeque<Queued>,
}

struct Queued {
    outgoing: Outgoing,
    parts: Vec<Bytes>,
    completer: Completer<()>,
}

struct Receiver {
    consumer: Consumer<AreaRing>,
    /// The message that arrives in pieces, and its size.
    partial: Option<(BytesMut, usize)>,
}

/// How far a message has gone into the ring.
#[derive(Clone, Copy)]
struct Outgoing {
    kind: u64,
    length: usize,
    announced: bool,
    sent: usize,
}

enum Pushed {
    All,
    /// There is no room for as many bytes.
    Blocked(usize),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whatever panicked left indices that are checked at the next use.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn header(kind: u64, length: usize) -> u64 {
    length as u64 | kind << 32
}

impl Sender {
    /// Writes as much as there is room for.
    fn push(&mut self, outgoing: &mut Outgoing, parts: &[Bytes]) -> Result<Pushed, Corrupt> {
        if outgoing.length <= PIECE_BYTES_MAX {
            self.producer.begin_again(outgoing.length, header(KIND_BEGIN_AGAIN, 0))?;
            let gap = self.producer.gap(outgoing.length);
            let wanted = WORD_BYTES + gap + padded(outgoing.length);
            if self.producer.room(wanted)? < wanted {
                return Ok(Pushed::Blocked(wanted));
            }
            self.producer.word(header(outgoing.kind, outgoing.length));
            self.producer.skip(gap);
            parts.iter().for_each(|part| self.producer.write(part));
            self.producer.publish();
            return Ok(Pushed::All);
        }
        if !outgoing.announced {
            let wanted = 2 * WORD_BYTES;
            if self.producer.room(wanted)? < wanted {
                return Ok(Pushed::Blocked(wanted));
            }
            self.producer.word(header(KIND_LARGE, WORD_BYTES));
            self.producer.word(outgoing.length as u64);
            self.producer.publish();
            outgoing.announced = true;
        }
        while outgoing.sent < outgoing.length {
            let left = outgoing.length - outgoing.sent;
            let wanted = WORD_BYTES + padded(left.min(PIECE_BYTES_MAX));
            let enough = WORD_BYTES + padded(left.min(PIECE_BYTES_MIN));
            let room = self.producer.room(wanted)?;
            if room < enough {
                return Ok(Pushed::Blocked(enough));
            }
            let length = left.min(PIECE_BYTES_MAX).min((room - WORD_BYTES) / WORD_BYTES * WORD_BYTES);
            self.producer.word(header(KIND_PIECE, length));
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
        Ok(Pushed::All)
    }
}

impl Receiver {
    /// The next message or notice; `None` when there is none yet.
    fn next(&mut self) -> Result<Option<Incoming>, Corrupt> {
        loop {
            let available = self.consumer.available()?;
            if available == 0 {
                return Ok(None);
            }
            let header = self.consumer.word();
            let (kind, length) = (header >> 32, header as u32 as usize);
            let gap = if kind == KIND_MESSAGE { self.consumer.gap(length) } else { 0 };
            if available < WORD_BYTES + gap + padded(length) {
                return Err(Corrupt);
            }
            match (kind, &mut self.partial) {
                (KIND_BEGIN_AGAIN, None) if length == 0 => self.consumer.begin_again()?,
                (KIND_MESSAGE, None) => {
                    let mut message = BytesMut::with_capacity(length);
                    self.consumer.skip(gap);
                    self.consumer.read(length, &mut message);
                    self.consumer.publish();
                    return Ok(Some(Incoming::Message(message.freeze())));
                }
                (KIND_LARGE, None) if length == WORD_BYTES => {
                    let total = self.consumer.word();
                    self.consumer.publish();
                    if total <= PIECE_BYTES_MAX as u64 || total > MESSAGE_BYTES_MAX as u64 {
                        return Err(Corrupt);
                    }
                    let total = total as usize;
                    self.partial = Some((BytesMut::with_capacity(total.min(FIRST_RESERVE_BYTES)), total));
                }
                (KIND_PIECE, Some((message, total))) if length > 0 && length <= *total - message.len() => {
                    if message.capacity() - message.len() < length {
                        message.reserve((*total - message.len()).min(message.len().max(FIRST_RESERVE_BYTES)));
                    }
                    self.consumer.read(length, message);
                    self.consumer.publish();
                    if message.len() == *total {
                        let message = std::mem::take(message).freeze();
                        self.partial = None;
                        return Ok(Some(Incoming::Message(message)));
                    }
                }
                (KIND_IMMEDIATE, None) if length == IMMEDIATE_BYTES => {
                    let first = self.consumer.word();
                    let (offset, length) = (self.consumer.word(), self.consumer.word());
                    self.consumer.publish();
                    let region = RegionId((first >> 32) as u32);
                    return Ok(Some(Incoming::Immediate { immediate: first as u32, region, offset, length }));
                }
                _ => return Err(Corrupt),
            }
        }
    }
}

impl Side {
    /// The end that sends in `direction`. It needs a bell before it is used.
    pub(super) fn new(area: &Arc<Area>, direction: Direction) -> Arc<Side> {
        Arc::new(Side {
            area: Arc::clone(area),
            sender: Mutex::new(Sender {
                producer: Producer::new(AreaRing::new(area, direction)),
                queue: VecDeque::new(),
            }),
            receiver: Mutex::new(Receiver {
                consumer: Consumer::new(AreaRing::new(area, direction.reversed())),
                partial: None,
            }),
            waker: Mutex::new(None),
            waiting: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            ended: Stop::new(),
            bell: OnceLock::new(),
        })
    }

    /// Both ends of a connection within this process: the caller's and the host's.
    pub(super) fn pair(area: &Arc<Area>) -> (Arc<Side>, Arc<Side>) {
        let caller = Side::new(area, Direction::ToHost);
        let host = Side::new(area, Direction::ToCaller);
        caller.set_bell(Bell::Local(Arc::downgrade(&host)));
        host.set_bell(Bell::Local(Arc::downgrade(&caller)));
        (caller, host)
    }

    pub(super) fn set_bell(&self, bell: Bell) {
        let set = self.bell.set(bell);
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

    /// Tells the other side of a write that has landed.
    pub(super) fn notify(&self, immediate: u32, region: RegionId, offset: u64, length: u64) -> Completion<()> {
        let mut bytes = BytesMut::with_capacity(IMMEDIATE_BYTES);
        bytes.extend_from_slice(&immediate.to_le_bytes());
        bytes.extend_from_slice(&region.0.to_le_bytes());
        bytes.extend_from_slice(&offset.to_le_bytes());
        bytes.extend_from_slice(&length.to_le_bytes());
        self.post(KIND_IMMEDIATE, IMMEDIATE_BYTES, &[bytes.freeze()])
    }

    fn post(&self, kind: u64, length: usize, parts: &[Bytes]) -> Completion<()> {
        let mut outgoing = Outgoing { kind, length, announced: false, sent: 0 };
        let mut sender = lock(&self.sender);
        if self.is_closed() {
            return Completion::ready(Err(Error::Closed));
        }
        if sender.queue.is_empty() {
            match sender.push(&mut outgoing, parts) {
                Ok(Pushed::All) => {
                    let rings = sender.producer.must_ring();
                    drop(sender);
                    if rings {
                        self.ring();
                    }
                    return Completion::ready(Ok(()));
                }
                Ok(Pushed::Blocked(_)) => {}
                Err(Corrupt) => {
                    drop(sender);
                    self.end();
                    return Completion::ready(Err(Error::Closed));
                }
            }
        } else if sender.queue.len() >= IN_FLIGHT_MAX {
            return Completion::ready(Err(Error::Busy));
        }
        let (completer, completion) = Completion::pending();
        sender.queue.push_back(Queued { outgoing, parts: parts.to_vec(), completer });
        self.waiting.store(sender.queue.len(), Ordering::Relaxed);
        drop(sender);
        self.advance();
        completion
    }

    /// Goes on with the messages that wait for room.
    fn advance(&self) {
        let mut completed = Vec::new();
        let mut guard = lock(&self.sender);
        let sender = &mut *guard;
        let outcome = loop {
            let Some(mut queued) = sender.queue.pop_front() else { break Ok(()) };
            let wanted = match sender.push(&mut queued.outgoing, &queued.parts) {
                Ok(Pushed::All) => {
                    completed.push(queued.completer);
                    continue;
                }
                Ok(Pushed::Blocked(wanted)) => wanted,
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

    /// Tells the other side.
    fn ring(&self) {
        match self.bell.get() {
            Some(Bell::Local(other)) => {
                if let Some(other) = other.upgrade() {
                    other.rung();
                }
            }
            // It can only fail when it would overflow, and then the other side is awake.
            Some(Bell::Remote(bell)) => drop(rustix::io::write(bell, &1u64.to_ne_bytes())),
            None => {}
        }
    }

    /// The other side has rung.
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
    pub(super) fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<Result<Incoming, Error>> {
        let mut receiver = lock(&self.receiver);
        loop {
            // Read before the ring, so that what arrived before the end is received.
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
                Err(Corrupt) => {
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
                // An end between the reading of the flag and the leaving of the waker is seen in one more round.
                Ok(true) if !self.is_closed() => return Poll::Pending,
                Ok(_) => {}
                Err(Corrupt) => {
                    drop(receiver);
                    self.end();
                    return Poll::Ready(Err(Error::Closed));
                }
            }
        }
    }

    /// Looks for a while whether something comes from another process; being woken costs more than that. Within one process
    /// the sender may need this very thread.
    fn spins(&self, receiver: &mut Receiver) -> bool {
        if !matches!(self.bell.get(), Some(Bell::Remote(_))) {
            return false;
        }
        (0..LOOKS_MAX).any(|_| {
            std::hint::spin_loop();
            // What is impossible is found, and dealt with, by the caller.
            receiver.consumer.available() != Ok(0)
        })
    }

    /// Ends this side: nothing is sent any more, what has arrived can still be received.
    pub(super) fn end(&self) {
        if self.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        // A verb that put its mark before this is seen in flight; a later one sees that the connection has ended.
        std::sync::atomic::fence(Ordering::SeqCst);
        self.ended.stop();
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
        if let Some(Bell::Local(other)) = self.bell.get()
            && let Some(other) = other.upgrade()
        {
            other.end();
        }
    }
}
