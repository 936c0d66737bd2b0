//! Fuzz harnesses for records, section headers, index buckets and the messages between primary and followers; see [`base::fuzz`].

use std::sync::Arc;

use base::fuzz::{FuzzTarget, InputShape, authenticated};
use base::{Bytes, BytesMut, Version};
use replica::followers::message::{Announcement, PROTOCOL_VERSIONS, ToFollower, ToPrimary};
use wire::hello::HelloAnswer;

use super::followers::changes::{ChangeLog, FollowerRequest, JoinBasis, StateChange};
use super::header::{self, Mark};
use super::index::{BucketGroup, BucketProbe, GROUP_BYTES, KeyHash, PROBE_BYTES, Subtable};
use super::pointer::{Incarnation, Pointer};
use super::record::{self, KeyName, LinkWord, Record, RecordContent};

/// The targets of this module.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "state-records", shape: InputShape::Bytes, run: records, seeds: record_seeds },
    FuzzTarget { name: "state-section-header", shape: InputShape::Bytes, run: section_header, seeds: header_seeds },
    FuzzTarget { name: "state-index", shape: InputShape::Bytes, run: index, seeds: index_seeds },
    FuzzTarget { name: "state-reader-messages", shape: InputShape::Bytes, run: messages, seeds: message_seeds },
    FuzzTarget { name: "state-reader-changes", shape: InputShape::Bytes, run: changes, seeds: change_seeds },
];

const NAME: KeyName<'static> = KeyName { namespace: "cc", key: "key" };

fn record_seeds() -> Vec<Vec<u8>> {
    let of = |value: Option<&[u8]>| {
        let content = RecordContent { name: NAME, version: Version::new(3, 4), value, prev: Pointer::NULL };
        let bytes = record::encode(&content, Incarnation::new(5));
        let pointer = Pointer::new(64, bytes.len(), Incarnation::new(5));
        [&pointer.bits().to_le_bytes()[..], &bytes].concat()
    };
    vec![of(Some(b"value")), of(None), of(Some(&[7; 200]))]
}

/// Eight bytes of pointer, then the bytes that it points to.
fn records(input: &[u8]) {
    let Some((pointer, bytes)) = input.split_first_chunk::<8>() else { return };
    let pointer = Pointer::from_bits(u64::from_le_bytes(*pointer));
    let _ = record::is_given_up(bytes, pointer);
    let Some(head) = record::head(bytes, pointer) else { return };
    assert!(head.namespace.len() + head.key.len() <= bytes.len() && head.bytes <= record::RECORD_BYTES_MAX);
    if let Ok(found) = authenticated(input, || Record::read(BytesMut::from(bytes), pointer)) {
        assert_eq!((found.len(), found.version), (head.bytes, head.version));
        let deleted = found.is_deletion();
        assert_eq!(found.into_value().is_none(), deleted);
    }
    assert_eq!(LinkWord::from_bits(head.link.bits()), Some(head.link));
}

/// The section whose header is read.
const SECTION: u64 = 1 << 20;
const SECTION_BYTES: u64 = 1 << 18;

fn header_seeds() -> Vec<Vec<u8>> {
    let mut bytes = header::encode(3, SECTION).to_vec();
    bytes.extend(header::encode_mark(Some(Mark { height: 9, membership: 5 }), 7));
    bytes.resize(header::header_bytes(SECTION_BYTES) as usize, 0);
    let entry = (header::entry_address(SECTION, 1) - SECTION) as usize;
    bytes[entry..entry + 8].copy_from_slice(&(SECTION + 8192).to_le_bytes());
    vec![bytes]
}

/// A header as it is, and behind the part that a checksum covers.
fn section_header(input: &[u8]) {
    let whole = |bytes: &[u8]| {
        let mut whole = bytes.to_vec();
        whole.resize(header::header_bytes(SECTION_BYTES) as usize, 0);
        whole
    };
    let checked = whole(&[&header::encode(3, SECTION)[..], input.get(32..).unwrap_or_default()].concat());
    for bytes in [whole(input), checked] {
        let Some(found) = authenticated(&bytes, || header::decode(&bytes, SECTION, SECTION_BYTES)) else { continue };
        assert_eq!(header::encode(found.seed, SECTION)[..], bytes[..32]);
        assert!(found.catalogue.len() <= header::catalogue_entries(SECTION_BYTES));
        for (entry, subtable) in found.catalogue {
            assert!(subtable != 0 && entry < header::catalogue_entries(SECTION_BYTES));
            let last = SECTION + SECTION_BYTES - super::index::SUBTABLE_BYTES as u64;
            assert!(!header::holds_subtable(SECTION, SECTION_BYTES, subtable) || (SECTION..=last).contains(&subtable));
        }
    }
}

fn subtable() -> Subtable {
    Subtable { address: 4096, depth: 3, suffix: 5, incarnation: Incarnation::new(2) }
}

fn index_seeds() -> Vec<Vec<u8>> {
    let mut empty = subtable().empty().to_vec();
    let slot = KeyHash::new(NAME, 0).slot(Pointer::new(64, 100, Incarnation::new(5)));
    empty[8..16].copy_from_slice(&slot.to_le_bytes());
    vec![empty[..GROUP_BYTES].to_vec(), empty[..PROBE_BYTES].to_vec()]
}

