//! The layout of a store in its group's memory: `docs/formats/kv.md`.
//!
//! ```text
//!  unlogged region | log                                                                      |
//!  logged memory   | superblock 64 | cursor 64 | seal 64 | 0 … 256 | index | bitmap | blocks |
//! ```
//!
//! A *record* is a key with its value, in one to [`RECORD_BLOCKS_MAX`] blocks. With this maximum, every change of a record fits
//! into one transaction. Blocks are numbered from 0. A pointer to a block is the block's number plus one; the pointer 0 is
//! null.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::{Bytes, BytesMut, Term};
use sift::layout::{LogCursor, NUMBER_MAX};
use sift::{MemoryWrite, WRITES_MAX};
use twox_hash::XxHash3_64;
use wire::{u16_at, u32_at, u64_at};

use super::log;
use super::log::FORMAT_VERSION;
use crate::Error;

/// The first word of the superblock.
const MAGIC: u64 = u64::from_le_bytes(*b"heddlekv");
/// Bytes of superblock, cursor or seal.
pub(super) const HEAD_BLOCK_BYTES: usize = 64;
const CURSOR_AT: u64 = 64;
const SEAL_AT: u64 = 128;
const BASE_AT: u64 = 192;
const INDEX_AT: u64 = 256;
/// Bytes of the bitmap that are written at once, and the number of blocks that they cover.
pub(super) const LINE_BYTES: u64 = 64;
pub(super) const LINE_BLOCKS: u64 = LINE_BYTES * 8;
/// Bytes before a record's key.
pub(super) const RECORD_HEAD_BYTES: usize = 48;
/// The longest key, if a block is long enough for it.
pub const KEY_BYTES_MAX: usize = 1024;
/// The most blocks of a record. With as many lines of the bitmap and a pointer they fit into one transaction.
pub const RECORD_BLOCKS_MAX: usize = 7;
const _: () = assert!(2 * RECORD_BLOCKS_MAX < WRITES_MAX, "a record is written by one transaction");
/// The smallest and the largest block.
const BLOCK_BYTES: std::ops::RangeInclusive<u64> = 128..=1 << 20;
/// The most blocks, and the most buckets.
const COUNT_MAX: u64 = 1 << 31;

/// The sizes of a store, which never change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreGeometry {
    /// Bytes of its log: a multiple of 4096.
    pub log_bytes: u64,
    /// Buckets of the index: a power of two, about the number of keys that are expected.
    pub buckets: u64,
    /// Blocks for records: a multiple of 512.
    pub blocks: u64,
    /// Bytes of a block: a multiple of 64. Records of one block perform best.
    pub block_bytes: u64,
}

impl Default for StoreGeometry {
    /// For about a million keys with values of up to a kilobyte.
    fn default() -> StoreGeometry {
        StoreGeometry { log_bytes: 16 << 20, buckets: 1 << 20, blocks: 1 << 20, block_bytes: 1152 }
    }
}

