//! The end that connects: verbs are posted into a queue, and whoever waits for one writes the queue and reads the replies.
//!
//! 1. Posting puts a verb into the queue and among those in flight. Nothing is written yet.
//! 2. Whoever polls a completion writes the queue, many verbs with one call, and reads replies for a short while
//!    ([`TcpOptions::spin`]), for itself and for all others. Replies come in the order of posting.
//! 3. What is not there by then the waiter [asks](Client::ask) a task of the connection to wait for, through the runtime's
//!    own reactor. It rests as soon as that has come, whatever else is in flight by then: it would be woken by each reply
//!    that a spinning waiter reads for itself, and waking costs as much as half a round trip.
//!
//! Invariants: the order of verbs in flight is the order of their frames; a lost connection completes each as ambiguous.

use std::collections::VecDeque;
use std::io;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use base::rt::sync::Notify;
use base::{Bytes, BytesMut};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::handshake::{self, CHALLENGE_BYTES, VERDICT_BYTES};
use super::peer::{Assembly, Peer, Pumped, header_of};
use super::pipe::{Pipe, ReadBuffer, read_to_end_of};
use super::spin::Spin;
use super::wire::{HEADER_BYTES, Header, Kind, Status, TRAILER_BYTES, Verb, u64_at};
use super::{CLOSING_TIME_MAX, HANDSHAKE_TIME_MAX, PROFILE, TcpOptions, clock, tune};
use crate::{
    Capability, Completer, Completion, Connection, Credential, Drive, Endpoint, Error, IN_FLIGHT_MAX, Incoming,
    MESSAGE_BYTES_MAX, NodeId, PARTS_MAX, TRANSFER_BYTES_MAX, WORD_BYTES,
};

/// How often a connection on which nothing is awaited is looked at.
const LOOK: std::time::Duration = std::time::Duration::from_secs(1);
/// A waiter that reads for itself and others gives its thread back after so long, if its own reply has not come by then.
const DRIVE_TIME_MAX: std::time::Duration = std::time::Duration::from_millis(2);
/// A reply of more than this is read to where its caller wants it without a copy in between.
const DIRECT_BYTES_MIN: usize = 16 << 10;

/// The endpoint's hold on its connection.
struct Handle(Arc<Client>);

struct Client {
    peer: Peer,
    node: NodeId,
    name: String,
    options: TcpOptions,
    posted: Mutex<Posted>,
    input: Mutex<Input>,
    /// Something is to be waited for by the task.
    wanted: Notify,
    spin: Spin,
    closing: AtomicBool,
    /// Whoever receives messages has asked the task to wait for one.
    receiver_asked: AtomicBool,
    /// Behind the number of the verb of whose reply a part has come; 0 when there is none. Written under the lock of the
    /// input.
    partial: AtomicU64,
}

/// Verbs in flight. Locked before the outgoing queue, so that both have the same order.
struct Posted {
    in_flight: VecDeque<Pending>,
    /// Of the next verb to be posted. Frames have the lower half of it.
    next: u64,
    /// The task waits for the replies of verbs before this one.
    asked: u64,
    /// Nothing more is posted.
    closed: bool,
    /// The connection is lost.
    lost: bool,
}

struct Pending {
    sequence: u64,
    outcome: Outcome,
}

enum Outcome {
    Read { into: BytesMut, offset: u64, length: usize, completer: Completer<BytesMut> },
    Write { offset: u64, length: u64, completer: Completer<()> },
    Word { offset: u64, completer: Completer<u64> },
}

