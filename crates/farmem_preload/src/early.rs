//! Memory for what is allocated before there is a heap.
//!
//! A heap whose home is an executor can be opened only by a program whose libraries are set up. Until then the dynamic linker and the
//! constructors of libraries allocate here. It is ordinary memory, given out once: what is freed is not used again.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicUsize, Ordering};

use bare::system_call::{Errno, map_anonymous};

/// Addresses that are reserved: far more than the libraries of a program allocate before `main`.
const AREA_BYTES: usize = 64 << 20;
/// In front of each block is its length, and blocks are aligned so far.
const ALIGNMENT: usize = 16;

/// 0: there is no area.
static START: AtomicUsize = AtomicUsize::new(0);
static USED: AtomicUsize = AtomicUsize::new(0);

/// Reserves the addresses.
///
/// # Errors
/// Of the operating system.
pub(crate) fn reserve() -> Result<(), Errno> {
    START.store(map_anonymous(AREA_BYTES)?, Ordering::Release);
    Ok(())
}

/// Whether a block was allocated here.
#[inline]
pub(crate) fn owns(block: usize) -> bool {
    let start = START.load(Ordering::Relaxed);
    start != 0 && block.wrapping_sub(start) < AREA_BYTES
}

/// Allocates a block of zeros; its address. `alignment` is a power of two. `None` if there is no room.
pub(crate) fn allocate(bytes: usize, alignment: usize) -> Option<usize> {
    let start = START.load(Ordering::Acquire);
    let place = |used: usize| {
        let block = (start + used + ALIGNMENT).checked_next_multiple_of(alignment.max(ALIGNMENT))?;
        let end = block.checked_add(bytes)?.checked_next_multiple_of(ALIGNMENT)?;
        (end <= start + AREA_BYTES).then_some((block, end - start))
    };
    let used = USED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| place(used).map(|(_, end)| end)).ok()?;
    let (block, _) = place(used)?;
    // SAFETY: the number lies in front of the block, in the part of the area that this call has taken.
    unsafe { ((block - ALIGNMENT) as *mut usize).write(bytes) };
    Some(block)
}

/// How many bytes a block has that was allocated here.
///
/// # Safety
/// It was.
pub(crate) unsafe fn bytes_of(block: usize) -> usize {
    // SAFETY: `allocate` has written the number, and nobody else does.
    unsafe { ((block - ALIGNMENT) as *const usize).read() }
}

#[cfg(test)]
mod tests {
    use super::{AREA_BYTES, allocate, bytes_of, owns, reserve};

    #[test]
    fn blocks_are_aligned_apart_and_bounded() {
        assert!(!owns(0) && !owns(1 << 20), "there is no area yet");
        reserve().expect("there are addresses");
        let mut end = 0;
        for (bytes, alignment) in [(0, 1), (1, 16), (100, 64), (5000, 4096), (16, 16)] {
            let block = allocate(bytes, alignment).expect("there is room");
            assert!(block >= end && block.is_multiple_of(alignment.max(16)) && owns(block));
            // SAFETY: the block was allocated here.
            assert_eq!(unsafe { bytes_of(block) }, bytes);
            end = block + bytes;
        }
        assert_eq!(allocate(AREA_BYTES, 16), None);
        assert_eq!(allocate(usize::MAX, 16), None);
        assert_eq!(allocate(16, 1 << 63), None);
        assert!(allocate(16, 16).is_some());
    }
}
