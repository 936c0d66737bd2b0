//! The bytes of the `tcp` provider: `docs/formats/rma.md`.
//!
//! All bytes here come from another host, so decoding returns an error and never panics. A length is accepted when it is at
//! most its bound; an offset stays [`Untrusted`] until the region has checked that the range lies within it.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::untrusted::Untrusted;
use wire::{VersionRange, u32_at, u64_at};

use crate::{CAPABILITY_BYTES, Capability, Error, MESSAGE_BYTES_MAX, TRANSFER_BYTES_MAX};

/// The versions of the protocol that this program speaks.
pub const PROTOCOL_VERSIONS: VersionRange = VersionRange::only(1);
/// Bytes at the start of each frame.
pub const HEADER_BYTES: usize = 16;
/// Bytes of a verb behind its header.
pub const VERB_BYTES: usize = CAPABILITY_BYTES + 24;
/// Bytes behind the payload of a long reply.
pub const TRAILER_BYTES: usize = 8;

/// The kind of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameKind {
    Read,
    Write,
    WriteWithImmediate,
    CompareSwap,
    FetchAdd,
    /// A message of `length` bytes; in both directions.
    Message,
    /// The receiver has taken `sequence` messages of `length` bytes in all; in both directions.
    Credit,
    /// The outcome of a verb, with `length` bytes.
    Reply,
    /// A reply with a trailer that says whether the bytes are whole.
    LongReply,
}

impl FrameKind {
    const ALL: [(FrameKind, u8); 9] = [
        (FrameKind::Read, 1),
        (FrameKind::Write, 2),
        (FrameKind::WriteWithImmediate, 3),
        (FrameKind::CompareSwap, 4),
        (FrameKind::FetchAdd, 5),
        (FrameKind::Message, 6),
        (FrameKind::Credit, 7),
        (FrameKind::Reply, 0x81),
        (FrameKind::LongReply, 0x82),
    ];

    fn code(self) -> u8 {
        match self {
            FrameKind::Read => 1,
            FrameKind::Write => 2,
            FrameKind::WriteWithImmediate => 3,
            FrameKind::CompareSwap => 4,
            FrameKind::FetchAdd => 5,
            FrameKind::Message => 6,
            FrameKind::Credit => 7,
            FrameKind::Reply => 0x81,
            FrameKind::LongReply => 0x82,
        }
    }

    /// Whether a verb follows the header.
    pub fn is_verb(self) -> bool {
        matches!(
            self,
            FrameKind::Read
                | FrameKind::Write
                | FrameKind::WriteWithImmediate
                | FrameKind::CompareSwap
                | FrameKind::FetchAdd
        )
    }
}

/// The start of every frame.
///
/// ```text
/// kind:u8 | status:u8 | 0:u16 | sequence:u32 le | length:u64 le
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    pub kind: FrameKind,
    pub status: u8,
    pub sequence: u32,
    pub length: u64,
}

impl FrameHeader {
    pub fn new(kind: FrameKind, sequence: u32, length: u64) -> FrameHeader {
        FrameHeader { kind, status: 0, sequence, length }
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
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<FrameHeader, Error> {
        let kind = FrameKind::ALL.iter().find(|(_, code)| *code == bytes[0]).map(|(kind, _)| *kind);
        let kind = kind.ok_or(Error::Malformed("a frame of an unknown kind"))?;
        let (sequence, length) = (u32_at(bytes, 4), u64_at(bytes, 8));
        let replies = matches!(kind, FrameKind::Reply | FrameKind::LongReply);
        if (bytes[1] != 0 && !replies) || bytes[2..4] != [0; 2] {
            return Err(Error::Malformed("a frame with reserved bytes set"));
        }
        let longest = match kind {
            FrameKind::Read
            | FrameKind::Write
            | FrameKind::WriteWithImmediate
            | FrameKind::Reply
            | FrameKind::LongReply => TRANSFER_BYTES_MAX,
            FrameKind::CompareSwap | FrameKind::FetchAdd => 8,
            FrameKind::Message => MESSAGE_BYTES_MAX,
            FrameKind::Credit => usize::MAX,
        };
        if length > longest as u64 || (matches!(kind, FrameKind::CompareSwap | FrameKind::FetchAdd) && length != 8) {
            return Err(Error::Malformed("a frame of a wrong length"));
        }
        Ok(FrameHeader { kind, status: bytes[1], sequence, length })
    }
}

/// The part of a verb behind its header.
///
/// ```text
/// capability:40 | offset:u64 le | first:u64 le | second:u64 le
/// ```
///
/// `first` is the immediate data, the expected word or the addend; `second` is the new word.
#[derive(Clone, Copy, Debug)]
pub struct VerbFrame {
    pub capability: Capability,
    pub offset: Untrusted<u64>,
    pub first: u64,
    pub second: u64,
}

impl VerbFrame {
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
    pub fn decode(bytes: &[u8; VERB_BYTES]) -> Result<VerbFrame, Error> {
        Ok(VerbFrame {
            capability: Capability::decode(&bytes[..CAPABILITY_BYTES])?,
            offset: Untrusted::new(u64_at(bytes, CAPABILITY_BYTES)),
            first: u64_at(bytes, CAPABILITY_BYTES + 8),
            second: u64_at(bytes, CAPABILITY_BYTES + 16),
        })
    }
}

/// How a verb ended. `OutOfBounds` carries the region's size as the payload of its reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VerbStatus {
    Done,
    Revoked,
    Unknown,
    Forbidden,
    OutOfBounds,
    Misaligned,
    TooLarge,
    /// Revoked after a part of the verb had taken effect.
    Ambiguous,
}

