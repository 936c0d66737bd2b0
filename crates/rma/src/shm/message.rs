//! The messages that the two ends of a connection exchange on its socket, one per packet; `docs/formats/rma-shm.md` has the
//! layout.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use wire::hello::{Hello, HelloAnswer};
use wire::{Reader, VersionRange, Writer};

use super::config::NAME_BYTES_MAX;
use super::segment::PROTOCOL_VERSIONS;
use crate::{CAPABILITY_BYTES, Capability, Error, NodeId, RegionId, Rights, TOKEN_BYTES};

/// Bytes of the longest message.
pub(super) const PACKET_BYTES_MAX: usize = 512;
/// Bytes of a rejection's reason.
const REASON_BYTES_MAX: usize = 256;
/// Bytes of the number that tells one incarnation of a host from another.
pub(super) const INCARNATION_BYTES: usize = 16;
const PURPOSE: [u8; 8] = *b"HDLRMASH";

/// One message.
#[derive(Clone, Debug)]
pub(super) enum SocketMessage {
    /// Host: what it speaks. The caller must return the nonce.
    Greeting { versions: VersionRange, nonce: u64 },
    /// Caller: the version that it chooses, and its identity.
    Hello { answer: HelloAnswer, nonce: u64, token: [u8; TOKEN_BYTES], name: String },
    /// Caller: it speaks none of the host's versions. Ends the connection.
    OtherVersions(HelloAnswer),
    /// Host: accepted; with file descriptors of the generations, the shared segment, and the eventfds of the host and of the
    /// caller.
    Welcome { node: NodeId, life: [u8; INCARNATION_BYTES] },
    /// Host: rejected. Ends the connection.
    Rejected { reason: String },
    /// Caller: is this capability valid? `mapped` when the region's file descriptor is not needed.
    Confirm { mapped: bool, capability: Capability },
    /// Host: valid, with these rights; with the region's file descriptor unless it was mapped. Answers come in order.
    Confirmed { rights: Rights, bytes: u64 },
    /// Host: not valid.
    Denied { revoked: bool },
    /// Host: the region is gone and can be unmapped.
    Gone { region: RegionId },
}

const MALFORMED: Error = Error::Malformed("a message on a shared memory's socket");

/// The rest of a packet, as text.
fn read_text(reader: &mut Reader<&[u8]>, bytes_max: usize) -> Result<String, Error> {
    let text = std::str::from_utf8(reader.rest()).ok().filter(|text| text.len() <= bytes_max);
    text.map(str::to_owned).ok_or(MALFORMED)
}

impl SocketMessage {
    pub(super) fn greeting(nonce: u64) -> SocketMessage {
        SocketMessage::Greeting { versions: PROTOCOL_VERSIONS, nonce }
    }

