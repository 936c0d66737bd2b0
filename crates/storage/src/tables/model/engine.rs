//! The engine, and the tables of each name.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use base::rt::disk::{Directory, File};
use base::rt::sync::Mutex as AsyncMutex;
use base::{BlockNumber, Bytes, Version};

use crate::private::RowsPage;
use crate::tables::key::{self, RowKey};
use crate::tables::model::log::{Rows, encode_record, log_name, parse_name, replay};
use crate::tables::prune::PruneSweep;
use crate::tables::scan::ScannedPage;
use crate::tables::{
    PruneOutcome, RangeEntry, RangePage, RangeQuery, ReadableFrom, Row, RowBatch, SCAN_BYTES_SOFT_MAX, SCAN_ROWS_MAX,
    Savepoint, Tables, TablesEngine, check_follows, check_readable,
};
use crate::{Error, events, lock};

/// A log shorter than this is never rewritten. Small in tests, so that crashes coincide with rewriting.
const REWRITE_BYTES_MIN: u64 = if cfg!(test) { 4 << 10 } else { 1 << 20 };
/// A log is rewritten when it is this many times longer than its rows.
const REWRITE_RATIO: u64 = 4;
/// A new log that is being written.
const NEW_LOG: &str = "log.new";

/// Model tables in a directory, one subdirectory for each name.
pub struct ModelEngine {
    directory: Directory,
    tables: AsyncMutex<BTreeMap<String, Arc<ModelTables>>>,
}

impl ModelEngine {
    /// An engine in a directory used by nothing else. Tables are read when they are first asked for.
    ///
    /// # Errors
    /// None at present; the signature matches other engines.
    pub async fn open(directory: Directory) -> Result<Arc<ModelEngine>, Error> {
        Ok(Arc::new(ModelEngine { directory, tables: AsyncMutex::new(BTreeMap::new()) }))
    }
}

#[async_trait::async_trait]
impl TablesEngine for ModelEngine {
    async fn open(&self, name: &str, readable: ReadableFrom) -> Result<Arc<dyn Tables>, Error> {
        let mut tables = self.tables.lock().await;
        if let Some(open) = tables.get(name) {
            return Ok(Arc::clone(open) as Arc<dyn Tables>);
        }
        let path = self.directory.path().join(name);
        let directory = self.directory.subdirectory(name).await.map_err(|error| Error::io("opening", &path, error))?;
        let opened = Arc::new(ModelTables::open(directory, readable).await?);
        tables.insert(name.to_string(), Arc::clone(&opened));
        Ok(opened)
    }

    async fn clear(&self, name: &str) -> Result<(), Error> {
        let mut tables = self.tables.lock().await;
        tables.remove(name);
        let path = self.directory.path().join(name);
        let io = |error| Error::io("removing the tables in", &path, error);
        let directory = self.directory.subdirectory(name).await.map_err(io)?;
        let mut logs = directory.list().map_err(io)?;
        // The newest log last: what a crash leaves is the newest rows, or none.
        logs.sort_by_key(|name| parse_name(name));
        for log in logs {
            directory.remove(&log).map_err(io)?;
            directory.sync().await.map_err(io)?;
        }
        Ok(())
    }
}

/// One channel's tables in memory.
pub struct ModelTables {
    directory: Directory,
    state: RwLock<ModelState>,
    log: AsyncMutex<ModelLog>,
    durable: Mutex<Savepoint>,
    broken: Mutex<Option<Arc<str>>>,
}

struct ModelState {
    rows: Rows,
    savepoint: Savepoint,
    oldest: u64,
    cursor: Vec<u8>,
    /// Records written and not yet in the log.
    queued: Vec<u8>,
}

struct ModelLog {
    number: u64,
    file: File,
    bytes: u64,
    name_is_durable: bool,
}

