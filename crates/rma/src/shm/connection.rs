//! The two ends of a connection as endpoints. The verbs of the caller's end are copies; the host's end has messages
//! only.
//!
//! A verb:
//! 1. sets its mark ([`hazards`]) in the connection's shared segment and checks whether the connection has ended;
//! 2. reads the grant's generation, finds the region, compares the secret and the holder's name, and checks rights and
//!    bounds;
//! 3. copies, or executes the atomic instruction;
//! 4. clears the mark and completes.
//!
//! Step 2 compares the capability with what the host has confirmed. Over a socket, the host confirms a capability to a
//! process at the first use: that verb and all verbs after it wait for the host's answer, and are then posted again, in
//! order.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering as Memory;
use std::task::{Context, Poll};

use base::{Bytes, BytesMut};

use super::connection_end::ConnectionEnd;
use super::hazards;
use super::memory::Mapping;
use super::view::{HolderDigest, HostView, SecretCheck, generation_offset};
use super::waiting::{WaitingVerb, WaitingVerbs};
use crate::{
    Atomicity, Capability, Completion, Connection, Error, IncomingEvent, NodeId, PARTS_MAX, ProviderProfile, Rights,
    TRANSFER_BYTES_MAX, VerbOrdering, WORD_BYTES,
};

pub(super) const PROFILE: ProviderProfile = ProviderProfile {
    provider: "shm",
    atomicity: Atomicity::Processor,
    ordering: VerbOrdering::Verbs,
    immediate: true,
    synchronous: true,
    host_progress: false,
};

/// Why a verb did not take effect now.
pub(super) enum VerbFailure {
    /// The verb fails.
    Failed(Error),
    /// The host must confirm the capability first.
    Unconfirmed,
}

impl From<Error> for VerbFailure {
    fn from(error: Error) -> VerbFailure {
        VerbFailure::Failed(error)
    }
}

/// The caller's end.
pub(super) struct ShmConnection {
    pub(super) side: Arc<ConnectionEnd>,
    pub(super) view: Arc<HostView>,
    /// The host's address.
    pub(super) name: String,
    /// The name that this end has proved.
    pub(super) holder: HolderDigest,
    /// Verbs that wait for an answer of the host; `None` if the host's own table is used.
    pub(super) waiting: Option<Arc<WaitingVerbs>>,
}

impl ShmConnection {
    /// Steps 1 to 4 around `access`, which gets the region's memory and the offset.
    #[inline]
    pub(super) fn execute<T>(
        &self,
        capability: &Capability,
        offset: u64,
        length: usize,
        rights: Rights,
        access: impl FnOnce(&Mapping, usize) -> T,
    ) -> Result<T, VerbFailure> {
        if capability.node != self.view.node {
            return Err(Error::Unknown.into());
        }
        let generation = generation_offset(capability.region, capability.grant).ok_or(Error::Unknown)?;
        let _mark = self.side.segment.enter(capability.region, capability.grant).ok_or(Error::Busy)?;
        if self.side.is_closed() {
            return Err(Error::Closed.into());
        }
        let current = hazards::generation(self.view.generation(generation));
        if current != capability.generation {
            let stale = capability.generation < current;
            return Err(if stale { Error::Revoked } else { Error::Unknown }.into());
        }
        // SAFETY: the mark above names the region and stands until the end of this function.
        unsafe {
            self.view.with_region(capability.region, |region| {
                let Some(region) = region else { return Err(self.unconfirmed()) };
                let granted = match region.check_secret(capability, self.holder) {
                    SecretCheck::Right(granted) => granted,
                    SecretCheck::Wrong => return Err(Error::Unknown.into()),
                    SecretCheck::Unknown => return Err(self.unconfirmed()),
                };
                if !capability.rights.include(rights) || !granted.include(rights) {
                    return Err(Error::Forbidden.into());
                }
                let size = region.memory.bytes();
                match usize::try_from(offset) {
                    Ok(at) if at <= size && length <= size - at => Ok(access(&region.memory, at)),
                    _ => Err(out_of_bounds(offset, length, size)),
                }
            })
        }
    }

