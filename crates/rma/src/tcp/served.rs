//! A connection as the progress thread serves it: its handshake, its verbs and its messages.
//!
//! Until it proves its name, a connection is unauthenticated, and its buffer holds only a handshake. A rejected connection ends
//! when the answer is written.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use base::admission::{AdmissionPermit, Principal};
use base::rt::channel::Sender;
use rustix::event::epoll;
use rustix::fd::OwnedFd;

use super::accepted::AcceptedConnection;
use super::arrival::FrameArrival;
use super::assembly::MessageAssembly;
use super::budget::NameBudget;
use super::handshake::{
    self, CHALLENGE_BYTES, HELLO_BYTES, HelloResponse, PROOF_BYTES, PendingChallenge, VERDICT_BYTES,
};
use super::host_core::HostCore;
use super::inbox::SMALL_BYTES_MAX;
use super::landing::{WritePayload, reject};
use super::memory::VerbRejection;
use super::outgoing::RegionRead;
use super::peer::{ConnectionQueues, TURN_BYTES_MAX, header_of};
use super::pipe::{FillProgress, ReadBuffer};
use super::spin::AdaptiveSpin;
use super::wire::{FrameHeader, FrameKind, HEADER_BYTES, VERB_BYTES, VerbFrame, VerbStatus};
use super::{HANDSHAKE_TIMEOUT, clock};
use crate::{Endpoint, Error, IncomingEvent, Rights, WORD_BYTES};

/// A reply to a read of at most this size is copied and sent with other replies; a longer one is written straight from the
/// region.
const COPIED_BYTES_MAX: usize = 64 << 10;
/// If more than this is missing of a payload, it is received into the region without a copy.
const DIRECT_BYTES_MIN: usize = 16 << 10;
/// Times that a connection is read before the others have their turn.
const TURN_READS_MAX: usize = 32;
/// How long a rejected connection may take to receive the answer.
const REJECTION_TIMEOUT: Duration = Duration::from_secs(1);

pub struct ServedConnection {
    pub peer: Arc<ConnectionQueues>,
    shared: Arc<HostCore>,
    /// Its entry in the admission accounts.
    pub admitted: Arc<AdmissionPermit>,
    /// The name that it proved; empty until then.
    pub name: Arc<str>,
    /// The budget of its name, once that is proved.
    pub budget: Option<Arc<NameBudget>>,
    buffer: ReadBuffer,
    state: ReceiveState,
    interest: epoll::EventFlags,
    /// When the connection is dropped, unless its current step completes first.
    pub deadline: Option<Instant>,
    /// A partly received frame.
    arrival: Option<FrameArrival>,
    /// Bytes received so far.
    received: u64,
    pub dropped: Arc<AtomicBool>,
    /// The connection ends once its queue is written.
    pub closing: bool,
    /// We have announced that we send no more.
    finished: bool,
    /// Whether it is in the list of unfinished connections.
    pub unfinished: bool,
    /// Bytes were read but not executed, because the connection was crowded or waits.
    held_back: bool,
    /// The connection is not read until the application has taken messages of its name.
    pub waits: bool,
    /// An executed frame may have put something into the queue.
    pushed: bool,
    /// Something was left to write after the last turn.
    left: bool,
}

enum ReceiveState {
    Hello,
    Proof(Box<PendingChallenge>),
    Header,
    /// Receives the payload of a write.
    Payload(Box<WritePayload>),
    Message(MessageAssembly),
    /// The client failed to authenticate; the connection ends when the answer is written.
    Refused,
}

/// The outcome of a turn.
#[derive(PartialEq, Eq)]
pub enum TurnOutcome {
    /// Nothing changed: there was nothing to write and nothing more to read.
    Nothing,
    /// Nothing is left that a socket event would not announce.
    Idle,
    /// The turn is over, and there may be more to do without a socket event.
    Unfinished,
    Over,
}

