//! The parts that both ends of a connection have: the queue of outgoing bytes, the received messages, and the flow-control
//! window.
//!
//! 1. Small pieces are copied into one buffer, long pieces are not copied; one system call writes many of both.
//! 2. At most [`WINDOW_MESSAGES`] messages may be sent and not yet received; while such messages have [`WINDOW_BYTES`] or more,
//!    no further message is sent. The receiver gives credit as its application takes messages. A message without credit waits
//!    in the sender's queue, and so does everything posted behind it; replies and credit do not wait. So the window never makes
//!    an end stop reading, and verbs complete while messages wait.
//! 3. A write with immediate data counts as a message of no bytes.
//! 4. At a host, untaken messages and the buffers of unwritten replies count against the budget of the connection's name
//!    ([`super::budget`]). Therefore a host may stop reading; a client never does.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use base::admission::{AdmissionPermit, Reservation};
use base::untrusted::Untrusted;
use base::{Bytes, BytesMut};

use super::budget::NameBudget;
use super::clock;
use super::memory::HostRegion;
use super::pipe::SocketPipe;
use super::wire::{FrameHeader, FrameKind, HEADER_BYTES, TRAILER_BYTES, VerbStatus};
use crate::{Capability, Completer, Completion, Error, IncomingEvent, Rights, WORD_BYTES};

/// Messages sent and not yet received.
pub const WINDOW_MESSAGES: usize = 1024;
/// Bytes of messages sent and not yet received, above which no further message is sent.
pub const WINDOW_BYTES: usize = 64 << 20;
/// The receiver gives credit once it owes this number of messages.
const CREDIT_MESSAGES: usize = WINDOW_MESSAGES / 4;
/// The receiver gives credit once it owes this number of bytes.
const CREDIT_BYTES: usize = WINDOW_BYTES / 4;
/// Frames that may wait for credit; posting one more fails with [`Error::Busy`].
const HELD_FRAMES_MAX: usize = 4096;
/// A message completes at once while the queue is at most this long; behind a longer queue it completes only when it is
/// written.
const TAKEN_BYTES_MAX: usize = 8 << 20;
/// Parts up to this size are copied, which costs less than one more buffer in the system call.
const COPIED_BYTES_MAX: usize = 8 << 10;
/// Bytes of queued replies above which a connection is not read.
const REPLY_BYTES_MAX: usize = 4 << 20;
/// Bytes written from a region while it is locked.
const REGION_BYTES_MAX: usize = 256 << 10;
/// Bytes that one turn of a host's connection writes; the rest waits for its next turn, behind the other connections.
pub const TURN_BYTES_MAX: usize = 2 << 20;
/// Attempts to take the queue's lock before a thread sleeps: about as long as a system call that writes takes.
const LOCK_SPINS_MAX: usize = 200;
/// After a write of more than this, a waiting thread polls for longer.
const LONG_SPIN_BYTES_MIN: usize = 16 << 10;
/// The rate at which the other end is expected to receive, as on a slow machine.
const LONG_SPIN_BYTES_PER_MICROSECOND: usize = 2 << 10;
/// The most by which a write extends polling.
const LONG_SPIN_MAX: Duration = Duration::from_millis(1);
/// Messages up to this size wait in one buffer, and the receiver allocates the message: memory that one thread allocates and
/// another frees costs far more than a copy of so few bytes.
pub const SMALL_BYTES_MAX: usize = 4 << 10;
/// An empty buffer of more than this is freed.
const SMALL_BUFFER_BYTES_MAX: usize = 64 << 10;
/// The queue drops written bytes of its tail once there are this many, and at least as many as unwritten ones.
const TAIL_OUT_MAX: usize = 64 << 10;
/// An empty tail buffer with a larger capacity is freed.
const TAIL_SPARE_BYTES_MAX: usize = 8 << 20;
/// The same while the name's queues use half of their budget: a short reply and some more.
const TAIL_SCARCE_BYTES_MAX: usize = 128 << 10;
/// What a waiting message counts in addition to its bytes.
const ENTRY_BYTES: usize = 64;
/// Buffers in one system call.
const SLICES_MAX: usize = 64;

/// The result of writing a queue.
#[derive(Clone, Copy)]
pub struct PumpProgress {
    /// Something is left in the queue.
    pub left: bool,
    /// Something was written.
    pub moved: bool,
}

