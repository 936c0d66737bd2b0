//! What a peer and an orderer keep on disk: blocks, world-state tables, and the directory that holds both.
//!
//! * [`blocks`]: the block store. Append-only checksummed segments; appends only at (height, previous hash); what was
//!   synced is never lost, what is damaged is named and never served.
//! * [`tables`]: the rows of the world state, keyed (namespace, key, version descending), on an embedded engine and on a
//!   deterministic model that passes the same suite.
//! * [`StateStore`]: what a world state kept elsewhere asks of storage: rows at a block, and blocks made into rows where
//!   they lie.
//! * [`History`]: which blocks wrote a key, made from the blocks once somebody asks.
//! * [`node`]: the storage node, which keeps both for others behind links, and refuses primaries that were replaced.
//! * [`GroupSync`]: one fsync round for all who wait for the disk.
//! * [`DataDirectory`]: the version and the lock of a directory of data.
//!
//! Order of durability across the two, which is the caller's to keep: a block is synced in the block store before any of
//! its rows is written to the tables, so that tables are never ahead of blocks after a crash. A savepoint of the tables
//! covers a block once [`tables::Tables::persist`] has returned, and not before.
//!
//! The formats are documented byte by byte in `docs/formats/blocks.md` and `docs/formats/tables.md`. What the bytes of a
//! block mean, and which rows a block writes, is left to the layers above.

pub mod blocks;
pub mod directory;
mod error;
pub mod events;
#[doc(hidden)]
pub mod fuzz;
pub mod history;
pub mod node;
pub mod state_store;
mod sync;
pub mod tables;
pub mod watermark;

pub use directory::DataDirectory;
pub use error::{Corruption, Error, advice};
pub use history::{History, LocalHistory};
pub use state_store::{LocalStateStore, Materializer, MemoryStateStore, StateStore};
pub use sync::{GroupSync, SyncHandle};
pub use watermark::{Watermark, WatermarkFile};

/// The checksum of every format of this crate: XXH3, 64 bits, seed 0.
///
/// It was chosen over CRC32C because it guards records of up to hundreds of megabytes, where 32 bits are few, and
/// because the engine behind the tables already brings it; both run at memory speed. It finds accidents, not
/// forgeries: those are found by the hash chain and the signatures of the blocks.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(bytes)
}

/// Takes a standard lock whose contents are whole between any two statements, so that a poisoned one is as good as
/// another.
pub(crate) fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
