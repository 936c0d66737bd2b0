//! Control messages between an owner and a memory node: `docs/formats/section-table.md`.
//!
//! A message starts with eight bytes: its kind, three zero bytes, and the number of the request, which the answer
//! repeats. Numbers are little-endian. Notifications of the memory node carry the number 0, which no request has.
//!
//! The first twelve bytes of a hello are the same in all versions, so that each side can learn the other's version.
//!
//! Invariant: any bytes decode into a message or an error; every message has one encoding.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::Epoch;
use base::bytes::{BufMut as _, Bytes, BytesMut};
use rma::{CAPABILITY_BYTES, Capability};

use crate::Error;

/// Raised with every change of the messages or of their meaning.
pub const PROTOCOL_VERSION: u32 = 2;
/// Bytes of the head that every message starts with.
const HEAD_BYTES: usize = 8;
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
    Hello { version: u32, section_bytes: u64 },
    /// Takes the owner's memory over under an epoch and revokes all capabilities of older epochs. Precedes all requests
    /// below.
    Fence { epoch: Epoch, nonce: u64 },
    /// Requests one more section.
    Grant { bytes: u64 },
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
}

/// Answers of a memory node. `free_bytes` is how much it could still grant.
#[derive(Clone, Debug)]
pub(crate) enum Response {
    Welcome { version: u32, node: u32, section_bytes: u64, budget_bytes: u64, free_bytes: u64, incarnation: u64 },
    Fenced { free_bytes: u64, revoked: u32 },
    Granted { free_bytes: u64, section: DonorSection, bytes: u64, capability: Capability },
    Released { free_bytes: u64 },
    Listed { free_bytes: u64, sections: Vec<(DonorSection, u64)> },
    Capacity { free_bytes: u64, budget_bytes: u64 },
    ReadGranted { free_bytes: u64, section: DonorSection, capability: Capability },
    ReadsRevoked { free_bytes: u64, revoked: u32 },
    Rejected { rejection: Rejection, detail: u64, text: String },
}

/// Why a request was rejected, and what `detail` means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// Not a message of the protocol, or not one that may come now. The connection ends.
    Malformed,
    /// `detail`: the node's version. The connection ends.
    Version,
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
    const ALL: [Rejection; 9] = [
        Rejection::Malformed,
        Rejection::Version,
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
            Rejection::Version => 2,
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
    pub const RESPONSE: u8 = 0x80;
    pub const WELCOME: u8 = RESPONSE | HELLO;
    pub const FENCED: u8 = RESPONSE | FENCE;
    pub const GRANTED: u8 = RESPONSE | GRANT;
    pub const RELEASED: u8 = RESPONSE | RELEASE;
    pub const LISTED: u8 = RESPONSE | LIST;
    pub const CAPACITY_LEFT: u8 = RESPONSE | CAPACITY;
    pub const READ_GRANTED: u8 = RESPONSE | GRANT_READ;
    pub const READS_REVOKED: u8 = RESPONSE | REVOKE_READS;
    pub const REJECTED: u8 = 0xFF;
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
            Request::Fence { epoch, nonce: holder } => {
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
            Request::Capacity => bytes = head(kind::CAPACITY, number, 0),
            Request::GrantRead { section, follower: reader } => {
                bytes = head(kind::GRANT_READ, number, 16);
                bytes.put_u64_le(*section);
                bytes.put_u64_le(*reader);
            }
            Request::RevokeReads { follower: reader } => {
                bytes = head(kind::REVOKE_READS, number, 8);
                bytes.put_u64_le(*reader);
            }
        }
        bytes.freeze()
    }

    /// Reads a request and its number.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(u32, Request), Error> {
        let mut reader = Reader(bytes);
        let (kind, number) = reader.head()?;
        if number == NOTIFICATION {
            return Err(Error::Malformed("a request has number 0, which is for notices"));
        }
        let request = match kind {
            kind::HELLO => {
                let version = reader.u32()?;
                if version != PROTOCOL_VERSION {
                    // The rest is in that version's format.
                    return Ok((number, Request::Hello { version, section_bytes: 0 }));
                }
                reader.zero()?;
                Request::Hello { version, section_bytes: reader.u64()? }
            }
            kind::FENCE => Request::Fence { epoch: Epoch(reader.u64()?), nonce: reader.u64()? },
            kind::GRANT => Request::Grant { bytes: reader.u64()? },
            kind::RELEASE => Request::Release { section: reader.u64()? },
            kind::LIST => Request::List,
            kind::CAPACITY => Request::Capacity,
            kind::GRANT_READ => Request::GrantRead { section: reader.u64()?, follower: reader.u64()? },
            kind::REVOKE_READS => Request::RevokeReads { follower: reader.u64()? },
            _ => return Err(Error::Malformed("unknown kind of request")),
        };
        reader.end()?;
        Ok((number, request))
    }
}