/// The queue of outgoing bytes.
pub struct OutgoingQueue {
    segments: VecDeque<QueueSegment>,
    /// Small pieces that follow the segments; `tail_out` bytes of them are written.
    tail: Vec<u8>,
    tail_out: usize,
    bytes: usize,
    /// At a host, the budget that the buffers count against, with what the tail counts and what all buffers count.
    budget: Option<Arc<NameBudget>>,
    tail_counted: usize,
    counted: usize,
    held: VecDeque<HeldFrame>,
    messages_out: usize,
    message_bytes_out: usize,
    /// When the other end has probably received what was written, if that was much.
    expected_taken_at: Option<Instant>,
    /// Nothing more may be posted; queued frames are still written.
    ended: bool,
    closed: bool,
}

enum QueueSegment {
    /// Bytes, of which `counted` count against the budget.
    Bytes {
        bytes: Bytes,
        counted: usize,
    },
    Region(RegionRead),
    Taken(Completer<()>),
}

/// A frame that waits for credit, or behind one that does.
struct HeldFrame {
    head: Vec<u8>,
    parts: Vec<Bytes>,
    counts: Option<usize>,
    completer: Option<Completer<()>>,
}

/// Bytes written from a region as the socket accepts them, under a capability that is checked each time.
pub struct RegionRead {
    pub region: Arc<HostRegion>,
    pub capability: Capability,
    /// The name of the connection.
    pub holder: Arc<str>,
    /// The offset of the next byte; the region has checked the range.
    pub offset: u64,
    pub remaining: usize,
    /// The rest of a word whose first bytes are written: the word goes out with the value that it had then.
    pub word: [u8; WORD_BYTES],
    pub word_bytes: usize,
    pub status: VerbStatus,
}

impl OutgoingQueue {
    fn new() -> OutgoingQueue {
        OutgoingQueue {
            segments: VecDeque::new(),
            tail: Vec::new(),
            tail_out: 0,
            bytes: 0,
            budget: None,
            tail_counted: 0,
            counted: 0,
            held: VecDeque::new(),
            messages_out: 0,
            message_bytes_out: 0,
            expected_taken_at: None,
            ended: false,
            closed: false,
        }
    }

    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether more than [`REPLY_BYTES_MAX`] is queued in addition to messages, which the window bounds, or anything at all
    /// while the name's budget is used up.
    pub fn is_crowded(&self) -> bool {
        self.bytes > REPLY_BYTES_MAX + self.message_bytes_out
            || (self.bytes > 0 && self.budget.as_ref().is_some_and(|budget| budget.is_crowded()))
    }

    /// Updates the account to the tail's present capacity.
    #[inline]
    fn count_tail(&mut self) {
        if self.tail.capacity() != self.tail_counted {
            self.count(self.tail_counted, self.tail.capacity());
            self.tail_counted = self.tail.capacity();
        }
    }

    /// Changes the account of a buffer from `before` to `after` bytes.
    fn count(&mut self, before: usize, after: usize) {
        self.counted = self.counted - before + after;
        if let Some(budget) = &self.budget {
            budget.queue(before, after);
        }
    }

    /// From now on the buffers count against this budget.
    fn set_budget(&mut self, budget: Arc<NameBudget>) {
        budget.queue(0, self.counted);
        self.budget = Some(budget);
    }

    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Whether nothing is queued, and nothing waits for credit.
    pub fn is_done(&self) -> bool {
        self.bytes == 0 && self.held.is_empty()
    }

    #[inline]
    pub fn push_copied(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        self.bytes += bytes.len();
        self.count_tail();
    }

    /// Marks `written` more bytes of the tail as written. A queue that never runs empty drops them too: otherwise it would keep
    /// every byte that it has ever sent.
    fn advance_tail(&mut self, written: usize) {
        self.tail_out += written;
        if self.tail_out >= TAIL_OUT_MAX && self.tail_out >= self.tail.len() / 2 {
            self.tail.drain(..self.tail_out);
            self.tail_out = 0;
        }
    }

    fn empty_tail(&mut self) {
        self.tail.clear();
        self.tail_out = 0;
        let spare = self.tail.capacity();
        let is_scarce = || self.budget.as_ref().is_some_and(|budget| budget.is_scarce());
        if spare > TAIL_SPARE_BYTES_MAX || (spare > TAIL_SCARCE_BYTES_MAX && is_scarce()) {
            self.tail = Vec::new();
        }
        self.count_tail();
    }

    fn end_tail(&mut self) {
        if self.tail_out < self.tail.len() {
            let mut tail = Bytes::from(std::mem::take(&mut self.tail));
            let _ = tail.split_to(self.tail_out);
            let counted = std::mem::take(&mut self.tail_counted);
            self.segments.push_back(QueueSegment::Bytes { bytes: tail, counted });
        }
        self.empty_tail();
    }

