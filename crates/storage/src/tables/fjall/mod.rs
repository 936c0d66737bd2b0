//! The tables that production uses, on the fjall engine, a log-structured merge tree.
//!
//! One database serves all channels of a node, so they share one journal, one cache and one fsync. Each channel has a
//! keyspace. A batch of rows, with its savepoint, is one engine batch in one keyspace, so the engine's own atomicity
//! and recovery keep rows and savepoint together. Only [`Tables::persist`](crate::tables::Tables::persist) syncs the
//! journal. The engine may make rows durable earlier, when it flushes a memtable, but always whole batches in order. So
//! after a crash the rows are those of some savepoint.
//!
//! * The newest row of a key is found by a lookup of its exact row key if [`NewestRowHints`](hints::NewestRowHints)
//!   know the newest version, otherwise by a search.
//! * Values of some kilobytes and more are kept outside the merge tree, in separate files, because merging would copy
//!   them again and again (`examples/storage_costs.rs` measures this).
//! * Most superseded versions are removed when the engine merges runs: a filter drops every row that is older than its
//!   key's base ([`super::prune`]), if the base is in the same merge. [`Tables::prune`](crate::tables::Tables::prune)
//!   raises the bound of this filter. The scan of `prune` itself is needed only for the rows that merging leaves,
//!   mainly deletions.
//!
//! This module does not use the ambient runtime ([`base::rt`]): the engine brings its own threads and files.

mod config;
mod engine;
mod hints;
mod journal;
mod merge;
mod tables;

pub use config::FjallConfig;
pub use engine::FjallEngine;

#[cfg(test)]
mod tests;
