//! The sending part of a connection: verbs and messages on their way to the adapter and back.
//!
//! 1. Verbs wait in the order of posting. For the first verb, the sender looks up the key of the verb's capability; if
//!    the key is missing, the sender asks the host for it, once. The other verbs wait behind the first, so that verbs
//!    take effect in the order of posting.
//! 2. The sender checks the verb against the host's description of the region, and divides it into pieces of one
//!    staging slot each. All pieces for which there is space go to the adapter in one chain.
//! 3. Work on a queue pair completes in order, so a completion always belongs to the oldest piece in flight. The
//!    completion of a verb's last piece completes the verb.
//! 4. A key that the host revokes is not used any more. Verbs that wait for the key fail as revoked. When the last
//!    piece in flight under the key has completed, the sender notifies the host.
//!
//! Invariants: a piece in flight owns its slot; a key is forgotten only when nothing is in flight under it; a write,
//! message or atomic waits at the adapter for earlier reads, which it would otherwise overtake there.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::Map;
use rma::{Capability, Error, GrantId, NodeId, RegionId};

use crate::device::WorkCompletion;
use crate::device::queue_pair::{LocalBuffer, RemoteBuffer, WorkOrder, WorkRequest};
use crate::memory::{LARGE_BYTES, RECEIVE_BYTES, Staging, StagingSlot};
use crate::transfer::{PostedVerb, Transfer, VerbTarget};
use crate::wire::{Frame, HEADER_BYTES, MessageHeader, Rejection, RemoteRegion};

/// Pieces in flight at the adapter.
pub const SENDS_MAX: usize = 256;
/// Keys that one connection holds.
const KEYS_MAX: usize = 1 << 16;
/// The local range of work that moves no bytes.
const NOTHING: LocalBuffer = LocalBuffer { address: 0, bytes: 0, key: 0 };
/// Bytes of a message that one piece carries.
const CHUNK_BYTES: usize = RECEIVE_BYTES - HEADER_BYTES;

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
            secret: capability.secret.bytes(),
        }
    }

    fn is(&self, region: RegionId, grant: GrantId, generation: u64) -> bool {
        self.region == region && self.grant == grant && self.generation == generation
    }
}

struct RemoteKey {
    id: KeyId,
    state: KeyState,
    /// Pieces in flight under it.
    in_flight: u32,
    /// The request of the host's revocation, which waits for our answer.
    revoked: Option<u32>,
}

enum KeyState {
    Asked,
    Open(RemoteRegion),
    Rejected(Rejection),
}

/// A work request at the adapter; they are listed oldest first.
struct InFlightWork {
    id: u64,
    /// `None` for a keepalive.
    transfer: Option<usize>,
    slot: Option<StagingSlot>,
    bytes: usize,
    kind: WorkKind,
    key: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WorkKind {
    Read,
    Atomic,
    Other,
}

enum SendStep {
    /// Every piece is in flight.
    Issued,
    /// The transfer has to wait.
    Blocked,
    /// The transfer fails, and had no effect.
    Failed(Error),
}

/// Values that are addressed by small numbers.
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
    /// Transfers with pieces that are not issued.
    waiting: VecDeque<usize>,
    flights: VecDeque<InFlightWork>,
    next_flight: u64,
    reads: u32,
    atomics: u32,
    keys: Slab<RemoteKey>,
    key_of: Map<KeyId, usize>,
    /// The number of verbs that have not completed, shared with the posters.
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

    /// Whether the adapter has work, so that it pays to poll for it.
    pub fn is_busy(&self) -> bool {
        !self.flights.is_empty()
    }

    pub fn accept(&mut self, transfer: Transfer) {
        let at = self.transfers.insert(transfer);
        self.waiting.push_back(at);
    }

    /// Turns waiting transfers into work, as far as possible; `say` collects the requests to the host.
    pub fn issue(&mut self, staging: &mut Staging, chain: &mut Vec<WorkRequest>, say: &mut Vec<Frame>) {
        while let Some(&at) = self.waiting.front() {
            match self.advance(at, staging, chain, say) {
                SendStep::Blocked => return,
                SendStep::Issued => {
                    self.waiting.pop_front();
                    self.transfers.get(at).whole = true;
                }
                SendStep::Failed(error) => {
                    self.waiting.pop_front();
                    self.finish(at, Err(error));
                }
            }
        }
    }

