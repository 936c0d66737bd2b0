//! Takeover of a store: the steps by which a new coordinator becomes able to serve the store (step 6 at the head of
//! [`super`]).
//!
//! 1. Read the superblock from logged memory. If the store is also kept in tables, fence them, so that no earlier
//!    coordinator can change them any more ([`super::persist`]). If there is no superblock, restore the store from the
//!    tables; without tables, or if they are empty, create a new store. Then read the cursor and the *seal*. The last
//!    takeover that reached step 4 wrote the seal: that coordinator's term, and the index at which the log ended then.
//! 2. Read the log after the cursor from a majority, a chunk at a time, until no entry continues the chain. An entry
//!    continues the chain if it has the next index and carries the checksum of the previous entry. Entries beyond the
//!    seal's index count only if they have the seal's term. Of several such entries, the entry of the greatest term
//!    counts. The scan must reach the seal.
//! 3. Write back every entry that at least one live node did not return, and wait until a majority has these entries.
//! 4. Write a seal: this coordinator's term and the position of the log's end. Once the seal is committed, only entries
//!    of this coordinator count after the seal.
//! 5. From here on memory nodes may be re-admitted: every live node from which they are copied has the whole log.
//! 6. Read the bitmap. Serve once the lease of every earlier coordinator has ended.
//!
//! A takeover that ends before step 4 leaves the seal unchanged, and removes from no node an entry that belongs to that
//! seal's log.

use std::collections::VecDeque;
use std::time::Duration;

use base::bytes::{Bytes, BytesMut};
use base::{Map, rt};
use sift::layout::LogCursor;
use sift::{Coordinator, MemoryWrite, WriteHandle};
use wire::u64_at;

use super::cache::{CacheSlot, KvCache};
use super::fault::{Mutant, crash_point, mutant};
use super::layout::{HEAD_BLOCK_BYTES, LogSeal, StoreGeometry, decode_cursor, encode_cursor};
use super::log::{self, KvEntry};
use super::persist::{KvSavepoint, PersistentTables};
use super::watch::{ChangeEvent, ChangeFeed};
use super::{KvConfig, KvState, PendingEntry, STRIPES, UNKNOWN};
use crate::Error;

/// Bytes of the log that are read at once, unless entries are longer.
const CHUNK_BYTES: u64 = 1 << 20;
/// Bytes that are written back by one verb.
const RUN_BYTES: usize = 256 << 10;
/// Write-back verbs in flight.
const RUNS_MAX: usize = 64;
/// Bytes of the bitmap that are read at once.
const BITMAP_CHUNK_BYTES: u64 = 1 << 20;
/// The pause before a read is repeated that too few nodes have answered.
const RETRY_PAUSE: Duration = Duration::from_millis(2);

/// An entry and its location.
struct RecoveredEntry {
    entry: KvEntry,
    after: LogCursor,
    offset: u64,
    /// Bytes of the log that it takes, including those skipped before it.
    bytes: u64,
    /// All live nodes have it.
    is_fully_replicated: bool,
}

impl RecoveredEntry {
    /// Copies key and value to memory of their own, so that neither keeps the chunk alive. Keeps the raw bytes only where some
    /// node lacks them, so that the next chunk is read into the same memory.
    fn copy_out(&mut self) {
        let entry = &mut self.entry;
        entry.key = Bytes::copy_from_slice(&entry.key);
        entry.value = entry.value.as_ref().map(|value| Bytes::copy_from_slice(value));
        entry.raw = if self.is_fully_replicated { Bytes::new() } else { Bytes::copy_from_slice(&entry.raw) };
    }
}

/// The state that a takeover has found.
pub(super) struct RecoveredStore {
    cursor: LogCursor,
    entries: Vec<RecoveredEntry>,
    end: LogCursor,
    bitmap: Vec<u64>,
    /// The seed of the index.
    pub(super) seed: u64,
    /// What the tables contain, if the store is kept in tables.
    pub(super) savepoint: Option<KvSavepoint>,
    persisted: u64,
}

