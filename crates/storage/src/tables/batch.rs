//! A batch of rows that leads from one savepoint to the next.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::{Bytes, Map, Version};
use wire::Reader;

use super::key::{RowKey, decode_prefix};
use super::{Savepoint, key};
use crate::Error;

/// Bytes of keys and values that a batch takes at most.
pub const BATCH_BYTES_MAX: usize = 1 << 30;
/// Values are slices of their block if together they are more than one such part of it.
const SHARED_PART: usize = 4;

/// Rows to be written atomically, with the savepoint that they lead to.
#[derive(Clone, Debug)]
pub struct RowBatch {
    savepoint: Savepoint,
    /// All row keys, one after another.
    keys: Vec<u8>,
    rows: Vec<BatchRow>,
    value_bytes: usize,
    /// Bytes of the blocks that values are slices of.
    shared_bytes: usize,
    /// All rows are of blocks from the first of these numbers up to, and excluding, the second.
    blocks_begin: u64,
    blocks_end: u64,
}

#[derive(Clone, Debug)]
struct BatchRow {
    key_end: usize,
    value: Option<Bytes>,
}

impl RowBatch {
    /// A batch without rows.
    pub fn new(savepoint: Savepoint) -> RowBatch {
        RowBatch {
            savepoint,
            keys: Vec::new(),
            rows: Vec::new(),
            value_bytes: 0,
            shared_bytes: 0,
            blocks_begin: u64::MAX,
            blocks_end: 0,
        }
    }

    /// Adds a row: `value`, or the deletion of the key, written by transaction `version`. Of rows with the same key and
    /// version the last one counts.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a version that the savepoint does not cover; [`Error::TooLarge`] above
    /// [`KEY_BYTES_MAX`](super::KEY_BYTES_MAX), [`NAMESPACE_BYTES_MAX`](super::NAMESPACE_BYTES_MAX) and 1 GiB for the batch.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub fn put(&mut self, namespace: &str, key: &[u8], version: Version, value: Option<Bytes>) -> Result<(), Error> {
        if version.block >= self.savepoint.height {
            return Err(Error::Invalid("a row's block must lie below the savepoint's height"));
        }
        key::check(namespace, key)?;
        let given = self.bytes() + key.len() + value.as_ref().map_or(0, Bytes::len);
        if given > BATCH_BYTES_MAX {
            return Err(Error::TooLarge { what: "bytes of a batch", given: given as u64, max: BATCH_BYTES_MAX as u64 });
        }
        key::push_prefix(&mut self.keys, namespace, key);
        key::push_suffix(&mut self.keys, version, value.is_some());
        self.value_bytes += value.as_ref().map_or(0, Bytes::len);
        self.blocks_begin = self.blocks_begin.min(version.block);
        self.blocks_end = self.blocks_end.max(version.block + 1);
        self.rows.push(BatchRow { key_end: self.keys.len(), value });
        Ok(())
    }

    /// Whether the values of a block, `value_bytes` in total, should be slices of the block: if they are a large part of
    /// it. The whole block then stays in memory as long as one of them does. Values of other blocks should be copies.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub fn shares(&mut self, block_bytes: usize, value_bytes: usize) -> bool {
        let shares = value_bytes > block_bytes / SHARED_PART;
        if shares {
            self.shared_bytes += block_bytes;
        }
        shares
    }

    /// Bytes of the blocks that the batch keeps in memory for the values in them.
    pub(crate) fn shared_bytes(&self) -> usize {
        self.shared_bytes
    }

    /// Moves the batch's savepoint back to an earlier one that covers all its rows.
    pub(crate) fn cover(&mut self, savepoint: Savepoint) -> Result<(), Error> {
        if self.blocks_end > savepoint.height {
            return Err(Error::Invalid("a row's block must lie below the savepoint's height"));
        }
        self.savepoint = savepoint;
        Ok(())
    }

    /// Drops the rows that no reader at block `oldest` or later sees: of each key, those below its newest version up to
    /// `oldest`. A reader at an older block may miss versions from then on.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(crate) fn thin(&mut self, oldest: u64) {
        if oldest < self.blocks_begin {
            return;
        }
        let mut newest: Map<&[u8], Version> = Map::default();
        let version_of = |row: &[u8]| RowKey::split(row).map(|row| row.version).expect("the batch made it");
        let prefix_of = |row: &'_ [u8]| row.len() - key::SUFFIX_BYTES;
        for (row, _) in self.rows() {
            let version = version_of(row);
            if version.block <= oldest {
                let known = newest.entry(&row[..prefix_of(row)]).or_insert(version);
                *known = version.max(*known);
            }
        }
        let is_seen: Vec<bool> = self
            .rows()
            .map(|(row, _)| {
                let version = version_of(row);
                version.block > oldest || newest.get(&row[..prefix_of(row)]) == Some(&version)
            })
            .collect();
        if is_seen.iter().all(|seen| *seen) {
            return;
        }
        let (keys, rows) = (std::mem::take(&mut self.keys), std::mem::take(&mut self.rows));
        self.value_bytes = 0;
        let mut start = 0;
        for (row, is_seen) in rows.into_iter().zip(is_seen) {
            let key = &keys[start..row.key_end];
            start = row.key_end;
            if is_seen {
                self.keys.extend_from_slice(key);
                self.value_bytes += row.value.as_ref().map_or(0, Bytes::len);
                self.rows.push(BatchRow { key_end: self.keys.len(), value: row.value });
            }
        }
    }

    /// The savepoint that the batch leads to.
    pub fn savepoint(&self) -> Savepoint {
        self.savepoint
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether the batch only moves the savepoint.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Bytes of its keys and values.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub fn bytes(&self) -> usize {
        self.keys.len() + self.value_bytes
    }

    /// The namespaces and keys of its rows, in the order given.
    pub(crate) fn written(&self) -> impl Iterator<Item = (String, Vec<u8>)> {
        self.rows().map(|(row, _)| {
            let row = RowKey::split(row).expect("the batch made it");
            decode_prefix(row.prefix).expect("the batch made it")
        })
    }

    /// Row keys and values (empty for deletions), in the order given.
    pub(super) fn rows(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut start = 0;
        self.rows.iter().map(move |row| {
            let key = &self.keys[start..row.key_end];
            start = row.key_end;
            (key, row.value.as_deref().unwrap_or_default())
        })
    }
}

