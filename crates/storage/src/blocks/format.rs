//! The bytes of a segment: header, durable watermarks, records.
//!
//! All integers are little-endian and of fixed width; `docs/formats/blocks.md` has the diagrams. Decoders take bytes from
//! disk, so they return an error text and never panic. [`super`] explains segments.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::hash::Hasher as _;

use base::{BlockNumber, Bytes, Epoch, TxId};
use twox_hash::XxHash3_64;
use wire::{Malformed, Reader, SEAL_BYTES, Writer, unseal};

use crate::checksum;

/// The version of the formats in this module, written in each segment.
pub const FORMAT_VERSION: u32 = 1;
/// Where the first record of a segment begins.
pub const SEGMENT_HEADER_BYTES: u64 = 4096;
/// Length of the encoded segment header, which lies at byte 0.
pub const SEGMENT_FIELDS_BYTES: usize = 80;
/// Where the two durable watermarks lie: each in a separate sector, so that a torn one leaves the other intact.
pub const WATERMARK_OFFSETS: [u64; 2] = [512, 1024];
/// Length of an encoded durable watermark.
pub const WATERMARK_BYTES: usize = 32;
/// Length of a record's header.
pub const RECORD_HEADER_BYTES: usize = 128;
/// The largest record. A segment ends with the record that crosses its size limit, so offsets within it fit 32 bits.
pub const RECORD_BYTES_MAX: u64 = 512 * 1024 * 1024;

const SEGMENT_MAGIC: [u8; 8] = *b"HEDDLEBS";
const WATERMARK_MAGIC: [u8; 8] = *b"HEDDLEDM";
const RECORD_MAGIC: [u8; 4] = *b"HdBk";

const _: () = assert!(SEGMENT_FIELDS_BYTES as u64 <= WATERMARK_OFFSETS[0]);
const _: () = assert!(WATERMARK_OFFSETS[1] + (WATERMARK_BYTES as u64) <= SEGMENT_HEADER_BYTES);
const _: () = assert!(WATERMARK_OFFSETS[1] - WATERMARK_OFFSETS[0] >= 512);

/// The end of the chain before a segment's first block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The number of the first block in the segment.
    pub first: BlockNumber,
    /// The header hash of the block before it.
    pub previous_hash: [u8; 32],
    /// The epoch of the block before it.
    pub epoch: Epoch,
}

/// Says that everything before a byte of a segment is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DurableWatermark {
    /// The byte of the segment before which everything is durable.
    pub end: u64,
    /// Blocks below this number are durable.
    pub height: u64,
}

/// The fixed part of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    pub number: BlockNumber,
    pub epoch: Epoch,
    pub header_hash: [u8; 32],
    pub previous_hash: [u8; 32],
    /// Transactions listed after the payload.
    pub transactions: u32,
    pub payload_bytes: u64,
    pub transactions_bytes: u64,
    pub payload_checksum: u64,
    pub transactions_checksum: u64,
}

impl SegmentHeader {
    pub fn encode(&self) -> [u8; SEGMENT_FIELDS_BYTES] {
        sealed(|writer| {
            writer.put(&SEGMENT_MAGIC).u32(FORMAT_VERSION).u32(SEGMENT_HEADER_BYTES as u32);
            writer.u64(self.first.get()).u64(self.epoch.get()).put(&self.previous_hash).zeros(8);
        })
    }

    /// # Errors
    /// What is wrong with the bytes.
    pub fn decode(bytes: &[u8]) -> Result<SegmentHeader, String> {
        let bytes = bytes.get(..SEGMENT_FIELDS_BYTES).ok_or("the segment header is cut off")?;
        let mut reader = Reader::new(bytes);
        let cut_off = |malformed: Malformed| malformed.to_string();
        reader.expect(&SEGMENT_MAGIC, "it does not begin with the magic bytes of a segment").map_err(cut_off)?;
        check_seal(bytes, "segment header")?;
        let version = reader.u32().map_err(cut_off)?;
        if version != FORMAT_VERSION {
            return Err(format!("the segment has format {version}, and this program knows format {FORMAT_VERSION}"));
        }
        if reader.u32() != Ok(SEGMENT_HEADER_BYTES as u32) {
            return Err("the segment header states a length that its format does not have".into());
        }
        let mut read = || {
            let (first, epoch) = (BlockNumber(reader.u64()?), Epoch(reader.u64()?));
            Ok(SegmentHeader { first, previous_hash: reader.array()?, epoch })
        };
        read().map_err(cut_off)
    }
}

impl DurableWatermark {
    pub fn encode(&self) -> [u8; WATERMARK_BYTES] {
        sealed(|writer| {
            writer.put(&WATERMARK_MAGIC).u64(self.end).u64(self.height);
        })
    }

    /// `None` for a mark that was never written, or was torn. That is not damage, because a mark never covers more than is
    /// durable.
    pub fn decode(bytes: &[u8]) -> Option<DurableWatermark> {
        let bytes = bytes.get(..WATERMARK_BYTES)?;
        let mut reader = Reader::new(unseal(bytes, checksum).ok()?);
        reader.expect(&WATERMARK_MAGIC, "no mark").ok()?;
        Some(DurableWatermark { end: reader.u64().ok()?, height: reader.u64().ok()? })
    }
}