impl StoreGeometry {
    /// Checks that the sizes make sense.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub fn check_geometry(&self) -> Result<(), Error> {
        let invalid = |what: String| Err(Error::Invalid(what));
        if !BLOCK_BYTES.contains(&self.block_bytes) || !self.block_bytes.is_multiple_of(64) {
            return invalid(format!(
                "a block of {} bytes: choose a multiple of 64 in {BLOCK_BYTES:?}",
                self.block_bytes
            ));
        }
        if !self.buckets.is_power_of_two() || !(8..=COUNT_MAX).contains(&self.buckets) {
            return invalid(format!("{} buckets: choose a power of two from 8 on", self.buckets));
        }
        if !self.blocks.is_multiple_of(LINE_BLOCKS) || self.blocks == 0 || self.blocks > COUNT_MAX {
            return invalid(format!("{} blocks: choose a multiple of {LINE_BLOCKS}", self.blocks));
        }
        let entry = self.entry_bytes_max();
        if !self.log_bytes.is_multiple_of(4096) || self.log_bytes < 4 * entry || self.log_bytes > 1 << 40 {
            return invalid(format!(
                "a log of {} bytes: choose a multiple of 4096 that holds four entries of {entry} bytes",
                self.log_bytes
            ));
        }
        Ok(())
    }

    /// The layout of a group that holds such a store; `log_bytes` are those of the group's own log. For an erasure-coded group
    /// ([`sift::GroupLayout::data_shards`]) make that log 8 KiB longer: it then has whole blocks where the store writes parts
    /// of them.
    ///
    /// # Errors
    /// [`Error::Invalid`], also if the group's log is too short for the store's transactions.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub fn group_layout(&self, log_bytes: u64) -> Result<sift::GroupLayout, Error> {
        self.check_geometry()?;
        let memory_bytes = self.block_at(0) - self.log_bytes + self.blocks * self.block_bytes;
        let layout = sift::GroupLayout {
            log_bytes,
            unlogged_bytes: self.log_bytes,
            memory_bytes,
            block_bytes: LINE_BYTES,
            data_shards: 1,
        };
        layout.check()?;
        let least = 4 * self.transaction_bytes_max();
        if log_bytes < least {
            return Err(Error::Invalid(format!(
                "a group's log of {log_bytes} bytes is too short: with blocks of {} bytes a store needs {least}",
                self.block_bytes
            )));
        }
        Ok(layout)
    }

    /// Bytes of the largest change of one record, as an entry of the group's log.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    fn transaction_bytes_max(&self) -> u64 {
        40 + 16 * WRITES_MAX as u64
            + RECORD_BLOCKS_MAX as u64 * (self.block_bytes + LINE_BYTES)
            + 8
            + HEAD_BLOCK_BYTES as u64
    }

    /// Bytes of the longest key.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub fn key_bytes_max(&self) -> usize {
        KEY_BYTES_MAX.min(self.block_bytes as usize - RECORD_HEAD_BYTES)
    }

    /// Bytes of the longest value.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub fn value_bytes_max(&self) -> usize {
        RECORD_BLOCKS_MAX * self.block_bytes as usize - RECORD_HEAD_BYTES - self.key_bytes_max()
    }

    /// Bytes of the longest entry of the log.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(super) fn entry_bytes_max(&self) -> u64 {
        log::padded((log::HEAD_BYTES + self.key_bytes_max() + self.value_bytes_max()) as u64)
    }

    pub(super) fn check_key(&self, key: &[u8]) -> Result<(), Error> {
        match key.len() {
            0 => Err(Error::Invalid("an empty key: a key has at least one byte".to_owned())),
            bytes if bytes > self.key_bytes_max() => Err(Error::Invalid(format!(
                "a key of {bytes} bytes: this store takes at most {}",
                self.key_bytes_max()
            ))),
            _ => Ok(()),
        }
    }

    pub(super) fn check(&self, key: &[u8], value: Option<&Bytes>) -> Result<(), Error> {
        self.check_key(key)?;
        let bytes = value.map_or(0, Bytes::len);
        if bytes > self.value_bytes_max() {
            let most = self.value_bytes_max();
            return Err(Error::Invalid(format!("a value of {bytes} bytes: this store takes at most {most}")));
        }
        Ok(())
    }

    /// Blocks of a record.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(super) fn record_blocks(&self, key_bytes: usize, value_bytes: usize) -> usize {
        (RECORD_HEAD_BYTES + key_bytes + value_bytes).div_ceil(self.block_bytes as usize)
    }

    /// The bucket of a key: a part of the format. Each store has a seed of its own, so that nobody outside can choose keys that
    /// share a bucket.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(super) fn bucket(&self, seed: u64, key: &[u8]) -> u64 {
        XxHash3_64::oneshot_with_seed(seed, key) & (self.buckets - 1)
    }

    /// Addresses. The logged memory starts behind the unlogged region, which is the log.
    pub(super) fn super_at(&self) -> u64 {
        self.log_bytes
    }

    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(super) fn cursor_at(&self) -> u64 {
        self.log_bytes + CURSOR_AT
    }

    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(super) fn seal_at(&self) -> u64 {
        self.log_bytes + SEAL_AT
    }

    /// The address of the base of the tables' epochs.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(super) fn base_at(&self) -> u64 {
        self.log_bytes + BASE_AT
    }

    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(super) fn bucket_at(&self, bucket: u64) -> u64 {
        self.log_bytes + INDEX_AT + bucket * 8
    }

    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(super) fn line_at(&self, line: u64) -> u64 {
        self.bucket_at(self.buckets) + line * LINE_BYTES
    }

    pub(super) fn lines(&self) -> u64 {
        self.blocks / LINE_BLOCKS
    }

    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(super) fn block_at(&self, block: u64) -> u64 {
        self.line_at(self.lines()) + block * self.block_bytes
    }

    /// The superblock, with the seed of the index.
    pub(super) fn encode(&self, seed: u64) -> Bytes {
        words(&[MAGIC, u64::from(FORMAT_VERSION), self.log_bytes, self.buckets, self.blocks, self.block_bytes, seed])
    }

    /// The seed of a store with these sizes, from its superblock; `None` where there is no store.
    pub(super) fn decode_seed(&self, bytes: &[u8]) -> Result<Option<u64>, Error> {
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        if bytes.len() != HEAD_BLOCK_BYTES || u64_at(bytes, 0) != MAGIC {
            return Err(Error::Corrupt("the memory of the group holds other data than a key-value store"));
        }
        if u64_at(bytes, 8) != u64::from(FORMAT_VERSION) {
            return Err(Error::Corrupt("a key-value store of another format version"));
        }
        let [log_bytes, buckets, blocks, block_bytes] = [16, 24, 32, 40].map(|at| u64_at(bytes, at));
        let made = StoreGeometry { log_bytes, buckets, blocks, block_bytes };
        match made == *self {
            true => Ok(Some(u64_at(bytes, 48))),
            false => Err(Error::Invalid(format!(
                "the store was created with {made:?}, not with {self:?}: use the sizes with which it was created"
            ))),
        }
    }
}

