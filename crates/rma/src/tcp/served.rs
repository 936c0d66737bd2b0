//! A connection as the progress thread serves it: its handshake, its verbs and its messages.
//!
//! Until its name is proven a connection is a stranger's: its buffer has room for the handshake and no more, and one that
//! was refused is over when its answer is written.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use base::admission::{Admitted, Principal};
use base::rt::channel::Sender;
use rustix::event::epoll;
use rustix::fd::OwnedFd;

use super::arrival::Arrival;
use super::budget::NameBudget;
use super::handshake::{self, Answered, CHALLENGE_BYTES, Challenged, HELLO_BYTES, PROOF_BYTES, VERDICT_BYTES};
use super::host::{Accepted, Shared};
use super::landing::{Payload, refuse};
use super::memory::Refusal;
use super::peer::{Assembly, Peer, RegionRead, SMALL_BYTES_MAX, TURN_BYTES_MAX, header_of};
use super::pipe::{Filled, ReadBuffer};
use super::spin::Spin;
use super::wire::{HEADER_BYTES, Header, Kind, Status, VERB_BYTES, Verb};
use super::{HANDSHAKE_TIME_MAX, clock};
use crate::{Endpoint, Error, Incoming, Rights, WORD_BYTES};

/// Bytes of a read that are copied to go out with other replies; longer ones go out of the region itself.
const COPIED_BYTES_MAX: usize = 64 << 10;
/// A payload of which more than this is missing lands in the region without a copy.
const DIRECT_BYTES_MIN: usize = 16 << 10;
/// Times that a connection is read before the others have their turn.
const TURN_READS_MAX: usize = 32;
/// A connection that was refused has taken its answer by then, or never learns it.
const REFUSAL_TIME_MAX: Duration = Duration::from_secs(1);

pub struct Served {
    pub peer: Arc<Peer>,
    shared: Arc<Shared>,
    /// Its place in the accounts.
    pub admitted: Arc<Admitted>,
    /// Who it belongs to; of no characters until that is proven.
    pub name: Arc<str>,
    /// Of its name, once that is proven.
    pub budget: Option<Arc<NameBudget>>,
    buffer: ReadBuffer,
    state: State,
    interest: epoll::EventFlags,
    /// When it is dropped, unless it gets beyond what it is at.
    pub deadline: Option<Instant>,
    /// A frame of which only a part has come.
    arrival: Option<Arrival>,
    /// Bytes that have come so far.
    received: u64,
    pub dropped: Arc<AtomicBool>,
    /// It ends once what is to go out is out.
    pub closing: bool,
    /// Our side has said that it sends no more.
    finished: bool,
    /// It is among the unfinished ones.
    pub unfinished: bool,
    /// Bytes were read and not carried out, because it was crowded or waits.
    held_back: bool,
    /// It is not read until messages of its name were taken.
    pub waits: bool,
    /// What was carried out may have put something into the queue.
    pushed: bool,
    /// Something waited to go out after the last turn.
    left: bool,
}

enum State {
    Hello,
    Proof(Box<Challenged>),
    Header,
    /// The payload of a write lands.
    Payload(Box<Payload>),
    Message(Assembly),
    /// It did not prove itself, and ends when it has been told.
    Refused,
}

/// Whether a connection goes on.
#[derive(PartialEq, Eq)]
pub enum Turn {
    /// As before the turn, there is nothing to write, and nothing more was there to be read.
    Nothing,
    /// Nothing more is there that its socket would not tell of.
    Idle,
    /// It had its turn, and there may be more on this side of the socket.
    Unfinished,
    Over,
}

/// What a connection could do.
#[derive(PartialEq, Eq)]
enum Step {
    Done,
    /// Nothing more has come.
    Nothing,
    /// Its replies must go out first, or messages of its name be taken.
    Crowded,
}

/// What a connection needs of the thread.
pub struct Door<'a> {
    pub accepted: &'a Sender<Endpoint>,
    pub connection: u64,
}