fn index(input: &[u8]) {
    let Some(header) = input.first_chunk::<8>().map(|header| u64::from_le_bytes(*header)) else { return };
    let _ = Subtable::suffix_of(header);
    let Some(found) = Subtable::of_header(4096, header) else { return };
    assert_eq!(found.header(), header);
    if let Some(probe) = input.get(..PROBE_BYTES).and_then(|bytes| BucketProbe::new(bytes, &found)) {
        assert!(probe.candidates(KeyHash::new(NAME, 0)).all(|pointer| !pointer.is_null()));
    }
    if let Some(bytes) = input.get(..GROUP_BYTES)
        && let Some(group) = BucketGroup::new(bytes, &found)
    {
        let mut again = BytesMut::new();
        group.encode(&mut again);
        assert_eq!(again[..], *bytes);
    }
}

fn message_seeds() -> Vec<Vec<u8>> {
    let name = || (Arc::from("cc"), Arc::from("key"));
    let (namespace, key) = name();
    let to_primary = [
        ToPrimary::Join { versions: PROTOCOL_VERSIONS },
        ToPrimary::Ack { sequence: 1, asked: 2, floor: 3, load: 4, queued: None },
        ToPrimary::Ack { sequence: 1, asked: 2, floor: 3, load: 4, queued: Some(5) },
        ToPrimary::Announce(Announcement::default()),
        ToPrimary::Leave,
        ToPrimary::InUse { number: 5, in_use: vec![true, false] },
        ToPrimary::Request(FollowerRequest::Fill { namespace, key }.encode()),
        ToPrimary::Request(FollowerRequest::Persist { height: 6 }.encode()),
        ToPrimary::Done { number: 7, height: 8, answer: Bytes::from_static(b"answer") },
    ];
    let changes = Bytes::from(change_seeds().remove(0));
    let basis = JoinBasis { seed: 1, base: 2, savepoint: 3, forgotten: 4, budget_bytes: 5 };
    let hello = HelloAnswer::to(PROTOCOL_VERSIONS, PROTOCOL_VERSIONS);
    let to_reader = [
        ToFollower::Welcome { hello, basis: basis.encode() },
        ToFollower::CatchUp { changes: changes.clone() },
        ToFollower::Update { sequence: 1, granted: 2, oldest: 3, notes_uses: true, changes },
        ToFollower::InUseQuery { number: 1, candidates: Vec::new() },
        ToFollower::Work { number: 1, height: 2, item: Bytes::from_static(b"piece") },
    ];
    let to_primary = to_primary.iter().map(|message| message.encode().to_vec());
    to_primary.chain(to_reader.iter().map(|message| message.encode().to_vec())).collect()
}

fn messages(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    if let Ok(message) = authenticated(input, || ToPrimary::decode(bytes.clone())) {
        // Of a join of other versions only the versions are decoded.
        let ours = !matches!(message, ToPrimary::Join { .. });
        assert!(if ours { message.encode() == bytes } else { bytes.starts_with(&message.encode()) });
        if let ToPrimary::Request(request) = message
            && let Ok(request) = authenticated(input, || FollowerRequest::decode(request))
        {
            assert_eq!(request.encode(), bytes);
        }
    }
    if let Ok(message) = authenticated(input, || ToFollower::decode(bytes.clone())) {
        let ours = !matches!(message, ToFollower::OtherVersions(_));
        assert!(!ours || message.encode().len() == bytes.len(), "{message:?}");
        if let ToFollower::Welcome { basis, .. } = message
            && let Ok(decoded) = authenticated(input, || JoinBasis::decode(basis.clone()))
        {
            assert_eq!(decoded.encode(), basis);
        }
    }
}

fn change_seeds() -> Vec<Vec<u8>> {
    let mut bytes = BytesMut::new();
    let pointer = Pointer::new(64, 100, Incarnation::new(5));
    let mut changes = ChangeLog(&mut bytes);
    changes.subtable(&subtable());
    changes.section_gone(4096);
    changes.detached(NAME, pointer);
    changes.evicted(NAME, pointer);
    changes.forgotten(7);
    changes.savepoint_advanced(8);
    let whole = bytes.to_vec();
    let mut block = BytesMut::new();
    ChangeLog(&mut block).block(9, std::iter::empty());
    // One write: names, version, deleted.
    let mut written = block.to_vec();
    let count = written.len() - 4;
    written[count..].copy_from_slice(&1_u32.to_le_bytes());
    written.extend(b"\x02\0cc\x03\0key\x09\0\0\0\0\0\0\0\x01\0\0\0\0");
    vec![whole, block.to_vec(), written]
}

/// Changes one after the other; the writes of a block are iterated.
fn changes(input: &[u8]) {
    let mut rest = Bytes::copy_from_slice(input);
    loop {
        let before = rest.len();
        match authenticated(input, || StateChange::next(&mut rest)) {
            Ok(Some(StateChange::Block { number, writes })) => {
                let walk = || writes.iter().filter(|write| write.version.block == number).count();
                assert_eq!(authenticated(input, walk), writes.iter().len(), "each write is of its block");
            }
            Ok(Some(_)) => assert!(rest.len() < before, "each change takes bytes"),
            Ok(None) | Err(_) => break,
        }
    }
}
