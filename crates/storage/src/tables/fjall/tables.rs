//! The tables of one channel in the engine; [`super`] describes how they use the engine.

use std::fmt;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use base::{BlockNumber, Bytes, Version, rt};
use fjall::{Database, Keyspace, PersistMode};

use super::hints::{HintLookup, NewestRow, NewestRowHints};
use crate::private::RowsPage;
use crate::tables::key::{self, RowKey};
use crate::tables::prune::PruneSweep;
use crate::tables::scan::ScannedPage;
use crate::tables::{
    PruneOutcome, RangeEntry, RangePage, RangeQuery, ReadableFrom, Row, RowBatch, SCAN_BYTES_SOFT_MAX, SCAN_ROWS_MAX,
    Savepoint, Tables, check_follows, check_readable,
};
use crate::{Error, events, lock};

/// What the lock of writes protects.
struct WritePermit {
    /// The rows were removed, and others may have opened the tables again: this handle writes no more.
    is_cleared: bool,
}

/// One channel's tables in the engine.
pub struct FjallTables {
    path: PathBuf,
    database: Database,
    keyspace: Keyspace,
    hints: NewestRowHints,
    /// The savepoint of the written rows; also serialises writers.
    writing: Mutex<WritePermit>,
    savepoint: Mutex<Savepoint>,
    durable: Mutex<Savepoint>,
    /// Reads below this block are refused, and merges drop the versions that it supersedes.
    oldest: Arc<AtomicU64>,
    /// Where the scan of [`Tables::prune`] continues.
    cursor: Mutex<Vec<u8>>,
}

impl FjallTables {
    pub fn open(
        path: &Path,
        database: &Database,
        hint_bytes: usize,
        keyspace: Keyspace,
        oldest: Arc<AtomicU64>,
        readable: ReadableFrom,
    ) -> Result<FjallTables, Error> {
        let found =
            keyspace.get(key::SAVEPOINT).map_err(|error| Error::engine("reading the savepoint", path, error))?;
        let savepoint = match found {
            None => Savepoint::default(),
            Some(bytes) => decode_savepoint(path, &bytes)?,
        };
        oldest.fetch_max(readable.oldest(savepoint), Ordering::Relaxed);
        Ok(FjallTables {
            path: path.to_path_buf(),
            database: database.clone(),
            keyspace,
            hints: NewestRowHints::new(hint_bytes),
            writing: Mutex::new(WritePermit { is_cleared: false }),
            savepoint: Mutex::new(savepoint),
            durable: Mutex::new(savepoint),
            oldest,
            cursor: Mutex::new(key::first_row()),
        })
    }

    /// Removes all rows, then the savepoint, durably. Does nothing if that was done before: others may have opened the tables
    /// again since. Writes through this handle are refused afterwards.
    pub fn clear(&self) -> Result<(), Error> {
        const ROWS_TOGETHER: usize = 4096;
        let mut permit = lock(&self.writing);
        if permit.is_cleared {
            return Ok(());
        }
        let doing = "removing tables";
        let high = key::rows_end();
        let mut low = Bound::Included(fjall::Slice::from(&key::first_row()[..]));
        loop {
            let bounds = (low.as_ref().map(|key| &key[..]), Bound::Excluded(&high[..]));
            let mut writes = fjall::OwnedWriteBatch::with_capacity(self.database.clone(), ROWS_TOGETHER);
            let mut last = None;
            for row in self.keyspace.range::<&[u8], _>(bounds).take(ROWS_TOGETHER) {
                let key = row.key().map_err(self.engine_error(doing))?;
                writes.remove(&self.keyspace, key.clone());
                last = Some(key);
            }
            if last.is_none() {
                writes.remove(&self.keyspace, key::SAVEPOINT);
            }
            writes.commit().map_err(self.engine_error(doing))?;
            // What was removed is not gone over again.
            let Some(last) = last else { break };
            low = Bound::Excluded(last);
        }
        self.database.persist(PersistMode::SyncData).map_err(self.engine_error(doing))?;
        permit.is_cleared = true;
        Ok(())
    }

