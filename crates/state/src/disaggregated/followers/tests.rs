use std::sync::Arc;

use base::{Bytes, BytesMut, Version};
use replica::followers::message::{Announcement, ToFollower, ToPrimary};
use replica::load::{LoadReport, NodeAddresses};
use wire::VersionRange;
use wire::hello::HelloAnswer;

use super::super::delta::{DeltaVersion, ValueLocation};
use super::super::index::{KeyHash, Subtable};
use super::super::memory::Section;
use super::super::pointer::{Incarnation, Pointer};
use super::super::record::KeyName;
use super::changes::{BlockWrite, ChangeLog, FollowerRequest, JoinBasis, StateChange, WriteLocation};
use crate::disaggregated::eviction_candidate::EvictionCandidate;

fn of_reader() -> Vec<(ToPrimary, &'static [u8])> {
    let text = Arc::<str>::from;
    vec![
        (ToPrimary::Join { versions: VersionRange::new(1, 2) }, b"\x01HDLRFOLL\x01\0\0\0\x02\0\0\0"),
        (
            ToPrimary::Ack { sequence: 7, asked: 8, floor: 9, load: 10, queued: None },
            b"\x02\x07\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0\x0a",
        ),
        (
            ToPrimary::ack(3, 7, 8, 9, LoadReport { percent: 10, queued: 258 }),
            b"\x02\x07\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0\x0a\x02\x01",
        ),
        (
            ToPrimary::Announce(Announcement {
                addresses: NodeAddresses { own: "tcp:a:1".to_owned(), others: "tls:a:2".to_owned() },
                processors: "p".to_owned(),
                is_draining: true,
            }),
            b"\x07\x01\x07\0tcp:a:1\x07\0tls:a:2\x01\0p",
        ),
        (ToPrimary::Leave, b"\x08"),
        (ToPrimary::InUse { number: 3, in_use: vec![true, false] }, b"\x03\x03\0\0\0\0\0\0\0\x01\0"),
        (
            ToPrimary::Request(FollowerRequest::Fill { namespace: text("cc"), key: text("a") }.encode()),
            b"\x04\x02\0cc\x01\0a",
        ),
        (ToPrimary::Request(FollowerRequest::Persist { height: 6 }.encode()), b"\x05\x06\0\0\0\0\0\0\0"),
        (
            ToPrimary::Done { number: 3, height: 4, answer: Bytes::from_static(b"it is so") },
            b"\x06\x03\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0it is so",
        ),
    ]
}

fn changes() -> Bytes {
    let mut bytes = BytesMut::new();
    let mut changes = ChangeLog(&mut bytes);
    let pointer = Pointer::new(0x1000, 100, Incarnation::new(3));
    let name = |key| KeyName { namespace: "cc", key };
    changes.section(&Section { id: 4, address: 1 << 20, bytes: 1 << 20 }, b"where");
    changes.section_gone(1 << 20);
    changes.subtable(&Subtable { address: 0x2000, depth: 3, suffix: 5, incarnation: Incarnation::new(7) });
    changes.detached(name("a"), pointer);
    changes.evicted(name("b"), pointer);
    changes.forgotten(8);
    changes.savepoint_advanced(9);
    let written = |tx, place| DeltaVersion { version: Version { block: 10, tx }, location: place };
    let writes = [
        (name("a"), written(0, ValueLocation::Deleted)),
        (name("b"), written(1, ValueLocation::Remote(pointer, 100))),
        (name("c"), written(2, ValueLocation::Inline(Box::new(Bytes::from_static(b"value"))))),
        (name("d"), written(3, ValueLocation::Storage)),
    ];
    changes.block(10, writes.into_iter());
    bytes.freeze()
}

fn basis() -> JoinBasis {
    JoinBasis { seed: 1, base: 2, savepoint: 3, forgotten: 4, budget_bytes: 5 }
}

fn of_primary() -> Vec<ToFollower> {
    let candidate = EvictionCandidate { pointer: Pointer::new(0x1000, 100, Incarnation::new(3)), hash: KeyHash(11) };
    let candidate = candidate.into();
    let hello = HelloAnswer::accept(VersionRange::new(1, 2), 2);
    vec![
        ToFollower::Welcome { hello, basis: basis().encode() },
        ToFollower::CatchUp { changes: changes() },
        ToFollower::Update { sequence: 6, granted: 7, oldest: 8, notes_uses: true, changes: changes() },
        ToFollower::InUseQuery { number: 9, candidates: vec![candidate, candidate] },
        ToFollower::Work { number: 10, height: 11, item: Bytes::from_static(b"is it so?") },
    ]
}

/// Whether a message has these bytes; what follows the hello of a join of other versions is ignored.
fn is_encoding(message: &ToPrimary, bytes: &[u8]) -> bool {
    match message {
        ToPrimary::Join { .. } => bytes.starts_with(&message.encode()),
        _ => message.encode()[..] == *bytes,
    }
}