impl Savepoint {
    /// Length of an encoded savepoint.
    pub(super) const BYTES: usize = 52;

    pub(super) fn encode(&self) -> [u8; Savepoint::BYTES] {
        wire::array(|writer| {
            writer.u32(super::FORMAT_VERSION).u64(self.height).u64(self.epoch.get()).put(&self.block_hash);
        })
    }

    /// The format version found, and the savepoint if the version is this program's; `None` for bytes that are not a
    /// savepoint.
    pub(super) fn decode(bytes: &[u8]) -> Option<(u32, Option<Savepoint>)> {
        let mut reader = Reader::new(bytes);
        let version = reader.u32().ok()?;
        if version != super::FORMAT_VERSION {
            return Some((version, None));
        }
        let (height, epoch) = (reader.u64().ok()?, base::Epoch(reader.u64().ok()?));
        let block_hash = reader.rest().try_into().ok()?;
        Some((version, Some(Savepoint { height, epoch, block_hash })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_parts_of_a_block_only_where_they_are_a_good_part_of_it_and_it_is_counted() {
        let block = Bytes::from(vec![7; 4000]);
        let mut batch = RowBatch::new(Savepoint { height: 9, ..Savepoint::default() });
        assert!(!batch.shares(block.len(), 1000));
        assert_eq!(batch.shared_bytes(), 0);
        assert!(batch.shares(block.len(), 1001));
        assert!(batch.shares(block.len(), 4000));
        assert_eq!(batch.shared_bytes(), 8000);
        // Dropped rows may have been all that came of a block: its bytes count for as long as the batch exists.
        batch.put("cc", b"a", Version::new(1, 0), Some(block.slice(..3000))).expect("it is below the savepoint");
        batch.put("cc", b"a", Version::new(2, 0), None).expect("it is below the savepoint");
        batch.thin(8);
        assert_eq!((batch.len(), batch.shared_bytes()), (1, 8000));
    }
}
