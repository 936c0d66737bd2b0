//! An allocator on memory of its own.
//!
//! Sizes are powers of two; freed blocks wait in a list of their size for the next one that needs it, and never go back to
//! the kernel. That is enough for state machines, whose size is bounded by what they manage.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};
use std::ptr;

use crate::lock::RawLock;
use crate::memory::bare_memory_copy;
use crate::system_call::{Outcome, map_anonymous, map_anonymous_at, unmap};

/// Bytes of the smallest block: it must hold the address of the next one.
const BLOCK_BYTES_MIN: usize = 16;
/// Sizes of blocks that are kept in lists: up to 128 MiB.
const SIZES: usize = 24;
/// Bytes that are taken from the kernel at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// The allocator.
pub struct Heap {
    state: RawLock<HeapState>,
}

struct HeapState {
    /// The first free block of each size.
    free: [usize; SIZES],
    /// Memory that no block has had yet.
    rest: usize,
    end: usize,
    /// Where the next mapping is to lie; 0 if the kernel may choose.
    next: usize,
}

impl Heap {
    /// An allocator that has no memory yet.
    pub const fn new() -> Heap {
        Heap::at(0)
    }

    /// An allocator whose memory lies at this address and behind it, where nothing else is.
    pub const fn at(address: usize) -> Heap {
        Heap { state: RawLock::new(HeapState { free: [0; SIZES], rest: 0, end: 0, next: address }) }
    }
}

impl Default for Heap {
    fn default() -> Heap {
        Heap::new()
    }
}

/// The index of the smallest size that holds the layout.
fn size_of_layout(layout: Layout) -> Option<usize> {
    let bytes = layout.size().max(layout.align()).max(BLOCK_BYTES_MIN).checked_next_power_of_two()?;
    let size = bytes.trailing_zeros().wrapping_sub(BLOCK_BYTES_MIN.trailing_zeros()) as usize;
    (size < SIZES).then_some(size)
}

impl HeapState {
    fn map(&mut self, bytes: usize) -> Outcome {
        if self.next == 0 {
            return map_anonymous(bytes);
        }
        let mapped = map_anonymous_at(self.next, bytes)?;
        self.next = self.next.wrapping_add(bytes);
        Ok(mapped)
    }

    fn take(&mut self, size: usize) -> usize {
        let first = self.free[size];
        if first != 0 {
            // SAFETY: a free block holds the address of the next one.
            self.free[size] = unsafe { (first as *const usize).read() };
            return first;
        }
        let bytes = BLOCK_BYTES_MIN << size;
        // Blocks lie at multiples of their size, up to that of a page.
        let at = self.rest.next_multiple_of(bytes.min(crate::PAGE_BYTES));
        if self.rest != 0 && self.end.saturating_sub(at) >= bytes {
            self.rest = at.wrapping_add(bytes);
            return at;
        }
        if bytes >= CHUNK_BYTES {
            return self.map(bytes).unwrap_or(0);
        }
        match self.map(CHUNK_BYTES) {
            Ok(chunk) => {
                self.rest = chunk.wrapping_add(bytes);
                self.end = chunk.wrapping_add(CHUNK_BYTES);
                chunk
            }
            Err(_) => 0,
        }
    }
}

// SAFETY: blocks do not overlap, are as large and as aligned as their layout asks, and stay until they are freed. Alignment beyond
// a page is refused.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match size_of_layout(layout).filter(|_| layout.align() <= crate::PAGE_BYTES) {
            Some(size) => self.state.acquire().take(size) as *mut u8,
            None => ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some(size) = size_of_layout(layout) else { return };
        if BLOCK_BYTES_MIN << size >= CHUNK_BYTES {
            // SAFETY: a block of this size is a mapping of its own, which nobody uses any more.
            let _ = unsafe { unmap(block as usize, BLOCK_BYTES_MIN << size) };
            return;
        }
        let mut state = self.state.acquire();
        // SAFETY: the block is free, and large enough for an address.
        unsafe { block.cast::<usize>().write(state.free[size]) };
        state.free[size] = block as usize;
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        let Ok(wanted) = Layout::from_size_align(bytes, layout.align()) else { return ptr::null_mut() };
        if size_of_layout(wanted) == size_of_layout(layout) {
            return block;
        }
        // SAFETY: the block is the caller's, with this layout; the new one is at least as large as what is copied.
        unsafe {
            let new = self.alloc(wanted);
            if !new.is_null() {
                bare_memory_copy(new, block, layout.size().min(bytes));
                self.dealloc(block, layout);
            }
            new
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_apart_aligned_and_used_again() {
        let heap = Heap::new();
        let layouts: Vec<Layout> = (0..2000_usize)
            .map(|n| Layout::from_size_align(1 + n * 7919 % 5000, 1 << (n % 7)).expect("valid"))
            .collect();
        for _ in 0..2 {
            // SAFETY: each block is used within its layout, and freed once.
            unsafe {
                let blocks: Vec<*mut u8> = layouts.iter().map(|layout| heap.alloc(*layout)).collect();
                for (n, (block, layout)) in blocks.iter().zip(&layouts).enumerate() {
                    assert!(!block.is_null() && (*block as usize).is_multiple_of(layout.align()));
                    block.write_bytes(n as u8, layout.size());
                }
                for (n, (block, layout)) in blocks.iter().zip(&layouts).enumerate() {
                    let bytes = std::slice::from_raw_parts(*block, layout.size());
                    assert!(bytes.iter().all(|byte| *byte == n as u8), "block {n} is its own");
                    heap.dealloc(*block, *layout);
                }
            }
        }
        let before = heap.state.acquire().end;
        let layout = Layout::from_size_align(3000, 8).expect("valid");
        // SAFETY: as above.
        unsafe {
            let block = heap.alloc(layout);
            block.write_bytes(1, 3000);
            let grown = heap.realloc(block, layout, 3 << 20);
            assert!(std::slice::from_raw_parts(grown, 3000).iter().all(|byte| *byte == 1));
            heap.dealloc(grown, Layout::from_size_align(3 << 20, 8).expect("valid"));
        }
        assert_eq!(heap.state.acquire().end, before, "freed blocks served all of it");
    }
}