/// Steps 1 to 6.
pub(super) async fn recover(
    coordinator: &Coordinator,
    sizes: &StoreGeometry,
    persistent: Option<&PersistentTables>,
) -> Result<RecoveredStore, Error> {
    sizes.check_geometry()?;
    let made_with = sizes.decode_seed(&coordinator.read(sizes.super_at(), HEAD_BLOCK_BYTES).await?)?;
    let kept = match persistent {
        Some(persistent) => Some((persistent, persistent.fence(coordinator, sizes, made_with).await?)),
        None => None,
    };
    let seed = match (made_with, &kept) {
        (Some(seed), _) => seed,
        (None, Some((persistent, kept))) if kept.index > 0 => {
            persistent.restore(coordinator, sizes, *kept).await?;
            kept.seed
        }
        (None, kept) => {
            let seed = kept.as_ref().map_or_else(rt::random_u64, |(_, kept)| kept.seed);
            // The chain starts with a number that no client knows, so that no client can write a value that continues it.
            let cursor = LogCursor { chain: seed, ..LogCursor::default() };
            let writes = [
                MemoryWrite { address: sizes.super_at(), bytes: sizes.encode(seed) },
                MemoryWrite { address: sizes.cursor_at(), bytes: encode_cursor(cursor) },
            ];
            coordinator.transact(writes.to_vec()).await?;
            seed
        }
    };
    let cursor = decode_cursor(&coordinator.read(sizes.cursor_at(), HEAD_BLOCK_BYTES).await?, sizes)?;
    let seal = LogSeal::decode(&coordinator.read(sizes.seal_at(), HEAD_BLOCK_BYTES).await?);

    let entries = match mutant(Mutant::ForgetLog) {
        true => Vec::new(),
        false => scan(coordinator, sizes, cursor, &seal).await?,
    };
    let end = entries.last().map_or(cursor, |found| found.after);
    let persisted = match kept {
        None => u64::MAX,
        Some((_, kept)) if kept.index > end.index => {
            return Err(Error::Corrupt("the tables of a key-value store are ahead of its log"));
        }
        Some((_, kept)) if kept.index < cursor.index && !mutant(Mutant::ApplyUnpersisted) => {
            return Err(Error::Corrupt("the tables of a key-value store lack entries that its log no longer has"));
        }
        Some((_, kept)) => kept.index,
    };
    crash_point("consensus.kv.read").await;
    if !mutant(Mutant::ServeUnwritten) {
        write_back(coordinator, &entries).await?;
    }
    crash_point("consensus.kv.written_back").await;
    if !mutant(Mutant::NoSeal) {
        let seal = LogSeal { term: coordinator.term(), index: end.index, chain: end.chain };
        coordinator.write(sizes.seal_at(), seal.encode()).await?;
    }
    crash_point("consensus.kv.sealed").await;
    coordinator.set_unlogged_recovered();

    let mut bitmap = Vec::with_capacity((sizes.blocks / 64) as usize);
    let (from, until) = (sizes.line_at(0), sizes.line_at(sizes.lines()));
    for at in (from..until).step_by(BITMAP_CHUNK_BYTES as usize) {
        let bytes = coordinator.read(at, (until - at).min(BITMAP_CHUNK_BYTES) as usize).await?;
        bitmap.extend((0..bytes.len()).step_by(8).map(|at| u64_at(&bytes, at)));
    }
    tracing::info!(term = %coordinator.term(), from = cursor.index, to = end.index, "a key-value store is taken over");
    let kept = kept.map(|(_, kept)| kept);
    Ok(RecoveredStore { cursor, entries, end, bitmap, seed, savepoint: kept, persisted })
}

