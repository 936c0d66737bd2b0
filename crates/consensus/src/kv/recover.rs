//! Taking a store over: from a coordinator to a store that serves (step 6 at the head of [`super`]).
//!
//! 1. Read superblock, cursor and seal, which logged memory keeps. Where nothing stands, a new store is made, of what the tables
//!    have if it is kept in tables ([`super::persist`]); if they are its own, no earlier coordinator changes these any more.
//! 2. Read the log behind the cursor from a majority, a piece at a time, until no entry continues the chain. What continues
//!    it: the next index, the checksum of the entry before, and, behind the seal, the seal's term. Of several the one of the
//!    greatest term counts. The seal must be come by.
//! 3. Write back every entry that was not read from all live nodes, and wait for a majority.
//! 4. Write a seal: our term, and where the log ends. Once it is committed nothing of an earlier coordinator counts behind it.
//! 5. From here on memory nodes may be taken back: whatever live node they are copied from has the whole log.
//! 6. Read the bitmap, and serve.
//!
//! Whoever ends between two steps leaves the seal before, and nodes that have as much of its log or more.

use std::collections::VecDeque;
use std::time::Duration;

use base::bytes::{Bytes, BytesMut};
use base::{Map, rt};

use super::cache::{Cache, Slot};
use super::fault::{Mutant, crash_point, mutant};
use super::layout::{PART_BYTES, Seal, Sizes, decode_cursor, encode_cursor};
use super::log::{self, Entry};
use super::persist::{Kept, Persistent};
use super::watch::{Event, Feed};
use super::{Options, Pending, STRIPES, State, UNKNOWN};
use crate::layout::{Cursor, word};
use crate::{Coordinator, Error, Posted, Write};

/// Bytes of the log that are read at once, where entries are not longer.
const PIECE_BYTES: u64 = 1 << 20;
/// Bytes that are written back by one verb.
const RUN_BYTES: usize = 256 << 10;
/// Verbs that write back and are not confirmed.
const RUNS_MAX: usize = 64;
/// Bytes of the bitmap that are read at once.
const BITMAP_PIECE_BYTES: u64 = 1 << 20;
/// Before too few nodes are asked again.
const RETRY: Duration = Duration::from_millis(2);

/// An entry and where it stands.
struct Found {
    entry: Entry,
    after: Cursor,
    offset: u64,
    /// Bytes of the log, with what was skipped before it.
    bytes: u64,
    /// All live nodes have it.
    everywhere: bool,
}

impl Found {
    /// Has key and value in memory of their own, so that none of them keeps the piece that was read; and, so that the next piece is read
    /// into the same memory, no more bytes than somebody lacks.
    fn keep_apart(&mut self) {
        let entry = &mut self.entry;
        entry.key = Bytes::copy_from_slice(&entry.key);
        entry.value = entry.value.as_ref().map(|value| Bytes::copy_from_slice(value));
        entry.raw = if self.everywhere { Bytes::new() } else { Bytes::copy_from_slice(&entry.raw) };
    }
}

/// What a takeover found.
pub(super) struct Recovered {
    cursor: Cursor,
    entries: Vec<Found>,
    end: Cursor,
    bitmap: Vec<u64>,
    /// Of the index.
    pub(super) seed: u64,
    /// Of a store that is kept in tables.
    pub(super) kept: Option<Kept>,
    persisted: u64,
}

