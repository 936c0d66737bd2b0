//! The engine in its directory.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use base::{Map, rt};
use fjall::compaction::filter::Factory;
use fjall::config::{BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry};
use fjall::{CompressionType, Database, KeyspaceCreateOptions, KvSeparationOptions};

use crate::tables::fjall::config::{FjallConfig, WORKER_THREADS_MIN};
use crate::tables::fjall::journal;
use crate::tables::fjall::merge::{MergeBounds, MergeFilterFactory};
use crate::tables::fjall::tables::FjallTables;
use crate::tables::{ReadableFrom, Tables, TablesEngine};
use crate::{Error, events, lock};

const JOURNAL_BYTES_MIN: u64 = 64 << 20;

/// An engine in a directory used by nothing else.
pub struct FjallEngine {
    path: PathBuf,
    options: FjallConfig,
    database: Database,
    /// The oldest admitted block of each keyspace, for the filter of merges.
    bounds: Arc<MergeBounds>,
    tables: Arc<Mutex<Map<String, Arc<FjallTables>>>>,
}

impl FjallEngine {
    /// Opens the engine in a directory, which is created if it does not exist.
    ///
    /// # Errors
    /// [`Error::Locked`] if another process has it open; [`Error::Corrupt`] kinds for damage; errors of the operating
    /// system.
    pub async fn open(path: &Path, options: FjallConfig) -> Result<Arc<FjallEngine>, Error> {
        let path = path.to_path_buf();
        rt::blocking(move || FjallEngine::open_blocking(path, options)).await.map(Arc::new)
    }

    fn open_blocking(path: PathBuf, options: FjallConfig) -> Result<FjallEngine, Error> {
        let bounds = Arc::new(MergeBounds::default());
        let database = match open_database(&path, &options, &bounds) {
            Err(fjall::Error::JournalRecovery(_) | fjall::Error::Decompress(_)) => {
                let cut = journal::truncate_torn_tail(&path).map_err(|error| Error::io("repairing", &path, error))?;
                if let Some(cut) = cut {
                    events::TornTailsTruncated.add(1);
                    tracing::warn!(journal = %cut.path.display(), offset = cut.offset, "truncated a torn tail of the journal");
                }
                open_database(&path, &options, &bounds)
            }
            opened => opened,
        };
        let database = database.map_err(|error| Error::engine_opening(&path, error))?;
        Ok(FjallEngine { path, options, database, bounds, tables: Arc::default() })
    }
    pub(super) fn open_tables(&self, name: &str, readable: ReadableFrom) -> Result<Arc<FjallTables>, Error> {
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
        let opened = Arc::new(FjallTables::open(
            &self.path,
            &self.database,
            self.options.hint_bytes,
            keyspace,
            self.bounds.of(name),
            readable,
        )?);
        tables.insert(name.to_string(), Arc::clone(&opened));
        Ok(opened)
    }
}

#[async_trait::async_trait]
impl TablesEngine for FjallEngine {
    async fn open(&self, name: &str, readable: ReadableFrom) -> Result<Arc<dyn Tables>, Error> {
        // Reads at most a few engine blocks, so it is done in place.
        Ok(self.open_tables(name, readable)? as Arc<dyn Tables>)
    }

    async fn clear(&self, name: &str) -> Result<(), Error> {
        let tables = self.open_tables(name, ReadableFrom::Savepoint)?;
        let (all, bound, name) = (Arc::clone(&self.tables), self.bounds.of(name), name.to_owned());
        // To the end, even if the caller goes away: the handle must not be given out again once rows are gone.
        rt::blocking(move || {
            tables.clear()?;
            let mut all = lock(&all);
            if all.get(&name).is_some_and(|open| Arc::ptr_eq(open, &tables)) {
                all.remove(&name);
                bound.store(0, std::sync::atomic::Ordering::Relaxed);
            }
            Ok(())
        })
        .await
    }
}

fn open_database(path: &Path, options: &FjallConfig, bounds: &Arc<MergeBounds>) -> fjall::Result<Database> {
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

pub(super) fn compression(options: &FjallConfig) -> CompressionType {
    if options.compression { CompressionType::Lz4 } else { CompressionType::None }
}

fn keyspace_options(options: &FjallConfig) -> KeyspaceCreateOptions {
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
