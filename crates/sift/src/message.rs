//! Control messages between a CPU node and a memory node: `docs/formats/consensus.md`.
//!
//! ```text
//!  hello     01 000000 | number u32 | hello 16 | group u64 | layout 40
//!  fence     02 000000 | number u32 | term u64 | nonce u64
//!  persist   03 000000 | number u32 | term u64 | nonce u64 | admitted u32 | count u32 |
//!           count × (at u64, bytes u64) | bytes …
//!  welcome   81 000000 | number u32 | answer 12 | persistent u32 | incarnation u64 | capability 40
//!  fenced    82 000000 | number u32 | capability 40
//!  persisted 83 000000 | number u32
//!  rejected  FF 000000 | number u32 | reason u32 | detail u64 | text
//! ```
//!
//! The hello and its answer are those of [`wire::hello`]. If the node speaks no version of the hello, it ignores the
//! bytes after the hello; if the answer rejects, the CPU node ignores the bytes after the answer. Their format is
//! unknown.
//!
//! Invariant: any bytes that arrive decode into a message or an error; every message of our versions has exactly one
//! encoding.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::bytes::Bytes;
use rma::{CAPABILITY_BYTES, Capability};
use wire::hello::{Hello, HelloAnswer};
use wire::{Reader, VersionRange, Writer};

use crate::layout::GroupLayout;
use crate::{Error, GroupId, Term};

/// The versions that this program speaks. The newest is raised with every change of the messages or of their meaning.
pub const PROTOCOL_VERSIONS: VersionRange = VersionRange::only(3);
const PURPOSE: [u8; 8] = *b"HDLRSIFT";
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
    Hello { versions: VersionRange, group: GroupId, layout: GroupLayout },
    /// The hello of a CPU node that speaks other versions.
    OtherVersions(VersionRange),
    /// Takes over the replicated region: revokes the capability that was granted for it.
    Fence { term: Term, nonce: u64 },
    /// Makes writes durable that the coordinator has posted or is about to post; and, with `admitted`, that the node
    /// has a vote.
    Persist { term: Term, nonce: u64, admitted: bool, writes: Vec<(u64, Bytes)> },
}

/// The answer of a memory node.
#[derive(Clone, Debug)]
pub(crate) enum Response {
    Welcome {
        hello: HelloAnswer,
        is_persistent: bool,
        incarnation: u64,
        admin: Capability,
    },
    /// The answer to a hello by a node that speaks other versions.
    OtherVersions(HelloAnswer),
    Fenced {
        region: Capability,
    },
    Persisted,
    Rejected {
        rejection: Rejection,
        detail: u64,
        text: String,
    },
}

/// Why a request was rejected, and the meaning of `detail`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// Not a message of the protocol, or not one that is expected now.
    Malformed,
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
    const ALL: [Rejection; 6] = [
        Rejection::Malformed,
        Rejection::Group,
        Rejection::Fenced,
        Rejection::Disputed,
        Rejection::Unconfirmed,
        Rejection::NotPersisted,
    ];

    fn code(self) -> u32 {
        match self {
            Rejection::Malformed => 1,
            // 2 was another version; the answer to a hello says that now.
            Rejection::Group => 3,
            Rejection::Fenced => 4,
            Rejection::Disputed => 5,
            Rejection::Unconfirmed => 6,
            Rejection::NotPersisted => 7,
        }
    }
}

fn head(kind: u8, number: u32) -> Writer {
    let mut writer = Writer::with_capacity(64);
    writer.u8(kind).zeros(3).u32(number);
    writer
}

/// Reads the kind of a message and its number.
fn read_head<I: wire::Input>(reader: &mut Reader<I>) -> Result<(u8, u32), Error> {
    let kind = reader.u8()?;
    reader.zeros(3)?;
    Ok((kind, reader.u32()?))
}

/// Reads a half word that is 0 or 1.
fn read_flag<I: wire::Input>(reader: &mut Reader<I>) -> Result<bool, Error> {
    let flag = reader.flag()?;
    reader.zeros(3)?;
    Ok(flag)
}

fn read_capability(reader: &mut Reader<&[u8]>) -> Result<Capability, Error> {
    Capability::decode(reader.bytes(CAPABILITY_BYTES)?).map_err(|_| Error::Corrupt("a message without a capability"))
}

impl Request {
    pub(crate) fn encode(&self, number: u32) -> Bytes {
        match self {
            Request::Hello { versions, group, layout } => {
                let hello = Hello { purpose: PURPOSE, versions: *versions };
                head(HELLO, number).put(&hello.encode()).u64(group.0).put(&layout.encode()).done()
            }
            Request::OtherVersions(versions) => {
                head(HELLO, number).put(&Hello { purpose: PURPOSE, versions: *versions }.encode()).done()
            }
            Request::Fence { term, nonce } => head(FENCE, number).u64(term.0).u64(*nonce).done(),
            Request::Persist { term, nonce, admitted, writes } => {
                let mut writer = head(PERSIST, number);
                writer.reserve(writes.iter().map(|(_, bytes)| bytes.len().saturating_add(24)).sum());
                writer.u64(term.0).u64(*nonce).u32((*admitted).into()).u32(writes.len() as u32);
                writer.u64s(writes.iter().flat_map(|(at, part)| [*at, part.len() as u64]));
                writes.iter().fold(&mut writer, |writer, (_, part)| writer.put(part)).done()
            }
        }
    }

