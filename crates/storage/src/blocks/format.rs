//! The bytes of a segment: header, durable watermarks, records.
//!
//! All integers are little-endian and of fixed width; `docs/formats/blocks.md` has the diagrams. Decoders take bytes from
//! disk, so they return an error text and never panic. [`super`] explains segments.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::hash::Hasher as _;

use base::{BlockNumber, Bytes, BytesMut, Epoch, TxId};
use twox_hash::XxHash3_64;

use crate::checksum;

/// The version of the formats in this module, written in each segment.
pub const VERSION: u32 = 1;
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

/// Writes fields one after another into a buffer of fixed size.
struct Fields<'a> {
    buffer: &'a mut [u8],
    at: usize,
}

impl Fields<'_> {
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    fn put(&mut self, bytes: &[u8]) {
        self.buffer[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }
}

/// Reads fields one after another; `None` where the bytes end.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }

    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    pub fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.array()?))
    }
}

impl SegmentHeader {
    pub fn encode(&self) -> [u8; SEGMENT_FIELDS_BYTES] {
        let mut bytes = [0; SEGMENT_FIELDS_BYTES];
        let mut fields = Fields { buffer: &mut bytes, at: 0 };
        fields.put(&SEGMENT_MAGIC);
        fields.put(&VERSION.to_le_bytes());
        fields.put(&(SEGMENT_HEADER_BYTES as u32).to_le_bytes());
        fields.put(&self.first.get().to_le_bytes());
        fields.put(&self.epoch.get().to_le_bytes());
        fields.put(&self.previous_hash);
        fields.put(&[0; 8]); // Reserved.
        assert!(fields.at == SEGMENT_FIELDS_BYTES - 8, "the layout of a segment header adds up");
        seal(&mut bytes);
        bytes
    }

    /// # Errors
    /// What is wrong with the bytes.
    pub fn decode(bytes: &[u8]) -> Result<SegmentHeader, String> {
        let short = || "the segment header is cut off".to_string();
        let bytes = bytes.get(..SEGMENT_FIELDS_BYTES).ok_or_else(short)?;
        let mut reader = Reader(bytes);
        if reader.array() != Some(SEGMENT_MAGIC) {
            return Err("it does not begin with the magic bytes of a segment".into());
        }
        let version = reader.u32().ok_or_else(short)?;
        check_seal(bytes, "segment header")?;
        if version != VERSION {
            return Err(format!("the segment has format {version}, and this program knows format {VERSION}"));
        }
        if reader.u32() != Some(SEGMENT_HEADER_BYTES as u32) {
            return Err("the segment header states a length that its format does not have".into());
        }
        let first = BlockNumber(reader.u64().ok_or_else(short)?);
        let epoch = Epoch(reader.u64().ok_or_else(short)?);
        let previous_hash = reader.array().ok_or_else(short)?;
        Ok(SegmentHeader { first, previous_hash, epoch })
    }
}

impl DurableWatermark {
    pub fn encode(&self) -> [u8; WATERMARK_BYTES] {
        let mut bytes = [0; WATERMARK_BYTES];
        let mut fields = Fields { buffer: &mut bytes, at: 0 };
        fields.put(&WATERMARK_MAGIC);
        fields.put(&self.end.to_le_bytes());
        fields.put(&self.height.to_le_bytes());
        assert!(fields.at == WATERMARK_BYTES - 8, "the layout of a mark adds up");
        seal(&mut bytes);
        bytes
    }

    /// `None` for a mark that was never written, or was torn. That is not damage, because a mark never covers more than is
    /// durable.
    pub fn decode(bytes: &[u8]) -> Option<DurableWatermark> {
        let bytes = bytes.get(..WATERMARK_BYTES)?;
        let mut reader = Reader(bytes);
        if reader.array() != Some(WATERMARK_MAGIC) || check_seal(bytes, "mark").is_err() {
            return None;
        }
        Some(DurableWatermark { end: reader.u64()?, height: reader.u64()? })
    }
}

