//! An allocator that counts bytes, so that a decoder's memory can be limited in proportion to its input.
#![allow(unsafe_code)] // An allocator cannot be written without; this one hands every call on to the system's.

use std::alloc::{GlobalAlloc, Layout, System};

use base::fuzz::{record_allocated, record_freed};

/// The system's allocator, which reports to [`base::fuzz`] every byte that a thread allocates and frees.
#[derive(Debug)]
pub struct Counting;

// SAFETY: every call goes unchanged to the system's allocator; counting neither allocates nor touches the memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        record_allocated(layout.size());
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        record_allocated(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        record_freed(layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // If the block moves, both copies exist for a moment.
        record_allocated(bytes);
        // SAFETY: as above.
        let moved = unsafe { System.realloc(place, layout, bytes) };
        record_freed(if moved.is_null() { bytes } else { layout.size() });
        moved
    }
}
