//! Control messages between an owner and a memory node: `docs/formats/section-table.md`.
//!
//! A message starts with eight bytes: its kind, three zero bytes, and the number of the request, which the answer
//! repeats. Numbers are little-endian. Notifications of the memory node carry the number 0, which no request has.
//!
//! The hello and its answer are those of [`wire::hello`]. If the node speaks none of a hello's versions, it ignores the
//! bytes after the hello; an owner ignores the bytes after an answer that rejects its hello. These bytes have no known
//! format.
//!
//! Invariant: any bytes decode into a message or an error; every message of our versions has one encoding.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::{Bytes, Epoch};
use rma::{CAPABILITY_BYTES, Capability};
use wire::hello::{Hello, HelloAnswer};
use wire::{Reader, VersionRange, Writer};

use crate::Error;

/// The versions that this program speaks. The newest is raised with every change of the messages or of their meaning.
pub const PROTOCOL_VERSIONS: VersionRange = VersionRange::only(3);
pub(crate) const PURPOSE: [u8; 8] = *b"HDLRPOOL";
/// The number of messages that do not answer a request.
pub(crate) const NOTIFICATION: u32 = 0;
/// Bytes of the text of a refusal; a longer one is cut.
const TEXT_BYTES_MAX: usize = 512;
/// Sections that one owner may have at one donor, and entries of one list.
pub(crate) const SECTIONS_PER_OWNER_MAX: usize = 1 << 16;
/// Bytes of one entry of a list.
const LISTED_BYTES: usize = 16;

/// A section as its donor numbers it: never reused during one run of the donor.
pub(crate) type DonorSection = u64;

/// Requests of an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// The first message on every connection.
    Hello { versions: VersionRange, section_bytes: u64 },
    /// The hello of an owner that speaks other versions.
    OtherVersions(VersionRange),
    /// Takes the owner's memory over under an epoch and revokes all capabilities of older epochs. Precedes all requests
    /// below. With `keep`, the sections of older epochs stay with their content, to be adopted or released; without it
    /// the node reclaims them.
    Fence { epoch: Epoch, nonce: u64, keep: bool },
    /// Requests one more section. The node keeps the owner's number of it for a process that adopts the section.
    Grant { bytes: u64, number: u32 },
    /// Returns a section.
    Release { section: DonorSection },
    /// Asks which sections this owner has here.
    List,
    /// Asks how much memory is free.
    Capacity,
    /// Requests a read grant of a section for a follower, another compute node of the owner.
    GrantRead { section: DonorSection, follower: u64 },
    /// Revokes a follower's capabilities.
    RevokeReads { follower: u64 },
    /// Requests a capability of a section that an older epoch held and that the fence kept.
    Adopt { section: DonorSection },
}

/// Answers of a memory node. `free_bytes` is how much it could still grant.
#[derive(Clone, Debug)]
pub(crate) enum Response {
    Welcome {
        hello: HelloAnswer,
        node: u32,
        section_bytes: u64,
        budget_bytes: u64,
        free_bytes: u64,
        incarnation: u64,
    },
    /// The answer to a hello by a node that speaks other versions. The connection ends.
    OtherVersions(HelloAnswer),
    Fenced {
        free_bytes: u64,
        revoked: u32,
    },
    Granted {
        free_bytes: u64,
        section: DonorSection,
        bytes: u64,
        capability: Capability,
    },
    Released {
        free_bytes: u64,
    },
    Listed {
        free_bytes: u64,
        sections: Vec<(DonorSection, u64)>,
    },
    Capacity {
        free_bytes: u64,
        budget_bytes: u64,
    },
    ReadGranted {
        free_bytes: u64,
        section: DonorSection,
        capability: Capability,
    },
    ReadsRevoked {
        free_bytes: u64,
        revoked: u32,
    },
    /// `number` is the one that the owner gave with its request for the section.
    Adopted {
        free_bytes: u64,
        section: DonorSection,
        bytes: u64,
        number: u32,
        capability: Capability,
    },
    Rejected {
        rejection: Rejection,
        detail: u64,
        text: String,
    },
}

