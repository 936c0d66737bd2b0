//! The private data of one channel at one peer, in two tables: see [`crate::rows`] for their rows.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use base::rt::CancellationToken;
use base::{BlockNumber, Bytes, ErrorKind, MspId, TxId, Version, rt};
use ledger::Hash;
use ledger::hash::sha256;
use ledger::rwset::{PrivateSet, private_writes, without_keys};
use storage::node::RemotePrivateRows;
use storage::tables::{RangeEntry, RangePage, RangeQuery};
use storage::{PrivateRow, PrivateRows};

use crate::Error;
use crate::rows::{self, EXPIRED, FOREIGN, MISSING, PURGES, SETS, SWEEPS, SetLocation};
use crate::values::{PrivatePage, PrivateValues};

/// Reads at the newest block.
const NEWEST: BlockNumber = BlockNumber(u64::MAX);
/// Rows that are read at once while many are looked through.
pub const PAGE_ROWS: usize = 128;
/// Waiting sets that are looked through at once: those that are removed share an fsync.
pub const WAITING_ROWS: usize = 512;
/// Different sets of one organisation that may wait for one transaction and collection: honest endorsers send equal ones.
pub const VARIANTS_MAX: usize = 8;

/// The tables of a channel's private data.
#[derive(Clone)]
pub struct PrivateStore {
    committed: Arc<dyn PrivateRows>,
    transient: Arc<dyn PrivateRows>,
    failure: Arc<StoreFailure>,
}

/// The first error after which the tables of this process must be opened again.
#[derive(Default)]
struct StoreFailure {
    error: OnceLock<storage::Error>,
    failed: CancellationToken,
}

impl PrivateStore {
    /// A store over these tables.
    pub fn new(committed: Arc<dyn PrivateRows>, transient: Arc<dyn PrivateRows>) -> PrivateStore {
        PrivateStore { committed, transient, failure: Arc::default() }
    }

    /// The tables of committed and of transient data, for checkers.
    pub fn tables(&self) -> [&Arc<dyn PrivateRows>; 2] {
        [&self.committed, &self.transient]
    }

    /// Waits until the tables have failed and must be opened again, and returns why.
    pub async fn failed(&self) -> Error {
        self.failure.failed.cancelled().await;
        Error::Storage(self.failure.error.get().expect("the error is set before the failure is announced").clone())
    }

    /// Notes a failure of the tables, which one of many requests meets first.
    fn checked<T>(&self, outcome: Result<T, storage::Error>) -> Result<T, Error> {
        if let Err(error) = &outcome
            && matches!(error.kind(), ErrorKind::Closed | ErrorKind::Corrupt)
        {
            self.failure.error.get_or_init(|| error.clone());
            self.failure.failed.cancel();
        }
        Ok(outcome?)
    }

    /// A store over the two tables at a storage node.
    pub fn remote([committed, transient]: [RemotePrivateRows; 2]) -> PrivateStore {
        PrivateStore::new(Arc::new(committed), Arc::new(transient))
    }

    /// Keeps the sets of a transaction that may be ordered later, sent by another organisation or made by this peer itself.
    /// Durable on return. `height` is that of the channel.
    ///
    /// # Errors
    /// The tables'; `Rejected` if [`VARIANTS_MAX`] other sets of a collection, from the same organisation, wait for the
    /// transaction already.
    pub async fn stage(
        &self,
        tx_id: &TxId,
        height: u64,
        sets: &[PrivateSet],
        from: Option<&MspId>,
    ) -> Result<(), Error> {
        let sender = from.map_or("", |from| from.as_str()).as_bytes();
        let mut staged: Vec<PrivateRow> = Vec::with_capacity(sets.len());
        for set in sets {
            let key = rows::transient_key(tx_id.as_str(), &set.namespace, &set.collection, &sha256(&set.writes));
            if self.first_staged(&key).await?.is_some() || staged.iter().any(|row| row.key.starts_with(&key)) {
                continue;
            }
            if from.is_some() {
                let prefix = rows::transient_prefix(tx_id.as_str(), &set.namespace, &set.collection);
                let waiting = self.staged_by(sender, &prefix, key.len()).await?;
                // Those of the same message count, too.
                let added = staged.iter().filter(|row| row.key.starts_with(&prefix)).count();
                if waiting.saturating_add(added) >= VARIANTS_MAX {
                    return Err(Error::TooManyVariants { tx_id: tx_id.clone(), max: VARIANTS_MAX });
                }
            }
            let key = [&key[..], sender].concat();
            staged.push(rows::row(SETS, key.into(), Version::new(height, 0), Some(set.writes.clone())));
        }
        match staged.is_empty() {
            true => Ok(()),
            false => self.checked(self.transient.write(staged).await),
        }
    }

