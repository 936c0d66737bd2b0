//! The progress thread of a host: carries out the verbs of everybody who is connected.
//!
//! 1. It sleeps until a socket is ready, then serves it. For a short while after that it looks at the socket that was
//!    served last again and again, and at the others now and then, before it sleeps anew.
//! 2. What a connection has sent is carried out in order; the replies of all that was there go out with one call.
//! 3. A connection whose replies do not go out is not read until they do. What it had sent by then is in our buffer, and no
//!    socket tells of it: such a connection is among the [unfinished](Progress::unfinished) once there is room.
//!
//! Invariants:
//! * Nothing that one connection sends, or does not, keeps the thread from serving the others: a turn reads and writes a
//!   bounded number of bytes, and every [`LOOKS`] turns of one connection the others have theirs.
//! * A connection that has something to do is unfinished, or its socket is watched for what it waits for.

use std::io;
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base::Map;
use base::rt::channel::Sender;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;

use super::handshake::{self, Answered, CHALLENGE_BYTES, Challenged, HELLO_BYTES, PROOF_BYTES, VERDICT_BYTES};
use super::host::{Accepted, Shared};
use super::memory::{Refusal, Region};
use super::peer::{Assembly, Outgoing, Peer, RegionRead, SMALL_BYTES_MAX, TURN_BYTES_MAX, header_of};
use super::pipe::{Filled, Pipe, ReadBuffer};
use super::spin::Spin;
use super::wire::{HEADER_BYTES, Header, Kind, Status, VERB_BYTES, Verb};
use super::{CLOSING_TIME_MAX, HANDSHAKE_TIME_MAX, clock, tune};
use crate::{Capability, Endpoint, Error, Incoming, Rights, WORD_BYTES};

/// Connections of one host.
const CONNECTIONS_MAX: usize = 4096;
/// Connections that have not proved themselves yet; more wait in the kernel's backlog, and the oldest are dropped in time.
const STRANGERS_MAX: usize = 256;
/// Bytes of a read that are copied to go out with other replies; longer ones go out of the region itself.
const COPIED_BYTES_MAX: usize = 64 << 10;
/// A payload of which more than this is missing lands in the region without a copy.
const DIRECT_BYTES_MIN: usize = 16 << 10;
/// Times that a connection is read before the others have their turn.
const TURN_READS_MAX: usize = 32;
/// Times that the last connection is looked at, or served, before the others are.
const LOOKS: u32 = 16;
/// Events taken at once.
const EVENTS_MAX: usize = 64;
/// How often time limits are looked at while there are any.
const TICK: Duration = Duration::from_millis(250);

const OF_LISTENER: u64 = 0;
const OF_WAKE: u64 = 1;
const FIRST_CONNECTION: u64 = 2;

pub struct Progress {
    listener: TcpListener,
    shared: Arc<Shared>,
    accepted: Sender<Endpoint>,
    epoll: OwnedFd,
    connections: Map<u64, Served>,
    next: u64,
    /// Served last.
    hot: Option<u64>,
    /// As the endpoints were told, [`Progress::look_at`].
    looked_at: u64,
    /// Connections that have more to do than any socket tells of: bytes that were read and are not understood.
    unfinished: Vec<u64>,
    /// The listener is not watched while there are too many strangers.
    listening: bool,
}

struct Served {
    peer: Arc<Peer>,
    shared: Arc<Shared>,
    buffer: ReadBuffer,
    state: State,
    interest: epoll::EventFlags,
    /// When it is dropped, unless it gets beyond what it is at.
    deadline: Option<Instant>,
    dropped: Arc<AtomicBool>,
    /// It ends once what is to go out is out.
    closing: bool,
    /// Our side has said that it sends no more.
    finished: bool,
    /// It is among the unfinished ones.
    unfinished: bool,
    /// Bytes were read and not carried out, because it was crowded.
    held_back: bool,
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
    /// It did not prove itself: whatever else comes is thrown away.
    Refused,
}

struct Payload {
    region: Option<Arc<Region>>,
    capability: Capability,
    sequence: u32,
    offset: u64,
    length: u64,
    landed: u64,
    immediate: Option<u32>,
    refusal: Option<Refusal>,
}

