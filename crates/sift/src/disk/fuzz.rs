//! Fuzz harness for the records of a group's redo log; see [`base::fuzz`].

use base::Bytes;
use base::fuzz::{FuzzTarget, InputShape, authenticated, sealed};

use super::{DurableOwner, HEAD_BYTES, RecordSeal, decode, encode, head};
use crate::Term;
use crate::fuzz::checksum;

/// The targets of this module.
pub const TARGETS: &[FuzzTarget] =
    &[FuzzTarget { name: "consensus-journal", shape: InputShape::Bytes, run: records, seeds }];

fn seeds() -> Vec<Vec<u8>> {
    let writes = [(64, Bytes::from_static(b"abc")), (8, Bytes::from_static(b"d"))];
    let holder = DurableOwner { term: Term(5), nonce: 7, admitted: true };
    let whole = encode(RecordSeal::Keyed(0), 3, holder, &writes);
    vec![whole.to_vec(), encode(RecordSeal::First(9), 1, DurableOwner::default(), &[]).to_vec()]
}

/// Decodes the input as a record, unchanged and with correct checksums.
fn records(input: &[u8]) {
    let mut right = input.to_vec();
    if right.len() >= HEAD_BYTES {
        let body = sealed(&[&[0; 8], &right[HEAD_BYTES..]].concat(), usize::MAX, checksum);
        right[48..56].copy_from_slice(&body[..8]);
        right = sealed(&right, HEAD_BYTES, checksum);
    }
    for bytes in [Bytes::copy_from_slice(input), Bytes::from(right)] {
        let Some(head) = head(&bytes, RecordSeal::Keyed(0)) else { continue };
        let (length, sequence, holder) = (head.bytes as usize, head.sequence, head.owner);
        // As a redo log is read: no more bytes than the head states.
        let Some(body) = bytes.get(HEAD_BYTES..length).map(|body| bytes.slice_ref(body)) else { continue };
        let Some(record) = authenticated(input, || decode(head, &body, RecordSeal::Keyed(0))) else { continue };
        let again = encode(RecordSeal::Keyed(0), sequence, holder, &record.writes);
        assert_eq!(again[HEAD_BYTES..length], bytes[HEAD_BYTES..length], "a record has one encoding");
    }
}
