//! The payload of a write on its way into a region.
//!
//! Nothing is computed from an offset that the region has not checked: a write has a [`Target`] only once its whole range was
//! found to lie within the region. One that is refused, then or midway, has none, and what still comes of it is counted and
//! thrown away.

use std::io;
use std::sync::Arc;

use base::untrusted::Untrusted;

use super::memory::{Opened, Refusal, Region, Regions};
use super::peer::{Outgoing, Peer};
use super::pipe::{Pipe, ReadBuffer};
use super::wire::{Header, Kind, Status, Verb};
use crate::{Capability, Error, Incoming, Rights, WORD_BYTES};

/// The payload of a write, of which `taken` bytes have come.
pub struct Payload {
    pub target: Result<Target, Refusal>,
    capability: Capability,
    sequence: u32,
    length: u64,
    taken: u64,
    immediate: Option<u32>,
}

/// A range of a region, which has checked that it lies within.
pub struct Target {
    region: Arc<Region>,
    holder: Arc<str>,
    offset: u64,
}

impl Payload {
    /// For a write of `holder`'s, none of whose bytes have come.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn new(regions: &Regions, holder: &Arc<str>, header: &Header, verb: &Verb) -> Result<Payload, Error> {
        let immediate = match header.kind {
            Kind::WriteWithImmediate => {
                Some(u32::try_from(verb.first).map_err(|_| Error::Malformed("immediate data of more than 32 bits"))?)
            }
            _ => None,
        };
        let target = regions.find(&verb.capability).and_then(|region| {
            // The whole range, before any of it lands.
            let opened = region.open(&verb.capability, holder, Rights::WRITE, verb.offset, header.length)?;
            let offset = opened.offset();
            drop(opened);
            Ok(Target { region, holder: Arc::clone(holder), offset })
        });
        let (capability, sequence, length) = (verb.capability, header.sequence, header.length);
        Ok(Payload { target, capability, sequence, length, taken: 0, immediate })
    }

    /// Bytes that have not come.
    pub fn missing(&self) -> usize {
        usize::try_from(self.length - self.taken).expect("a transfer is bounded")
    }

    /// Bytes to the end of the word that the next byte is in; of a write that was refused, any number will do.
    pub fn to_boundary(&self) -> usize {
        let at = self.target.as_ref().map_or(0, |target| target.offset + self.taken);
        WORD_BYTES - (at % WORD_BYTES as u64) as usize
    }

    /// The region's bytes for the next `length` bytes that come, if the write still has the right.
    fn open<'a>(&'a self, target: &'a Target, length: usize) -> Result<Opened<'a>, Refusal> {
        let offset = Untrusted::new(target.offset + self.taken);
        target.region.open(&self.capability, &target.holder, Rights::WRITE, offset, length as u64)
    }

    /// Lands what is in the buffer: whole words, unless it is the end.
    pub fn land(&mut self, buffer: &mut ReadBuffer) {
        let missing = self.missing();
        let mut take = missing.min(buffer.filled().len());
        let Ok(target) = &self.target else {
            buffer.consume(take);
            self.taken += take as u64;
            return;
        };
        if take < missing {
            take = take.saturating_sub(((target.offset + self.taken + take as u64) % WORD_BYTES as u64) as usize);
            if take == 0 {
                return;
            }
        }
        let refused = match self.open(target, take) {
            Ok(mut opened) => {
                opened.bytes().copy_from_slice(&buffer.filled()[..take]);
                None
            }
            Err(refusal) => Some(refusal),
        };
        if let Some(refusal) = refused {
            self.refuse(refusal);
        }
        buffer.consume(take);
        self.taken += take as u64;
    }

    /// Lands what is in the socket, without a copy in between. 0 when less than a word is there.
    pub fn receive(&mut self, pipe: &Pipe) -> io::Result<usize> {
        let Ok(target) = &self.target else { return Ok(0) };
        let received = match self.open(target, self.missing()) {
            Ok(mut opened) => Ok(opened.receive(pipe)?),
            Err(refusal) => Err(refusal),
        };
        match received {
            Ok(received) => {
                self.taken += received as u64;
                Ok(received)
            }
            Err(refusal) => {
                self.refuse(refusal);
                Ok(0)
            }
        }
    }

    fn refuse(&mut self, refusal: Refusal) {
        let half_done = self.taken > 0;
        self.target = Err(if half_done { Refusal::of(Status::Ambiguous) } else { refusal });
    }

    pub fn finish(&self, peer: &Peer) {
        let mut outgoing = peer.outgoing();
        match &self.target {
            Err(refusal) => refuse(&mut outgoing, self.sequence, *refusal),
            Ok(_) => outgoing.push_copied(&Header::new(Kind::Reply, self.sequence, 0).encode()),
        }
        drop(outgoing);
        match (self.immediate, &self.target) {
            (Some(immediate), Ok(target)) => peer.deliver(Incoming::Immediate {
                immediate,
                region: self.capability.region,
                offset: target.offset,
                length: self.length,
            }),
            // What was admitted and is not delivered counts as taken.
            (Some(_), Err(_)) => peer.forgo(),
            (None, _) => {}
        }
    }
}

/// Queues the reply to a verb that was refused.
pub fn refuse(outgoing: &mut Outgoing, sequence: u32, refusal: Refusal) {
    let length = if refusal.status == Status::OutOfBounds { WORD_BYTES as u64 } else { 0 };
    let header = Header { kind: Kind::Reply, status: refusal.status.code(), sequence, length };
    outgoing.push_copied(&header.encode());
    if length > 0 {
        outgoing.push_copied(&refusal.region_bytes.to_le_bytes());
    }
}
