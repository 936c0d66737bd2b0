//! What is sent between nodes and written to disk, in bytes: `docs/formats/raft.md`. The crate's own protobuf is not used on
//! either way, so that entries are neither copied nor parsed twice, and what a peer sends is checked by our decoder alone.
//!
//! ```text
//! entry     index u64 | term u64 | data u32 | kind u8 | 0 u8 u8 u8 | data
//! message   kind u8 | reject u8 | 0 u16 | entries u32 | to, from, term, log term, index, commit, commit term,
//!           request snapshot, reject hint, priority: u64 each | context u32 | snapshot u32 (1: there is one) |
//!           context | entries | snapshot
//! snapshot  index u64 | term u64 | voters u32 | learners u32 | data u64 | voters, learners: u64 each | data
//! ```
//!
//! Invariant: whatever the bytes, they decode into a message that some node could have sent, or into an error.

use base::bytes::{Buf as _, BufMut as _};
use base::{Bytes, BytesMut};
use raft::eraftpb::{ConfState, Entry, EntryType, Message, MessageType, Snapshot};

use crate::Error;

/// Bytes of an entry before its data.
pub(super) const ENTRY_HEAD_BYTES: usize = 24;
/// Entries of one message or record.
pub(super) const ENTRIES_MAX: usize = 1 << 20;
/// Members of a configuration.
pub(super) const MEMBERS_MAX: usize = 64;

/// Bytes that are taken off from the front, or an error where there are too few.
pub(super) struct Reader(pub Bytes);

const SHORT: Error = Error::Corrupt("bytes of the Raft log or of a message end too soon");

impl Reader {
    pub fn u8(&mut self) -> Result<u8, Error> {
        self.0.try_get_u8().map_err(|_| SHORT)
    }

    pub fn u16(&mut self) -> Result<u16, Error> {
        self.0.try_get_u16_le().map_err(|_| SHORT)
    }

    pub fn u32(&mut self) -> Result<u32, Error> {
        self.0.try_get_u32_le().map_err(|_| SHORT)
    }

    pub fn u64(&mut self) -> Result<u64, Error> {
        self.0.try_get_u64_le().map_err(|_| SHORT)
    }

    pub fn bytes(&mut self, length: usize) -> Result<Bytes, Error> {
        if self.0.len() < length {
            return Err(SHORT);
        }
        Ok(self.0.split_to(length))
    }

    /// A count that is not beyond its bound.
    pub fn count(&mut self, max: usize) -> Result<usize, Error> {
        let count = self.u32()? as usize;
        if count > max {
            return Err(Error::Corrupt("a count of the Raft log or of a message is beyond its bound"));
        }
        Ok(count)
    }

    pub fn end(&self) -> Result<(), Error> {
        if self.0.is_empty() { Ok(()) } else { Err(Error::Corrupt("bytes behind the end of a Raft message")) }
    }
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

pub(super) fn entry(from: &mut Reader) -> Result<Entry, Error> {
    let (index, term) = (from.u64()?, from.u64()?);
    let length = from.u32()? as usize;
    let entry_type = match from.u32()? {
        0 => EntryType::EntryNormal,
        1 => EntryType::EntryConfChange,
        2 => EntryType::EntryConfChangeV2,
        _ => return Err(Error::Corrupt("an entry of the Raft log is of no kind that is known")),
    };
    let data = from.bytes(length)?;
    Ok(Entry { entry_type, term, index, data, ..Entry::default() })
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

pub(super) fn snapshot(from: &mut Reader) -> Result<Snapshot, Error> {
    let (index, term) = (from.u64()?, from.u64()?);
    let (voters, learners) = (from.count(MEMBERS_MAX)?, from.count(MEMBERS_MAX)?);
    let length = usize::try_from(from.u64()?).map_err(|_| SHORT)?;
    let mut state = ConfState::default();
    for _ in 0..voters {
        state.voters.push(from.u64()?);
    }
    for _ in 0..learners {
        state.learners.push(from.u64()?);
    }
    let mut snapshot = Snapshot { data: from.bytes(length)?, ..Snapshot::default() };
    let metadata = snapshot.mut_metadata();
    metadata.index = index;
    metadata.term = term;
    metadata.set_conf_state(state);
    Ok(snapshot)
}

/// Messages that nodes send one another. The rest of the crate's kinds never leaves a node.
const KINDS: [MessageType; 10] = [
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

/// Whether a message is of a kind that travels.
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

/// Bytes that a message takes, about.
pub(super) fn message_bytes(message: &Message) -> usize {
    let entries: usize = message.entries.iter().map(|entry| ENTRY_HEAD_BYTES + entry.data.len()).sum();
    96 + message.context.len() + entries + message.get_snapshot().data.len()
}

pub(super) fn message(from: &mut Reader) -> Result<Message, Error> {
    let kind = from.u8()?;
    let msg_type = KINDS.into_iter().find(|known| *known as u8 == kind);
    let mut message = Message {
        msg_type: msg_type.ok_or(Error::Corrupt("a Raft message is of no kind that is known"))?,
        reject: from.u8()? != 0,
        ..Message::default()
    };
    if !travels(&message) || from.u16()? != 0 {
        return Err(Error::Corrupt("a Raft message is of no kind that travels"));
    }
    let entries = from.count(ENTRIES_MAX)?;
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
    let mut index = message.index;
    for _ in 0..entries {
        let entry = entry(from)?;
        // The crate takes entries for what they say they are.
        index = index.wrapping_add(1);
        if entry.index != index || entry.term > message.term {
            return Err(Error::Corrupt("the entries of a Raft message do not follow one another"));
        }
        message.entries.push(entry);
    }
    if has_snapshot {
        message.set_snapshot(snapshot(from)?);
    }
    Ok(message)
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
            priority: -3,
            context: Bytes::from_static(b"round"),
            ..Message::default()
        };
        for index in 41..44 {
            let data = Bytes::from(vec![index as u8; index as usize]);
            let entry_type = [EntryType::EntryNormal, EntryType::EntryConfChange][index as usize % 2];
            message.entries.push(Entry { entry_type, term: 9, index, data, ..Entry::default() });
        }
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

    #[test]
    fn a_message_comes_back_as_it_was() {
        let mut bytes = BytesMut::new();
        put_message(&mut bytes, &example());
        let mut reader = Reader(bytes.freeze());
        assert_eq!(message(&mut reader).expect("it is whole"), example());
        reader.end().expect("nothing is left");
    }

    #[test]
    fn a_message_that_is_cut_off_or_changed_is_an_error_and_no_panic() {
        let mut whole = BytesMut::new();
        put_message(&mut whole, &example());
        let whole = whole.freeze();
        for length in 0..whole.len() {
            assert!(message(&mut Reader(whole.slice(..length))).is_err(), "cut off at {length}");
        }
        for at in 0..whole.len() {
            for mask in [0x01, 0x80, 0xff] {
                let mut changed = BytesMut::from(&whole[..]);
                changed[at] ^= mask;
                // Any outcome but a panic, and never more than there is.
                let _ = message(&mut Reader(changed.freeze()));
            }
        }
    }
}