/// Words, padded with zeros.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
fn words(words: &[u64]) -> Bytes {
    let mut bytes = BytesMut::zeroed(HEAD_BLOCK_BYTES);
    for (place, word) in words.iter().enumerate() {
        bytes[place * 8..][..8].copy_from_slice(&word.to_le_bytes());
    }
    bytes.freeze()
}

pub(super) fn encode_cursor(cursor: LogCursor) -> Bytes {
    words(&[cursor.index, cursor.position, cursor.chain])
}

pub(super) fn encode_base(base: u64) -> Bytes {
    words(&[base])
}

pub(super) fn decode_cursor(bytes: &[u8], sizes: &StoreGeometry) -> Result<LogCursor, Error> {
    let cursor = LogCursor { index: u64_at(bytes, 0), position: u64_at(bytes, 8), chain: u64_at(bytes, 16) };
    if cursor.position > sizes.log_bytes || !cursor.position.is_multiple_of(64) {
        return Err(Error::Corrupt("the cursor of a key-value store points beyond its log"));
    }
    if cursor.index >= NUMBER_MAX {
        return Err(Error::Corrupt("the cursor of a key-value store has an index that is too large"));
    }
    Ok(cursor)
}

/// Where the log ended when the coordinator of this term took it over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct LogSeal {
    pub term: Term,
    pub index: u64,
    pub chain: u64,
}

impl LogSeal {
    pub(super) fn encode(&self) -> Bytes {
        words(&[self.term.0, self.index, self.chain])
    }

    pub(super) fn decode(bytes: &[u8]) -> LogSeal {
        LogSeal { term: Term(u64_at(bytes, 0)), index: u64_at(bytes, 8), chain: u64_at(bytes, 16) }
    }
}

