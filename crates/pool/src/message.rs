//! Control messages between an owner and a memory node: `docs/formats/section-table.md`.
//!
//! A message begins with eight bytes: its kind, three zero bytes, and the number of the request, which its answer repeats.
//! Numbers are little-endian. Notices of the memory node bear the number 0, which no request has.
//!
//! The first twelve bytes of a hello never change, so that each side can tell the other's version.
//!
//! Invariant: whatever arrives decodes into a message or an error; every message has one encoding.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::Epoch;
use base::bytes::{BufMut as _, Bytes, BytesMut};
use rma::{CAPABILITY_BYTES, Capability};

use crate::Error;

/// Raised with every change of the messages or of what they mean.
pub const PROTOCOL_VERSION: u32 = 2;
/// Bytes before a message's own.
const HEAD_BYTES: usize = 8;
/// The number of messages that answer no request.
pub(crate) const NOTICE: u32 = 0;
/// Bytes of a refusal's text; what is longer is cut.
const TEXT_BYTES_MAX: usize = 512;
/// Sections that one owner may have at one donor, and entries of one list.
pub(crate) const SECTIONS_PER_OWNER_MAX: usize = 1 << 16;
/// Bytes of one entry of a list.
const LISTED_BYTES: usize = 16;

/// A section as its donor numbers it: never used again in the donor's life.
pub(crate) type DonorSection = u64;

/// What an owner asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// First on every connection.
    Hello { version: u32, section_bytes: u64 },
    /// Takes the owner's memory over under an epoch and revokes what older ones had. Before any request below.
    Fence { epoch: Epoch, holder: u64 },
    /// One more section.
    Grant { bytes: u64 },
    /// Gives a section back.
    Release { section: DonorSection },
    /// Which sections this owner has here.
    List,
    /// How much room there is.
    Room,
    /// A capability of its own, to read a section, for another compute node of the owner: a reader.
    Share { section: DonorSection, reader: u64 },
    /// Revokes what a reader was given.
    Unshare { reader: u64 },
}

/// What a memory node answers. `free_bytes` is what it could still give.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Welcome { version: u32, node: u32, section_bytes: u64, budget_bytes: u64, free_bytes: u64, life: u64 },
    Fenced { free_bytes: u64, revoked: u32 },
    Granted { free_bytes: u64, section: DonorSection, bytes: u64, capability: Capability },
    Released { free_bytes: u64 },
    Listed { free_bytes: u64, sections: Vec<(DonorSection, u64)> },
    Room { free_bytes: u64, budget_bytes: u64 },
    Shared { free_bytes: u64, section: DonorSection, capability: Capability },
    Unshared { free_bytes: u64, revoked: u32 },
    Refused { refusal: Refusal, detail: u64, text: String },
}

/// Why a request was refused, and what `detail` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No message of the protocol, or not one that is due. The connection ends.
    Malformed,
    /// `detail`: the node's version. The connection ends.
    Version,
    /// `detail`: the node's section size.
    SectionSize,
    /// `detail`: the newest epoch. The connection ends.
    Fenced,
    /// `detail`: bytes that are free.
    Exhausted,
    /// No such section of this owner.
    UnknownSection,
    /// A revocation could not be confirmed; ask again.
    Unconfirmed,
    /// The same holder has connected again; this connection is of no use.
    Superseded,
    /// Too many owners, connections or sections.
    TooMany,
}

impl Refusal {
    const ALL: [Refusal; 9] = [
        Refusal::Malformed,
        Refusal::Version,
        Refusal::SectionSize,
        Refusal::Fenced,
        Refusal::Exhausted,
        Refusal::UnknownSection,
        Refusal::Unconfirmed,
        Refusal::Superseded,
        Refusal::TooMany,
    ];

    fn code(self) -> u32 {
        match self {
            Refusal::Malformed => 1,
            Refusal::Version => 2,
            Refusal::SectionSize => 3,
            Refusal::Fenced => 4,
            Refusal::Exhausted => 5,
            Refusal::UnknownSection => 6,
            Refusal::Unconfirmed => 7,
            Refusal::Superseded => 8,
            Refusal::TooMany => 9,
        }
    }

    fn of_code(code: u32) -> Option<Refusal> {
        Refusal::ALL.into_iter().find(|refusal| refusal.code() == code)
    }
}

mod kind {
    pub const HELLO: u8 = 0x01;
    pub const FENCE: u8 = 0x02;
    pub const GRANT: u8 = 0x03;
    pub const RELEASE: u8 = 0x04;
    pub const LIST: u8 = 0x05;
    pub const ROOM: u8 = 0x06;
    pub const SHARE: u8 = 0x07;
    pub const UNSHARE: u8 = 0x08;
    pub const ANSWER: u8 = 0x80;
    pub const WELCOME: u8 = ANSWER | HELLO;
    pub const FENCED: u8 = ANSWER | FENCE;
    pub const GRANTED: u8 = ANSWER | GRANT;
    pub const RELEASED: u8 = ANSWER | RELEASE;
    pub const LISTED: u8 = ANSWER | LIST;
    pub const ROOM_LEFT: u8 = ANSWER | ROOM;
    pub const SHARED: u8 = ANSWER | SHARE;
    pub const UNSHARED: u8 = ANSWER | UNSHARE;
    pub const REFUSED: u8 = 0xFF;
}

