//! The connection that users of the provider hold.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use base::{Bytes, BytesMut};
use rma::{
    Capability, Completion, Connection, Error, IN_FLIGHT_MAX, IncomingEvent, MESSAGE_BYTES_MAX, NodeId, PARTS_MAX,
    ProviderProfile, TRANSFER_BYTES_MAX, WORD_BYTES,
};

use super::ConnectionCore;
use crate::profile::PROFILE;
use crate::transfer::{PostedVerb, Transfer, VerbTarget, WriteData};

/// An endpoint's handle: dropping it ends the connection.
pub struct VerbsConnection(Arc<ConnectionCore>);

impl VerbsConnection {
    pub fn new(shared: Arc<ConnectionCore>) -> VerbsConnection {
        VerbsConnection(shared)
    }

    /// Posts a verb that passed the caller's checks.
    fn post<T>(
        &self,
        target: Option<VerbTarget>,
        refused: Result<(), Error>,
        verb: impl FnOnce(rma::Completer<T>) -> PostedVerb,
    ) -> Completion<T> {
        if let Err(error) = refused {
            return Completion::ready(Err(error));
        }
        if self.0.posted.fetch_add(1, Ordering::Relaxed) >= IN_FLIGHT_MAX {
            self.0.posted.fetch_sub(1, Ordering::Relaxed);
            return Completion::ready(Err(Error::Busy));
        }
        let (completer, completion) = Completion::pending();
        self.0.post(Transfer::new(verb(completer), target));
        completion
    }
}

pub(super) fn fits(parts: &[Bytes], bytes_max: usize) -> Result<(), Error> {
    let bytes: usize = parts.iter().map(Bytes::len).sum();
    match (bytes > bytes_max, parts.len() > PARTS_MAX) {
        (true, _) => Err(Error::TooLarge(bytes)),
        (_, true) => Err(Error::TooLarge(parts.len())),
        _ => Ok(()),
    }
}

pub(super) fn aligned(offset: u64) -> Result<(), Error> {
    if offset.is_multiple_of(WORD_BYTES as u64) { Ok(()) } else { Err(Error::Misaligned(offset)) }
}

pub(super) fn at(capability: &Capability, offset: u64) -> Option<VerbTarget> {
    Some(VerbTarget { capability: *capability, offset })
}

impl Connection for VerbsConnection {
    fn node(&self) -> NodeId {
        self.0.peer.node
    }

    fn name(&self) -> &str {
        &self.0.peer.name
    }

    fn profile(&self) -> ProviderProfile {
        PROFILE
    }

    fn read(&self, capability: &Capability, offset: u64, length: usize, into: BytesMut) -> Completion<BytesMut> {
        let refused = if length > TRANSFER_BYTES_MAX { Err(Error::TooLarge(length)) } else { Ok(()) };
        self.post(at(capability, offset), refused, |completer| PostedVerb::Read { into, length, completer })
    }

    fn write(&self, capability: &Capability, offset: u64, parts: &[Bytes], immediate: Option<u32>) -> Completion<()> {
        self.post(at(capability, offset), fits(parts, TRANSFER_BYTES_MAX), |completer| PostedVerb::Write {
            data: WriteData::new(parts),
            immediate,
            completer,
        })
    }

    fn compare_swap(&self, capability: &Capability, offset: u64, expected: u64, new: u64) -> Completion<u64> {
        self.post(at(capability, offset), aligned(offset), |completer| PostedVerb::CompareSwap {
            expected,
            new,
            completer,
        })
    }

    fn fetch_add(&self, capability: &Capability, offset: u64, add: u64) -> Completion<u64> {
        self.post(at(capability, offset), aligned(offset), |completer| PostedVerb::FetchAdd { add, completer })
    }

    fn send(&self, parts: &[Bytes]) -> Completion<()> {
        self.post(None, fits(parts, MESSAGE_BYTES_MAX), |completer| PostedVerb::Send {
            data: WriteData::new(parts),
            completer,
        })
    }

    fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<Result<IncomingEvent, Error>> {
        self.0.with(|state| state.receiver.poll(cx))
    }

    fn flush(&self) {
        self.0.settle();
    }

    fn close(&self) {
        self.0.stop();
    }
}

impl Drop for VerbsConnection {
    fn drop(&mut self) {
        self.0.stop();
    }
}