/// Every change of a message, up to the first malformed one.
fn read_all(mut changes: Bytes) -> Vec<StateChange> {
    std::iter::from_fn(|| StateChange::next(&mut changes).ok().flatten()).collect()
}

#[test]
fn messages_have_the_documented_bytes_and_are_read_again() {
    for (message, bytes) in of_reader() {
        assert_eq!(message.encode()[..], *bytes, "{message:?}");
        assert_eq!(ToPrimary::decode(Bytes::from_static(bytes)), Ok(message));
    }
    for message in of_primary() {
        assert_eq!(ToFollower::decode(message.encode()), Ok(message));
    }
    let work = of_primary().pop().expect("it is the last").encode();
    assert_eq!(work[..], *b"\x85\x0a\0\0\0\0\0\0\0\x0b\0\0\0\0\0\0\0is it so?");
    let gone = changes().slice(30..39);
    assert_eq!(gone[..], *b"\x02\0\0\x10\0\0\0\0\0");
    let read = read_all(changes());
    assert_eq!(read.len(), 8);
    let StateChange::Block { number: 10, writes } = &read[7] else { panic!("the block comes last") };
    let writes: Vec<BlockWrite<'_>> = writes.iter().collect();
    let keys: Vec<&str> = writes.iter().map(|write| write.name.key).collect();
    assert_eq!(keys, ["a", "b", "c", "d"]);
    assert!(matches!(writes[2].location, WriteLocation::Inline(value) if value == b"value"));
    assert!(matches!(&read[2], StateChange::Subtable(subtable) if subtable.suffix == 5 && subtable.depth == 3));
    let welcome = of_primary().remove(0).encode();
    let mut golden = b"\x81\x02\0\0\0\x01\0\0\0\x02\0\0\0".to_vec();
    (1..=5_u64).for_each(|number| golden.extend(number.to_le_bytes()));
    assert_eq!(welcome[..], golden);
    assert_eq!(JoinBasis::decode(welcome.slice(13..)), Ok(basis()));
    let hello = HelloAnswer::refuse(VersionRange::new(4, 9));
    let other = [&ToFollower::OtherVersions(hello).encode()[..], b"of version 4"].concat();
    assert_eq!(ToFollower::decode(other.into()), Ok(ToFollower::OtherVersions(hello)));
    let versions = VersionRange::new(4, 9);
    let other = [&ToPrimary::Join { versions }.encode()[..], b"of version 4"].concat();
    assert_eq!(ToPrimary::decode(other.into()), Ok(ToPrimary::Join { versions }));
    let fill = FollowerRequest::decode(Bytes::from_static(b"\x04\x02\0cc\x01\0a"));
    assert!(matches!(fill, Ok(FollowerRequest::Fill { namespace, key }) if (&*namespace, &*key) == ("cc", "a")));
    let persist = FollowerRequest::decode(Bytes::from_static(b"\x05\x06\0\0\0\0\0\0\0"));
    assert_eq!(persist, Ok(FollowerRequest::Persist { height: 6 }));
}

#[test]
fn whatever_arrives_is_a_message_or_an_error() {
    let mut random = 3u64;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random >> 33
    };
    let mut messages: Vec<Bytes> = of_primary().iter().map(ToFollower::encode).collect();
    messages.extend(of_reader().iter().map(|(message, _)| message.encode()));
    for round in 0..20_000 {
        let mut bytes = messages[round % messages.len()].to_vec();
        for _ in 0..next() % 4 {
            let at = next() as usize % bytes.len();
            bytes[at] = [0, 1, 0x7f, 0xff, next() as u8][next() as usize % 5];
        }
        bytes.truncate(next() as usize % (bytes.len() + 8));
        let bytes = Bytes::from(bytes);
        if let Ok(message) = ToPrimary::decode(bytes.clone()) {
            assert!(is_encoding(&message, &bytes), "a message has one encoding");
            if let ToPrimary::Request(request) = message {
                let again = FollowerRequest::decode(request).map_or(bytes.clone(), |request| request.encode());
                assert_eq!(again, bytes, "a request has one encoding");
            }
        }
        if let Ok(ToFollower::Update { changes, .. } | ToFollower::CatchUp { changes }) = ToFollower::decode(bytes) {
            read_all(changes);
        }
    }
}

#[test]
fn names_of_a_block_ascend_and_are_of_that_block() {
    let block = |names: [&str; 2], block| {
        let mut bytes = BytesMut::new();
        let written = |tx| DeltaVersion { version: Version { block, tx }, location: ValueLocation::Deleted };
        let writes = names.into_iter().zip([0, 1]).map(|(key, tx)| (KeyName { namespace: "cc", key }, written(tx)));
        ChangeLog(&mut bytes).block(10, writes);
        read_all(bytes.freeze()).len()
    };
    assert_eq!(block(["a", "b"], 10), 1);
    assert_eq!(block(["b", "a"], 10), 0);
    assert_eq!(block(["a", "a"], 10), 0);
    assert_eq!(block(["a", "b"], 9), 0);
}