#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
fn head(kind: u8, number: u32, body_bytes: usize) -> BytesMut {
    let mut bytes = BytesMut::with_capacity(HEAD_BYTES + body_bytes);
    bytes.put_slice(&[kind, 0, 0, 0]);
    bytes.put_u32_le(number);
    bytes
}

impl Request {
    /// The message's bytes.
    pub(crate) fn encode(&self, number: u32) -> Bytes {
        let mut bytes;
        match self {
            Request::Hello { version, section_bytes } => {
                bytes = head(kind::HELLO, number, 16);
                bytes.put_u32_le(*version);
                bytes.put_u32_le(0);
                bytes.put_u64_le(*section_bytes);
            }
            Request::Fence { epoch, holder } => {
                bytes = head(kind::FENCE, number, 16);
                bytes.put_u64_le(epoch.get());
                bytes.put_u64_le(*holder);
            }
            Request::Grant { bytes: wanted } => {
                bytes = head(kind::GRANT, number, 8);
                bytes.put_u64_le(*wanted);
            }
            Request::Release { section } => {
                bytes = head(kind::RELEASE, number, 8);
                bytes.put_u64_le(*section);
            }
            Request::List => bytes = head(kind::LIST, number, 0),
            Request::Room => bytes = head(kind::ROOM, number, 0),
            Request::Share { section, reader } => {
                bytes = head(kind::SHARE, number, 16);
                bytes.put_u64_le(*section);
                bytes.put_u64_le(*reader);
            }
            Request::Unshare { reader } => {
                bytes = head(kind::UNSHARE, number, 8);
                bytes.put_u64_le(*reader);
            }
        }
        bytes.freeze()
    }

    /// Reads a request and its number.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(u32, Request), Error> {
        let mut reader = Reader(bytes);
        let (kind, number) = reader.head()?;
        if number == NOTICE {
            return Err(Error::Malformed("a request without a number"));
        }
        let request = match kind {
            kind::HELLO => {
                let version = reader.u32()?;
                if version != PROTOCOL_VERSION {
                    // What follows is that version's.
                    return Ok((number, Request::Hello { version, section_bytes: 0 }));
                }
                reader.zero()?;
                Request::Hello { version, section_bytes: reader.u64()? }
            }
            kind::FENCE => Request::Fence { epoch: Epoch(reader.u64()?), holder: reader.u64()? },
            kind::GRANT => Request::Grant { bytes: reader.u64()? },
            kind::RELEASE => Request::Release { section: reader.u64()? },
            kind::LIST => Request::List,
            kind::ROOM => Request::Room,
            kind::SHARE => Request::Share { section: reader.u64()?, reader: reader.u64()? },
            kind::UNSHARE => Request::Unshare { reader: reader.u64()? },
            _ => return Err(Error::Malformed("a request of an unknown kind")),
        };
        reader.end()?;
        Ok((number, request))
    }
}