/// Why a request was rejected, and what `detail` means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// Not a message of the protocol, or not one that may come now. The connection ends.
    Malformed,
    /// `detail`: the node's section size.
    SectionSize,
    /// `detail`: the newest epoch. The connection ends.
    Fenced,
    /// `detail`: the free bytes.
    Exhausted,
    /// This owner has no such section.
    UnknownSection,
    /// A revocation could not be confirmed; ask again.
    Unconfirmed,
    /// The same process has connected again; this connection is replaced.
    Superseded,
    /// Too many owners, connections or sections.
    TooMany,
}

impl Rejection {
    const ALL: [Rejection; 8] = [
        Rejection::Malformed,
        Rejection::SectionSize,
        Rejection::Fenced,
        Rejection::Exhausted,
        Rejection::UnknownSection,
        Rejection::Unconfirmed,
        Rejection::Superseded,
        Rejection::TooMany,
    ];

    fn code(self) -> u32 {
        match self {
            Rejection::Malformed => 1,
            // 2 was another version; the answer to a hello says that now.
            Rejection::SectionSize => 3,
            Rejection::Fenced => 4,
            Rejection::Exhausted => 5,
            Rejection::UnknownSection => 6,
            Rejection::Unconfirmed => 7,
            Rejection::Superseded => 8,
            Rejection::TooMany => 9,
        }
    }

    fn of_code(code: u32) -> Option<Rejection> {
        Rejection::ALL.into_iter().find(|refusal| refusal.code() == code)
    }
}

mod kind {
    pub const HELLO: u8 = 0x01;
    pub const FENCE: u8 = 0x02;
    pub const GRANT: u8 = 0x03;
    pub const RELEASE: u8 = 0x04;
    pub const LIST: u8 = 0x05;
    pub const CAPACITY: u8 = 0x06;
    pub const GRANT_READ: u8 = 0x07;
    pub const REVOKE_READS: u8 = 0x08;
    pub const ADOPT: u8 = 0x09;
    pub const RESPONSE: u8 = 0x80;
    pub const WELCOME: u8 = RESPONSE | HELLO;
    pub const FENCED: u8 = RESPONSE | FENCE;
    pub const GRANTED: u8 = RESPONSE | GRANT;
    pub const RELEASED: u8 = RESPONSE | RELEASE;
    pub const LISTED: u8 = RESPONSE | LIST;
    pub const CAPACITY_LEFT: u8 = RESPONSE | CAPACITY;
    pub const READ_GRANTED: u8 = RESPONSE | GRANT_READ;
    pub const READS_REVOKED: u8 = RESPONSE | REVOKE_READS;
    pub const ADOPTED: u8 = RESPONSE | ADOPT;
    pub const REJECTED: u8 = 0xFF;
}

fn head(kind: u8, number: u32) -> Writer {
    let mut writer = Writer::with_capacity(64);
    writer.u8(kind).zeros(3).u32(number);
    writer
}

fn read_head(reader: &mut Reader<&[u8]>) -> Result<(u8, u32), Error> {
    let kind = reader.u8()?;
    reader.zeros(3)?;
    Ok((kind, reader.u32()?))
}

fn read_capability(reader: &mut Reader<&[u8]>) -> Result<Capability, Error> {
    let bytes = reader.bytes(CAPABILITY_BYTES)?;
    Capability::decode(bytes).map_err(|_| Error::Malformed("a grant contains no valid capability"))
}

impl Request {
    /// The message's bytes.
    pub(crate) fn encode(&self, number: u32) -> Bytes {
        match self {
            Request::Hello { versions, section_bytes } => {
                let hello = Hello { purpose: PURPOSE, versions: *versions };
                head(kind::HELLO, number).put(&hello.encode()).u64(*section_bytes).done()
            }
            Request::OtherVersions(versions) => {
                head(kind::HELLO, number).put(&Hello { purpose: PURPOSE, versions: *versions }.encode()).done()
            }
            Request::Fence { epoch, nonce, keep } => {
                head(kind::FENCE, number).u64(epoch.get()).u64(*nonce).u8(u8::from(*keep)).zeros(7).done()
            }
            Request::Grant { bytes, number: section } => {
                head(kind::GRANT, number).u64(*bytes).u32(*section).u32(0).done()
            }
            Request::Release { section } => head(kind::RELEASE, number).u64(*section).done(),
            Request::List => head(kind::LIST, number).done(),
            Request::Capacity => head(kind::CAPACITY, number).done(),
            Request::GrantRead { section, follower } => {
                head(kind::GRANT_READ, number).u64(*section).u64(*follower).done()
            }
            Request::RevokeReads { follower } => head(kind::REVOKE_READS, number).u64(*follower).done(),
            Request::Adopt { section } => head(kind::ADOPT, number).u64(*section).done(),
        }
    }