    fn engine_error(&self, doing: &'static str) -> impl Fn(fjall::Error) -> Error + '_ {
        move |error| Error::engine(doing, &self.path, error)
    }

    /// The block to read at, or `None` if there is nothing to read.
    fn readable(&self, through: BlockNumber) -> Result<Option<u64>, Error> {
        let Some(through) = self.savepoint().clamp(through) else { return Ok(None) };
        check_readable(through, self.oldest.load(Ordering::Relaxed))?;
        Ok(Some(through))
    }

    /// The newest version of a key at or below `through`. `prefix` is extended and restored.
    fn newest(&self, prefix: &mut Vec<u8>, through: u64) -> Result<NewestRow, Error> {
        let seek = match self.hints.lookup(prefix) {
            HintLookup::Found(known @ NewestRow::Row { version, .. }) if version.block <= through => {
                events::HintHits.add(1);
                return Ok(known);
            }
            HintLookup::Found(NewestRow::Absent) => {
                events::HintHits.add(1);
                return Ok(NewestRow::Absent);
            }
            HintLookup::Found(_) => None,
            HintLookup::Miss(ticket) => Some(ticket),
        };
        events::HintMisses.add(1);
        // A search on behalf of the hint begins at the newest row of all, which is nearly always the requested one.
        let begin = if seek.is_some() { u64::MAX } else { through };
        let length = prefix.len();
        key::push_seek(prefix, begin);
        let low = prefix.clone();
        prefix.truncate(length);
        key::push_last(prefix);
        let rows = self.keyspace.range::<&[u8], _>((Bound::Included(&low[..]), Bound::Included(&prefix[..])));
        let mut newest_of_all = None;
        let mut found = NewestRow::Absent;
        for row in rows {
            let bytes = row.key().map_err(self.engine_error("searching a row"))?;
            let row = self.split(&bytes)?;
            let this = NewestRow::Row { version: row.version, live: row.live };
            newest_of_all.get_or_insert(this);
            if row.version.block <= through {
                found = this;
                break;
            }
        }
        prefix.truncate(length);
        if let Some(ticket) = seek {
            self.hints.found(ticket, newest_of_all.unwrap_or(NewestRow::Absent));
        }
        Ok(found)
    }

    fn split<'a>(&self, bytes: &'a [u8]) -> Result<RowKey<'a>, Error> {
        RowKey::split(bytes).ok_or_else(|| self.corrupt("a row has a malformed key"))
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
            found: format!(
                "has tables of format {version}, and this program knows format {}",
                crate::tables::FORMAT_VERSION
            ),
            advice: "remove the tables, and the node builds them again from its blocks",
        }),
        None => Err(Error::corrupt(path, 0, None, "the savepoint of the tables is malformed")),
    }
}

