//! What comes in: replies, in the order of the verbs in flight, and messages.
//!
//! A long payload is read to where its caller wants it; what follows it is read with it, but no byte of another such payload.

use std::io;
use std::sync::atomic::Ordering;

use base::BytesMut;

use super::{Client, Outcome, Pending};
use crate::tcp::peer::{Assembly, SMALL_BYTES_MAX, header_of};
use crate::tcp::pipe::ReadBuffer;
use crate::tcp::wire::{HEADER_BYTES, Header, Kind, Status, TRAILER_BYTES, u64_at};
use crate::{Completer, Error, Incoming, WORD_BYTES};

/// A reply of more than this is read to where its caller wants it without a copy in between.
const DIRECT_BYTES_MIN: usize = 16 << 10;

/// What has come and is not understood yet.
pub(super) struct Input {
    buffer: ReadBuffer,
    state: State,
}

enum State {
    Header,
    /// The payload of a read arrives where its caller wants it.
    Payload {
        sequence: u64,
        into: BytesMut,
        missing: usize,
        trailer: bool,
        completer: Completer<BytesMut>,
    },
    Message(Assembly),
}

impl Input {
    pub(super) fn new() -> Input {
        Input { buffer: ReadBuffer::new(), state: State::Header }
    }

    /// Gives up what has come of a reply or a message.
    pub(super) fn abandon(&mut self) {
        self.state = State::Header;
    }

    /// As [`Client::partial`].
    fn partial(&self) -> u64 {
        match &self.state {
            State::Payload { sequence, .. } => sequence + 1,
            _ => 0,
        }
    }
}

enum Step {
    More,
    Nothing,
    End,
}

