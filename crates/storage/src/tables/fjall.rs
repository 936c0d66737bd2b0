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

use std::fmt;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use base::{BlockNumber, Bytes, Map, rt};
use fjall::compaction::filter::{CompactionFilter, CompactionFilterResult, Context, Factory, ItemAccessor, Verdict};
use fjall::config::{BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry};
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode};

use super::hints::{Hints, Lookup, Newest};
use super::key::{self, RowKey};
use super::prune::{self, Judge};
use super::{
    Pruned, RangeEntry, RangePage, Row, RowBatch, SCAN_ROWS_MAX, Savepoint, Tables, TablesEngine, check_follows,
    check_readable,
};
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
    /// Threads that write out and merge.
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
            worker_threads: 1,
            compression: false,
            separate_value_bytes: Some(2048),
            hint_bytes: 16 << 20,
        }
    }
}

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

/// What each keyspace's merges may drop, by the keyspace's name.
#[derive(Default)]
struct Bounds(Mutex<Map<String, Arc<AtomicU64>>>);

impl Bounds {
    fn of(&self, name: &str) -> Arc<AtomicU64> {
        Arc::clone(lock(&self.0).entry(name.to_string()).or_default())
    }
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
        let filters = Arc::clone(&bounds);
        let compression = compression(&options);
        let database = Database::builder(&path)
            .cache_size(options.cache_bytes)
            .journal_compression(compression)
            .max_journaling_size(options.journal_bytes_max.max(JOURNAL_BYTES_MIN))
            .worker_threads(options.worker_threads.max(1))
            .manual_journal_persist(true)
            .with_compaction_filter_factories(Arc::new(move |name: &str| {
                Some(Arc::new(MergeFilterFactory { oldest: filters.of(name) }) as Arc<dyn Factory>)
            }))
            .open()
            .map_err(|error| match error {
                fjall::Error::Locked => Error::Locked { path: path.clone() },
                error => Error::engine("opening", &path, error),
            })?;
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

fn compression(options: &FjallOptions) -> CompressionType {
    if options.compression { CompressionType::Lz4 } else { CompressionType::None }
}

fn keyspace_options(options: &FjallOptions) -> KeyspaceCreateOptions {
    let separation = options.separate_value_bytes.map(|bytes| {
        KvSeparationOptions::default().separation_threshold(bytes).compression(compression(options))
    });
    let policy = if options.compression {
        CompressionPolicy::all(CompressionType::Lz4)
    } else {
        CompressionPolicy::disabled()
    };
    KeyspaceCreateOptions::default()
        .max_memtable_size(options.memtable_bytes)
        .manual_journal_persist(true)
        .data_block_compression_policy(policy.clone())
        .index_block_compression_policy(policy)
        .filter_policy(FilterPolicy::all(FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(10.0))))
        .with_kv_separation(separation)
}

/// One channel's tables in the engine.
pub struct FjallTables {
    path: PathBuf,
    database: Database,
    keyspace: Keyspace,
    hints: Hints,
    /// What has been written; also serialises writers.
    writing: Mutex<()>,
    savepoint: Mutex<Savepoint>,
    durable: Mutex<Savepoint>,
    /// Reads below this block are refused, and merges drop what it supersedes.
    oldest: Arc<AtomicU64>,
    /// Where the scan of [`Tables::prune`] goes on.
    cursor: Mutex<Vec<u8>>,
}

impl FjallTables {
    fn open(engine: &FjallEngine, keyspace: Keyspace, oldest: Arc<AtomicU64>) -> Result<FjallTables, Error> {
        let found =
            keyspace.get(key::SAVEPOINT).map_err(|error| Error::engine("reading the savepoint", &engine.path, error))?;
        let savepoint = match found {
            None => Savepoint::default(),
            Some(bytes) => decode_savepoint(&engine.path, &bytes)?,
        };
        // What earlier runs pruned is not known, so nothing below the savepoint is promised.
        oldest.fetch_max(savepoint.height.saturating_sub(1), Ordering::Relaxed);
        Ok(FjallTables {
            path: engine.path.clone(),
            database: engine.database.clone(),
            keyspace,
            hints: Hints::new(engine.options.hint_bytes),
            writing: Mutex::new(()),
            savepoint: Mutex::new(savepoint),
            durable: Mutex::new(savepoint),
            oldest,
            cursor: Mutex::new(key::first_row()),
        })
    }