    pub(crate) fn decode(bytes: &Bytes) -> Result<(u32, Request), Error> {
        let mut reader = Reader::new(bytes.clone());
        let (kind, number) = read_head(&mut reader)?;
        let request = match kind {
            HELLO => {
                let Hello { versions, .. } = Hello::read(&mut reader, PURPOSE)?;
                if PROTOCOL_VERSIONS.choose(versions).is_err() {
                    return Ok((number, Request::OtherVersions(versions)));
                }
                let group = GroupId(reader.u64()?);
                let encoded = reader.array()?;
                let layout = GroupLayout::decode(&encoded);
                if layout.encode() != encoded {
                    return Err(Error::Corrupt("a hello with more shards than any group has"));
                }
                Request::Hello { versions, group, layout }
            }
            FENCE => Request::Fence { term: Term(reader.u64()?), nonce: reader.u64()? },
            PERSIST => {
                let (term, nonce, admitted) = (Term(reader.u64()?), reader.u64()?, read_flag(&mut reader)?);
                let count = reader.count(16, usize::MAX)?;
                let places =
                    (0..count).map(|_| Ok((reader.u64()?, reader.u64()?))).collect::<Result<Vec<_>, Error>>()?;
                // After the list, the bytes of each write.
                let write = |(at, length)| Ok((at, reader.bytes_u64(length)?));
                let writes = places.into_iter().map(write).collect::<Result<_, Error>>()?;
                Request::Persist { term, nonce, admitted, writes }
            }
            _ => return Err(Error::Corrupt("an unknown message")),
        };
        reader.end()?;
        Ok((number, request))
    }
}

impl Response {
    pub(crate) fn encode(&self, number: u32) -> Bytes {
        match self {
            Response::Welcome { hello, is_persistent, incarnation, admin } => {
                let mut writer = head(WELCOME, number);
                writer.put(&hello.encode()).u32((*is_persistent).into()).u64(*incarnation);
                writer.put(&admin.encode()).done()
            }
            Response::OtherVersions(hello) => head(WELCOME, number).put(&hello.encode()).done(),
            Response::Fenced { region } => head(FENCED, number).put(&region.encode()).done(),
            Response::Persisted => head(PERSISTED, number).done(),
            Response::Rejected { rejection, detail, text } => {
                let end = (0..=text.len().min(TEXT_BYTES_MAX)).rev().find(|end| text.is_char_boundary(*end));
                let text = &text[..end.expect("0 is a boundary")];
                head(REJECTED, number).u32(rejection.code()).u64(*detail).put(text.as_bytes()).done()
            }
        }
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<(u32, Response), Error> {
        let mut reader = Reader::new(bytes);
        let (kind, number) = read_head(&mut reader)?;
        let reply = match kind {
            WELCOME => {
                let hello = HelloAnswer::read(&mut reader)?;
                if hello.chosen_by(PROTOCOL_VERSIONS).is_err() {
                    return Ok((number, Response::OtherVersions(hello)));
                }
                let is_persistent = read_flag(&mut reader)?;
                let incarnation = reader.u64()?;
                Response::Welcome { hello, is_persistent, incarnation, admin: read_capability(&mut reader)? }
            }
            FENCED => Response::Fenced { region: read_capability(&mut reader)? },
            PERSISTED => Response::Persisted,
            REJECTED => {
                let code = reader.u32()?;
                let rejection = Rejection::ALL.into_iter().find(|rejection| rejection.code() == code);
                let rejection = rejection.ok_or(Error::Corrupt("an unknown reason for a rejection"))?;
                let detail = reader.u64()?;
                let text = reader.rest();
                let text = std::str::from_utf8(text).ok().filter(|text| text.len() <= TEXT_BYTES_MAX);
                let text = text.ok_or(Error::Corrupt("a rejection whose text is too long or not UTF-8"))?.to_owned();
                Response::Rejected { rejection, detail, text }
            }
            _ => return Err(Error::Corrupt("an unknown message")),
        };
        reader.end()?;
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
        let hello = Request::Hello { versions: VersionRange::new(1, 3), group: GroupId(9), layout };
        let mut golden = b"\x01\0\0\0\x05\0\0\0HDLRSIFT\x01\0\0\0\x03\0\0\0".to_vec();
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
    fn a_welcome_has_the_documented_layout() {
        let admin = Capability::decode(&[0; CAPABILITY_BYTES]).expect("well-formed");
        let hello = HelloAnswer::accept(VersionRange::new(2, 4), 3);
        let welcome = Response::Welcome { hello, is_persistent: true, incarnation: 7, admin };
        let mut golden = vec![0x81, 0, 0, 0, 4, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, 7];
        golden.extend([0; 7 + CAPABILITY_BYTES]);
        assert_eq!(welcome.encode(4)[..], golden);
    }

    #[test]
    fn another_version_is_told_whatever_follows_the_hello() {
        let versions = VersionRange::new(4, 5);
        let mut hello = Request::OtherVersions(versions).encode(5).to_vec();
        hello.extend(b"of version 4");
        assert_eq!(Request::decode(&hello.into()), Ok((5, Request::OtherVersions(versions))));
        let mut answer = Response::OtherVersions(HelloAnswer::refuse(versions)).encode(5).to_vec();
        answer.extend(b"of version 4");
        let Ok((5, Response::OtherVersions(told))) = Response::decode(&answer) else { panic!("it refuses") };
        let mismatch = told.chosen_by(PROTOCOL_VERSIONS).expect_err("it refuses");
        assert!(mismatch.is_ours_older());
    }

    #[test]
    fn replies_come_back_as_they_were() {
        let capability = Capability::decode(&[0; CAPABILITY_BYTES]).expect("well-formed");
        for reply in [
            Response::Welcome {
                hello: HelloAnswer::accept(PROTOCOL_VERSIONS, 3),
                is_persistent: true,
                incarnation: 7,
                admin: capability,
            },
            Response::OtherVersions(HelloAnswer::refuse(VersionRange::new(4, 5))),
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
            crate::fuzz::messages(&bytes);
        }
    }
}
