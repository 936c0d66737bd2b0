//! Control messages between a processor and a memory node: `docs/formats/consensus.md`.
//!
//! ```text
//!  hello    01 000000 | number u32 | version u32 | 0 u32 | group u64 | layout 40
//!  fence    02 000000 | number u32 | term u64 | holder u64
//!  keep     03 000000 | number u32 | term u64 | holder u64 | admitted u32 | count u32 | count × (at u64, bytes u64) | bytes …
//!  welcome  81 000000 | number u32 | version u32 | persistent u32 | life u64 | capability 40
//!  fenced   82 000000 | number u32 | capability 40
//!  kept     83 000000 | number u32
//!  refused  FF 000000 | number u32 | reason u32 | detail u64 | text
//! ```
//!
//! Invariant: whatever arrives decodes into a message or an error; every message has one encoding.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::bytes::{BufMut as _, Bytes, BytesMut};
use rma::{CAPABILITY_BYTES, Capability};

use crate::layout::{LAYOUT_BYTES, Layout, half, word};
use crate::{Error, GroupId, Term};

/// Raised with every change of the messages or of what they mean.
pub const PROTOCOL_VERSION: u32 = 3;
/// Bytes before a message's own.
const HEAD_BYTES: usize = 8;
/// Bytes of a refusal's text; what is longer is cut.
const TEXT_BYTES_MAX: usize = 256;

const HELLO: u8 = 0x01;
const FENCE: u8 = 0x02;
const KEEP: u8 = 0x03;
const WELCOME: u8 = 0x81;
const FENCED: u8 = 0x82;
const KEPT: u8 = 0x83;
const REFUSED: u8 = 0xFF;

/// What a processor asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// First on every connection.
    Hello { version: u32, group: GroupId, layout: Layout },
    /// Takes the replicated region over: revokes whatever capability was given for it.
    Fence { term: Term, holder: u64 },
    /// Makes writes durable that the holder has posted, or is about to; and, with `admitted`, that the node has a vote.
    Keep { term: Term, holder: u64, admitted: bool, writes: Vec<(u64, Bytes)> },
}

/// What a memory node answers.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Welcome { version: u32, is_persistent: bool, life: u64, admin: Capability },
    Fenced { region: Capability },
    Kept,
    Refused { refusal: Refusal, detail: u64, text: String },
}

/// Why a request was refused, and what `detail` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No message of the protocol, or not one that is due.
    Malformed,
    /// `detail`: the node's version.
    Version,
    /// The node has no such group, or has it with other sizes.
    Group,
    /// `detail`: a newer term has the region.
    Fenced,
    /// `detail`: the term; somebody else has fenced under it.
    Disputed,
    /// The revocation could not be confirmed; ask again.
    Unconfirmed,
    /// Whoever asks does not hold the region, or the node keeps nothing, or its disk has failed.
    NotKept,
}

impl Refusal {
    const ALL: [Refusal; 7] = [
        Refusal::Malformed,
        Refusal::Version,
        Refusal::Group,
        Refusal::Fenced,
        Refusal::Disputed,
        Refusal::Unconfirmed,
        Refusal::NotKept,
    ];

    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    fn code(self) -> u32 {
        Refusal::ALL.iter().position(|other| *other == self).expect("all are listed") as u32 + 1
    }
}

fn head(kind: u8, number: u32) -> BytesMut {
    let mut bytes = BytesMut::with_capacity(64);
    bytes.put_slice(&[kind, 0, 0, 0]);
    bytes.put_u32_le(number);
    bytes
}

/// Kind and number; the rest is as long as `length` says, for kinds that it knows.
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
            Request::Fence { term, holder } => {
                bytes = head(FENCE, number);
                bytes.put_u64_le(term.0);
                bytes.put_u64_le(*holder);
            }
            Request::Keep { term, holder, admitted, writes } => {
                bytes = head(KEEP, number);
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
            KEEP => Some(rest),
            _ => None,
        })?;
        let request = match kind {
            HELLO => {
                if half(body, 4) != 0 {
                    return Err(Error::Corrupt("a hello with reserved bytes set"));
                }
                if half(body, 16 + LAYOUT_BYTES - 4) != 0 {
                    return Err(Error::Corrupt("a hello of more shares than any group has"));
                }
                let layout = Layout::decode(body[16..].try_into().expect("its length was checked"));
                Request::Hello { version: half(body, 0), group: GroupId(word(body, 8)), layout }
            }
            FENCE => Request::Fence { term: Term(word(body, 0)), holder: word(body, 8) },
            _ => {
                let malformed = Error::Corrupt("a message of writes that are not all there");
                let admitted = match half(body, 16) {
                    0 => false,
                    1 => true,
                    _ => return Err(malformed),
                };
                let (places, _) = body.get(24..).ok_or(malformed.clone())?.as_chunks::<16>();
                let places = places.get(..half(body, 20) as usize).ok_or(malformed.clone())?;
                // Behind the places, the bytes of each.
                let mut rest = bytes.slice(HEAD_BYTES..).slice(24..).slice(places.as_flattened().len()..);
                let mut writes = Vec::with_capacity(places.len());
                for place in places {
                    let length = usize::try_from(word(place, 8)).ok().filter(|length| *length <= rest.len());
                    writes.push((word(place, 0), rest.split_to(length.ok_or(malformed.clone())?)));
                }
                if !rest.is_empty() {
                    return Err(malformed);
                }
                Request::Keep { term: Term(word(body, 0)), holder: word(body, 8), admitted, writes }
            }
        };
        Ok((number, request))
    }
}

