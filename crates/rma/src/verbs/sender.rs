//! What one side of a connection asks of the other: verbs and messages on their way to the adapter and back.
//!
//! 1. Verbs wait in the order of posting. The first one takes the key of its capability, asking the host once if need be;
//!    the others wait behind it, so that the order of posting is the order of effect.
//! 2. It is checked against what the host said of the region, and cut into pieces of a staging slot each. All pieces that
//!    there is room for go to the adapter in one chain.
//! 3. Work on a queue pair ends in order, so the oldest piece in flight is the one that has ended. The last piece of a
//!    verb completes it.
//! 4. A key that the host takes back is used no more: what waits for it fails as revoked, and when the last piece in
//!    flight under it has ended, the host is told.
//!
//! Invariants: a piece in flight owns its slot; a key is forgotten only when nothing is in flight under it; a write,
//! message or atomic waits at the adapter for earlier reads, which it would otherwise overtake there.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::{Bytes, BytesMut, Map};

use super::device::{Ended, Local, Order, Remote, Work};
use super::memory::{LARGE_BYTES, RECEIVE_BYTES, Slot, Staging};
use super::wire::{Frame, HEADER_BYTES, Header, Refusal, RemoteRegion};
use crate::{Capability, Completer, Error, GrantId, NodeId, RegionId, Rights, WORD_BYTES};

/// Pieces in flight at the adapter.
pub const SENDS_MAX: usize = 256;
/// Keys that one connection holds.
const KEYS_MAX: usize = 1 << 16;
/// For work that moves no bytes.
const NOTHING: Local = Local { address: 0, bytes: 0, key: 0 };
/// Bytes of a message that one piece carries.
const PIECE_BYTES: usize = RECEIVE_BYTES - HEADER_BYTES;

/// The parts of a write or message, taken from the front.
pub struct Data {
    parts: VecDeque<Bytes>,
    bytes: usize,
}

impl Data {
    pub fn new(parts: &[Bytes]) -> Data {
        Data { parts: parts.iter().cloned().collect(), bytes: parts.iter().map(Bytes::len).sum() }
    }

    /// Moves the next `bytes` into a slot, from `at` on.
    fn put(&mut self, staging: &mut Staging, slot: &Slot, mut at: usize, mut bytes: usize) {
        while bytes > 0 {
            let part = self.parts.front_mut().expect("the parts have as many bytes as their sum");
            let piece = part.split_to(part.len().min(bytes));
            staging.put(slot, at, &piece);
            at += piece.len();
            bytes -= piece.len();
            if part.is_empty() {
                self.parts.pop_front();
            }
        }
    }
}

pub enum Verb {
    Read { into: BytesMut, length: usize, completer: Completer<BytesMut> },
    Write { data: Data, immediate: Option<u32>, completer: Completer<()> },
    CompareSwap { expected: u64, new: u64, completer: Completer<u64> },
    FetchAdd { add: u64, completer: Completer<u64> },
    Send { data: Data, completer: Completer<()> },
}

impl Verb {
    /// Bytes of the region that it touches, or of the message.
    fn bytes(&self) -> usize {
        match self {
            Verb::Read { length, .. } => *length,
            Verb::Write { data, .. } | Verb::Send { data, .. } => data.bytes,
            Verb::CompareSwap { .. } | Verb::FetchAdd { .. } => WORD_BYTES,
        }
    }

    fn rights(&self) -> Rights {
        match self {
            Verb::Read { .. } => Rights::READ,
            Verb::Write { .. } => Rights::WRITE,
            Verb::CompareSwap { .. } | Verb::FetchAdd { .. } => Rights::ATOMIC,
            Verb::Send { .. } => Rights::NONE,
        }
    }

    fn complete(self, outcome: Result<u64, Error>) {
        match self {
            Verb::Read { into, completer, .. } => completer.complete(outcome.map(|_| into)),
            Verb::Write { completer, .. } | Verb::Send { completer, .. } => completer.complete(outcome.map(drop)),
            Verb::CompareSwap { completer, .. } | Verb::FetchAdd { completer, .. } => completer.complete(outcome),
        }
    }
}

/// Where in which region.
#[derive(Clone, Copy)]
pub struct Target {
    pub capability: Capability,
    pub offset: u64,
}