/// A pointer to a block.
pub(super) fn encode_pointer(block: u32) -> u64 {
    u64::from(block) + 1
}

/// The block to which a pointer points.
pub(super) fn decode_pointer(pointer: u64, sizes: &StoreGeometry) -> Result<Option<u32>, Error> {
    match pointer.checked_sub(1) {
        None => Ok(None),
        Some(block) if block < sizes.blocks => Ok(Some(block as u32)),
        Some(_) => Err(Error::Corrupt("a pointer leads beyond the blocks of a key-value store")),
    }
}

/// Bytes of a record's first block that contain everything but its value, unless the key is longer than most.
pub(super) const RECORD_PEEK_BYTES: usize = 128;

/// A record's first block, read back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct KvRecord {
    /// A pointer to the next record of the chain.
    pub next: u64,
    pub version: u64,
    pub key: Bytes,
    pub value_bytes: usize,
    /// Its blocks, the first included.
    pub blocks: Vec<u32>,
    /// The part of the value that is in the first block.
    pub value: Bytes,
}

/// The writes that store a record in its blocks. Blocks that follow one another are written at once, and in whole lines of
/// [`LINE_BYTES`], so that an erasure-coded group need not read the bytes that they do not cover.
///
/// ```text
/// next u64 | version u64 | key bytes u16 | blocks u16 | value bytes u32 | 6 × block u32 | key | value …
/// ```
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
pub(super) fn record_writes(
    next: u64,
    version: u64,
    key: &[u8],
    value: &[u8],
    blocks: &[u32],
    sizes: &StoreGeometry,
) -> Vec<MemoryWrite> {
    assert!(blocks.len() == sizes.record_blocks(key.len(), value.len()), "a record has the blocks that it needs");
    assert!((1..=RECORD_BLOCKS_MAX).contains(&blocks.len()), "callers check keys and values");
    let length = RECORD_HEAD_BYTES + key.len() + value.len();
    let mut bytes = BytesMut::with_capacity(length.next_multiple_of(LINE_BYTES as usize));
    bytes.extend_from_slice(&next.to_le_bytes());
    bytes.extend_from_slice(&version.to_le_bytes());
    bytes.extend_from_slice(&(key.len() as u16).to_le_bytes());
    bytes.extend_from_slice(&(blocks.len() as u16).to_le_bytes());
    bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
    for place in 1..RECORD_BLOCKS_MAX {
        bytes.extend_from_slice(&blocks.get(place).copied().unwrap_or_default().to_le_bytes());
    }
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(LINE_BYTES as usize), 0);
    let mut rest = bytes.freeze();
    let mut writes = Vec::with_capacity(1);
    let mut run = 0;
    while run < blocks.len() {
        let mut until = run + 1;
        while until < blocks.len() && blocks[until] == blocks[until - 1] + 1 {
            until += 1;
        }
        let length = rest.len().min((until - run) * sizes.block_bytes as usize);
        writes.push(MemoryWrite { address: sizes.block_at(u64::from(blocks[run])), bytes: rest.split_to(length) });
        run = until;
    }
    writes
}

/// Decodes the record whose first block this is.
///
/// # Errors
/// [`Error::Corrupt`].
pub(super) fn decode_record(block: u32, bytes: &Bytes, sizes: &StoreGeometry) -> Result<KvRecord, Error> {
    let record = decode_record_head(block, bytes, sizes)?;
    if bytes.len() as u64 != sizes.block_bytes {
        return Err(NO_RECORD);
    }
    record.ok_or(NO_RECORD)
}

const NO_RECORD: Error = Error::Corrupt("a block of a key-value store is not the first block of a record");