/// Whether a connection goes on.
#[derive(PartialEq, Eq)]
enum Turn {
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
    /// Its replies must go out first.
    Crowded,
}

impl Progress {
    pub fn new(listener: TcpListener, shared: Arc<Shared>, accepted: Sender<Endpoint>) -> io::Result<Progress> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(OF_LISTENER), epoll::EventFlags::IN)?;
        epoll::add(&epoll, &shared.wake, epoll::EventData::new_u64(OF_WAKE), epoll::EventFlags::IN)?;
        let connections = Map::default();
        Ok(Progress {
            listener,
            shared,
            accepted,
            epoll,
            connections,
            next: FIRST_CONNECTION,
            hot: None,
            looked_at: 0,
            unfinished: Vec::new(),
            listening: true,
        })
    }

    pub fn run(mut self) {
        let spin = self.shared.options.spin;
        let mut spin_until = clock();
        let mut looks = 0_u32;
        let mut tick = clock() + TICK;
        loop {
            let now = clock();
            let spinning = now < spin_until || (!spin.is_zero() && self.is_answered_soon(now));
            self.look_at(if spinning { self.hot } else { None });
            if spinning && let Some(hot) = self.hot {
                looks = looks.wrapping_add(1);
                if !looks.is_multiple_of(LOOKS) {
                    if self.serve(hot, false) {
                        spin_until = clock() + spin;
                    } else {
                        std::hint::spin_loop();
                    }
                    continue;
                }
            }
            let wait = match spinning || !self.unfinished.is_empty() {
                true => Some(Duration::ZERO),
                false if self.connections.values().any(|served| served.deadline.is_some()) => Some(TICK),
                false => None,
            };
            if self.turn(wait) {
                spin_until = clock() + spin;
            }
            if self.shared.stopping.load(Ordering::Acquire) {
                break;
            }
            if now >= tick {
                tick = now + TICK;
                self.drop_overdue(now);
            }
        }
        for served in self.connections.values() {
            served.peer.close();
            served.peer.pipe.cut();
        }
        self.shared.regions.clear();
    }

    /// Whether the caller that was served last is still busy with what it was sent.
    fn is_answered_soon(&self, now: Instant) -> bool {
        self.hot.and_then(|hot| self.connections.get(&hot)).is_some_and(|served| served.peer.is_being_taken(now))
    }

    /// Says at which connection this thread looks, so that endpoints leave the writing to it.
    fn look_at(&mut self, connection: Option<u64>) {
        let connection = connection.unwrap_or(0);
        let before = self.looked_at;
        if connection != before {
            self.looked_at = connection;
            self.shared.looked_at.store(connection, Ordering::SeqCst);
            // What was left to us by then.
            self.serve(before, false);
        }
    }

    /// Serves whatever is ready. True when that was a connection with something to say.
    fn turn(&mut self, wait: Option<Duration>) -> bool {
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS_MAX];
        let wait = wait.map(|wait| Timespec { tv_sec: wait.as_secs() as _, tv_nsec: wait.subsec_nanos().into() });
        let Ok((ready, _)) = epoll::wait(&self.epoll, &mut events, wait.as_ref()) else {
            // Interrupted; nothing else can happen to a descriptor of our own.
            return false;
        };
        let mut any = false;
        for event in ready.iter() {
            match event.data.u64() {
                OF_LISTENER => self.accept(),
                OF_WAKE => self.attend(),
                connection => any |= self.serve(connection, false),
            }
        }
        for connection in std::mem::take(&mut self.unfinished) {
            if let Some(served) = self.connections.get_mut(&connection) {
                served.unfinished = false;
                any |= self.serve(connection, false);
            }
        }
        any
    }

    fn accept(&mut self) {
        loop {
            let strangers = self.connections.values().filter(|served| served.is_stranger()).count();
            if strangers >= STRANGERS_MAX {
                self.listen(false);
                return;
            }
            match self.listener.accept() {
                Ok((socket, _)) if self.connections.len() < CONNECTIONS_MAX => {
                    // A socket that cannot be set up was lost already.
                    let _ = self.adopt(socket);
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    // No descriptors are left, or the like: tried again at the next tick, not at once.
                    self.listen(false);
                    return;
                }
            }
        }
    }

    fn listen(&mut self, listening: bool) {
        let interest = if listening { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        let data = epoll::EventData::new_u64(OF_LISTENER);
        if epoll::modify(&self.epoll, &self.listener, data, interest).is_ok() {
            self.listening = listening;
        }
    }

    fn adopt(&mut self, socket: TcpStream) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        tune(&socket, &self.shared.options)?;
        let tls = match &self.shared.options.tls {
            Some(tls) => Some(tls.server().map_err(io::Error::other)?),
            None => None,
        };
        let peer = Arc::new(Peer::new(Pipe::new(socket, tls)));
        let interest = epoll::EventFlags::IN;
        epoll::add(&self.epoll, &peer.pipe, epoll::EventData::new_u64(self.next), interest)?;
        let served = Served {
            peer,
            shared: Arc::clone(&self.shared),
            buffer: ReadBuffer::new(),
            state: State::Hello,
            interest,
            deadline: Some(clock() + HANDSHAKE_TIME_MAX),
            dropped: Arc::new(AtomicBool::new(false)),
            closing: false,
            finished: false,
            unfinished: false,
            held_back: false,
            pushed: false,
            left: false,
        };
        self.connections.insert(self.next, served);
        self.next += 1;
        Ok(())
    }

    /// Looks at the connections that endpoints ask about.
    fn attend(&mut self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.shared.wake, &mut count);
        let attention = std::mem::take(&mut *self.shared.attention.lock().unwrap_or_else(PoisonError::into_inner));
        for connection in attention {
            if let Some(served) = self.connections.get_mut(&connection)
                && served.dropped.load(Ordering::Acquire)
                && !served.closing
            {
                // Verbs are still carried out, and credit taken, until the other side has ended too.
                served.closing = true;
                served.deadline = Some(clock() + CLOSING_TIME_MAX);
            }
            self.serve(connection, true);
        }
    }

    fn drop_overdue(&mut self, now: Instant) {
        let overdue = |served: &Served| served.deadline.is_some_and(|deadline| deadline <= now);
        let overdue: Vec<u64> =
            self.connections.iter().filter(|(_, served)| overdue(served)).map(|(connection, _)| *connection).collect();
        for connection in overdue {
            self.end(connection);
        }
        if !self.listening {
            self.listen(true);
        }
    }

    fn end(&mut self, connection: u64) {
        if let Some(served) = self.connections.remove(&connection) {
            // Closing the descriptor takes it off the set, but an endpoint may still hold it.
            let _ = epoll::delete(&self.epoll, &served.peer.pipe);
            served.peer.close();
            served.peer.pipe.cut();
        }
        if self.hot == Some(connection) {
            self.hot = None;
        }
    }

    /// Serves a connection; `asked` by an endpoint, which may have left something to write. True when something was done.
    fn serve(&mut self, connection: u64, asked: bool) -> bool {
        let Some(served) = self.connections.get_mut(&connection) else { return false };
        let door = Door { shared: &self.shared, accepted: &self.accepted, connection };
        let mut any = false;
        let asked = served.peer.take_asked() || asked;
        let mut turn = served.turn(&door, asked, &mut any);
        if turn != Turn::Over && turn != Turn::Nothing {
            turn = served.watch(&self.epoll, connection, turn).unwrap_or(Turn::Over);
        }
        if turn == Turn::Unfinished && !std::mem::replace(&mut served.unfinished, true) {
            self.unfinished.push(connection);
        }
        if any && !served.is_stranger() {
            self.hot = Some(connection);
        }
        if turn == Turn::Over {
            self.end(connection);
        }
        any
    }
}

