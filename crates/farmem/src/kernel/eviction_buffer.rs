//! Where pages are between their eviction and the end of their write-back.

#![allow(unsafe_code)]

use std::io;

use super::mapping::Mapping;
use super::userfault::UserFaults;
use crate::error::Error;

/// Memory to which pages are moved. It is empty between two evictions.
pub(crate) struct EvictionBuffer {
    memory: Mapping,
    used: usize,
}

impl EvictionBuffer {
    /// Reserves an empty buffer of `bytes` bytes, and registers it with `faults` as a target of moves.
    ///
    /// # Errors
    /// [`Error::System`].
    pub(crate) fn new(bytes: usize, faults: &UserFaults) -> Result<EvictionBuffer, Error> {
        let memory = Mapping::reserve(bytes)?;
        // The target of a move has to be registered. The buffer is never touched where it is empty.
        faults.register(memory.address(), memory.len() as u64, false)?;
        Ok(EvictionBuffer { memory, used: 0 })
    }

    /// How many bytes it holds.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Moves pages from `source` behind the bytes that are here. Returns how many bytes were moved, as
    /// [`UserFaults::move_pages`].
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn take(&mut self, faults: &UserFaults, source: u64, bytes: u64) -> io::Result<u64> {
        assert!(self.used as u64 + bytes <= self.memory.len() as u64, "an eviction fits into the buffer");
        let moved = faults.move_pages(self.memory.address() + self.used as u64, source, bytes)?;
        self.used += moved as usize;
        Ok(moved)
    }

    /// The bytes that were moved here.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: moving and dropping pages take `&mut self`, and no other address leads to this memory.
        unsafe { self.memory.bytes(self.used) }
    }

    /// Gives the memory back to the kernel.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn clear(&mut self) -> io::Result<()> {
        if self.used > 0 {
            self.memory.drop_range(0, self.used)?;
        }
        self.used = 0;
        Ok(())
    }
}
