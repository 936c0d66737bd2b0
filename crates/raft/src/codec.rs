//! The encoding of messages between nodes and of records on disk: `docs/formats/raft.md`. Neither uses the `raft`
//! crate's own protobuf encoding. So entries are decoded once, as slices of the bytes that arrived, and this decoder
//! alone checks the bytes that a peer sends.
//!
//! ```text
//! entry     index u64 | term u64 | data u32 | kind u8 | 0 u8 u8 u8 | data
//! message   kind u8 | reject u8 | 0 u16 | entries u32 | to, from, term, log term, index, commit, commit term,
//!           request snapshot, reject hint, priority: u64 each | context u32 | snapshot u32 (1: there is one) |
//!           context | entries | snapshot
//! snapshot  index u64 | term u64 | voters u32 | learners u32 | data u64 | voters, learners: u64 each | data
//! ```
//!
//! Invariant: any bytes decode into a message that some node could have sent in some state, or into an error.
//! [`super::engine`] then checks whether the message can be meant for this node in its current state.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::bytes::BufMut as _;
use base::untrusted::AllocationBudget;
use base::{Bytes, BytesMut};
use raft_rs::eraftpb::{
    ConfChange, ConfChangeType, ConfState, Entry, EntryType, Message, MessageType, Snapshot, SnapshotMetadata,
};
use wire::Reader;

use super::fault::{Mutant, mutant};
use crate::Error;

/// Bytes of an entry before its data.
pub(super) const ENTRY_HEAD_BYTES: usize = 24;
/// Entries of one message or record.
pub(super) const ENTRIES_MAX: usize = 1 << 20;
/// Members of a configuration.
pub(super) const MEMBERS_MAX: usize = 64;
/// Indexes and terms are below this: far beyond any log, and so far below the largest number that the crate can count on.
const NUMBER_MAX: u64 = 1 << 62;

pub(super) const TOO_SMALL: Error = Error::Corrupt("a Raft message has more entries than its size allows");

/// A number of up to 64 bits in seven bits a byte.
fn varint(from: &mut Reader<Bytes>) -> Result<u64, Error> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = from.u8()?;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            break;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(Error::Corrupt("a number of a Raft message has more than 64 bits"))
}

pub(super) fn put_entry(into: &mut BytesMut, entry: &Entry) {
    into.put_u64_le(entry.index);
    into.put_u64_le(entry.term);
    into.put_u32_le(u32::try_from(entry.data.len()).expect("an entry's size was checked when it was proposed"));
    into.put_u32_le(match entry.entry_type {
        EntryType::EntryNormal => 0,
        EntryType::EntryConfChange => 1,
        EntryType::EntryConfChangeV2 => 2,
    });
    into.put_slice(&entry.data);
}

pub(super) fn entry(from: &mut Reader<Bytes>) -> Result<Entry, Error> {
    let (index, term) = (from.u64()?, from.u64()?);
    let length = from.u32()? as usize;
    let entry_type = match from.u32()? {
        0 => EntryType::EntryNormal,
        1 => EntryType::EntryConfChange,
        2 => EntryType::EntryConfChangeV2,
        _ => return Err(Error::Corrupt("an entry of the Raft log is of an unknown kind")),
    };
    let data = from.bytes(length)?;
    Ok(Entry { entry_type, term, index, data, ..Entry::default() })
}

/// Decodes a change of members from the data of its entry: the only bytes of a peer that are in the crate's own encoding,
/// protobuf. The crate's protobuf library does not read them, since it follows groups within groups until the stack overflows;
/// this decoder rejects a field that such a change does not have.
pub(super) fn change(data: &Bytes) -> Result<ConfChange, Error> {
    const NONE: Error = Error::Corrupt("a change of members of a Raft group cannot be read");
    let mut from = Reader::new(data.clone());
    let mut change = ConfChange::default();
    while !from.is_empty() {
        match from.u8()? {
            0x08 => change.id = varint(&mut from)?,
            0x10 => change.set_change_type(match varint(&mut from)? {
                0 => ConfChangeType::AddNode,
                1 => ConfChangeType::RemoveNode,
                2 => ConfChangeType::AddLearnerNode,
                _ => return Err(NONE),
            }),
            0x18 => change.node_id = varint(&mut from)?,
            0x22 => {
                let length = varint(&mut from)?;
                change.context = from.bytes_u64(length)?;
            }
            _ => return Err(NONE),
        }
    }
    Ok(change)
}

