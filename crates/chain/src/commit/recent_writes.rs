//! The rows that recent blocks wrote, with their versions. By these a transaction is recognised that can never be valid.
//!
//! The version of a row only grows: each valid write of the row, and each delete, has a newer one. So a transaction that
//! read a version of a row before the last one that is known here can not become valid any more. The table says nothing of
//! other transactions: it knows the rows of some blocks only, and a row that was missing may be deleted again.
//!
//! 1. A peer hashes the rows of each block that it commits, with a key that it has drawn at random ([`WrittenRows`]), and
//!    notes them in its own table once the block counts as committed.
//! 2. If a gateway runs in another process, the notice of the block carries the hashes and the key. The gateway notes them in
//!    its own table, which it empties when the key changes: another compute node of the peer commits now.
//!
//! Invariants:
//! 1. The key is secret: it is known to the processes of one organisation only. So nobody can find a row with the same hash
//!    as that of somebody else, in order to make that one's transactions appear outdated.
//! 2. A table has at most [`ROWS_MAX`] rows, and a block adds at most [`BLOCK_ROWS_MAX`]. Rows beyond these are not known,
//!    and the oldest are forgotten.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::fmt;
use std::sync::{Mutex, PoisonError};

use base::{Bytes, Map, rt};
use identity::hex;
use ledger::namespace;
use ledger::rwset::{ReadVersion, ReadWriteSet};
use state::UpdateBatch;
use wire::{Malformed, Reader, Writer};

/// The most rows of a table.
pub const ROWS_MAX: usize = 1 << 16;
/// The most rows of one block.
pub const BLOCK_ROWS_MAX: usize = 1 << 13;
/// The most reads of a transaction that are looked up.
pub const READS_MAX: usize = 512;

const KEY_BYTES: usize = 32;
/// A row: its hash, and the position of the transaction in the block.
const ROW_BYTES: usize = 8 + 4;

/// The key with which rows are hashed.
#[derive(Clone, PartialEq, Eq)]
pub struct RowKey([u8; KEY_BYTES]);

impl RowKey {
    /// A new random key.
    pub fn random() -> RowKey {
        let mut key = [0; KEY_BYTES];
        rt::fill_random(&mut key);
        RowKey(key)
    }

    fn hash(&self, namespace: &str, key: &str) -> u64 {
        let length = (namespace.len() as u64).to_le_bytes();
        let digest = identity::sha256([&self.0[..], &length, namespace.as_bytes(), key.as_bytes()]);
        wire::u64_at(&digest, 0)
    }
}

impl fmt::Debug for RowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RowKey(…)")
    }
}

/// The rows that the valid transactions of a block wrote, as hashes.
///
/// ```text
/// key:32 | (hash:u64 | transaction:u32)*
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenRows(Bytes);

impl WrittenRows {
    /// The rows of a block's changes.
    pub fn of(key: &RowKey, batch: &UpdateBatch) -> WrittenRows {
        let rows = batch.len().min(BLOCK_ROWS_MAX);
        let mut writer = Writer::with_capacity(ROW_BYTES.saturating_mul(rows).saturating_add(KEY_BYTES));
        writer.put(&key.0);
        for (namespace, row, update) in batch.iter().take(BLOCK_ROWS_MAX) {
            writer.u64(key.hash(namespace, row)).u32(update.version.tx);
        }
        WrittenRows(writer.done())
    }

    /// Reads what another process of the same organisation sent.
    ///
    /// # Errors
    /// If the bytes are no rows, or more than [`BLOCK_ROWS_MAX`].
    pub fn decode(bytes: Bytes) -> Result<WrittenRows, Malformed> {
        let mut reader = Reader::new(&bytes[..]);
        reader.array::<KEY_BYTES>()?;
        let rows = reader.left();
        if !rows.is_multiple_of(ROW_BYTES) || rows / ROW_BYTES > BLOCK_ROWS_MAX {
            return Err(reader.malformed("the rows that a block wrote"));
        }
        Ok(WrittenRows(bytes))
    }

    /// The encoded rows.
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }

    fn key(&self) -> RowKey {
        RowKey(self.0[..KEY_BYTES].try_into().expect("the length was checked"))
    }

    fn rows(&self) -> impl Iterator<Item = (u64, u32)> {
        let rows = self.0[KEY_BYTES..].chunks_exact(ROW_BYTES);
        rows.map(|row| (wire::u64_at(row, 0), wire::u32_at(row, 8)))
    }
}

