//! The index of a block store: where blocks and transactions lie.
//!
//! In memory a store keeps 4 bytes per block, its offset in its segment. It also keeps two tables of fingerprints, one
//! of header hashes and one of transaction ids, with 10 to 13 bytes per entry. For each segment the store collects the
//! data from which all this can be rebuilt. When it seals the segment, it writes the data to an index file beside it.
//! Opening a store then reads 16 bytes per block and 8 per transaction of a sealed segment, instead of the blocks. The
//! index file is a cache: the store writes it without an fsync, checks it when it reads it, and rebuilds it from the
//! segment if it is missing or damaged.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::BlockNumber;
use wire::{Malformed, Reader, Writer};

use super::fingerprints::{FingerprintTable, fingerprint};
use super::format::{RecordHeader, TransactionList, check_seal, sealed};
use crate::checksum;

/// The version of the index file's format.
pub const FORMAT_VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"HEDDLEBI";
const HEADER_BYTES: usize = 104;
const BLOCK_BYTES: usize = 16;
const TRANSACTION_BYTES: usize = 8;

/// The newest block: what the next one must fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainTip {
    /// Number of blocks; the next block has this number.
    pub height: u64,
    /// Header hash of the newest block; [`super::NO_PREVIOUS`] when there is none.
    pub header_hash: [u8; 32],
    /// The newest epoch that a block was appended under.
    pub epoch: base::Epoch,
}

/// What a segment contributes to the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentIndex {
    pub first: BlockNumber,
    /// The byte after the last record.
    pub end: u64,
    /// The chain after the segment's last block.
    pub tip: ChainTip,
    pub blocks: Vec<IndexedBlock>,
    /// Fingerprints of the transaction ids, block after block.
    pub transactions: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexedBlock {
    /// Where the record begins in its segment.
    pub offset: u32,
    /// How many of the fingerprints belong to the block.
    pub transactions: u32,
    /// Fingerprint of its header hash.
    pub header_hash: u64,
}

impl SegmentIndex {
    pub fn new(first: BlockNumber, start: u64, tip: ChainTip) -> SegmentIndex {
        SegmentIndex { first, end: start, tip, blocks: Vec::new(), transactions: Vec::new() }
    }

