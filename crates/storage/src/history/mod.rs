//! An index from a key to all blocks that wrote it, over a channel's whole ledger. It is built from the blocks when a
//! client first asks.
//!
//! The world state keeps the newest versions only. Clients of most channels never ask for older ones, and indexing
//! every block would slow down commits. Therefore nothing is indexed until a client asks. The steps:
//! 1. [`LocalHistory`] opens separate tables beside the channel's ([`SUFFIX`]); they are created empty. An index of another
//!    version, which the epoch of its savepoint tells, is removed first.
//! 2. The index **catches up**: it reads the blocks from its own savepoint to the requested height, a page at a time.
//!    The [`Materializer`](crate::Materializer) names the keys that their valid transactions wrote. The index writes
//!    the entries of a page and its new savepoint as one batch. After [`CATCH_UP_TIMEOUT`] it rejects the query with
//!    `Retry`. The finished pages stay, and the next query continues from there.
//! 3. The answer is one range of the index: the numbers of the blocks, newest first. The values are in the blocks,
//!    where a layer that can decode transactions reads them.
//!
//! An entry is a row in the namespace `h` with a key of 24 bytes: a 16-byte hash of namespace and key, then the
//! complement of the block's number, big-endian. Two keys with the same hash share their entries; a reader of one key
//! then also gets blocks that wrote only the other key.
//!
//! Invariants:
//! * The index is never ahead of the durable blocks. It is built from them alone, so a lost index is built again.
//! * The answers for a height, page by page, name every block below it that wrote the key.
//! * Rows of the index are never pruned.

mod interface;
mod local;

pub use interface::{HISTORY_BLOCKS_MAX, History, HistoryQuery};
pub use local::{CATCH_UP_TIMEOUT, LocalHistory, SUFFIX};

#[cfg(test)]
mod tests;