#[async_trait::async_trait]
impl Tables for FjallTables {
    fn write(&self, batch: RowBatch) -> Result<(), Error> {
        let permit = lock(&self.writing);
        if permit.is_cleared {
            return Err(Error::Invalid("these tables were removed"));
        }
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
        // Last, because from here on readers treat the savepoint as complete.
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
            NewestRow::Absent => return Ok(None),
            NewestRow::Row { version, live } => (version, live),
        };
        if !live {
            return Ok(Some(Row { version, value: None }));
        }
        key::push_suffix(&mut prefix, version, true);
        let value = self.keyspace.get(&prefix).map_err(self.engine_error("reading a row"))?;
        match value {
            Some(value) => Ok(Some(Row { version, value: Some(Bytes::copy_from_slice(&value)) })),
            // The bound was raised and a merge dropped the version between the two steps.
            None => {
                check_readable(through, self.oldest.load(Ordering::Relaxed))?;
                Err(self.corrupt("a row was found and then disappeared"))
            }
        }
    }

    fn version(&self, namespace: &str, key: &[u8], through: BlockNumber) -> Result<Option<(Version, bool)>, Error> {
        let Some(through) = self.readable(through)? else { return Ok(None) };
        match self.newest(&mut key::prefix(namespace, key), through)? {
            NewestRow::Absent => Ok(None),
            NewestRow::Row { version, live } => Ok(Some((version, live))),
        }
    }

    fn range(&self, query: RangeQuery<'_>) -> Result<RangePage, Error> {
        let RangeQuery { namespace, start, end, through, limit } = query;
        let mut page = RangePage::default();
        let Some(through) = self.readable(through)? else { return Ok(page) };
        let low = key::range_bound(namespace, start);
        let high = if end.is_empty() { key::namespace_end(namespace) } else { key::range_bound(namespace, end) };
        if low >= high {
            return Ok(page);
        }
        let rows = self.keyspace.range::<&[u8], _>((Bound::Included(&low[..]), Bound::Excluded(&high[..])));
        // The key whose row for this block was already found: its older rows are skipped.
        let mut decided: Vec<u8> = Vec::new();
        let mut last: Vec<u8> = Vec::new();
        let mut bytes_held = 0;
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
                // Pages end between keys, so that each call makes progress.
                if page.entries.len() == limit || scanned >= SCAN_ROWS_MAX || bytes_held >= SCAN_BYTES_SOFT_MAX {
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
                bytes_held += key.len() + value.len();
                page.entries.push(RangeEntry { key, value: Bytes::copy_from_slice(&value), version: row.version });
            }
        }
        Ok(page)
    }

    fn has_row(&self, namespace: &str, key: &[u8], version: Version, is_live: bool) -> Result<bool, Error> {
        let mut row = key::prefix(namespace, key);
        key::push_suffix(&mut row, version, is_live);
        self.keyspace.contains_key(&row).map_err(self.engine_error("searching a row"))
    }

    fn scan(&self, from: &[u8], limit: usize) -> Result<RowsPage, Error> {
        let low = if from.is_empty() { key::first_row() } else { from.to_vec() };
        let high = key::rows_end();
        let mut page = ScannedPage::new(limit);
        for row in self.keyspace.range::<&[u8], _>((Bound::Included(&low[..]), Bound::Excluded(&high[..]))) {
            let (row, value) = row.into_inner().map_err(self.engine_error("scanning rows"))?;
            if !page.offer(&row, || Ok(Bytes::copy_from_slice(&value)))? {
                break;
            }
        }
        Ok(page.done())
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
                key::decode_prefix(row.prefix).ok_or_else(|| self.corrupt("a row has a malformed key"))?;
            low = key::namespace_end(&namespace);
            namespaces.push(namespace);
        }
        Ok(namespaces)
    }

    fn prune(&self, oldest: BlockNumber, rows_max: usize) -> Result<PruneOutcome, Error> {
        let newest = self.savepoint().height.saturating_sub(1);
        let oldest = oldest.get().min(newest);
        let oldest = self.oldest.fetch_max(oldest, Ordering::Relaxed).max(oldest);
        if rows_max == 0 {
            return Ok(PruneOutcome::default());
        }
        let mut cursor = lock(&self.cursor);
        let durable = self.durable_savepoint().height;
        let mut sweep = PruneSweep::new(oldest, durable, rows_max);
        let high = key::rows_end();
        for row in self.keyspace.range::<&[u8], _>((Bound::Included(&cursor[..]), Bound::Excluded(&high[..]))) {
            let bytes = row.key().map_err(self.engine_error("pruning"))?;
            if !sweep.offer(bytes).ok_or_else(|| self.corrupt("a row has a malformed key"))? {
                break;
            }
        }
        sweep.end_key();
        let PruneSweep { gone, next, scanned, .. } = sweep;
        let pruned = PruneOutcome { scanned, removed: gone.len(), finished: next.is_none() };
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
        let (_, key) = key::decode_prefix(prefix).ok_or_else(|| self.corrupt("a row has a malformed key"))?;
        Ok(key.into())
    }
}

impl fmt::Debug for FjallTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FjallTables").field("savepoint", &self.savepoint()).finish_non_exhaustive()
    }
}
