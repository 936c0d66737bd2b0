//! Entries of the log: `docs/formats/consensus.md`.
//!
//! ```text
//!  0  checksum   over the rest of the head and all bytes behind it
//!  8  index      1, 2, 3 …
//!  16 term       of the coordinator that appended it
//!  24 previous   checksum of the entry before; of the first, the header's chain
//!  32 body u32   bytes behind the head
//!  36 writes u16 | kind u8 | version u8
//!  40 writes × (address u64, bytes u32, 0 u32), then the bytes of each
//! ```
//!
//! An entry is one verb. It lies in one piece, at a multiple of [`LOG_UNIT_BYTES`]; where the rest of the log is too short
//! for it, it lies at the log's beginning. A torn entry does not have its checksum. An entry that is left of an earlier
//! round or another history does not continue the chain, or has the wrong index.
//!
//! Invariant: whatever bytes the log has, they decode into an entry that somebody wrote, or into none.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::bytes::{BufMut as _, Bytes, BytesMut};
use twox_hash::XxHash3_64;

use crate::layout::{FORMAT_VERSION, LOG_UNIT_BYTES, half, word};
use crate::{Error, Term};

/// Bytes before the list of writes.
pub(crate) const HEAD_BYTES: usize = 40;
/// Bytes of one write's place in the list.
const WRITE_BYTES: usize = 16;
/// Writes of one entry: each is a part of the verb, besides the head.
pub const WRITES_MAX: usize = rma::PARTS_MAX - 1;

/// What an entry is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Writes to the replicated memory.
    Writes,
    /// Bytes whose meaning is the appender's; they stay in the log until they are trimmed.
    Record,
}

impl Kind {
    const fn code(self) -> u8 {
        match self {
            Kind::Writes => 1,
            Kind::Record => 2,
        }
    }
}

/// Bytes for an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Write {
    /// The first address.
    pub address: u64,
    /// What is to stand there.
    pub bytes: Bytes,
}

/// An entry as it is read back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its number.
    pub index: u64,
    /// Of whoever appended it.
    pub term: Term,
    /// What it is.
    pub kind: Kind,
    /// What it writes; a record's bytes are its only write, whose address is a mark of whoever appended it, or 0.
    pub writes: Vec<Write>,
    pub(crate) previous: u64,
    pub(crate) checksum: u64,
    /// All of its bytes, as they stand in the log.
    pub(crate) raw: Bytes,
}

/// Bytes of the log that an entry takes.
pub(crate) const fn padded(bytes: u64) -> u64 {
    bytes.next_multiple_of(LOG_UNIT_BYTES)
}

/// Bytes of an entry with these writes.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
pub(crate) fn entry_bytes(writes: &[Write]) -> u64 {
    let body: u64 = writes.iter().map(|write| WRITE_BYTES as u64 + write.bytes.len() as u64).sum();
    HEAD_BYTES as u64 + body
}

/// Puts an entry's head and list into `into`; gives its checksum. The writes' bytes go behind it as they are.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
pub(crate) fn encode_head(
    index: u64,
    term: Term,
    previous: u64,
    kind: Kind,
    writes: &[Write],
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

/// The entry that begins with these bytes, if they are one.
pub(crate) fn decode(bytes: &Bytes) -> Option<Entry> {
    if bytes.len() < HEAD_BYTES || u32::from(bytes[39]) != FORMAT_VERSION {
        return None;
    }
    let total = HEAD_BYTES.checked_add(usize::try_from(half(bytes, 32)).ok()?)?;
    let count = usize::from(u16::from_le_bytes([bytes[36], bytes[37]]));
    let listed = HEAD_BYTES.checked_add(count.checked_mul(WRITE_BYTES)?)?;
    if total > bytes.len() || listed > total || count == 0 || count > WRITES_MAX {
        return None;
    }
    let kind = [Kind::Writes, Kind::Record].into_iter().find(|kind| kind.code() == bytes[38])?;
    let mut checksum = XxHash3_64::oneshot(&bytes[8..listed]);
    let mut writes = Vec::with_capacity(count);
    let mut at = listed;
    for place in (HEAD_BYTES..listed).step_by(WRITE_BYTES) {
        let listing = &bytes[place..listed];
        let until = at.checked_add(half(listing, 8) as usize)?;
        if until > total || half(listing, 12) != 0 {
            return None;
        }
        let data = bytes.slice(at..until);
        checksum = XxHash3_64::oneshot_with_seed(checksum, &data);
        writes.push(Write { address: word(bytes, place), bytes: data });
        at = until;
    }
    if at != total || checksum != word(bytes, 0) {
        return None;
    }
    Some(Entry {
        index: word(bytes, 8),
        term: Term(word(bytes, 16)),
        kind,
        writes,
        previous: word(bytes, 24),
        checksum,
        raw: bytes.slice(..total),
    })
}

/// Whether writes may be one entry of a log whose entries have at most `bytes_max` bytes.
pub(crate) fn check(writes: &[Write], bytes_max: u64) -> Result<(), Error> {
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

    fn raw(index: u64, previous: u64, kind: Kind, writes: &[Write]) -> Bytes {
        let mut bytes = BytesMut::new();
        encode_head(index, Term(3), previous, kind, writes, &mut bytes);
        writes.iter().for_each(|write| bytes.put_slice(&write.bytes));
        bytes.freeze()
    }

    fn write(address: u64, bytes: &[u8]) -> Write {
        Write { address, bytes: Bytes::copy_from_slice(bytes) }
    }

    #[test]
    fn entries_have_the_documented_layout() {
        let bytes = raw(7, 0x11, Kind::Writes, &[write(256, b"one"), write(64, b"two")]);
        let hex: String = bytes[8..].iter().map(|byte| format!("{byte:02x}")).collect();
        let golden = "07000000000000000300000000000000110000000000000026000000020001010001000000000000030000000000000040\
                      0000000000000003000000000000006f6e6574776f";
        assert_eq!(hex, golden);
        assert_eq!(word(&bytes, 0), 14_700_686_069_966_041_621, "the checksum's algorithm is part of the format");
    }

    #[test]
    fn any_changed_byte_is_noticed() {
        let bytes = raw(7, 0x11, Kind::Record, &[write(0, b"a record")]);
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
            let kind = if record { Kind::Record } else { Kind::Writes };
            let writes: Vec<Write> = writes.iter().map(|(address, bytes)| write(*address, bytes)).collect();
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