    #[cold]
    fn unconfirmed(&self) -> VerbFailure {
        if self.waiting.is_some() { VerbFailure::Unconfirmed } else { Error::Unknown.into() }
    }

    /// Whether verbs wait, so that a new one must wait behind them.
    #[inline]
    fn is_waiting(&self) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| waiting.any())
    }

    #[cold]
    fn wait<T>(&self, verb: impl FnOnce(crate::Completer<T>) -> WaitingVerb) -> Completion<T> {
        match &self.waiting {
            Some(waiting) => waiting.post(verb),
            None => Completion::ready(Err(Error::Unknown)),
        }
    }

    pub(super) fn read_now(
        &self,
        capability: &Capability,
        offset: u64,
        length: usize,
        into: &mut BytesMut,
    ) -> Result<(), VerbFailure> {
        if length > TRANSFER_BYTES_MAX {
            return Err(Error::TooLarge(length).into());
        }
        // Before the mark is set: allocating memory may take long.
        into.reserve(length);
        self.execute(capability, offset, length, Rights::READ, |memory, at| memory.read(at, length, into))
    }

    pub(super) fn write_now(
        &self,
        capability: &Capability,
        offset: u64,
        parts: &[Bytes],
    ) -> Result<usize, VerbFailure> {
        let length: usize = parts.iter().map(Bytes::len).sum();
        if length > TRANSFER_BYTES_MAX || parts.len() > PARTS_MAX {
            return Err(Error::TooLarge(length.max(parts.len())).into());
        }
        self.execute(capability, offset, length, Rights::WRITE, |memory, at| memory.write_parts(at, parts))?;
        Ok(length)
    }

    fn atomic<T>(
        &self,
        capability: &Capability,
        offset: u64,
        access: impl FnOnce(&Mapping, usize) -> T,
    ) -> Result<T, VerbFailure> {
        if !offset.is_multiple_of(WORD_BYTES as u64) {
            return Err(Error::Misaligned(offset).into());
        }
        self.execute(capability, offset, WORD_BYTES, Rights::ATOMIC, access)
    }

    pub(super) fn compare_swap_now(
        &self,
        capability: &Capability,
        offset: u64,
        expected: u64,
        new: u64,
    ) -> Result<u64, VerbFailure> {
        self.atomic(capability, offset, |memory, at| {
            let (expected, new) = (expected.to_le(), new.to_le());
            let found = memory.word(at).compare_exchange(expected, new, Memory::SeqCst, Memory::SeqCst);
            u64::from_le(found.unwrap_or_else(|found| found))
        })
    }

    pub(super) fn fetch_add_now(&self, capability: &Capability, offset: u64, add: u64) -> Result<u64, VerbFailure> {
        const { assert!(cfg!(target_endian = "little"), "words are added as they lie in memory") };
        self.atomic(capability, offset, |memory, at| memory.word(at).fetch_add(add, Memory::SeqCst))
    }
}

#[cold]
fn out_of_bounds(offset: u64, length: usize, size: usize) -> VerbFailure {
    Error::OutOfBounds { offset, length: length as u64, region_bytes: size as u64 }.into()
}