/// A read of a transaction that can not be valid any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutdatedRead {
    /// The contract whose key it is.
    pub contract: String,
    /// The version that was read.
    pub seen: ReadVersion,
    /// A newer version, which a valid transaction wrote.
    pub newest: ReadVersion,
}

/// The rows that recent blocks wrote.
#[derive(Debug, Default)]
pub struct RecentWrites {
    inner: Mutex<WritesTable>,
}

#[derive(Debug, Default)]
struct WritesTable {
    key: Option<RowKey>,
    /// The rows that were noted last, up to half of [`ROWS_MAX`], with their blocks and transactions.
    newer: Map<u64, (u64, u32)>,
    /// Those that were noted before; a row may stand in both.
    older: Map<u64, (u64, u32)>,
}

impl RecentWrites {
    /// Notes the rows of a committed block. Blocks come in order.
    pub fn note(&self, block: u64, rows: &WrittenRows) {
        let key = rows.key();
        let mut table = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if table.key.as_ref() != Some(&key) {
            *table = WritesTable { key: Some(key), ..WritesTable::default() };
        }
        for (hash, transaction) in rows.rows() {
            if table.newer.len() >= ROWS_MAX / 2 {
                table.older = std::mem::take(&mut table.newer);
            }
            table.newer.insert(hash, (block, transaction));
        }
    }

    /// A read of the set whose row was written since. Reads of missing rows and scans are not judged, nor any after
    /// [`READS_MAX`] reads.
    pub fn outdated_read(&self, set: &ReadWriteSet) -> Option<OutdatedRead> {
        let key = self.inner.lock().unwrap_or_else(PoisonError::into_inner).key.clone()?;
        let mut reads = READS_MAX;
        for namespace in &set.namespaces {
            let contract = set.name(namespace);
            let outdated = |rows: &str, row: &str, seen| self.newer_version(&key, rows, row, seen);
            let public = set.reads(namespace).take(reads).inspect(|_| reads = reads.saturating_sub(1));
            let found = public
                .filter_map(|read| Some((read, read.version?)))
                .find_map(|(read, seen)| Some((seen, outdated(contract, set.read_key(&read), seen)?)));
            let private = || {
                set.collections(namespace).find_map(|collection| {
                    let rows = namespace::values_of(contract, set.collection_name(&collection));
                    let hashed = set.hashed_reads(&collection).take(reads).inspect(|_| reads = reads.saturating_sub(1));
                    hashed.filter_map(|read| Some((read, read.version?))).find_map(|(read, seen)| {
                        Some((seen, outdated(&rows, &hex::encode(set.read_hash(&read)), seen)?))
                    })
                })
            };
            if let Some((seen, newest)) = found.or_else(private) {
                return Some(OutdatedRead { contract: contract.to_owned(), seen, newest });
            }
        }
        None
    }

    /// The version of the row that is known here, if it is newer.
    fn newer_version(&self, key: &RowKey, namespace: &str, row: &str, seen: ReadVersion) -> Option<ReadVersion> {
        let hash = key.hash(namespace, row);
        let table = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let (block, transaction) = *table.newer.get(&hash).or_else(|| table.older.get(&hash))?;
        let known = ReadVersion { block, transaction: transaction.into() };
        let is_newer = (known.block, known.transaction) > (seen.block, seen.transaction)
            || rt::fault_point("chain.commit.mutant.aborts_fresh");
        // The key may have changed since it was read; then no hash is found, but for chance.
        (is_newer && table.key.as_ref() == Some(key)).then_some(known)
    }
}

#[cfg(test)]
mod tests {
    use base::Version;
    use ledger::rwset::ReadWriteSetRecorder;

    use super::*;

    fn rows(key: &RowKey, block: u64, written: &[(&str, &str, u32)]) -> WrittenRows {
        let mut batch = UpdateBatch::default();
        for (namespace, row, tx) in written {
            batch.put(&(*namespace).into(), (*row).into(), None, Version::new(block, *tx));
        }
        WrittenRows::of(key, &batch)
    }

    fn set(record: impl FnOnce(&mut ReadWriteSetRecorder)) -> ReadWriteSet {
        let mut recorder = ReadWriteSetRecorder::new();
        record(&mut recorder);
        ReadWriteSet::decode(recorder.encode()).expect("just encoded")
    }