struct Input {
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

/// Connects, in a thread that may wait.
pub fn connect(address: &str, credential: &Credential, options: &TcpOptions) -> Result<Connected, Error> {
    let unreachable =
        |error: &dyn std::fmt::Display| Error::Unreachable { address: address.to_owned(), reason: error.to_string() };
    let mut last = None;
    let mut socket = None;
    for resolved in address.to_socket_addrs().map_err(|error| unreachable(&error))? {
        match TcpStream::connect_timeout(&resolved, HANDSHAKE_TIME_MAX) {
            Ok(connected) => {
                socket = Some(connected);
                break;
            }
            Err(error) => last = Some(error),
        }
    }
    let socket = match (socket, last) {
        (Some(socket), _) => socket,
        (None, Some(error)) => return Err(unreachable(&error)),
        (None, None) => return Err(unreachable(&"the name has no address")),
    };
    tune(&socket, options).map_err(|error| unreachable(&error))?;
    let lost = |error: io::Error| match error.kind() {
        io::ErrorKind::InvalidData => Error::Refused(error.to_string()),
        io::ErrorKind::UnexpectedEof => Error::Refused("the host hung up during the handshake".to_owned()),
        _ => Error::Unreachable { address: address.to_owned(), reason: format!("during the handshake: {error}") },
    };
    socket.set_read_timeout(Some(HANDSHAKE_TIME_MAX)).map_err(lost)?;
    socket.set_write_timeout(Some(HANDSHAKE_TIME_MAX)).map_err(lost)?;
    let tls = match &options.tls {
        None => None,
        Some(tls) => {
            let mut session = tls.client(address)?;
            while session.is_handshaking() {
                session.complete_io(&mut &socket).map_err(lost)?;
            }
            Some(session)
        }
    };
    let pipe = Pipe::new(socket, tls);
    let mut nonce = [0; 32];
    base::rt::fill_random(&mut nonce);
    let hello = handshake::hello(&credential.name, &nonce)?;
    write_all(&pipe, &hello).map_err(lost)?;
    let challenge: [u8; CHALLENGE_BYTES] = read_exact(&pipe).map_err(lost)?;
    let binding = pipe.binding().map_err(lost)?;
    let (node, proof) = handshake::answer(&hello, &challenge, &binding, credential)?;
    write_all(&pipe, &proof).map_err(lost)?;
    let verdict: [u8; VERDICT_BYTES] = read_exact(&pipe).map_err(lost)?;
    handshake::verdict(&verdict)?;
    pipe.socket().set_nonblocking(true).map_err(lost)?;
    Ok(Connected { pipe, node, host: address.to_owned() })
}

/// A connection on which both sides have proved themselves.
pub struct Connected {
    pipe: Pipe,
    node: NodeId,
    host: String,
}

impl Connected {
    /// Makes an endpoint of it, with a task on the current runtime.
    pub fn endpoint(self, options: &TcpOptions) -> Endpoint {
        let client = Arc::new(Client {
            peer: Peer::new(self.pipe),
            node: self.node,
            name: self.host,
            options: options.clone(),
            posted: Mutex::new(Posted { in_flight: VecDeque::new(), next: 0, asked: 0, closed: false, lost: false }),
            input: Mutex::new(Input { buffer: ReadBuffer::new(), state: State::Header }),
            wanted: Notify::new(),
            spin: Spin::default(),
            closing: AtomicBool::new(false),
            receiver_asked: AtomicBool::new(false),
            partial: AtomicU64::new(0),
        });
        base::rt::spawn(attend(Attending(Arc::clone(&client))));
        Endpoint::new(Arc::new(Handle(client)))
    }
}

fn write_all(pipe: &Pipe, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = pipe.write(&[io::IoSlice::new(bytes)])?;
        bytes = &bytes[written..];
    }
    while pipe.push()? {}
    Ok(())
}