impl VerbStatus {
    const ALL: [VerbStatus; 8] = [
        VerbStatus::Done,
        VerbStatus::Revoked,
        VerbStatus::Unknown,
        VerbStatus::Forbidden,
        VerbStatus::OutOfBounds,
        VerbStatus::Misaligned,
        VerbStatus::TooLarge,
        VerbStatus::Ambiguous,
    ];

    pub fn code(self) -> u8 {
        self as u8
    }

    /// # Errors
    /// [`Error::Malformed`].
    pub fn from_code(code: u8) -> Result<VerbStatus, Error> {
        VerbStatus::ALL.get(usize::from(code)).copied().ok_or(Error::Malformed("a reply with an unknown status"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{CapabilitySecret, GrantId, NodeId, RegionId, Rights};

    #[test]
    fn frames_have_the_documented_layout() {
        let header = FrameHeader::new(FrameKind::CompareSwap, 0x0403_0201, 8);
        assert_eq!(header.encode(), [4, 0, 0, 0, 1, 2, 3, 4, 8, 0, 0, 0, 0, 0, 0, 0]);
        let reply =
            FrameHeader { kind: FrameKind::LongReply, status: VerbStatus::Revoked.code(), sequence: 7, length: 0x0102 };
        assert_eq!(reply.encode(), [0x82, 1, 0, 0, 7, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0]);
        let capability = Capability {
            node: NodeId(1),
            region: RegionId(2),
            grant: GrantId(3),
            rights: Rights::ALL,
            generation: 4,
            secret: CapabilitySecret([9; 16]),
        };
        let verb = VerbFrame { capability, offset: Untrusted::new(0x10), first: 0x20, second: 0x30 };
        let mut golden = vec![1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 7, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0];
        golden.extend([9; 16]);
        golden.extend([0x10, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0x30, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(verb.encode()[..], golden);
    }

    #[test]
    fn every_kind_and_status_is_read_as_it_was_written() {
        for (kind, code) in FrameKind::ALL {
            assert_eq!(kind.code(), code);
            let header = FrameHeader::new(kind, 5, 8);
            assert_eq!(FrameHeader::decode(&header.encode()).expect("it is well-formed"), header);
        }
        for status in VerbStatus::ALL {
            assert_eq!(VerbStatus::from_code(status.code()).expect("it is known"), status);
        }
        assert!(VerbStatus::from_code(8).is_err());
    }

    #[test]
    fn lengths_beyond_the_bounds_are_refused() {
        for (kind, length) in [
            (FrameKind::Read, TRANSFER_BYTES_MAX as u64 + 1),
            (FrameKind::Write, u64::MAX),
            (FrameKind::Message, MESSAGE_BYTES_MAX as u64 + 1),
            (FrameKind::Reply, TRANSFER_BYTES_MAX as u64 + 1),
            (FrameKind::FetchAdd, 7),
        ] {
            assert!(FrameHeader::decode(&FrameHeader::new(kind, 0, length).encode()).is_err(), "{kind:?} {length}");
        }
    }

    proptest! {
        #[test]
        fn what_decodes_encodes_to_the_same_bytes(bytes: [u8; HEADER_BYTES]) {
            if let Ok(header) = FrameHeader::decode(&bytes) {
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
            if let Ok(verb) = VerbFrame::decode(&bytes) {
                prop_assert_eq!(verb.encode(), bytes);
            } else {
                prop_assert!(!tame);
            }
        }
    }
}