    fn advance(
        &mut self,
        at: usize,
        staging: &mut Staging,
        chain: &mut Vec<WorkRequest>,
        say: &mut Vec<Frame>,
    ) -> SendStep {
        let transfer = self.transfers.get(at);
        if let (Some(target), None) = (transfer.target, transfer.key) {
            match self.key(&target.capability, say) {
                Ok(Some(key)) => {
                    if let Err(error) = self.check(at, &target, key) {
                        return SendStep::Failed(error);
                    }
                    self.transfers.get(at).key = Some(key);
                }
                Ok(None) => return SendStep::Blocked,
                Err(error) => return SendStep::Failed(error),
            }
        }
        loop {
            let transfer = self.transfers.get(at);
            let rest = transfer.bytes - transfer.issued;
            if rest == 0 && transfer.pieces > 0 {
                break;
            }
            if !self.piece(at, staging, chain) {
                return SendStep::Blocked;
            }
        }
        self.announce(at, staging, chain)
    }

    /// The key of a capability; `None` while the host has not answered.
    fn key(&mut self, capability: &Capability, say: &mut Vec<Frame>) -> Result<Option<usize>, Error> {
        let id = KeyId::of(capability);
        let Some(&at) = self.key_of.get(&id) else {
            if self.key_of.len() >= KEYS_MAX {
                return Err(Error::Exhausted("the connection has the maximum number of keys".to_owned()));
            }
            let at = self.keys.insert(RemoteKey { id, state: KeyState::Asked, in_flight: 0, revoked: None });
            self.key_of.insert(id, at);
            let request = u32::try_from(at).expect("fewer keys than that");
            say.push(Frame::Open { request, capability: capability.encode() });
            return Ok(None);
        };
        let key = self.keys.get(at);
        match key.state {
            KeyState::Asked => Ok(None),
            // A verb that would wait for the old key's last work requests gets the answer that the host would give.
            KeyState::Open(_) if key.revoked.is_some() => Err(Error::Revoked),
            KeyState::Open(_) => Ok(Some(at)),
            KeyState::Rejected(rejection) => {
                self.forget(at);
                Err(match rejection {
                    Rejection::Revoked => Error::Revoked,
                    Rejection::Exhausted => Error::Exhausted("the host's adapter has no registration left".to_owned()),
                    Rejection::Unknown | Rejection::Unauthenticated => Error::Unknown,
                })
            }
        }
    }

    fn forget(&mut self, key: usize) {
        let key = self.keys.remove(key);
        self.key_of.remove(&key.id);
    }