fn read_exact<const N: usize>(pipe: &Pipe) -> io::Result<[u8; N]> {
    let mut bytes = BytesMut::with_capacity(N);
    while bytes.len() < N {
        let missing = N - bytes.len();
        if read_to_end_of(&mut bytes, pipe, missing)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let mut all = [0; N];
    all.copy_from_slice(&bytes);
    Ok(all)
}

/// Waits for what nobody spins for, until the connection ends.
async fn attend(attending: Attending) {
    let client = &attending.0;
    loop {
        if base::rt::timeout(LOOK, client.wanted.notified()).await.is_err() {
            // Messages that nobody waits for must not fill the sockets for long: a host would take us for dead.
            let _ = client.pump();
        } else if client.attend_once().await.is_break() {
            break;
        }
    }
}

/// Ends the connection with the task that attends it, or with its runtime.
struct Attending(Arc<Client>);

impl Drop for Attending {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Client {
    fn posted(&self) -> MutexGuard<'_, Posted> {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn input(&self) -> MutexGuard<'_, Input> {
        self.input.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wants_write(&self) -> bool {
        !self.peer.outgoing().is_empty() || self.peer.pipe.wants_write()
    }

    /// Whether the task is to wait for something that comes in.
    fn wants_read(&self) -> bool {
        let (asked, next_reply) = {
            let posted = self.posted();
            (posted.asked, posted.in_flight.front().map(|pending| pending.sequence))
        };
        // A reply of which a part has come is not in flight any more. Nobody else reads while a connection ends.
        let verbs =
            next_reply.is_some_and(|next| next < asked) || (1..=asked).contains(&self.partial.load(Ordering::Acquire));
        let message = self.receiver_asked.load(Ordering::Acquire) && self.peer.is_awaited();
        // Credit for messages that wait comes in too.
        verbs || message || !self.peer.outgoing().is_done()
    }

    /// Has the task wait for what is in flight.
    fn ask(&self) {
        {
            let mut posted = self.posted();
            posted.asked = posted.next;
        }
        self.wanted.notify_one();
    }

    /// Waits on the socket as long as there is something to wait for.
    async fn attend_once(&self) -> std::ops::ControlFlow<()> {
        use std::ops::ControlFlow::{Break, Continue};
        let interest = Interest::READABLE | Interest::WRITABLE;
        // SAFETY: the descriptor belongs to `self.peer`, which is borrowed for longer than this value lives, and nothing
        // else closes it; `Descriptor` always gives the same.
        #[allow(unsafe_code)]
        let registered = unsafe { AsyncFd::register_with_interest(Descriptor(&self.peer.pipe), interest) };
        let Ok(descriptor) = registered else {
            self.fail();
            return Break(());
        };
        let mut until = None;
        loop {
            if self.posted().lost {
                return Break(());
            }
            if self.closing.load(Ordering::Acquire) {
                if until.is_none() && self.peer.outgoing().is_done() && !self.peer.pipe.wants_write() {
                    self.peer.pipe.finish();
                    until = Some(clock() + CLOSING_TIME_MAX);
                }
            } else if !self.wants_write() && !self.wants_read() {
                return Continue(());
            }
            let interest = if self.wants_write() { interest } else { Interest::READABLE };
            let progress = descriptor.async_io(interest, |_| self.pump());
            let wanted = self.wanted.notified();
            let either = first_of(progress, wanted);
            let outcome = match until {
                None => either.await,
                Some(until) => {
                    let left = until.saturating_duration_since(clock());
                    let Ok(outcome) = base::rt::timeout(left, either).await else { return Break(()) };
                    outcome
                }
            };
            if matches!(outcome, Some(Err(_))) {
                return Break(());
            }
        }
    }

    /// Writes and reads what can be; `WouldBlock` when neither changed what is waited for.
    fn pump(&self) -> io::Result<()> {
        let before = (self.wants_write(), self.wants_read());
        let read = self.take_in(&mut self.input(), &|| false)?;
        self.write_out()?;
        let wants = (self.wants_write(), self.wants_read());
        let rests = wants == (false, false) && !self.closing.load(Ordering::Acquire);
        if read || before != wants || rests || self.peer.outgoing().is_closed() {
            return Ok(());
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Writes the queue.
    fn write_out(&self) -> io::Result<Pumped> {
        let mut outgoing = self.peer.outgoing();
        if outgoing.is_empty() && self.peer.pipe.is_plain() {
            return Ok(Pumped { left: false, moved: false });
        }
        let pumped = outgoing.pump(&self.peer.pipe, usize::MAX);
        drop(outgoing);
        pumped.inspect_err(|_| self.fail())
    }

    fn write_out_or_ask(&self) {
        if let Ok(Pumped { left: true, .. }) = self.write_out() {
            self.wanted.notify_one();
        }
    }

    /// Reads and understands whatever is there, or less, as soon as `done`. True when that was something.
    fn take_in(&self, input: &mut Input, done: &dyn Fn() -> bool) -> io::Result<bool> {
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
                if !assembly.take(&mut input.buffer) {
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
            Kind::Message => {
                self.peer.admit(length)?;
                input.buffer.consume(HEADER_BYTES);
                input.state = State::Message(Assembly::new(length));
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

    /// The connection is lost: what is in flight is ambiguous.
    fn fail(&self) {
        let in_flight = {
            let mut posted = self.posted();
            (posted.closed, posted.lost) = (true, true);
            std::mem::take(&mut posted.in_flight)
        };
        self.peer.close();
        self.peer.pipe.cut();
        for pending in in_flight {
            pending.outcome.fail(&Error::Ambiguous("the connection was lost while the verb was in flight"));
        }
        self.wanted.notify_one();
    }

    /// Nobody waits for what is in flight any more; its replies are still taken in as they come.
    fn abandon(&self) {
        let mut posted = self.posted();
        posted.closed = true;
        let abandoned: Vec<Outcome> = posted
            .in_flight
            .iter_mut()
            .map(|pending| {
                let nobodys = pending.outcome.nobodys();
                std::mem::replace(&mut pending.outcome, nobodys)
            })
            .collect();
        drop(posted);
        for outcome in abandoned {
            outcome.fail(&Error::Ambiguous("the endpoint was closed while the verb was in flight"));
        }
    }

    /// As [`Client::fail`], for whatever has arrived of a read as well.
    fn end(&self) {
        self.fail();
        self.input().state = State::Header;
    }

    /// Queues a verb. Its outcome is that of `outcome`'s completion, unless it is refused here.
    fn post(
        &self,
        verb: &Verb,
        header: Header,
        parts: &[Bytes],
        counts: Option<usize>,
        outcome: impl FnOnce() -> Outcome,
    ) -> Result<(), Error> {
        let mut posted = self.posted();
        if posted.closed {
            return Err(Error::Closed);
        }
        if posted.in_flight.len() >= IN_FLIGHT_MAX {
            return Err(Error::Busy);
        }
        let sequence = posted.next;
        let mut head = [0; HEADER_BYTES + super::wire::VERB_BYTES];
        head[..HEADER_BYTES].copy_from_slice(&Header { sequence: sequence as u32, ..header }.encode());
        head[HEADER_BYTES..].copy_from_slice(&verb.encode());
        self.peer.outgoing().post(&head, parts, counts)?;
        posted.next = sequence + 1;
        posted.in_flight.push_back(Pending { sequence, outcome: outcome() });
        Ok(())
    }

    fn driver(self: &Arc<Self>) -> Arc<dyn Drive> {
        Arc::clone(self) as Arc<dyn Drive>
    }

    fn word(
        self: &Arc<Self>,
        kind: Kind,
        capability: &Capability,
        offset: u64,
        first: u64,
        second: u64,
    ) -> Completion<u64> {
        if !offset.is_multiple_of(WORD_BYTES as u64) {
            return Completion::ready(Err(Error::Misaligned(offset)));
        }
        let (completer, completion) = Completion::driven(self.driver());
        let verb = Verb { capability: *capability, offset, first, second };
        let header = Header::new(kind, 0, WORD_BYTES as u64);
        match self.post(&verb, header, &[], None, || Outcome::Word { offset, completer }) {
            Ok(()) => completion,
            Err(error) => Completion::ready(Err(error)),
        }
    }
}

impl Input {
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

impl Outcome {
    /// The same for nobody.
    fn nobodys(&self) -> Outcome {
        match *self {
            Outcome::Read { offset, length, .. } => {
                Outcome::Read { into: BytesMut::new(), offset, length, completer: Completion::pending().0 }
            }
            Outcome::Write { offset, length, .. } => {
                Outcome::Write { offset, length, completer: Completion::pending().0 }
            }
            Outcome::Word { offset, .. } => Outcome::Word { offset, completer: Completion::pending().0 },
        }
    }

    fn fail(self, error: &Error) {
        match self {
            Outcome::Read { completer, .. } => completer.complete(Err(error.clone())),
            Outcome::Write { completer, .. } => completer.complete(Err(error.clone())),
            Outcome::Word { completer, .. } => completer.complete(Err(error.clone())),
        }
    }
}

impl Client {
    /// Writes and reads for a short while, until `done`. False when it has given up before.
    fn work(&self, done: &dyn Fn() -> bool) -> bool {
        // The loss of the connection completes everything.
        let Ok(Pumped { mut left, mut moved }) = self.write_out() else { return true };
        // When spinning began, and until when it goes on; longer as long as something moves.
        let mut spun = None;
        let mut helped = false;
        let is_done = loop {
            // Whoever has the input reads for all.
            if let Ok(mut input) = self.input.try_lock() {
                match self.take_in(&mut input, done) {
                    Ok(any) => moved |= any,
                    Err(_) => return true,
                }
            }
            if done() {
                if spun.is_some() {
                    self.spin.succeeded();
                }
                break true;
            }
            match spun {
                None if self.options.spin.is_zero() || !self.spin.is_worth_it() => break false,
                None => {
                    let now = clock();
                    spun = Some((now, now + self.options.spin));
                }
                Some((began, until)) => {
                    let now = clock();
                    if moved && now - began < DRIVE_TIME_MAX {
                        helped = true;
                        spun = Some((began, now + self.options.spin));
                    } else if now >= until && !self.peer.is_being_taken(now) {
                        if !helped {
                            self.spin.failed();
                        }
                        break false;
                    } else {
                        std::hint::spin_loop();
                    }
                }
            }
            moved = false;
            if left {
                match self.write_out() {
                    Ok(pumped) => Pumped { left, moved } = pumped,
                    Err(_) => return true,
                }
            }
        };
        if left {
            self.wanted.notify_one();
        }
        is_done
    }
}

impl Drive for Client {
    fn drive(&self, done: &dyn Fn() -> bool) {
        if !self.work(done) {
            self.ask();
        }
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

/// The socket as the reactor wants it.
struct Descriptor<'a>(&'a Pipe);

impl std::os::fd::AsRawFd for Descriptor<'_> {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.socket().as_raw_fd()
    }
}

/// `Some` of the first future's output, or `None` when the second completes before it.
async fn first_of<T>(first: impl Future<Output = T>, second: impl Future<Output = ()>) -> Option<T> {
    let (mut first, mut second) = (std::pin::pin!(first), std::pin::pin!(second));
    std::future::poll_fn(|cx| match first.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => second.as_mut().poll(cx).map(|()| None),
    })
    .await
}

/// The bytes of all parts.
pub fn total(parts: &[Bytes], most: usize) -> Result<usize, Error> {
    if parts.len() > PARTS_MAX {
        return Err(Error::TooLarge(parts.len()));
    }
    let length = parts.iter().map(Bytes::len).sum();
    if length > most { Err(Error::TooLarge(length)) } else { Ok(length) }
}

impl Connection for Handle {
    fn node(&self) -> NodeId {
        self.0.node
    }

    fn name(&self) -> &str {
        &self.0.name
    }

    fn profile(&self) -> crate::Profile {
        PROFILE
    }

    fn read(&self, capability: &Capability, offset: u64, length: usize, into: BytesMut) -> Completion<BytesMut> {
        if length > TRANSFER_BYTES_MAX {
            return Completion::ready(Err(Error::TooLarge(length)));
        }
        let (completer, completion) = Completion::driven(self.0.driver());
        let verb = Verb { capability: *capability, offset, first: 0, second: 0 };
        let header = Header::new(Kind::Read, 0, length as u64);
        match self.0.post(&verb, header, &[], None, || Outcome::Read { into, offset, length, completer }) {
            Ok(()) => completion,
            Err(error) => Completion::ready(Err(error)),
        }
    }

    fn write(&self, capability: &Capability, offset: u64, parts: &[Bytes], immediate: Option<u32>) -> Completion<()> {
        let length = match total(parts, TRANSFER_BYTES_MAX) {
            Ok(length) => length as u64,
            Err(error) => return Completion::ready(Err(error)),
        };
        let (completer, completion) = Completion::driven(self.0.driver());
        let verb = Verb { capability: *capability, offset, first: immediate.unwrap_or(0).into(), second: 0 };
        let kind = if immediate.is_some() { Kind::WriteWithImmediate } else { Kind::Write };
        let outcome = || Outcome::Write { offset, length, completer };
        match self.0.post(&verb, Header::new(kind, 0, length), parts, immediate.map(|_| 0), outcome) {
            Ok(()) => completion,
            Err(error) => Completion::ready(Err(error)),
        }
    }

    fn compare_swap(&self, capability: &Capability, offset: u64, expected: u64, new: u64) -> Completion<u64> {
        self.0.word(Kind::CompareSwap, capability, offset, expected, new)
    }

    fn fetch_add(&self, capability: &Capability, offset: u64, add: u64) -> Completion<u64> {
        self.0.word(Kind::FetchAdd, capability, offset, add, 0)
    }

    fn send(&self, parts: &[Bytes]) -> Completion<()> {
        let length = match total(parts, MESSAGE_BYTES_MAX) {
            Ok(length) => length,
            Err(error) => return Completion::ready(Err(error)),
        };
        let completion = self.0.peer.outgoing().post_message(parts, length);
        self.0.write_out_or_ask();
        if !self.0.peer.outgoing().is_done() {
            self.0.wanted.notify_one();
        }
        completion
    }

    fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<Result<Incoming, Error>> {
        let mut polled = self.0.peer.poll_receive(cx);
        if polled.is_pending() {
            self.0.receiver_asked.store(false, Ordering::Release);
            if !self.0.work(&|| !self.0.peer.is_awaited()) {
                self.0.receiver_asked.store(true, Ordering::Release);
                self.0.wanted.notify_one();
            }
            polled = self.0.peer.poll_receive(cx);
        }
        match std::task::ready!(polled) {
            Ok((incoming, credit)) => {
                if credit {
                    self.0.write_out_or_ask();
                }
                Poll::Ready(Ok(incoming))
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    fn flush(&self) {
        self.0.write_out_or_ask();
    }

    fn close(&self) {
        self.0.abandon();
        self.0.peer.outgoing().end();
        self.0.peer.end_inbox();
        let _ = self.0.write_out();
        self.0.closing.store(true, Ordering::Release);
        self.0.wanted.notify_one();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // What is in flight completes as it would, or with the connection.
        let _ = self.0.write_out();
        self.0.closing.store(true, Ordering::Release);
        self.0.wanted.notify_one();
    }
}