/// A verb with how far it has come.
pub struct Transfer {
    verb: Verb,
    /// None for a message.
    target: Option<Target>,
    /// The verb's length, which the data loses as it goes.
    bytes: usize,
    /// The key, once the verb has been checked against it.
    key: Option<usize>,
    issued: usize,
    pieces: u32,
    outstanding: u32,
    /// The last piece has been issued, or none will be any more.
    whole: bool,
    failed: Option<Error>,
    /// What stood in the word.
    word: u64,
}

impl Transfer {
    pub fn new(verb: Verb, target: Option<Target>) -> Transfer {
        let bytes = verb.bytes();
        Transfer {
            verb,
            target,
            bytes,
            key: None,
            issued: 0,
            pieces: 0,
            outstanding: 0,
            whole: false,
            failed: None,
            word: 0,
        }
    }

    pub fn complete(self, outcome: Result<(), Error>) {
        let word = self.word;
        self.verb.complete(outcome.map(|()| word));
    }
}

/// A capability without its rights, which a holder may have narrowed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct KeyId {
    node: NodeId,
    region: RegionId,
    grant: GrantId,
    generation: u64,
    secret: [u8; 16],
}

impl KeyId {
    fn of(capability: &Capability) -> KeyId {
        KeyId {
            node: capability.node,
            region: capability.region,
            grant: capability.grant,
            generation: capability.generation,
            secret: capability.secret.0,
        }
    }

    fn is(&self, region: RegionId, grant: GrantId, generation: u64) -> bool {
        self.region == region && self.grant == grant && self.generation == generation
    }
}

struct Key {
    id: KeyId,
    state: KeyState,
    /// Pieces in flight under it.
    in_flight: u32,
    /// The host has taken it back and waits for the answer to this request.
    revoked: Option<u32>,
}

enum KeyState {
    Asked,
    Open(RemoteRegion),
    Refused(Refusal),
}

/// What the adapter is doing, oldest first.
struct Flight {
    id: u64,
    /// None for a sign of life.
    transfer: Option<usize>,
    slot: Option<Slot>,
    bytes: usize,
    kind: Kind,
    key: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Atomic,
    Other,
}

enum Step {
    /// Every piece is in flight.
    Issued,
    /// Something must happen first.
    Blocked,
    /// It fails, and had no effect.
    Failed(Error),
}

/// Values found by small numbers.
struct Slab<T> {
    entries: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Slab<T> {
    fn new() -> Slab<T> {
        Slab { entries: Vec::new(), free: Vec::new() }
    }

    fn insert(&mut self, value: T) -> usize {
        match self.free.pop() {
            Some(at) => {
                self.entries[at] = Some(value);
                at
            }
            None => {
                self.entries.push(Some(value));
                self.entries.len() - 1
            }
        }
    }

    fn get(&mut self, at: usize) -> &mut T {
        self.entries[at].as_mut().expect("a number is used as long as its value is there")
    }

    fn remove(&mut self, at: usize) -> T {
        self.free.push(at);
        self.entries[at].take().expect("a number is used as long as its value is there")
    }

    fn find(&self, wanted: impl Fn(&T) -> bool) -> Option<usize> {
        self.entries.iter().position(|entry| entry.as_ref().is_some_and(&wanted))
    }
}

pub struct Sender {
    transfers: Slab<Transfer>,
    /// Not yet wholly issued.
    waiting: VecDeque<usize>,
    flights: VecDeque<Flight>,
    next_flight: u64,
    reads: u32,
    atomics: u32,
    keys: Slab<Key>,
    key_of: Map<KeyId, usize>,
    /// Shared with whoever posts: verbs that have not completed.
    posted: Arc<AtomicUsize>,
}

impl Sender {
    pub fn new(posted: Arc<AtomicUsize>) -> Sender {
        Sender {
            transfers: Slab::new(),
            waiting: VecDeque::new(),
            flights: VecDeque::new(),
            next_flight: 0,
            reads: 0,
            atomics: 0,
            keys: Slab::new(),
            key_of: Map::default(),
            posted,
        }
    }

    /// Whether the adapter has work, so that waiting for it in a loop pays.
    pub fn is_busy(&self) -> bool {
        !self.flights.is_empty()
    }

    pub fn accept(&mut self, transfer: Transfer) {
        let at = self.transfers.insert(transfer);
        self.waiting.push_back(at);
    }