    /// Reads a request and its number.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(u32, Request), Error> {
        let mut reader = Reader::new(bytes);
        let (kind, number) = read_head(&mut reader)?;
        if number == NOTIFICATION {
            return Err(Error::Malformed("a request has number 0, which is for notices"));
        }
        let request = match kind {
            kind::HELLO => {
                let Hello { versions, .. } = Hello::read(&mut reader, PURPOSE)?;
                if PROTOCOL_VERSIONS.choose(versions).is_err() {
                    return Ok((number, Request::OtherVersions(versions)));
                }
                Request::Hello { versions, section_bytes: reader.u64()? }
            }
            kind::FENCE => {
                let (epoch, nonce) = (Epoch(reader.u64()?), reader.u64()?);
                let keep = match reader.u8()? {
                    0 => false,
                    1 => true,
                    _ => return Err(Error::Malformed("a fence neither keeps nor reclaims sections")),
                };
                reader.zeros(7)?;
                Request::Fence { epoch, nonce, keep }
            }
            kind::GRANT => {
                let (bytes, section) = (reader.u64()?, reader.u32()?);
                reader.zeros(4)?;
                Request::Grant { bytes, number: section }
            }
            kind::RELEASE => Request::Release { section: reader.u64()? },
            kind::LIST => Request::List,
            kind::CAPACITY => Request::Capacity,
            kind::GRANT_READ => Request::GrantRead { section: reader.u64()?, follower: reader.u64()? },
            kind::REVOKE_READS => Request::RevokeReads { follower: reader.u64()? },
            kind::ADOPT => Request::Adopt { section: reader.u64()? },
            _ => return Err(Error::Malformed("unknown kind of request")),
        };
        reader.end()?;
        Ok((number, request))
    }
}

impl Response {
    /// The message's bytes; those of a grant contain the capability's secret.
    pub(crate) fn encode(&self, number: u32) -> Bytes {
        match self {
            Response::Welcome { hello, node, section_bytes, budget_bytes, free_bytes, incarnation } => {
                let numbers = [*section_bytes, *budget_bytes, *free_bytes, *incarnation];
                head(kind::WELCOME, number).put(&hello.encode()).u32(*node).u64s(numbers).done()
            }
            Response::OtherVersions(hello) => head(kind::WELCOME, number).put(&hello.encode()).done(),
            Response::Fenced { free_bytes, revoked } => {
                head(kind::FENCED, number).u64(*free_bytes).u32(*revoked).u32(0).done()
            }
            Response::ReadsRevoked { free_bytes, revoked } => {
                head(kind::READS_REVOKED, number).u64(*free_bytes).u32(*revoked).u32(0).done()
            }
            Response::Granted { free_bytes, section, bytes, capability } => {
                head(kind::GRANTED, number).u64s([*free_bytes, *section, *bytes]).put(&capability.encode()).done()
            }
            Response::ReadGranted { free_bytes, section, capability } => {
                head(kind::READ_GRANTED, number).u64(*free_bytes).u64(*section).put(&capability.encode()).done()
            }
            Response::Adopted { free_bytes, section, bytes, number: given, capability } => head(kind::ADOPTED, number)
                .u64s([*free_bytes, *section, *bytes])
                .u32(*given)
                .u32(0)
                .put(&capability.encode())
                .done(),
            Response::Released { free_bytes } => head(kind::RELEASED, number).u64(*free_bytes).done(),
            Response::Listed { free_bytes, sections } => {
                assert!(sections.len() <= SECTIONS_PER_OWNER_MAX, "an owner has no more sections");
                let mut writer = head(kind::LISTED, number);
                writer.u64(*free_bytes).u32(sections.len() as u32).u32(0);
                writer.u64s(sections.iter().flat_map(|(section, section_bytes)| [*section, *section_bytes])).done()
            }
            Response::Capacity { free_bytes, budget_bytes } => {
                head(kind::CAPACITY_LEFT, number).u64(*free_bytes).u64(*budget_bytes).done()
            }
            Response::Rejected { rejection, detail, text } => {
                let end = (0..=text.len().min(TEXT_BYTES_MAX)).rev().find(|end| text.is_char_boundary(*end));
                let text = &text[..end.expect("0 is a boundary")];
                head(kind::REJECTED, number).u32(rejection.code()).u32(0).u64(*detail).put(text.as_bytes()).done()
            }
        }
    }