impl ModelTables {
    async fn open(directory: Directory, readable: ReadableFrom) -> Result<ModelTables, Error> {
        let io = |error| Error::io("opening the tables in", directory.path(), error);
        let mut numbers: Vec<u64> = directory.list().map_err(io)?.iter().filter_map(|name| parse_name(name)).collect();
        numbers.sort_unstable();
        // The newest log whose first record is whole. A newer log was still being written, and holds nothing that this one
        // lacks.
        let mut opened = None;
        while let Some(number) = numbers.pop() {
            let file = directory.open_file(&log_name(number), false).map_err(io)?;
            let length = usize::try_from(file.len().map_err(io)?).map_err(|_| Error::Invalid("the log is too long"))?;
            let bytes = file.read_at(0, length).map_err(io)?;
            let (rows, savepoint, end) = replay(&bytes);
            if end == 0 && !numbers.is_empty() {
                continue;
            }
            // Written again, because a failed fsync leaves bytes that only appear to be on disk.
            file.truncate(end as u64).map_err(io)?;
            file.write_at(0, &bytes[..end]).map_err(io)?;
            file.sync().await.map_err(io)?;
            directory.sync().await.map_err(io)?;
            opened = Some((rows, savepoint, ModelLog { number, file, bytes: end as u64, name_is_durable: true }));
            break;
        }
        let (rows, savepoint, log) = match opened {
            Some(opened) => opened,
            None => {
                let file = directory.open_file(&log_name(0), true).map_err(io)?;
                directory.sync().await.map_err(io)?;
                (Rows::new(), Savepoint::default(), ModelLog { number: 0, file, bytes: 0, name_is_durable: true })
            }
        };
        let oldest = readable.oldest(savepoint);
        let state = ModelState { rows, savepoint, oldest, cursor: key::first_row(), queued: Vec::new() };
        Ok(ModelTables {
            directory,
            state: RwLock::new(state),
            log: AsyncMutex::new(log),
            durable: Mutex::new(savepoint),
            broken: Mutex::new(None),
        })
    }

