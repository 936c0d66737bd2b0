//! World-state tables: the rows of one channel's state, on an embedded engine.
//!
//! A row is keyed (namespace, key, version descending) and holds a value, or says that the key was deleted. Because the
//! version is part of the row's key, writing a row twice changes nothing, and older rows may be written after newer
//! ones. So eviction, materialisation and replay may write in any order. A read at a block takes the key's newest row
//! whose version is not above that block.
//!
//! 1. The owner of a state collects the rows of one or more blocks in a [`RowBatch`], with the [`Savepoint`] that they lead
//!    to, and calls [`Tables::write`]. Rows and savepoint become visible together, and survive a crash together or not at
//!    all.
//! 2. [`Tables::persist`] makes all written rows durable. Only then does the savepoint cover its blocks.
//! 3. After a crash the tables hold exactly the rows of some savepoint: the last persisted one or a later one.
//! 4. [`Tables::prune`] removes versions that no reader may ask for any more. Each call does a bounded amount of work.
//!
//! Invariants:
//! * Savepoints never go back, and no write under an older epoch takes effect.
//! * A read sees a batch as a whole or not at all: rows beyond the savepoint are not read.
//! * A read below the oldest admitted block is refused: pruning may have removed some of its rows.
//!
//! The product uses [`FjallEngine`]; simulation uses [`ModelEngine`], which is deterministic. One suite tests both against
//! this contract. `state` decides which keys a block writes, and keeps caches and deltas in memory.

mod batch;
mod fjall;
#[doc(hidden)]
pub mod fuzz;
mod interface;
mod key;
#[cfg(debug_assertions)]
mod model;
mod prune;
mod savepoint;
mod scan;

pub use batch::RowBatch;
pub use fjall::{FjallConfig, FjallEngine};
use interface::check_readable;
pub use interface::{
    PRUNE_ROWS_MIN, PruneOutcome, RangeEntry, RangePage, RangeQuery, ReadableFrom, Row, SCAN_BYTES_SOFT_MAX,
    SCAN_ROWS_MAX, Tables, TablesEngine,
};
pub use key::{KEY_BYTES_MAX, NAMESPACE_BYTES_MAX, key_bytes};
pub(crate) use key::{check as check_key, is_row_key, prefix as row_prefix};
#[cfg(debug_assertions)]
pub use model::ModelEngine;
use savepoint::check_follows;
pub use savepoint::{FORMAT_VERSION, Savepoint};

#[cfg(test)]
mod tests;
