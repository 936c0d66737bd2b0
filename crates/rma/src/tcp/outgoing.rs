//! The queue of a connection's outgoing bytes.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::Bytes;
use base::untrusted::Untrusted;

use super::budget::NameBudget;
use super::clock;
use super::memory::HostRegion;
use super::pipe::SocketPipe;
use super::window::{WINDOW_BYTES, WINDOW_MESSAGES};
use super::wire::{FrameHeader, FrameKind, TRAILER_BYTES, VerbStatus};
use crate::{Capability, Completer, Completion, Error, Rights, WORD_BYTES};

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

/// After a write of more than this, a waiting thread polls for longer.
const LONG_SPIN_BYTES_MIN: usize = 16 << 10;
/// The rate at which the other end is expected to receive, as on a slow machine.
const LONG_SPIN_BYTES_PER_MICROSECOND: usize = 2 << 10;
/// The most by which a write extends polling.
const LONG_SPIN_MAX: Duration = Duration::from_millis(1);

/// The queue drops written bytes of its tail once there are this many, and at least as many as unwritten ones.
const TAIL_OUT_MAX: usize = 64 << 10;
/// An empty tail buffer with a larger capacity is freed.
pub const TAIL_SPARE_BYTES_MAX: usize = 8 << 20;
/// The same while the name's queues use half of their budget: a short reply and some more.
const TAIL_SCARCE_BYTES_MAX: usize = 128 << 10;

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
    pub(super) expected_taken_at: Option<Instant>,
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
    pub(super) fn new() -> OutgoingQueue {
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
    pub(super) fn set_budget(&mut self, budget: Arc<NameBudget>) {
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
}