    #[test]
    fn only_reads_of_older_versions_are_outdated() {
        let (recent, key) = (RecentWrites::default(), RowKey::random());
        let read = |key: &str, version: Option<Version>| {
            let outdated = recent.outdated_read(&set(|recorder| recorder.read(&"bank".into(), key, version)));
            outdated.map(|read| (read.contract, (read.newest.block, read.newest.transaction)))
        };
        assert_eq!(read("ann", Some(Version::new(0, 0))), None, "nothing is known");
        recent.note(7, &rows(&key, 7, &[("bank", "ann", 3)]));
        let newest = Some(("bank".to_owned(), (7, 3)));
        for (row, version, expected) in [
            ("ann", Some(Version::new(6, 9)), &newest),
            ("ann", Some(Version::new(7, 2)), &newest),
            ("ann", Some(Version::new(7, 3)), &None),
            ("ann", Some(Version::new(7, 4)), &None),
            ("ann", Some(Version::new(8, 0)), &None),
            // It may be deleted again.
            ("ann", None, &None),
            ("bob", Some(Version::new(0, 0)), &None),
        ] {
            assert_eq!(&read(row, version), expected, "{row} {version:?}");
        }
        let other = set(|recorder| recorder.read(&"shop".into(), "ann", Some(Version::new(0, 0))));
        assert_eq!(recent.outdated_read(&other), None);
        // Another node commits now.
        recent.note(8, &rows(&RowKey::random(), 8, &[("bank", "bob", 0)]));
        assert_eq!(read("ann", Some(Version::new(6, 9))), None);
        assert!(read("bob", Some(Version::new(6, 9))).is_some());
    }

    #[test]
    fn private_reads_are_looked_up_by_their_hashes() {
        let (recent, key) = (RecentWrites::default(), RowKey::random());
        let hash = hex::encode(identity::sha256([&b"ann"[..]]));
        recent.note(7, &rows(&key, 7, &[(&namespace::values_of("bank", "secret"), &hash, 0)]));
        let private = |collection: &str| {
            set(|recorder| recorder.private_read(&"bank".into(), collection, "ann", Some(Version::new(6, 0))))
        };
        assert!(recent.outdated_read(&private("secret")).is_some());
        assert_eq!(recent.outdated_read(&private("other")), None);
    }

    #[test]
    fn the_table_and_what_a_block_adds_are_bounded() {
        let (recent, key) = (RecentWrites::default(), RowKey::random());
        for block in 0..12 {
            let names: Vec<String> = (0..BLOCK_ROWS_MAX + 5).map(|row| format!("{block:02} {row:06}")).collect();
            let written: Vec<(&str, &str, u32)> = names.iter().map(|name| ("bank", &name[..], 0)).collect();
            let rows = rows(&key, block, &written);
            assert_eq!(rows.rows().count(), BLOCK_ROWS_MAX);
            recent.note(block, &rows);
            let table = recent.inner.lock().expect("no holder panics");
            assert!(table.newer.len() + table.older.len() <= ROWS_MAX);
        }
        let mut many = ReadWriteSetRecorder::new();
        for row in 0..READS_MAX {
            many.read(&"bank".into(), &format!("00 {row:06}"), Some(Version::new(0, 0)));
        }
        many.read(&"bank".into(), "11 000000", Some(Version::new(0, 0)));
        let many = ReadWriteSet::decode(many.encode()).expect("just encoded");
        assert_eq!(recent.outdated_read(&many), None, "the first reads are current, or forgotten");
    }

    #[test]
    fn rows_of_another_process_are_checked() {
        let rows = rows(&RowKey::random(), 7, &[("bank", "ann", 3)]);
        assert_eq!(WrittenRows::decode(rows.bytes().clone()), Ok(rows.clone()));
        let key = [1; KEY_BYTES];
        assert!(WrittenRows::decode(Bytes::copy_from_slice(&key)).is_ok());
        assert!(WrittenRows::decode(Bytes::copy_from_slice(&key[1..])).is_err());
        assert!(WrittenRows::decode(rows.bytes().slice(..KEY_BYTES + ROW_BYTES - 1)).is_err());
        assert!(WrittenRows::decode(vec![0; KEY_BYTES + ROW_BYTES * (BLOCK_ROWS_MAX + 1)].into()).is_err());
        assert!(!format!("{:?}", rows.key()).contains(char::is_numeric), "the key is a secret");
    }
}
