//! The bytes of the `tcp` provider: `docs/formats/rma.md`.
//!
//! Everything here decodes what another host sent: an error, never a panic. A length is believed because it is at most its
//! bound; an offset is not believed at all ([`Untrusted`]) until the region has said that the range lies within it.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::untrusted::Untrusted;

use crate::{CAPABILITY_BYTES, Capability, Error, MESSAGE_BYTES_MAX, TRANSFER_BYTES_MAX};

/// Of the protocol. Both sides must have the same.
pub const VERSION: u32 = 1;
/// Bytes at the start of each frame.
pub const HEADER_BYTES: usize = 16;
/// Bytes of a verb behind its header.
pub const VERB_BYTES: usize = CAPABILITY_BYTES + 24;
/// Bytes behind the payload of a long reply.
pub const TRAILER_BYTES: usize = 8;

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Read,
    Write,
    WriteWithImmediate,
    CompareSwap,
    FetchAdd,
    /// A message of `length` bytes; in both directions.
    Message,
    /// So many messages (`sequence`) of so many bytes (`length`) were taken by their receiver; in both directions.
    Credit,
    /// The outcome of a verb, with `length` bytes.
    Reply,
    /// As a reply, with a trailer that says whether the bytes are whole.
    LongReply,
}

impl Kind {
    const ALL: [(Kind, u8); 9] = [
        (Kind::Read, 1),
        (Kind::Write, 2),
        (Kind::WriteWithImmediate, 3),
        (Kind::CompareSwap, 4),
        (Kind::FetchAdd, 5),
        (Kind::Message, 6),
        (Kind::Credit, 7),
        (Kind::Reply, 0x81),
        (Kind::LongReply, 0x82),
    ];

    fn code(self) -> u8 {
        match self {
            Kind::Read => 1,
            Kind::Write => 2,
            Kind::WriteWithImmediate => 3,
            Kind::CompareSwap => 4,
            Kind::FetchAdd => 5,
            Kind::Message => 6,
            Kind::Credit => 7,
            Kind::Reply => 0x81,
            Kind::LongReply => 0x82,
        }
    }

    /// Whether a verb follows the header.
    pub fn is_verb(self) -> bool {
        matches!(self, Kind::Read | Kind::Write | Kind::WriteWithImmediate | Kind::CompareSwap | Kind::FetchAdd)
    }
}

/// The start of every frame.
///
/// ```text
/// kind:u8 | status:u8 | 0:u16 | sequence:u32 le | length:u64 le
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    pub kind: Kind,
    pub status: u8,
    pub sequence: u32,
    pub length: u64,
}

impl Header {
    pub fn new(kind: Kind, sequence: u32, length: u64) -> Header {
        Header { kind, status: 0, sequence, length }
    }

    #[inline]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.kind.code();
        bytes[1] = self.status;
        bytes[4..8].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    /// # Errors
    /// [`Error::Malformed`].
    #[inline]
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, Error> {
        let kind = Kind::ALL.iter().find(|(_, code)| *code == bytes[0]).map(|(kind, _)| *kind);
        let kind = kind.ok_or(Error::Malformed("a frame of an unknown kind"))?;
        let (sequence, length) = (u32_at(bytes, 4), u64_at(bytes, 8));
        let replies = matches!(kind, Kind::Reply | Kind::LongReply);
        if (bytes[1] != 0 && !replies) || bytes[2..4] != [0; 2] {
            return Err(Error::Malformed("a frame with reserved bytes set"));
        }
        let longest = match kind {
            Kind::Read | Kind::Write | Kind::WriteWithImmediate | Kind::Reply | Kind::LongReply => TRANSFER_BYTES_MAX,
            Kind::CompareSwap | Kind::FetchAdd => 8,
            Kind::Message => MESSAGE_BYTES_MAX,
            Kind::Credit => usize::MAX,
        };
        if length > longest as u64 || (matches!(kind, Kind::CompareSwap | Kind::FetchAdd) && length != 8) {
            return Err(Error::Malformed("a frame of a wrong length"));
        }
        Ok(Header { kind, status: bytes[1], sequence, length })
    }
}

/// What follows the header of a verb.
///
/// ```text
/// capability:40 | offset:u64 le | first:u64 le | second:u64 le
/// ```
///
/// `first` is the immediate data, the expected word or what to add; `second` the new word.
#[derive(Clone, Copy, Debug)]
pub struct Verb {
    pub capability: Capability,
    pub offset: Untrusted<u64>,
    pub first: u64,
    pub second: u64,
}

impl Verb {
    #[inline]
    pub fn encode(&self) -> [u8; VERB_BYTES] {
        let mut bytes = [0; VERB_BYTES];
        bytes[..CAPABILITY_BYTES].copy_from_slice(&self.capability.encode());
        bytes[CAPABILITY_BYTES..][..8].copy_from_slice(&self.offset.unchecked().to_le_bytes());
        bytes[CAPABILITY_BYTES + 8..][..8].copy_from_slice(&self.first.to_le_bytes());
        bytes[CAPABILITY_BYTES + 16..].copy_from_slice(&self.second.to_le_bytes());
        bytes
    }

