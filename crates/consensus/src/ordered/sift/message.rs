//! What a leader and the keeper of a processor's journal say to each other, in calls over a link: `docs/formats/ordered.md`.
//!
//! ```text
//!  request   kind u8 | 0 × 7 | term u64 | holder u64 | by kind:
//!    1 look
//!    2 fence     leader u64
//!    3 marks     from u64 | count u64
//!    4 read      from u64 | bytes u64
//!    5 cut       height u64
//!    6 adopt     height u64
//!    7 align     position u64 | 0 u64   | count u64 | count × length u64 | the entries' bytes
//!    8 append    position u64 | safe u64 | count u64 | count × length u64 | the entries' bytes
//!  answer    kind u8 | 0 × 7 | by kind:
//!    1 is        promised u64 | adopted u64 | height u64
//!    3 marks     a mark of 16 bytes for each entry
//!    4 entries   count u64 | count × length u64 | the entries' bytes
//!    8 holds     height u64 | durable u64
//! ```
//!
//! Invariant: whatever arrives decodes into a message or an error; every message has one encoding.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use base::rt::net::Parts;

use crate::{Error, Term};

/// Marks that are asked for at once.
pub(super) const MARKS_MAX: u64 = 1024;
/// Entries of one message.
pub(super) const ENTRIES_MAX: usize = 64;

/// A checksum of an entry, by which two journals are compared.
pub(super) type Mark = u128;

/// A leader, and the time of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Reign {
    pub term: Term,
    /// Drawn at random: two leaders of one term would have two.
    pub holder: u64,
}

/// What is asked of a keeper.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Command {
    /// How far it is. Promises nothing.
    Look,
    /// Promise to take nothing of any earlier reign.
    Fence { leader: u64 },
    /// Marks of entries.
    Marks { from: u64, count: u64 },
    /// Entries, as many as have so many bytes together, one at least.
    Read { from: u64, bytes: u64 },
    /// Give up the entries from here on.
    Cut { height: u64 },
    /// The journal is this reign's now, which has so many entries.
    Adopt { height: u64 },
    /// Entries of what is to be adopted.
    Align { position: u64, entries: Vec<Bytes> },
    /// Entries of this reign; those below `safe` may be shown.
    Append { position: u64, safe: u64, entries: Vec<Bytes> },
}

/// What a keeper answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    Is { promised: Term, adopted: Term, height: u64 },
    Marks(Vec<Mark>),
    Entries(Vec<Bytes>),
    Holds { height: u64, durable: u64 },
}

fn put_list(head: &mut BytesMut, entries: &[Bytes]) {
    head.put_u64_le(entries.len() as u64);
    entries.iter().for_each(|entry| head.put_u64_le(entry.len() as u64));
}

#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
fn body(head: BytesMut, entries: Vec<Bytes>) -> Parts {
    let mut parts = Vec::with_capacity(1 + entries.len());
    parts.push(head.freeze());
    parts.extend(entries);
    parts.into()
}

impl Command {
    /// The entries that it brings.
    pub fn entries(&self) -> &[Bytes] {
        match self {
            Command::Align { entries, .. } | Command::Append { entries, .. } => entries,
            _ => &[],
        }
    }

    pub fn encode(self, reign: Reign) -> Parts {
        let mut head = BytesMut::with_capacity(64);
        let kind = match &self {
            Command::Look => 1,
            Command::Fence { .. } => 2,
            Command::Marks { .. } => 3,
            Command::Read { .. } => 4,
            Command::Cut { .. } => 5,
            Command::Adopt { .. } => 6,
            Command::Align { .. } => 7,
            Command::Append { .. } => 8u64,
        };
        head.put_u64_le(kind);
        head.put_u64_le(reign.term.0);
        head.put_u64_le(reign.holder);
        match self {
            Command::Look => {}
            Command::Fence { leader: one } | Command::Cut { height: one } | Command::Adopt { height: one } => {
                head.put_u64_le(one);
            }
            Command::Marks { from, count: more } | Command::Read { from, bytes: more } => {
                head.put_u64_le(from);
                head.put_u64_le(more);
            }
            Command::Align { position, entries } => {
                head.put_u64_le(position);
                head.put_u64_le(0);
                put_list(&mut head, &entries);
                return body(head, entries);
            }
            Command::Append { position, safe, entries } => {
                head.put_u64_le(position);
                head.put_u64_le(safe);
                put_list(&mut head, &entries);
                return body(head, entries);
            }
        }
        head.freeze().into()
    }

