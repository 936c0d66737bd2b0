//! Entries of the store's log: `docs/formats/kv.md`.
//!
//! ```text
//!  0  checksum   over the rest of the head, key and value
//!  8  index      1, 2, 3 …
//!  16 term       of the coordinator that posted it
//!  24 previous   checksum of the preceding entry; in the first entry, the store's seed
//!  32 value u32  bytes of the value
//!  36 key u16    bytes of the key
//!  38 kind u8    1 put, 2 delete
//!  39 version u8
//!  40 key, value
//! ```
//!
//! An entry is contiguous, starts at a multiple of 64 bytes, and is padded with zeros to the next multiple: so each write
//! covers whole cache lines, and consecutive entries are adjacent writes. The log is a ring: an entry that does not fit before
//! the end is written at the beginning. A torn entry fails its checksum; an entry left over from an earlier round or from a
//! discarded history fails the check of `previous`.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::bytes::BufMut as _;
use base::{Bytes, BytesMut, Term};
use twox_hash::XxHash3_64;
use wire::{u16_at, u32_at, u64_at};

/// The format version of a store.
pub(super) const FORMAT_VERSION: u32 = 2;

/// Bytes before the key.
pub(super) const HEAD_BYTES: usize = 40;
/// An entry starts at a multiple of this, and is padded to one.
const UNIT_BYTES: u64 = 64;
/// Memory for entries that is allocated at once.
const MEMORY_BYTES: usize = 64 << 10;
const PUT: u8 = 1;
const DELETE: u8 = 2;

/// An entry, read back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct KvEntry {
    pub index: u64,
    pub term: Term,
    pub previous: u64,
    pub checksum: u64,
    pub key: Bytes,
    /// `None` for a delete.
    pub value: Option<Bytes>,
    /// All bytes of the entry.
    pub raw: Bytes,
}

/// Bytes of the log that an entry takes.
pub(super) const fn padded(bytes: u64) -> u64 {
    bytes.next_multiple_of(UNIT_BYTES)
}

#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
pub(super) fn entry_bytes(key: &[u8], value: Option<&Bytes>) -> u64 {
    (HEAD_BYTES + key.len() + value.map_or(0, Bytes::len)) as u64
}

/// Where the entry behind a position goes, and how many bytes are skipped before it.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
pub(super) fn offset_of(position: u64, length: u64, log_bytes: u64) -> (u64, u64) {
    if position + length <= log_bytes { (position, 0) } else { (0, log_bytes - position) }
}

/// The bytes of an entry with its padding, in memory that is reused once they are dropped, and the entry's checksum.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
pub(super) fn encode(
    index: u64,
    term: Term,
    previous: u64,
    key: &[u8],
    value: Option<&Bytes>,
    memory: &mut BytesMut,
) -> (Bytes, u64) {
    let length = entry_bytes(key, value) as usize;
    if memory.capacity() < length + UNIT_BYTES as usize {
        memory.reserve((length + UNIT_BYTES as usize).max(MEMORY_BYTES));
    }
    let bytes = memory;
    bytes.put_u64_le(0);
    bytes.put_u64_le(index);
    bytes.put_u64_le(term.0);
    bytes.put_u64_le(previous);
    bytes.put_u32_le(value.map_or(0, Bytes::len) as u32);
    bytes.put_u16_le(key.len() as u16);
    bytes.put_u8(if value.is_some() { PUT } else { DELETE });
    bytes.put_u8(FORMAT_VERSION as u8);
    bytes.put_slice(key);
    bytes.put_slice(value.map_or(&[], |value| &value[..]));
    let checksum = XxHash3_64::oneshot(&bytes[8..]);
    bytes[..8].copy_from_slice(&checksum.to_le_bytes());
    bytes.resize(padded(length as u64) as usize, 0);
    (bytes.split().freeze(), checksum)
}

/// The entry with which these bytes start, if there is one.
pub(super) fn decode(bytes: &Bytes) -> Option<KvEntry> {
    if bytes.len() < HEAD_BYTES || u32::from(bytes[39]) != FORMAT_VERSION {
        return None;
    }
    let value_bytes = usize::try_from(u32_at(bytes, 32)).ok()?;
    let value_at = HEAD_BYTES + usize::from(u16_at(bytes, 36));
    let total = value_at.checked_add(value_bytes)?;
    if total > bytes.len() || XxHash3_64::oneshot(&bytes[8..total]) != u64_at(bytes, 0) {
        return None;
    }
    let value = match bytes[38] {
        PUT => Some(bytes.slice(value_at..total)),
        DELETE if value_bytes == 0 => None,
        _ => return None,
    };
    Some(KvEntry {
        index: u64_at(bytes, 8),
        term: Term(u64_at(bytes, 16)),
        previous: u64_at(bytes, 24),
        checksum: u64_at(bytes, 0),
        key: bytes.slice(HEAD_BYTES..value_at),
        value,
        raw: bytes.slice(..total),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn entries_have_the_documented_layout() {
        let (bytes, checksum) =
            encode(7, Term(3), 0x11, b"key", Some(&Bytes::from_static(b"value")), &mut BytesMut::new());
        let hex: String = bytes[8..48].iter().map(|byte| format!("{byte:02x}")).collect();
        let golden = "07000000000000000300000000000000110000000000000005000000030001026b657976616c7565";
        assert_eq!(hex, golden);
        assert_eq!(u64_at(&bytes, 0), checksum);
        assert_eq!(checksum, 14_802_172_403_764_317_673, "the checksum's algorithm is part of the format");
        let (bytes, _) = encode(8, Term(3), checksum, b"key", None, &mut BytesMut::new());
        let hex: String = bytes[32..43].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "00000000030002026b6579");
        assert_eq!(bytes[43..], [0; 21], "zeros fill it up");
    }

    #[test]
    fn any_changed_byte_is_noticed() {
        let (bytes, _) = encode(7, Term(3), 0x11, b"key", Some(&Bytes::from_static(b"value")), &mut BytesMut::new());
        for at in 0..48 {
            let mut bad = bytes.to_vec();
            bad[at] ^= 1;
            assert_eq!(decode(&Bytes::from(bad)), None, "byte {at}");
        }
        assert_eq!(decode(&bytes.slice(..47)), None);
    }

    #[test]
    fn what_does_not_fit_behind_goes_to_the_beginning() {
        assert_eq!(offset_of(0, 128, 4096), (0, 0));
        assert_eq!(offset_of(3968, 128, 4096), (3968, 0));
        assert_eq!(offset_of(4032, 128, 4096), (0, 64));
        assert_eq!(offset_of(4096, 64, 4096), (0, 0));
    }

    proptest! {
        #[test]
        fn entries_come_back_as_they_were(
            index: u64, previous: u64, key in prop::collection::vec(any::<u8>(), 1..200),
            value in prop::option::of(prop::collection::vec(any::<u8>(), 0..500)),
            tail in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let value = value.map(Bytes::from);
            let (bytes, checksum) = encode(index, Term(5), previous, &key, value.as_ref(), &mut BytesMut::new());
            let length = entry_bytes(&key, value.as_ref());
            prop_assert_eq!(bytes.len() as u64, padded(length));
            let raw = bytes.slice(..length as usize);
            let entry = decode(&[&bytes[..], &tail].concat().into()).expect("it was just encoded");
            let expected = KvEntry {
                index, term: Term(5), previous, checksum, key: key.into(), value, raw,
            };
            prop_assert_eq!(entry, expected);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode(&bytes.into());
        }
    }
}
