//! The floor of `shm`: a copy of the same size between memory of this process, or the atomic instruction.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use base::{Bytes, BytesMut};

use super::samples::Floor;
use super::verbs::{Case, Verb};
use crate::error::Error;

/// Messages go through so much memory, again and again: as much as a ring of the provider has, or one message.
const RING_BYTES: usize = 256 << 10;

/// What stands for the region.
pub struct Memory {
    bytes: Vec<u8>,
    word: AtomicU64,
}

impl Memory {
    /// So many bytes, all of which have been touched.
    pub fn new(bytes: usize) -> Memory {
        Memory { bytes: vec![1; bytes], word: AtomicU64::new(0) }
    }

    pub fn floor(&mut self, case: &Case, places: Vec<u64>) -> Copies<'_> {
        let expected = self.word.load(Ordering::SeqCst);
        Copies {
            expected,
            behind: 0,
            memory: self,
            verb: case.verb,
            bytes: case.bytes,
            places: places.into_iter().map(|place| place as usize).collect(),
            next: 0,
            payload: vec![7; case.bytes].into(),
            buffers: (0..case.depth()).map(|_| BytesMut::with_capacity(case.bytes)).collect(),
        }
    }
}

/// Copies of one case.
pub struct Copies<'a> {
    memory: &'a mut Memory,
    verb: Verb,
    bytes: usize,
    places: Vec<usize>,
    next: usize,
    payload: Bytes,
    buffers: Vec<BytesMut>,
    /// What stands in the word.
    expected: u64,
    /// Where the next message goes.
    behind: usize,
}

impl Copies<'_> {
    #[inline]
    fn one(&mut self, buffer: usize) {
        self.next = (self.next + 1) % self.places.len();
        let place = self.places[self.next];
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
            // Into what both share, one behind the other and round again, and out of it into memory of the receiver's own.
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

impl Floor for Copies<'_> {
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
