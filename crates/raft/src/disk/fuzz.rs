//! Fuzz harness for the records of a Raft log; see [`base::fuzz`].

use base::Bytes;
use base::fuzz::{FuzzTarget, InputShape, authenticated, sealed};

use super::{FORMAT_VERSION, HEAD_BYTES, KIND_BATCH, checksum, record_at};

/// The target of this module.
pub const TARGET: FuzzTarget = FuzzTarget { name: "consensus-raft-log", shape: InputShape::Bytes, run: records, seeds };

const KEY: u64 = 7;

fn seeds() -> Vec<Vec<u8>> {
    let body = [5; 24];
    let mut record = vec![0; 8];
    [checksum(KEY, &body), 1, 0].iter().for_each(|word: &u64| record.extend(word.to_le_bytes()));
    record.extend((body.len() as u32).to_le_bytes());
    record.extend([KIND_BATCH, FORMAT_VERSION, 0, 0]);
    record.extend(body);
    vec![sealed(&record, HEAD_BYTES, |covered| checksum(KEY, covered))]
}

/// A record at any offset, with the bytes as given and with checksums that are right.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
fn records(input: &[u8]) {
    let Some((offset, input)) = input.split_first() else { return };
    let offset = usize::from(*offset);
    let mut right = input.to_vec();
    if right.len() >= HEAD_BYTES {
        let length = u32::from_le_bytes([right[32], right[33], right[34], right[35]]) as usize;
        let end = HEAD_BYTES.saturating_add(length).min(right.len());
        let sum = checksum(KEY, &right[HEAD_BYTES..end]);
        right[8..16].copy_from_slice(&sum.to_le_bytes());
        right = sealed(&right, HEAD_BYTES, |covered| checksum(KEY, covered));
    }
    for (bytes, offset) in [(Bytes::copy_from_slice(input), offset), (Bytes::from(right), 0)] {
        let Some(record) = authenticated(input, || record_at(&bytes, offset, KEY)) else { continue };
        assert!(record.bytes.is_multiple_of(8) && offset + record.bytes as usize <= bytes.len());
        assert_eq!(checksum(KEY, &record.body), record.head.body_checksum);
    }
}
