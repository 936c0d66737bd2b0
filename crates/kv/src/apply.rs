//! The applier: a background task that turns entries of the log into records in chains (step 4 at the head of
//! [`super`]). The module also loads the index.
//!
//! 1. Take a *window*: the oldest unapplied entries, at most [`WINDOW_MAX`]; if the store also persists to tables, only
//!    entries that are already persisted. Applying a window has a fixed cost, about that of several entries. So with
//!    fewer than [`WINDOW`] entries, wait up to [`PAUSE`] for more, unless a caller waits for space or a watcher is
//!    registered. Then wait until a majority has the entries of the window, and notify the watchers. Of each key, only
//!    the newest entry of the window is applied.
//! 2. Read the chains of these keys, all at once; recently used chains are cached ([`ChainCache`]).
//! 3. Make the counters of the window's stripes odd: a get that walks a chain meanwhile starts again (see the head of
//!    [`super`]). Fill a transaction with the changes of whole entries, in order, until the next entry does not fit.
//!    The changes are records, pointers, and the lines of the bitmap in which blocks are allocated or freed. Post the
//!    transaction and start the next one. The next transaction allocates from other lines of the bitmap: if two
//!    transactions wrote the same line, the later one would wait until the earlier one is committed. A record is one
//!    write for each run of adjacent blocks. A new record goes to the front of its chain.
//! 4. The last transaction of the window moves the cursor to the end of the window. Transactions are committed in the
//!    order in which they were posted, so a new coordinator finds a prefix of them, each complete. When the last one is
//!    committed, increment the counters of the stripes again; the log space of the window is then free.
//!
//! Only this task changes chains and bitmap. Invariant: after each transaction, the bitmap marks exactly the blocks of
//! the records in chains.

use std::collections::BTreeSet;
use std::collections::hash_map::IntoValues;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use base::{Bytes, Map, rt};
use futures_util::FutureExt as _;
use futures_util::future::{select, try_join_all};
use sift::{MemoryWrite, WRITES_MAX, WriteHandle};
use wire::u64_at;

use super::fault::{Mutant, crash_point, mutant};
use super::kv_core::WINDOW;
use super::layout::{
    KvRecord, LINE_BLOCKS, LINE_BYTES, RECORD_HEAD_BYTES, decode_pointer, encode_cursor, encode_pointer, record_writes,
};
use super::watch::ChangeEvent;
use super::{KvCore, PendingEntry, STRIPES, UNKNOWN, lock, table};
use crate::Error;

const WINDOW_MAX: usize = 256;
/// How long fewer entries wait for others.
const PAUSE: Duration = Duration::from_millis(2);
/// The most chains that are remembered, and the most records of one.
const CHAINS_MAX: usize = 1 << 16;
const CHAIN_RECORDS_MAX: usize = 8;
/// Buckets that are loaded at once.
const LOAD_BUCKETS: u64 = 1024;

/// Applies until the coordinator ends.
pub(super) async fn apply(shared: Arc<KvCore>, bitmap: Vec<u64>) {
    let blocks = BlockAllocator::new(bitmap, shared.geometry.blocks);
    let mut applier = Applier { shared: &shared, blocks, chains: ChainCache::default() };
    let outcome = {
        let (work, ends) = (pin!(applier.run()), pin!(shared.coordinator.ended().map(Error::from)));
        let first = async { select(work, ends).await.factor_first().0 };
        shared.stop.run_until_cancelled(first).await
    };
    if let Some(error) = outcome {
        let error = match error {
            Error::Ambiguous => shared.coordinator.check_serving().err().map_or(Error::Closed, Error::from),
            error => error,
        };
        if error.kind() == base::ErrorKind::Corrupt {
            tracing::error!(%error, "a key-value store cannot go on");
        }
        shared.fail(error);
    }
}

/// Loads the index.
pub(super) async fn load(shared: Arc<KvCore>) {
    let buckets = shared.geometry.buckets;
    for from in (0..buckets).step_by(LOAD_BUCKETS as usize) {
        let count = LOAD_BUCKETS.min(buckets - from);
        let read = shared.coordinator.read(shared.geometry.bucket_at(from), count as usize * 8);
        let Some(Ok(bytes)) = shared.stop.run_until_cancelled(read).await else { return };
        {
            let mut state = lock(&shared.state);
            for at in 0..count {
                // A value that is known already is newer than the one that was read, or the same.
                let bucket = (from + at) as usize;
                if state.index[bucket] == UNKNOWN {
                    state.index[bucket] = u64_at(&bytes, at as usize * 8);
                    state.known += 1;
                }
            }
        }
        rt::yield_now().await;
    }
    tracing::debug!(buckets, "the index of a key-value store is loaded");
}