/// The outcome of one step.
#[derive(PartialEq, Eq)]
enum ReceiveStep {
    Done,
    /// No more bytes have arrived.
    Nothing,
    /// Its replies must be written first, or messages of its name be taken.
    Crowded,
}

/// The thread's part of an admission: the accept queue, and the number of the connection.
pub struct TurnContext<'a> {
    pub accepted: &'a Sender<Endpoint>,
    pub connection: u64,
}

impl ServedConnection {
    /// A connection that was just accepted.
    pub fn new(peer: Arc<ConnectionQueues>, shared: &Arc<HostCore>, admitted: AdmissionPermit) -> ServedConnection {
        let deadline = clock() + HANDSHAKE_TIMEOUT;
        ServedConnection {
            peer,
            shared: Arc::clone(shared),
            admitted: Arc::new(admitted),
            name: Arc::from(""),
            budget: None,
            buffer: ReadBuffer::for_handshake(),
            state: ReceiveState::Hello,
            interest: epoll::EventFlags::IN,
            deadline: Some(deadline),
            arrival: None,
            received: 0,
            dropped: Arc::new(AtomicBool::new(false)),
            closing: false,
            finished: false,
            unfinished: false,
            held_back: false,
            waits: false,
            pushed: false,
            left: false,
        }
    }

    /// Whether it must give way to another connection.
    pub fn is_displaced(&self) -> bool {
        self.admitted.displaced().is_cancelled()
    }

    /// Whether it must be checked without a socket event: it is unauthenticated, it is closing, or a frame of it is incomplete.
    pub fn is_timed(&self) -> bool {
        self.deadline.is_some() || self.arrival.is_some()
    }

    pub fn is_overdue(&self, now: Instant) -> bool {
        let pause_max = self.shared.options.pause_max;
        self.deadline.is_some_and(|deadline| deadline <= now)
            || self.arrival.is_some_and(|arrival| arrival.is_overdue(now, pause_max))
    }

    /// Records after a turn whether a frame is incomplete. Returns whether that is new.
    pub fn track_arrival(&mut self) -> bool {
        let begun = match &self.state {
            // Bytes that were read and held back wait for us, not for the client.
            ReceiveState::Header => !self.buffer.filled().is_empty() && !self.held_back,
            ReceiveState::Payload(_) | ReceiveState::Message(_) => !self.held_back,
            // These states have a deadline.
            ReceiveState::Hello | ReceiveState::Proof(_) | ReceiveState::Refused => false,
        };
        match (&mut self.arrival, begun) {
            (None, false) => false,
            (Some(arrival), true) => {
                arrival.extend(clock(), self.received);
                false
            }
            (arrival, begun) => {
                *arrival = begun.then(|| FrameArrival::start(clock(), self.received));
                begun
            }
        }
    }

    pub fn is_unauthenticated(&self) -> bool {
        matches!(self.state, ReceiveState::Hello | ReceiveState::Proof(_) | ReceiveState::Refused)
    }

    /// Sets the socket events that the connection waits for. An unfinished connection that is not read until its replies are
    /// written waits for that event as well, and is idle until then. So is a connection that waits in the queue of its name's
    /// budget.
    pub fn watch(&mut self, epoll: &OwnedFd, connection: u64, turn: TurnOutcome) -> io::Result<TurnOutcome> {
        // Both under one lock: an endpoint may write the whole queue at any time, and a connection that is neither read nor
        // waits to write would never be served again.
        let outgoing = self.peer.outgoing();
        let (crowded, empty) = (outgoing.is_crowded(), outgoing.is_empty());
        drop(outgoing);
        self.left = !empty || self.peer.pipe.wants_write();
        let mut interest = epoll::EventFlags::empty();
        let stopped = crowded || self.waits;
        interest.set(epoll::EventFlags::IN, !stopped);
        interest.set(epoll::EventFlags::OUT, self.left);
        if interest != self.interest {
            epoll::modify(epoll, &self.peer.pipe, epoll::EventData::new_u64(connection), interest)?;
            self.interest = interest;
        }
        Ok(if stopped { TurnOutcome::Idle } else { turn })
    }