    /// The set with this hash that waits for a transaction.
    ///
    /// # Errors
    /// The tables'.
    pub async fn staged(
        &self,
        tx_id: &TxId,
        contract: &str,
        collection: &str,
        hash: &Hash,
    ) -> Result<Option<Bytes>, Error> {
        self.first_staged(&rows::transient_key(tx_id.as_str(), contract, collection, hash)).await
    }

    /// The set that waits under a key, from any sender.
    async fn first_staged(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        // No name of an organisation has this byte.
        let end = [key, &[u8::MAX]].concat();
        let found = self.checked(self.transient.range(range(SETS, key, &end, 1)).await)?;
        Ok(found.entries.into_iter().next().map(|entry| entry.value))
    }

    /// How many sets of a transaction and collection an organisation has sent, at least up to [`VARIANTS_MAX`]. Its name follows the
    /// first `key_bytes` bytes of a row's key.
    async fn staged_by(&self, sender: &[u8], prefix: &[u8], key_bytes: usize) -> Result<usize, Error> {
        let (mut start, end, mut count) = (prefix.to_vec(), rows::above(prefix), 0_usize);
        loop {
            let page = self.checked(self.transient.range(range(SETS, &start, &end, PAGE_ROWS)).await)?;
            let own = page.entries.iter().filter(|entry| entry.key.get(key_bytes..) == Some(sender));
            count = count.saturating_add(own.count());
            match page.next {
                Some(next) if count < VARIANTS_MAX => start = next.to_vec(),
                _ => return Ok(count),
            }
        }
    }

    /// Some waiting sets of all transactions, from a key on.
    ///
    /// # Errors
    /// The tables'.
    pub(crate) async fn waiting(&self, from: &[u8]) -> Result<RangePage, Error> {
        self.checked(self.transient.range(range(SETS, from, &[], WAITING_ROWS)).await)
    }

    /// Removes waiting sets. Durable on return; their bytes leave the disk with [`PrivateStore::prune_waiting`].
    ///
    /// # Errors
    /// The tables'.
    pub(crate) async fn remove_waiting(&self, sets: Vec<RangeEntry>) -> Result<(), Error> {
        // Just above the set, so that another one may be kept under the same key.
        let removal = |set: RangeEntry| rows::row(SETS, set.key, Version::new(set.version.block, u32::MAX), None);
        self.checked(self.transient.write(sets.into_iter().map(removal).collect()).await)
    }

    /// Lets the table of waiting sets drop all that were removed.
    ///
    /// # Errors
    /// The tables'. A later call continues.
    pub(crate) async fn prune_waiting(&self) -> Result<(), Error> {
        self.checked(prune_whole(self.transient.as_ref(), NEWEST).await)
    }

    /// Writes rows of committed data. Durable on return.
    ///
    /// # Errors
    /// The tables'.
    pub async fn write(&self, rows: Vec<PrivateRow>) -> Result<(), Error> {
        self.checked(self.committed.write(rows).await)
    }

    /// A committed set, without the keys that were purged since.
    ///
    /// # Errors
    /// The tables'.
    pub async fn set(&self, at: &SetLocation) -> Result<Option<Bytes>, Error> {
        let found = value(self.committed.get_many(&[(SETS, &at.key())], NEWEST).await?);
        let Some(set) = found else { return Ok(None) };
        let purged = self.purges_after(at).await?;
        Ok(Some(without_purged(set, &purged)))
    }

    /// The hashes of the keys of a collection that were purged by a transaction after this one, or by this one.
    async fn purges_after(&self, at: &SetLocation) -> Result<BTreeSet<Vec<u8>>, Error> {
        let prefix = rows::purge_key(&at.contract, &at.collection, &[]);
        let (mut start, end, mut purged) = (prefix.to_vec(), rows::above(&prefix), BTreeSet::new());
        loop {
            let page = self.committed.range(range(PURGES, &start, &end, PAGE_ROWS)).await?;
            let later = page.entries.iter().filter(|entry| entry.version >= at.version);
            purged.extend(later.filter_map(|entry| rows::purged(&entry.key)).map(|(_, _, hash)| hash));
            match page.next {
                Some(next) => start = next.to_vec(),
                None => return Ok(purged),
            }
        }
    }

    /// Whether a key was purged by this transaction or a later one.
    ///
    /// # Errors
    /// The tables'.
    pub async fn is_purged(&self, at: &SetLocation, key_hash: &[u8]) -> Result<bool, Error> {
        let key = rows::purge_key(&at.contract, &at.collection, key_hash);
        let found = self.committed.get_many(&[(PURGES, &key)], NEWEST).await?.pop().flatten();
        Ok(found.is_some_and(|row| row.version >= at.version))
    }