/// Steps 1 to 6.
pub(super) async fn recover(
    coordinator: &Coordinator,
    sizes: &Sizes,
    persistent: Option<&Persistent>,
) -> Result<Recovered, Error> {
    sizes.check_sizes()?;
    let made_with = sizes.made_with(&coordinator.read(sizes.super_at(), PART_BYTES).await?)?;
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
            // The chain begins with what no client knows, so that none can write a value that continues it.
            let cursor = Cursor { chain: seed, ..Cursor::default() };
            let writes = [
                Write { address: sizes.super_at(), bytes: sizes.encode(seed) },
                Write { address: sizes.cursor_at(), bytes: encode_cursor(cursor) },
            ];
            coordinator.transact(writes.to_vec()).await?;
            seed
        }
    };
    let cursor = decode_cursor(&coordinator.read(sizes.cursor_at(), PART_BYTES).await?, sizes)?;
    let seal = Seal::decode(&coordinator.read(sizes.seal_at(), PART_BYTES).await?);

    let entries = match mutant(Mutant::ForgetLog) {
        true => Vec::new(),
        false => scan(coordinator, sizes, cursor, &seal).await?,
    };
    let end = entries.last().map_or(cursor, |found| found.after);
    let persisted = match kept {
        None => u64::MAX,
        Some((_, kept)) if kept.index > end.index => {
            return Err(Error::Corrupt("tables that are ahead of their store"));
        }
        Some((_, kept)) if kept.index < cursor.index && !mutant(Mutant::ApplyUnpersisted) => {
            return Err(Error::Corrupt("tables that lack what their store's log has no more"));
        }
        Some((_, kept)) => kept.index,
    };
    crash_point("consensus.kv.read").await;
    if !mutant(Mutant::ServeUnwritten) {
        write_back(coordinator, &entries).await?;
    }
    crash_point("consensus.kv.written_back").await;
    if !mutant(Mutant::NoSeal) {
        let seal = Seal { term: coordinator.term(), index: end.index, chain: end.chain };
        coordinator.write(sizes.seal_at(), seal.encode()).await?;
    }
    crash_point("consensus.kv.sealed").await;
    coordinator.direct_is_whole();

    let mut bitmap = Vec::with_capacity((sizes.blocks / 64) as usize);
    let (from, until) = (sizes.line_at(0), sizes.line_at(sizes.lines()));
    for at in (from..until).step_by(BITMAP_PIECE_BYTES as usize) {
        let bytes = coordinator.read(at, (until - at).min(BITMAP_PIECE_BYTES) as usize).await?;
        bitmap.extend((0..bytes.len()).step_by(8).map(|at| word(&bytes, at)));
    }
    tracing::info!(term = %coordinator.term(), from = cursor.index, to = end.index, "a key-value store is taken over");
    let kept = kept.map(|(_, kept)| kept);
    Ok(Recovered { cursor, entries, end, bitmap, seed, kept, persisted })
}

/// A piece of the log, as several nodes have it.
struct Piece {
    from: u64,
    until: u64,
    copies: Vec<Bytes>,
    /// Nodes that were live.
    live: usize,
}

impl Piece {
    /// Reads what lies behind an offset from a majority, or more.
    async fn read(coordinator: &Coordinator, sizes: &Sizes, from: u64) -> Result<Piece, Error> {
        let bytes = PIECE_BYTES.max(2 * sizes.entry_bytes_max()).min(sizes.log_bytes - from);
        loop {
            let status = coordinator.status();
            // Until the log is whole nobody joins: those that are not lost are live.
            let live = status.live + status.joining;
            match coordinator.read_each(from, bytes as usize).await {
                Ok(copies) => {
                    let copies = copies.into_iter().map(BytesMut::freeze).collect();
                    return Ok(Piece { from, until: from + bytes, copies, live });
                }
                Err(Error::NoMajority { .. }) => rt::sleep(RETRY).await,
                Err(error) => return Err(error),
            }
        }
    }

    /// The entries at an offset that continue a chain and count, mostly one, with the number of those who have each.
    fn at(&self, offset: u64, after: &Cursor, seal: &Seal) -> Vec<(Entry, usize)> {
        let start = (offset - self.from) as usize;
        let mut found: Vec<(Entry, usize)> = Vec::new();
        for copy in &self.copies {
            // A comparison is cheaper than a checksum.
            let same = |(entry, _): &&mut (Entry, usize)| copy[start..].starts_with(&entry.raw);
            if let Some((_, holders)) = found.iter_mut().find(same) {
                *holders += 1;
                continue;
            }
            let entry = log::decode(&copy.slice(start..));
            let in_turn = |entry: &Entry| entry.index == after.index + 1 && entry.previous == after.chain;
            let counts = |entry: &Entry| entry.index <= seal.index || entry.term == seal.term;
            found.extend(entry.filter(in_turn).filter(counts).map(|entry| (entry, 1)));
        }
        found
    }

    /// Whether any entry that begins at an offset is in it whole.
    fn has(&self, offset: u64, sizes: &Sizes) -> bool {
        offset >= self.from && (offset + sizes.entry_bytes_max()).min(sizes.log_bytes) <= self.until
    }
}

