//! The allocator that counts, so that a decoder can be held to the memory that its input is worth.
#![allow(unsafe_code)] // An allocator cannot be written without; this one hands every call on to the system's.

use std::alloc::{GlobalAlloc, Layout, System};

use base::fuzz::{note_freed, note_taken};

/// The system's allocator, which tells [`base::fuzz`] of every byte that a thread takes and gives back.
#[derive(Debug)]
pub struct Counting;

// SAFETY: every call goes to the system's allocator as it came; counting neither allocates nor touches the memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note_taken(layout.size());
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note_taken(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        note_freed(layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // Where the block moves, both are held for a moment.
        note_taken(bytes);
        // SAFETY: as above.
        let moved = unsafe { System.realloc(place, layout, bytes) };
        note_freed(if moved.is_null() { bytes } else { layout.size() });
        moved
    }
}