    /// Makes work of what waits, as far as it can; `say` is what the host is to be asked.
    pub fn issue(&mut self, staging: &mut Staging, chain: &mut Vec<Work>, say: &mut Vec<Frame>) {
        while let Some(&at) = self.waiting.front() {
            match self.advance(at, staging, chain, say) {
                Step::Blocked => return,
                Step::Issued => {
                    self.waiting.pop_front();
                    self.transfers.get(at).whole = true;
                }
                Step::Failed(error) => {
                    self.waiting.pop_front();
                    self.finish(at, Err(error));
                }
            }
        }
    }

    fn advance(&mut self, at: usize, staging: &mut Staging, chain: &mut Vec<Work>, say: &mut Vec<Frame>) -> Step {
        let transfer = self.transfers.get(at);
        if let (Some(target), None) = (transfer.target, transfer.key) {
            match self.key(&target.capability, say) {
                Ok(Some(key)) => {
                    if let Err(error) = self.check(at, &target, key) {
                        return Step::Failed(error);
                    }
                    self.transfers.get(at).key = Some(key);
                }
                Ok(None) => return Step::Blocked,
                Err(error) => return Step::Failed(error),
            }
        }
        loop {
            let transfer = self.transfers.get(at);
            let rest = transfer.bytes - transfer.issued;
            if rest == 0 && transfer.pieces > 0 {
                break;
            }
            if !self.piece(at, staging, chain) {
                return Step::Blocked;
            }
        }
        self.announce(at, staging, chain)
    }

    /// The key of a capability; none when the host is yet to answer.
    fn key(&mut self, capability: &Capability, say: &mut Vec<Frame>) -> Result<Option<usize>, Error> {
        let id = KeyId::of(capability);
        let Some(&at) = self.key_of.get(&id) else {
            if self.key_of.len() >= KEYS_MAX {
                return Err(Error::Exhausted("keys of one connection".to_owned()));
            }
            let at = self.keys.insert(Key { id, state: KeyState::Asked, in_flight: 0, revoked: None });
            self.key_of.insert(id, at);
            let request = u32::try_from(at).expect("fewer keys than that");
            say.push(Frame::Open { request, capability: capability.encode() });
            return Ok(None);
        };
        let key = self.keys.get(at);
        match key.state {
            KeyState::Asked => Ok(None),
            // Whatever waits for the old key's last flights will be refused by the host when it asks.
            KeyState::Open(_) if key.revoked.is_some() => Err(Error::Revoked),
            KeyState::Open(_) => Ok(Some(at)),
            KeyState::Refused(refusal) => {
                self.forget(at);
                Err(match refusal {
                    Refusal::Revoked => Error::Revoked,
                    Refusal::Exhausted => Error::Exhausted("registrations of the host's adapter".to_owned()),
                    Refusal::Unknown | Refusal::Stranger | Refusal::Version(_) => Error::Unknown,
                })
            }
        }
    }

    fn forget(&mut self, key: usize) {
        let key = self.keys.remove(key);
        self.key_of.remove(&key.id);
    }

    /// Whether the verb may be done under the key.
    fn check(&mut self, at: usize, target: &Target, key: usize) -> Result<(), Error> {
        let KeyState::Open(remote) = self.keys.get(key).state else { unreachable!("only open keys are checked") };
        let transfer = self.transfers.get(at);
        let wanted = transfer.verb.rights();
        if !target.capability.rights.include(wanted) || !remote.rights.include(wanted) {
            return Err(Error::Forbidden);
        }
        let length = transfer.bytes as u64;
        if target.offset.checked_add(length).is_none_or(|end| end > remote.bytes) {
            return Err(Error::OutOfBounds { offset: target.offset, length, region_bytes: remote.bytes });
        }
        Ok(())
    }

