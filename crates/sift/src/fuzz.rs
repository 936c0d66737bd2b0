//! Fuzz harnesses for bytes from other nodes, disks and remote regions; see [`base::fuzz`].

mod checksum;

use base::fuzz::{FuzzTarget, InputShape, authenticated, sealed};
use base::{Bytes, BytesMut};
use rma::{CAPABILITY_BYTES, Capability};
use wire::hello::HelloAnswer;

use crate::entry::{EntryKind, MemoryWrite};
use crate::layout::{ADMIN_WORDS_BYTES, AdminWords, CopyHeader, GroupLayout, HEADER_BYTES, LogCursor};
use crate::message::{PROTOCOL_VERSIONS, Rejection, Request, Response};
use crate::{GroupId, Term, entry};

pub(crate) use checksum::checksum;

/// The targets of this crate.
pub fn targets() -> Vec<FuzzTarget> {
    [TARGETS, crate::disk::fuzz::TARGETS].concat()
}

const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "consensus-messages", shape: InputShape::Bytes, run: messages, seeds: message_seeds },
    FuzzTarget { name: "consensus-entries", shape: InputShape::Bytes, run: entries, seeds: entry_seeds },
    FuzzTarget { name: "consensus-headers", shape: InputShape::Bytes, run: headers, seeds: header_seeds },
];

const LAYOUT: GroupLayout =
    GroupLayout { log_bytes: 8192, unlogged_bytes: 128, memory_bytes: 1024, block_bytes: 64, data_shards: 1 };

fn message_seeds() -> Vec<Vec<u8>> {
    let capability = Capability::decode(&[0; CAPABILITY_BYTES]).expect("a capability without rights is one");
    let writes = vec![(64, Bytes::from_static(b"ab")), (8, Bytes::from_static(b"c"))];
    let requests = [
        Request::Hello { versions: PROTOCOL_VERSIONS, group: GroupId(9), layout: LAYOUT },
        Request::Fence { term: Term(7), nonce: 8 },
        Request::Persist { term: Term(7), nonce: 8, admitted: true, writes },
    ];
    let hello = HelloAnswer::accept(PROTOCOL_VERSIONS, PROTOCOL_VERSIONS.newest());
    let replies = [
        Response::Welcome { hello, is_persistent: true, incarnation: 7, admin: capability },
        Response::Persisted,
        Response::Fenced { region: capability },
        Response::Rejected { rejection: Rejection::Disputed, detail: 3, text: "no".to_owned() },
    ];
    let requests = requests.iter().map(|request| request.encode(4).to_vec());
    requests.chain(replies.iter().map(|reply| reply.encode(5).to_vec())).collect()
}

/// A message of our versions that decodes has exactly one encoding.
pub(crate) fn messages(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    if let Ok((number, request)) = authenticated(input, || Request::decode(&bytes)) {
        let encoded = request.encode(number);
        let is_whole = !matches!(request, Request::OtherVersions(_));
        assert!(if is_whole { encoded == bytes } else { bytes.starts_with(&encoded) }, "{request:?}");
    }
    if let Ok((number, reply)) = authenticated(input, || Response::decode(&bytes)) {
        let encoded = reply.encode(number);
        let is_whole = !matches!(reply, Response::OtherVersions(_));
        assert!(if is_whole { encoded == bytes } else { bytes.starts_with(&encoded) }, "{reply:?}");
    }
}

fn entry_seeds() -> Vec<Vec<u8>> {
    let write = |address, bytes: &'static [u8]| MemoryWrite { address, bytes: Bytes::from_static(bytes) };
    let of = |kind, writes: &[MemoryWrite]| {
        let mut bytes = BytesMut::new();
        entry::encode_head(7, Term(3), 0x11, kind, writes, &mut bytes);
        writes.iter().for_each(|write| bytes.extend_from_slice(&write.bytes));
        bytes.to_vec()
    };
    vec![
        of(EntryKind::Writes, &[write(256, b"one"), write(64, b"two")]),
        of(EntryKind::Record, &[write(0, b"a record")]),
    ]
}

fn entries(input: &[u8]) {
    // The checksum covers the length that an entry claims: half of the search is for entries that fill the input.
    for bytes in [input.to_vec(), sealed(input, input.len(), checksum)] {
        let bytes = Bytes::from(bytes);
        let Some(found) = authenticated(input, || entry::decode(&bytes)) else { continue };
        assert!(bytes.starts_with(&found.raw));
        assert_eq!(found.raw.len() as u64, entry::entry_bytes(&found.writes));
        assert_eq!(entry::decode(&found.raw).as_ref(), Some(&found), "an entry ends where it ends");
    }
}

fn header_seeds() -> Vec<Vec<u8>> {
    let applied = LogCursor { index: 9, position: 640, chain: 0x0102 };
    vec![CopyHeader { sequence: 4, term: Term(5), adopted: 7, applied, nodes: 3 }.encode().to_vec()]
}

fn headers(input: &[u8]) {
    for bytes in [input.to_vec(), sealed(input, HEADER_BYTES, checksum)] {
        if let Ok(Some(header)) = CopyHeader::decode(&bytes, &LAYOUT) {
            assert_eq!(header.encode()[..], bytes);
        }
    }
    if let Some(words) = input.first_chunk::<ADMIN_WORDS_BYTES>() {
        let _ = AdminWords::decode(words);
    }
    let _ = CopyHeader::newest(input, &LAYOUT);
}
