//! Where in the library's addresses everything is.

use bare::heap::Heap;
use pushdown::CALLER_PRIVATE;

#[global_allocator]
static HEAP: Heap = Heap::at(CALLER_PRIVATE.start as usize + (8 << 30));

/// Where the area lies.
pub(crate) const AREA: usize = CALLER_PRIVATE.start as usize;
/// Where stacks begin.
pub(crate) const STACKS: usize = CALLER_PRIVATE.start as usize + (24 << 30);
/// Where pages on their way out lie.
pub(crate) const OUTGOING: u64 = CALLER_PRIVATE.start + (28 << 30);
