//! Records: one version of one key, as it lies in remote memory (docs/formats/record.md).
//!
//! ```text
//!  0  word       next:54 | incarnation:8 | valid:1 | 0:1
//!  8  checksum   XXH3 64 of the bytes from 16 to the end of the key, XOR (XXH3 64 of the value, rotated left by 32 bits)
//! 16  prev       pointer to the previous version, or 0
//! 24  block:u64    32 tx:u32    36 value bytes:u32
//! 40  key bytes:u16    42 namespace bytes:u16    44 flags:u8 (1: the key was deleted)    45 0:3
//! 48  namespace, key, value; then up to 15 unused bytes
//! ```
//!
//! Only the link word (bytes 0 to 7) changes after a record was written: by compare-and-swap, when a newer version is
//! linked or the record is marked invalid. The checksum therefore leaves the link word out.
//!
//! Invariant: bytes become a [`Record`] only if the incarnation equals the pointer's, the link word says valid, the
//! lengths fit and the checksum agrees. A caller that looks for a key compares the key as well. Other bytes are not
//! trusted; no bytes make this module panic or read out of bounds.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::bytes::Buf as _;
use base::{Bytes, BytesMut, Version};
use twox_hash::XxHash3_64;
use wire::{u16_at, u32_at, u64_at};

use super::cache::buffer_pool;
use super::pointer::{Class, Incarnation, POINTER_BITS, Pointer};

/// Bytes before the namespace.
pub const HEADER_BYTES: usize = 48;
/// Longer records stay in storage.
pub const RECORD_BYTES_MAX: usize = Class::BYTES_MAX;
const CHECKED_FROM: usize = 16;
const INCARNATION_SHIFT: u32 = POINTER_BITS;
const VALID: u64 = 1 << (INCARNATION_SHIFT + Incarnation::BITS);
const FLAG_DELETED: u8 = 1;

const _: () = assert!(VALID == 1 << 62, "one bit of the word is left, and it is zero");

/// The name of a key: namespace and key proper.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct KeyName<'a> {
    pub namespace: &'a str,
    pub key: &'a str,
}

/// The link word, which is changed by compare-and-swap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkWord {
    /// The version after this one; null for the newest.
    pub next: Pointer,
    /// The buffer's incarnation.
    pub incarnation: Incarnation,
    /// Cleared when the record is evicted.
    pub valid: bool,
}

impl LinkWord {
    /// As stored.
    pub const fn bits(self) -> u64 {
        let valid = if self.valid { VALID } else { 0 };
        self.next.bits() | (self.incarnation.bits() << INCARNATION_SHIFT) | valid
    }

    /// `None` if the zero bit is set.
    pub const fn from_bits(bits: u64) -> Option<LinkWord> {
        if bits >> 63 != 0 {
            return None;
        }
        let incarnation = Incarnation::new(bits >> INCARNATION_SHIFT);
        Some(LinkWord { next: Pointer::from_bits(bits), incarnation, valid: bits & VALID != 0 })
    }
}

/// The content of a record besides its link word.
#[derive(Clone, Copy, Debug)]
pub struct RecordContent<'a> {
    pub name: KeyName<'a>,
    pub version: Version,
    /// `None` for a deletion.
    pub value: Option<&'a [u8]>,
    pub prev: Pointer,
}

/// Bytes of a record with names and a value of these lengths, before rounding up to units.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
pub const fn record_bytes(namespace: usize, key: usize, value: usize) -> usize {
    HEADER_BYTES + namespace + key + value
}

/// Bytes of a record before its value.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
pub const fn head_bytes_of(name: KeyName<'_>) -> usize {
    HEADER_BYTES + name.namespace.len() + name.key.len()
}

/// Of two parts, so that a value need not be copied next to its header for the checksum.
fn checksum(checked_head: &[u8], value: &[u8]) -> u64 {
    XxHash3_64::oneshot(checked_head) ^ XxHash3_64::oneshot(value).rotate_left(32)
}

/// Appends the part of a new record, the newest of its key, that precedes the value.
///
/// Panics above the limits of storage and of [`RECORD_BYTES_MAX`], which the caller must have checked.
pub fn encode_head(content: &RecordContent<'_>, incarnation: Incarnation, into: &mut BytesMut) {
    let RecordContent { name: KeyName { namespace, key }, version, value, prev } = content;
    let bytes = value.unwrap_or_default();
    let total = record_bytes(namespace.len(), key.len(), bytes.len());
    assert!(total <= RECORD_BYTES_MAX, "the caller has compared with the limit");
    let lengths = (u16::try_from(namespace.len()), u16::try_from(key.len()), u32::try_from(bytes.len()));
    let (Ok(namespace_bytes), Ok(key_bytes), Ok(value_bytes)) = lengths else {
        unreachable!("names are within the limits of storage")
    };
    let mut header = [0; HEADER_BYTES];
    header[0..8].copy_from_slice(&LinkWord { next: Pointer::NULL, incarnation, valid: true }.bits().to_le_bytes());
    header[16..24].copy_from_slice(&prev.bits().to_le_bytes());
    header[24..32].copy_from_slice(&version.block.to_le_bytes());
    header[32..36].copy_from_slice(&version.tx.to_le_bytes());
    header[36..40].copy_from_slice(&value_bytes.to_le_bytes());
    header[40..42].copy_from_slice(&key_bytes.to_le_bytes());
    header[42..44].copy_from_slice(&namespace_bytes.to_le_bytes());
    header[44] = if value.is_none() { FLAG_DELETED } else { 0 };
    let start = into.len();
    into.extend_from_slice(&header);
    into.extend_from_slice(namespace.as_bytes());
    into.extend_from_slice(key.as_bytes());
    let head = &mut into[start..];
    let checksum = checksum(&head[CHECKED_FROM..], bytes);
    head[8..16].copy_from_slice(&checksum.to_le_bytes());
}