    fn engine_error(&self, doing: &'static str) -> impl Fn(fjall::Error) -> Error + '_ {
        move |error| Error::engine(doing, &self.path, error)
    }

    /// The block to read at, or `None` where there is nothing to read.
    fn readable(&self, through: BlockNumber) -> Result<Option<u64>, Error> {
        let Some(through) = self.savepoint().clamp(through) else { return Ok(None) };
        check_readable(through, self.oldest.load(Ordering::Relaxed))?;
        Ok(Some(through))
    }

    /// The newest version of a key at or below `through`. `prefix` is extended and restored.
    fn newest(&self, prefix: &mut Vec<u8>, through: u64) -> Result<Newest, Error> {
        let seek = match self.hints.lookup(prefix) {
            Lookup::Found(known @ Newest::Row { version, .. }) if version.block <= through => {
                events::HintHits.add(1);
                return Ok(known);
            }
            Lookup::Found(Newest::Absent) => {
                events::HintHits.add(1);
                return Ok(Newest::Absent);
            }
            Lookup::Found(_) => None,
            Lookup::Unknown(ticket) => Some(ticket),
        };
        events::HintMisses.add(1);
        // A search for the hint begins at the newest row of all, which is nearly always the one asked for.
        let begin = if seek.is_some() { u64::MAX } else { through };
        let length = prefix.len();
        key::push_seek(prefix, begin);
        let low = prefix.clone();
        prefix.truncate(length);
        key::push_last(prefix);
        let rows = self.keyspace.range::<&[u8], _>((Bound::Included(&low[..]), Bound::Included(&prefix[..])));
        let mut newest_of_all = None;
        let mut found = Newest::Absent;
        for row in rows {
            let bytes = row.key().map_err(self.engine_error("searching a row"))?;
            let row = self.split(&bytes)?;
            let this = Newest::Row { version: row.version, live: row.live };
            newest_of_all.get_or_insert(this);
            if row.version.block <= through {
                found = this;
                break;
            }
        }
        prefix.truncate(length);
        if let Some(ticket) = seek {
            self.hints.found(ticket, newest_of_all.unwrap_or(Newest::Absent));
        }
        Ok(found)
    }

    fn split<'a>(&self, bytes: &'a [u8]) -> Result<RowKey<'a>, Error> {
        RowKey::split(bytes).ok_or_else(|| self.corrupt("a row has a key that is none"))
    }

    fn corrupt(&self, what: &str) -> Error {
        events::CorruptionsFound.add(1);
        Error::corrupt(&self.path, 0, None, format!("tables {:?}: {what}", self.keyspace.name()))
    }
}

fn decode_savepoint(path: &Path, bytes: &[u8]) -> Result<Savepoint, Error> {
    match Savepoint::decode(bytes) {
        Some((_, Some(savepoint))) => Ok(savepoint),
        Some((version, None)) => Err(Error::Version {
            path: path.to_path_buf(),
            found: format!("has tables of format {version}, and this program knows format {}", super::VERSION),
            advice: "remove the tables, and the node builds them again from its blocks",
        }),
        None => Err(Error::corrupt(path, 0, None, "the savepoint of the tables is malformed")),
    }
}

#[async_trait::async_trait]
impl Tables for FjallTables {
    fn write(&self, batch: RowBatch) -> Result<(), Error> {
        let _writing = lock(&self.writing);
        let current = self.savepoint();
        let next = batch.savepoint();
        check_follows(&current, &next)?;
        // In the order of keys the newest row of each key comes first, and the engine's insertions are cheaper.
        let mut rows: Vec<(&[u8], &[u8])> = batch.rows().collect();
        rows.sort_by(|left, right| left.0.cmp(right.0));
        let mut writes = fjall::OwnedWriteBatch::with_capacity(self.database.clone(), rows.len() + 1);
        for (key, value) in &rows {
            writes.insert(&self.keyspace, *key, *value);
        }
        writes.insert(&self.keyspace, key::SAVEPOINT, next.encode());
        writes.commit().map_err(self.engine_error("writing rows"))?;
        let mut last: &[u8] = &[];
        for (key, _) in &rows {
            let row = RowKey::split(key).expect("a batch makes well-formed row keys");
            if row.prefix != last {
                last = row.prefix;
                self.hints.wrote(row.prefix, row.version, row.live, row.version.block >= current.height);
            }
        }
        // Last, because readers take it for complete from here on.
        *lock(&self.savepoint) = next;
        events::RowsWritten.add(rows.len() as u64);
        Ok(())
    }

    async fn persist(&self) -> Result<Savepoint, Error> {
        let written = self.savepoint();
        if written != self.durable_savepoint() {
            let start = rt::now();
            let database = self.database.clone();
            rt::blocking(move || database.persist(PersistMode::SyncData))
                .await
                .map_err(self.engine_error("syncing the journal"))?;
            events::PersistTime.record_since(start);
            let mut durable = lock(&self.durable);
            // Savepoints never go back, so the higher one is the later one.
            if (written.height, written.epoch) >= (durable.height, durable.epoch) {
                *durable = written;
            }
        }
        Ok(self.durable_savepoint())
    }

