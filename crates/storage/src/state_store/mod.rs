//! The interface between a disaggregated world state and storage.
//!
//! A disaggregated world state keeps the writes above the savepoint in pooled memory. Storage keeps all rows up to the
//! savepoint (FlexChain, section 4.1.2). The state never sends rows to storage: storage has the blocks, and makes the
//! rows from them.
//!
//! 1. The primary appends a block with its validity filter to the [block store](crate::blocks::Blocks) and waits until the
//!    block is durable.
//! 2. Storage asks a [`Materializer`] for the rows that the valid transactions of each durable block wrote. It does so
//!    while the block's bytes are still in memory, or else when it reads the block back. Then it writes the rows of the
//!    blocks above the savepoint to the tables, with the new savepoint, as one batch. It does this on its own, or when
//!    [`StateStore::materialize`] asks for it.
//! 3. Once that batch is durable, its savepoint is the current one. Storage notifies its readers, which may then drop
//!    the records that the savepoint covers from memory.
//! 4. A reader asks for the rows of keys as of a block, and merges them with the writes above the savepoint, which it
//!    has in memory.
//!
//! Invariants:
//! * The savepoint never goes back, never covers a block that is not durable, and carries the header hash of its last block.
//! * Rows are a function of the blocks: materialising a block twice, or again after a crash, changes nothing.
//! * A read through a block `b` below the savepoint sees every row of blocks up to `b`, and no row of a later block. A
//!   read at or above the savepoint reads at the savepoint.

mod interface;
mod local;
mod memory;

use interface::SHARED_BYTES_SOFT_MAX;
pub(crate) use interface::check_keys;
pub use interface::{
    KEYS_MAX, MATERIALIZE_BLOCKS_MAX, MATERIALIZE_BYTES_SOFT_MAX, Materializer, StateStore, check_savepoint,
};
pub use local::LocalStateStore;
pub use memory::MemoryStateStore;

#[cfg(test)]
pub(crate) mod tests;