/// What a connection needs of the thread.
struct Door<'a> {
    shared: &'a Arc<Shared>,
    accepted: &'a Sender<Endpoint>,
    connection: u64,
}

impl Served {
    fn is_stranger(&self) -> bool {
        matches!(self.state, State::Hello | State::Proof(_))
    }

    /// Asks to be told when what it waits for is there. An unfinished connection that is not read until its replies are
    /// out waits for that as well, and is idle until then.
    fn watch(&mut self, epoll: &OwnedFd, connection: u64, turn: Turn) -> io::Result<Turn> {
        // Both under one lock: an endpoint may write the queue out at any time, and a connection that is neither read nor
        // waits to write would never be served again.
        let outgoing = self.peer.outgoing();
        let (crowded, empty) = (outgoing.is_crowded(), outgoing.is_empty());
        drop(outgoing);
        self.left = !empty || self.peer.pipe.wants_write();
        let mut interest = epoll::EventFlags::empty();
        interest.set(epoll::EventFlags::IN, !crowded);
        interest.set(epoll::EventFlags::OUT, self.left);
        if interest != self.interest {
            epoll::modify(epoll, &self.peer.pipe, epoll::EventData::new_u64(connection), interest)?;
            self.interest = interest;
        }
        Ok(if crowded { Turn::Idle } else { turn })
    }