pub(super) fn put_snapshot(into: &mut BytesMut, snapshot: &Snapshot) {
    let metadata = snapshot.get_metadata();
    let state = metadata.get_conf_state();
    into.put_u64_le(metadata.index);
    into.put_u64_le(metadata.term);
    into.put_u32_le(state.voters.len() as u32);
    into.put_u32_le(state.learners.len() as u32);
    into.put_u64_le(snapshot.data.len() as u64);
    state.voters.iter().chain(&state.learners).for_each(|id| into.put_u64_le(*id));
    into.put_slice(&snapshot.data);
}

pub(super) fn snapshot(from: &mut Reader<Bytes>) -> Result<Snapshot, Error> {
    let (index, term) = (from.u64()?, from.u64()?);
    let (voters, learners) = (from.count(8, MEMBERS_MAX)?, from.count(8, MEMBERS_MAX)?);
    let length = from.u64()?;
    let mut state = ConfState::default();
    for _ in 0..voters {
        state.voters.push(from.u64()?);
    }
    for _ in 0..learners {
        state.learners.push(from.u64()?);
    }
    let mut snapshot = Snapshot { data: from.bytes_u64(length)?, ..Snapshot::default() };
    let metadata = snapshot.mut_metadata();
    metadata.index = index;
    metadata.term = term;
    metadata.set_conf_state(state);
    Ok(snapshot)
}

/// The kinds of messages that nodes send one another, and last one that never leaves a node.
pub(super) const KINDS: [MessageType; 10] = [
    MessageType::MsgAppend,
    MessageType::MsgAppendResponse,
    MessageType::MsgRequestVote,
    MessageType::MsgRequestVoteResponse,
    MessageType::MsgSnapshot,
    MessageType::MsgHeartbeat,
    MessageType::MsgHeartbeatResponse,
    MessageType::MsgRequestPreVote,
    MessageType::MsgRequestPreVoteResponse,
    MessageType::MsgUnreachable,
];

/// Whether a message is of a kind that is sent.
pub(super) fn travels(message: &Message) -> bool {
    message.msg_type != MessageType::MsgUnreachable && KINDS.contains(&message.msg_type)
}

/// Appends a message; it is of a kind that [travels].
pub(super) fn put_message(into: &mut BytesMut, message: &Message) {
    debug_assert!(travels(message));
    into.put_u8(message.msg_type as u8);
    into.put_u8(message.reject.into());
    into.put_u16_le(0);
    into.put_u32_le(message.entries.len() as u32);
    let words = [
        message.to,
        message.from,
        message.term,
        message.log_term,
        message.index,
        message.commit,
        message.commit_term,
        message.request_snapshot,
        message.reject_hint,
        message.priority as u64,
    ];
    words.into_iter().for_each(|word| into.put_u64_le(word));
    let has_snapshot = !message.get_snapshot().is_empty();
    into.put_u32_le(message.context.len() as u32);
    into.put_u32_le(has_snapshot.into());
    into.put_slice(&message.context);
    message.entries.iter().for_each(|entry| put_entry(into, entry));
    if has_snapshot {
        put_snapshot(into, message.get_snapshot());
    }
}

/// About the number of bytes that a message takes.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
pub(super) fn message_bytes(message: &Message) -> usize {
    let entries: usize = message.entries.iter().map(|entry| ENTRY_HEAD_BYTES + entry.data.len()).sum();
    96 + message.context.len() + entries + message.get_snapshot().data.len()
}

/// Reads a message, within the allowance of all that arrived with it.
pub(super) fn message(from: &mut Reader<Bytes>, allowance: &mut AllocationBudget) -> Result<Message, Error> {
    let kind = from.u8()?;
    let msg_type = KINDS.into_iter().find(|known| *known as u8 == kind);
    let mut message = Message {
        msg_type: msg_type.ok_or(Error::Corrupt("a Raft message is of an unknown kind"))?,
        reject: from.u8()? != 0,
        ..Message::default()
    };
    if !travels(&message) || from.u16()? != 0 {
        return Err(Error::Corrupt("a Raft message is of a kind that nodes do not send"));
    }
    let entries = from.count(ENTRY_HEAD_BYTES, ENTRIES_MAX)?;
    message.to = from.u64()?;
    message.from = from.u64()?;
    message.term = from.u64()?;
    message.log_term = from.u64()?;
    message.index = from.u64()?;
    message.commit = from.u64()?;
    message.commit_term = from.u64()?;
    message.request_snapshot = from.u64()?;
    message.reject_hint = from.u64()?;
    message.priority = from.u64()? as i64;
    let context = from.u32()? as usize;
    let has_snapshot = from.u32()? != 0;
    message.context = from.bytes(context)?;
    let (mut index, mut term) = (message.index, message.log_term);
    // An entry has few bytes in a message, and many in the crate's own representation.
    message.entries = Vec::with_capacity(allowance.take(entries, size_of::<Entry>()).ok_or(TOO_SMALL)?).into();
    for _ in 0..entries {
        let entry = entry(from)?;
        // The crate trusts the indexes and terms of entries.
        index = index.wrapping_add(1);
        if entry.index != index || entry.term < term || entry.term == 0 || entry.term > message.term {
            return Err(Error::Corrupt("the entries of a Raft message do not follow one another"));
        }
        term = entry.term;
        message.entries.push(entry);
    }
    if has_snapshot {
        message.set_snapshot(snapshot(from)?);
    }
    match check(&message) {
        Err(error) if !mutant(Mutant::TakeAnything) => Err(error),
        _ => Ok(message),
    }
}