    fn read<T>(&self, read: impl FnOnce(&ModelState) -> T) -> T {
        read(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change<T>(&self, change: impl FnOnce(&mut ModelState) -> T) -> T {
        change(&mut self.state.write().unwrap_or_else(PoisonError::into_inner))
    }

    fn check_intact(&self) -> Result<(), Error> {
        match &*lock(&self.broken) {
            Some(reason) => Err(Error::Broken { reason: Arc::clone(reason) }),
            None => Ok(()),
        }
    }

    fn path(&self, number: u64) -> PathBuf {
        self.directory.path().join(log_name(number))
    }

    async fn sync(&self, number: u64, file: &File) -> Result<(), Error> {
        let Err(error) = file.sync().await else { return Ok(()) };
        let reason = format!("fsync of {}: {error}", self.path(number).display());
        lock(&self.broken).get_or_insert_with(|| reason.into());
        self.check_intact()
    }

    /// Begins a new log with all rows in one record. The old log stays until the new one's name is durable.
    async fn rewrite(&self, log: &mut ModelLog) -> Result<(), Error> {
        let number = log.number + 1;
        let path = self.path(number);
        let io = |error| Error::io("rewriting the log", &path, error);
        let bytes = self.read(|state| {
            let rows = state.rows.iter().map(|(key, value)| (&key[..], &value[..]));
            encode_record(&state.savepoint, rows, &[])
        });
        let file = self.directory.open_file(NEW_LOG, true).map_err(io)?;
        file.truncate(0).map_err(io)?;
        file.write_at(0, &bytes).map_err(io)?;
        self.sync(number, &file).await?;
        // After the rename nothing may be appended to the old log; there is no await point in between.
        self.directory.rename(NEW_LOG, &log_name(number)).map_err(io)?;
        // Rows that were written after the record was made are still queued, and follow it.
        *log = ModelLog { number, file, bytes: bytes.len() as u64, name_is_durable: false };
        self.finish_rewrite(log).await
    }

    /// Makes the name of a log durable and removes the previous log.
    async fn finish_rewrite(&self, log: &mut ModelLog) -> Result<(), Error> {
        if log.name_is_durable {
            return Ok(());
        }
        let path = self.path(log.number);
        self.directory.sync().await.map_err(|error| Error::io("rewriting the log", &path, error))?;
        log.name_is_durable = true;
        if let Some(old) = log.number.checked_sub(1) {
            // A log that could not be removed is skipped at opening.
            let _ = self.directory.remove(&log_name(old));
        }
        Ok(())
    }
}

#[async_trait::async_trait]
impl Tables for ModelTables {
    fn write(&self, batch: RowBatch) -> Result<(), Error> {
        self.check_intact()?;
        self.change(|state| {
            check_follows(&state.savepoint, &batch.savepoint())?;
            state.queued.extend_from_slice(&encode_record(&batch.savepoint(), batch.rows(), &[]));
            for (key, value) in batch.rows() {
                state.rows.insert(Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
            }
            state.savepoint = batch.savepoint();
            events::RowsWritten.add(batch.len() as u64);
            Ok(())
        })
    }

    async fn persist(&self) -> Result<Savepoint, Error> {
        let mut log = self.log.lock().await;
        self.check_intact()?;
        let (queued, savepoint) = self.read(|state| (state.queued.clone(), state.savepoint));
        if !queued.is_empty() {
            let path = self.path(log.number);
            log.file.write_at(log.bytes, &queued).map_err(|error| Error::io("appending to", &path, error))?;
            self.sync(log.number, &log.file).await?;
            self.finish_rewrite(&mut log).await?;
            log.bytes += queued.len() as u64;
            self.change(|state| drop(state.queued.drain(..queued.len())));
            *lock(&self.durable) = savepoint;
        }
        let live_bytes =
            self.read(|state| state.rows.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>());
        if log.bytes > REWRITE_BYTES_MIN.max(live_bytes as u64 * REWRITE_RATIO) {
            self.rewrite(&mut log).await?;
        }
        Ok(self.durable_savepoint())
    }

    fn savepoint(&self) -> Savepoint {
        self.read(|state| state.savepoint)
    }

    fn durable_savepoint(&self) -> Savepoint {
        *lock(&self.durable)
    }

    fn get(&self, namespace: &str, key: &[u8], through: BlockNumber) -> Result<Option<Row>, Error> {
        self.read(|state| {
            let Some(through) = state.readable(through)? else { return Ok(None) };
            let prefix = key::prefix(namespace, key);
            let (mut low, mut high) = (prefix.clone(), prefix);
            key::push_seek(&mut low, through);
            key::push_last(&mut high);
            let bounds = (Bound::Included(&low[..]), Bound::Included(&high[..]));
            let Some((bytes, value)) = state.rows.range::<[u8], _>(bounds).next() else { return Ok(None) };
            let row = split(bytes);
            Ok(Some(Row { version: row.version, value: row.live.then(|| value.clone()) }))
        })
    }

    fn range(&self, query: RangeQuery<'_>) -> Result<RangePage, Error> {
        let RangeQuery { namespace, start, end, through, limit } = query;
        self.read(|state| {
            let mut page = RangePage::default();
            let Some(through) = state.readable(through)? else { return Ok(page) };
            let low = key::range_bound(namespace, start);
            let high = if end.is_empty() { key::namespace_end(namespace) } else { key::range_bound(namespace, end) };
            if low >= high {
                return Ok(page);
            }
            let bounds = (Bound::Included(&low[..]), Bound::Excluded(&high[..]));
            let (mut last, mut decided): (&[u8], &[u8]) = (&[], &[]);
            let mut bytes_held = 0;
            for (scanned, (bytes, value)) in state.rows.range::<[u8], _>(bounds).enumerate() {
                let row = split(bytes);
                if row.prefix == decided {
                    continue;
                }
                let is_full =
                    page.entries.len() == limit || scanned >= SCAN_ROWS_MAX || bytes_held >= SCAN_BYTES_SOFT_MAX;
                if row.prefix != last && is_full {
                    page.next = Some(decode_key(row));
                    break;
                }
                last = row.prefix;
                if row.version.block > through {
                    continue;
                }
                decided = row.prefix;
                if row.live {
                    let key = decode_key(row);
                    bytes_held += key.len() + value.len();
                    page.entries.push(RangeEntry { key, value: value.clone(), version: row.version });
                }
            }
            Ok(page)
        })
    }

    fn has_row(&self, namespace: &str, key: &[u8], version: Version, is_live: bool) -> Result<bool, Error> {
        let mut row = key::prefix(namespace, key);
        key::push_suffix(&mut row, version, is_live);
        Ok(self.read(|state| state.rows.contains_key(&row[..])))
    }

    fn scan(&self, from: &[u8], limit: usize) -> Result<RowsPage, Error> {
        self.read(|state| {
            let mut page = ScannedPage::new(limit);
            for (row, value) in state.rows.range::<[u8], _>((Bound::Included(from), Bound::Unbounded)) {
                if !page.offer(row, || Ok(value.clone()))? {
                    break;
                }
            }
            Ok(page.done())
        })
    }

    fn namespaces(&self) -> Result<Vec<String>, Error> {
        self.read(|state| {
            let mut namespaces: Vec<String> = Vec::new();
            for bytes in state.rows.keys() {
                let (namespace, _) = key::decode_prefix(split(bytes).prefix).expect("rows come from batches");
                if namespaces.last() != Some(&namespace) {
                    namespaces.push(namespace);
                }
            }
            Ok(namespaces)
        })
    }

    fn prune(&self, oldest: BlockNumber, rows_max: usize) -> Result<PruneOutcome, Error> {
        self.check_intact()?;
        let durable = self.durable_savepoint().height;
        self.change(|state| {
            state.oldest = state.oldest.max(oldest.get().min(state.savepoint.height.saturating_sub(1)));
            if rows_max == 0 {
                return Ok(PruneOutcome::default());
            }
            let mut sweep = PruneSweep::new(state.oldest, durable, rows_max);
            for (row, _) in state.rows.range::<[u8], _>((Bound::Included(&state.cursor[..]), Bound::Unbounded)) {
                if !sweep
                    .offer(row.clone())
                    .expect("rows come from batches, and records are checked when they are read")
                {
                    break;
                }
            }
            sweep.end_key();
            let PruneSweep { gone, next, scanned, .. } = sweep;
            let pruned = PruneOutcome { scanned, removed: gone.len(), finished: next.is_none() };
            for row in &gone {
                state.rows.remove(row);
            }
            if !gone.is_empty() {
                state.queued.extend_from_slice(&encode_record(&state.savepoint, std::iter::empty(), &gone));
            }
            state.cursor = next.map_or_else(key::first_row, |bytes| bytes.to_vec());
            events::RowsPruned.add(pruned.removed as u64);
            Ok(pruned)
        })
    }
}

impl ModelState {
    fn readable(&self, through: BlockNumber) -> Result<Option<u64>, Error> {
        let Some(through) = self.savepoint.clamp(through) else { return Ok(None) };
        check_readable(through, self.oldest)?;
        Ok(Some(through))
    }
}

pub(super) fn split(bytes: &[u8]) -> RowKey<'_> {
    RowKey::split(bytes).expect("rows come from batches, and records are checked when they are read")
}

fn decode_key(row: RowKey<'_>) -> Bytes {
    key::decode_prefix(row.prefix).expect("rows come from batches, and records are checked when they are read").1.into()
}

impl fmt::Debug for ModelEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelEngine").field("directory", &self.directory.path()).finish_non_exhaustive()
    }
}

impl fmt::Debug for ModelTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelTables").field("savepoint", &self.savepoint()).finish_non_exhaustive()
    }
}
