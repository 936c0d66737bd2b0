//! Fuzz harnesses for the messages and the log of the Raft engine; see [`base::fuzz`].

use base::fuzz::{FuzzTarget, InputShape, authenticated};
use base::{Bytes, BytesMut};
use raft_rs::eraftpb::{ConfChange, ConfChangeType, Entry, Message, MessageType, Snapshot};
use wire::Reader;

use super::codec;
use super::links;

/// The targets of this module.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "consensus-raft-messages", shape: InputShape::Bytes, run: messages, seeds: message_seeds },
    FuzzTarget { name: "consensus-raft-snapshots", shape: InputShape::Bytes, run: snapshots, seeds: snapshot_seeds },
    FuzzTarget { name: "consensus-raft-changes", shape: InputShape::Protobuf, run: changes, seeds: change_seeds },
    super::disk::fuzz::TARGET,
];

fn snapshot() -> Snapshot {
    let mut snapshot = Snapshot { data: Bytes::from_static(b"state"), ..Snapshot::default() };
    let metadata = snapshot.mut_metadata();
    (metadata.index, metadata.term) = (9, 3);
    metadata.mut_conf_state().voters = vec![1, 2, 3];
    snapshot
}

fn message_seeds() -> Vec<Vec<u8>> {
    let entry = |index| Entry { index, term: 4, data: Bytes::from_static(b"entry"), ..Entry::default() };
    let base = Message { to: 1, from: 2, term: 4, index: 9, log_term: 3, commit: 8, ..Message::default() };
    let append =
        Message { msg_type: MessageType::MsgAppend, entries: vec![entry(10), entry(11)].into(), ..base.clone() };
    let answer = Message { msg_type: MessageType::MsgAppendResponse, reject: true, reject_hint: 5, ..base.clone() };
    let vote = Message { msg_type: MessageType::MsgRequestVote, ..base.clone() };
    let mut whole = Message { msg_type: MessageType::MsgSnapshot, ..base };
    whole.set_snapshot(snapshot());
    vec![links::frame(&[append, answer]).to_vec(), links::frame(&[vote]).to_vec(), links::frame(&[whole]).to_vec()]
}

/// A message that decodes encodes to bytes that decode to the same message.
fn messages(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    if let Ok(found) = authenticated(input, || links::messages(bytes)) {
        assert!(found.iter().all(codec::travels));
        assert_eq!(links::messages(links::frame(&found)), Ok(found));
    }
}

fn snapshot_seeds() -> Vec<Vec<u8>> {
    let mut bytes = BytesMut::new();
    codec::put_snapshot(&mut bytes, &snapshot());
    vec![bytes.to_vec()]
}

fn snapshots(input: &[u8]) {
    let mut reader = Reader::new(Bytes::copy_from_slice(input));
    if let Ok(found) = authenticated(input, || codec::snapshot(&mut reader)) {
        let mut again = BytesMut::new();
        codec::put_snapshot(&mut again, &found);
        assert_eq!(again[..], input[..reader.at()]);
    }
}

fn change_seeds() -> Vec<Vec<u8>> {
    let mut change = ConfChange { id: 7, node_id: 3, ..ConfChange::default() };
    change.context = Bytes::from_static(b"orderer2:7050");
    change.set_change_type(ConfChangeType::AddLearnerNode);
    vec![protobuf::Message::write_to_bytes(&change).expect("it is small")]
}

/// A change that our decoder reads, the crate's library reads with the same content.
fn changes(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    if let Ok(change) = authenticated(input, || codec::change(&bytes)) {
        let theirs = <ConfChange as protobuf::Message>::parse_from_bytes(input);
        assert_eq!(theirs.expect("accepted by us"), change);
    }
}
