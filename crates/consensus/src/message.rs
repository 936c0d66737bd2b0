//! Control messages between a CPU node and a memory node: `docs/formats/consensus.md`.
//!
//! ```text
//!  hello     01 000000 | number u32 | version u32 | 0 u32 | group u64 | layout 40
//!  fence     02 000000 | number u32 | term u64 | nonce u64
//!  persist   03 000000 | number u32 | term u64 | nonce u64 | admitted u32 | count u32 | count × (at u64, bytes u64) | bytes …
//!  welcome   81 000000 | number u32 | version u32 | persistent u32 | incarnation u64 | capability 40
//!  fenced    82 000000 | number u32 | capability 40
//!  persisted 83 000000 | number u32
//!  rejected  FF 000000 | number u32 | reason u32 | detail u64 | text
//! ```
//!
//! Invariant: any bytes that arrive decode into a message or an error; every message has exactly one encoding.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::bytes::{BufMut as _, Bytes, BytesMut};
use rma::{CAPABILITY_BYTES, Capability};

use crate::layout::{GroupLayout, LAYOUT_BYTES, half, word};
use crate::{Error, GroupId, Term};

/// Raised with every change of the messages or of their meaning.
pub const PROTOCOL_VERSION: u32 = 3;
/// Bytes of a message's head.
const HEAD_BYTES: usize = 8;
/// Bytes of a rejection's text; longer texts are cut off.
const TEXT_BYTES_MAX: usize = 256;

const HELLO: u8 = 0x01;
const FENCE: u8 = 0x02;
const PERSIST: u8 = 0x03;
const WELCOME: u8 = 0x81;
const FENCED: u8 = 0x82;
const PERSISTED: u8 = 0x83;
const REJECTED: u8 = 0xFF;

/// A request of a CPU node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// First on every connection.
    Hello { version: u32, group: GroupId, layout: GroupLayout },
    /// Takes over the replicated region: revokes the capability that was granted for it.
    Fence { term: Term, nonce: u64 },
    /// Makes writes durable that the coordinator has posted or is about to post; and, with `admitted`, that the node
    /// has a vote.
    Persist { term: Term, nonce: u64, admitted: bool, writes: Vec<(u64, Bytes)> },
}

/// The answer of a memory node.
#[derive(Clone, Debug)]
pub(crate) enum Response {
    Welcome { version: u32, is_persistent: bool, incarnation: u64, admin: Capability },
    Fenced { region: Capability },
    Persisted,
    Rejected { rejection: Rejection, detail: u64, text: String },
}

/// Why a request was rejected, and the meaning of `detail`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// Not a message of the protocol, or not one that is expected now.
    Malformed,
    /// `detail`: the node's version.
    Version,
    /// The node has no such group, or has it with other sizes.
    Group,
    /// `detail`: the newer term that owns the region.
    Fenced,
    /// `detail`: the term; another CPU node has fenced under it.
    Disputed,
    /// The revocation could not be confirmed; ask again.
    Unconfirmed,
    /// The writes were not stored: the requester does not own the region, the node is not persistent, or its disk has
    /// failed.
    NotPersisted,
}

impl Rejection {
    const ALL: [Rejection; 7] = [
        Rejection::Malformed,
        Rejection::Version,
        Rejection::Group,
        Rejection::Fenced,
        Rejection::Disputed,
        Rejection::Unconfirmed,
        Rejection::NotPersisted,
    ];

    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    fn code(self) -> u32 {
        Rejection::ALL.iter().position(|other| *other == self).expect("all are listed") as u32 + 1
    }
}

fn head(kind: u8, number: u32) -> BytesMut {
    let mut bytes = BytesMut::with_capacity(64);
    bytes.put_slice(&[kind, 0, 0, 0]);
    bytes.put_u32_le(number);
    bytes
}

/// Splits a message into kind, number and body, and checks the body against the length that `length` gives for known
/// kinds.
fn open(bytes: &[u8], length: impl Fn(u8) -> Option<usize>) -> Result<(u8, u32, &[u8]), Error> {
    let Some((head, body)) = bytes.split_at_checked(HEAD_BYTES) else {
        return Err(Error::Corrupt("a message without a head"));
    };
    if head[1..4] != [0; 3] {
        return Err(Error::Corrupt("a message with reserved bytes set"));
    }
    match length(head[0]) {
        Some(length) if length == body.len() => Ok((head[0], half(head, 4), body)),
        Some(_) => Err(Error::Corrupt("a message of another length")),
        None => Err(Error::Corrupt("an unknown message")),
    }
}