/// Step 2.
async fn scan(coordinator: &Coordinator, sizes: &Sizes, from: Cursor, seal: &Seal) -> Result<Vec<Found>, Error> {
    let (mut at, mut entries, mut used) = (from, Vec::new(), 0);
    let mut pieces: [Option<Piece>; 2] = [None, None];
    loop {
        let mut best: Option<Found> = None;
        // Behind the entry before, or, where the rest may have been too short, at the beginning.
        let rest = sizes.log_bytes - at.position;
        let places = [Some(at.position).filter(|_| rest > 0), Some(0).filter(|_| rest < sizes.entry_bytes_max())];
        for (place, piece) in places.into_iter().zip(&mut pieces) {
            let Some(offset) = place else { continue };
            let here = match piece {
                Some(piece) if piece.has(offset, sizes) => piece,
                other => other.insert(Piece::read(coordinator, sizes, offset).await?),
            };
            for (entry, holders) in here.at(offset, &at, seal) {
                if best.as_ref().is_some_and(|best| best.entry.term >= entry.term) {
                    continue;
                }
                let length = log::padded(entry.raw.len() as u64);
                let skipped = if offset == at.position { 0 } else { rest };
                let after = Cursor { index: entry.index, position: offset + length, chain: entry.checksum };
                let (bytes, everywhere) = (skipped + length, holders >= here.live);
                best = Some(Found { entry, after, offset, bytes, everywhere });
            }
        }
        let Some(mut found) = best else { break };
        found.keep_apart();
        at = found.after;
        used += found.bytes;
        if used > sizes.log_bytes {
            return Err(Error::Corrupt("a key-value log that is longer than its room"));
        }
        if at.index == seal.index && at.chain != seal.chain {
            return Err(Error::Corrupt("a key-value log that differs from its seal"));
        }
        entries.push(found);
    }
    if at.index < seal.index {
        return Err(Error::Corrupt("a key-value log that ends before its seal"));
    }
    Ok(entries)
}

/// Step 3.
async fn write_back(coordinator: &Coordinator, entries: &[Found]) -> Result<(), Error> {
    let mut run: Option<(u64, BytesMut)> = None;
    let (mut last, mut posted) = (Posted::default(), 0);
    let missing: Vec<&Found> = entries.iter().filter(|found| !found.everywhere).collect();
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
        last = coordinator.post_direct(start, bytes.freeze()).await?;
        crash_point("consensus.kv.writing_back").await;
        posted += 1;
        if posted % RUNS_MAX == 0 {
            coordinator.confirm(last).await?;
        }
    }
    coordinator.confirm(last).await
}

impl Recovered {
    /// What a store begins with, and its bitmap.
    pub(super) fn into_state(self, sizes: &Sizes, options: Options) -> (State, Feed, Vec<u64>) {
        let Recovered { cursor, entries, end, bitmap, persisted, .. } = self;
        let recovered = entries.len();
        let (mut newest, mut cache, mut feed) = (
            Map::with_capacity_and_hasher(recovered, Default::default()),
            Cache::new(options.cache_bytes),
            Feed::new(cursor.index),
        );
        for found in &entries {
            newest.insert(found.entry.key.clone(), found.entry.index);
        }
        let (mut pending, mut overtaken_bytes, mut used_bytes, mut reserved) = (VecDeque::new(), 0, 0, 0);
        for Found { entry, after, bytes, .. } in entries {
            used_bytes += bytes;
            let Entry { key, value, .. } = entry;
            feed.tell(Event { key: key.clone(), value: value.clone(), version: after.index });
            if newest[&key] != after.index {
                overtaken_bytes += bytes;
                continue;
            }
            // What its key has already is not known here.
            let blocks = value.as_ref().map_or(0, |value| sizes.record_blocks(key.len(), value.len()) as u64);
            reserved += blocks;
            cache.put(&key, Slot::new(value.clone(), after.index, Posted::default()), cursor.index);
            let bytes = bytes + std::mem::take(&mut overtaken_bytes);
            pending.push_back(Pending { after, bytes, blocks, posted: Posted::default(), key, value });
        }
        let taken: u64 = bitmap.iter().map(|word| u64::from(word.count_ones())).sum();
        let state = State {
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
            is_short: false,
            ended: None,
        };
        (state, feed, bitmap)
    }
}
