//! Where in the private addresses everything is.

use bare::heap::Heap;
use pushdown::PRIVATE;

#[global_allocator]
static HEAP: Heap = Heap::at(PRIVATE.start as usize + (8 << 30));

/// Where stacks begin.
pub(crate) const STACKS: usize = PRIVATE.start as usize + (24 << 30);
/// Where pages on their way out lie.
pub(crate) const OUTGOING: u64 = PRIVATE.start + (28 << 30);