    /// Some locations of sets that are noted in `namespace` ([`MISSING`] or [`FOREIGN`]), from a key on, and where to go on; `None` at
    /// the end.
    ///
    /// # Errors
    /// The tables'.
    pub async fn noted(&self, namespace: &str, from: &[u8]) -> Result<(Vec<SetLocation>, Option<Bytes>), Error> {
        let page = self.committed.range(range(namespace, from, &[], PAGE_ROWS)).await?;
        let found = page.entries.iter().filter_map(|entry| SetLocation::of_key(&entry.key)).collect();
        Ok((found, page.next))
    }

    /// The sets of a collection in a block that are noted as missing.
    ///
    /// # Errors
    /// The tables'.
    pub(crate) async fn missing_of(
        &self,
        contract: &str,
        collection: &str,
        block: u64,
    ) -> Result<Vec<SetLocation>, Error> {
        let (mut start, end) = SetLocation::range_of_blocks(contract, collection, block..block.saturating_add(1));
        let mut found = Vec::new();
        loop {
            let page = self.checked(self.committed.range(range(MISSING, &start, &end, PAGE_ROWS)).await)?;
            found.extend(page.entries.iter().filter_map(|entry| SetLocation::of_key(&entry.key)));
            match page.next {
                Some(next) => start = next.to_vec(),
                None => return Ok(found),
            }
        }
    }

    /// Up to which block, exclusive, expired data are removed.
    ///
    /// # Errors
    /// The tables'.
    pub async fn expired(&self) -> Result<u64, Error> {
        let found = self.committed.get_many(&[(EXPIRED, b"")], NEWEST).await?.pop().flatten();
        Ok(found.map_or(0, |row| row.version.block))
    }

    /// Removes the sets of a collection in some blocks, with their values and the notes of sets that are missing. `at` is the
    /// version of the removal.
    ///
    /// # Errors
    /// The tables'. A later call continues.
    pub async fn remove_blocks(
        &self,
        contract: &str,
        collection: &str,
        blocks: Range<u64>,
        at: Version,
    ) -> Result<(), Error> {
        let (first, end) = SetLocation::range_of_blocks(contract, collection, blocks);
        let values = rows::values(contract, collection);
        for namespace in [SETS, MISSING, FOREIGN] {
            let mut start = first.clone();
            loop {
                let page = self.committed.range(range(namespace, &start, &end, PAGE_ROWS)).await?;
                let mut gone = Vec::new();
                for entry in page.entries {
                    if let (SETS, Some(location)) = (namespace, SetLocation::of_key(&entry.key)) {
                        // Above all writes of that block, and below those of later blocks, which expire later.
                        let written = Version::new(location.version.block, u32::MAX);
                        let writes = private_writes(&entry.value).unwrap_or_default();
                        let keys = writes.into_iter().map(|write| Bytes::from(write.key));
                        gone.extend(keys.map(|key| rows::row(&values, key, written, None)));
                    }
                    // A purge may have rewritten the set under its own version, ahead of the removal's.
                    let version = at.max(Version::new(entry.version.block, u32::MAX));
                    gone.push(rows::row(namespace, entry.key, version, None));
                }
                if !gone.is_empty() {
                    self.write(gone).await?;
                }
                match page.next {
                    Some(next) => start = next.to_vec(),
                    None => break,
                }
            }
        }
        Ok(())
    }

    /// Notes up to which block, exclusive, expired data are removed.
    ///
    /// # Errors
    /// The tables'.
    pub async fn note_expired(&self, block: u64) -> Result<(), Error> {
        self.write(vec![rows::marker(EXPIRED, Bytes::new(), Version::new(block, 0))]).await
    }

    /// Some purges that are not complete.
    ///
    /// # Errors
    /// The tables'.
    pub(crate) async fn sweeps(&self) -> Result<Vec<RangeEntry>, Error> {
        Ok(self.checked(self.committed.range(range(SWEEPS, &[], &[], PAGE_ROWS)).await)?.entries)
    }

    /// Removes the purged keys from all committed sets and values that still hold them, then from the disk.
    ///
    /// # Errors
    /// The tables'. A later call continues.
    pub(crate) async fn sweep(&self, purges: &[RangeEntry]) -> Result<(), Error> {
        for entry in purges {
            let purge = entry.version;
            let Some((contract, collection, hash)) = rows::purged(&entry.key) else { continue };
            let is_purged = |key: &str| sha256(key.as_bytes())[..] == hash[..];
            let (start, end) = SetLocation::range_of_collection(&contract, &collection);
            let mut start = start;
            loop {
                let sets = self.committed.range(range(SETS, &start, &end, PAGE_ROWS)).await?;
                let mut changed = Vec::new();
                for set in sets.entries {
                    let location = SetLocation::of_key(&set.key).filter(|location| location.version <= purge);
                    let rest = location.and_then(|_| without_keys(&set.value, is_purged).ok().flatten());
                    // A later purge of another key may have been completed before.
                    let version = set.version.max(purge);
                    changed.extend(rest.map(|rest| rows::row(SETS, set.key, version, Some(rest))));
                }
                if !changed.is_empty() {
                    self.write(changed).await?;
                }
                match sets.next {
                    Some(next) => start = next.to_vec(),
                    None => break,
                }
            }
            rt::fault::hold_up("private.sweep.sets", Duration::from_millis(100)).await;
            self.remove_value(&contract, &collection, purge, is_purged).await?;
        }
        rt::fault::hold_up("private.sweep.values", Duration::from_millis(100)).await;
        let newest = purges.iter().map(|entry| entry.version.block).max().unwrap_or_default();
        self.checked(prune_whole(self.committed.as_ref(), BlockNumber(newest)).await)
    }