impl RecordHeader {
    pub fn encode(&self) -> [u8; RECORD_HEADER_BYTES] {
        let mut bytes = [0; RECORD_HEADER_BYTES];
        let mut fields = Fields { buffer: &mut bytes, at: 0 };
        fields.put(&RECORD_MAGIC);
        fields.put(&self.transactions.to_le_bytes());
        fields.put(&self.number.get().to_le_bytes());
        fields.put(&self.epoch.get().to_le_bytes());
        fields.put(&self.payload_bytes.to_le_bytes());
        fields.put(&self.transactions_bytes.to_le_bytes());
        fields.put(&self.header_hash);
        fields.put(&self.previous_hash);
        fields.put(&self.payload_checksum.to_le_bytes());
        fields.put(&self.transactions_checksum.to_le_bytes());
        assert!(fields.at == RECORD_HEADER_BYTES - 8, "the layout of a record header adds up");
        seal(&mut bytes);
        bytes
    }

    /// # Errors
    /// What is wrong with the bytes.
    pub fn decode(bytes: &[u8]) -> Result<RecordHeader, String> {
        let short = || "the record header is cut off".to_string();
        let bytes = bytes.get(..RECORD_HEADER_BYTES).ok_or_else(short)?;
        let mut reader = Reader(bytes);
        if reader.array() != Some(RECORD_MAGIC) {
            return Err("no record begins here".into());
        }
        check_seal(bytes, "record header")?;
        let transactions = reader.u32().ok_or_else(short)?;
        let number = BlockNumber(reader.u64().ok_or_else(short)?);
        let epoch = Epoch(reader.u64().ok_or_else(short)?);
        let payload_bytes = reader.u64().ok_or_else(short)?;
        let transactions_bytes = reader.u64().ok_or_else(short)?;
        let header_hash = reader.array().ok_or_else(short)?;
        let previous_hash = reader.array().ok_or_else(short)?;
        let payload_checksum = reader.u64().ok_or_else(short)?;
        let transactions_checksum = reader.u64().ok_or_else(short)?;
        let header = RecordHeader {
            number,
            epoch,
            header_hash,
            previous_hash,
            transactions,
            payload_bytes,
            transactions_bytes,
            payload_checksum,
            transactions_checksum,
        };
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
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
pub fn encode_transactions(transactions: &[(TxId, u8)]) -> Bytes {
    let length = transactions.iter().map(|(id, _)| 5 + id.len()).sum();
    let mut bytes = BytesMut::with_capacity(length);
    for (id, code) in transactions {
        bytes.extend_from_slice(&[*code]);
        bytes.extend_from_slice(&(id.len() as u32).to_le_bytes());
        bytes.extend_from_slice(id.as_str().as_bytes());
    }
    assert!(bytes.len() == length, "the length was computed from the same list");
    bytes.freeze()
}

/// Walks a transaction list without allocating: each item is an id and a validation code, or an error text.
pub struct TransactionList<'a> {
    reader: Reader<'a>,
    left: u32,
}

impl<'a> TransactionList<'a> {
    pub fn new(bytes: &'a [u8], count: u32) -> TransactionList<'a> {
        TransactionList { reader: Reader(bytes), left: count }
    }

    fn read(&mut self) -> Option<(&'a str, u8)> {
        let [code] = self.reader.array()?;
        let length = self.reader.u32()?;
        let id = std::str::from_utf8(self.reader.bytes(length as usize)?).ok()?;
        Some((id, code))
    }
}

impl<'a> Iterator for TransactionList<'a> {
    type Item = Result<(&'a str, u8), String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            if self.reader.0.is_empty() {
                return None;
            }
            self.reader.0 = &[];
            return Some(Err("the transaction list is longer than its count".into()));
        }
        self.left = self.left.saturating_sub(1);
        let item = self.read();
        if item.is_none() {
            self.left = 0;
            self.reader.0 = &[];
        }
        Some(item.ok_or_else(|| "the transaction list is malformed".into()))
    }
}

/// Puts the checksum of all bytes before the last 8 into the last 8.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
pub fn seal(bytes: &mut [u8]) {
    let (fields, sum) = bytes.split_at_mut(bytes.len() - 8);
    sum.copy_from_slice(&checksum(fields).to_le_bytes());
}

/// # Errors
/// If the last 8 bytes are not the checksum of all bytes before them.
pub fn check_seal(bytes: &[u8], what: &str) -> Result<(), String> {
    match bytes.split_last_chunk::<8>() {
        Some((fields, sum)) if checksum(fields) == u64::from_le_bytes(*sum) => Ok(()),
        _ => Err(format!("the {what} does not have the checksum it was written with")),
    }
}