impl Served {
    /// A connection that was accepted just now.
    pub fn new(peer: Arc<Peer>, shared: &Arc<Shared>, admitted: Admitted) -> Served {
        let deadline = clock() + HANDSHAKE_TIME_MAX;
        Served {
            peer,
            shared: Arc::clone(shared),
            admitted: Arc::new(admitted),
            name: Arc::from(""),
            budget: None,
            buffer: ReadBuffer::for_handshake(),
            state: State::Hello,
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

    /// Whether it is to make room for another.
    pub fn is_displaced(&self) -> bool {
        self.admitted.displaced().is_stopped()
    }

    /// Whether it has to be looked at again while nothing comes of it: it is a stranger, it closes, or a frame of it is not whole.
    pub fn is_timed(&self) -> bool {
        self.deadline.is_some() || self.arrival.is_some()
    }

    pub fn is_overdue(&self, now: Instant) -> bool {
        let pause_max = self.shared.options.pause_max;
        self.deadline.is_some_and(|deadline| deadline <= now)
            || self.arrival.is_some_and(|arrival| arrival.is_overdue(now, pause_max))
    }

    /// Notes after a turn whether a frame is not whole. True when that is new.
    pub fn note_arrival(&mut self) -> bool {
        let begun = match &self.state {
            // What was read and held back is ours to carry out.
            State::Header => !self.buffer.filled().is_empty() && !self.held_back,
            State::Payload(_) | State::Message(_) => !self.held_back,
            // These have a deadline.
            State::Hello | State::Proof(_) | State::Refused => false,
        };
        match (&mut self.arrival, begun) {
            (None, false) => false,
            (Some(arrival), true) => {
                arrival.go_on(clock(), self.received);
                false
            }
            (arrival, begun) => {
                *arrival = begun.then(|| Arrival::begin(clock(), self.received));
                begun
            }
        }
    }

    pub fn is_stranger(&self) -> bool {
        matches!(self.state, State::Hello | State::Proof(_) | State::Refused)
    }

    /// Asks to be told when what it waits for is there. An unfinished connection that is not read until its replies are
    /// out waits for that as well, and is idle until then. So is one that waits in the queue of its name's budget.
    pub fn watch(&mut self, epoll: &OwnedFd, connection: u64, turn: Turn) -> io::Result<Turn> {
        // Both under one lock: an endpoint may write the queue out at any time, and a connection that is neither read nor
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
        Ok(if stopped { Turn::Idle } else { turn })
    }

    /// Reads, carries out and replies, until nothing is left or the others are to have their turn.
    pub fn turn(&mut self, door: &Door<'_>, asked: bool, any: &mut bool) -> Turn {
        self.waits = false;
        // Somebody waits for it.
        if asked && !self.write_out(any) {
            return Turn::Over;
        }
        let mut turn = Turn::Unfinished;
        for _ in 0..TURN_READS_MAX {
            match self.step(door, any) {
                Ok(Step::Done) => {}
                Ok(Step::Crowded) => break,
                Ok(Step::Nothing) => {
                    turn = Turn::Idle;
                    break;
                }
                // The reason is the other side's business: it hung up, or sent what is no frame.
                Err(_) => {
                    turn = Turn::Over;
                    break;
                }
            }
        }
        // Neither a look that finds nothing nor a message that came in must wait for the queue, which an endpoint locks
        // while it writes: whoever waits for a lock sleeps, and being woken takes longer than a round trip.
        let is_read = self.interest.contains(epoll::EventFlags::IN);
        let may_write = self.pushed || self.left || self.closing || !is_read || !self.peer.pipe.is_plain();
        if turn == Turn::Idle && !may_write {
            return if asked { Turn::Idle } else { Turn::Nothing };
        }
        if self.write_out(any) { turn } else { Turn::Over }
    }

    /// Writes the queue. False when the connection is over.
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
        !(self.finished && matches!(self.state, State::Refused))
    }

    /// Carries out what is there, then reads once.
    fn step(&mut self, door: &Door<'_>, any: &mut bool) -> io::Result<Step> {
        // Whatever was read was carried out then, unless it was crowded.
        if (self.held_back || self.left) && self.carry_out(door, any)? == Step::Crowded {
            return Ok(Step::Crowded);
        }
        if matches!(self.state, State::Message(_)) && self.waits_for_room(door, usize::MAX) {
            return Ok(Step::Crowded);
        }
        let pipe = &self.peer.pipe;
        let some = |bytes: usize| Filled { bytes, drained: false };
        let read = match &mut self.state {
            State::Payload(payload) => {
                let missing = payload.missing();
                let buffered = self.buffer.filled().len();
                let direct = payload.target.is_ok() && missing > DIRECT_BYTES_MIN && pipe.is_plain();
                if direct && buffered == 0 {
                    match payload.receive(pipe)? {
                        // Less than a word is there: through the buffer, no more than that.
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
            State::Message(assembly) if !assembly.is_whole() && self.buffer.filled().is_empty() => {
                assembly.read(pipe).map(some)
            }
            _ => self.buffer.fill(pipe, usize::MAX),
        };
        match read {
            Ok(Filled { bytes: 0, .. }) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(Filled { bytes, drained }) => {
                self.received = self.received.wrapping_add(bytes as u64);
                *any = true;
                // Where nothing more was there the replies go out at once: whoever waits for them sends nothing before.
                let step = self.carry_out(door, any)?;
                Ok(if step == Step::Nothing && !drained { Step::Done } else { step })
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Step::Nothing),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Step::Done),
            Err(error) => Err(error),
        }
    }

    /// Carries out what was read.
    fn carry_out(&mut self, door: &Door<'_>, any: &mut bool) -> io::Result<Step> {
        loop {
            self.held_back = (self.pushed || self.left) && self.peer.outgoing().is_crowded();
            if self.held_back {
                return Ok(Step::Crowded);
            }
            match self.understand(door) {
                Ok(Step::Done) => *any = true,
                Ok(step) => return Ok(step),
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            }
        }
    }

    /// Whether the next piece of a message of `length` bytes is not to be taken before others of its name were.
    fn waits_for_room(&mut self, door: &Door<'_>, length: usize) -> bool {
        let Some(budget) = &self.budget else { return false };
        if !budget.is_full() || self.peer.takes_regardless(length) || !budget.wait(door.connection) {
            return false;
        }
        // Whoever has begun to receive before it could see that this connection waits tells nobody.
        if self.peer.takes_regardless(length) {
            budget.leave(door.connection);
            return false;
        }
        (self.waits, self.held_back) = (true, true);
        true
    }

    /// Takes the next thing off the buffer. Nothing when more bytes are needed.
    fn understand(&mut self, door: &Door<'_>) -> Result<Step, Error> {
        if matches!(self.state, State::Message(_)) && self.waits_for_room(door, usize::MAX) {
            return Ok(Step::Crowded);
        }
        self.pushed |= !matches!(self.state, State::Header | State::Message(_));
        match &mut self.state {
            State::Hello => {
                let Some(hello) = self.buffer.filled().first_chunk::<HELLO_BYTES>() else { return Ok(Step::Nothing) };
                let mut nonce = [0; 32];
                base::rt::fill_random(&mut nonce);
                let binding = self.peer.pipe.binding().map_err(|_| Error::Malformed("no TLS session"))?;
                let tokens = &self.shared.tokens;
                let made = handshake::challenge(hello, self.shared.node, nonce, binding, |name| tokens(name));
                self.buffer.consume(HELLO_BYTES);
                let (answered, answer): (Answered, [u8; CHALLENGE_BYTES]) = made?;
                self.peer.outgoing().push_copied(&answer);
                match answered {
                    Answered::Challenged(challenged) => self.state = State::Proof(challenged),
                    Answered::OtherVersion => self.refuse(),
                }
                Ok(Step::Done)
            }
            State::Proof(challenged) => {
                let Some(proof) = self.buffer.filled().first_chunk::<PROOF_BYTES>() else { return Ok(Step::Nothing) };
                let verdict = match challenged.check(proof) {
                    false => handshake::REFUSED,
                    true if door.accepted.room() == 0 => handshake::CROWDED,
                    true => handshake::WELCOME,
                };
                let name: Arc<str> = challenged.name.as_str().into();
                self.buffer.consume(PROOF_BYTES);
                let mut answer = [0; VERDICT_BYTES];
                answer[..4].copy_from_slice(&verdict.to_le_bytes());
                self.peer.outgoing().push_copied(&answer);
                if verdict != handshake::WELCOME {
                    self.refuse();
                    return Ok(Step::Done);
                }
                // Before anything more of it is read: what a stranger leaves unfinished has no budget.
                self.admitted.authenticate(Principal { organization: Arc::clone(&name), identity: Arc::clone(&name) });
                self.buffer.widen();
                self.state = State::Header;
                self.deadline = None;
                self.name = Arc::clone(&name);
                let budget = NameBudget::of(&self.shared, &name);
                self.peer.set_budget(&budget);
                self.budget = Some(budget);
                let endpoint = Endpoint::new(Arc::new(Accepted {
                    peer: Arc::clone(&self.peer),
                    shared: Arc::clone(&self.shared),
                    connection: door.connection,
                    name,
                    dropped: Arc::clone(&self.dropped),
                    spin: Spin::default(),
                }));
                // There was room, and nobody else fills it; if the host has gone, the endpoint closes with this.
                let _ = door.accepted.try_send(endpoint);
                Ok(Step::Done)
            }
            State::Header => self.begin(door),
            State::Payload(payload) => {
                payload.land(&mut self.buffer);
                if payload.missing() > 0 {
                    return Ok(Step::Nothing);
                }
                payload.finish(&self.peer);
                self.state = State::Header;
                Ok(Step::Done)
            }
            State::Message(assembly) => {
                if !assembly.take(&mut self.buffer)? {
                    return Ok(Step::Nothing);
                }
                if let State::Message(assembly) = std::mem::replace(&mut self.state, State::Header) {
                    self.peer.deliver(Incoming::Message(assembly.finish()));
                }
                Ok(Step::Done)
            }
            State::Refused => {
                let waste = self.buffer.filled().len();
                self.buffer.consume(waste);
                Ok(Step::Nothing)
            }
        }
    }

    /// It did not prove itself. What tells it so is in the queue.
    fn refuse(&mut self) {
        self.state = State::Refused;
        self.closing = true;
        self.deadline = Some(clock() + REFUSAL_TIME_MAX);
    }

    /// Begins the next frame, and finishes it if it is short.
    fn begin(&mut self, door: &Door<'_>) -> Result<Step, Error> {
        let Some(header) = header_of(self.buffer.filled()) else { return Ok(Step::Nothing) };
        let header = header?;
        let length = header.length as usize;
        self.pushed |= header.kind != Kind::Message;
        match header.kind {
            Kind::Message if length <= SMALL_BYTES_MAX => {
                let frame = HEADER_BYTES..HEADER_BYTES + length;
                if self.buffer.filled().len() >= frame.end && self.waits_for_room(door, length) {
                    return Ok(Step::Crowded);
                }
                let Some(bytes) = self.buffer.filled().get(frame.clone()) else { return Ok(Step::Nothing) };
                self.peer.deliver_small(bytes)?;
                self.buffer.consume(frame.end);
                return Ok(Step::Done);
            }
            Kind::Message => {
                if self.waits_for_room(door, length) {
                    return Ok(Step::Crowded);
                }
                self.peer.admit(length)?;
                self.buffer.consume(HEADER_BYTES);
                self.state = State::Message(Assembly::new(length, Some(Arc::clone(&self.admitted)))?);
                return Ok(Step::Done);
            }
            Kind::Credit => {
                self.buffer.consume(HEADER_BYTES);
                self.peer.outgoing().credit(header.sequence as usize, header.length)?;
                return Ok(Step::Done);
            }
            kind if !kind.is_verb() => return Err(Error::Malformed("a frame that only the other side sends")),
            _ => {}
        }
        let Some(verb) = self.buffer.filled()[HEADER_BYTES..].first_chunk::<VERB_BYTES>() else {
            return Ok(Step::Nothing);
        };
        let verb = Verb::decode(verb)?;
        if header.kind == Kind::WriteWithImmediate && self.waits_for_room(door, 0) {
            return Ok(Step::Crowded);
        }
        self.buffer.consume(HEADER_BYTES + VERB_BYTES);
        match header.kind {
            Kind::Read => self.read(&header, &verb),
            Kind::CompareSwap | Kind::FetchAdd => self.word(&header, &verb),
            kind => {
                if kind == Kind::WriteWithImmediate {
                    self.peer.admit(0)?;
                }
                let payload = Payload::new(&self.shared.regions, &self.name, &header, &verb)?;
                self.state = State::Payload(Box::new(payload));
            }
        }
        Ok(Step::Done)
    }

    fn read(&mut self, header: &Header, verb: &Verb) {
        let length = header.length as usize;
        let found = self.shared.regions.find(&verb.capability);
        // The queue before the region: whoever writes the queue out locks in this order.
        let mut outgoing = self.peer.outgoing();
        let opened = found.and_then(|region| {
            let mut opened = region.open(&verb.capability, &self.name, Rights::READ, verb.offset, header.length)?;
            if length <= COPIED_BYTES_MAX {
                outgoing.push_copied(&Header::new(Kind::Reply, header.sequence, header.length).encode());
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
                outgoing.push_copied(&Header::new(Kind::LongReply, header.sequence, header.length).encode());
                outgoing.push_region(RegionRead {
                    region,
                    capability: verb.capability,
                    holder: Arc::clone(&self.name),
                    offset,
                    remaining: length,
                    word: [0; WORD_BYTES],
                    word_bytes: 0,
                    status: Status::Done,
                });
            }
            Err(refusal) => refuse(&mut outgoing, header.sequence, refusal),
        }
    }

    fn word(&mut self, header: &Header, verb: &Verb) {
        let found = match verb.offset.unchecked().is_multiple_of(WORD_BYTES as u64) {
            true => self.shared.regions.find(&verb.capability),
            false => Err(Refusal::of(Status::Misaligned)),
        };
        let done = found.and_then(|region| {
            let (capability, length) = (&verb.capability, WORD_BYTES as u64);
            let mut opened = region.open(capability, &self.name, Rights::ATOMIC, verb.offset, length)?;
            let before = opened.word();
            match header.kind {
                Kind::CompareSwap if before == verb.first => opened.set_word(verb.second),
                Kind::CompareSwap => {}
                _ => opened.set_word(before.wrapping_add(verb.first)),
            }
            Ok(before)
        });
        let mut outgoing = self.peer.outgoing();
        match done {
            Ok(before) => {
                outgoing.push_copied(&Header::new(Kind::Reply, header.sequence, WORD_BYTES as u64).encode());
                outgoing.push_copied(&before.to_le_bytes());
            }
            Err(refusal) => refuse(&mut outgoing, header.sequence, refusal),
        }
    }
}
