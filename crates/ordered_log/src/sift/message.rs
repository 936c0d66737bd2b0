//! The messages between a leader and the acceptor of a CPU node's log store, in calls over a link: `docs/formats/ordered.md`.
//!
//! ```text
//!  request   kind u8 | 0 × 7 | term u64 | nonce u64 | by kind:
//!    1 get status
//!    2 fence     leader u64
//!    3 get digests  from u64 | count u64
//!    4 read      from u64 | bytes u64
//!    5 truncate  height u64
//!    6 adopt     height u64
//!    7 align     position u64 | 0 u64   | count u64 | count × length u64 | the entries' bytes
//!    8 append    position u64 | deliverable u64 | count u64 | count × length u64 | the entries' bytes
//!  answer    kind u8 | 0 × 7 | by kind:
//!    1 status    promised u64 | adopted u64 | height u64
//!    3 digests   a digest of 16 bytes for each entry
//!    4 entries   count u64 | count × length u64 | the entries' bytes
//!    8 progress  height u64 | durable u64
//! ```
//!
//! Invariant: any bytes that arrive decode into a message or an error; every message has exactly one encoding.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::FenceToken;
use base::bytes::Bytes;
use base::rt::net::GatherList;
use wire::{Reader, Writer};

use crate::{Error, Term};

/// Digests that one request asks for.
pub(super) const DIGESTS_MAX: u64 = 1024;
/// Entries of one message.
pub(super) const ENTRIES_MAX: usize = 64;

/// A digest of an entry, by which two log stores are compared.
pub(super) type EntryDigest = u128;

/// A request to an acceptor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum AcceptorRequest {
    /// Report the state of the log store. Promises nothing.
    GetStatus,
    /// Promise to accept nothing from an earlier term.
    Fence { leader: u64 },
    /// Return the digests of entries.
    GetDigests { from: u64, count: u64 },
    /// Return entries until they have `bytes` bytes together, one at least.
    Read { from: u64, bytes: u64 },
    /// Truncate the log store to `height` entries.
    Truncate { height: u64 },
    /// Record that this term adopts the log store, which has `height` entries.
    Adopt { height: u64 },
    /// Append entries of the log store that is to be adopted.
    Align { position: u64, entries: Vec<Bytes> },
    /// Append entries of this term; the entries below `deliverable` are deliverable.
    Append { position: u64, deliverable: u64, entries: Vec<Bytes> },
}

/// An answer of an acceptor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum AcceptorResponse {
    Status { promised: Term, adopted: Term, height: u64 },
    Digests(Vec<EntryDigest>),
    Entries(Vec<Bytes>),
    Progress { height: u64, durable: u64 },
}

/// Ends a message with a list of entries, which are not copied.
fn with_list(head: &mut Writer, entries: Vec<Bytes>) -> GatherList {
    head.u64(entries.len() as u64).u64s(entries.iter().map(|entry| entry.len() as u64));
    std::iter::once(head.done()).chain(entries).collect::<Vec<_>>().into()
}

impl AcceptorRequest {
    /// The entries that the command carries.
    pub fn entries(&self) -> &[Bytes] {
        match self {
            AcceptorRequest::Align { entries, .. } | AcceptorRequest::Append { entries, .. } => entries,
            _ => &[],
        }
    }

    pub fn encode(self, token: FenceToken) -> GatherList {
        let mut head = Writer::with_capacity(64);
        let kind = match &self {
            AcceptorRequest::GetStatus => 1,
            AcceptorRequest::Fence { .. } => 2,
            AcceptorRequest::GetDigests { .. } => 3,
            AcceptorRequest::Read { .. } => 4,
            AcceptorRequest::Truncate { .. } => 5,
            AcceptorRequest::Adopt { .. } => 6,
            AcceptorRequest::Align { .. } => 7,
            AcceptorRequest::Append { .. } => 8u64,
        };
        head.u64s([kind, token.term.0, token.nonce]);
        match self {
            AcceptorRequest::GetStatus => head.done().into(),
            AcceptorRequest::Fence { leader: one }
            | AcceptorRequest::Truncate { height: one }
            | AcceptorRequest::Adopt { height: one } => head.u64(one).done().into(),
            AcceptorRequest::GetDigests { from, count: more } | AcceptorRequest::Read { from, bytes: more } => {
                head.u64(from).u64(more).done().into()
            }
            AcceptorRequest::Align { position, entries } => with_list(head.u64(position).u64(0), entries),
            AcceptorRequest::Append { position, deliverable, entries } => {
                with_list(head.u64(position).u64(deliverable), entries)
            }
        }
    }