/// Which blocks are allocated.
struct BlockAllocator {
    words: Vec<u64>,
    /// Where the next search starts.
    hand: usize,
    free: u64,
}

impl BlockAllocator {
    fn new(words: Vec<u64>, blocks: u64) -> BlockAllocator {
        let taken: u64 = words.iter().map(|word| u64::from(word.count_ones())).sum();
        BlockAllocator { words, hand: 0, free: blocks - taken.min(blocks) }
    }

    fn allocate(&mut self) -> Result<u32, Error> {
        for _ in 0..=self.words.len() {
            let word = &mut self.words[self.hand];
            if *word != u64::MAX {
                let bit = word.trailing_ones();
                *word |= 1 << bit;
                self.free -= 1;
                return Ok(self.hand as u32 * 64 + bit);
            }
            self.hand = (self.hand + 1) % self.words.len();
        }
        Err(Error::Corrupt("a put was acknowledged for which there is no room"))
    }

    /// Starts the next search in the next line.
    fn leave_line(&mut self) {
        let line_words = (LINE_BLOCKS / 64) as usize;
        self.hand = (self.hand / line_words + 1) * line_words % self.words.len();
    }

    /// Frees a block of a chain. The chain was read from memory nodes, so it may wrongly name a block that is free.
    fn release(&mut self, block: u32) -> Result<(), Error> {
        let (word, bit) = (block as usize / 64, 1 << (block % 64));
        if self.words[word] & bit == 0 {
            return Err(Error::Corrupt("a chain of a key-value store holds a free block"));
        }
        self.words[word] &= !bit;
        self.free += 1;
        Ok(())
    }

    /// The bytes of a line.
    fn line(&self, line: u64) -> Bytes {
        let words = &self.words[(line * LINE_BLOCKS / 64) as usize..][..(LINE_BLOCKS / 64) as usize];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }
}

/// A transaction that is being put together.
#[derive(Default)]
struct ApplyTransaction {
    writes: Vec<MemoryWrite>,
    bytes: u64,
    lines: BTreeSet<u64>,
}

/// The pointer to the first record of a chain.
fn first_of(chain: &[KvRecord]) -> u64 {
    chain.first().map_or(0, |record| encode_pointer(record.blocks[0]))
}

impl ApplyTransaction {
    fn write(&mut self, write: MemoryWrite) {
        self.bytes += 16 + write.bytes.len() as u64;
        self.writes.push(write);
    }

    fn fits(&self, writes: usize, bytes: u64, bytes_max: u64) -> bool {
        self.writes.len() + self.lines.len() + writes <= WRITES_MAX
            && 40 + self.bytes + 80 * self.lines.len() as u64 + bytes <= bytes_max
    }
}

/// Chains as this task has left them, without values; no other task changes any. The least recently used ones are forgotten, a
/// few at a time: to drop many at once would delay everything else for tens of milliseconds.
#[derive(Default)]
struct ChainCache {
    recent: Map<u64, Vec<KvRecord>>,
    older: Map<u64, Vec<KvRecord>>,
    evicted: IntoValues<u64, Vec<KvRecord>>,
}

impl ChainCache {
    fn take(&mut self, bucket: u64) -> Option<Vec<KvRecord>> {
        self.recent.remove(&bucket).or_else(|| self.older.remove(&bucket))
    }

    fn put(&mut self, bucket: u64, chain: Vec<KvRecord>) {
        // All forgotten chains are dropped before as many new ones have come.
        drop(self.evicted.next());
        if chain.len() > CHAIN_RECORDS_MAX {
            return;
        }
        if self.recent.len() >= CHAINS_MAX / 2 {
            let next = Map::with_capacity_and_hasher(CHAINS_MAX / 2, Default::default());
            let older = std::mem::replace(&mut self.older, std::mem::replace(&mut self.recent, next));
            self.evicted = older.into_values();
        }
        self.recent.insert(bucket, chain);
    }
}

