//! The data path: a verb goes to the endpoint of its section.

use std::sync::atomic::Ordering;

use base::bytes::{Bytes, BytesMut};
use base::event::ShardedSum;
use rma::Completion;

use crate::lock::lock;
use crate::space::address_space::AddressSpace;
use crate::space::table::SectionLocation;

/// Verbs that were posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VerbCounts {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Compare-and-swaps.
    pub compare_swaps: u64,
    /// Fetch-and-adds.
    pub fetch_adds: u64,
}

impl VerbCounts {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.reads + self.writes + self.compare_swaps + self.fetch_adds
    }
}

#[derive(Clone, Copy)]
#[repr(usize)]
enum Verb {
    Read,
    Write,
    CompareSwap,
    FetchAdd,
}

/// The data path.
impl AddressSpace {
    /// Reads `length` bytes and appends them to `into`. See [`rma::Endpoint::read`].
    ///
    /// Fails with [`rma::Error::OutOfBounds`] when the range is not within one section, with [`rma::Error::Closed`] when
    /// its section was released or lost.
    #[inline]
    pub fn read(&self, address: u64, length: usize, into: BytesMut) -> Completion<BytesMut> {
        self.post(Verb::Read, address, length as u64, |at, offset| {
            at.link.endpoint.read(&at.capability, offset, length, into)
        })
    }

    /// Writes the parts one after the other. Fails as [`AddressSpace::read`] does.
    #[inline]
    pub fn write(&self, address: u64, parts: &[Bytes]) -> Completion<()> {
        let length = parts.iter().map(|part| part.len() as u64).sum();
        self.post(Verb::Write, address, length, |at, offset| at.link.endpoint.write(&at.capability, offset, parts))
    }

    /// Replaces `expected` by `new`; returns the value before. Fails as [`AddressSpace::read`] does.
    #[inline]
    pub fn compare_swap(&self, address: u64, expected: u64, new: u64) -> Completion<u64> {
        self.post(Verb::CompareSwap, address, rma::WORD_BYTES as u64, |at, offset| {
            at.link.endpoint.compare_swap(&at.capability, offset, expected, new)
        })
    }

    /// Adds to a word, wrapping; returns the value before. Fails as [`AddressSpace::read`] does.
    #[inline]
    pub fn fetch_add(&self, address: u64, add: u64) -> Completion<u64> {
        self.post(Verb::FetchAdd, address, rma::WORD_BYTES as u64, |at, offset| {
            at.link.endpoint.fetch_add(&at.capability, offset, add)
        })
    }

    #[inline]
    fn post<T>(
        &self,
        verb: Verb,
        address: u64,
        length: u64,
        post: impl FnOnce(&SectionLocation, u64) -> Completion<T>,
    ) -> Completion<T> {
        let shared = &*self.shared;
        let Some((entry, offset)) = shared.table.translate(address) else {
            return Completion::ready(Err(shared.outside(address, length)));
        };
        if length > shared.section_bytes - offset {
            return Completion::ready(Err(shared.outside(offset, length)));
        }
        if !entry.is_live() {
            return Completion::ready(Err(rma::Error::Closed));
        }
        shared.verbs[verb as usize].add(1);
        if !matches!(verb, Verb::Read) && entry.is_copied.load(Ordering::Relaxed) {
            shared.note_write(address, length);
        }
        let location = shared.table.location(entry);
        let completion = post(location, offset);
        if let Some(error) = completion.failure() {
            shared.note_failure(entry, location, error);
        }
        completion
    }

    /// Reports a failed verb to the space. The space itself sees the failures of verbs that complete while they are
    /// posted. For other verbs, this call is how it learns that a donor revoked a capability without ending the
    /// connection.
    pub fn note_failure(&self, address: u64, error: &rma::Error) {
        if let Some((entry, _)) = self.shared.table.translate(address) {
            self.shared.note_failure(entry, self.shared.table.location(entry), error);
        }
    }

    /// Starts all verbs that were posted and held back for a batch.
    pub fn flush(&self) {
        if self.synchronous() {
            return;
        }
        for place in self.shared.donors.iter() {
            if let Some(link) = &*lock(&place.link) {
                link.endpoint.flush();
            }
        }
    }

    /// Whether verbs complete while they are posted, at every donor that is connected now.
    #[inline]
    pub fn synchronous(&self) -> bool {
        self.shared.asynchronous.load(Ordering::Relaxed) == 0
    }

    /// Verbs posted so far.
    pub fn verbs(&self) -> VerbCounts {
        let [reads, writes, compare_swaps, fetch_adds] = self.shared.verbs.each_ref().map(ShardedSum::value);
        VerbCounts { reads, writes, compare_swaps, fetch_adds }
    }
}