    fn push_part(&mut self, part: &Bytes) {
        if part.len() <= COPIED_BYTES_MAX {
            self.push_copied(part);
        } else {
            self.end_tail();
            self.bytes += part.len();
            self.segments.push_back(QueueSegment::Bytes { bytes: part.clone(), counted: 0 });
        }
    }

    pub fn push_region(&mut self, read: RegionRead) {
        self.end_tail();
        self.bytes += read.remaining + TRAILER_BYTES;
        self.segments.push_back(QueueSegment::Region(read));
    }

    fn may_send(&self) -> bool {
        self.messages_out < WINDOW_MESSAGES && self.message_bytes_out < WINDOW_BYTES
    }

    fn emit(&mut self, head: &[u8], parts: &[Bytes], counts: Option<usize>) {
        if let Some(bytes) = counts {
            self.messages_out += 1;
            self.message_bytes_out += bytes;
        }
        self.push_copied(head);
        for part in parts {
            self.push_part(part);
        }
    }

    /// Queues a frame. `counts` are the bytes of a message, for frames that need credit.
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::Closed`].
    pub fn post(&mut self, head: &[u8], parts: &[Bytes], counts: Option<usize>) -> Result<(), Error> {
        if self.closed || self.ended {
            return Err(Error::Closed);
        }
        if self.held.is_empty() && (counts.is_none() || self.may_send()) {
            self.emit(head, parts, counts);
            return Ok(());
        }
        if self.held.len() >= HELD_FRAMES_MAX {
            return Err(Error::Busy);
        }
        self.held.push_back(HeldFrame { head: head.to_vec(), parts: parts.to_vec(), counts, completer: None });
        Ok(())
    }

    /// Queues a message. The completion is ready at once if the queue ahead of it is short.
    pub fn post_message(&mut self, parts: &[Bytes], length: usize) -> Completion<()> {
        let head = FrameHeader::new(FrameKind::Message, 0, length as u64).encode();
        if let Err(error) = self.post(&head, parts, Some(length)) {
            return Completion::ready(Err(error));
        }
        if self.held.is_empty() && self.bytes <= TAKEN_BYTES_MAX {
            return Completion::ready(Ok(()));
        }
        let (completer, completion) = Completion::pending();
        match self.held.back_mut() {
            Some(held) => held.completer = Some(completer),
            None => {
                self.end_tail();
                self.segments.push_back(QueueSegment::Taken(completer));
            }
        }
        completion
    }

    /// Accepts credit: the other end has received messages.
    ///
    /// # Errors
    /// [`Error::Malformed`] when they were never sent.
    pub fn credit(&mut self, messages: usize, bytes: u64) -> Result<(), Error> {
        let too_much = Error::Malformed("credit for messages that were never sent");
        let bytes = usize::try_from(bytes).map_err(|_| too_much.clone())?;
        self.messages_out = self.messages_out.checked_sub(messages).ok_or(too_much.clone())?;
        self.message_bytes_out = self.message_bytes_out.checked_sub(bytes).ok_or(too_much)?;
        while self.held.front().is_some_and(|held| held.counts.is_none()) || self.may_send() {
            let Some(held) = self.held.pop_front() else { break };
            self.emit(&held.head, &held.parts, held.counts);
            if let Some(completer) = held.completer {
                if self.bytes <= TAKEN_BYTES_MAX {
                    completer.complete(Ok(()));
                } else {
                    self.end_tail();
                    self.segments.push_back(QueueSegment::Taken(completer));
                }
            }
        }
        Ok(())
    }

    /// Writes until the queue is empty, the socket accepts no more, or `most` bytes are written.
    ///
    /// # Errors
    /// When the connection is lost.
    pub fn pump(&mut self, pipe: &SocketPipe, most: usize) -> io::Result<PumpProgress> {
        let mut out = 0;
        let pumped = self.pump_counted(pipe, most, &mut out);
        if out > LONG_SPIN_BYTES_MIN {
            let now = clock();
            let took = Duration::from_micros((out / LONG_SPIN_BYTES_PER_MICROSECOND) as u64);
            let from = self.expected_taken_at.map_or(now, |taken_by| taken_by.max(now));
            self.expected_taken_at = Some((from + took).min(now + LONG_SPIN_MAX));
        }
        Ok(PumpProgress { left: pumped?, moved: out > 0 })
    }

    /// As [`OutgoingQueue::pump`]. Returns whether something is left, and counts the written bytes in `out`.
    fn pump_counted(&mut self, pipe: &SocketPipe, most: usize, out: &mut usize) -> io::Result<bool> {
        loop {
            while let Some(QueueSegment::Taken(_)) = self.segments.front() {
                if let Some(QueueSegment::Taken(completer)) = self.segments.pop_front() {
                    completer.complete(Ok(()));
                }
            }
            if self.bytes == 0 {
                self.empty_tail();
                return Ok(!pipe.is_plain() && pipe.push()?);
            }
            if *out >= most {
                return Ok(true);
            }
            let written = match self.write_once(pipe) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                written => written?,
            };
            self.bytes -= written;
            *out += written;
        }
    }

    fn write_once(&mut self, pipe: &SocketPipe) -> io::Result<usize> {
        if let Some(QueueSegment::Region(read)) = self.segments.front_mut() {
            let written = read.write(pipe)?;
            if read.remaining == 0 {
                let trailer = u64::from(read.status.code()).to_le_bytes();
                self.segments[0] = QueueSegment::Bytes { bytes: Bytes::copy_from_slice(&trailer), counted: 0 };
            }
            return Ok(written);
        }
        if self.segments.is_empty() {
            let written = pipe.write(&[IoSlice::new(&self.tail[self.tail_out..])])?;
            self.advance_tail(written);
            return Ok(written);
        }
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let mut count = 0;
        let mut all = true;
        let mut region_follows = false;
        for segment in &self.segments {
            match segment {
                QueueSegment::Bytes { bytes, .. } if count < SLICES_MAX => {
                    slices[count] = IoSlice::new(bytes);
                    count += 1;
                }
                QueueSegment::Taken(_) => {}
                other => {
                    region_follows = matches!(other, QueueSegment::Region(_));
                    all = false;
                    break;
                }
            }
        }
        if all && count < SLICES_MAX && self.tail_out < self.tail.len() {
            slices[count] = IoSlice::new(&self.tail[self.tail_out..]);
            count += 1;
        }
        // The header of a long reply goes out in one packet with the first bytes of its payload.
        let written = if region_follows { pipe.write_more(&slices[..count])? } else { pipe.write(&slices[..count])? };
        let mut rest = written;
        while let Some(segment) = self.segments.front_mut() {
            match segment {
                QueueSegment::Bytes { bytes, .. } if rest < bytes.len() => {
                    let _ = bytes.split_to(rest);
                    return Ok(written);
                }
                QueueSegment::Bytes { bytes, .. } => rest -= bytes.len(),
                QueueSegment::Taken(_) => {}
                QueueSegment::Region(_) => return Ok(written),
            }
            match self.segments.pop_front() {
                Some(QueueSegment::Taken(completer)) => completer.complete(Ok(())),
                Some(QueueSegment::Bytes { counted, .. }) if counted > 0 => self.count(counted, 0),
                _ => {}
            }
        }
        self.advance_tail(rest);
        Ok(written)
    }

    /// Nothing more may be posted from now on.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// The connection has ended: drops the queue.
    pub fn close(&mut self) {
        self.closed = true;
        self.segments.clear();
        self.tail = Vec::new();
        self.tail_out = 0;
        self.bytes = 0;
        self.held.clear();
        self.count(self.counted, 0);
        self.tail_counted = 0;
    }
}

impl Drop for OutgoingQueue {
    fn drop(&mut self) {
        self.count(self.counted, 0);
    }
}

impl RegionRead {
    fn write(&mut self, pipe: &SocketPipe) -> io::Result<usize> {
        if self.word_bytes > 0 {
            let written = pipe.write(&[IoSlice::new(&self.word[..self.word_bytes])])?;
            self.word.copy_within(written.., 0);
            self.word_bytes -= written;
            self.remaining -= written;
            return Ok(written);
        }
        let mut length = self.remaining;
        if length > REGION_BYTES_MAX {
            length = REGION_BYTES_MAX - (self.offset as usize + REGION_BYTES_MAX) % WORD_BYTES;
        }
        let opened = match self.status {
            VerbStatus::Done => {
                let offset = Untrusted::new(self.offset);
                self.region.open(&self.capability, &self.holder, Rights::READ, offset, length as u64)
            }
            status => Err(super::memory::VerbRejection::of(status)),
        };
        let Ok(mut opened) = opened else {
            // A fence came while the bytes were being written. The rest is sent as zeroes, and the trailer reports the
            // revocation.
            self.status = VerbStatus::Revoked;
            const ZEROES: [u8; 4096] = [0; 4096];
            let written = pipe.write(&[IoSlice::new(&ZEROES[..length.min(ZEROES.len())])])?;
            self.remaining -= written;
            return Ok(written);
        };
        let bytes = opened.bytes();
        let written = pipe.write(&[IoSlice::new(bytes)])?;
        // A word whose first bytes are written goes out with its present value.
        let rest = (WORD_BYTES - (self.offset as usize + written) % WORD_BYTES) % WORD_BYTES;
        let rest = rest.min(length - written);
        self.word[..rest].copy_from_slice(&bytes[written..written + rest]);
        self.word_bytes = rest;
        self.offset += (written + rest) as u64;
        self.remaining -= written;
        Ok(written)
    }
}

/// The messages that came in.
pub struct MessageInbox {
    messages: VecDeque<ArrivedMessage>,
    /// The bytes of small messages, one behind the other.
    small: VecDeque<u8>,
    /// The bytes of the other messages.
    whole_bytes: usize,
    /// What all messages count against the name's budget.
    counted: usize,
    waker: Option<Waker>,
    /// Received here and not yet credited, and the part of it that our application has taken.
    outstanding: usize,
    outstanding_bytes: usize,
    taken: usize,
    taken_bytes: usize,
    closed: bool,
}

/// A message that waits to be taken.
enum ArrivedMessage {
    Whole(IncomingEvent),
    /// A message of this length in the buffer of small messages.
    Small(usize),
}

impl MessageInbox {
    fn new() -> MessageInbox {
        MessageInbox {
            messages: VecDeque::new(),
            small: VecDeque::new(),
            whole_bytes: 0,
            counted: 0,
            waker: None,
            outstanding: 0,
            outstanding_bytes: 0,
            taken: 0,
            taken_bytes: 0,
            closed: false,
        }
    }

    fn push_small(&mut self, bytes: &[u8]) {
        self.small.extend(bytes);
        self.messages.push_back(ArrivedMessage::Small(bytes.len()));
    }

    fn push_whole(&mut self, incoming: IncomingEvent) {
        self.whole_bytes += bytes_of(&incoming);
        self.messages.push_back(ArrivedMessage::Whole(incoming));
    }

    /// Drops all messages: the application receives no more.
    fn discard(&mut self) {
        self.closed = true;
        (self.messages, self.small, self.whole_bytes) = (VecDeque::new(), VecDeque::new(), 0);
    }

    /// The charge against the name's budget, before and now. An empty buffer counts nothing.
    fn count(&mut self) -> (usize, usize) {
        let small = self.small.len().max(self.small.capacity().saturating_sub(SMALL_BUFFER_BYTES_MAX));
        let now = self.whole_bytes + small + self.messages.len() * ENTRY_BYTES;
        (std::mem::replace(&mut self.counted, now), now)
    }

    fn admit(&mut self, length: usize) -> Result<(), Error> {
        if self.outstanding >= WINDOW_MESSAGES || self.outstanding_bytes >= WINDOW_BYTES {
            return Err(Error::Malformed("a message beyond the window"));
        }
        self.outstanding += 1;
        self.outstanding_bytes += length;
        Ok(())
    }

    fn next(&mut self) -> Option<IncomingEvent> {
        let length = match self.messages.pop_front()? {
            ArrivedMessage::Whole(incoming) => {
                self.whole_bytes -= bytes_of(&incoming);
                return Some(incoming);
            }
            ArrivedMessage::Small(length) => length,
        };
        let mut message = BytesMut::with_capacity(length);
        let (first, second) = self.small.as_slices();
        let (first, second) = (&first[..length.min(first.len())], &second[..length.saturating_sub(first.len())]);
        message.extend_from_slice(first);
        message.extend_from_slice(second);
        self.small.drain(..length);
        let room = self.small.capacity();
        if room > SMALL_BUFFER_BYTES_MAX {
            // A buffer that never runs empty shrinks as well.
            match self.small.len() {
                0 => self.small = VecDeque::new(),
                left if left < room / 4 => self.small.shrink_to(room / 2),
                _ => {}
            }
        }
        Some(IncomingEvent::Message(message.freeze()))
    }
}

fn bytes_of(incoming: &IncomingEvent) -> usize {
    match incoming {
        IncomingEvent::Message(message) => message.len(),
        IncomingEvent::Immediate { .. } => 0,
    }
}

/// The state that both ends of a connection need.
pub struct ConnectionQueues {
    pub pipe: SocketPipe,
    outgoing: Mutex<OutgoingQueue>,
    inbox: Mutex<MessageInbox>,
    /// The budget of the connection's name, at a host that knows it.
    budget: OnceLock<Arc<NameBudget>>,
    /// The application waits for a message: the inbox has a waker. Written under the inbox's lock.
    awaited: AtomicBool,
    /// An endpoint has left its queue for the progress thread to write.
    write_requested: AtomicBool,
}

impl ConnectionQueues {
    pub fn new(pipe: SocketPipe) -> ConnectionQueues {
        let outgoing = Mutex::new(OutgoingQueue::new());
        let [awaited, asked] = [false; 2].map(AtomicBool::new);
        ConnectionQueues {
            pipe,
            outgoing,
            inbox: Mutex::new(MessageInbox::new()),
            budget: OnceLock::new(),
            awaited,
            write_requested: asked,
        }
    }

    /// From now on what waits here counts against this budget. No message is delivered before this call.
    pub fn set_budget(&self, budget: &Arc<NameBudget>) {
        self.outgoing().set_budget(Arc::clone(budget));
        let _ = self.budget.set(Arc::clone(budget));
    }

    /// Updates the account to what waits in the inbox now.
    fn count(&self, mut inbox: MutexGuard<'_, MessageInbox>) {
        if let Some(budget) = self.budget.get() {
            let (before, now) = inbox.count();
            drop(inbox);
            budget.hold(before, now);
        }
    }

    /// Asks the progress thread to write the queue.
    pub fn request_write(&self) {
        self.write_requested.store(true, Ordering::SeqCst);
    }

    /// Takes that request, if there is one.
    #[inline]
    pub fn take_write_request(&self) -> bool {
        self.write_requested.load(Ordering::SeqCst) && self.write_requested.swap(false, Ordering::SeqCst)
    }

    /// Locks the queue. A writer holds the lock for some microseconds, so the caller spins first: sleeping takes longer.
    #[inline]
    pub fn outgoing(&self) -> MutexGuard<'_, OutgoingQueue> {
        for _ in 0..LOCK_SPINS_MAX {
            match self.outgoing.try_lock() {
                Ok(guard) => return guard,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the other end has probably not received yet what was written, so that it pays to poll longer than usual for the
    /// answer.
    pub fn is_being_taken(&self, now: Instant) -> bool {
        let mut outgoing = self.outgoing();
        let is = outgoing.expected_taken_at.is_some_and(|taken_by| now < taken_by);
        if !is {
            outgoing.expected_taken_at = None;
        }
        is
    }

    fn inbox(&self) -> MutexGuard<'_, MessageInbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether another message of `length` bytes is within the window that we granted; if so, counts it.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn admit(&self, length: usize) -> Result<(), Error> {
        self.inbox().admit(length)
    }

    /// Counts an admitted message of no bytes as taken; it is not delivered.
    pub fn discard_admitted(&self) {
        let mut inbox = self.inbox();
        inbox.outstanding -= 1;
        drop(inbox);
        self.outgoing().push_copied(&FrameHeader::new(FrameKind::Credit, 1, 0).encode());
    }

    /// Delivers an admitted message.
    pub fn deliver(&self, incoming: IncomingEvent) {
        let mut inbox = self.inbox();
        // Once our end has closed, the application receives no more.
        if !inbox.closed {
            inbox.push_whole(incoming);
        }
        self.notify(inbox);
    }

    /// Admits and delivers a message of at most [`SMALL_BYTES_MAX`].
    ///
    /// # Errors
    /// As [`ConnectionQueues::admit`].
    pub fn deliver_small(&self, bytes: &[u8]) -> Result<(), Error> {
        let mut inbox = self.inbox();
        inbox.admit(bytes.len())?;
        if !inbox.closed {
            inbox.push_small(bytes);
        }
        self.notify(inbox);
        Ok(())
    }

    /// Wakes the receiver that waits for a message.
    fn notify(&self, mut inbox: MutexGuard<'_, MessageInbox>) {
        let waker = inbox.waker.take();
        self.awaited.store(false, Ordering::Release);
        self.count(inbox);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The next message, and whether credit was queued that should now be written.
    pub fn poll_receive(&self, cx: &Context<'_>) -> Poll<Result<(IncomingEvent, bool), Error>> {
        let mut inbox = self.inbox();
        let Some(incoming) = inbox.next() else {
            if inbox.closed {
                return Poll::Ready(Err(Error::Closed));
            }
            inbox.waker = Some(cx.waker().clone());
            self.awaited.store(true, Ordering::Release);
            return Poll::Pending;
        };
        inbox.taken += 1;
        if let IncomingEvent::Message(message) = &incoming {
            inbox.taken_bytes += message.len();
        }
        if inbox.taken < CREDIT_MESSAGES && inbox.taken_bytes < CREDIT_BYTES {
            self.count(inbox);
            return Poll::Ready(Ok((incoming, false)));
        }
        let (messages, bytes) = (std::mem::take(&mut inbox.taken), std::mem::take(&mut inbox.taken_bytes));
        inbox.outstanding -= messages;
        inbox.outstanding_bytes -= bytes;
        self.count(inbox);
        let mut outgoing = self.outgoing();
        if !outgoing.is_closed() {
            outgoing.push_copied(&FrameHeader::new(FrameKind::Credit, messages as u32, bytes as u64).encode());
        }
        Poll::Ready(Ok((incoming, true)))
    }

    /// Whether a piece of a message of `length` bytes is read although the name's budget is full: because the inbox is closed
    /// and keeps no bytes, or because the inbox is empty and the message is short or a receiver waits for it.
    pub fn takes_regardless(&self, length: usize) -> bool {
        let inbox = self.inbox();
        inbox.closed || (inbox.messages.is_empty() && (length <= SMALL_BYTES_MAX || inbox.waker.is_some()))
    }

    /// Whether connections of the name wait for messages to be taken.
    pub fn has_waiting(&self) -> bool {
        self.budget.get().is_some_and(|budget| budget.has_waiting())
    }

    /// The application receives no more: drops the messages that came in, and those that still come.
    pub fn discard(&self) {
        let mut inbox = self.inbox();
        inbox.discard();
        self.notify(inbox);
    }

    /// Whether a receiver waits for a message.
    pub fn is_awaited(&self) -> bool {
        self.awaited.load(Ordering::Acquire)
    }

    /// Ends sending; messages that came in can still be received.
    pub fn close(&self) {
        self.outgoing().close();
        self.end_inbox();
    }

    /// Ends receiving.
    pub fn end_inbox(&self) {
        let mut inbox = self.inbox();
        inbox.closed = true;
        self.notify(inbox);
    }
}

/// A message that has arrived in part.
pub struct MessageAssembly {
    bytes: BytesMut,
    length: usize,
    /// The account that its bytes count against, at a host.
    payer: Option<Arc<AdmissionPermit>>,
    reserved: Vec<Reservation>,
    reserved_bytes: usize,
}

/// Bytes reserved for a message before any of it arrives; later the buffer doubles.
const FIRST_RESERVE_BYTES: usize = 1 << 20;

impl MessageAssembly {
    /// For a message of which no bytes have arrived.
    ///
    /// # Errors
    /// [`Error::Exhausted`]: the sender has too many unfinished messages.
    pub fn new(length: usize, payer: Option<Arc<AdmissionPermit>>) -> Result<MessageAssembly, Error> {
        let first = length.min(FIRST_RESERVE_BYTES);
        let mut assembly =
            MessageAssembly { bytes: BytesMut::new(), length, payer, reserved: Vec::new(), reserved_bytes: 0 };
        assembly.account(first)?;
        assembly.bytes.reserve(first);
        Ok(assembly)
    }

    /// Accounts for `bytes` bytes in all.
    fn account(&mut self, bytes: usize) -> Result<(), Error> {
        if let Some(payer) = &self.payer
            && bytes > self.reserved_bytes
        {
            let reserved = payer.reserve(bytes - self.reserved_bytes);
            self.reserved.push(reserved.map_err(|over| Error::Exhausted(over.to_string()))?);
            self.reserved_bytes = bytes;
        }
        Ok(())
    }

    /// Takes bytes from the buffer. Returns whether the message is complete.
    ///
    /// # Errors
    /// As [`MessageAssembly::new`].
    pub fn take(&mut self, buffer: &mut super::pipe::ReadBuffer) -> Result<bool, Error> {
        let missing = self.length - self.bytes.len();
        self.account(self.bytes.len() + missing.min(buffer.filled().len()))?;
        buffer.move_into(&mut self.bytes, missing);
        Ok(self.bytes.len() == self.length)
    }

    /// Reads bytes from the socket. 0 is the end.
    ///
    /// # Errors
    /// As [`SocketPipe::read`]; `OutOfMemory` as [`MessageAssembly::new`].
    pub fn read(&mut self, pipe: &SocketPipe) -> io::Result<usize> {
        let missing = self.length - self.bytes.len();
        if self.bytes.capacity() == self.bytes.len() {
            let more = missing.min(self.bytes.len().max(FIRST_RESERVE_BYTES));
            self.account(self.bytes.len() + more).map_err(|error| io::Error::new(io::ErrorKind::OutOfMemory, error))?;
            self.bytes.reserve(more);
        }
        super::pipe::read_to_end_of(&mut self.bytes, pipe, missing)
    }

    pub fn is_whole(&self) -> bool {
        self.bytes.len() == self.length
    }

    pub fn finish(self) -> Bytes {
        self.bytes.freeze()
    }
}

/// The header at the start of a buffer, if its bytes are there.
#[inline]
pub fn header_of(filled: &[u8]) -> Option<Result<FrameHeader, Error>> {
    filled.first_chunk::<HEADER_BYTES>().map(FrameHeader::decode)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a tenant that always had some reads outstanding made its host keep every reply that it had sent, and 17 MiB
    /// became 3 GiB in nine seconds. The client end uses the same queue.
    #[test]
    fn a_queue_that_never_runs_empty_stays_small() {
        let reply = vec![7; 64 << 10];
        let mut outgoing = OutgoingQueue::new();
        outgoing.push_copied(&reply);
        let mut most = 0;
        for round in 0..10_000 {
            outgoing.push_copied(&reply);
            // Something is always left, sometimes more and sometimes less.
            let left = 1 + round * 977 % reply.len();
            let written = outgoing.tail.len() - outgoing.tail_out - left;
            outgoing.advance_tail(written);
            outgoing.bytes -= written;
            assert!(outgoing.bytes == left && outgoing.tail[outgoing.tail_out..].iter().all(|byte| *byte == 7));
            most = most.max(outgoing.tail.capacity());
        }
        assert!(most < 1 << 20, "{most} bytes for a queue of at most 128 KiB");
    }

    #[test]
    fn a_queue_that_was_long_once_gives_its_room_back() {
        let mut outgoing = OutgoingQueue::new();
        outgoing.push_copied(&vec![7; 2 * TAIL_SPARE_BYTES_MAX]);
        outgoing.advance_tail(2 * TAIL_SPARE_BYTES_MAX);
        outgoing.empty_tail();
        assert!(outgoing.tail.capacity() <= TAIL_SPARE_BYTES_MAX);
    }

    #[test]
    fn small_messages_come_out_whole_and_in_order_also_where_their_buffer_wraps() {
        let message = |number: usize| vec![number as u8; number * 577 % (SMALL_BYTES_MAX + 1)];
        let mut inbox = MessageInbox::new();
        let (mut put, mut taken) = (0, 0);
        let mut wrapped = false;
        for round in 0..200 {
            for _ in 0..2 + round % 3 {
                inbox.push_small(&message(put));
                put += 1;
            }
            inbox.push_whole(IncomingEvent::Message(Bytes::from_static(b"whole")));
            wrapped |= !inbox.small.as_slices().1.is_empty();
            // Some stay behind, but now and then none.
            while taken + round % 10 < put {
                match inbox.next() {
                    Some(IncomingEvent::Message(whole)) if whole == b"whole"[..] => {}
                    found => {
                        assert_eq!(found, Some(IncomingEvent::Message(message(taken).into())), "message {taken}");
                        taken += 1;
                    }
                }
            }
        }
        assert!(wrapped, "the buffer never wrapped");
        assert!(put - taken < 10);
    }

    /// Regression: a connection that always left a message behind kept the largest buffer that it had ever filled.
    #[test]
    fn small_messages_count_what_their_buffer_takes_and_it_shrinks() {
        let mut inbox = MessageInbox::new();
        for _ in 0..WINDOW_MESSAGES {
            inbox.push_small(&[7; SMALL_BYTES_MAX]);
        }
        let (_, full) = inbox.count();
        assert!(full >= WINDOW_MESSAGES * SMALL_BYTES_MAX);
        for _ in 1..WINDOW_MESSAGES {
            inbox.next().expect("it is there");
            let (_, counted) = inbox.count();
            assert!(counted + SMALL_BUFFER_BYTES_MAX >= inbox.small.capacity());
        }
        assert!(
            inbox.small.capacity() <= 4 * SMALL_BUFFER_BYTES_MAX,
            "{} bytes for one message",
            inbox.small.capacity()
        );
        inbox.next().expect("the last one");
        assert_eq!(inbox.count().1, 0, "an empty inbox counts nothing");
    }
}