/// Rejects messages that no node ever sends, and those that would violate the crate's assertions.
fn check(message: &Message) -> Result<(), Error> {
    let kind = message.msg_type;
    let point = message.get_snapshot().get_metadata();
    let numbers =
        [message.term, message.log_term, message.index, message.commit, message.commit_term, message.reject_hint];
    let problem = if message.from == 0 || message.from == message.to {
        "a Raft message has no sender, or its receiver as sender"
    } else if message.term == 0 {
        // The crate takes it for a message of its own node.
        "a Raft message has no term"
    } else if numbers.into_iter().chain([point.index]).any(|number| number >= NUMBER_MAX)
        || message.entries.last().is_some_and(|last| last.index >= NUMBER_MAX)
    {
        "a Raft message has an index or a term that is too large"
    } else if message.priority != 0 || message.request_snapshot != 0 {
        "a Raft message has a priority or a snapshot request, which no node sends"
    } else if !message.entries.is_empty() && kind != MessageType::MsgAppend {
        "a Raft message of another kind has entries"
    } else if message.has_snapshot() != (kind == MessageType::MsgSnapshot) {
        "a Raft message of another kind has a snapshot, or one of that kind has none"
    } else if kind == MessageType::MsgAppend && message.log_term == 0 && message.index != 0 {
        // The crate reads term 0 as the term of every index that its log does not have.
        "a Raft message has entries that follow one without a term"
    } else if kind == MessageType::MsgAppend && message.log_term > message.term {
        "a Raft message has entries that follow one of a later term"
    } else if kind == MessageType::MsgAppendResponse && message.reject && message.reject_hint > message.index {
        "a Raft message rejects entries, and hints at later ones"
    } else if kind == MessageType::MsgSnapshot && !is_point(point, message.term) {
        "a snapshot of a Raft log has an impossible index, term or set of members"
    } else {
        return Ok(());
    };
    Err(Error::Corrupt(problem))
}