/// The bytes of a new record; see [`encode_head`].
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
pub fn encode(content: &RecordContent<'_>, incarnation: Incarnation) -> Bytes {
    let value = content.value.unwrap_or_default();
    let mut record = BytesMut::with_capacity(head_bytes_of(content.name) + value.len());
    encode_head(content, incarnation, &mut record);
    record.extend_from_slice(value);
    record.freeze()
}

/// The part of a record before its value, read when looking for a key's slot. It is not verified by the checksum, so it
/// may identify a slot's key but never serves a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordHead<'a> {
    pub link: LinkWord,
    pub prev: Pointer,
    pub version: Version,
    pub deleted: bool,
    pub namespace: &'a [u8],
    pub key: &'a [u8],
    /// Bytes of the whole record.
    pub bytes: usize,
}

/// A record whose bytes can be trusted.
#[derive(Clone, Debug)]
pub struct Record {
    pub word: LinkWord,
    pub prev: Pointer,
    pub version: Version,
    bytes: Bytes,
    namespace_bytes: usize,
    key_bytes: usize,
    deleted: bool,
}

fn short_at(bytes: &[u8], at: usize) -> usize {
    usize::from(u16_at(bytes, at))
}

/// How many bytes a head claims to have, including namespace and key; `None` without a whole header.
pub fn head_bytes(bytes: &[u8]) -> Option<usize> {
    let names = || HEADER_BYTES.saturating_add(short_at(bytes, 40)).saturating_add(short_at(bytes, 42));
    (bytes.len() >= HEADER_BYTES).then(names)
}

/// Whether the record at `pointer` was marked invalid: its other bytes are unchanged, but must not be used.
pub fn is_given_up(bytes: &[u8], pointer: Pointer) -> bool {
    let word = (bytes.len() >= HEADER_BYTES).then(|| LinkWord::from_bits(u64_at(bytes, 0))).flatten();
    word.is_some_and(|word| !word.valid && word.incarnation == pointer.incarnation())
}

/// Reads the head of the record at `pointer`. `None` if the bytes are not a head, or end within its key.
pub fn head(bytes: &[u8], pointer: Pointer) -> Option<RecordHead<'_>> {
    let until = head_bytes(bytes)?;
    let word = LinkWord::from_bits(u64_at(bytes, 0))?;
    let deleted = match bytes[44] {
        0 => false,
        FLAG_DELETED => true,
        _ => return None,
    };
    let value_bytes = u32_at(bytes, 36) as usize;
    let total = until.checked_add(value_bytes)?;
    let fits = Class::holding(total).is_some_and(|class| class == pointer.class());
    // The first step of trust: another incarnation of the buffer is another record.
    let life = word.incarnation == pointer.incarnation() || super::fault::mutant(super::fault::Mutant::NoIncarnation);
    if !word.valid || !life || !fits || bytes[45..48] != [0; 3] || until > bytes.len() || (deleted && value_bytes > 0) {
        return None;
    }
    let namespace_end = HEADER_BYTES.checked_add(short_at(bytes, 42))?;
    Some(RecordHead {
        link: word,
        prev: Pointer::from_bits(u64_at(bytes, 16)),
        version: Version { block: u64_at(bytes, 24), tx: u32_at(bytes, 32) },
        deleted,
        namespace: &bytes[HEADER_BYTES..namespace_end],
        key: &bytes[namespace_end..until],
        bytes: total,
    })
}

impl Record {
    /// Reads the record at `pointer`. Returns the bytes if they cannot be trusted; they may be longer than the record.
    pub fn read(mut bytes: BytesMut, pointer: Pointer) -> Result<Record, BytesMut> {
        let Some(head) = head(&bytes, pointer) else { return Err(bytes) };
        let RecordHead { link: word, prev, version, deleted, namespace, key, bytes: total } = head;
        let (namespace_bytes, key_bytes) = (namespace.len(), key.len());
        let value = HEADER_BYTES.saturating_add(namespace_bytes).saturating_add(key_bytes);
        if bytes.len() < total || u64_at(&bytes, 8) != checksum(&bytes[CHECKED_FROM..value], &bytes[value..total]) {
            return Err(bytes);
        }
        bytes.truncate(total);
        Ok(Record { word, prev, version, bytes: buffer_pool::recyclable(bytes), namespace_bytes, key_bytes, deleted })
    }

    /// Whether it is a version of this key.
    #[inline]
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub fn is_of(&self, name: KeyName<'_>) -> bool {
        let names = &self.bytes[HEADER_BYTES..HEADER_BYTES + self.namespace_bytes + self.key_bytes];
        self.namespace_bytes == name.namespace.len()
            && names.len() == name.namespace.len() + name.key.len()
            && &names[self.namespace_bytes..] == name.key.as_bytes()
            && &names[..self.namespace_bytes] == name.namespace.as_bytes()
    }

    /// The value, in the record's buffer; `None` for a deletion.
    #[inline]
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub fn into_value(mut self) -> Option<Bytes> {
        self.bytes.advance(HEADER_BYTES + self.namespace_bytes + self.key_bytes);
        (!self.deleted).then_some(self.bytes)
    }

    pub fn is_deletion(&self) -> bool {
        self.deleted
    }

    /// Bytes of the whole record.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }
}
