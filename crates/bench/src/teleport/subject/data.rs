//! The memory of a subject.

use std::sync::atomic::AtomicU64;

use farmem::pushdown::{Executor, FarMemory};
use measurement::error::Error;

use crate::teleport::part;

/// Numbers of a page.
pub(super) const PAGE_WORDS: usize = farmem::PAGE_BYTES / 8;
/// Pages that both sides write.
pub(super) const SHARED_PAGES: usize = 16;
/// The process caches one part in 50 of its far data: 2 %.
pub(super) const CACHE_DIVISOR: u64 = 50;

/// A fast generator of numbers.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 20
    }
}

/// The data of a way: far memory, or the process's own.
pub(super) enum Data {
    Own(Vec<u64>),
    Far(FarMemory),
}

impl Data {
    /// Filled.
    pub(super) fn new(executor: &Executor, bytes: u64, is_far: bool) -> Result<Data, Error> {
        let words = bytes as usize / 8;
        let mut data = match is_far {
            false => Data::Own(vec![0; words]),
            true => Data::Far(executor.far_memory(bytes, bytes / CACHE_DIVISOR).map_err(|error| part(&error))?),
        };
        data.words_mut().iter_mut().enumerate().step_by(PAGE_WORDS).for_each(|(index, word)| *word = index as u64);
        Ok(data)
    }

    pub(super) fn words(&self) -> &[u64] {
        match self {
            Data::Own(words) => words,
            Data::Far(far) => far.words(),
        }
    }

    pub(super) fn words_mut(&mut self) -> &mut [u64] {
        match self {
            Data::Own(words) => words,
            Data::Far(far) => far.words_mut(),
        }
    }

    /// Sends what the process has of far memory home, and drops it.
    pub(super) fn evict(&self) -> Result<(), Error> {
        match self {
            Data::Own(_) => Ok(()),
            Data::Far(far) => far.evict().map_err(|error| part(&error)),
        }
    }
}

/// Pages of their own.
pub(super) fn shared_pages(pages: usize) -> &'static [AtomicU64] {
    let words: Vec<AtomicU64> = (0..(pages + 1) * PAGE_WORDS).map(|_| AtomicU64::new(0)).collect();
    let words = words.leak();
    let skipped = words.as_ptr().align_offset(farmem::PAGE_BYTES);
    &words[skipped..][..pages * PAGE_WORDS]
}
