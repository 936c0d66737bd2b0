//! What both ends of a connection have: the queue of what goes out, the messages that came in, and the window between
//! them.
//!
//! 1. Small pieces are copied into one buffer, long ones stay where they are; one call writes many of both.
//! 2. At most [`WINDOW_MESSAGES`] messages may be sent and not yet received, and none while [`WINDOW_BYTES`] or more are.
//!    The receiver gives credit as it takes them. A message without credit waits here, and what was posted behind it waits
//!    with it; replies and credit do not. So an end never needs to stop reading, and verbs complete while messages wait.
//! 3. A write with immediate data counts as a message of no bytes.
//! 4. At a host, what waits in both directions counts against the budget of the connection's name ([`super::budget`]): messages
//!    until they are taken, and the buffers of replies until these are out. So a host may stop reading; an end that connects never does.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use base::admission::{Admitted, Reservation};
use base::untrusted::Untrusted;
use base::{Bytes, BytesMut};

use super::budget::NameBudget;
use super::clock;
use super::memory::Region;
use super::pipe::Pipe;
use super::wire::{HEADER_BYTES, Header, Kind, Status, TRAILER_BYTES};
use crate::{Capability, Completer, Completion, Error, Incoming, Rights, WORD_BYTES};

/// Messages sent and not yet received.
pub const WINDOW_MESSAGES: usize = 1024;
/// Bytes of messages sent and not yet received, above which no further message is sent.
pub const WINDOW_BYTES: usize = 64 << 20;
/// The receiver gives credit for so many messages at once.
const CREDIT_MESSAGES: usize = WINDOW_MESSAGES / 4;
/// The receiver gives credit for so many bytes at once.
const CREDIT_BYTES: usize = WINDOW_BYTES / 4;
/// Frames that wait for credit; one more fails with [`Error::Busy`].
const HELD_MAX: usize = 4096;
/// Bytes that go out from a queue longer than this complete their message only when they are out.
const TAKEN_BYTES_MAX: usize = 8 << 20;
/// Parts up to this size are copied, which costs less than a buffer of their own in the call.
const COPIED_BYTES_MAX: usize = 8 << 10;
/// Bytes of replies that wait to go out, above which a connection is not read.
const REPLY_BYTES_MAX: usize = 4 << 20;
/// Bytes that leave a region while it is locked.
const REGION_BYTES_MAX: usize = 256 << 10;
/// Bytes that one turn of a host's connection writes; what is left has another turn, behind the others'.
pub const TURN_BYTES_MAX: usize = 2 << 20;
/// Looks at the queue's lock before whoever wants it sleeps: about as long as a call that writes takes.
const LOCK_LOOKS_MAX: usize = 200;
/// Writing more than this at once makes whoever waits look longer.
const PATIENCE_BYTES_MIN: usize = 16 << 10;
/// What the other side is expected to take in a microsecond, a slow machine's pace.
const PATIENCE_BYTES_PER_MICROSECOND: usize = 2 << 10;
/// Nobody looks longer than this for the sake of what was written.
const PATIENCE_MAX: Duration = Duration::from_millis(1);
/// Messages up to this size wait in one buffer, and whoever receives one allocates it: memory that one thread takes and
/// another gives back costs far more than a copy of so few bytes.
pub const SMALL_BYTES_MAX: usize = 4 << 10;
/// An empty buffer of more is given back.
const SMALL_BUFFER_BYTES_MAX: usize = 64 << 10;
/// Bytes of small pieces that are out are given up when there are so many, and at least as many as are not.
const TAIL_OUT_MAX: usize = 64 << 10;
/// A buffer of small pieces that is empty and has more room than this is given back.
const TAIL_SPARE_BYTES_MAX: usize = 8 << 20;
/// The same while the name's queues take half of their budget: a short reply and some.
const TAIL_SCARCE_BYTES_MAX: usize = 128 << 10;
/// What a message that waits counts beside its bytes.
const ENTRY_BYTES: usize = 64;
/// Buffers in one call.
const SLICES_MAX: usize = 64;