impl Response {
    /// The message's bytes; those of a grant contain the capability's secret.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(crate) fn encode(&self, number: u32) -> Bytes {
        let mut bytes;
        match self {
            Response::Welcome { version, node, section_bytes, budget_bytes, free_bytes, incarnation: life } => {
                bytes = head(kind::WELCOME, number, 40);
                bytes.put_u32_le(*version);
                bytes.put_u32_le(*node);
                for value in [section_bytes, budget_bytes, free_bytes, life] {
                    bytes.put_u64_le(*value);
                }
            }
            Response::Fenced { free_bytes, revoked } | Response::ReadsRevoked { free_bytes, revoked } => {
                let is_fence = matches!(self, Response::Fenced { .. });
                bytes = head(if is_fence { kind::FENCED } else { kind::READS_REVOKED }, number, 16);
                bytes.put_u64_le(*free_bytes);
                bytes.put_u32_le(*revoked);
                bytes.put_u32_le(0);
            }
            Response::Granted { free_bytes, section, bytes: given, capability } => {
                bytes = head(kind::GRANTED, number, 24 + CAPABILITY_BYTES);
                for value in [free_bytes, section, given] {
                    bytes.put_u64_le(*value);
                }
                bytes.put_slice(&capability.encode());
            }
            Response::ReadGranted { free_bytes, section, capability } => {
                bytes = head(kind::READ_GRANTED, number, 16 + CAPABILITY_BYTES);
                bytes.put_u64_le(*free_bytes);
                bytes.put_u64_le(*section);
                bytes.put_slice(&capability.encode());
            }
            Response::Released { free_bytes } => {
                bytes = head(kind::RELEASED, number, 8);
                bytes.put_u64_le(*free_bytes);
            }
            Response::Listed { free_bytes, sections } => {
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
            Response::Capacity { free_bytes, budget_bytes } => {
                bytes = head(kind::CAPACITY_LEFT, number, 16);
                bytes.put_u64_le(*free_bytes);
                bytes.put_u64_le(*budget_bytes);
            }
            Response::Rejected { rejection: refusal, detail, text } => {
                let end = (0..=text.len().min(TEXT_BYTES_MAX)).rev().find(|end| text.is_char_boundary(*end));
                let text = &text[..end.expect("0 is a boundary")];
                bytes = head(kind::REJECTED, number, 16 + text.len());
                bytes.put_u32_le(refusal.code());
                bytes.put_u32_le(0);
                bytes.put_u64_le(*detail);
                bytes.put_slice(text.as_bytes());
            }
        }
        bytes.freeze()
    }

    /// Reads an answer and the number of its request; a notice has [`NOTIFICATION`].
    pub(crate) fn decode(bytes: &[u8]) -> Result<(u32, Response), Error> {
        let mut reader = Reader(bytes);
        let (kind, number) = reader.head()?;
        let reply = match kind {
            kind::WELCOME => Response::Welcome {
                version: reader.u32()?,
                node: reader.u32()?,
                section_bytes: reader.u64()?,
                budget_bytes: reader.u64()?,
                free_bytes: reader.u64()?,
                incarnation: reader.u64()?,
            },
            kind::FENCED | kind::READS_REVOKED => {
                let (free_bytes, revoked) = (reader.u64()?, reader.u32()?);
                reader.zero()?;
                match kind {
                    kind::FENCED => Response::Fenced { free_bytes, revoked },
                    _ => Response::ReadsRevoked { free_bytes, revoked },
                }
            }
            kind::GRANTED => Response::Granted {
                free_bytes: reader.u64()?,
                section: reader.u64()?,
                bytes: reader.u64()?,
                capability: reader.capability()?,
            },
            kind::READ_GRANTED => Response::ReadGranted {
                free_bytes: reader.u64()?,
                section: reader.u64()?,
                capability: reader.capability()?,
            },
            kind::RELEASED => Response::Released { free_bytes: reader.u64()? },
            kind::LISTED => {
                let free_bytes = reader.u64()?;
                let count = reader.u32()? as usize;
                reader.zero()?;
                if count > SECTIONS_PER_OWNER_MAX || Some(reader.0.len()) != count.checked_mul(LISTED_BYTES) {
                    return Err(Error::Malformed("the length of a list does not match its count"));
                }
                let sections = (0..count).map(|_| Ok((reader.u64()?, reader.u64()?))).collect::<Result<_, Error>>()?;
                Response::Listed { free_bytes, sections }
            }
            kind::CAPACITY_LEFT => Response::Capacity { free_bytes: reader.u64()?, budget_bytes: reader.u64()? },
            kind::REJECTED => {
                let refusal =
                    Rejection::of_code(reader.u32()?).ok_or(Error::Malformed("unknown reason of a refusal"))?;
                reader.zero()?;
                let detail = reader.u64()?;
                let text = reader.take(reader.0.len())?;
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

/// The rest of a message.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Error::Malformed("the message is too short"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn head(&mut self) -> Result<(u8, u32), Error> {
        let kind = self.take(1)?[0];
        if self.take(3)? != [0; 3] {
            return Err(Error::Malformed("reserved bytes are not zero"));
        }
        Ok((kind, self.u32()?))
    }

    fn u32(&mut self) -> Result<u32, Error> {
        let bytes = self.take(4)?.try_into().map_err(|_| Error::Malformed("the message is too short"))?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn u64(&mut self) -> Result<u64, Error> {
        let bytes = self.take(8)?.try_into().map_err(|_| Error::Malformed("the message is too short"))?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn capability(&mut self) -> Result<Capability, Error> {
        let bytes = self.take(CAPABILITY_BYTES)?;
        Capability::decode(bytes).map_err(|_| Error::Malformed("a grant contains no valid capability"))
    }

    fn zero(&mut self) -> Result<(), Error> {
        if self.u32()? == 0 { Ok(()) } else { Err(Error::Malformed("reserved bytes are not zero")) }
    }

    fn end(&self) -> Result<(), Error> {
        if self.0.is_empty() { Ok(()) } else { Err(Error::Malformed("the message is too long")) }
    }
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
