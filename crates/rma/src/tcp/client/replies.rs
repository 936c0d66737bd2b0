//! Incoming frames: replies, in the order of the verbs in flight, and messages.
//!
//! A long payload is read directly into the caller's buffer. The same system call also reads the bytes after it, but no
//! byte of another long payload.

use std::io;
use std::sync::atomic::Ordering;

use wire::u64_at;

use super::reply_input::{ReplyInput, ReplyState};
use super::{PendingVerb, TcpClient, VerbOutcome};
use crate::tcp::assembly::MessageAssembly;
use crate::tcp::inbox::SMALL_BYTES_MAX;
use crate::tcp::peer::header_of;
use crate::tcp::wire::{FrameHeader, FrameKind, HEADER_BYTES, TRAILER_BYTES, VerbStatus};
use crate::{Error, IncomingEvent, WORD_BYTES};

/// A payload of more than this is read into the caller's buffer without a copy in between.
const DIRECT_BYTES_MIN: usize = 16 << 10;

enum ReplyStep {
    More,
    Nothing,
    End,
}

impl TcpClient {
    /// Reads and decodes what is there, or only until `done`. Returns whether there was anything.
    pub(super) fn take_in(&self, input: &mut ReplyInput, done: &dyn Fn() -> bool) -> io::Result<bool> {
        let mut any = false;
        loop {
            let step = match self.step(input) {
                // No socket event announces bytes that TLS has already read, so with TLS all of them are taken.
                Ok(ReplyStep::More) if self.peer.pipe.is_plain() && done() => {
                    any = true;
                    Ok(ReplyStep::Nothing)
                }
                step => step,
            };
            match step {
                Ok(ReplyStep::More) => any = true,
                Ok(ReplyStep::Nothing) => {
                    self.partial.store(input.partial(), Ordering::Release);
                    return Ok(any);
                }
                Ok(ReplyStep::End) => {
                    self.fail();
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                Err(error) => {
                    self.fail();
                    return Err(error);
                }
            }
        }
    }

    fn step(&self, input: &mut ReplyInput) -> io::Result<ReplyStep> {
        while self.understand(input).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))? {}
        let pipe = &self.peer.pipe;
        let buffered = input.buffer.filled().len();
        let read = match &mut input.state {
            ReplyState::Payload { into, missing, trailer, .. } if *missing > 0 && buffered == 0 => {
                let behind = behind(*trailer, self.expects_long_reply());
                let read = input.buffer.fill_behind(into, *missing, pipe, behind);
                if let Ok(count) = read {
                    *missing -= count;
                }
                read
            }
            ReplyState::Payload { missing: 0, trailer, .. } => {
                let behind = behind(*trailer, self.expects_long_reply());
                input.buffer.fill(pipe, behind.saturating_sub(buffered).max(1)).map(|filled| filled.bytes)
            }
            ReplyState::Message(assembly) if !assembly.is_whole() && buffered == 0 => assembly.read(pipe),
            ReplyState::Header if buffered < HEADER_BYTES && self.expects_long_reply() => {
                input.buffer.fill(pipe, HEADER_BYTES - buffered).map(|filled| filled.bytes)
            }
            _ => input.buffer.fill(pipe, usize::MAX).map(|filled| filled.bytes),
        };
        match read {
            Ok(0) => Ok(ReplyStep::End),
            Ok(_) => {
                while self.understand(input).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))? {}
                Ok(ReplyStep::More)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(ReplyStep::Nothing),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(ReplyStep::More),
            Err(error) => Err(error),
        }
    }

    /// Whether the next reply, if the verb succeeded, is to be read without a copy.
    fn expects_long_reply(&self) -> bool {
        matches!(self.posted().in_flight.front(), Some(PendingVerb { outcome: VerbOutcome::Read { length, .. }, .. })
            if *length > DIRECT_BYTES_MIN)
    }

    /// Takes the next item off the buffer. False when more bytes are needed.
    fn understand(&self, input: &mut ReplyInput) -> Result<bool, Error> {
        match &mut input.state {
            ReplyState::Header => {
                let Some(header) = header_of(input.buffer.filled()) else { return Ok(false) };
                self.start_frame(header?, input)
            }
            ReplyState::Payload { into, missing, trailer, .. } => {
                let before = into.len();
                input.buffer.move_into(into, *missing);
                *missing -= into.len() - before;
                if *missing > 0 || (*trailer && input.buffer.filled().len() < TRAILER_BYTES) {
                    return Ok(false);
                }
                let status = match trailer {
                    true => {
                        let code = u64_at(input.buffer.filled(), 0);
                        input.buffer.consume(TRAILER_BYTES);
                        VerbStatus::from_code(u8::try_from(code).unwrap_or(u8::MAX))?
                    }
                    false => VerbStatus::Done,
                };
                let payload = std::mem::replace(&mut input.state, ReplyState::Header);
                if let ReplyState::Payload { into, completer, .. } = payload {
                    completer.complete(match status {
                        VerbStatus::Done => Ok(into),
                        _ => Err(Error::Revoked),
                    });
                }
                Ok(true)
            }
            ReplyState::Message(assembly) => {
                if !assembly.take(&mut input.buffer)? {
                    return Ok(false);
                }
                if let ReplyState::Message(assembly) = std::mem::replace(&mut input.state, ReplyState::Header) {
                    self.peer.deliver(IncomingEvent::Message(assembly.finish()));
                }
                Ok(true)
            }
        }
    }

    fn start_frame(&self, header: FrameHeader, input: &mut ReplyInput) -> Result<bool, Error> {
        let length = header.length as usize;
        match header.kind {
            FrameKind::Message if length <= SMALL_BYTES_MAX => {
                let frame = HEADER_BYTES..HEADER_BYTES + length;
                let Some(bytes) = input.buffer.filled().get(frame.clone()) else { return Ok(false) };
                self.peer.deliver_small(bytes)?;
                input.buffer.consume(frame.end);
            }
            FrameKind::Message => {
                self.peer.admit(length)?;
                input.buffer.consume(HEADER_BYTES);
                input.state = ReplyState::Message(MessageAssembly::new(length, None)?);
            }
            FrameKind::Credit => {
                input.buffer.consume(HEADER_BYTES);
                self.peer.outgoing().credit(header.sequence as usize, header.length)?;
                self.write_out_or_ask();
            }
            FrameKind::Reply | FrameKind::LongReply => return self.reply(header, input),
            _ => return Err(Error::Malformed("a frame that only a client sends")),
        }
        Ok(true)
    }

    fn reply(&self, header: FrameHeader, input: &mut ReplyInput) -> Result<bool, Error> {
        let status = VerbStatus::from_code(header.status)?;
        let length = header.length as usize;
        if status != VerbStatus::Done && length > WORD_BYTES {
            return Err(Error::Malformed("a rejection with a payload"));
        }
        let is_read = {
            let posted = self.posted();
            let pending = posted.in_flight.front().filter(|pending| pending.sequence as u32 == header.sequence);
            let expected = match &pending.ok_or(Error::Malformed("a reply to no verb"))?.outcome {
                VerbOutcome::Read { length, .. } => *length,
                VerbOutcome::Write { .. } => 0,
                VerbOutcome::Word { .. } => WORD_BYTES,
            };
            let is_read =
                matches!(posted.in_flight.front(), Some(PendingVerb { outcome: VerbOutcome::Read { .. }, .. }));
            if status == VerbStatus::Done && length != expected {
                return Err(Error::Malformed("a reply of another length than requested"));
            }
            if header.kind == FrameKind::LongReply && !(is_read && status == VerbStatus::Done) {
                return Err(Error::Malformed("a long reply to a verb that has none"));
            }
            is_read && status == VerbStatus::Done
        };
        // A short reply is decoded only when it is complete.
        if !is_read && input.buffer.filled().len() < HEADER_BYTES + length {
            return Ok(false);
        }
        input.buffer.consume(HEADER_BYTES);
        let Some(PendingVerb { outcome, sequence }) = self.posted().in_flight.pop_front() else { return Ok(true) };
        if is_read {
            if let VerbOutcome::Read { mut into, length, completer, .. } = outcome {
                into.reserve(length);
                let trailer = header.kind == FrameKind::LongReply;
                input.state = ReplyState::Payload { sequence, into, missing: length, trailer, completer };
            }
            return Ok(true);
        }
        let word = if length == WORD_BYTES { u64_at(input.buffer.filled(), 0) } else { 0 };
        input.buffer.consume(length);
        let error = |offset: u64, bytes: u64| match status {
            VerbStatus::Done => None,
            VerbStatus::Revoked => Some(Error::Revoked),
            VerbStatus::Unknown => Some(Error::Unknown),
            VerbStatus::Forbidden => Some(Error::Forbidden),
            VerbStatus::OutOfBounds => Some(Error::OutOfBounds { offset, length: bytes, region_bytes: word }),
            VerbStatus::Misaligned => Some(Error::Misaligned(offset)),
            VerbStatus::TooLarge => Some(Error::TooLarge(bytes as usize)),
            VerbStatus::Ambiguous => Some(Error::Ambiguous("it was revoked after a part of it had taken effect")),
        };
        match outcome {
            VerbOutcome::Read { offset, length, completer, .. } => {
                let error = error(offset, length as u64).unwrap_or(Error::Malformed("a read without its bytes"));
                completer.complete(Err(error));
            }
            VerbOutcome::Write { offset, length, completer } => {
                completer.complete(error(offset, length).map_or(Ok(()), Err));
            }
            VerbOutcome::Word { offset, completer } => {
                completer.complete(error(offset, WORD_BYTES as u64).map_or(Ok(word), Err));
            }
        }
        Ok(true)
    }
}

/// How many bytes behind a payload may be read with it: no byte of a following long payload, which stays in the socket until
/// its buffer is known.
fn behind(trailer: bool, long_reply: bool) -> usize {
    match long_reply {
        true => usize::from(trailer) * TRAILER_BYTES + HEADER_BYTES,
        false => usize::MAX,
    }
}