    pub fn decode(mut bytes: Bytes) -> Result<(Reign, Command), Error> {
        let kind = word(&mut bytes)?;
        let reign = Reign { term: Term(word(&mut bytes)?), holder: word(&mut bytes)? };
        let command = match kind {
            1 => Command::Look,
            2 => Command::Fence { leader: word(&mut bytes)? },
            3 => Command::Marks { from: word(&mut bytes)?, count: word(&mut bytes)? },
            4 => Command::Read { from: word(&mut bytes)?, bytes: word(&mut bytes)? },
            5 => Command::Cut { height: word(&mut bytes)? },
            6 => Command::Adopt { height: word(&mut bytes)? },
            7 => {
                let position = word(&mut bytes)?;
                if word(&mut bytes)? != 0 {
                    return Err(Error::Corrupt("a message with reserved bytes set"));
                }
                Command::Align { position, entries: list(&mut bytes)? }
            }
            8 => Command::Append { position: word(&mut bytes)?, safe: word(&mut bytes)?, entries: list(&mut bytes)? },
            _ => return Err(Error::Corrupt("an unknown message")),
        };
        match bytes.is_empty() {
            true => Ok((reign, command)),
            false => Err(Error::Corrupt("a message of another length")),
        }
    }
}

impl Answer {
    pub fn encode(self) -> Parts {
        let mut head = BytesMut::with_capacity(64);
        match self {
            Answer::Is { promised, adopted, height } => {
                [1, promised.0, adopted.0, height].into_iter().for_each(|word| head.put_u64_le(word));
            }
            Answer::Marks(marks) => {
                head.put_u64_le(3);
                marks.into_iter().for_each(|mark| head.put_u128_le(mark));
            }
            Answer::Entries(entries) => {
                head.put_u64_le(4);
                put_list(&mut head, &entries);
                return body(head, entries);
            }
            Answer::Holds { height, durable } => {
                [8, height, durable].into_iter().for_each(|word| head.put_u64_le(word));
            }
        }
        head.freeze().into()
    }

    pub fn decode(mut bytes: Bytes) -> Result<Answer, Error> {
        let answer = match word(&mut bytes)? {
            1 => Answer::Is {
                promised: Term(word(&mut bytes)?),
                adopted: Term(word(&mut bytes)?),
                height: word(&mut bytes)?,
            },
            3 => {
                let (marks, rest) = bytes.as_chunks::<16>();
                if !rest.is_empty() || marks.len() as u64 > MARKS_MAX {
                    return Err(Error::Corrupt("a message of another length"));
                }
                return Ok(Answer::Marks(marks.iter().map(|mark| Mark::from_le_bytes(*mark)).collect()));
            }
            4 => Answer::Entries(list(&mut bytes)?),
            8 => Answer::Holds { height: word(&mut bytes)?, durable: word(&mut bytes)? },
            _ => return Err(Error::Corrupt("an unknown message")),
        };
        match bytes.is_empty() {
            true => Ok(answer),
            false => Err(Error::Corrupt("a message of another length")),
        }
    }
}

fn word(bytes: &mut Bytes) -> Result<u64, Error> {
    match bytes.len() < 8 {
        true => Err(Error::Corrupt("a message that ends too early")),
        false => Ok(bytes.get_u64_le()),
    }
}

fn list(bytes: &mut Bytes) -> Result<Vec<Bytes>, Error> {
    let count = word(bytes)?;
    if count > ENTRIES_MAX as u64 {
        return Err(Error::Corrupt("more entries than a message has"));
    }
    let lengths = (0..count).map(|_| word(bytes)).collect::<Result<Vec<u64>, Error>>()?;
    let take = |length: u64| match usize::try_from(length) {
        Ok(length) if length <= bytes.len() => Ok(bytes.split_to(length)),
        _ => Err(Error::Corrupt("an entry that ends too early")),
    };
    lengths.into_iter().map(take).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const REIGN: Reign = Reign { term: Term(3), holder: 9 };

    #[test]
    fn messages_come_back() {
        let entries = vec![Bytes::from_static(b"one"), Bytes::new(), Bytes::from_static(b"three")];
        for command in [
            Command::Look,
            Command::Fence { leader: 2 },
            Command::Marks { from: 4, count: 5 },
            Command::Read { from: 6, bytes: 7 },
            Command::Cut { height: 8 },
            Command::Adopt { height: 9 },
            Command::Align { position: 10, entries: entries.clone() },
            Command::Append { position: 11, safe: 10, entries: entries.clone() },
        ] {
            let bytes = command.clone().encode(REIGN).concat();
            assert_eq!(Command::decode(bytes), Ok((REIGN, command)));
        }
        for answer in [
            Answer::Is { promised: Term(1), adopted: Term(2), height: 3 },
            Answer::Marks(vec![1, Mark::MAX]),
            Answer::Entries(entries),
            Answer::Holds { height: 4, durable: 3 },
        ] {
            assert_eq!(Answer::decode(answer.clone().encode().concat()), Ok(answer));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_that_encodes_to_them_or_refused(bytes in proptest::collection::vec(0u8..9, 0..80)) {
            let bytes = Bytes::from(bytes);
            if let Ok((reign, command)) = Command::decode(bytes.clone()) {
                prop_assert_eq!(command.encode(reign).concat(), bytes.clone());
            }
            if let Ok(answer) = Answer::decode(bytes.clone()) {
                prop_assert_eq!(answer.encode().concat(), bytes);
            }
        }
    }
}
