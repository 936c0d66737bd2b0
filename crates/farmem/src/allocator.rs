//! An allocator over a region.
//!
//! Blocks have sizes of powers of two. A freed block is kept for the next one of its size. What the allocator knows of
//! blocks lies in ordinary memory: neither taking nor freeing a block touches far memory, so neither faults. Blocks of up to
//! a page never cross the end of one.

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::Lost;
use crate::page::PAGE_BYTES;
use crate::region::Region;
use crate::table::RegionStats;

/// Bytes of the smallest block.
const BLOCK_BYTES_MIN: usize = 16;
/// Classes of sizes: from the smallest block to the largest region.
const CLASSES: usize = 40;

/// Hands out blocks of a region, to any thread. The blocks end with it. The region itself is not shared: a read through it could
/// meet a write to a block.
pub struct RegionAllocator {
    region: Region,
    blocks: Mutex<Blocks>,
}

struct Blocks {
    /// Offset of the first byte that was never handed out.
    next: usize,
    /// Offsets of free blocks, by class.
    free: [Vec<usize>; CLASSES],
    used_bytes: usize,
}

impl RegionAllocator {
    /// All of the region is free.
    pub fn new(region: Region) -> RegionAllocator {
        let blocks = Blocks { next: 0, free: [const { Vec::new() }; CLASSES], used_bytes: 0 };
        RegionAllocator { region, blocks: Mutex::new(blocks) }
    }

    /// Bytes of the region.
    pub fn region_bytes(&self) -> usize {
        self.region.len()
    }

    /// The region's counts so far.
    pub fn stats(&self) -> RegionStats {
        self.region.stats()
    }

    /// The losses that faults have met so far.
    pub fn losses(&self) -> Vec<Lost> {
        self.region.losses()
    }

    /// Bytes of the blocks that are in use.
    pub fn used_bytes(&self) -> usize {
        self.blocks().used_bytes
    }

    fn blocks(&self) -> MutexGuard<'_, Blocks> {
        // Consistent between any two statements that may panic.
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block of this size and alignment; `None` when the region has no room, or the alignment is above a page. The content
    /// is unspecified. The block may be used from any thread until it is freed or the allocator is dropped.
    pub fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        let class = class_of(layout)?;
        let bytes = BLOCK_BYTES_MIN << class;
        let mut blocks = self.blocks();
        let offset = match blocks.free[class].pop() {
            Some(offset) => offset,
            None => {
                let start = blocks.next.next_multiple_of(bytes.min(PAGE_BYTES));
                let end = start.checked_add(bytes).filter(|end| *end <= self.region.len())?;
                // What is skipped for the alignment becomes smaller blocks.
                let mut skipped = blocks.next;
                while skipped < start {
                    let bytes = 1 << skipped.trailing_zeros().min((start - skipped).ilog2());
                    blocks.free[class_of_bytes(bytes)].push(skipped);
                    skipped += bytes;
                }
                blocks.next = end;
                start
            }
        };
        blocks.used_bytes += bytes;
        NonNull::new(self.region.as_ptr().wrapping_add(offset))
    }

    /// Frees a block. Panics when the address is none of the region.
    ///
    /// # Safety
    /// The block was given out for this layout, is not freed yet, and is not used any more.
    #[allow(unsafe_code)] // The promise is the caller's; the function itself needs none.
    pub unsafe fn free(&self, block: NonNull<u8>, layout: Layout) {
        let class = class_of(layout).expect("a block was given out for the layout");
        let offset = (block.as_ptr() as usize).checked_sub(self.region.as_ptr() as usize);
        let offset = offset.filter(|offset| *offset < self.region.len()).expect("the block is one of the region");
        let mut blocks = self.blocks();
        blocks.used_bytes -= BLOCK_BYTES_MIN << class;
        blocks.free[class].push(offset);
    }
}

fn class_of(layout: Layout) -> Option<usize> {
    let bytes = layout.size().max(layout.align()).max(BLOCK_BYTES_MIN).checked_next_power_of_two()?;
    let class = class_of_bytes(bytes);
    (class < CLASSES && layout.align() <= PAGE_BYTES).then_some(class)
}

/// The size class of a block. `bytes` is a power of two.
fn class_of_bytes(bytes: usize) -> usize {
    (bytes / BLOCK_BYTES_MIN).ilog2() as usize
}