/// Decodes the record whose first block starts with these bytes, with the part of its value that is among them; `None` where
/// its key is not.
///
/// # Errors
/// [`Error::Corrupt`].
pub(super) fn decode_record_head(block: u32, bytes: &Bytes, sizes: &StoreGeometry) -> Result<Option<KvRecord>, Error> {
    let corrupt = NO_RECORD;
    if bytes.len() < RECORD_HEAD_BYTES {
        return Err(corrupt);
    }
    let key_bytes = usize::from(u16_at(bytes, 16));
    let count = usize::from(u16_at(bytes, 18));
    let value_bytes = u32_at(bytes, 20) as usize;
    if key_bytes == 0
        || key_bytes > sizes.key_bytes_max()
        || value_bytes > sizes.value_bytes_max()
        || count != sizes.record_blocks(key_bytes, value_bytes)
    {
        return Err(corrupt);
    }
    let mut blocks = vec![block];
    blocks.extend((24..).step_by(4).take(count.saturating_sub(1)).map(|place| u32_at(bytes, place)));
    if blocks.iter().any(|block| u64::from(*block) >= sizes.blocks) {
        return Err(corrupt);
    }
    let value_at = RECORD_HEAD_BYTES.saturating_add(key_bytes);
    let Some(behind) = bytes.get(value_at..) else { return Ok(None) };
    let here = behind.get(..value_bytes).unwrap_or(behind);
    Ok(Some(KvRecord {
        next: u64_at(bytes, 0),
        version: u64_at(bytes, 8),
        key: bytes.slice(RECORD_HEAD_BYTES..value_at),
        value_bytes,
        blocks,
        value: bytes.slice_ref(here),
    }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZES: StoreGeometry = StoreGeometry { log_bytes: 8192, buckets: 8, blocks: 512, block_bytes: 128 };

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn areas_do_not_overlap() {
        assert_eq!(SIZES.super_at(), 8192);
        assert_eq!(SIZES.bucket_at(0), 8192 + 256);
        assert_eq!(SIZES.line_at(0), 8192 + 256 + 64);
        assert_eq!(SIZES.block_at(0), 8192 + 256 + 64 + 64);
        let layout = SIZES.group_layout(16384).expect("good sizes");
        assert_eq!(layout.address_bytes(), SIZES.block_at(512));
        assert!(StoreGeometry::default().group_layout(4 << 20).is_ok());
        assert_eq!((SIZES.key_bytes_max(), SIZES.value_bytes_max()), (80, 768));
        assert_eq!(
            (StoreGeometry::default().key_bytes_max(), StoreGeometry::default().value_bytes_max()),
            (1024, 6992)
        );
    }

    #[test]
    fn sizes_that_make_no_sense_are_refused() {
        for bad in [
            StoreGeometry { block_bytes: 100, ..SIZES },
            StoreGeometry { block_bytes: 64, ..SIZES },
            StoreGeometry { buckets: 12, ..SIZES },
            StoreGeometry { blocks: 100, ..SIZES },
            StoreGeometry { log_bytes: 4095, ..SIZES },
            StoreGeometry { log_bytes: 0, ..SIZES },
        ] {
            assert!(matches!(bad.check_geometry(), Err(Error::Invalid(_))), "{bad:?}");
        }
        assert!(matches!(SIZES.group_layout(4096), Err(Error::Invalid(_))));
    }

    #[test]
    fn superblock_cursor_and_seal_have_the_documented_layout() {
        let bytes = SIZES.encode(5);
        assert_eq!(
            hex(&bytes[..56]),
            "686564646c656b76020000000000000000200000000000000800000000000000000200000000000080000000000000000500000000000000"
        );
        assert_eq!(SIZES.decode_seed(&bytes), Ok(Some(5)));
        assert_eq!(SIZES.decode_seed(&[0; 64]), Ok(None));
        assert!(matches!(StoreGeometry { blocks: 1024, ..SIZES }.decode_seed(&bytes), Err(Error::Invalid(_))));
        let cursor = LogCursor { index: 3, position: 128, chain: 5 };
        assert_eq!(hex(&encode_cursor(cursor)[..24]), "030000000000000080000000000000000500000000000000");
        assert_eq!(decode_cursor(&encode_cursor(cursor), &SIZES), Ok(cursor));
        assert!(decode_cursor(&encode_cursor(LogCursor { position: 1 << 20, ..cursor }), &SIZES).is_err());
        assert!(decode_cursor(&encode_cursor(LogCursor { index: u64::MAX, ..cursor }), &SIZES).is_err());
        let seal = LogSeal { term: Term(4), index: 9, chain: 7 };
        assert_eq!(hex(&seal.encode()[..24]), "040000000000000009000000000000000700000000000000");
        assert_eq!(LogSeal::decode(&seal.encode()), seal);
    }

    #[test]
    fn keys_that_share_a_bucket_with_one_seed_do_not_with_another() {
        let sizes = StoreGeometry { buckets: 1 << 20, ..SIZES };
        assert_eq!((sizes.bucket(0, b"name"), sizes.bucket(5, b"name")), (686_037, 299_328), "a part of the format");
        let keys: Vec<[u8; 8]> = (0..1_u64 << 22).map(u64::to_le_bytes).collect();
        let first = sizes.bucket(1, &keys[0]);
        let chosen = keys.iter().filter(|key| sizes.bucket(1, &key[..]) == first).count();
        let apart = keys.iter().filter(|key| sizes.bucket(1, &key[..]) == first);
        let apart: std::collections::BTreeSet<u64> = apart.map(|key| sizes.bucket(2, key)).collect();
        assert!(chosen > 1 && apart.len() == chosen, "{chosen} keys that were chosen lie in {} buckets", apart.len());
    }

    #[test]
    fn records_have_the_documented_layout() {
        let writes = record_writes(3, 9, b"key", &[7; 100], &[5, 9], &SIZES);
        assert_eq!(writes.len(), 2);
        assert_eq!(
            hex(&writes[0].bytes[..51]),
            "0300000000000000090000000000000003000200640000000900000000000000000000000000000000000000000000006b6579"
        );
        assert_eq!(writes[0].bytes.len(), 128);
        let rest = [&[7; 23][..], &[0; 41]].concat();
        assert_eq!(writes[1], MemoryWrite { address: SIZES.block_at(9), bytes: rest.into() });
        assert_eq!(record_writes(0, 1, b"key", &[7; 100], &[5, 6], &SIZES).len(), 1, "blocks in a row");
    }

    proptest! {
        #[test]
        fn records_come_back_as_they_were(
            next in 0..512_u64, version: u64,
            key in prop::collection::vec(any::<u8>(), 1..=80), value in prop::collection::vec(any::<u8>(), 0..=768),
            order in Just((0..512_u32).collect::<Vec<_>>()).prop_shuffle(),
        ) {
            let blocks = &order[..SIZES.record_blocks(key.len(), value.len())];
            let mut memory = vec![0; SIZES.block_at(512) as usize];
            for write in record_writes(next, version, &key, &value, blocks, &SIZES) {
                memory[write.address as usize..][..write.bytes.len()].copy_from_slice(&write.bytes);
            }
            let block = |block: u32| {
                Bytes::copy_from_slice(&memory[SIZES.block_at(u64::from(block)) as usize..][..128])
            };
            let record = decode_record(blocks[0], &block(blocks[0]), &SIZES).expect("it was just written");
            prop_assert_eq!((record.next, record.version, &record.key[..]), (next, version, &key[..]));
            prop_assert_eq!(&record.blocks, &blocks);
            let peeked = block(blocks[0]).slice(..64);
            match decode_record_head(blocks[0], &peeked, &SIZES).expect("it was just written") {
                Some(peeked) => prop_assert_eq!((&peeked.key, &peeked.blocks), (&record.key, &record.blocks)),
                None => prop_assert!(key.len() > 16),
            }
            let mut read = record.value.to_vec();
            blocks[1..].iter().for_each(|other| read.extend_from_slice(&block(*other)));
            prop_assert_eq!(&read[..record.value_bytes], &value[..]);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 128)) {
            let _ = decode_record(3, &bytes.into(), &SIZES);
        }
    }
}