impl Connection for ShmConnection {
    fn node(&self) -> NodeId {
        self.view.node
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn profile(&self) -> ProviderProfile {
        PROFILE
    }

    #[inline]
    fn read(&self, capability: &Capability, offset: u64, length: usize, mut into: BytesMut) -> Completion<BytesMut> {
        if !self.is_waiting() {
            match self.read_now(capability, offset, length, &mut into) {
                Ok(()) => return Completion::ready(Ok(into)),
                Err(VerbFailure::Failed(error)) => return Completion::ready(Err(error)),
                Err(VerbFailure::Unconfirmed) => {}
            }
        }
        let capability = *capability;
        self.wait(|completer| WaitingVerb::Read { capability, offset, length, into, completer })
    }

    #[inline]
    fn write(&self, capability: &Capability, offset: u64, parts: &[Bytes], immediate: Option<u32>) -> Completion<()> {
        if !self.is_waiting() {
            match self.write_now(capability, offset, parts) {
                Ok(length) => {
                    return match immediate {
                        None => Completion::ready(Ok(())),
                        Some(immediate) => self.side.notify(immediate, capability.region, offset, length as u64),
                    };
                }
                Err(VerbFailure::Failed(error)) => return Completion::ready(Err(error)),
                Err(VerbFailure::Unconfirmed) => {}
            }
        }
        let (capability, parts) = (*capability, parts.to_vec());
        self.wait(|completer| WaitingVerb::Write { capability, offset, parts, immediate, completer })
    }

    #[inline]
    fn compare_swap(&self, capability: &Capability, offset: u64, expected: u64, new: u64) -> Completion<u64> {
        if !self.is_waiting() {
            match self.compare_swap_now(capability, offset, expected, new) {
                Ok(found) => return Completion::ready(Ok(found)),
                Err(VerbFailure::Failed(error)) => return Completion::ready(Err(error)),
                Err(VerbFailure::Unconfirmed) => {}
            }
        }
        let capability = *capability;
        self.wait(|completer| WaitingVerb::CompareSwap { capability, offset, expected, new, completer })
    }

    #[inline]
    fn fetch_add(&self, capability: &Capability, offset: u64, add: u64) -> Completion<u64> {
        if !self.is_waiting() {
            match self.fetch_add_now(capability, offset, add) {
                Ok(found) => return Completion::ready(Ok(found)),
                Err(VerbFailure::Failed(error)) => return Completion::ready(Err(error)),
                Err(VerbFailure::Unconfirmed) => {}
            }
        }
        let capability = *capability;
        self.wait(|completer| WaitingVerb::FetchAdd { capability, offset, add, completer })
    }

    fn send(&self, parts: &[Bytes]) -> Completion<()> {
        if self.is_waiting() {
            let parts = parts.to_vec();
            return self.wait(|completer| WaitingVerb::Send { parts, completer });
        }
        self.side.send(parts)
    }

    fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<Result<IncomingEvent, Error>> {
        self.side.poll_receive(cx)
    }

    fn flush(&self) {}

    fn close(&self) {
        self.side.end();
        if let Some(waiting) = &self.waiting {
            waiting.close();
        }
    }
}

impl Drop for ShmConnection {
    fn drop(&mut self) {
        self.close();
    }
}

/// The host's end. A caller has no regions, so no capability is valid here.
pub(super) struct AcceptedConnection {
    pub(super) side: Arc<ConnectionEnd>,
    pub(super) node: NodeId,
    pub(super) name: String,
}

impl AcceptedConnection {
    fn reject<T>(&self) -> Completion<T> {
        Completion::ready(Err(if self.side.is_closed() { Error::Closed } else { Error::Unknown }))
    }
}

impl Connection for AcceptedConnection {
    fn node(&self) -> NodeId {
        self.node
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn profile(&self) -> ProviderProfile {
        PROFILE
    }

    fn read(&self, _: &Capability, _: u64, _: usize, _: BytesMut) -> Completion<BytesMut> {
        self.reject()
    }

    fn write(&self, _: &Capability, _: u64, _: &[Bytes], _: Option<u32>) -> Completion<()> {
        self.reject()
    }

    fn compare_swap(&self, _: &Capability, _: u64, _: u64, _: u64) -> Completion<u64> {
        self.reject()
    }

    fn fetch_add(&self, _: &Capability, _: u64, _: u64) -> Completion<u64> {
        self.reject()
    }

    fn send(&self, parts: &[Bytes]) -> Completion<()> {
        self.side.send(parts)
    }

    fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<Result<IncomingEvent, Error>> {
        self.side.poll_receive(cx)
    }

    fn flush(&self) {}

    fn close(&self) {
        self.side.end();
    }
}

impl Drop for AcceptedConnection {
    fn drop(&mut self) {
        self.side.end();
    }
}