impl Request {
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(crate) fn encode(&self, number: u32) -> Bytes {
        let mut bytes;
        match self {
            Request::Hello { version, group, layout } => {
                bytes = head(HELLO, number);
                bytes.put_u32_le(*version);
                bytes.put_u32_le(0);
                bytes.put_u64_le(group.0);
                bytes.put_slice(&layout.encode());
            }
            Request::Fence { term, nonce: holder } => {
                bytes = head(FENCE, number);
                bytes.put_u64_le(term.0);
                bytes.put_u64_le(*holder);
            }
            Request::Persist { term, nonce: holder, admitted, writes } => {
                bytes = head(PERSIST, number);
                bytes.reserve(24 + writes.iter().map(|(_, bytes)| 16 + bytes.len()).sum::<usize>());
                bytes.put_u64_le(term.0);
                bytes.put_u64_le(*holder);
                bytes.put_u32_le((*admitted).into());
                bytes.put_u32_le(writes.len() as u32);
                for (at, part) in writes {
                    bytes.put_u64_le(*at);
                    bytes.put_u64_le(part.len() as u64);
                }
                writes.iter().for_each(|(_, part)| bytes.put_slice(part));
            }
        }
        bytes.freeze()
    }

    pub(crate) fn decode(bytes: &Bytes) -> Result<(u32, Request), Error> {
        let rest = bytes.len().saturating_sub(HEAD_BYTES).max(24);
        let (kind, number, body) = open(bytes, |kind| match kind {
            HELLO => Some(16 + LAYOUT_BYTES),
            FENCE => Some(16),
            PERSIST => Some(rest),
            _ => None,
        })?;
        let request = match kind {
            HELLO => {
                if half(body, 4) != 0 {
                    return Err(Error::Corrupt("a hello with reserved bytes set"));
                }
                if half(body, 16 + LAYOUT_BYTES - 4) != 0 {
                    return Err(Error::Corrupt("a hello with more shards than any group has"));
                }
                let layout = GroupLayout::decode(body[16..].try_into().expect("its length was checked"));
                Request::Hello { version: half(body, 0), group: GroupId(word(body, 8)), layout }
            }
            FENCE => Request::Fence { term: Term(word(body, 0)), nonce: word(body, 8) },
            _ => {
                let malformed = Error::Corrupt("a message that lacks some of its writes");
                let admitted = match half(body, 16) {
                    0 => false,
                    1 => true,
                    _ => return Err(malformed),
                };
                let (places, _) = body.get(24..).ok_or(malformed.clone())?.as_chunks::<16>();
                let places = places.get(..half(body, 20) as usize).ok_or(malformed.clone())?;
                // After the list, the bytes of each write.
                let mut rest = bytes.slice(HEAD_BYTES..).slice(24..).slice(places.as_flattened().len()..);
                let mut writes = Vec::with_capacity(places.len());
                for place in places {
                    let length = usize::try_from(word(place, 8)).ok().filter(|length| *length <= rest.len());
                    writes.push((word(place, 0), rest.split_to(length.ok_or(malformed.clone())?)));
                }
                if !rest.is_empty() {
                    return Err(malformed);
                }
                Request::Persist { term: Term(word(body, 0)), nonce: word(body, 8), admitted, writes }
            }
        };
        Ok((number, request))
    }
}