    /// Reads an answer and the number of its request; a notice has [`NOTIFICATION`].
    pub(crate) fn decode(bytes: &[u8]) -> Result<(u32, Response), Error> {
        let mut reader = Reader::new(bytes);
        let (kind, number) = read_head(&mut reader)?;
        let reply = match kind {
            kind::WELCOME => {
                let hello = HelloAnswer::read(&mut reader)?;
                if hello.chosen_by(PROTOCOL_VERSIONS).is_err() {
                    return Ok((number, Response::OtherVersions(hello)));
                }
                Response::Welcome {
                    hello,
                    node: reader.u32()?,
                    section_bytes: reader.u64()?,
                    budget_bytes: reader.u64()?,
                    free_bytes: reader.u64()?,
                    incarnation: reader.u64()?,
                }
            }
            kind::FENCED | kind::READS_REVOKED => {
                let (free_bytes, revoked) = (reader.u64()?, reader.u32()?);
                reader.zeros(4)?;
                match kind {
                    kind::FENCED => Response::Fenced { free_bytes, revoked },
                    _ => Response::ReadsRevoked { free_bytes, revoked },
                }
            }
            kind::GRANTED => Response::Granted {
                free_bytes: reader.u64()?,
                section: reader.u64()?,
                bytes: reader.u64()?,
                capability: read_capability(&mut reader)?,
            },
            kind::READ_GRANTED => Response::ReadGranted {
                free_bytes: reader.u64()?,
                section: reader.u64()?,
                capability: read_capability(&mut reader)?,
            },
            kind::ADOPTED => {
                let (free_bytes, section, bytes, given) = (reader.u64()?, reader.u64()?, reader.u64()?, reader.u32()?);
                reader.zeros(4)?;
                Response::Adopted {
                    free_bytes,
                    section,
                    bytes,
                    number: given,
                    capability: read_capability(&mut reader)?,
                }
            }
            kind::RELEASED => Response::Released { free_bytes: reader.u64()? },
            kind::LISTED => {
                let free_bytes = reader.u64()?;
                let count = reader.u32()? as usize;
                reader.zeros(4)?;
                if count > SECTIONS_PER_OWNER_MAX || Some(reader.left()) != count.checked_mul(LISTED_BYTES) {
                    return Err(Error::Malformed("the length of a list does not match its count"));
                }
                let sections = (0..count).map(|_| Ok((reader.u64()?, reader.u64()?))).collect::<Result<_, Error>>()?;
                Response::Listed { free_bytes, sections }
            }
            kind::CAPACITY_LEFT => Response::Capacity { free_bytes: reader.u64()?, budget_bytes: reader.u64()? },
            kind::REJECTED => {
                let refusal =
                    Rejection::of_code(reader.u32()?).ok_or(Error::Malformed("unknown reason of a refusal"))?;
                reader.zeros(4)?;
                let detail = reader.u64()?;
                let text = reader.rest();
                if text.len() > TEXT_BYTES_MAX {
                    return Err(Error::Malformed("a refusal's text is too long"));
                }
                let text = std::str::from_utf8(text).map_err(|_| Error::Malformed("a refusal's text is not UTF-8"))?;
                Response::Rejected { rejection: refusal, detail, text: text.to_owned() }
            }
            _ => return Err(Error::Malformed("unknown kind of answer")),
        };
        reader.end()?;
        Ok((number, reply))
    }
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
