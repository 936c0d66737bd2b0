//! Blocks of a region against a model, and their content through evictions.

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::sync::Arc;

use base::rt::simulation::Prng;
use farmem::{FaultPath, RegionAllocator};

use crate::memory_store::MemoryStore;
use crate::regions::region;
use crate::time_limit::time_limit;

#[test]
fn blocks_never_overlap_and_keep_their_content() {
    let _limit = time_limit();
    let allocator =
        RegionAllocator::new(region(1 << 20, 256 << 10, Arc::new(MemoryStore::default()), FaultPath::Handler));
    let mut rng = Prng::new(3);
    let mut blocks: BTreeMap<usize, (Layout, u8)> = BTreeMap::new();
    let (mut full, mut mark) = (0, 0_u8);
    for _ in 0..6000 {
        if rng.below(5) < 3 {
            let scale = 4 + rng.below(12);
            let bytes = 1 + rng.below(1 << scale) as usize;
            let layout = Layout::from_size_align(bytes, 1 << rng.below(8)).expect("a valid layout");
            let Some(block) = allocator.allocate(layout) else {
                full += 1;
                continue;
            };
            let start = block.as_ptr() as usize;
            assert_eq!(start % layout.align(), 0);
            let before = blocks.range(..start + bytes).next_back();
            assert!(before.is_none_or(|(other, (layout, _))| other + layout.size() <= start), "blocks overlap");
            mark = mark.wrapping_add(1);
            // SAFETY: the block has as many bytes, and nobody else uses it.
            unsafe { block.as_ptr().write_bytes(mark, bytes) };
            blocks.insert(start, (layout, mark));
        } else if !blocks.is_empty() {
            let start = *blocks.keys().nth(rng.index(blocks.len())).expect("there are as many");
            let (layout, mark) = blocks.remove(&start).expect("it was just seen");
            let block = std::ptr::NonNull::new(start as *mut u8).expect("no block is at zero");
            // SAFETY: the block was given out for this layout, and is freed once, after its last use.
            unsafe {
                let bytes = std::slice::from_raw_parts(block.as_ptr(), layout.size());
                assert!(bytes.iter().all(|byte| *byte == mark), "the block was overwritten");
                allocator.free(block, layout);
            }
        }
    }
    assert!(full > 0 && allocator.stats().evicted_pages > 0);
    assert!(allocator.losses().is_empty() && allocator.region_bytes() == 1 << 20);
    assert!(allocator.used_bytes() >= blocks.values().map(|(layout, _)| layout.size()).sum());
    let aligned = Layout::from_size_align(8, 8192).expect("a valid layout");
    assert!(allocator.allocate(aligned).is_none(), "pages are the largest alignment");
}
