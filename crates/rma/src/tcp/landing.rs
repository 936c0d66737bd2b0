//! The payload of a write on its way into a region.
//!
//! An address is computed only from an offset that the region has checked: a write has a [`LandingTarget`] only once the region
//! has found that the write's whole range lies within it. A write that is rejected, at the start or midway, has no target; its
//! remaining bytes are counted and dropped.

use std::io;
use std::sync::Arc;

use base::untrusted::Untrusted;

use super::memory::{HostRegion, HostRegions, OpenRegion, VerbRejection};
use super::outgoing::OutgoingQueue;
use super::peer::ConnectionQueues;
use super::pipe::{ReadBuffer, SocketPipe};
use super::wire::{FrameHeader, FrameKind, VerbFrame, VerbStatus};
use crate::{Capability, Error, IncomingEvent, Rights, WORD_BYTES};

/// The payload of a write, of which `taken` bytes have arrived.
pub struct WritePayload {
    pub target: Result<LandingTarget, VerbRejection>,
    capability: Capability,
    sequence: u32,
    length: u64,
    taken: u64,
    immediate: Option<u32>,
}

/// A range that the region has checked to lie within it.
pub struct LandingTarget {
    region: Arc<HostRegion>,
    holder: Arc<str>,
    offset: u64,
}

impl WritePayload {
    /// For a write by `holder`, of which no bytes have arrived.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn new(
        regions: &HostRegions,
        holder: &Arc<str>,
        header: &FrameHeader,
        verb: &VerbFrame,
    ) -> Result<WritePayload, Error> {
        let immediate = match header.kind {
            FrameKind::WriteWithImmediate => {
                Some(u32::try_from(verb.first).map_err(|_| Error::Malformed("immediate data of more than 32 bits"))?)
            }
            _ => None,
        };
        let target = regions.find(&verb.capability).and_then(|region| {
            // Checks the whole range before any of it lands.
            let opened = region.open(&verb.capability, holder, Rights::WRITE, verb.offset, header.length)?;
            let offset = opened.offset();
            drop(opened);
            Ok(LandingTarget { region, holder: Arc::clone(holder), offset })
        });
        let (capability, sequence, length) = (verb.capability, header.sequence, header.length);
        Ok(WritePayload { target, capability, sequence, length, taken: 0, immediate })
    }

    /// Bytes that have not arrived.
    pub fn missing(&self) -> usize {
        usize::try_from(self.length - self.taken).expect("a transfer is bounded")
    }

    /// Bytes to the end of the word that contains the next byte; any number for a rejected write.
    pub fn to_boundary(&self) -> usize {
        let at = self.target.as_ref().map_or(0, |target| target.offset + self.taken);
        WORD_BYTES - (at % WORD_BYTES as u64) as usize
    }

    /// Opens the region for the next `length` bytes, if the write still has the right.
    fn open<'a>(&'a self, target: &'a LandingTarget, length: usize) -> Result<OpenRegion<'a>, VerbRejection> {
        let offset = Untrusted::new(target.offset + self.taken);
        target.region.open(&self.capability, &target.holder, Rights::WRITE, offset, length as u64)
    }

    /// Copies the buffered bytes into the region: whole words only, unless they reach the end of the payload.
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
            self.reject(refusal);
        }
        buffer.consume(take);
        self.taken += take as u64;
    }

    /// Receives from the socket into the region, without a copy in between. Returns 0 when less than a word is there.
    pub fn receive(&mut self, pipe: &SocketPipe) -> io::Result<usize> {
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
                self.reject(refusal);
                Ok(0)
            }
        }
    }

    fn reject(&mut self, refusal: VerbRejection) {
        let half_done = self.taken > 0;
        self.target = Err(if half_done { VerbRejection::of(VerbStatus::Ambiguous) } else { refusal });
    }

    pub fn finish(&self, peer: &ConnectionQueues) {
        let mut outgoing = peer.outgoing();
        match &self.target {
            Err(refusal) => reject(&mut outgoing, self.sequence, *refusal),
            Ok(_) => outgoing.push_copied(&FrameHeader::new(FrameKind::Reply, self.sequence, 0).encode()),
        }
        drop(outgoing);
        match (self.immediate, &self.target) {
            (Some(immediate), Ok(target)) => peer.deliver(IncomingEvent::Immediate {
                immediate,
                region: self.capability.region,
                offset: target.offset,
                length: self.length,
            }),
            // An admitted message that is not delivered counts as taken.
            (Some(_), Err(_)) => peer.discard_admitted(),
            (None, _) => {}
        }
    }
}

/// Queues the reply to a rejected verb.
pub fn reject(outgoing: &mut OutgoingQueue, sequence: u32, refusal: VerbRejection) {
    let length = if refusal.status == VerbStatus::OutOfBounds { WORD_BYTES as u64 } else { 0 };
    let header = FrameHeader { kind: FrameKind::Reply, status: refusal.status.code(), sequence, length };
    outgoing.push_copied(&header.encode());
    if length > 0 {
        outgoing.push_copied(&refusal.region_bytes.to_le_bytes());
    }
}
