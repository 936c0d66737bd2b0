//! The messages that the two ends of a connection exchange on its socket, one per packet; `docs/formats/rma-shm.md` has the
//! layout.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use super::config::NAME_BYTES_MAX;
use super::segment::VERSION;
use crate::{CAPABILITY_BYTES, Capability, Error, NodeId, RegionId, Rights, TOKEN_BYTES};

/// Bytes of the longest message.
pub(super) const PACKET_BYTES_MAX: usize = 512;
/// Bytes of a rejection's reason.
const REASON_BYTES_MAX: usize = 256;
/// Bytes of the number that tells one incarnation of a host from another.
pub(super) const INCARNATION_BYTES: usize = 16;
/// The first bytes that a host sends.
const MAGIC: &[u8; 7] = b"HDLSHM\0";

/// One message.
#[derive(Clone, Debug)]
pub(super) enum SocketMessage {
    /// Host: its identity. The caller must return the nonce.
    Greeting { version: u32, nonce: u64 },
    /// Caller: its identity.
    Hello { version: u32, nonce: u64, token: [u8; TOKEN_BYTES], name: String },
    /// Host: accepted; with file descriptors of the generations, the shared segment, and the eventfds of the host and of the
    /// caller.
    Welcome { node: NodeId, life: [u8; INCARNATION_BYTES] },
    /// Host: rejected. Ends the connection.
    Rejected { version: u32, reason: String },
    /// Caller: is this capability valid? `mapped` when the region's file descriptor is not needed.
    Confirm { mapped: bool, capability: Capability },
    /// Host: valid, with these rights; with the region's file descriptor unless it was mapped. Answers come in order.
    Confirmed { rights: Rights, bytes: u64 },
    /// Host: not valid.
    Denied { revoked: bool },
    /// Host: the region is gone and can be unmapped.
    Gone { region: RegionId },
}

/// Reads a packet's fields from the front.
struct Fields<'a>(&'a [u8]);

const SHORT: Error = Error::Malformed("a message on a shared memory's socket");

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (bytes, rest) = self.0.split_first_chunk::<N>().ok_or(SHORT)?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn byte(&mut self) -> Result<u8, Error> {
        Ok(self.take::<1>()?[0])
    }

    fn flag(&mut self) -> Result<bool, Error> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(SHORT),
        }
    }

    fn u32(&mut self) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    fn u64(&mut self) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    /// The rest, as text.
    fn text(&mut self, bytes_max: usize) -> Result<String, Error> {
        let rest = std::mem::take(&mut self.0);
        if rest.len() > bytes_max {
            return Err(SHORT);
        }
        String::from_utf8(rest.to_vec()).map_err(|_| SHORT)
    }
}

impl SocketMessage {
    pub(super) fn greeting(nonce: u64) -> SocketMessage {
        SocketMessage::Greeting { version: VERSION, nonce }
    }

    pub(super) fn rejected(error: &Error) -> SocketMessage {
        let mut reason = match error {
            Error::Rejected(reason) => reason.clone(),
            other => other.to_string(),
        };
        while reason.len() > REASON_BYTES_MAX {
            reason.pop();
        }
        SocketMessage::Rejected { version: VERSION, reason }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64);
        match self {
            SocketMessage::Greeting { version, nonce } => {
                bytes.push(1);
                bytes.extend(MAGIC);
                bytes.extend(version.to_le_bytes());
                bytes.extend(nonce.to_le_bytes());
            }
            SocketMessage::Hello { version, nonce, token, name } => {
                bytes.push(2);
                bytes.extend(version.to_le_bytes());
                bytes.extend(nonce.to_le_bytes());
                bytes.extend(token);
                bytes.extend(name.as_bytes());
            }
            SocketMessage::Welcome { node, life } => {
                bytes.push(3);
                bytes.extend(node.0.to_le_bytes());
                bytes.extend(life);
            }
            SocketMessage::Rejected { version, reason } => {
                bytes.push(4);
                bytes.extend(version.to_le_bytes());
                bytes.extend(reason.as_bytes());
            }
            SocketMessage::Confirm { mapped, capability } => {
                bytes.extend([5, u8::from(*mapped)]);
                bytes.extend(capability.encode());
            }
            SocketMessage::Confirmed { rights, bytes: size } => {
                bytes.extend([6, rights.bits()]);
                bytes.extend(size.to_le_bytes());
            }
            SocketMessage::Denied { revoked } => bytes.extend([7, u8::from(*revoked)]),
            SocketMessage::Gone { region } => {
                bytes.push(8);
                bytes.extend(region.0.to_le_bytes());
            }
        }
        assert!(bytes.len() <= PACKET_BYTES_MAX, "a message fits into a packet");
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<SocketMessage, Error> {
        let mut fields = Fields(bytes);
        let message = match fields.byte()? {
            1 => {
                if fields.take()? != *MAGIC {
                    return Err(Error::Malformed("the listener on this socket is not a host of regions"));
                }
                SocketMessage::Greeting { version: fields.u32()?, nonce: fields.u64()? }
            }
            2 => SocketMessage::Hello {
                version: fields.u32()?,
                nonce: fields.u64()?,
                token: fields.take()?,
                name: fields.text(NAME_BYTES_MAX)?,
            },
            3 => SocketMessage::Welcome { node: NodeId(fields.u32()?), life: fields.take()? },
            4 => SocketMessage::Rejected { version: fields.u32()?, reason: fields.text(REASON_BYTES_MAX)? },
            5 => SocketMessage::Confirm {
                mapped: fields.flag()?,
                capability: Capability::decode(&fields.take::<CAPABILITY_BYTES>()?)?,
            },
            6 => SocketMessage::Confirmed {
                rights: Rights::from_bits(fields.byte()?).ok_or(SHORT)?,
                bytes: fields.u64()?,
            },
            7 => SocketMessage::Denied { revoked: fields.flag()? },
            8 => SocketMessage::Gone { region: RegionId(fields.u32()?) },
            _ => return Err(SHORT),
        };
        if !fields.0.is_empty() {
            return Err(SHORT);
        }
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
        let hello = SocketMessage::Hello { version: 1, nonce: 7, token: [0xAA; 32], name: "org1".to_owned() };
        let goldens = [
            (SocketMessage::greeting(0x0102), "0148444c53484d00020000000201000000000000".to_owned()),
            (hello, format!("02010000000700000000000000{}6f726731", "aa".repeat(32))),
            (SocketMessage::Welcome { node: NodeId(3), life: [4; 16] }, format!("0303000000{}", "04".repeat(16))),
            (SocketMessage::Rejected { version: 1, reason: "no".to_owned() }, "04010000006e6f".to_owned()),
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
