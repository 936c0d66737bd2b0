//! The tables of production: the fjall engine, a log-structured merge tree.
//!
//! One database serves all channels of a node, with one keyspace a channel: one journal, one cache, one fsync. A batch
//! is one engine batch in one keyspace, savepoint included, so the engine's own atomicity and recovery keep rows and
//! savepoint together. The journal is synced by [`Tables::persist`] and not before; the engine may make rows durable
//! earlier by flushing a memtable, but whole batches in order, so what survives a crash is always some savepoint.
//!
//! * The newest row of a key is found by a lookup of its exact key where [`Hints`] know its version, else by a search.
//! * Values of some kilobytes and more are kept out of the merge tree, in files of their own: merging would copy them
//!   again and again (`examples/storage_costs.rs` measures it).
//! * Superseded versions go when the engine merges runs anyway: a filter drops every row that has a base above it in the
//!   same merge. [`Tables::prune`] raises the bound for that filter; its scan is needed only for what merging leaves, the
//!   deletions above all.
//!
//! This module is an exception to the ambient runtime: the engine brings its own threads and files.

mod hints;
mod journal;
mod merge;
mod tables;

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use base::{Map, rt};
use fjall::compaction::filter::Factory;
use fjall::config::{BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry};
use fjall::{CompressionType, Database, KeyspaceCreateOptions, KvSeparationOptions};

use self::merge::{Bounds, MergeFilterFactory};
use self::tables::FjallTables;
use super::{Tables, TablesEngine};
use crate::{Error, events, lock};

/// Settings of the engine. All but the cache sizes are fixed when a channel's tables are created.
#[derive(Clone, Debug)]
pub struct FjallOptions {
    /// Cache of the engine's blocks, for all channels.
    pub cache_bytes: u64,
    /// Rows of one channel that are gathered in memory before they are written out sorted.
    pub memtable_bytes: u64,
    /// The journal's files together; reaching it writes memtables out. At least 64 MiB.
    pub journal_bytes_max: u64,
    /// Threads that write out and merge, at least [`WORKER_THREADS_MIN`].
    pub worker_threads: usize,
    /// Compress blocks of rows (LZ4). Saves space, costs processor time.
    pub compression: bool,
    /// Values from this length on are kept outside the merge tree; `None` keeps all inside.
    pub separate_value_bytes: Option<u32>,
    /// Memory for the newest versions of recently used keys, for each channel (40 bytes a key).
    pub hint_bytes: usize,
}

impl Default for FjallOptions {
    fn default() -> Self {
        FjallOptions {
            cache_bytes: 64 << 20,
            memtable_bytes: 32 << 20,
            journal_bytes_max: 512 << 20,
            worker_threads: WORKER_THREADS_MIN,
            compression: false,
            separate_value_bytes: Some(2048),
            hint_bytes: 16 << 20,
        }
    }
}

/// With a single worker the engine (fjall 3.1) can lock up: writers fill its bounded queue with requests to rotate a full
/// memtable while the worker merges, and the worker then waits for room in the queue that only it empties.
pub const WORKER_THREADS_MIN: usize = 2;

const JOURNAL_BYTES_MIN: u64 = 64 << 20;

/// An engine in a directory of its own.
pub struct FjallEngine {
    path: PathBuf,
    options: FjallOptions,
    database: Database,
    /// The oldest admitted block of each keyspace, for the filter of merges.
    bounds: Arc<Bounds>,
    tables: Mutex<Map<String, Arc<FjallTables>>>,
}

impl FjallEngine {
    /// Opens the engine in a directory, which is created where it is missing.
    ///
    /// # Errors
    /// [`Error::Locked`] when another process has it open; [`Error::Corrupt`] kinds for damage; errors of the operating
    /// system.
    pub async fn open(path: &Path, options: FjallOptions) -> Result<Arc<FjallEngine>, Error> {
        let path = path.to_path_buf();
        rt::blocking(move || FjallEngine::open_blocking(path, options)).await.map(Arc::new)
    }

    fn open_blocking(path: PathBuf, options: FjallOptions) -> Result<FjallEngine, Error> {
        let bounds = Arc::new(Bounds::default());
        let database = match open_database(&path, &options, &bounds) {
            Err(fjall::Error::JournalRecovery(_) | fjall::Error::Decompress(_)) => {
                let cut = journal::cut_torn_tail(&path).map_err(|error| Error::io("repairing", &path, error))?;
                if let Some(cut) = cut {
                    events::TornTailsCut.add(1);
                    tracing::warn!(journal = %cut.path.display(), offset = cut.offset, "cut off a torn tail");
                }
                open_database(&path, &options, &bounds)
            }
            opened => opened,
        };
        let database = database.map_err(|error| Error::engine_opening(&path, error))?;
        Ok(FjallEngine { path, options, database, bounds, tables: Mutex::default() })
    }
    fn tables_blocking(&self, name: &str) -> Result<Arc<FjallTables>, Error> {
        if name.is_empty() || name.len() > 255 {
            return Err(Error::Invalid("the name of a channel's tables has 1 to 255 bytes"));
        }
        let mut tables = lock(&self.tables);
        if let Some(open) = tables.get(name) {
            return Ok(Arc::clone(open));
        }
        let keyspace = self
            .database
            .keyspace(name, || keyspace_options(&self.options))
            .map_err(|error| Error::engine("opening tables", &self.path, error))?;
        let opened = Arc::new(FjallTables::open(self, keyspace, self.bounds.of(name))?);
        tables.insert(name.to_string(), Arc::clone(&opened));
        Ok(opened)
    }
}

#[async_trait::async_trait]
impl TablesEngine for FjallEngine {
    async fn tables(&self, name: &str) -> Result<Arc<dyn Tables>, Error> {
        // Reads a handful of engine blocks at most, so it is done in place.
        Ok(self.tables_blocking(name)? as Arc<dyn Tables>)
    }
}

fn open_database(path: &Path, options: &FjallOptions, bounds: &Arc<Bounds>) -> fjall::Result<Database> {
    let bounds = Arc::clone(bounds);
    Database::builder(path)
        .cache_size(options.cache_bytes)
        .journal_compression(compression(options))
        .max_journaling_size(options.journal_bytes_max.max(JOURNAL_BYTES_MIN))
        .worker_threads(options.worker_threads.max(WORKER_THREADS_MIN))
        .manual_journal_persist(true)
        .with_compaction_filter_factories(Arc::new(move |name: &str| {
            Some(Arc::new(MergeFilterFactory { oldest: bounds.of(name) }) as Arc<dyn Factory>)
        }))
        .open()
}

fn compression(options: &FjallOptions) -> CompressionType {
    if options.compression { CompressionType::Lz4 } else { CompressionType::None }
}

fn keyspace_options(options: &FjallOptions) -> KeyspaceCreateOptions {
    let separation = options
        .separate_value_bytes
        .map(|bytes| KvSeparationOptions::default().separation_threshold(bytes).compression(compression(options)));
    let policy =
        if options.compression { CompressionPolicy::all(CompressionType::Lz4) } else { CompressionPolicy::disabled() };
    KeyspaceCreateOptions::default()
        .max_memtable_size(options.memtable_bytes)
        .manual_journal_persist(true)
        .data_block_compression_policy(policy.clone())
        .index_block_compression_policy(policy)
        .filter_policy(FilterPolicy::all(FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(10.0))))
        .with_kv_separation(separation)
}

impl fmt::Debug for FjallEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FjallEngine").field("path", &self.path).field("options", &self.options).finish_non_exhaustive()
    }
}