    /// Reads, carries out and replies, until nothing is left or the others are to have their turn.
    fn turn(&mut self, door: &Door<'_>, asked: bool, any: &mut bool) -> Turn {
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
        let may_write = self.pushed || self.left || self.closing || !self.peer.pipe.is_plain();
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
        true
    }

    /// Carries out what is there, then reads once.
    fn step(&mut self, door: &Door<'_>, any: &mut bool) -> io::Result<Step> {
        // Whatever was read was carried out then, unless it was crowded.
        if (self.held_back || self.left) && self.carry_out(door, any)? == Step::Crowded {
            return Ok(Step::Crowded);
        }
        let pipe = &self.peer.pipe;
        let some = |bytes: usize| Filled { bytes, drained: false };
        let read = match &mut self.state {
            State::Payload(payload) => {
                let missing = usize::try_from(payload.length - payload.landed).expect("a transfer is bounded");
                let buffered = self.buffer.filled().len();
                let direct = payload.refusal.is_none() && missing > DIRECT_BYTES_MIN && pipe.is_plain();
                if direct && buffered == 0 {
                    match payload.receive(pipe, missing)? {
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
            Ok(Filled { drained, .. }) => {
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
                Ok(true) => *any = true,
                Ok(false) => return Ok(Step::Nothing),
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            }
        }
    }

    /// Takes the next thing off the buffer. False when more bytes are needed.
    fn understand(&mut self, door: &Door<'_>) -> Result<bool, Error> {
        self.pushed |= !matches!(self.state, State::Header | State::Message(_));
        match &mut self.state {
            State::Hello => {
                let Some(hello) = self.buffer.filled().first_chunk::<HELLO_BYTES>() else { return Ok(false) };
                let mut nonce = [0; 32];
                base::rt::fill_random(&mut nonce);
                let binding = self.peer.pipe.binding().map_err(|_| Error::Malformed("no TLS session"))?;
                let tokens = &door.shared.tokens;
                let made = handshake::challenge(hello, door.shared.node, nonce, binding, |name| tokens(name));
                self.buffer.consume(HELLO_BYTES);
                let (answered, answer): (Answered, [u8; CHALLENGE_BYTES]) = made?;
                self.peer.outgoing().push_copied(&answer);
                match answered {
                    Answered::Challenged(challenged) => self.state = State::Proof(challenged),
                    Answered::OtherVersion => {
                        self.state = State::Refused;
                        self.closing = true;
                    }
                }
                Ok(true)
            }
            State::Proof(challenged) => {
                let Some(proof) = self.buffer.filled().first_chunk::<PROOF_BYTES>() else { return Ok(false) };
                let verdict = match challenged.check(proof) {
                    false => handshake::REFUSED,
                    true if door.accepted.room() == 0 => handshake::CROWDED,
                    true => handshake::WELCOME,
                };
                let name = std::mem::take(&mut challenged.name);
                self.buffer.consume(PROOF_BYTES);
                let mut answer = [0; VERDICT_BYTES];
                answer[..4].copy_from_slice(&verdict.to_le_bytes());
                self.peer.outgoing().push_copied(&answer);
                if verdict != handshake::WELCOME {
                    self.state = State::Refused;
                    self.closing = true;
                    return Ok(true);
                }
                self.state = State::Header;
                self.deadline = None;
                let endpoint = Endpoint::new(Arc::new(Accepted {
                    peer: Arc::clone(&self.peer),
                    shared: Arc::clone(door.shared),
                    connection: door.connection,
                    name,
                    dropped: Arc::clone(&self.dropped),
                    spin: Spin::default(),
                }));
                // There was room, and nobody else fills it; if the host has gone, the endpoint closes with this.
                let _ = door.accepted.try_send(endpoint);
                Ok(true)
            }
            State::Header => self.begin(),
            State::Payload(payload) => {
                payload.land(&mut self.buffer);
                if payload.landed < payload.length {
                    return Ok(false);
                }
                payload.finish(&self.peer);
                self.state = State::Header;
                Ok(true)
            }
            State::Message(assembly) => {
                if !assembly.take(&mut self.buffer) {
                    return Ok(false);
                }
                if let State::Message(assembly) = std::mem::replace(&mut self.state, State::Header) {
                    self.peer.deliver(Incoming::Message(assembly.finish()));
                }
                Ok(true)
            }
            State::Refused => {
                let waste = self.buffer.filled().len();
                self.buffer.consume(waste);
                Ok(false)
            }
        }
    }

    /// Begins the next frame, and finishes it if it is short.
    fn begin(&mut self) -> Result<bool, Error> {
        let Some(header) = header_of(self.buffer.filled()) else { return Ok(false) };
        let header = header?;
        let length = header.length as usize;
        self.pushed |= header.kind != Kind::Message;
        match header.kind {
            Kind::Message if length <= SMALL_BYTES_MAX => {
                let frame = HEADER_BYTES..HEADER_BYTES + length;
                let Some(bytes) = self.buffer.filled().get(frame.clone()) else { return Ok(false) };
                self.peer.deliver_small(bytes)?;
                self.buffer.consume(frame.end);
                return Ok(true);
            }
            Kind::Message => {
                self.peer.admit(length)?;
                self.buffer.consume(HEADER_BYTES);
                self.state = State::Message(Assembly::new(length));
                return Ok(true);
            }
            Kind::Credit => {
                self.buffer.consume(HEADER_BYTES);
                self.peer.outgoing().credit(header.sequence as usize, header.length)?;
                return Ok(true);
            }
            kind if !kind.is_verb() => return Err(Error::Malformed("a frame that only the other side sends")),
            _ => {}
        }
        let Some(verb) = self.buffer.filled()[HEADER_BYTES..].first_chunk::<VERB_BYTES>() else { return Ok(false) };
        let verb = Verb::decode(verb)?;
        self.buffer.consume(HEADER_BYTES + VERB_BYTES);
        match header.kind {
            Kind::Read => self.read(&header, &verb),
            Kind::CompareSwap | Kind::FetchAdd => self.word(&header, &verb),
            _ => self.state = State::Payload(Box::new(self.payload(&header, &verb)?)),
        }
        Ok(true)
    }

    fn regions_of(&self) -> &super::memory::Regions {
        &self.shared.regions
    }

    fn read(&mut self, header: &Header, verb: &Verb) {
        let length = header.length as usize;
        let found = self.regions_of().find(&verb.capability);
        // The queue before the region: whoever writes the queue out locks in this order.
        let mut outgoing = self.peer.outgoing();
        let opened = found.and_then(|region| {
            let mut opened = region.open(&verb.capability, Rights::READ, verb.offset, header.length)?;
            if length <= COPIED_BYTES_MAX {
                outgoing.push_copied(&Header::new(Kind::Reply, header.sequence, header.length).encode());
                outgoing.push_copied(opened.bytes(verb.offset, length));
                return Ok(None);
            }
            drop(opened);
            Ok(Some(region))
        });
        match opened {
            Ok(None) => {}
            Ok(Some(region)) => {
                outgoing.push_copied(&Header::new(Kind::LongReply, header.sequence, header.length).encode());
                outgoing.push_region(RegionRead {
                    region,
                    capability: verb.capability,
                    offset: verb.offset,
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
        let found = match verb.offset % WORD_BYTES as u64 {
            0 => self.regions_of().find(&verb.capability),
            _ => Err(Refusal::of(Status::Misaligned)),
        };
        let done = found.and_then(|region| {
            let mut opened = region.open(&verb.capability, Rights::ATOMIC, verb.offset, WORD_BYTES as u64)?;
            let before = opened.word(verb.offset);
            match header.kind {
                Kind::CompareSwap if before == verb.first => opened.set_word(verb.offset, verb.second),
                Kind::CompareSwap => {}
                _ => opened.set_word(verb.offset, before.wrapping_add(verb.first)),
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

    fn payload(&self, header: &Header, verb: &Verb) -> Result<Payload, Error> {
        let immediate = match header.kind {
            Kind::WriteWithImmediate => {
                self.peer.admit(0)?;
                Some(u32::try_from(verb.first).map_err(|_| Error::Malformed("immediate data of more than 32 bits"))?)
            }
            _ => None,
        };
        let mut payload = Payload {
            region: None,
            capability: verb.capability,
            sequence: header.sequence,
            offset: verb.offset,
            length: header.length,
            landed: 0,
            immediate,
            refusal: None,
        };
        let checked = self.regions_of().find(&verb.capability).and_then(|region| {
            // The whole range, before any of it lands.
            drop(region.open(&verb.capability, Rights::WRITE, verb.offset, header.length)?);
            Ok(region)
        });
        match checked {
            Ok(region) => payload.region = Some(region),
            Err(refusal) => payload.refusal = Some(refusal),
        }
        Ok(payload)
    }
}

impl Payload {
    /// Bytes to the end of the word that the next byte is in.
    fn to_boundary(&self) -> usize {
        WORD_BYTES - ((self.offset + self.landed) % WORD_BYTES as u64) as usize
    }

    /// Lands what is in the buffer: whole words, unless it is the end.
    fn land(&mut self, buffer: &mut ReadBuffer) {
        let missing = usize::try_from(self.length - self.landed).unwrap_or(usize::MAX);
        let here = buffer.filled().len();
        let mut take = missing.min(here);
        if take < missing && self.refusal.is_none() {
            let at = self.offset + self.landed;
            take = take.saturating_sub(((at + take as u64) % WORD_BYTES as u64) as usize);
        }
        if take == 0 && self.landed < self.length {
            return;
        }
        let at = self.offset + self.landed;
        if let (Some(region), None) = (&self.region, self.refusal) {
            let refused = match region.open(&self.capability, Rights::WRITE, at, take as u64) {
                Ok(mut opened) => {
                    opened.bytes(at, take).copy_from_slice(&buffer.filled()[..take]);
                    None
                }
                Err(refusal) => Some(refusal),
            };
            if let Some(refusal) = refused {
                self.refuse(refusal);
            }
        }
        buffer.consume(take);
        self.landed += take as u64;
    }

    /// Lands what is in the socket, without a copy in between. 0 when less than a word is there.
    fn receive(&mut self, pipe: &Pipe, missing: usize) -> io::Result<usize> {
        let at = self.offset + self.landed;
        let Some(region) = &self.region else { return Ok(0) };
        let received = match region.open(&self.capability, Rights::WRITE, at, missing as u64) {
            Ok(mut opened) => Ok(opened.receive(pipe, at, missing)?),
            Err(refusal) => Err(refusal),
        };
        match received {
            Ok(received) => {
                self.landed += received as u64;
                Ok(received)
            }
            Err(refusal) => {
                self.refuse(refusal);
                Ok(0)
            }
        }
    }

    fn refuse(&mut self, refusal: Refusal) {
        let half_done = self.landed > 0;
        self.refusal = Some(if half_done { Refusal::of(Status::Ambiguous) } else { refusal });
    }

    fn finish(&self, peer: &Peer) {
        let mut outgoing = peer.outgoing();
        match self.refusal {
            Some(refusal) => refuse(&mut outgoing, self.sequence, refusal),
            None => outgoing.push_copied(&Header::new(Kind::Reply, self.sequence, 0).encode()),
        }
        drop(outgoing);
        match self.immediate {
            Some(immediate) if self.refusal.is_none() => peer.deliver(Incoming::Immediate {
                immediate,
                region: self.capability.region,
                offset: self.offset,
                length: self.length,
            }),
            // What was admitted and is not delivered counts as taken.
            Some(_) => peer.forgo(),
            None => {}
        }
    }
}

fn refuse(outgoing: &mut Outgoing, sequence: u32, refusal: Refusal) {
    let length = if refusal.status == Status::OutOfBounds { WORD_BYTES as u64 } else { 0 };
    let header = Header { kind: Kind::Reply, status: refusal.status.code(), sequence, length };
    outgoing.push_copied(&header.encode());
    if length > 0 {
        outgoing.push_copied(&refusal.region_bytes.to_le_bytes());
    }
}