    /// Notes that purges are complete.
    ///
    /// # Errors
    /// The tables'.
    pub(crate) async fn note_swept(&self, purges: Vec<RangeEntry>) -> Result<(), Error> {
        let done = purges.into_iter().map(|entry| {
            let version = Version::new(entry.version.block, u32::MAX);
            rows::row(SWEEPS, entry.key, version, None)
        });
        self.write(done.collect()).await
    }

    /// Removes the value of a purged key. A peer that lacks the set of the purge knows only the hash of the key.
    async fn remove_value(
        &self,
        contract: &str,
        collection: &str,
        purge: Version,
        is_purged: impl Fn(&str) -> bool,
    ) -> Result<(), Error> {
        let (values, mut start) = (rows::values(contract, collection), Vec::new());
        loop {
            let page = self.committed.range(range(&values, &start, &[], PAGE_ROWS)).await?;
            let purged = |key: &[u8]| std::str::from_utf8(key).is_ok_and(&is_purged);
            if let Some(entry) = page.entries.iter().find(|entry| purged(&entry.key)) {
                if entry.version <= purge {
                    self.write(vec![rows::row(&values, entry.key.clone(), purge, None)]).await?;
                }
                return Ok(());
            }
            match page.next {
                Some(next) => start = next.to_vec(),
                None => return Ok(()),
            }
        }
    }

    /// Lets the tables drop superseded rows that no reader at block `oldest` or later sees.
    ///
    /// # Errors
    /// The tables'.
    pub async fn prune(&self, oldest: u64) -> Result<(), Error> {
        self.committed.prune(BlockNumber(oldest)).await?;
        Ok(())
    }
}

#[async_trait]
impl PrivateValues for PrivateStore {
    async fn value(&self, contract: &str, collection: &str, key: &str, height: u64) -> Result<Option<Bytes>, Error> {
        let Some(newest) = height.checked_sub(1) else { return Ok(None) };
        let values = rows::values(contract, collection);
        Ok(value(self.committed.get_many(&[(&values, key.as_bytes())], BlockNumber(newest)).await?))
    }

    async fn range(
        &self,
        contract: &str,
        collection: &str,
        (start, end): (&str, &str),
        height: u64,
        limit: usize,
    ) -> Result<PrivatePage, Error> {
        let Some(newest) = height.checked_sub(1) else { return Ok(PrivatePage::default()) };
        let values = rows::values(contract, collection);
        let through = BlockNumber(newest);
        let query = RangeQuery { namespace: &values, start: start.as_bytes(), end: end.as_bytes(), through, limit };
        let page = self.committed.range(query).await?;
        let text = |bytes: Bytes| String::from_utf8(bytes.to_vec()).ok();
        let entries = page.entries.into_iter().filter_map(|entry| Some((text(entry.key)?, entry.value)));
        Ok(PrivatePage { entries: entries.collect(), next: page.next.and_then(text) })
    }
}

/// Lets a table drop superseded and removed rows that no reader at block `oldest` or later sees.
async fn prune_whole(rows: &dyn PrivateRows, oldest: BlockNumber) -> Result<(), storage::Error> {
    // Each call goes on where an earlier one ended, which need not be the start of the table.
    for _ in 0..2 {
        while !rows.prune(oldest).await? {}
    }
    Ok(())
}

fn range<'a>(namespace: &'a str, start: &'a [u8], end: &'a [u8], limit: usize) -> RangeQuery<'a> {
    RangeQuery { namespace, start, end, through: NEWEST, limit }
}

fn value(mut rows: Vec<Option<storage::tables::Row>>) -> Option<Bytes> {
    rows.pop().flatten().and_then(|row| row.value)
}

/// A set without the keys with these hashes.
fn without_purged(set: Bytes, purged: &BTreeSet<Vec<u8>>) -> Bytes {
    if purged.is_empty() {
        return set;
    }
    let is_purged = |key: &str| purged.contains(&sha256(key.as_bytes())[..]);
    without_keys(&set, is_purged).ok().flatten().unwrap_or(set)
}

impl fmt::Debug for PrivateStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrivateStore").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