    fn savepoint(&self) -> Savepoint {
        *lock(&self.savepoint)
    }

    fn durable_savepoint(&self) -> Savepoint {
        *lock(&self.durable)
    }

    fn get(&self, namespace: &str, key: &[u8], through: BlockNumber) -> Result<Option<Row>, Error> {
        let Some(through) = self.readable(through)? else { return Ok(None) };
        let mut prefix = key::prefix(namespace, key);
        let (version, live) = match self.newest(&mut prefix, through)? {
            Newest::Absent => return Ok(None),
            Newest::Row { version, live } => (version, live),
        };
        if !live {
            return Ok(Some(Row { version, value: None }));
        }
        key::push_suffix(&mut prefix, version, true);
        let value = self.keyspace.get(&prefix).map_err(self.engine_error("reading a row"))?;
        match value {
            Some(value) => Ok(Some(Row { version, value: Some(Bytes::copy_from_slice(&value)) })),
            // The bound was raised and the version merged away between the two steps.
            None => {
                check_readable(through, self.oldest.load(Ordering::Relaxed))?;
                Err(self.corrupt("a row was found and has gone"))
            }
        }
    }

    fn version(
        &self,
        namespace: &str,
        key: &[u8],
        through: BlockNumber,
    ) -> Result<Option<(base::Version, bool)>, Error> {
        let Some(through) = self.readable(through)? else { return Ok(None) };
        match self.newest(&mut key::prefix(namespace, key), through)? {
            Newest::Absent => Ok(None),
            Newest::Row { version, live } => Ok(Some((version, live))),
        }
    }

    fn range(
        &self,
        namespace: &str,
        start: &[u8],
        end: &[u8],
        through: BlockNumber,
        limit: usize,
    ) -> Result<RangePage, Error> {
        let mut page = RangePage::default();
        let Some(through) = self.readable(through)? else { return Ok(page) };
        let low = key::range_bound(namespace, start);
        let high = if end.is_empty() { key::namespace_end(namespace) } else { key::range_bound(namespace, end) };
        if low >= high {
            return Ok(page);
        }
        let rows = self.keyspace.range::<&[u8], _>((Bound::Included(&low[..]), Bound::Excluded(&high[..])));
        // The key whose row for this block has been passed: its older rows are skipped.
        let mut decided: Vec<u8> = Vec::new();
        let mut last: Vec<u8> = Vec::new();
        for (scanned, row) in rows.enumerate() {
            let wanted = |bytes: &fjall::UserKey| {
                RowKey::split(bytes)
                    .is_some_and(|row| row.live && row.version.block <= through && row.prefix != decided)
            };
            let (bytes, value) = row.into_inner_if(wanted).map_err(self.engine_error("reading a range"))?;
            let row = self.split(&bytes)?;
            if row.prefix == decided {
                continue;
            }
            if row.prefix != last {
                // Pages end between keys, so that each call gets on.
                if page.entries.len() == limit || scanned >= SCAN_ROWS_MAX {
                    page.next = Some(self.decode_key(row.prefix)?);
                    break;
                }
                last.clear();
                last.extend_from_slice(row.prefix);
            }
            if row.version.block > through {
                continue;
            }
            decided.clear();
            decided.extend_from_slice(row.prefix);
            if let Some(value) = value {
                let key = self.decode_key(row.prefix)?;
                page.entries.push(RangeEntry { key, value: Bytes::copy_from_slice(&value), version: row.version });
            }
        }
        Ok(page)
    }

    fn namespaces(&self) -> Result<Vec<String>, Error> {
        let mut namespaces = Vec::new();
        let mut low = key::first_row();
        let high = key::rows_end();
        loop {
            let bounds = (Bound::Included(&low[..]), Bound::Excluded(&high[..]));
            let Some(row) = self.keyspace.range::<&[u8], _>(bounds).next() else { break };
            let bytes = row.key().map_err(self.engine_error("listing namespaces"))?;
            let row = self.split(&bytes)?;
            let (namespace, _) =
                key::decode_prefix(row.prefix).ok_or_else(|| self.corrupt("a row has a key that is none"))?;
            low = key::namespace_end(&namespace);
            namespaces.push(namespace);
        }
        Ok(namespaces)
    }