/// Whether a snapshot has an index and a term that a log may have, and members that a group may have.
fn is_point(point: &SnapshotMetadata, term_max: u64) -> bool {
    let state = point.get_conf_state();
    let mut ids: Vec<u64> = state.voters.iter().chain(&state.learners).copied().collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    ids.len() == count
        && ids.first().is_some_and(|first| *first != 0)
        && !state.voters.is_empty()
        && point.index != 0
        && (1..=term_max).contains(&point.term)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Message {
        let mut message = Message {
            msg_type: MessageType::MsgAppend,
            to: 2,
            from: 1,
            term: 9,
            log_term: 8,
            index: 40,
            commit: 39,
            reject_hint: 7,
            context: Bytes::from_static(b"round"),
            ..Message::default()
        };
        for index in 41..44 {
            let data = Bytes::from(vec![index as u8; index as usize]);
            let entry_type = [EntryType::EntryNormal, EntryType::EntryConfChange][index as usize % 2];
            message.entries.push(Entry { entry_type, term: 9, index, data, ..Entry::default() });
        }
        message
    }

    fn example_of_a_snapshot() -> Message {
        let mut message = Message { msg_type: MessageType::MsgSnapshot, to: 2, from: 1, term: 9, ..Message::default() };
        let mut state = ConfState::default();
        state.voters.extend([1, 2, 3]);
        state.learners.push(4);
        let mut snapshot = Snapshot { data: Bytes::from_static(b"all of it"), ..Snapshot::default() };
        snapshot.mut_metadata().set_conf_state(state);
        snapshot.mut_metadata().index = 40;
        snapshot.mut_metadata().term = 8;
        message.set_snapshot(snapshot);
        message
    }

    fn whole(bytes: Bytes) -> Result<Message, Error> {
        let mut allowance = AllocationBudget::authenticated(bytes.len());
        message(&mut Reader::new(bytes), &mut allowance)
    }

    fn encoded(message: &Message) -> Bytes {
        let mut bytes = BytesMut::new();
        put_message(&mut bytes, message);
        bytes.freeze()
    }

    /// A compromised leader appends a change of members that is nothing but starts of groups, each within the one before. Read
    /// by protobuf 2.28, it overflows the stack, and ends the process of every orderer that commits it, at each start again.
    #[test]
    fn a_change_of_members_that_nests_groups_is_refused() {
        assert!(change(&vec![0x0b; 4 << 20].into()).is_err());
        assert!(change(&Bytes::from_static(&[0x2b, 0x2c])).is_err(), "an empty group");
        assert!(change(&Bytes::from_static(&[0x22, 5, b'a'])).is_err(), "a context that is cut off");
        assert!(change(&Bytes::from_static(&[0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2])).is_err());
    }

    #[test]
    fn a_change_of_members_is_read_as_the_crate_writes_it() {
        for kind in [ConfChangeType::AddNode, ConfChangeType::RemoveNode, ConfChangeType::AddLearnerNode] {
            let mut written = ConfChange { id: 7, node_id: u64::MAX, ..ConfChange::default() };
            written.set_change_type(kind);
            written.context = Bytes::from_static(b"orderer2:7050");
            let bytes = protobuf::Message::write_to_bytes(&written).expect("it is small");
            assert_eq!(change(&bytes.into()), Ok(written));
        }
        assert_eq!(change(&Bytes::new()), Ok(ConfChange::default()));
    }

    #[test]
    fn a_message_comes_back_as_it_was() {
        for example in [example(), example_of_a_snapshot()] {
            let mut reader = Reader::new(encoded(&example));
            let mut allowance = AllocationBudget::authenticated(reader.left());
            assert_eq!(message(&mut reader, &mut allowance).expect("it is whole"), example);
            reader.end().expect("nothing is left");
        }
    }

    /// A follower took an append at an index behind the end of its log, after an entry of term 0, for one that follows its log,
    /// and ended with a panic of the crate.
    #[test]
    fn what_no_node_sends_is_refused() {
        let append = |change: &dyn Fn(&mut Message)| {
            let mut message = example();
            change(&mut message);
            message
        };
        let snapshot = |change: &dyn Fn(&mut Snapshot)| {
            let mut message = example_of_a_snapshot();
            change(message.mut_snapshot());
            message
        };
        let voters = |voters: &[u64]| {
            snapshot(&|snapshot| {
                let state = snapshot.mut_metadata().mut_conf_state();
                state.voters = voters.to_vec();
            })
        };
        for (what, bad) in [
            ("a term of 0 at an index", append(&|message| message.log_term = 0)),
            (
                "no term",
                append(&|message| (message.term, message.log_term, message.entries) = (0, 0, Vec::new().into())),
            ),
            ("of its receiver", append(&|message| message.from = 2)),
            ("of nobody", append(&|message| message.from = 0)),
            ("an end of all indexes", append(&|message| message.commit = u64::MAX)),
            ("an end of all terms", append(&|message| message.term = u64::MAX)),
            ("entries of an earlier term", append(&|message| message.entries[0].term = 7)),
            ("entries of a later term", append(&|message| message.entries[2].term = 10)),
            ("a gap", append(&|message| message.entries[1].index = 50)),
            ("a priority", append(&|message| message.priority = -1)),
            ("entries in a heartbeat", append(&|message| message.msg_type = MessageType::MsgHeartbeat)),
            (
                "no snapshot",
                append(&|message| (message.msg_type, message.entries) = (MessageType::MsgSnapshot, Vec::new().into())),
            ),
            ("a snapshot without a term", snapshot(&|snapshot| snapshot.mut_metadata().term = 0)),
            ("a snapshot of a later term", snapshot(&|snapshot| snapshot.mut_metadata().term = 10)),
            ("a member twice", voters(&[1, 2, 2])),
            ("a voter that learns", voters(&[1, 2, 4])),
            ("a member without a number", voters(&[0, 1])),
            ("no voters", voters(&[])),
        ] {
            assert!(whole(encoded(&bad)).is_err(), "{what}");
        }
    }

    #[test]
    fn a_message_that_is_cut_off_or_changed_is_an_error_and_no_panic() {
        for whole in [example(), example_of_a_snapshot()].iter().map(encoded) {
            for length in 0..whole.len() {
                assert!(self::whole(whole.slice(..length)).is_err(), "cut off at {length}");
            }
            for at in 0..whole.len() {
                for mask in [0x01, 0x80, 0xff] {
                    let mut changed = BytesMut::from(&whole[..]);
                    changed[at] ^= mask;
                    // Any outcome but a panic, and never more entries than there are bytes for.
                    let _ = self::whole(changed.freeze());
                }
            }
        }
    }
}