    /// # Errors
    /// [`Error::Malformed`].
    #[inline]
    pub fn decode(bytes: &[u8; VERB_BYTES]) -> Result<Verb, Error> {
        Ok(Verb {
            capability: Capability::decode(&bytes[..CAPABILITY_BYTES])?,
            offset: Untrusted::new(u64_at(bytes, CAPABILITY_BYTES)),
            first: u64_at(bytes, CAPABILITY_BYTES + 8),
            second: u64_at(bytes, CAPABILITY_BYTES + 16),
        })
    }
}

/// How a verb ended. `OutOfBounds` carries the region's size as the payload of its reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    Done,
    Revoked,
    Unknown,
    Forbidden,
    OutOfBounds,
    Misaligned,
    TooLarge,
    /// Revoked after a part of it had taken effect.
    Ambiguous,
}

impl Status {
    const ALL: [Status; 8] = [
        Status::Done,
        Status::Revoked,
        Status::Unknown,
        Status::Forbidden,
        Status::OutOfBounds,
        Status::Misaligned,
        Status::TooLarge,
        Status::Ambiguous,
    ];

    pub fn code(self) -> u8 {
        self as u8
    }

    /// # Errors
    /// [`Error::Malformed`].
    pub fn from_code(code: u8) -> Result<Status, Error> {
        Status::ALL.get(usize::from(code)).copied().ok_or(Error::Malformed("a reply with an unknown status"))
    }
}

/// Little-endian, at `at`. The caller knows that it is there.
#[inline]
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..][..8]);
    u64::from_le_bytes(word)
}

/// Little-endian, at `at`. The caller knows that it is there.
#[inline]
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..][..4]);
    u32::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{GrantId, NodeId, RegionId, Rights, Secret};

    #[test]
    fn frames_have_the_documented_layout() {
        let header = Header::new(Kind::CompareSwap, 0x0403_0201, 8);
        assert_eq!(header.encode(), [4, 0, 0, 0, 1, 2, 3, 4, 8, 0, 0, 0, 0, 0, 0, 0]);
        let reply = Header { kind: Kind::LongReply, status: Status::Revoked.code(), sequence: 7, length: 0x0102 };
        assert_eq!(reply.encode(), [0x82, 1, 0, 0, 7, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0]);
        let capability = Capability {
            node: NodeId(1),
            region: RegionId(2),
            grant: GrantId(3),
            rights: Rights::ALL,
            generation: 4,
            secret: Secret([9; 16]),
        };
        let verb = Verb { capability, offset: Untrusted::new(0x10), first: 0x20, second: 0x30 };
        let mut golden = vec![1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 7, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0];
        golden.extend([9; 16]);
        golden.extend([0x10, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0x30, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(verb.encode()[..], golden);
    }

    #[test]
    fn every_kind_and_status_is_read_as_it_was_written() {
        for (kind, code) in Kind::ALL {
            assert_eq!(kind.code(), code);
            let header = Header::new(kind, 5, 8);
            assert_eq!(Header::decode(&header.encode()).expect("it is well-formed"), header);
        }
        for status in Status::ALL {
            assert_eq!(Status::from_code(status.code()).expect("it is known"), status);
        }
        assert!(Status::from_code(8).is_err());
    }

    #[test]
    fn lengths_beyond_the_bounds_are_refused() {
        for (kind, length) in [
            (Kind::Read, TRANSFER_BYTES_MAX as u64 + 1),
            (Kind::Write, u64::MAX),
            (Kind::Message, MESSAGE_BYTES_MAX as u64 + 1),
            (Kind::Reply, TRANSFER_BYTES_MAX as u64 + 1),
            (Kind::FetchAdd, 7),
        ] {
            assert!(Header::decode(&Header::new(kind, 0, length).encode()).is_err(), "{kind:?} {length}");
        }
    }

    proptest! {
        #[test]
        fn what_decodes_encodes_to_the_same_bytes(bytes: [u8; HEADER_BYTES]) {
            if let Ok(header) = Header::decode(&bytes) {
                prop_assert_eq!(header.encode(), bytes);
            }
        }

        #[test]
        fn verbs_that_decode_encode_to_the_same_bytes(
            mut bytes in prop::collection::vec(any::<u8>(), VERB_BYTES),
            tame: bool,
        ) {
            if tame {
                bytes[10] &= 7;
                bytes[11..16].fill(0);
            }
            let bytes: [u8; VERB_BYTES] = bytes.try_into().expect("it has this length");
            if let Ok(verb) = Verb::decode(&bytes) {
                prop_assert_eq!(verb.encode(), bytes);
            } else {
                prop_assert!(!tame);
            }
        }
    }
}