    fn prune(&self, oldest: BlockNumber, rows_max: usize) -> Result<Pruned, Error> {
        let newest = self.savepoint().height.saturating_sub(1);
        let oldest = oldest.get().min(newest);
        let oldest = self.oldest.fetch_max(oldest, Ordering::Relaxed).max(oldest);
        let mut pruned = Pruned::default();
        if rows_max == 0 {
            return Ok(pruned);
        }
        let mut cursor = lock(&self.cursor);
        let durable = self.durable_savepoint().height;
        let mut gone: Vec<fjall::UserKey> = Vec::new();
        let mut judge = Judge::default();
        // The deletion whose older rows are being passed; it goes after them.
        let mut deletion: Option<fjall::UserKey> = None;
        let high = key::rows_end();
        let bounds = (Bound::Included(&cursor[..]), Bound::Excluded(&high[..]));
        let mut next = None;
        for row in self.keyspace.range::<&[u8], _>(bounds) {
            let bytes = row.key().map_err(self.engine_error("pruning"))?;
            if pruned.scanned == rows_max {
                // Where rows of one key remain, its deletion stays, and the next call begins at the deletion.
                let same_key = deletion.as_ref().filter(|deletion| same_prefix(deletion, &bytes)).cloned();
                if same_key.is_some() {
                    deletion = None;
                }
                next = Some(same_key.unwrap_or(bytes));
                break;
            }
            pruned.scanned += 1;
            let row = self.split(&bytes)?;
            let verdict = judge.judge(row, oldest, durable);
            if verdict != prune::Verdict::Superseded {
                gone.extend(deletion.take());
            }
            match verdict {
                prune::Verdict::Keep => {}
                prune::Verdict::Deletion => deletion = Some(bytes),
                prune::Verdict::Superseded => gone.push(bytes),
            }
        }
        gone.extend(deletion);
        pruned.removed = gone.len();
        pruned.finished = next.is_none();
        let mut writes = fjall::OwnedWriteBatch::with_capacity(self.database.clone(), gone.len());
        for row in &gone {
            writes.remove(&self.keyspace, row.clone());
        }
        writes.commit().map_err(self.engine_error("pruning"))?;
        for row in gone.iter().filter_map(|row| RowKey::split(row)).filter(|row| !row.live) {
            self.hints.forget(row.prefix);
        }
        *cursor = next.map_or_else(key::first_row, |bytes| bytes.to_vec());
        events::RowsPruned.add(pruned.removed as u64);
        Ok(pruned)
    }
}

impl FjallTables {
    fn decode_key(&self, prefix: &[u8]) -> Result<Bytes, Error> {
        let (_, key) = key::decode_prefix(prefix).ok_or_else(|| self.corrupt("a row has a key that is none"))?;
        Ok(key.into())
    }
}

fn same_prefix(left: &[u8], right: &[u8]) -> bool {
    let prefix = |bytes: &[u8]| RowKey::split(bytes).map(|row| row.prefix.to_vec());
    prefix(left).is_some() && prefix(left) == prefix(right)
}

/// Makes the filter of each merge of one keyspace.
struct MergeFilterFactory {
    oldest: Arc<AtomicU64>,
}

impl Factory for MergeFilterFactory {
    fn name(&self) -> &str {
        "superseded row versions"
    }

    fn make_filter(&self, _context: &Context) -> Box<dyn CompactionFilter> {
        Box::new(MergeFilter { oldest: self.oldest.load(Ordering::Relaxed), judge: Judge::default(), dropped: 0 })
    }
}

/// Drops rows that are superseded by a row of the same merge. Deletions stay: older rows of their key may lie in runs that
/// take no part in the merge.
struct MergeFilter {
    oldest: u64,
    judge: Judge,
    dropped: u64,
}

impl CompactionFilter for MergeFilter {
    fn filter_item(&mut self, item: ItemAccessor<'_>, _context: &Context) -> CompactionFilterResult {
        let verdict = match RowKey::split(item.key()) {
            Some(row) => self.judge.judge(row, self.oldest, 0),
            None => prune::Verdict::Keep, // The savepoint.
        };
        if verdict == prune::Verdict::Superseded {
            self.dropped += 1;
            // No engine tombstone is needed: should an older copy of this very row appear, it is superseded as well.
            return Ok(Verdict::Destroy);
        }
        Ok(Verdict::Keep)
    }

    fn finish(self: Box<Self>) {
        events::RowsPruned.add(self.dropped);
    }
}

impl fmt::Debug for FjallEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FjallEngine").field("path", &self.path).field("options", &self.options).finish_non_exhaustive()
    }
}

impl fmt::Debug for FjallTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FjallTables").field("savepoint", &self.savepoint()).finish_non_exhaustive()
    }
}