    /// Reads, executes and replies, until nothing is left or the others are to have their turn.
    pub fn turn(&mut self, door: &TurnContext<'_>, asked: bool, any: &mut bool) -> TurnOutcome {
        self.waits = false;
        // An endpoint waits for it.
        if asked && !self.write_out(any) {
            return TurnOutcome::Over;
        }
        let mut turn = TurnOutcome::Unfinished;
        for _ in 0..TURN_READS_MAX {
            match self.step(door, any) {
                Ok(ReceiveStep::Done) => {}
                Ok(ReceiveStep::Crowded) => break,
                Ok(ReceiveStep::Nothing) => {
                    turn = TurnOutcome::Idle;
                    break;
                }
                // The reason does not matter here: the other end hung up or sent an invalid frame.
                Err(_) => {
                    turn = TurnOutcome::Over;
                    break;
                }
            }
        }
        // Neither a poll that finds nothing nor an incoming message may wait for the queue's lock, which an endpoint holds
        // while it writes: waiting for a lock means sleeping, and waking up takes longer than a round trip.
        let is_read = self.interest.contains(epoll::EventFlags::IN);
        let may_write = self.pushed || self.left || self.closing || !is_read || !self.peer.pipe.is_plain();
        if turn == TurnOutcome::Idle && !may_write {
            return if asked { TurnOutcome::Idle } else { TurnOutcome::Nothing };
        }
        if self.write_out(any) { turn } else { TurnOutcome::Over }
    }

    /// Writes the queue. Returns false when the connection is over.
    fn write_out(&mut self, any: &mut bool) -> bool {
        self.pushed = false;
        let mut outgoing = self.peer.outgoing();
        let closed = outgoing.is_closed();
        let pumped = outgoing.pump(&self.peer.pipe, TURN_BYTES_MAX);
        let done = outgoing.is_done();
        drop(outgoing);
        match pumped {
            Ok(pumped) if !closed => *any |= pumped.moved,
            _ => return false,
        }
        if self.closing && done && !self.peer.pipe.wants_write() && !self.finished {
            self.peer.pipe.finish();
            self.finished = true;
        }
        !(self.finished && matches!(self.state, ReceiveState::Refused))
    }