    /// Issues the next piece; false when there is no room for it.
    fn piece(&mut self, at: usize, staging: &mut Staging, chain: &mut Vec<Work>) -> bool {
        if self.flights.len() >= SENDS_MAX {
            return false;
        }
        let transfer = self.transfers.get(at);
        let rest = transfer.bytes - transfer.issued;
        let is_message = matches!(transfer.verb, Verb::Send { .. });
        let (bytes, header) =
            if is_message { (rest.min(PIECE_BYTES), HEADER_BYTES) } else { (rest.min(LARGE_BYTES), 0) };
        // A transfer of nothing is done all the same, with no memory on this side.
        let slot = match header + bytes {
            0 => None,
            length => match staging.take(length) {
                Some(slot) => Some(slot),
                None => return false,
            },
        };
        let remote = transfer.key.zip(transfer.target).map(|(key, target)| match self.keys.get(key).state {
            KeyState::Open(remote) => Remote {
                address: remote.address + target.offset + transfer_issued(&self.transfers, at),
                key: remote.key,
            },
            _ => unreachable!("a verb has only an open key"),
        });
        let transfer = self.transfers.get(at);
        let place = || remote.expect("every verb but a message has a key");
        let (order, kind) = match &mut transfer.verb {
            Verb::Read { .. } => (Order::Read(place()), Kind::Read),
            Verb::Write { data, .. } => {
                if let Some(slot) = &slot {
                    data.put(staging, slot, 0, bytes);
                }
                (Order::Write(place()), Kind::Other)
            }
            Verb::Send { data, .. } => {
                let slot = slot.as_ref().expect("a message has a header");
                staging.put(slot, 0, &Header::Piece { last: bytes == rest }.encode());
                data.put(staging, slot, HEADER_BYTES, bytes);
                (Order::Send, Kind::Other)
            }
            Verb::CompareSwap { expected, new, .. } => {
                (Order::CompareSwap { remote: place(), expected: *expected, new: *new }, Kind::Atomic)
            }
            Verb::FetchAdd { add, .. } => (Order::FetchAdd { remote: place(), add: *add }, Kind::Atomic),
        };
        transfer.issued += bytes;
        let key = transfer.key;
        self.fly(Flight { id: 0, transfer: Some(at), slot, bytes: header + bytes, kind, key }, order, staging, chain);
        true
    }

    /// The message behind a write that carries immediate data.
    fn announce(&mut self, at: usize, staging: &mut Staging, chain: &mut Vec<Work>) -> Step {
        let transfer = self.transfers.get(at);
        let (Verb::Write { immediate: Some(immediate), .. }, Some(target)) = (&transfer.verb, transfer.target) else {
            return Step::Issued;
        };
        let header = Header::Immediate {
            immediate: *immediate,
            region: target.capability.region,
            offset: target.offset,
            length: transfer.bytes as u64,
        };
        if self.flights.len() >= SENDS_MAX {
            return Step::Blocked;
        }
        let Some(slot) = staging.take(HEADER_BYTES) else { return Step::Blocked };
        staging.put(&slot, 0, &header.encode());
        let flight =
            Flight { id: 0, transfer: Some(at), slot: Some(slot), bytes: HEADER_BYTES, kind: Kind::Other, key: None };
        self.fly(flight, Order::Send, staging, chain);
        Step::Issued
    }

    fn fly(&mut self, mut flight: Flight, order: Order, staging: &Staging, chain: &mut Vec<Work>) {
        flight.id = self.next_flight;
        self.next_flight += 1;
        // What a read or atomic has yet to fetch, later work of other kinds could change.
        let fence = match flight.kind {
            Kind::Read => false,
            Kind::Atomic => self.reads > 0,
            Kind::Other => self.reads + self.atomics > 0,
        };
        match flight.kind {
            Kind::Read => self.reads += 1,
            Kind::Atomic => self.atomics += 1,
            Kind::Other => {}
        }
        if let Some(key) = flight.key {
            self.keys.get(key).in_flight += 1;
        }
        if let Some(at) = flight.transfer {
            let transfer = self.transfers.get(at);
            transfer.pieces += 1;
            transfer.outstanding += 1;
        }
        let local = match &flight.slot {
            Some(slot) => staging.local(slot, flight.bytes),
            None => NOTHING,
        };
        chain.push(Work { id: flight.id, order, local, fence });
        self.flights.push_back(flight);
    }

    /// Has the adapter write nothing to nowhere, unless it has work: a side that is lost does not even answer that.
    pub fn beat(&mut self, chain: &mut Vec<Work>) {
        if self.is_busy() {
            return;
        }
        let (id, order) = (self.next_flight, Order::Write(Remote { address: 0, key: 0 }));
        self.next_flight += 1;
        self.flights.push_back(Flight { id, transfer: None, slot: None, bytes: 0, kind: Kind::Other, key: None });
        chain.push(Work { id, order, local: NOTHING, fence: false });
    }

