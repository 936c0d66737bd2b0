//! Log entries: `docs/formats/consensus.md`.
//!
//! ```text
//!  0  checksum   over the rest of the head and all bytes after it
//!  8  index      1, 2, 3 …
//!  16 term       of the coordinator that appended it
//!  24 previous   checksum of the previous entry; for the first entry, the header's chain
//!  32 body u32   bytes after the head
//!  36 writes u16 | kind u8 | version u8
//!  40 writes × (address u64, bytes u32, 0 u32), then the bytes of each
//! ```
//!
//! An entry is written by one verb. It is contiguous and starts at a multiple of [`LOG_UNIT_BYTES`]. The log is a ring:
//! an entry that does not fit before the end is written at the beginning. A torn entry fails its checksum. An entry
//! left over from an earlier round or from a discarded history fails the check of `previous` or `index`.
//!
//! Invariant: any bytes of the log decode either into an entry that a coordinator wrote or into no entry.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::bytes::{BufMut as _, Bytes, BytesMut};
use twox_hash::XxHash3_64;
use wire::{u16_at, u32_at, u64_at};

use crate::layout::{FORMAT_VERSION, LOG_UNIT_BYTES};
use crate::{Error, Term};

/// Bytes before the list of writes.
pub(crate) const HEAD_BYTES: usize = 40;
/// Bytes of one element of the list.
const WRITE_BYTES: usize = 16;
/// Writes of one entry: each is one part of the verb, besides the head.
pub const WRITES_MAX: usize = rma::PARTS_MAX - 1;

/// The kind of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryKind {
    /// Writes to the replicated memory.
    Writes,
    /// Bytes that only the appender interprets; they stay in the log until they are trimmed.
    Record,
}

impl EntryKind {
    const fn code(self) -> u8 {
        match self {
            EntryKind::Writes => 1,
            EntryKind::Record => 2,
        }
    }
}

/// A write of bytes at an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryWrite {
    /// The first address.
    pub address: u64,
    /// The bytes to write.
    pub bytes: Bytes,
}

/// An entry, read back from a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogEntry {
    /// Its number.
    pub index: u64,
    /// The term of the coordinator that appended it.
    pub term: Term,
    /// Its kind.
    pub kind: EntryKind,
    /// Its writes. A record's bytes are its only write, whose address is a mark that the appender chose, or 0.
    pub writes: Vec<MemoryWrite>,
    pub(crate) previous: u64,
    pub(crate) checksum: u64,
    /// All of its bytes, as they are in the log.
    pub(crate) raw: Bytes,
}

/// Bytes of the log that an entry takes.
pub(crate) const fn padded(bytes: u64) -> u64 {
    bytes.next_multiple_of(LOG_UNIT_BYTES)
}

/// Bytes of an entry with these writes.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
pub(crate) fn entry_bytes(writes: &[MemoryWrite]) -> u64 {
    let body: u64 = writes.iter().map(|write| WRITE_BYTES as u64 + write.bytes.len() as u64).sum();
    HEAD_BYTES as u64 + body
}

/// Appends an entry's head and list to `into` and returns the entry's checksum. The writes' bytes follow unchanged.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
pub(crate) fn encode_head(
    index: u64,
    term: Term,
    previous: u64,
    kind: EntryKind,
    writes: &[MemoryWrite],
    into: &mut BytesMut,
) -> u64 {
    assert!(!writes.is_empty() && writes.len() <= WRITES_MAX, "callers check their writes");
    let start = into.len();
    let body = entry_bytes(writes) - HEAD_BYTES as u64;
    into.put_u64_le(0);
    into.put_u64_le(index);
    into.put_u64_le(term.0);
    into.put_u64_le(previous);
    into.put_u32_le(u32::try_from(body).expect("an entry is a part of a log"));
    into.put_u16_le(writes.len() as u16);
    into.put_u8(kind.code());
    into.put_u8(FORMAT_VERSION as u8);
    for write in writes {
        into.put_u64_le(write.address);
        into.put_u32_le(write.bytes.len() as u32);
        into.put_u32_le(0);
    }
    let mut checksum = XxHash3_64::oneshot(&into[start + 8..]);
    for write in writes {
        checksum = XxHash3_64::oneshot_with_seed(checksum, &write.bytes);
    }
    into[start..start + 8].copy_from_slice(&checksum.to_le_bytes());
    checksum
}