/// What writing a queue out has come to.
#[derive(Clone, Copy)]
pub struct Pumped {
    /// Something is left of it.
    pub left: bool,
    /// Something went out.
    pub moved: bool,
}

/// What goes out.
pub struct Outgoing {
    segments: VecDeque<Segment>,
    /// Behind the segments: small pieces, of which `tail_out` bytes are out.
    tail: Vec<u8>,
    tail_out: usize,
    bytes: usize,
    /// At a host, what the buffers count against: so many bytes of the tail, and so many in all.
    budget: Option<Arc<NameBudget>>,
    tail_counted: usize,
    counted: usize,
    held: VecDeque<Held>,
    messages_out: usize,
    message_bytes_out: usize,
    /// When the other side has probably taken what was written, if that was much.
    taken_by: Option<Instant>,
    /// Nothing more is posted; what was posted goes out.
    ended: bool,
    closed: bool,
}

enum Segment {
    /// Of which `counted` bytes count against the budget.
    Bytes {
        bytes: Bytes,
        counted: usize,
    },
    Region(RegionRead),
    Taken(Completer<()>),
}

/// A frame that waits for credit, or behind one that does.
struct Held {
    head: Vec<u8>,
    parts: Vec<Bytes>,
    counts: Option<usize>,
    completer: Option<Completer<()>>,
}

/// Bytes that go out of a region as the socket takes them, under a capability that is checked each time.
pub struct RegionRead {
    pub region: Arc<Region>,
    pub capability: Capability,
    /// Who the connection belongs to.
    pub holder: Arc<str>,
    /// Of the next byte; the region has checked the range.
    pub offset: u64,
    pub remaining: usize,
    /// The rest of a word whose first bytes are out: it goes out as it was.
    pub word: [u8; WORD_BYTES],
    pub word_bytes: usize,
    pub status: Status,
}

impl Outgoing {
    fn new() -> Outgoing {
        Outgoing {
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
            taken_by: None,
            ended: false,
            closed: false,
        }
    }

    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether more than [`REPLY_BYTES_MAX`] is to go out beside messages, which the window bounds, or anything at all while the
    /// name's budget is used up.
    pub fn is_crowded(&self) -> bool {
        self.bytes > REPLY_BYTES_MAX + self.message_bytes_out
            || (self.bytes > 0 && self.budget.as_ref().is_some_and(|budget| budget.is_crowded()))
    }

    /// Counts what the tail's buffer takes by now.
    #[inline]
    fn count_tail(&mut self) {
        if self.tail.capacity() != self.tail_counted {
            self.count(self.tail_counted, self.tail.capacity());
            self.tail_counted = self.tail.capacity();
        }
    }

    /// Something that counted `before` bytes counts `after` now.
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

    /// Whether nothing waits, for credit either.
    pub fn is_done(&self) -> bool {
        self.bytes == 0 && self.held.is_empty()
    }

    #[inline]
    pub fn push_copied(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        self.bytes += bytes.len();
        self.count_tail();
    }