impl Reply {
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(crate) fn encode(&self, number: u32) -> Bytes {
        let mut bytes;
        match self {
            Reply::Welcome { version, is_persistent, life, admin } => {
                bytes = head(WELCOME, number);
                bytes.put_u32_le(*version);
                bytes.put_u32_le((*is_persistent).into());
                bytes.put_u64_le(*life);
                bytes.put_slice(&admin.encode());
            }
            Reply::Fenced { region } => {
                bytes = head(FENCED, number);
                bytes.put_slice(&region.encode());
            }
            Reply::Kept => bytes = head(KEPT, number),
            Reply::Refused { refusal, detail, text } => {
                bytes = head(REFUSED, number);
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

    pub(crate) fn decode(bytes: &[u8]) -> Result<(u32, Reply), Error> {
        let text = bytes.len().saturating_sub(HEAD_BYTES).clamp(12, 12 + TEXT_BYTES_MAX);
        let (kind, number, body) = open(bytes, |kind| match kind {
            WELCOME => Some(16 + CAPABILITY_BYTES),
            FENCED => Some(CAPABILITY_BYTES),
            KEPT => Some(0),
            REFUSED => Some(text),
            _ => None,
        })?;
        let capability =
            |at: usize| Capability::decode(&body[at..]).map_err(|_| Error::Corrupt("no capability where one is due"));
        let reply = match kind {
            WELCOME => {
                let is_persistent = half(body, 4) == 1;
                if half(body, 4) > 1 {
                    return Err(Error::Corrupt("a welcome with reserved bits set"));
                }
                Reply::Welcome { version: half(body, 0), is_persistent, life: word(body, 8), admin: capability(16)? }
            }
            FENCED => Reply::Fenced { region: capability(0)? },
            KEPT => Reply::Kept,
            _ => {
                let refusal = Refusal::ALL.into_iter().find(|refusal| refusal.code() == half(body, 0));
                let text = std::str::from_utf8(&body[12..]).map_err(|_| Error::Corrupt("a refusal that is no text"))?;
                Reply::Refused {
                    refusal: refusal.ok_or(Error::Corrupt("an unknown refusal"))?,
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
        let layout = Layout { log_bytes: 4096, direct_bytes: 64, memory_bytes: 128, block_bytes: 64, data_shares: 2 };
        let hello = Request::Hello { version: 1, group: GroupId(9), layout };
        let mut golden = vec![1, 0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
        [9_u64, 4096, 64, 128, 64, 2].iter().for_each(|word| golden.extend(word.to_le_bytes()));
        assert_eq!(hello.encode(5)[..], golden);
        assert_eq!(Request::decode(&golden.into()), Ok((5, hello)));
        let fence = Request::Fence { term: Term(7), holder: 8 };
        let golden = [2, 0, 0, 0, 6, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(fence.encode(6)[..], golden);
        assert_eq!(Request::decode(&Bytes::copy_from_slice(&golden)), Ok((6, fence)));
        let writes = vec![(64, Bytes::from_static(b"ab")), (8, Bytes::from_static(b"c"))];
        let keep = Request::Keep { term: Term(7), holder: 8, admitted: true, writes };
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
            Reply::Welcome { version: 1, is_persistent: true, life: 7, admin: capability },
            Reply::Kept,
            Reply::Fenced { region: capability },
            Reply::Refused { refusal: Refusal::Disputed, detail: 3, text: "ä".repeat(200) },
        ] {
            let bytes = reply.encode(4);
            let (number, back) = Reply::decode(&bytes).expect("it was just encoded");
            assert_eq!((number, back.encode(4)), (4, bytes));
        }
    }

    proptest! {
        #[test]
        fn bytes_decode_into_what_encodes_to_them_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..80), kind in 0_u8..6) {
            let mut bytes = bytes;
            if bytes.len() > 4 {
                bytes[..4].copy_from_slice(&[[HELLO, FENCE, KEEP, WELCOME, REFUSED, KEPT][kind as usize], 0, 0, 0]);
            }
            if kind == 2 && bytes.len() >= 32 {
                // So that some are well-formed.
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
            if let Ok((number, reply)) = Reply::decode(&bytes) {
                prop_assert_eq!(&reply.encode(number)[..], &bytes[..]);
            }
        }
    }
}