/// A chunk of the log, as several nodes have it.
struct LogChunk {
    from: u64,
    until: u64,
    copies: Vec<Bytes>,
    /// The number of live nodes.
    live: usize,
}

impl LogChunk {
    /// Reads the log behind an offset from a majority, or more.
    async fn read(coordinator: &Coordinator, sizes: &StoreGeometry, from: u64) -> Result<LogChunk, Error> {
        let bytes = CHUNK_BYTES.max(2 * sizes.entry_bytes_max()).min(sizes.log_bytes - from);
        loop {
            let status = coordinator.status();
            // No node joins until the log is whole: all nodes that are not lost are live.
            let live = status.live + status.joining;
            match coordinator.read_each(from, bytes as usize).await {
                Ok(copies) => {
                    let copies = copies.into_iter().map(BytesMut::freeze).collect();
                    return Ok(LogChunk { from, until: from + bytes, copies, live });
                }
                Err(sift::Error::NoMajority { .. }) => rt::sleep(RETRY_PAUSE).await,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The valid entries at an offset that continue a chain, mostly one, each with the number of nodes that have it.
    fn at(&self, offset: u64, after: &LogCursor, seal: &LogSeal) -> Vec<(KvEntry, usize)> {
        let start = (offset - self.from) as usize;
        let mut found: Vec<(KvEntry, usize)> = Vec::new();
        for copy in &self.copies {
            // A comparison is cheaper than a checksum.
            let same = |(entry, _): &&mut (KvEntry, usize)| copy[start..].starts_with(&entry.raw);
            if let Some((_, holders)) = found.iter_mut().find(same) {
                *holders += 1;
                continue;
            }
            let entry = log::decode(&copy.slice(start..));
            let in_turn = |entry: &KvEntry| entry.index == after.index + 1 && entry.previous == after.chain;
            let counts = |entry: &KvEntry| entry.index <= seal.index || entry.term == seal.term;
            found.extend(entry.filter(in_turn).filter(counts).map(|entry| (entry, 1)));
        }
        found
    }

    /// Whether the chunk has every entry that may start at an offset completely.
    fn has(&self, offset: u64, sizes: &StoreGeometry) -> bool {
        offset >= self.from && (offset + sizes.entry_bytes_max()).min(sizes.log_bytes) <= self.until
    }
}

/// Step 2.
async fn scan(
    coordinator: &Coordinator,
    sizes: &StoreGeometry,
    from: LogCursor,
    seal: &LogSeal,
) -> Result<Vec<RecoveredEntry>, Error> {
    let (mut at, mut entries, mut used) = (from, Vec::new(), 0);
    let mut pieces: [Option<LogChunk>; 2] = [None, None];
    loop {
        let mut best: Option<RecoveredEntry> = None;
        // Behind the entry before or, where the rest of the log may have been too short, at its beginning.
        let rest = sizes.log_bytes - at.position;
        let places = [Some(at.position).filter(|_| rest > 0), Some(0).filter(|_| rest < sizes.entry_bytes_max())];
        for (place, piece) in places.into_iter().zip(&mut pieces) {
            let Some(offset) = place else { continue };
            let here = match piece {
                Some(piece) if piece.has(offset, sizes) => piece,
                other => other.insert(LogChunk::read(coordinator, sizes, offset).await?),
            };
            for (entry, holders) in here.at(offset, &at, seal) {
                if best.as_ref().is_some_and(|best| best.entry.term >= entry.term) {
                    continue;
                }
                let length = log::padded(entry.raw.len() as u64);
                let skipped = if offset == at.position { 0 } else { rest };
                let after = LogCursor { index: entry.index, position: offset + length, chain: entry.checksum };
                let (bytes, everywhere) = (skipped + length, holders >= here.live);
                best = Some(RecoveredEntry { entry, after, offset, bytes, is_fully_replicated: everywhere });
            }
        }
        let Some(mut found) = best else { break };
        found.copy_out();
        at = found.after;
        used += found.bytes;
        if used > sizes.log_bytes {
            return Err(Error::Corrupt("a key-value log is longer than its space"));
        }
        if at.index == seal.index && at.chain != seal.chain {
            return Err(Error::Corrupt("a key-value log differs from its seal"));
        }
        entries.push(found);
    }
    if at.index < seal.index {
        return Err(Error::Corrupt("a key-value log ends before its seal"));
    }
    Ok(entries)
}

/// Step 3.
async fn write_back(coordinator: &Coordinator, entries: &[RecoveredEntry]) -> Result<(), Error> {
    let mut run: Option<(u64, BytesMut)> = None;
    let (mut last, mut posted) = (WriteHandle::default(), 0);
    let missing: Vec<&RecoveredEntry> = entries.iter().filter(|found| !found.is_fully_replicated).collect();
    for (place, found) in missing.iter().enumerate() {
        let length = log::padded(found.entry.raw.len() as u64) as usize;
        let (start, bytes) = run.get_or_insert_with(|| (found.offset, BytesMut::new()));
        bytes.extend_from_slice(&found.entry.raw);
        bytes.resize((found.offset - *start) as usize + length, 0);
        let goes_on = missing.get(place + 1).is_some_and(|next| next.offset == found.offset + length as u64);
        if goes_on && bytes.len() < RUN_BYTES {
            continue;
        }
        let (start, bytes) = run.take().expect("it was just made");
        last = coordinator.post_unlogged(start, bytes.freeze()).await?;
        crash_point("consensus.kv.writing_back").await;
        posted += 1;
        if posted % RUNS_MAX == 0 {
            coordinator.confirm(last).await?;
        }
    }
    coordinator.confirm(last).await?;
    Ok(())
}

impl RecoveredStore {
    /// The state with which a store starts, and its bitmap.
    pub(super) fn into_state(self, sizes: &StoreGeometry, options: KvConfig) -> (KvState, ChangeFeed, Vec<u64>) {
        let RecoveredStore { cursor, entries, end, bitmap, persisted, .. } = self;
        let recovered = entries.len();
        let (mut newest, mut cache, mut feed) = (
            Map::with_capacity_and_hasher(recovered, Default::default()),
            KvCache::new(options.cache_bytes),
            ChangeFeed::new(cursor.index),
        );
        for found in &entries {
            newest.insert(found.entry.key.clone(), found.entry.index);
        }
        let (mut pending, mut overtaken_bytes, mut used_bytes, mut reserved) = (VecDeque::new(), 0, 0, 0);
        for RecoveredEntry { entry, after, bytes, .. } in entries {
            used_bytes += bytes;
            let KvEntry { key, value, .. } = entry;
            feed.publish(ChangeEvent { key: key.clone(), value: value.clone(), version: after.index });
            if newest[&key] != after.index {
                overtaken_bytes += bytes;
                continue;
            }
            // How many blocks its key has already is not known here.
            let blocks = value.as_ref().map_or(0, |value| sizes.record_blocks(key.len(), value.len()) as u64);
            reserved += blocks;
            cache.put(&key, CacheSlot::new(value.clone(), after.index, WriteHandle::default()), cursor.index);
            let bytes = bytes + std::mem::take(&mut overtaken_bytes);
            pending.push_back(PendingEntry { after, bytes, blocks, posted: WriteHandle::default(), key, value });
        }
        let taken: u64 = bitmap.iter().map(|word| u64::from(word.count_ones())).sum();
        let state = KvState {
            last: end,
            used_bytes,
            pending,
            reserved,
            free: sizes.blocks - taken.min(sizes.blocks),
            applied: cursor.index,
            persisted,
            cache,
            index: vec![UNKNOWN; sizes.buckets as usize],
            known: 0,
            stripes: vec![0; STRIPES],
            recovered,
            is_space_wanted: false,
            ended: None,
        };
        (state, feed, bitmap)
    }
}