    /// Adds the record that begins at `self.end`. `ids` are its transaction ids; empty ones are not indexed.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub fn push<'a>(&mut self, header: &RecordHeader, ids: impl Iterator<Item = &'a str>) {
        assert!(header.number.get() == self.tip.height, "records are indexed in the order of blocks");
        let before = self.transactions.len();
        self.transactions.extend(ids.filter(|id| !id.is_empty()).map(|id| fingerprint(id.as_bytes())));
        self.blocks.push(IndexedBlock {
            offset: u32::try_from(self.end).expect("a segment takes no record after its size, so offsets fit"),
            transactions: (self.transactions.len() - before) as u32,
            header_hash: fingerprint(&header.header_hash),
        });
        self.end += header.record_bytes().expect("the lengths of this header were checked");
        self.tip = ChainTip {
            height: header.number.get() + 1,
            header_hash: header.header_hash,
            epoch: header.epoch.max(self.tip.epoch),
        };
    }

    /// Adds the record that begins at `self.end`, from its bytes.
    ///
    /// # Errors
    /// What is wrong with the transaction list. Nothing is added in that case.
    pub fn push_encoded(&mut self, header: &RecordHeader, transactions: &[u8]) -> Result<(), String> {
        for item in TransactionList::new(transactions, header.transactions) {
            item?;
        }
        let ids = TransactionList::new(transactions, header.transactions).map_while(Result::ok).map(|(id, _)| id);
        self.push(header, ids);
        Ok(())
    }

    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub fn encode(&self) -> Vec<u8> {
        let body_bytes = self.blocks.len() * BLOCK_BYTES + self.transactions.len() * TRANSACTION_BYTES;
        let mut writer = Writer::onto(Vec::with_capacity(HEADER_BYTES + body_bytes));
        writer.zeros(HEADER_BYTES);
        for block in &self.blocks {
            writer.u32(block.offset).u32(block.transactions).u64(block.header_hash);
        }
        writer.u64s(self.transactions.iter().copied());
        let mut bytes = writer.into_inner();
        assert!(bytes.len() == HEADER_BYTES + body_bytes, "the layout of an index adds up");
        let body_checksum = checksum(&bytes[HEADER_BYTES..]);
        let header: [u8; HEADER_BYTES] = sealed(|writer| {
            writer.put(&MAGIC).u32(FORMAT_VERSION).zeros(4).u64(self.first.get());
            writer.u64(self.blocks.len() as u64).u64(self.transactions.len() as u64).u64(self.end);
            writer.u64(self.tip.epoch.get()).put(&self.tip.header_hash).u64(body_checksum);
        });
        bytes[..HEADER_BYTES].copy_from_slice(&header);
        bytes
    }

    /// # Errors
    /// What is wrong with the bytes.
    pub fn decode(bytes: &[u8]) -> Result<SegmentIndex, String> {
        let short = || "the index is cut off".to_string();
        let (header, body) = bytes.split_at_checked(HEADER_BYTES).ok_or_else(short)?;
        let mut reader = Reader::new(header);
        let cut_off = |malformed: Malformed| malformed.to_string();
        reader.expect(&MAGIC, "it does not begin with the magic bytes of an index").map_err(cut_off)?;
        check_seal(header, "index header")?;
        if reader.u32() != Ok(FORMAT_VERSION) {
            return Err("the index has a format that this program does not know".into());
        }
        let mut read = || {
            reader.u32()?;
            let (first, blocks, transactions) = (BlockNumber(reader.u64()?), reader.u64()?, reader.u64()?);
            let (end, epoch) = (reader.u64()?, base::Epoch(reader.u64()?));
            Ok((first, blocks, transactions, end, epoch, reader.array()?, reader.u64()?))
        };
        let (first, blocks, transactions, end, epoch, header_hash, body_checksum) = read().map_err(cut_off)?;
        let body_bytes = (blocks.checked_mul(BLOCK_BYTES as u64))
            .zip(transactions.checked_mul(TRANSACTION_BYTES as u64))
            .and_then(|(blocks, transactions)| blocks.checked_add(transactions));
        if body_bytes != Some(body.len() as u64) || checksum(body) != body_checksum {
            return Err("the index does not have the length or the checksum it was written with".into());
        }
        let height = first.get().checked_add(blocks).ok_or("the index counts too many blocks")?;
        let block_bytes = (blocks as usize).checked_mul(BLOCK_BYTES);
        let split = block_bytes.and_then(|length| body.split_at_checked(length));
        let (block_bytes, transaction_bytes) = split.ok_or_else(short)?;
        let mut blocks = Vec::with_capacity(block_bytes.len() / BLOCK_BYTES);
        let mut reader = Reader::new(block_bytes);
        let mut indexed = 0u64;
        while let (Ok(offset), Ok(transactions), Ok(header_hash)) = (reader.u32(), reader.u32(), reader.u64()) {
            let ascends = blocks.last().is_none_or(|last: &IndexedBlock| last.offset < offset);
            if !ascends || u64::from(offset) >= end {
                return Err("the index has blocks out of order".into());
            }
            indexed = indexed.saturating_add(u64::from(transactions));
            blocks.push(IndexedBlock { offset, transactions, header_hash });
        }
        if indexed != transactions {
            return Err("the index and its blocks disagree on the number of transactions".into());
        }
        let transactions = transaction_bytes
            .chunks_exact(TRANSACTION_BYTES)
            .map(|bytes| u64::from_le_bytes(bytes.try_into().expect("chunks have this size")))
            .collect();
        Ok(SegmentIndex { first, end, tip: ChainTip { height, header_hash, epoch }, blocks, transactions })
    }
}