impl Reply {
    /// The message's bytes; those of a grant contain the capability's secret.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(crate) fn encode(&self, number: u32) -> Bytes {
        let mut bytes;
        match self {
            Reply::Welcome { version, node, section_bytes, budget_bytes, free_bytes, life } => {
                bytes = head(kind::WELCOME, number, 40);
                bytes.put_u32_le(*version);
                bytes.put_u32_le(*node);
                for value in [section_bytes, budget_bytes, free_bytes, life] {
                    bytes.put_u64_le(*value);
                }
            }
            Reply::Fenced { free_bytes, revoked } | Reply::Unshared { free_bytes, revoked } => {
                let is_fence = matches!(self, Reply::Fenced { .. });
                bytes = head(if is_fence { kind::FENCED } else { kind::UNSHARED }, number, 16);
                bytes.put_u64_le(*free_bytes);
                bytes.put_u32_le(*revoked);
                bytes.put_u32_le(0);
            }
            Reply::Granted { free_bytes, section, bytes: given, capability } => {
                bytes = head(kind::GRANTED, number, 24 + CAPABILITY_BYTES);
                for value in [free_bytes, section, given] {
                    bytes.put_u64_le(*value);
                }
                bytes.put_slice(&capability.encode());
            }
            Reply::Shared { free_bytes, section, capability } => {
                bytes = head(kind::SHARED, number, 16 + CAPABILITY_BYTES);
                bytes.put_u64_le(*free_bytes);
                bytes.put_u64_le(*section);
                bytes.put_slice(&capability.encode());
            }
            Reply::Released { free_bytes } => {
                bytes = head(kind::RELEASED, number, 8);
                bytes.put_u64_le(*free_bytes);
            }
            Reply::Listed { free_bytes, sections } => {
                assert!(sections.len() <= SECTIONS_PER_OWNER_MAX, "an owner has no more sections");
                bytes = head(kind::LISTED, number, 16 + LISTED_BYTES * sections.len());
                bytes.put_u64_le(*free_bytes);
                bytes.put_u32_le(sections.len() as u32);
                bytes.put_u32_le(0);
                for (section, section_bytes) in sections {
                    bytes.put_u64_le(*section);
                    bytes.put_u64_le(*section_bytes);
                }
            }
            Reply::Room { free_bytes, budget_bytes } => {
                bytes = head(kind::ROOM_LEFT, number, 16);
                bytes.put_u64_le(*free_bytes);
                bytes.put_u64_le(*budget_bytes);
            }
            Reply::Refused { refusal, detail, text } => {
                let end = (0..=text.len().min(TEXT_BYTES_MAX)).rev().find(|end| text.is_char_boundary(*end));
                let text = &text[..end.expect("0 is a boundary")];
                bytes = head(kind::REFUSED, number, 16 + text.len());
                bytes.put_u32_le(refusal.code());
                bytes.put_u32_le(0);
                bytes.put_u64_le(*detail);
                bytes.put_slice(text.as_bytes());
            }
        }
        bytes.freeze()
    }

    /// Reads an answer and the number of its request; a notice has [`NOTICE`].
    pub(crate) fn decode(bytes: &[u8]) -> Result<(u32, Reply), Error> {
        let mut reader = Reader(bytes);
        let (kind, number) = reader.head()?;
        let reply = match kind {
            kind::WELCOME => Reply::Welcome {
                version: reader.u32()?,
                node: reader.u32()?,
                section_bytes: reader.u64()?,
                budget_bytes: reader.u64()?,
                free_bytes: reader.u64()?,
                life: reader.u64()?,
            },
            kind::FENCED | kind::UNSHARED => {
                let (free_bytes, revoked) = (reader.u64()?, reader.u32()?);
                reader.zero()?;
                match kind {
                    kind::FENCED => Reply::Fenced { free_bytes, revoked },
                    _ => Reply::Unshared { free_bytes, revoked },
                }
            }
            kind::GRANTED => Reply::Granted {
                free_bytes: reader.u64()?,
                section: reader.u64()?,
                bytes: reader.u64()?,
                capability: reader.capability()?,
            },
            kind::SHARED => {
                Reply::Shared { free_bytes: reader.u64()?, section: reader.u64()?, capability: reader.capability()? }
            }
            kind::RELEASED => Reply::Released { free_bytes: reader.u64()? },
            kind::LISTED => {
                let free_bytes = reader.u64()?;
                let count = reader.u32()? as usize;
                reader.zero()?;
                if count > SECTIONS_PER_OWNER_MAX || Some(reader.0.len()) != count.checked_mul(LISTED_BYTES) {
                    return Err(Error::Malformed("a list of another length"));
                }
                let sections = (0..count).map(|_| Ok((reader.u64()?, reader.u64()?))).collect::<Result<_, Error>>()?;
                Reply::Listed { free_bytes, sections }
            }
            kind::ROOM_LEFT => Reply::Room { free_bytes: reader.u64()?, budget_bytes: reader.u64()? },
            kind::REFUSED => {
                let refusal = Refusal::of_code(reader.u32()?).ok_or(Error::Malformed("an unknown refusal"))?;
                reader.zero()?;
                let detail = reader.u64()?;
                let text = reader.take(reader.0.len())?;
                if text.len() > TEXT_BYTES_MAX {
                    return Err(Error::Malformed("a refusal that is too long"));
                }
                let text = std::str::from_utf8(text).map_err(|_| Error::Malformed("a refusal that is no text"))?;
                Reply::Refused { refusal, detail, text: text.to_owned() }
            }
            _ => return Err(Error::Malformed("an answer of an unknown kind")),
        };
        reader.end()?;
        Ok((number, reply))
    }
}

/// What is left of a message.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Error::Malformed("a message that is too short"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn head(&mut self) -> Result<(u8, u32), Error> {
        let kind = self.take(1)?[0];
        if self.take(3)? != [0; 3] {
            return Err(Error::Malformed("a message with reserved bytes set"));
        }
        Ok((kind, self.u32()?))
    }

    fn u32(&mut self) -> Result<u32, Error> {
        let bytes = self.take(4)?.try_into().map_err(|_| Error::Malformed("a message that is too short"))?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn u64(&mut self) -> Result<u64, Error> {
        let bytes = self.take(8)?.try_into().map_err(|_| Error::Malformed("a message that is too short"))?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn capability(&mut self) -> Result<Capability, Error> {
        let bytes = self.take(CAPABILITY_BYTES)?;
        Capability::decode(bytes).map_err(|_| Error::Malformed("a grant without a capability"))
    }

    fn zero(&mut self) -> Result<(), Error> {
        if self.u32()? == 0 { Ok(()) } else { Err(Error::Malformed("a message with reserved bytes set")) }
    }

    fn end(&self) -> Result<(), Error> {
        if self.0.is_empty() { Ok(()) } else { Err(Error::Malformed("a message that is too long")) }
    }
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
