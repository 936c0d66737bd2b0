//! The interface between a disaggregated world state and storage.
//!
//! A disaggregated world state keeps the writes above the savepoint in pooled memory. Storage keeps all rows up to the
//! savepoint (FlexChain, section 4.1.2). The state never sends rows to storage: storage has the blocks, and makes the
//! rows from them.
//!
//! 1. The primary appends a block with its validity filter to the [block store](crate::blocks::Blocks) and waits until
//!    the block is durable.
//! 2. Storage asks a [`Materializer`] for the rows that the valid transactions of each durable block wrote. It does so
//!    while the block's bytes are still in memory; otherwise it reads the block back first. Storage then writes the
//!    rows of the blocks above the savepoint, and the new savepoint, to the tables as one batch. Storage starts such a
//!    batch on its own, or when [`StateStore::materialize`] requests one.
//! 3. Once that batch is durable, its savepoint is the current one. Storage notifies its readers; from then on they may
//!    drop from memory the records that the savepoint covers.
//! 4. A reader asks for the rows of keys as of a block, and merges them with the writes above the savepoint, which it
//!    has in memory.
//!
//! Invariants:
//! * The savepoint never goes back, never covers a block that is not durable, and carries the header hash of its last
//!   block.
//! * Rows are a function of the blocks: materialising a block twice, or again after a crash, changes nothing.
//! * A read as of block `b`, below the savepoint, sees every row of the blocks up to `b` and no row of a later one. A
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