    pub fn decode(bytes: Bytes) -> Result<(FenceToken, AcceptorRequest), Error> {
        let mut reader = Reader::new(bytes);
        let kind = reader.u64()?;
        let token = FenceToken { term: Term(reader.u64()?), nonce: reader.u64()? };
        let command = match kind {
            1 => AcceptorRequest::GetStatus,
            2 => AcceptorRequest::Fence { leader: reader.u64()? },
            3 => AcceptorRequest::GetDigests { from: reader.u64()?, count: reader.u64()? },
            4 => AcceptorRequest::Read { from: reader.u64()?, bytes: reader.u64()? },
            5 => AcceptorRequest::Truncate { height: reader.u64()? },
            6 => AcceptorRequest::Adopt { height: reader.u64()? },
            7 => {
                let position = reader.u64()?;
                reader.zeros(8)?;
                AcceptorRequest::Align { position, entries: read_list(&mut reader)? }
            }
            8 => AcceptorRequest::Append {
                position: reader.u64()?,
                deliverable: reader.u64()?,
                entries: read_list(&mut reader)?,
            },
            _ => return Err(Error::Corrupt("an unknown message")),
        };
        reader.end()?;
        Ok((token, command))
    }
}

impl AcceptorResponse {
    pub fn encode(self) -> GatherList {
        let mut head = Writer::with_capacity(64);
        match self {
            AcceptorResponse::Status { promised, adopted, height } => head.u64s([1, promised.0, adopted.0, height]),
            AcceptorResponse::Digests(digests) => {
                head.u64(3);
                digests.into_iter().fold(&mut head, |head, digest| head.u128(digest))
            }
            AcceptorResponse::Entries(entries) => return with_list(head.u64(4), entries),
            AcceptorResponse::Progress { height, durable } => head.u64s([8, height, durable]),
        };
        head.done().into()
    }

    pub fn decode(bytes: Bytes) -> Result<AcceptorResponse, Error> {
        let mut reader = Reader::new(bytes);
        let answer = match reader.u64()? {
            1 => AcceptorResponse::Status {
                promised: Term(reader.u64()?),
                adopted: Term(reader.u64()?),
                height: reader.u64()?,
            },
            3 => {
                let (marks, rest) = reader.peek().as_chunks::<16>();
                if !rest.is_empty() || marks.len() as u64 > DIGESTS_MAX {
                    return Err(Error::Corrupt("a message of another length"));
                }
                return Ok(AcceptorResponse::Digests(
                    marks.iter().map(|mark| EntryDigest::from_le_bytes(*mark)).collect(),
                ));
            }
            4 => AcceptorResponse::Entries(read_list(&mut reader)?),
            8 => AcceptorResponse::Progress { height: reader.u64()?, durable: reader.u64()? },
            _ => return Err(Error::Corrupt("an unknown message")),
        };
        reader.end()?;
        Ok(answer)
    }
}

fn read_list(reader: &mut Reader<Bytes>) -> Result<Vec<Bytes>, Error> {
    let count = reader.u64()?;
    if count > ENTRIES_MAX as u64 {
        return Err(Error::Corrupt("a message has more entries than the limit"));
    }
    let lengths = (0..count).map(|_| reader.u64()).collect::<Result<Vec<u64>, _>>()?;
    Ok(lengths.into_iter().map(|length| reader.bytes_u64(length)).collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TOKEN: FenceToken = FenceToken { term: Term(3), nonce: 9 };

    #[test]
    fn messages_come_back() {
        let entries = vec![Bytes::from_static(b"one"), Bytes::new(), Bytes::from_static(b"three")];
        for command in [
            AcceptorRequest::GetStatus,
            AcceptorRequest::Fence { leader: 2 },
            AcceptorRequest::GetDigests { from: 4, count: 5 },
            AcceptorRequest::Read { from: 6, bytes: 7 },
            AcceptorRequest::Truncate { height: 8 },
            AcceptorRequest::Adopt { height: 9 },
            AcceptorRequest::Align { position: 10, entries: entries.clone() },
            AcceptorRequest::Append { position: 11, deliverable: 10, entries: entries.clone() },
        ] {
            let bytes = command.clone().encode(TOKEN).concat();
            assert_eq!(AcceptorRequest::decode(bytes), Ok((TOKEN, command)));
        }
        for answer in [
            AcceptorResponse::Status { promised: Term(1), adopted: Term(2), height: 3 },
            AcceptorResponse::Digests(vec![1, EntryDigest::MAX]),
            AcceptorResponse::Entries(entries),
            AcceptorResponse::Progress { height: 4, durable: 3 },
        ] {
            assert_eq!(AcceptorResponse::decode(answer.clone().encode().concat()), Ok(answer));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_that_encodes_to_them_or_refused(bytes in proptest::collection::vec(0u8..9, 0..80)) {
            let bytes = Bytes::from(bytes);
            if let Ok((token, command)) = AcceptorRequest::decode(bytes.clone()) {
                prop_assert_eq!(command.encode(token).concat(), bytes.clone());
            }
            if let Ok(answer) = AcceptorResponse::decode(bytes.clone()) {
                prop_assert_eq!(answer.encode().concat(), bytes);
            }
        }
    }
}
