//! The format of the records in the log of the model engine.
//!
//! ```text
//! record := body length u64, checksum of the body u64, body
//! body   := savepoint (52 bytes), number of rows u32, rows, removed keys
//! row    := key length u32, value length u32, key, value
//! removed key := key length u32, key
//! ```
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;

use base::Bytes;
use wire::Reader;

use crate::checksum;
use crate::tables::Savepoint;
use crate::tables::key::{self, RowKey};

/// Row keys and their values.
pub type Rows = BTreeMap<Bytes, Bytes>;

const RECORD_HEADER_BYTES: usize = 16;

/// The name of a log.
pub fn log_name(number: u64) -> String {
    format!("{number:020}.rows")
}

/// The number of a log of this name; `None` for a name that is not a log's.
pub fn parse_name(name: &str) -> Option<u64> {
    name.strip_suffix(".rows")?.parse().ok()
}

/// Encodes a record of rows that were written and keys that were removed.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
pub fn encode_record<'a>(
    savepoint: &Savepoint,
    rows: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    removed: &[Bytes],
) -> Vec<u8> {
    let mut bytes = vec![0; RECORD_HEADER_BYTES];
    bytes.extend_from_slice(&savepoint.encode());
    let count_at = bytes.len();
    bytes.extend_from_slice(&[0; 4]);
    let mut count = 0u32;
    for (key, value) in rows {
        count += 1;
        bytes.extend_from_slice(&(key.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(value);
    }
    bytes[count_at..count_at + 4].copy_from_slice(&count.to_le_bytes());
    for key in removed {
        bytes.extend_from_slice(&(key.len() as u32).to_le_bytes());
        bytes.extend_from_slice(key);
    }
    let body_bytes = (bytes.len() - RECORD_HEADER_BYTES) as u64;
    let sum = checksum(&bytes[RECORD_HEADER_BYTES..]);
    bytes[0..8].copy_from_slice(&body_bytes.to_le_bytes());
    bytes[8..16].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// The rows and the savepoint after the whole records of a log, and where those records end.
pub fn replay(bytes: &[u8]) -> (Rows, Savepoint, usize) {
    let (mut rows, mut savepoint, mut end) = (Rows::new(), Savepoint::default(), 0);
    while let Some((next, body_bytes)) = replay_record(&bytes[end..], &mut rows) {
        savepoint = next;
        end = end.saturating_add(RECORD_HEADER_BYTES).saturating_add(body_bytes);
    }
    (rows, savepoint, end)
}

/// Applies the record at the start of `bytes`; `None`, with nothing applied, if it is not whole.
fn replay_record(bytes: &[u8], rows: &mut Rows) -> Option<(Savepoint, usize)> {
    let mut reader = Reader::new(bytes);
    let (body_bytes, sum) = (reader.u64().ok()?, reader.u64().ok()?);
    let body = reader.bytes_u64(body_bytes).ok()?;
    if checksum(body) != sum {
        return None;
    }
    let mut reader = Reader::new(body);
    let savepoint = Savepoint::decode(reader.bytes(Savepoint::BYTES).ok()?)?.1?;
    let count = reader.u32().ok()?;
    let (mut written, mut removed) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let (key_bytes, value_bytes) = (reader.u32().ok()?, reader.u32().ok()?);
        let key = check_row(reader.bytes(key_bytes as usize).ok()?)?;
        written.push((key, Bytes::copy_from_slice(reader.bytes(value_bytes as usize).ok()?)));
    }
    while reader.left() >= 4 {
        removed.push(check_row(reader.long(usize::MAX).ok()?)?);
    }
    rows.extend(written);
    for key in removed {
        rows.remove(&key);
    }
    Some((savepoint, body.len()))
}

fn check_row(bytes: &[u8]) -> Option<Bytes> {
    key::decode_prefix(RowKey::split(bytes)?.prefix)?;
    Some(Bytes::copy_from_slice(bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn replaying_survives_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200), flip in 0usize..2000) {
            let _ = replay(&bytes);
            // And bytes that pass the checksum.
            let mut record = (bytes.len() as u64).to_le_bytes().to_vec();
            record.extend(checksum(&bytes).to_le_bytes());
            record.extend(&bytes);
            let _ = replay(&record);
            let savepoint = Savepoint { height: 3, ..Savepoint::default() };
            let mut key = key::prefix("n", &bytes);
            key::push_suffix(&mut key, base::Version::new(1, 1), true);
            let mut whole = encode_record(&savepoint, [(&key[..], &b"v"[..])].into_iter(), &[]);
            prop_assert_eq!(replay(&whole), (Rows::from([(key.into(), Bytes::from_static(b"v"))]), savepoint, whole.len()));
            let bit = flip % (whole.len() * 8);
            whole[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(replay(&whole).2, 0);
        }
    }
}