    /// So many more bytes of the tail are out. A queue that never runs empty gives them up all the same: without that it
    /// would keep every byte that it has ever sent.
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
            self.segments.push_back(Segment::Bytes { bytes: tail, counted });
        }
        self.empty_tail();
    }

    fn push_part(&mut self, part: &Bytes) {
        if part.len() <= COPIED_BYTES_MAX {
            self.push_copied(part);
        } else {
            self.end_tail();
            self.bytes += part.len();
            self.segments.push_back(Segment::Bytes { bytes: part.clone(), counted: 0 });
        }
    }

    pub fn push_region(&mut self, read: RegionRead) {
        self.end_tail();
        self.bytes += read.remaining + TRAILER_BYTES;
        self.segments.push_back(Segment::Region(read));
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
        if self.held.len() >= HELD_MAX {
            return Err(Error::Busy);
        }
        self.held.push_back(Held { head: head.to_vec(), parts: parts.to_vec(), counts, completer: None });
        Ok(())
    }

    /// Queues a message; gives a completion that is ready if it is as good as out.
    pub fn post_message(&mut self, parts: &[Bytes], length: usize) -> Completion<()> {
        let head = Header::new(Kind::Message, 0, length as u64).encode();
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
                self.segments.push_back(Segment::Taken(completer));
            }
        }
        completion
    }

    /// The other side has received messages.
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
                    self.segments.push_back(Segment::Taken(completer));
                }
            }
        }
        Ok(())
    }

    /// Writes until nothing is left, nothing goes out, or `most` bytes are out.
    ///
    /// # Errors
    /// When the connection is lost.
    pub fn pump(&mut self, pipe: &Pipe, most: usize) -> io::Result<Pumped> {
        let mut out = 0;
        let pumped = self.pump_counted(pipe, most, &mut out);
        if out > PATIENCE_BYTES_MIN {
            let now = clock();
            let took = Duration::from_micros((out / PATIENCE_BYTES_PER_MICROSECOND) as u64);
            let from = self.taken_by.map_or(now, |taken_by| taken_by.max(now));
            self.taken_by = Some((from + took).min(now + PATIENCE_MAX));
        }
        Ok(Pumped { left: pumped?, moved: out > 0 })
    }

    /// As [`Outgoing::pump`]: whether something is left, and in `out` the bytes that are out.
    fn pump_counted(&mut self, pipe: &Pipe, most: usize, out: &mut usize) -> io::Result<bool> {
        loop {
            while let Some(Segment::Taken(_)) = self.segments.front() {
                if let Some(Segment::Taken(completer)) = self.segments.pop_front() {
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

    fn write_once(&mut self, pipe: &Pipe) -> io::Result<usize> {
        if let Some(Segment::Region(read)) = self.segments.front_mut() {
            let written = read.write(pipe)?;
            if read.remaining == 0 {
                let trailer = u64::from(read.status.code()).to_le_bytes();
                self.segments[0] = Segment::Bytes { bytes: Bytes::copy_from_slice(&trailer), counted: 0 };
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
                Segment::Bytes { bytes, .. } if count < SLICES_MAX => {
                    slices[count] = IoSlice::new(bytes);
                    count += 1;
                }
                Segment::Taken(_) => {}
                other => {
                    region_follows = matches!(other, Segment::Region(_));
                    all = false;
                    break;
                }
            }
        }
        if all && count < SLICES_MAX && self.tail_out < self.tail.len() {
            slices[count] = IoSlice::new(&self.tail[self.tail_out..]);
            count += 1;
        }
        // The header of a long reply goes out with its first bytes.
        let written = if region_follows { pipe.write_more(&slices[..count])? } else { pipe.write(&slices[..count])? };
        let mut rest = written;
        while let Some(segment) = self.segments.front_mut() {
            match segment {
                Segment::Bytes { bytes, .. } if rest < bytes.len() => {
                    let _ = bytes.split_to(rest);
                    return Ok(written);
                }
                Segment::Bytes { bytes, .. } => rest -= bytes.len(),
                Segment::Taken(_) => {}
                Segment::Region(_) => return Ok(written),
            }
            match self.segments.pop_front() {
                Some(Segment::Taken(completer)) => completer.complete(Ok(())),
                Some(Segment::Bytes { counted, .. }) if counted > 0 => self.count(counted, 0),
                _ => {}
            }
        }
        self.advance_tail(rest);
        Ok(written)
    }

    /// Nothing more may be posted.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// The connection has ended: nothing goes out any more.
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

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.count(self.counted, 0);
    }
}

impl RegionRead {
    fn write(&mut self, pipe: &Pipe) -> io::Result<usize> {
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
            Status::Done => {
                let offset = Untrusted::new(self.offset);
                self.region.open(&self.capability, &self.holder, Rights::READ, offset, length as u64)
            }
            status => Err(super::memory::Refusal::of(status)),
        };
        let Ok(mut opened) = opened else {
            // The fence came while the bytes were going out. The rest of them are zeroes, and the trailer says so.
            self.status = Status::Revoked;
            const ZEROES: [u8; 4096] = [0; 4096];
            let written = pipe.write(&[IoSlice::new(&ZEROES[..length.min(ZEROES.len())])])?;
            self.remaining -= written;
            return Ok(written);
        };
        let bytes = opened.bytes();
        let written = pipe.write(&[IoSlice::new(bytes)])?;
        // A word that has begun to go out goes out as it is now.
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
pub struct Inbox {
    messages: VecDeque<Arrived>,
    /// The bytes of small messages, one behind the other.
    small: VecDeque<u8>,
    /// The bytes of the others.
    whole_bytes: usize,
    /// What all of them count against the name's budget.
    counted: usize,
    waker: Option<Waker>,
    /// Received by us and not yet credited, and what of it our application has taken.
    outstanding: usize,
    outstanding_bytes: usize,
    taken: usize,
    taken_bytes: usize,
    closed: bool,
}

/// A message that waits.
enum Arrived {
    Whole(Incoming),
    /// So many bytes of the buffer.
    Small(usize),
}

impl Inbox {
    fn new() -> Inbox {
        Inbox {
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
        self.messages.push_back(Arrived::Small(bytes.len()));
    }

    fn push_whole(&mut self, incoming: Incoming) {
        self.whole_bytes += bytes_of(&incoming);
        self.messages.push_back(Arrived::Whole(incoming));
    }

    /// Throws everything away: nobody receives any more.
    fn discard(&mut self) {
        self.closed = true;
        (self.messages, self.small, self.whole_bytes) = (VecDeque::new(), VecDeque::new(), 0);
    }

    /// What counts against the name's budget, before and now. Of an empty buffer nothing counts.
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

    fn next(&mut self) -> Option<Incoming> {
        let length = match self.messages.pop_front()? {
            Arrived::Whole(incoming) => {
                self.whole_bytes -= bytes_of(&incoming);
                return Some(incoming);
            }
            Arrived::Small(length) => length,
        };
        let mut message = BytesMut::with_capacity(length);
        let (first, second) = self.small.as_slices();
        let (first, second) = (&first[..length.min(first.len())], &second[..length.saturating_sub(first.len())]);
        message.extend_from_slice(first);
        message.extend_from_slice(second);
        self.small.drain(..length);
        let room = self.small.capacity();
        if room > SMALL_BUFFER_BYTES_MAX {
            // One that never runs empty gives room back as well.
            match self.small.len() {
                0 => self.small = VecDeque::new(),
                left if left < room / 4 => self.small.shrink_to(room / 2),
                _ => {}
            }
        }
        Some(Incoming::Message(message.freeze()))
    }
}

fn bytes_of(incoming: &Incoming) -> usize {
    match incoming {
        Incoming::Message(message) => message.len(),
        Incoming::Immediate { .. } => 0,
    }
}

/// What both ends share.
pub struct Peer {
    pub pipe: Pipe,
    outgoing: Mutex<Outgoing>,
    inbox: Mutex<Inbox>,
    /// Of the connection's name, at a host that knows it.
    budget: OnceLock<Arc<NameBudget>>,
    /// Somebody waits for a message: the inbox has a waker. Written under its lock.
    awaited: AtomicBool,
    /// An endpoint has left its queue to the progress thread.
    asked: AtomicBool,
}

impl Peer {
    pub fn new(pipe: Pipe) -> Peer {
        let outgoing = Mutex::new(Outgoing::new());
        let [awaited, asked] = [false; 2].map(AtomicBool::new);
        Peer { pipe, outgoing, inbox: Mutex::new(Inbox::new()), budget: OnceLock::new(), awaited, asked }
    }

    /// From now on what waits here counts against this budget. Before that no message is delivered.
    pub fn set_budget(&self, budget: &Arc<NameBudget>) {
        self.outgoing().set_budget(Arc::clone(budget));
        let _ = self.budget.set(Arc::clone(budget));
    }

    /// Counts what waits in the inbox by now.
    fn count(&self, mut inbox: MutexGuard<'_, Inbox>) {
        if let Some(budget) = self.budget.get() {
            let (before, now) = inbox.count();
            drop(inbox);
            budget.hold(before, now);
        }
    }

    /// Asks the progress thread to write the queue.
    pub fn ask(&self) {
        self.asked.store(true, Ordering::SeqCst);
    }

    /// Whether that was asked for, once.
    #[inline]
    pub fn take_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst) && self.asked.swap(false, Ordering::SeqCst)
    }

    /// The queue, which whoever writes keeps locked for some microseconds: that is looked for, since sleeping takes longer.
    #[inline]
    pub fn outgoing(&self) -> MutexGuard<'_, Outgoing> {
        for _ in 0..LOCK_LOOKS_MAX {
            match self.outgoing.try_lock() {
                Ok(guard) => return guard,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the other side has probably not taken yet what was written, so that its answer is worth looking for a while
    /// longer than usual.
    pub fn is_being_taken(&self, now: Instant) -> bool {
        let mut outgoing = self.outgoing();
        let is = outgoing.taken_by.is_some_and(|taken_by| now < taken_by);
        if !is {
            outgoing.taken_by = None;
        }
        is
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether another message of `length` bytes is within the window that we gave.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn admit(&self, length: usize) -> Result<(), Error> {
        self.inbox().admit(length)
    }

    /// What was admitted, a message of no bytes, is not delivered: it counts as taken.
    pub fn forgo(&self) {
        let mut inbox = self.inbox();
        inbox.outstanding -= 1;
        drop(inbox);
        self.outgoing().push_copied(&Header::new(Kind::Credit, 1, 0).encode());
    }

    /// Delivers what was admitted.
    pub fn deliver(&self, incoming: Incoming) {
        let mut inbox = self.inbox();
        // Nobody receives any more once our side has ended.
        if !inbox.closed {
            inbox.push_whole(incoming);
        }
        self.tell(inbox);
    }

    /// Admits and delivers a message of at most [`SMALL_BYTES_MAX`].
    ///
    /// # Errors
    /// As [`Peer::admit`].
    pub fn deliver_small(&self, bytes: &[u8]) -> Result<(), Error> {
        let mut inbox = self.inbox();
        inbox.admit(bytes.len())?;
        if !inbox.closed {
            inbox.push_small(bytes);
        }
        self.tell(inbox);
        Ok(())
    }

    /// Wakes whoever waits for a message.
    fn tell(&self, mut inbox: MutexGuard<'_, Inbox>) {
        let waker = inbox.waker.take();
        self.awaited.store(false, Ordering::Release);
        self.count(inbox);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The next message. True beside it when credit was queued that is to go out.
    pub fn poll_receive(&self, cx: &Context<'_>) -> Poll<Result<(Incoming, bool), Error>> {
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
        if let Incoming::Message(message) = &incoming {
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
            outgoing.push_copied(&Header::new(Kind::Credit, messages as u32, bytes as u64).encode());
        }
        Poll::Ready(Ok((incoming, true)))
    }

    /// Whether a piece of a message of `length` bytes is read although the name's budget is full: nothing of it stays, or somebody
    /// waits for it, or it is short and those before it were taken.
    pub fn takes_regardless(&self, length: usize) -> bool {
        let inbox = self.inbox();
        inbox.closed || (inbox.messages.is_empty() && (length <= SMALL_BYTES_MAX || inbox.waker.is_some()))
    }

    /// Whether connections of the name wait until messages were taken.
    pub fn has_waiting(&self) -> bool {
        self.budget.get().is_some_and(|budget| budget.has_waiting())
    }

    /// Nobody receives any more: throws away what came in, and what still comes.
    pub fn discard(&self) {
        let mut inbox = self.inbox();
        inbox.discard();
        self.tell(inbox);
    }

    /// Whether somebody waits for a message.
    pub fn is_awaited(&self) -> bool {
        self.awaited.load(Ordering::Acquire)
    }

    /// Nothing more goes out; what came in can still be received.
    pub fn close(&self) {
        self.outgoing().close();
        self.end_inbox();
    }

    /// Nothing more comes in.
    pub fn end_inbox(&self) {
        let mut inbox = self.inbox();
        inbox.closed = true;
        self.tell(inbox);
    }
}

/// A message of which some bytes have come.
pub struct Assembly {
    bytes: BytesMut,
    length: usize,
    /// What its bytes count against, at a host.
    payer: Option<Arc<Admitted>>,
    reserved: Vec<Reservation>,
    reserved_bytes: usize,
}

/// Bytes reserved for a message before any of it has come; later as many as have come.
const FIRST_RESERVE_BYTES: usize = 1 << 20;

impl Assembly {
    /// For a message of which nothing has come.
    ///
    /// # Errors
    /// [`Error::Exhausted`]: its sender has too much under way already.
    pub fn new(length: usize, payer: Option<Arc<Admitted>>) -> Result<Assembly, Error> {
        let first = length.min(FIRST_RESERVE_BYTES);
        let mut assembly = Assembly { bytes: BytesMut::new(), length, payer, reserved: Vec::new(), reserved_bytes: 0 };
        assembly.account(first)?;
        assembly.bytes.reserve(first);
        Ok(assembly)
    }

    /// Accounts room for so many bytes in all.
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

    /// Takes bytes that are here already. True when the message is whole.
    ///
    /// # Errors
    /// As [`Assembly::new`].
    pub fn take(&mut self, buffer: &mut super::pipe::ReadBuffer) -> Result<bool, Error> {
        let missing = self.length - self.bytes.len();
        self.account(self.bytes.len() + missing.min(buffer.filled().len()))?;
        buffer.move_into(&mut self.bytes, missing);
        Ok(self.bytes.len() == self.length)
    }

    /// Reads bytes that are not. 0 is the end.
    ///
    /// # Errors
    /// As [`Pipe::read`]; `OutOfMemory` as [`Assembly::new`].
    pub fn read(&mut self, pipe: &Pipe) -> io::Result<usize> {
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

/// Bytes of a header at the start of a buffer.
#[inline]
pub fn header_of(filled: &[u8]) -> Option<Result<Header, Error>> {
    filled.first_chunk::<HEADER_BYTES>().map(Header::decode)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The story: a tenant that always had some reads outstanding made its host remember every reply that it had sent, and 17
    /// MiB became 3 GiB in nine seconds. The one that connects has the same queue.
    #[test]
    fn a_queue_that_never_runs_empty_stays_small() {
        let reply = vec![7; 64 << 10];
        let mut outgoing = Outgoing::new();
        outgoing.push_copied(&reply);
        let mut most = 0;
        for round in 0..10_000 {
            outgoing.push_copied(&reply);
            // Something is always left, now more of it and now less.
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
        let mut outgoing = Outgoing::new();
        outgoing.push_copied(&vec![7; 2 * TAIL_SPARE_BYTES_MAX]);
        outgoing.advance_tail(2 * TAIL_SPARE_BYTES_MAX);
        outgoing.empty_tail();
        assert!(outgoing.tail.capacity() <= TAIL_SPARE_BYTES_MAX);
    }

    #[test]
    fn small_messages_come_out_whole_and_in_order_also_where_their_buffer_wraps() {
        let message = |number: usize| vec![number as u8; number * 577 % (SMALL_BYTES_MAX + 1)];
        let mut inbox = Inbox::new();
        let (mut put, mut taken) = (0, 0);
        let mut wrapped = false;
        for round in 0..200 {
            for _ in 0..2 + round % 3 {
                inbox.push_small(&message(put));
                put += 1;
            }
            inbox.push_whole(Incoming::Message(Bytes::from_static(b"whole")));
            wrapped |= !inbox.small.as_slices().1.is_empty();
            // Some stay behind, but now and then none.
            while taken + round % 10 < put {
                match inbox.next() {
                    Some(Incoming::Message(whole)) if whole == b"whole"[..] => {}
                    found => {
                        assert_eq!(found, Some(Incoming::Message(message(taken).into())), "message {taken}");
                        taken += 1;
                    }
                }
            }
        }
        assert!(wrapped, "the buffer never wrapped");
        assert!(put - taken < 10);
    }

    /// A connection that always leaves a message behind kept the largest buffer that it had ever filled.
    #[test]
    fn small_messages_count_what_their_buffer_takes_and_it_shrinks() {
        let mut inbox = Inbox::new();
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