/// The index of a whole store.
pub struct BlockIndex {
    segments: Vec<IndexedSegment>,
    header_hashes: FingerprintTable,
    transactions: FingerprintTable,
    tip: ChainTip,
}

struct IndexedSegment {
    first: BlockNumber,
    end: u64,
    offsets: Vec<u32>,
}

/// Where a record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordOffset {
    /// Names the segment.
    pub first: BlockNumber,
    pub offset: u64,
    pub bytes: u64,
}

impl BlockIndex {
    pub fn new(tip: ChainTip) -> BlockIndex {
        BlockIndex {
            segments: Vec::new(),
            header_hashes: FingerprintTable::new(),
            transactions: FingerprintTable::new(),
            tip,
        }
    }

    pub fn tip(&self) -> ChainTip {
        self.tip
    }

    /// Opens the next segment, which holds no blocks yet.
    pub fn start_segment(&mut self, first: BlockNumber, start: u64) {
        assert!(first.get() == self.tip.height, "segments follow one another");
        self.segments.push(IndexedSegment { first, end: start, offsets: Vec::new() });
    }

    /// Adds the blocks from position `from` on of the newest segment's index, which has grown.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub fn extend(&mut self, segment: &SegmentIndex, from: usize) {
        let last = self.segments.last_mut().expect("blocks are added to a segment that was started");
        assert!(last.first == segment.first && last.offsets.len() == from, "a segment is extended at its end");
        let added = &segment.blocks[from..];
        let count: usize = added.iter().map(|block| block.transactions as usize).sum();
        let mut transactions = segment.transactions[segment.transactions.len() - count..].iter();
        for (position, block) in added.iter().enumerate() {
            let number = segment.first.get() + (from + position) as u64;
            last.offsets.push(block.offset);
            self.header_hashes.insert(block.header_hash, number);
            for fingerprint in transactions.by_ref().take(block.transactions as usize) {
                self.transactions.insert(*fingerprint, number);
            }
        }
        last.end = segment.end;
        self.tip = segment.tip;
        assert!(
            last.first.get() + last.offsets.len() as u64 == self.tip.height,
            "the height counts the blocks of all segments"
        );
    }

    /// Frees memory that a segment reserved for further blocks.
    pub fn seal_segment(&mut self) {
        if let Some(last) = self.segments.last_mut() {
            last.offsets.shrink_to_fit();
        }
    }

    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub fn locate(&self, number: BlockNumber) -> Option<RecordOffset> {
        if number.get() >= self.tip.height {
            return None;
        }
        let position = self.segments.partition_point(|segment| segment.first <= number).checked_sub(1)?;
        let segment = &self.segments[position];
        let within = (number.get() - segment.first.get()) as usize;
        let offset = u64::from(*segment.offsets.get(within)?);
        let end = segment.offsets.get(within + 1).map_or(segment.end, |next| u64::from(*next));
        Some(RecordOffset { first: segment.first, offset, bytes: end - offset })
    }

    /// Blocks that may have this header hash, ascending.
    pub fn with_header_hash(&self, hash: &[u8; 32]) -> Vec<u64> {
        self.header_hashes.candidates(fingerprint(hash), self.tip.height)
    }

    /// Blocks that may hold this transaction, ascending.
    pub fn with_transaction(&self, fingerprint: u64) -> Vec<u64> {
        self.transactions.candidates(fingerprint, self.tip.height)
    }

    /// The tags of the transaction ids whose fingerprints lie in a shard.
    pub fn transaction_tags(&self, shard: u8) -> Vec<u32> {
        self.transactions.tags(shard).collect()
    }

    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub fn memory_bytes(&self) -> usize {
        let offsets: usize = self.segments.iter().map(|segment| segment.offsets.capacity() * 4).sum();
        offsets + self.header_hashes.memory_bytes() + self.transactions.memory_bytes()
    }
}