    /// Executes what was read before, then reads once.
    fn step(&mut self, door: &TurnContext<'_>, any: &mut bool) -> io::Result<ReceiveStep> {
        // Bytes that were read were executed at that time, unless the connection was crowded.
        if (self.held_back || self.left) && self.carry_out(door, any)? == ReceiveStep::Crowded {
            return Ok(ReceiveStep::Crowded);
        }
        if matches!(self.state, ReceiveState::Message(_)) && self.waits_for_space(door, usize::MAX) {
            return Ok(ReceiveStep::Crowded);
        }
        let pipe = &self.peer.pipe;
        let some = |bytes: usize| FillProgress { bytes, drained: false };
        let read = match &mut self.state {
            ReceiveState::Payload(payload) => {
                let missing = payload.missing();
                let buffered = self.buffer.filled().len();
                let direct = payload.target.is_ok() && missing > DIRECT_BYTES_MIN && pipe.is_plain();
                if direct && buffered == 0 {
                    match payload.receive(pipe)? {
                        // Less than a word has arrived: read it through the buffer, and no more than that.
                        0 => self.buffer.fill(pipe, payload.to_boundary()),
                        received => Ok(some(received)),
                    }
                } else if direct && buffered < WORD_BYTES {
                    let limit = payload.to_boundary().saturating_sub(buffered).max(1);
                    self.buffer.fill(pipe, limit)
                } else {
                    self.buffer.fill(pipe, usize::MAX)
                }
            }
            ReceiveState::Message(assembly) if !assembly.is_whole() && self.buffer.filled().is_empty() => {
                assembly.read(pipe).map(some)
            }
            _ => self.buffer.fill(pipe, usize::MAX),
        };
        match read {
            Ok(FillProgress { bytes: 0, .. }) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(FillProgress { bytes, drained }) => {
                self.received = self.received.wrapping_add(bytes as u64);
                *any = true;
                // If no more bytes were there, the replies are written at once: a client that waits for them sends nothing
                // before.
                let step = self.carry_out(door, any)?;
                Ok(if step == ReceiveStep::Nothing && !drained { ReceiveStep::Done } else { step })
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(ReceiveStep::Nothing),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(ReceiveStep::Done),
            Err(error) => Err(error),
        }
    }

    /// Executes the frames in the buffer.
    fn carry_out(&mut self, door: &TurnContext<'_>, any: &mut bool) -> io::Result<ReceiveStep> {
        loop {
            self.held_back = (self.pushed || self.left) && self.peer.outgoing().is_crowded();
            if self.held_back {
                return Ok(ReceiveStep::Crowded);
            }
            match self.understand(door) {
                Ok(ReceiveStep::Done) => *any = true,
                Ok(step) => return Ok(step),
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            }
        }
    }

    /// Whether the next piece of a message of `length` bytes must wait until other messages of its name are taken.
    fn waits_for_space(&mut self, door: &TurnContext<'_>, length: usize) -> bool {
        let Some(budget) = &self.budget else { return false };
        if !budget.is_full() || self.peer.takes_regardless(length) || !budget.wait(door.connection) {
            return false;
        }
        // A receiver that started to wait before it could see this connection in the queue does not ask for it.
        if self.peer.takes_regardless(length) {
            budget.leave(door.connection);
            return false;
        }
        (self.waits, self.held_back) = (true, true);
        true
    }

    /// Takes the next item off the buffer. `Nothing` when more bytes are needed.
    fn understand(&mut self, door: &TurnContext<'_>) -> Result<ReceiveStep, Error> {
        if matches!(self.state, ReceiveState::Message(_)) && self.waits_for_space(door, usize::MAX) {
            return Ok(ReceiveStep::Crowded);
        }
        self.pushed |= !matches!(self.state, ReceiveState::Header | ReceiveState::Message(_));
        match &mut self.state {
            ReceiveState::Hello => {
                let Some(hello) = self.buffer.filled().first_chunk::<HELLO_BYTES>() else {
                    return Ok(ReceiveStep::Nothing);
                };
                let mut nonce = [0; 32];
                base::rt::fill_random(&mut nonce);
                let binding = self.peer.pipe.binding().map_err(|_| Error::Malformed("no TLS session"))?;
                let tokens = &self.shared.tokens;
                let made = handshake::challenge(hello, self.shared.node, nonce, binding, |name| tokens(name));
                self.buffer.consume(HELLO_BYTES);
                let (answered, answer): (HelloResponse, [u8; CHALLENGE_BYTES]) = made?;
                self.peer.outgoing().push_copied(&answer);
                match answered {
                    HelloResponse::Challenged(challenged) => self.state = ReceiveState::Proof(challenged),
                    HelloResponse::OtherVersions => self.reject(),
                }
                Ok(ReceiveStep::Done)
            }
            ReceiveState::Proof(challenged) => {
                let Some(proof) = self.buffer.filled().first_chunk::<PROOF_BYTES>() else {
                    return Ok(ReceiveStep::Nothing);
                };
                let verdict = match challenged.check(proof) {
                    false => handshake::REJECTED,
                    true if door.accepted.free_capacity() == 0 => handshake::CROWDED,
                    true => handshake::WELCOME,
                };
                let name: Arc<str> = challenged.name.as_str().into();
                self.buffer.consume(PROOF_BYTES);
                let mut answer = [0; VERDICT_BYTES];
                answer[..4].copy_from_slice(&verdict.to_le_bytes());
                self.peer.outgoing().push_copied(&answer);
                if verdict != handshake::WELCOME {
                    self.reject();
                    return Ok(ReceiveStep::Done);
                }
                // Do this before anything more is read: there is no budget for unfinished messages of an unauthenticated
                // connection.
                self.admitted.authenticate(Principal { organization: Arc::clone(&name), identity: Arc::clone(&name) });
                self.buffer.widen();
                self.state = ReceiveState::Header;
                self.deadline = None;
                self.name = Arc::clone(&name);
                let budget = self.shared.budget_of(&name);
                self.peer.set_budget(&budget);
                self.budget = Some(budget);
                let endpoint = Endpoint::new(Arc::new(AcceptedConnection {
                    peer: Arc::clone(&self.peer),
                    shared: Arc::clone(&self.shared),
                    connection: door.connection,
                    name,
                    dropped: Arc::clone(&self.dropped),
                    spin: AdaptiveSpin::default(),
                }));
                // There was space, and nothing else fills the queue. If the host has gone, the endpoint closes here.
                let _ = door.accepted.try_send(endpoint);
                Ok(ReceiveStep::Done)
            }
            ReceiveState::Header => self.start_frame(door),
            ReceiveState::Payload(payload) => {
                payload.land(&mut self.buffer);
                if payload.missing() > 0 {
                    return Ok(ReceiveStep::Nothing);
                }
                payload.finish(&self.peer);
                self.state = ReceiveState::Header;
                Ok(ReceiveStep::Done)
            }
            ReceiveState::Message(assembly) => {
                if !assembly.take(&mut self.buffer)? {
                    return Ok(ReceiveStep::Nothing);
                }
                if let ReceiveState::Message(assembly) = std::mem::replace(&mut self.state, ReceiveState::Header) {
                    self.peer.deliver(IncomingEvent::Message(assembly.finish()));
                }
                Ok(ReceiveStep::Done)
            }
            ReceiveState::Refused => {
                let waste = self.buffer.filled().len();
                self.buffer.consume(waste);
                Ok(ReceiveStep::Nothing)
            }
        }
    }

    /// Ends a connection that failed to authenticate. The answer that says so is in the queue.
    fn reject(&mut self) {
        self.state = ReceiveState::Refused;
        self.closing = true;
        self.deadline = Some(clock() + REJECTION_TIMEOUT);
    }

    /// Starts the next frame, and finishes it if it is short.
    fn start_frame(&mut self, door: &TurnContext<'_>) -> Result<ReceiveStep, Error> {
        let Some(header) = header_of(self.buffer.filled()) else { return Ok(ReceiveStep::Nothing) };
        let header = header?;
        let length = header.length as usize;
        self.pushed |= header.kind != FrameKind::Message;
        match header.kind {
            FrameKind::Message if length <= SMALL_BYTES_MAX => {
                let frame = HEADER_BYTES..HEADER_BYTES + length;
                if self.buffer.filled().len() >= frame.end && self.waits_for_space(door, length) {
                    return Ok(ReceiveStep::Crowded);
                }
                let Some(bytes) = self.buffer.filled().get(frame.clone()) else { return Ok(ReceiveStep::Nothing) };
                self.peer.deliver_small(bytes)?;
                self.buffer.consume(frame.end);
                return Ok(ReceiveStep::Done);
            }
            FrameKind::Message => {
                if self.waits_for_space(door, length) {
                    return Ok(ReceiveStep::Crowded);
                }
                self.peer.admit(length)?;
                self.buffer.consume(HEADER_BYTES);
                self.state = ReceiveState::Message(MessageAssembly::new(length, Some(Arc::clone(&self.admitted)))?);
                return Ok(ReceiveStep::Done);
            }
            FrameKind::Credit => {
                self.buffer.consume(HEADER_BYTES);
                self.peer.outgoing().credit(header.sequence as usize, header.length)?;
                return Ok(ReceiveStep::Done);
            }
            kind if !kind.is_verb() => return Err(Error::Malformed("a frame that only a host sends")),
            _ => {}
        }
        let Some(verb) = self.buffer.filled()[HEADER_BYTES..].first_chunk::<VERB_BYTES>() else {
            return Ok(ReceiveStep::Nothing);
        };
        let verb = VerbFrame::decode(verb)?;
        if header.kind == FrameKind::WriteWithImmediate && self.waits_for_space(door, 0) {
            return Ok(ReceiveStep::Crowded);
        }
        self.buffer.consume(HEADER_BYTES + VERB_BYTES);
        match header.kind {
            FrameKind::Read => self.read(&header, &verb),
            FrameKind::CompareSwap | FrameKind::FetchAdd => self.word(&header, &verb),
            kind => {
                if kind == FrameKind::WriteWithImmediate {
                    self.peer.admit(0)?;
                }
                let payload = WritePayload::new(&self.shared.regions, &self.name, &header, &verb)?;
                self.state = ReceiveState::Payload(Box::new(payload));
            }
        }
        Ok(ReceiveStep::Done)
    }

    fn read(&mut self, header: &FrameHeader, verb: &VerbFrame) {
        let length = header.length as usize;
        let found = self.shared.regions.find(&verb.capability);
        // Lock the queue before the region: the writer of the queue locks in this order.
        let mut outgoing = self.peer.outgoing();
        let opened = found.and_then(|region| {
            let mut opened = region.open(&verb.capability, &self.name, Rights::READ, verb.offset, header.length)?;
            if length <= COPIED_BYTES_MAX {
                outgoing.push_copied(&FrameHeader::new(FrameKind::Reply, header.sequence, header.length).encode());
                outgoing.push_copied(opened.bytes());
                return Ok(None);
            }
            let offset = opened.offset();
            drop(opened);
            Ok(Some((region, offset)))
        });
        match opened {
            Ok(None) => {}
            Ok(Some((region, offset))) => {
                outgoing.push_copied(&FrameHeader::new(FrameKind::LongReply, header.sequence, header.length).encode());
                outgoing.push_region(RegionRead {
                    region,
                    capability: verb.capability,
                    holder: Arc::clone(&self.name),
                    offset,
                    remaining: length,
                    word: [0; WORD_BYTES],
                    word_bytes: 0,
                    status: VerbStatus::Done,
                });
            }
            Err(refusal) => reject(&mut outgoing, header.sequence, refusal),
        }
    }

    fn word(&mut self, header: &FrameHeader, verb: &VerbFrame) {
        let found = match verb.offset.unchecked().is_multiple_of(WORD_BYTES as u64) {
            true => self.shared.regions.find(&verb.capability),
            false => Err(VerbRejection::of(VerbStatus::Misaligned)),
        };
        let done = found.and_then(|region| {
            let (capability, length) = (&verb.capability, WORD_BYTES as u64);
            let mut opened = region.open(capability, &self.name, Rights::ATOMIC, verb.offset, length)?;
            let before = opened.word();
            match header.kind {
                FrameKind::CompareSwap if before == verb.first => opened.set_word(verb.second),
                FrameKind::CompareSwap => {}
                _ => opened.set_word(before.wrapping_add(verb.first)),
            }
            Ok(before)
        });
        let mut outgoing = self.peer.outgoing();
        match done {
            Ok(before) => {
                outgoing.push_copied(&FrameHeader::new(FrameKind::Reply, header.sequence, WORD_BYTES as u64).encode());
                outgoing.push_copied(&before.to_le_bytes());
            }
            Err(refusal) => reject(&mut outgoing, header.sequence, refusal),
        }
    }
}