impl RecordHeader {
    pub fn encode(&self) -> [u8; RECORD_HEADER_BYTES] {
        sealed(|writer| {
            writer.put(&RECORD_MAGIC).u32(self.transactions).u64(self.number.get()).u64(self.epoch.get());
            writer.u64(self.payload_bytes).u64(self.transactions_bytes);
            writer.put(&self.header_hash).put(&self.previous_hash);
            writer.u64(self.payload_checksum).u64(self.transactions_checksum);
        })
    }

    /// # Errors
    /// What is wrong with the bytes.
    pub fn decode(bytes: &[u8]) -> Result<RecordHeader, String> {
        let bytes = bytes.get(..RECORD_HEADER_BYTES).ok_or("the record header is cut off")?;
        let mut reader = Reader::new(bytes);
        let cut_off = |malformed: Malformed| malformed.to_string();
        reader.expect(&RECORD_MAGIC, "no record begins here").map_err(cut_off)?;
        check_seal(bytes, "record header")?;
        let mut read = || {
            Ok(RecordHeader {
                transactions: reader.u32()?,
                number: BlockNumber(reader.u64()?),
                epoch: Epoch(reader.u64()?),
                payload_bytes: reader.u64()?,
                transactions_bytes: reader.u64()?,
                header_hash: reader.array()?,
                previous_hash: reader.array()?,
                payload_checksum: reader.u64()?,
                transactions_checksum: reader.u64()?,
            })
        };
        let header = read().map_err(cut_off)?;
        match header.record_bytes() {
            Some(bytes) if bytes <= RECORD_BYTES_MAX => Ok(header),
            _ => Err("the record header states a length above the limit".into()),
        }
    }

    /// Length of the whole record; `None` if the sum of the lengths overflows.
    pub fn record_bytes(&self) -> Option<u64> {
        (RECORD_HEADER_BYTES as u64).checked_add(self.payload_bytes)?.checked_add(self.transactions_bytes)
    }

    /// Where the payload lies within the record. The lengths were checked when the header was decoded or encoded.
    pub fn payload_range(&self) -> std::ops::Range<usize> {
        let start = RECORD_HEADER_BYTES;
        start..start.saturating_add(self.payload_bytes as usize)
    }

    /// Where the transaction list lies within the record.
    pub fn transactions_range(&self) -> std::ops::Range<usize> {
        let start = self.payload_range().end;
        start..start.saturating_add(self.transactions_bytes as usize)
    }

    /// Checks payload and transaction list of a whole record against the checksums.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub fn check_body(&self, record: &[u8]) -> Result<(), String> {
        let payload = record.get(self.payload_range()).ok_or("the payload is cut off")?;
        let transactions = record.get(self.transactions_range()).ok_or("the transaction list is cut off")?;
        if checksum(payload) != self.payload_checksum {
            return Err("the payload does not have the checksum it was written with".into());
        }
        if checksum(transactions) != self.transactions_checksum {
            return Err("the transaction list does not have the checksum it was written with".into());
        }
        Ok(())
    }
}

/// Checksum of the concatenation of `parts`.
pub fn checksum_parts(parts: &[Bytes]) -> u64 {
    match parts {
        [] => checksum(&[]),
        [part] => checksum(part),
        parts => {
            let mut hasher = XxHash3_64::new();
            for part in parts {
                hasher.write(part);
            }
            hasher.finish()
        }
    }
}

/// The transaction list: for each transaction its validation code, the length of its id and the id.
pub fn encode_transactions(transactions: &[(TxId, u8)]) -> Bytes {
    let length = transactions.iter().map(|(id, _)| id.len().saturating_add(5)).sum();
    let mut writer = Writer::with_capacity(length);
    for (id, code) in transactions {
        writer.u8(*code).long(id.as_str().as_bytes());
    }
    writer.done()
}

/// Walks a transaction list without allocating: each item is an id and a validation code, or an error text.
pub struct TransactionList<'a> {
    reader: Reader<&'a [u8]>,
    left: u32,
}

impl<'a> TransactionList<'a> {
    pub fn new(bytes: &'a [u8], count: u32) -> TransactionList<'a> {
        TransactionList { reader: Reader::new(bytes), left: count }
    }

    fn read(&mut self) -> Option<(&'a str, u8)> {
        let code = self.reader.u8().ok()?;
        let id = std::str::from_utf8(self.reader.long(usize::MAX).ok()?).ok()?;
        Some((id, code))
    }
}

impl<'a> Iterator for TransactionList<'a> {
    type Item = Result<(&'a str, u8), String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            if self.reader.is_empty() {
                return None;
            }
            self.reader.rest();
            return Some(Err("the transaction list is longer than its count".into()));
        }
        self.left = self.left.saturating_sub(1);
        let item = self.read();
        if item.is_none() {
            self.left = 0;
            self.reader.rest();
        }
        Some(item.ok_or_else(|| "the transaction list is malformed".into()))
    }
}

/// An array of fields that end with their checksum.
pub fn sealed<const N: usize>(fill: impl FnOnce(&mut Writer<&mut [u8]>)) -> [u8; N] {
    let mut bytes = wire::array(|writer| {
        fill(writer);
        writer.zeros(SEAL_BYTES);
    });
    seal(&mut bytes);
    bytes
}

/// Puts the checksum of all bytes before the last 8 into the last 8.
pub fn seal(bytes: &mut [u8]) {
    wire::seal(bytes, checksum);
}

/// # Errors
/// If the last 8 bytes are not the checksum of all bytes before them.
pub fn check_seal(bytes: &[u8], what: &str) -> Result<(), String> {
    let checked = unseal(bytes, checksum).map(drop);
    checked.map_err(|_| format!("the {what} does not have the checksum it was written with"))
}