impl Client {
    /// Reads and understands whatever is there, or less, as soon as `done`. True when that was something.
    pub(super) fn take_in(&self, input: &mut Input, done: &dyn Fn() -> bool) -> io::Result<bool> {
        let mut any = false;
        loop {
            let step = match self.step(input) {
                // What TLS has read and not given no socket tells of: then all of it is taken.
                Ok(Step::More) if self.peer.pipe.is_plain() && done() => {
                    any = true;
                    Ok(Step::Nothing)
                }
                step => step,
            };
            match step {
                Ok(Step::More) => any = true,
                Ok(Step::Nothing) => {
                    self.partial.store(input.partial(), Ordering::Release);
                    return Ok(any);
                }
                Ok(Step::End) => {
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

    fn step(&self, input: &mut Input) -> io::Result<Step> {
        while self.understand(input).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))? {}
        let pipe = &self.peer.pipe;
        let buffered = input.buffer.filled().len();
        let read = match &mut input.state {
            State::Payload { into, missing, trailer, .. } if *missing > 0 && buffered == 0 => {
                let behind = behind(*trailer, self.expects_long_reply());
                let read = input.buffer.fill_behind(into, *missing, pipe, behind);
                if let Ok(count) = read {
                    *missing -= count;
                }
                read
            }
            State::Payload { missing: 0, trailer, .. } => {
                let behind = behind(*trailer, self.expects_long_reply());
                input.buffer.fill(pipe, behind.saturating_sub(buffered).max(1)).map(|filled| filled.bytes)
            }
            State::Message(assembly) if !assembly.is_whole() && buffered == 0 => assembly.read(pipe),
            State::Header if buffered < HEADER_BYTES && self.expects_long_reply() => {
                input.buffer.fill(pipe, HEADER_BYTES - buffered).map(|filled| filled.bytes)
            }
            _ => input.buffer.fill(pipe, usize::MAX).map(|filled| filled.bytes),
        };
        match read {
            Ok(0) => Ok(Step::End),
            Ok(_) => {
                while self.understand(input).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))? {}
                Ok(Step::More)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Step::Nothing),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Step::More),
            Err(error) => Err(error),
        }
    }

    /// Whether the next reply, if it is not a refusal, is to be read without a copy.
    fn expects_long_reply(&self) -> bool {
        matches!(self.posted().in_flight.front(), Some(Pending { outcome: Outcome::Read { length, .. }, .. })
            if *length > DIRECT_BYTES_MIN)
    }

    /// Takes the next thing off the buffer. False when more bytes are needed.
    fn understand(&self, input: &mut Input) -> Result<bool, Error> {
        match &mut input.state {
            State::Header => {
                let Some(header) = header_of(input.buffer.filled()) else { return Ok(false) };
                self.begin(header?, input)
            }
            State::Payload { into, missing, trailer, .. } => {
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
                        Status::from_code(u8::try_from(code).unwrap_or(u8::MAX))?
                    }
                    false => Status::Done,
                };
                let payload = std::mem::replace(&mut input.state, State::Header);
                if let State::Payload { into, completer, .. } = payload {
                    completer.complete(match status {
                        Status::Done => Ok(into),
                        _ => Err(Error::Revoked),
                    });
                }
                Ok(true)
            }
            State::Message(assembly) => {
                if !assembly.take(&mut input.buffer)? {
                    return Ok(false);
                }
                if let State::Message(assembly) = std::mem::replace(&mut input.state, State::Header) {
                    self.peer.deliver(Incoming::Message(assembly.finish()));
                }
                Ok(true)
            }
        }
    }

    fn begin(&self, header: Header, input: &mut Input) -> Result<bool, Error> {
        let length = header.length as usize;
        match header.kind {
            Kind::Message if length <= SMALL_BYTES_MAX => {
                let frame = HEADER_BYTES..HEADER_BYTES + length;
                let Some(bytes) = input.buffer.filled().get(frame.clone()) else { return Ok(false) };
                self.peer.deliver_small(bytes)?;
                input.buffer.consume(frame.end);
            }
            Kind::Message => {
                self.peer.admit(length)?;
                input.buffer.consume(HEADER_BYTES);
                input.state = State::Message(Assembly::new(length, None)?);
            }
            Kind::Credit => {
                input.buffer.consume(HEADER_BYTES);
                self.peer.outgoing().credit(header.sequence as usize, header.length)?;
                self.write_out_or_ask();
            }
            Kind::Reply | Kind::LongReply => return self.reply(header, input),
            _ => return Err(Error::Malformed("a frame that only the other side sends")),
        }
        Ok(true)
    }

    fn reply(&self, header: Header, input: &mut Input) -> Result<bool, Error> {
        let status = Status::from_code(header.status)?;
        let length = header.length as usize;
        if status != Status::Done && length > WORD_BYTES {
            return Err(Error::Malformed("a refusal with a payload"));
        }
        let is_read = {
            let posted = self.posted();
            let pending = posted.in_flight.front().filter(|pending| pending.sequence as u32 == header.sequence);
            let expected = match &pending.ok_or(Error::Malformed("a reply to no verb"))?.outcome {
                Outcome::Read { length, .. } => *length,
                Outcome::Write { .. } => 0,
                Outcome::Word { .. } => WORD_BYTES,
            };
            let is_read = matches!(posted.in_flight.front(), Some(Pending { outcome: Outcome::Read { .. }, .. }));
            if status == Status::Done && length != expected {
                return Err(Error::Malformed("a reply of another length than was asked for"));
            }
            if header.kind == Kind::LongReply && !(is_read && status == Status::Done) {
                return Err(Error::Malformed("a long reply to a verb that has none"));
            }
            is_read && status == Status::Done
        };
        // A short reply is taken whole.
        if !is_read && input.buffer.filled().len() < HEADER_BYTES + length {
            return Ok(false);
        }
        input.buffer.consume(HEADER_BYTES);
        let Some(Pending { outcome, sequence }) = self.posted().in_flight.pop_front() else { return Ok(true) };
        if is_read {
            if let Outcome::Read { mut into, length, completer, .. } = outcome {
                into.reserve(length);
                let trailer = header.kind == Kind::LongReply;
                input.state = State::Payload { sequence, into, missing: length, trailer, completer };
            }
            return Ok(true);
        }
        let word = if length == WORD_BYTES { u64_at(input.buffer.filled(), 0) } else { 0 };
        input.buffer.consume(length);
        let error = |offset: u64, bytes: u64| match status {
            Status::Done => None,
            Status::Revoked => Some(Error::Revoked),
            Status::Unknown => Some(Error::Unknown),
            Status::Forbidden => Some(Error::Forbidden),
            Status::OutOfBounds => Some(Error::OutOfBounds { offset, length: bytes, region_bytes: word }),
            Status::Misaligned => Some(Error::Misaligned(offset)),
            Status::TooLarge => Some(Error::TooLarge(bytes as usize)),
            Status::Ambiguous => Some(Error::Ambiguous("it was revoked after a part of it had taken effect")),
        };
        match outcome {
            Outcome::Read { offset, length, completer, .. } => {
                let error = error(offset, length as u64).unwrap_or(Error::Malformed("a read without its bytes"));
                completer.complete(Err(error));
            }
            Outcome::Write { offset, length, completer } => {
                completer.complete(error(offset, length).map_or(Ok(()), Err));
            }
            Outcome::Word { offset, completer } => {
                completer.complete(error(offset, WORD_BYTES as u64).map_or(Ok(word), Err));
            }
        }
        Ok(true)
    }
}

/// How many bytes behind a payload are read with it: no byte of a long reply behind it, which are left in the socket until
/// it is known where they go.
fn behind(trailer: bool, long_reply: bool) -> usize {
    match long_reply {
        true => usize::from(trailer) * TRAILER_BYTES + HEADER_BYTES,
        false => usize::MAX,
    }
}