    pub(super) fn rejected(error: &Error) -> SocketMessage {
        let mut reason = match error {
            Error::Rejected(reason) => reason.clone(),
            other => other.to_string(),
        };
        while reason.len() > REASON_BYTES_MAX {
            reason.pop();
        }
        SocketMessage::Rejected { reason }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::onto(Vec::with_capacity(64));
        match self {
            SocketMessage::Greeting { versions, nonce } => {
                writer.u8(1).put(&Hello { purpose: PURPOSE, versions: *versions }.encode()).u64(*nonce)
            }
            SocketMessage::Hello { answer, nonce, token, name } => {
                writer.u8(2).put(&answer.encode()).u64(*nonce).put(token).put(name.as_bytes())
            }
            SocketMessage::OtherVersions(answer) => writer.u8(2).put(&answer.encode()),
            SocketMessage::Welcome { node, life } => writer.u8(3).u32(node.0).put(life),
            SocketMessage::Rejected { reason } => writer.u8(4).put(reason.as_bytes()),
            SocketMessage::Confirm { mapped, capability } => writer.u8(5).flag(*mapped).put(&capability.encode()),
            SocketMessage::Confirmed { rights, bytes } => writer.u8(6).u8(rights.bits()).u64(*bytes),
            SocketMessage::Denied { revoked } => writer.u8(7).flag(*revoked),
            SocketMessage::Gone { region } => writer.u8(8).u32(region.0),
        };
        let bytes = writer.into_inner();
        assert!(bytes.len() <= PACKET_BYTES_MAX, "a message fits into a packet");
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<SocketMessage, Error> {
        let mut reader = Reader::new(bytes);
        let message = match reader.u8()? {
            1 => {
                let Hello { versions, .. } = Hello::read(&mut reader, PURPOSE)
                    .map_err(|_| Error::Malformed("the listener on this socket is not a host of regions"))?;
                SocketMessage::Greeting { versions, nonce: reader.u64()? }
            }
            2 => match HelloAnswer::read(&mut reader)? {
                answer if answer.is_refusal() => SocketMessage::OtherVersions(answer),
                answer => SocketMessage::Hello {
                    answer,
                    nonce: reader.u64()?,
                    token: reader.array()?,
                    name: read_text(&mut reader, NAME_BYTES_MAX)?,
                },
            },
            3 => SocketMessage::Welcome { node: NodeId(reader.u32()?), life: reader.array()? },
            4 => SocketMessage::Rejected { reason: read_text(&mut reader, REASON_BYTES_MAX)? },
            5 => SocketMessage::Confirm {
                mapped: reader.flag()?,
                capability: Capability::decode(reader.bytes(CAPABILITY_BYTES)?)?,
            },
            6 => SocketMessage::Confirmed {
                rights: Rights::from_bits(reader.u8()?).ok_or(MALFORMED)?,
                bytes: reader.u64()?,
            },
            7 => SocketMessage::Denied { revoked: reader.flag()? },
            8 => SocketMessage::Gone { region: RegionId(reader.u32()?) },
            _ => return Err(MALFORMED),
        };
        reader.end()?;
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CapabilitySecret, GrantId};

    #[test]
    fn messages_have_the_documented_layout() {
        let capability = Capability {
            node: NodeId(1),
            region: RegionId(2),
            grant: GrantId(3),
            rights: Rights::READ,
            generation: 5,
            secret: CapabilitySecret([9; 16]),
        };
        let versions = VersionRange::new(1, 2);
        let answer = HelloAnswer::accept(versions, 2);
        let hello = SocketMessage::Hello { answer, nonce: 7, token: [0xAA; 32], name: "org1".to_owned() };
        let goldens = [
            (
                SocketMessage::Greeting { versions, nonce: 0x0102 },
                "0148444c524d41534801000000020000000201000000000000".to_owned(),
            ),
            (hello, format!("020200000001000000020000000700000000000000{}6f726731", "aa".repeat(32))),
            (SocketMessage::OtherVersions(HelloAnswer::refuse(versions)), "02000000000100000002000000".to_owned()),
            (SocketMessage::Welcome { node: NodeId(3), life: [4; 16] }, format!("0303000000{}", "04".repeat(16))),
            (SocketMessage::Rejected { reason: "no".to_owned() }, "046e6f".to_owned()),
            (
                SocketMessage::Confirm { mapped: true, capability },
                format!("05010100000002000000030001000000000005000000000000{}{}", "00", "09".repeat(16)),
            ),
            (SocketMessage::Confirmed { rights: Rights::ALL, bytes: 4096 }, "06070010000000000000".to_owned()),
            (SocketMessage::Denied { revoked: true }, "0701".to_owned()),
            (SocketMessage::Gone { region: RegionId(0x1002) }, "0802100000".to_owned()),
        ];
        for (message, golden) in goldens {
            let bytes = message.encode();
            let shown: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(shown, golden, "{message:?}");
            let again = SocketMessage::decode(&bytes).expect("it is well-formed");
            assert_eq!(again.encode(), bytes);
            let fixed = !matches!(message, SocketMessage::Hello { .. } | SocketMessage::Rejected { .. });
            for length in 0..bytes.len() {
                assert!(!fixed || SocketMessage::decode(&bytes[..length]).is_err(), "{message:?} cut at {length}");
            }
            let mut longer = bytes.clone();
            longer.push(0xFF);
            assert!(SocketMessage::decode(&longer).is_err(), "{message:?} with a byte too many");
        }
    }

    #[test]
    fn reasons_are_cut() {
        let SocketMessage::Rejected { reason, .. } = SocketMessage::rejected(&Error::Rejected("é".repeat(300))) else {
            panic!()
        };
        assert_eq!(reason.len(), REASON_BYTES_MAX);
    }
}