    /// The oldest work has ended.
    ///
    /// # Errors
    /// When it failed: the connection is of no use any more.
    pub fn ended(&mut self, ended: &Ended, staging: &mut Staging, say: &mut Vec<Frame>) -> Result<(), &'static str> {
        if let Err(error) = ended.outcome {
            return Err(error.text());
        }
        let flight = self.flights.pop_front().filter(|flight| flight.id == ended.id);
        let flight = flight.ok_or("the adapter ended work out of order")?;
        match flight.kind {
            Kind::Read => self.reads -= 1,
            Kind::Atomic => self.atomics -= 1,
            Kind::Other => {}
        }
        let Some(at) = flight.transfer else { return Ok(()) };
        let transfer = self.transfers.get(at);
        transfer.outstanding -= 1;
        if let Some(slot) = flight.slot {
            let bytes = staging.get(&slot, flight.bytes);
            match (&mut transfer.verb, flight.kind) {
                // Pieces end in order, so they only need to be put together.
                (Verb::Read { into, .. }, Kind::Read) => into.extend_from_slice(bytes),
                (_, Kind::Atomic) => {
                    transfer.word = u64::from_ne_bytes(bytes.try_into().expect("an atomic moves a word"));
                }
                _ => {}
            }
            staging.give(slot);
        }
        if transfer.outstanding == 0 && transfer.whole {
            let outcome = transfer.failed.take().map_or(Ok(()), Err);
            self.finish(at, outcome);
        }
        if let Some(at) = flight.key {
            let key = self.keys.get(at);
            key.in_flight -= 1;
            if let (0, Some(request)) = (key.in_flight, key.revoked) {
                self.forget(at);
                say.push(Frame::Drained { request });
            }
        }
        Ok(())
    }

    /// The host's answer to a question.
    ///
    /// # Errors
    /// When nobody asked.
    pub fn answered(&mut self, request: u32, answer: Result<RemoteRegion, Refusal>) -> Result<(), &'static str> {
        let asked = |key: &Key| matches!(key.state, KeyState::Asked);
        let at = usize::try_from(request)
            .ok()
            .filter(|at| self.keys.entries.get(*at).is_some_and(|key| key.as_ref().is_some_and(asked)));
        let key = self.keys.get(at.ok_or("an answer to what nobody asked")?);
        key.state = match answer {
            Ok(remote) => KeyState::Open(remote),
            Err(refusal) => KeyState::Refused(refusal),
        };
        Ok(())
    }

    /// The host takes keys back. What waits for them fails; the answer is given now or when the last flight has landed.
    pub fn revoke(&mut self, request: u32, grant: (RegionId, GrantId, u64), say: &mut Vec<Frame>) {
        let (region, number, generation) = grant;
        let mut kept = VecDeque::new();
        for at in std::mem::take(&mut self.waiting) {
            let transfer = self.transfers.get(at);
            let under =
                transfer.target.is_some_and(|target| KeyId::of(&target.capability).is(region, number, generation));
            if !under {
                kept.push_back(at);
            } else if transfer.pieces == 0 {
                self.finish(at, Err(Error::Revoked));
            } else {
                let error = Error::Ambiguous("the capability was revoked when a part had taken effect");
                transfer.whole = true;
                if transfer.outstanding == 0 {
                    self.finish(at, Err(error));
                } else {
                    transfer.failed = Some(error);
                }
            }
        }
        self.waiting = kept;
        match self.keys.find(|key| key.id.is(region, number, generation) && matches!(key.state, KeyState::Open(_))) {
            Some(at) if self.keys.get(at).in_flight > 0 => self.keys.get(at).revoked = Some(request),
            Some(at) => {
                self.forget(at);
                say.push(Frame::Drained { request });
            }
            None => say.push(Frame::Drained { request }),
        }
    }

    /// The connection has ended: nobody will ever know what became of what was posted.
    pub fn give_up(&mut self, reason: &'static str) {
        self.waiting.clear();
        self.flights.clear();
        for at in 0..self.transfers.entries.len() {
            if self.transfers.entries[at].is_some() {
                self.finish(at, Err(Error::Ambiguous(reason)));
            }
        }
    }

    fn finish(&mut self, at: usize, outcome: Result<(), Error>) {
        let transfer = self.transfers.remove(at);
        self.posted.fetch_sub(1, Ordering::Relaxed);
        transfer.complete(outcome);
    }
}

fn transfer_issued(transfers: &Slab<Transfer>, at: usize) -> u64 {
    transfers.entries[at].as_ref().map_or(0, |transfer| transfer.issued as u64)
}
