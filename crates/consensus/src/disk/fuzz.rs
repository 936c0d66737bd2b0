//! Harness of the records of a group's journal; see [`base::fuzz`].

use base::Bytes;
use base::fuzz::{Shape, Target, authenticated};

use super::{HEAD_BYTES, Holder, Seal, decode, encode, head};
use crate::Term;
use crate::fuzz::sealed;

/// The targets of this module.
pub const TARGETS: &[Target] = &[Target { name: "consensus-journal", shape: Shape::Bytes, run: records, seeds }];

fn seeds() -> Vec<Vec<u8>> {
    let writes = [(64, Bytes::from_static(b"abc")), (8, Bytes::from_static(b"d"))];
    let holder = Holder { term: Term(5), holder: 7, admitted: true };
    let whole = encode(Seal::Keyed(0), 3, holder, &writes);
    vec![whole.to_vec(), encode(Seal::First(9), 1, Holder::default(), &[]).to_vec()]
}

/// A record, as it came and with checksums that are right.
fn records(input: &[u8]) {
    let mut right = input.to_vec();
    if right.len() >= HEAD_BYTES {
        let body = sealed(&[&[0; 8], &right[HEAD_BYTES..]].concat(), usize::MAX, 0);
        right[48..56].copy_from_slice(&body[..8]);
        right = sealed(&right, HEAD_BYTES, 0);
    }
    for bytes in [Bytes::copy_from_slice(input), Bytes::from(right)] {
        let Some(head) = head(&bytes, Seal::Keyed(0)) else { continue };
        let (length, sequence, holder) = (head.bytes as usize, head.sequence, head.holder);
        // As a journal is read: no more than the head says.
        let Some(body) = bytes.get(HEAD_BYTES..length).map(|body| bytes.slice_ref(body)) else { continue };
        let Some(record) = authenticated(input, || decode(head, &body, Seal::Keyed(0))) else { continue };
        let again = encode(Seal::Keyed(0), sequence, holder, &record.writes);
        assert_eq!(again[HEAD_BYTES..length], bytes[HEAD_BYTES..length], "a record has one encoding");
    }
}