impl Response {
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(crate) fn encode(&self, number: u32) -> Bytes {
        let mut bytes;
        match self {
            Response::Welcome { version, is_persistent, incarnation: life, admin } => {
                bytes = head(WELCOME, number);
                bytes.put_u32_le(*version);
                bytes.put_u32_le((*is_persistent).into());
                bytes.put_u64_le(*life);
                bytes.put_slice(&admin.encode());
            }
            Response::Fenced { region } => {
                bytes = head(FENCED, number);
                bytes.put_slice(&region.encode());
            }
            Response::Persisted => bytes = head(PERSISTED, number),
            Response::Rejected { rejection: refusal, detail, text } => {
                bytes = head(REJECTED, number);
                bytes.put_u32_le(refusal.code());
                bytes.put_u64_le(*detail);
                let mut length = text.len().min(TEXT_BYTES_MAX);
                while !text.is_char_boundary(length) {
                    length -= 1;
                }
                bytes.put_slice(&text.as_bytes()[..length]);
            }
        }
        bytes.freeze()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<(u32, Response), Error> {
        let text = bytes.len().saturating_sub(HEAD_BYTES).clamp(12, 12 + TEXT_BYTES_MAX);
        let (kind, number, body) = open(bytes, |kind| match kind {
            WELCOME => Some(16 + CAPABILITY_BYTES),
            FENCED => Some(CAPABILITY_BYTES),
            PERSISTED => Some(0),
            REJECTED => Some(text),
            _ => None,
        })?;
        let capability =
            |at: usize| Capability::decode(&body[at..]).map_err(|_| Error::Corrupt("a message without a capability"));
        let reply = match kind {
            WELCOME => {
                let is_persistent = half(body, 4) == 1;
                if half(body, 4) > 1 {
                    return Err(Error::Corrupt("a welcome with reserved bits set"));
                }
                Response::Welcome {
                    version: half(body, 0),
                    is_persistent,
                    incarnation: word(body, 8),
                    admin: capability(16)?,
                }
            }
            FENCED => Response::Fenced { region: capability(0)? },
            PERSISTED => Response::Persisted,
            _ => {
                let refusal = Rejection::ALL.into_iter().find(|refusal| refusal.code() == half(body, 0));
                let text = std::str::from_utf8(&body[12..])
                    .map_err(|_| Error::Corrupt("a rejection whose text is not UTF-8"))?;
                Response::Rejected {
                    rejection: refusal.ok_or(Error::Corrupt("an unknown reason for a rejection"))?,
                    detail: word(body, 4),
                    text: text.to_owned(),
                }
            }
        };
        Ok((number, reply))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_have_the_documented_layout() {
        let layout =
            GroupLayout { log_bytes: 4096, unlogged_bytes: 64, memory_bytes: 128, block_bytes: 64, data_shards: 2 };
        let hello = Request::Hello { version: 1, group: GroupId(9), layout };
        let mut golden = vec![1, 0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
        [9_u64, 4096, 64, 128, 64, 2].iter().for_each(|word| golden.extend(word.to_le_bytes()));
        assert_eq!(hello.encode(5)[..], golden);
        assert_eq!(Request::decode(&golden.into()), Ok((5, hello)));
        let fence = Request::Fence { term: Term(7), nonce: 8 };
        let golden = [2, 0, 0, 0, 6, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(fence.encode(6)[..], golden);
        assert_eq!(Request::decode(&Bytes::copy_from_slice(&golden)), Ok((6, fence)));
        let writes = vec![(64, Bytes::from_static(b"ab")), (8, Bytes::from_static(b"c"))];
        let keep = Request::Persist { term: Term(7), nonce: 8, admitted: true, writes };
        let mut golden =
            vec![3, 0, 0, 0, 9, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0];
        [64_u64, 2, 8, 1].iter().for_each(|word| golden.extend(word.to_le_bytes()));
        golden.extend(b"abc");
        assert_eq!(keep.encode(9)[..], golden);
        assert_eq!(Request::decode(&golden.into()), Ok((9, keep)));
    }

    #[test]
    fn replies_come_back_as_they_were() {
        let capability = Capability::decode(&[0; CAPABILITY_BYTES]).expect("well-formed");
        for reply in [
            Response::Welcome { version: 1, is_persistent: true, incarnation: 7, admin: capability },
            Response::Persisted,
            Response::Fenced { region: capability },
            Response::Rejected { rejection: Rejection::Disputed, detail: 3, text: "ä".repeat(200) },
        ] {
            let bytes = reply.encode(4);
            let (number, back) = Response::decode(&bytes).expect("it was just encoded");
            assert_eq!((number, back.encode(4)), (4, bytes));
        }
    }

    proptest! {
        #[test]
        fn bytes_decode_into_what_encodes_to_them_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..80), kind in 0_u8..6) {
            let mut bytes = bytes;
            if bytes.len() > 4 {
                bytes[..4].copy_from_slice(&[[HELLO, FENCE, PERSIST, WELCOME, REJECTED, PERSISTED][kind as usize], 0, 0, 0]);
            }
            if kind == 2 && bytes.len() >= 32 {
                // Make some of them well-formed.
                bytes[24..32].copy_from_slice(&[1, 0, 0, 0, 1, 0, 0, 0]);
                if bytes.len() >= 48 {
                    let rest = bytes.len() as u64 - 48;
                    bytes[40..48].copy_from_slice(&rest.to_le_bytes());
                }
            }
            let bytes = Bytes::from(bytes);
            if let Ok((number, request)) = Request::decode(&bytes) {
                prop_assert_eq!(&request.encode(number)[..], &bytes[..]);
            }
            if let Ok((number, reply)) = Response::decode(&bytes) {
                prop_assert_eq!(&reply.encode(number)[..], &bytes[..]);
            }
        }
    }
}