struct Applier<'a> {
    shared: &'a KvCore,
    blocks: BlockAllocator,
    chains: ChainCache,
}

impl Applier<'_> {
    /// Applies window after window; returns the error that ends it.
    async fn run(&mut self) -> Error {
        loop {
            if let Err(error) = self.window().await {
                return error;
            }
        }
    }

    /// Steps 1 to 4.
    async fn window(&mut self) -> Result<(), Error> {
        let shared = self.shared;
        let window = self.gather().await;
        let last = window.last().expect("a window has an entry");
        shared.confirm(last.posted).await?;
        self.publish(&window);
        crash_point("consensus.kv.applying").await;

        let newest: Map<&Bytes, u64> = window.iter().map(|entry| (&entry.key, entry.after.index)).collect();
        let applied: Vec<&PendingEntry> =
            window.iter().filter(|entry| newest[&entry.key] == entry.after.index).collect();
        let mut buckets: Vec<u64> = applied.iter().map(|entry| shared.bucket(&entry.key)).collect();
        buckets.sort_unstable();
        buckets.dedup();
        // Chains that are not put back, because something fails, are read again.
        let mut chains: Map<u64, Vec<KvRecord>> = Map::default();
        let known = |bucket: &u64| match self.chains.take(*bucket) {
            Some(chain) => chains.insert(*bucket, chain).is_some(),
            None => true,
        };
        buckets.retain(known);
        if !buckets.is_empty() {
            let read = try_join_all(buckets.iter().map(|bucket| self.chain(*bucket))).boxed().await?;
            if mutant(Mutant::StaleChain) {
                buckets.iter().zip(&read).for_each(|(bucket, chain)| self.chains.put(*bucket, chain.clone()));
            }
            chains.extend(buckets.into_iter().zip(read));
        }

        let stripes: BTreeSet<usize> = chains.keys().map(|bucket| *bucket as usize % STRIPES).collect();
        self.count_up(&stripes);
        let mut transaction = ApplyTransaction::default();
        let cursor = MemoryWrite { address: shared.geometry.cursor_at(), bytes: encode_cursor(last.after) };
        if mutant(Mutant::CursorFirst) {
            shared.coordinator.transact(vec![cursor.clone()]).await?;
        }
        for entry in applied {
            let bucket = shared.bucket(&entry.key);
            let chain = chains.get_mut(&bucket).expect("its chain was read");
            let (writes, bytes) = self.needs(chain, entry);
            self.ensure_capacity(&mut transaction, writes, bytes).await?;
            self.change(&mut transaction, bucket, chain, entry)?;
        }
        self.ensure_capacity(&mut transaction, 1, 80).await?;
        transaction.write(cursor);
        let posted = self.post(&mut transaction).await?;
        shared.confirm(posted).await?;
        crash_point("consensus.kv.committed").await;
        {
            let mut state = lock(&shared.state);
            for (bucket, chain) in &chains {
                let known = &mut state.index[*bucket as usize];
                let before = std::mem::replace(known, first_of(chain));
                state.known += u64::from(before == UNKNOWN);
            }
        }
        self.count_up(&stripes);
        shared.applied.notify_waiters();
        if !mutant(Mutant::StaleChain) {
            chains.into_iter().for_each(|(bucket, chain)| self.chains.put(bucket, chain));
        }
        crash_point("consensus.kv.applied").await;
        self.finish(&window);
        shared.space_freed.notify_one();
        rt::yield_now().await;
        Ok(())
    }

    /// The next entries, once there are some that need not wait for others.
    async fn gather(&self) -> Vec<PendingEntry> {
        let shared = self.shared;
        let mut since = None;
        loop {
            {
                let has_watchers = lock(&shared.feed).has_watchers();
                let state = lock(&shared.state);
                let is_kept =
                    |entry: &&PendingEntry| entry.after.index <= state.persisted || mutant(Mutant::ApplyUnpersisted);
                let window = state.pending.iter().take(WINDOW_MAX).take_while(is_kept);
                let count = window.clone().count();
                let waits = count < WINDOW && !state.is_space_wanted && !has_watchers;
                if count > 0 && !(waits && since.is_none_or(|since: rt::Instant| since.elapsed() < PAUSE)) {
                    return window.cloned().collect();
                }
                if count == 0 {
                    since = None;
                } else {
                    since.get_or_insert_with(rt::now);
                }
            }
            match since {
                None => shared.work.notified().await,
                Some(since) => drop(rt::timeout(PAUSE.saturating_sub(since.elapsed()), shared.work.notified()).await),
            }
        }
    }

    /// Notifies watchers of all entries but those that the takeover has published.
    fn publish(&self, window: &[PendingEntry]) {
        let mut feed = lock(&self.shared.feed);
        for entry in window.iter().filter(|entry| entry.posted > WriteHandle::default()) {
            let (key, value, version) = (entry.key.clone(), entry.value.clone(), entry.after.index);
            feed.publish(ChangeEvent { key, value, version });
        }
    }

    /// Removes the entries of a window from the pending ones and frees what they reserved.
    fn finish(&self, window: &[PendingEntry]) {
        let mut state = lock(&self.shared.state);
        for entry in window {
            let gone = state.pending.pop_front().expect("only this task takes entries away");
            assert!(gone.after == entry.after, "entries are applied in order");
            state.used_bytes -= entry.bytes;
            state.reserved -= entry.blocks;
            state.applied = entry.after.index;
        }
        state.free = self.blocks.free;
        state.is_space_wanted = false;
        let applied = state.applied;
        state.cache.evict(applied);
    }

    fn blocks_of(&self, entry: &PendingEntry) -> usize {
        entry.value.as_ref().map_or(0, |value| self.shared.geometry.record_blocks(entry.key.len(), value.len()))
    }

    /// The most writes that an entry makes, and the most bytes of a transaction that they take.
    fn needs(&self, chain: &[KvRecord], entry: &PendingEntry) -> (usize, u64) {
        let has = chain.iter().find(|record| record.key == entry.key).map(|record| record.blocks.len());
        let wants = self.blocks_of(entry);
        let writes = match (&entry.value, has) {
            (None, None) => 0,
            // Lines of the bitmap, and the pointer to the record.
            (None, Some(has)) => has + 1,
            // Blocks, and lines of the bitmap for those that are allocated or freed.
            (Some(_), Some(has)) => wants + wants.abs_diff(has),
            (Some(_), None) => 2 * wants + 1,
        };
        let value_bytes = entry.value.as_ref().map_or(0, Bytes::len);
        // A record is padded to a whole line.
        let bytes = (RECORD_HEAD_BYTES + entry.key.len() + value_bytes) as u64 + LINE_BYTES;
        (writes, bytes + 80 * writes as u64)
    }

    async fn chain(&self, bucket: u64) -> Result<Vec<KvRecord>, Error> {
        let mut chain: Vec<KvRecord> = Vec::new();
        let mut at = table::first(self.shared, bucket).await?;
        while let Some(block) = decode_pointer(at, &self.shared.geometry)? {
            let record = table::record_head(self.shared, block).await?;
            at = record.next;
            // A copy, so that the key does not keep the bytes that were read.
            chain.push(KvRecord { key: Bytes::copy_from_slice(&record.key), ..record });
            if chain.len() as u64 > self.shared.geometry.blocks {
                return Err(Error::Corrupt("a chain of a key-value store has no end"));
            }
        }
        Ok(chain)
    }

    /// Adds the changes of an entry to a transaction.
    fn change(
        &mut self,
        transaction: &mut ApplyTransaction,
        bucket: u64,
        chain: &mut Vec<KvRecord>,
        entry: &PendingEntry,
    ) -> Result<(), Error> {
        let sizes = &self.shared.geometry;
        let place = chain.iter().position(|record| record.key == entry.key);
        match (&entry.value, place) {
            (None, None) => return Ok(()),
            (None, Some(place)) => {
                let gone = chain.remove(place);
                for block in gone.blocks {
                    self.release_block(transaction, block)?;
                }
                if place == 0 {
                    self.point(transaction, bucket, gone.next);
                } else {
                    let before = &mut chain[place - 1];
                    before.next = gone.next;
                    let address = sizes.block_at(u64::from(before.blocks[0]));
                    transaction.write(MemoryWrite { address, bytes: Bytes::copy_from_slice(&gone.next.to_le_bytes()) });
                }
            }
            (Some(_), Some(place)) if chain[place].version >= entry.after.index => return Ok(()),
            (Some(value), Some(place)) => {
                let needed = self.blocks_of(entry);
                let record = &mut chain[place];
                while record.blocks.len() > needed {
                    let block = record.blocks.pop().expect("a record has a block");
                    self.release_block(transaction, block)?;
                }
                while record.blocks.len() < needed {
                    record.blocks.push(self.allocate_block(transaction)?);
                }
                (record.version, record.value_bytes) = (entry.after.index, value.len());
                record_writes(record.next, record.version, &entry.key, value, &record.blocks, sizes)
                    .into_iter()
                    .for_each(|write| transaction.write(write));
            }
            (Some(value), None) => {
                let mut blocks = Vec::with_capacity(1);
                for _ in 0..self.blocks_of(entry) {
                    blocks.push(self.allocate_block(transaction)?);
                }
                let next = first_of(chain);
                let version = entry.after.index;
                record_writes(next, version, &entry.key, value, &blocks, sizes)
                    .into_iter()
                    .for_each(|write| transaction.write(write));
                self.point(transaction, bucket, encode_pointer(blocks[0]));
                let key = entry.key.clone();
                let record = KvRecord { next, version, key, value_bytes: value.len(), blocks, value: Bytes::new() };
                chain.insert(0, record);
            }
        }
        Ok(())
    }

    fn point(&self, transaction: &mut ApplyTransaction, bucket: u64, to: u64) {
        let bytes = Bytes::copy_from_slice(&to.to_le_bytes());
        transaction.write(MemoryWrite { address: self.shared.geometry.bucket_at(bucket), bytes });
    }

    fn allocate_block(&mut self, transaction: &mut ApplyTransaction) -> Result<u32, Error> {
        let block = self.blocks.allocate()?;
        transaction.lines.insert(u64::from(block) / LINE_BLOCKS);
        Ok(block)
    }

    fn release_block(&mut self, transaction: &mut ApplyTransaction, block: u32) -> Result<(), Error> {
        self.blocks.release(block)?;
        transaction.lines.insert(u64::from(block) / LINE_BLOCKS);
        Ok(())
    }

    /// Posts the transaction if `writes` and `bytes` more would not fit.
    async fn ensure_capacity(
        &mut self,
        transaction: &mut ApplyTransaction,
        writes: usize,
        bytes: u64,
    ) -> Result<(), Error> {
        let bytes_max = self.shared.coordinator.layout().entry_bytes_max();
        if !transaction.fits(writes, bytes, bytes_max) {
            self.post(transaction).await?;
            // Where verbs complete at once, this task would never yield.
            rt::yield_now().await;
        }
        Ok(())
    }

    async fn post(&mut self, transaction: &mut ApplyTransaction) -> Result<WriteHandle, Error> {
        let ApplyTransaction { mut writes, lines, .. } = std::mem::take(transaction);
        if !lines.is_empty() {
            self.blocks.leave_line();
        }
        for line in lines {
            writes.push(MemoryWrite { address: self.shared.geometry.line_at(line), bytes: self.blocks.line(line) });
        }
        if writes.is_empty() {
            return Ok(WriteHandle::default());
        }
        let posted = self.shared.coordinator.post_transaction(writes).await?;
        crash_point("consensus.kv.posted").await;
        Ok(posted)
    }

    fn count_up(&self, stripes: &BTreeSet<usize>) {
        let mut state = lock(&self.shared.state);
        stripes.iter().for_each(|stripe| state.stripes[*stripe] = state.stripes[*stripe].wrapping_add(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_of_late_are_remembered_and_others_go_one_at_a_time() {
        let (mut chains, most) = (ChainCache::default(), CHAINS_MAX as u64);
        for bucket in 0..3 * most {
            let forgotten = chains.evicted.len();
            chains.put(bucket, Vec::new());
            assert!(chains.recent.len() + chains.older.len() <= CHAINS_MAX);
            let gone = forgotten.saturating_sub(chains.evicted.len());
            assert!(gone <= 1, "{gone} at once");
        }
        assert!(
            (5 * most / 2..3 * most).all(|bucket| chains.take(bucket).is_some()),
            "at least half as many are there"
        );
        assert!((0..2 * most).all(|bucket| chains.take(bucket).is_none()));
        assert!(chains.take(3 * most - 1).is_none(), "what was taken is there no more");
    }
}