    /// Whether the key permits the verb.
    fn check(&mut self, at: usize, target: &VerbTarget, key: usize) -> Result<(), Error> {
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

    /// Issues the next piece. Returns false when there is no space for it.
    fn piece(&mut self, at: usize, staging: &mut Staging, chain: &mut Vec<WorkRequest>) -> bool {
        if self.flights.len() >= SENDS_MAX {
            return false;
        }
        let transfer = self.transfers.get(at);
        let rest = transfer.bytes - transfer.issued;
        let is_message = matches!(transfer.verb, PostedVerb::Send { .. });
        let (bytes, header) =
            if is_message { (rest.min(CHUNK_BYTES), HEADER_BYTES) } else { (rest.min(LARGE_BYTES), 0) };
        // A transfer of no bytes is issued all the same, without local memory.
        let slot = match header + bytes {
            0 => None,
            length => match staging.take(length) {
                Some(slot) => Some(slot),
                None => return false,
            },
        };
        let remote = transfer.key.zip(transfer.target).map(|(key, target)| match self.keys.get(key).state {
            KeyState::Open(remote) => RemoteBuffer {
                address: remote.address + target.offset + transfer_issued(&self.transfers, at),
                key: remote.key,
            },
            _ => unreachable!("a verb has only an open key"),
        });
        let transfer = self.transfers.get(at);
        let place = || remote.expect("every verb but a message has a key");
        let (order, kind) = match &mut transfer.verb {
            PostedVerb::Read { .. } => (WorkOrder::Read(place()), WorkKind::Read),
            PostedVerb::Write { data, .. } => {
                if let Some(slot) = &slot {
                    data.put(staging, slot, 0, bytes);
                }
                (WorkOrder::Write(place()), WorkKind::Other)
            }
            PostedVerb::Send { data, .. } => {
                let slot = slot.as_ref().expect("a message has a header");
                staging.put(slot, 0, &MessageHeader::Piece { last: bytes == rest }.encode());
                data.put(staging, slot, HEADER_BYTES, bytes);
                (WorkOrder::Send, WorkKind::Other)
            }
            PostedVerb::CompareSwap { expected, new, .. } => {
                (WorkOrder::CompareSwap { remote: place(), expected: *expected, new: *new }, WorkKind::Atomic)
            }
            PostedVerb::FetchAdd { add, .. } => (WorkOrder::FetchAdd { remote: place(), add: *add }, WorkKind::Atomic),
        };
        transfer.issued += bytes;
        let key = transfer.key;
        self.fly(
            InFlightWork { id: 0, transfer: Some(at), slot, bytes: header + bytes, kind, key },
            order,
            staging,
            chain,
        );
        true
    }

    /// Sends the message that follows a write with immediate data.
    fn announce(&mut self, at: usize, staging: &mut Staging, chain: &mut Vec<WorkRequest>) -> SendStep {
        let transfer = self.transfers.get(at);
        let (PostedVerb::Write { immediate: Some(immediate), .. }, Some(target)) = (&transfer.verb, transfer.target)
        else {
            return SendStep::Issued;
        };
        let header = MessageHeader::Immediate {
            immediate: *immediate,
            region: target.capability.region,
            offset: target.offset,
            length: transfer.bytes as u64,
        };
        if self.flights.len() >= SENDS_MAX {
            return SendStep::Blocked;
        }
        let Some(slot) = staging.take(HEADER_BYTES) else { return SendStep::Blocked };
        staging.put(&slot, 0, &header.encode());
        let flight = InFlightWork {
            id: 0,
            transfer: Some(at),
            slot: Some(slot),
            bytes: HEADER_BYTES,
            kind: WorkKind::Other,
            key: None,
        };
        self.fly(flight, WorkOrder::Send, staging, chain);
        SendStep::Issued
    }

    fn fly(&mut self, mut flight: InFlightWork, order: WorkOrder, staging: &Staging, chain: &mut Vec<WorkRequest>) {
        flight.id = self.next_flight;
        self.next_flight += 1;
        // Later work of other kinds could change bytes that a read or atomic has yet to fetch.
        let fence = match flight.kind {
            WorkKind::Read => false,
            WorkKind::Atomic => self.reads > 0,
            WorkKind::Other => self.reads + self.atomics > 0,
        };
        match flight.kind {
            WorkKind::Read => self.reads += 1,
            WorkKind::Atomic => self.atomics += 1,
            WorkKind::Other => {}
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
        chain.push(WorkRequest { id: flight.id, order, local, fence });
        self.flights.push_back(flight);
    }

    /// Posts a zero-length write as a keepalive, unless the adapter has work: a lost peer does not even acknowledge that.
    pub fn beat(&mut self, chain: &mut Vec<WorkRequest>) {
        if self.is_busy() {
            return;
        }
        let (id, order) = (self.next_flight, WorkOrder::Write(RemoteBuffer { address: 0, key: 0 }));
        self.next_flight += 1;
        self.flights.push_back(InFlightWork {
            id,
            transfer: None,
            slot: None,
            bytes: 0,
            kind: WorkKind::Other,
            key: None,
        });
        chain.push(WorkRequest { id, order, local: NOTHING, fence: false });
    }

    /// The oldest work request has completed.
    ///
    /// # Errors
    /// When it failed: the connection is unusable from then on.
    pub fn ended(
        &mut self,
        ended: &WorkCompletion,
        staging: &mut Staging,
        say: &mut Vec<Frame>,
    ) -> Result<(), &'static str> {
        if let Err(error) = ended.outcome {
            return Err(error.text());
        }
        let flight = self.flights.pop_front().filter(|flight| flight.id == ended.id);
        let flight = flight.ok_or("the adapter ended work out of order")?;
        match flight.kind {
            WorkKind::Read => self.reads -= 1,
            WorkKind::Atomic => self.atomics -= 1,
            WorkKind::Other => {}
        }
        let Some(at) = flight.transfer else { return Ok(()) };
        let transfer = self.transfers.get(at);
        transfer.outstanding -= 1;
        if let Some(slot) = flight.slot {
            let bytes = staging.get(&slot, flight.bytes);
            match (&mut transfer.verb, flight.kind) {
                // Pieces complete in order, so they only need to be appended.
                (PostedVerb::Read { into, .. }, WorkKind::Read) => into.extend_from_slice(bytes),
                (_, WorkKind::Atomic) => {
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

    /// Handles the host's answer to an `Open`.
    ///
    /// # Errors
    /// When there was no such request.
    pub fn answered(&mut self, request: u32, answer: Result<RemoteRegion, Rejection>) -> Result<(), &'static str> {
        let asked = |key: &RemoteKey| matches!(key.state, KeyState::Asked);
        let at = usize::try_from(request)
            .ok()
            .filter(|at| self.keys.entries.get(*at).is_some_and(|key| key.as_ref().is_some_and(asked)));
        let key = self.keys.get(at.ok_or("an answer without a request")?);
        key.state = match answer {
            Ok(remote) => KeyState::Open(remote),
            Err(rejection) => KeyState::Rejected(rejection),
        };
        Ok(())
    }

    /// The host revokes keys. Verbs that wait for them fail; the answer is sent now, or when the last work request under the
    /// key completes.
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
                let error = Error::Ambiguous("the capability was revoked after a part of the verb had taken effect");
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

    /// The connection has ended: the outcome of posted verbs stays unknown.
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
