//! The floor of `shm`: a copy of the same size within the memory of this process, or the atomic instruction.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use base::{Bytes, BytesMut};

use super::verbs::{Verb, VerbCase};
use crate::rma::floor::FloorOperation;
use measurement::error::Error;

/// Messages go through this much memory, again and again: as much as a ring of the provider has, or one message.
const RING_BYTES: usize = 256 << 10;

/// Memory in place of a region.
pub struct LocalMemory {
    bytes: Vec<u8>,
    word: AtomicU64,
}

impl LocalMemory {
    /// Memory of this many bytes, all of which have been touched.
    pub fn new(bytes: usize) -> LocalMemory {
        LocalMemory { bytes: vec![1; bytes], word: AtomicU64::new(0) }
    }

    pub fn floor(&mut self, case: &VerbCase, places: Vec<u64>) -> CopyFloor<'_> {
        let expected = self.word.load(Ordering::SeqCst);
        CopyFloor {
            expected,
            behind: 0,
            memory: self,
            verb: case.verb,
            bytes: case.bytes,
            offsets: places.into_iter().map(|place| place as usize).collect(),
            next: 0,
            payload: vec![7; case.bytes].into(),
            buffers: (0..case.depth()).map(|_| BytesMut::with_capacity(case.bytes)).collect(),
        }
    }
}

/// Copies of one case.
pub struct CopyFloor<'a> {
    memory: &'a mut LocalMemory,
    verb: Verb,
    bytes: usize,
    offsets: Vec<usize>,
    next: usize,
    payload: Bytes,
    buffers: Vec<BytesMut>,
    /// The current value of the word.
    expected: u64,
    /// The offset of the next message.
    behind: usize,
}

impl CopyFloor<'_> {
    #[inline]
    fn one(&mut self, buffer: usize) {
        self.next = (self.next + 1) % self.offsets.len();
        let place = self.offsets[self.next];
        let range = place..place + self.bytes;
        match self.verb {
            Verb::Read => {
                let into = &mut self.buffers[buffer];
                into.clear();
                into.extend_from_slice(&self.memory.bytes[range]);
                black_box(into);
            }
            Verb::Write | Verb::WriteWithImmediate => {
                self.memory.bytes[range].copy_from_slice(&self.payload);
                black_box(&mut self.memory.bytes);
            }
            Verb::CompareSwap => {
                let (word, expected) = (&self.memory.word, self.expected);
                let found = word.compare_exchange(expected, expected + 1, Ordering::SeqCst, Ordering::SeqCst);
                self.expected = found.map_or_else(|found| found, |found| found + 1);
            }
            Verb::FetchAdd => {
                black_box(self.memory.word.fetch_add(1, Ordering::SeqCst));
            }
            // Into the shared memory, one behind the other and round again, and from there into the receiver's own memory.
            Verb::Send => {
                self.behind = if self.behind + self.bytes > RING_BYTES { 0 } else { self.behind };
                let range = self.behind..self.behind + self.bytes;
                self.behind = range.end;
                self.memory.bytes[range.clone()].copy_from_slice(&self.payload);
                black_box(&mut self.memory.bytes);
                black_box(Bytes::copy_from_slice(&self.memory.bytes[range]));
            }
        }
    }
}

impl FloorOperation for CopyFloor<'_> {
    fn one_by_one(&mut self, count: usize, samples: &mut Vec<u32>) -> Result<(), Error> {
        let mut last = Instant::now();
        for _ in 0..count {
            self.one(0);
            let now = Instant::now();
            samples.push(u32::try_from((now - last).as_nanos()).unwrap_or(u32::MAX));
            last = now;
        }
        Ok(())
    }

    fn many(&mut self, count: usize) -> Result<(), Error> {
        for index in 0..count {
            self.one(index % self.buffers.len());
        }
        Ok(())
    }
}