/// The entry at the start of these bytes, if there is one.
pub(crate) fn decode(bytes: &Bytes) -> Option<LogEntry> {
    if bytes.len() < HEAD_BYTES || u32::from(bytes[39]) != FORMAT_VERSION {
        return None;
    }
    let total = HEAD_BYTES.checked_add(usize::try_from(u32_at(bytes, 32)).ok()?)?;
    let count = usize::from(u16_at(bytes, 36));
    let listed = HEAD_BYTES.checked_add(count.checked_mul(WRITE_BYTES)?)?;
    if total > bytes.len() || listed > total || count == 0 || count > WRITES_MAX {
        return None;
    }
    let kind = [EntryKind::Writes, EntryKind::Record].into_iter().find(|kind| kind.code() == bytes[38])?;
    let mut checksum = XxHash3_64::oneshot(&bytes[8..listed]);
    let mut writes = Vec::with_capacity(count);
    let mut at = listed;
    for place in (HEAD_BYTES..listed).step_by(WRITE_BYTES) {
        let listing = &bytes[place..listed];
        let until = at.checked_add(u32_at(listing, 8) as usize)?;
        if until > total || u32_at(listing, 12) != 0 {
            return None;
        }
        let data = bytes.slice(at..until);
        checksum = XxHash3_64::oneshot_with_seed(checksum, &data);
        writes.push(MemoryWrite { address: u64_at(bytes, place), bytes: data });
        at = until;
    }
    if at != total || checksum != u64_at(bytes, 0) {
        return None;
    }
    Some(LogEntry {
        index: u64_at(bytes, 8),
        term: Term(u64_at(bytes, 16)),
        kind,
        writes,
        previous: u64_at(bytes, 24),
        checksum,
        raw: bytes.slice(..total),
    })
}

/// Checks that writes fit into one entry of a log whose entries have at most `bytes_max` bytes.
pub(crate) fn check(writes: &[MemoryWrite], bytes_max: u64) -> Result<(), Error> {
    if writes.is_empty() || writes.len() > WRITES_MAX {
        return Err(Error::Invalid(format!("{} writes: one entry takes 1 to {WRITES_MAX}", writes.len())));
    }
    let bytes = entry_bytes(writes);
    if bytes > bytes_max || bytes > u64::from(u32::MAX) {
        return Err(Error::Invalid(format!("an entry of {bytes} bytes: this log takes at most {bytes_max}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn raw(index: u64, previous: u64, kind: EntryKind, writes: &[MemoryWrite]) -> Bytes {
        let mut bytes = BytesMut::new();
        encode_head(index, Term(3), previous, kind, writes, &mut bytes);
        writes.iter().for_each(|write| bytes.put_slice(&write.bytes));
        bytes.freeze()
    }

    fn write(address: u64, bytes: &[u8]) -> MemoryWrite {
        MemoryWrite { address, bytes: Bytes::copy_from_slice(bytes) }
    }

    #[test]
    fn entries_have_the_documented_layout() {
        let bytes = raw(7, 0x11, EntryKind::Writes, &[write(256, b"one"), write(64, b"two")]);
        let hex: String = bytes[8..].iter().map(|byte| format!("{byte:02x}")).collect();
        let golden = "07000000000000000300000000000000110000000000000026000000020001010001000000000000030000000000000040\
                      0000000000000003000000000000006f6e6574776f";
        assert_eq!(hex, golden);
        assert_eq!(u64_at(&bytes, 0), 14_700_686_069_966_041_621, "the checksum's algorithm is part of the format");
    }

    #[test]
    fn any_changed_byte_is_noticed() {
        let bytes = raw(7, 0x11, EntryKind::Record, &[write(0, b"a record")]);
        assert!(decode(&bytes).is_some());
        for at in 0..bytes.len() {
            let mut bad = bytes.to_vec();
            bad[at] ^= 1;
            assert_eq!(decode(&Bytes::from(bad)), None, "byte {at}");
        }
        assert_eq!(decode(&bytes.slice(..bytes.len() - 1)), None);
    }

    proptest! {
        #[test]
        fn entries_come_back_as_they_were(
            index: u64, previous: u64, record: bool,
            writes in prop::collection::vec((any::<u64>(), prop::collection::vec(any::<u8>(), 0..200)), 1..=WRITES_MAX),
            tail in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let kind = if record { EntryKind::Record } else { EntryKind::Writes };
            let writes: Vec<MemoryWrite> = writes.iter().map(|(address, bytes)| write(*address, bytes)).collect();
            let bytes = raw(index, previous, kind, &writes);
            prop_assert_eq!(bytes.len() as u64, entry_bytes(&writes));
            let entry = decode(&[&bytes[..], &tail].concat().into()).expect("it was just encoded");
            prop_assert_eq!((entry.index, entry.previous, entry.kind), (index, previous, kind));
            prop_assert_eq!(entry.writes, writes);
            prop_assert_eq!(entry.raw, bytes);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode(&bytes.into());
        }
    }
}
