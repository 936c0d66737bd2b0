//! The control messages between the two ends of a queue pair, over a TCP connection that lives as long as the pair.
//!
//! Every frame has 128 bytes, integers little-endian, unused bytes zero:
//!
//! ```text
//! kind:u8 | 0:3 | request:u32 | body:120
//! ```
//!
//! 1. The client sends `Hello` with the versions that it speaks ([`wire::hello`]), its name and a nonce. The host
//!    answers `Challenge` with the chosen version and the host's nonce. If the two ends have no version in common,
//!    `Challenge` says so, and the host ends the connection.
//! 2. The client sends `Join` with its queue pair's address and a proof: HMAC-SHA-256 under the token of its name over both
//!    nonces, the ranges of versions, the name and the address. So the token is never sent, and an attacker cannot
//!    substitute another queue pair or an older version.
//! 3. Once the host has checked the proof and connected its own pair, it answers `Welcome` with its pair's address and its own
//!    proof. The client checks the host's proof and sends `Ready`; only then does the host use the connection.
//! 4. `Open` asks for the key of a capability; `Opened` or `Rejected` answers.
//! 5. `Revoke` takes a key away: the holder stops using it, waits for its verbs in flight, and answers `Drained`.
//!
//! Any other frame, or a frame that arrives out of turn, ends the connection.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::io::{self, Read, Write};
use std::net::TcpStream;

use ::wire::hello::{Hello, HelloAnswer};
use ::wire::{Malformed, Reader, VersionRange, Writer, array, u32_at, u64_at};
use aws_lc_rs::hmac;

use rma::{CAPABILITY_BYTES, GrantId, NodeId, RegionId, Rights, Token};

pub const FRAME_BYTES: usize = 128;
/// The versions that this program speaks. The newest is raised with every change of the frames or of the layout of messages.
pub const PROTOCOL_VERSIONS: VersionRange = VersionRange::only(1);
/// A first frame that starts differently does not belong to this protocol.
const PURPOSE: [u8; 8] = *b"heddlerv";
pub const NAME_BYTES_MAX: usize = 64;
pub const NONCE_BYTES: usize = 32;
const PROOF_BYTES: usize = 32;

pub type Nonce = [u8; NONCE_BYTES];
pub type Proof = [u8; PROOF_BYTES];

/// The data of a queue pair that the other end needs to connect to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PairAddress {
    pub number: u32,
    pub first_packet: u32,
    pub gid: [u8; 16],
    pub lid: u16,
    pub mtu: u8,
    pub reads_max: u8,
}

/// Why a connection or a key is rejected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rejection {
    /// The name is unknown, or the token is wrong.
    Unauthenticated,
    /// The capability does not belong to this host.
    Unknown,
    /// The capability was revoked.
    Revoked,
    /// No memory or no key is left.
    Exhausted,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Frame {
    Hello {
        versions: VersionRange,
        name: String,
        nonce: Nonce,
    },
    /// The nonce is zero where the host speaks none of these versions.
    Challenge {
        answer: HelloAnswer,
        nonce: Nonce,
    },
    Join {
        pair: PairAddress,
        proof: Proof,
    },
    Welcome {
        node: NodeId,
        pair: PairAddress,
        proof: Proof,
    },
    Ready,
    Open {
        request: u32,
        capability: [u8; CAPABILITY_BYTES],
    },
    Opened {
        request: u32,
        remote: RemoteRegion,
    },
    Rejected {
        request: u32,
        rejection: Rejection,
    },
    Revoke {
        request: u32,
        region: RegionId,
        grant: GrantId,
        generation: u64,
    },
    Drained {
        request: u32,
    },
}

/// A region in the adapter's terms, under one grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteRegion {
    pub key: u32,
    pub rights: Rights,
    pub address: u64,
    pub bytes: u64,
}

fn read_pair(reader: &mut Reader<&[u8]>) -> Result<PairAddress, Malformed> {
    Ok(PairAddress {
        number: reader.u32()?,
        first_packet: reader.u32()?,
        gid: reader.array()?,
        lid: reader.u16()?,
        mtu: reader.u8()?,
        reads_max: reader.u8()?,
    })
}

fn pair_bytes(pair: &PairAddress) -> [u8; 28] {
    array(|writer| {
        writer.u32(pair.number).u32(pair.first_packet).put(&pair.gid).u16(pair.lid).u8(pair.mtu).u8(pair.reads_max);
    })
}

impl Frame {
    pub fn encode(&self) -> [u8; FRAME_BYTES] {
        let mut writer = Writer::onto(Vec::with_capacity(FRAME_BYTES));
        let (kind, request) = match self {
            Frame::Hello { .. } => (1, 0),
            Frame::Challenge { .. } => (2, 0),
            Frame::Join { .. } => (3, 0),
            Frame::Welcome { .. } => (4, 0),
            Frame::Ready => (5, 0),
            Frame::Open { request, .. } => (6, *request),
            Frame::Opened { request, .. } => (7, *request),
            Frame::Rejected { request, .. } => (8, *request),
            Frame::Revoke { request, .. } => (9, *request),
            Frame::Drained { request } => (10, *request),
        };
        writer.u8(kind).zeros(3).u32(request);
        match self {
            Frame::Hello { versions, name, nonce } => {
                let hello = Hello { purpose: PURPOSE, versions: *versions };
                let length = u8::try_from(name.len()).expect("names have 64 bytes at most");
                writer.put(&hello.encode()).put(nonce).u8(length).put(name.as_bytes())
            }
            Frame::Challenge { answer, nonce } => writer.put(&answer.encode()).put(nonce),
            Frame::Join { pair, proof } => writer.put(&pair_bytes(pair)).put(proof),
            Frame::Welcome { node, pair, proof } => writer.u32(node.0).put(&pair_bytes(pair)).put(proof),
            Frame::Ready | Frame::Drained { .. } => &mut writer,
            Frame::Open { capability, .. } => writer.put(capability),
            Frame::Opened { remote, .. } => {
                writer.u64(remote.address).u64(remote.bytes).u32(remote.key).u8(remote.rights.bits())
            }
            Frame::Rejected { rejection, .. } => writer.u8(match rejection {
                // 1 was another version; the challenge says that now.
                Rejection::Unauthenticated => 2,
                Rejection::Unknown => 3,
                Rejection::Revoked => 4,
                Rejection::Exhausted => 5,
            }),
            Frame::Revoke { region, grant, generation, .. } => writer.u32(region.0).u16(grant.0).u64(*generation),
        };
        let mut frame = writer.into_inner();
        frame.resize(FRAME_BYTES, 0);
        frame.try_into().expect("it has just been given that size")
    }

    pub fn decode(frame: &[u8; FRAME_BYTES]) -> Result<Frame, Malformed> {
        let mut reader = Reader::new(&frame[..]);
        let kind = reader.u8()?;
        reader.zeros(3)?;
        let request = reader.u32()?;
        let decoded = match kind {
            1 => {
                let Hello { versions, .. } = Hello::read(&mut reader, PURPOSE)?;
                let (nonce, length) = (reader.array()?, usize::from(reader.u8()?));
                if length > NAME_BYTES_MAX {
                    return Err(reader.malformed("a name of a wrong length"));
                }
                let name = std::str::from_utf8(reader.bytes(length)?);
                let name = name.map_err(|_| reader.malformed("a name that is no text"))?;
                Frame::Hello { versions, name: name.to_owned(), nonce }
            }
            2 => Frame::Challenge { answer: HelloAnswer::read(&mut reader)?, nonce: reader.array()? },
            3 => Frame::Join { pair: read_pair(&mut reader)?, proof: reader.array()? },
            4 => Frame::Welcome { node: NodeId(reader.u32()?), pair: read_pair(&mut reader)?, proof: reader.array()? },
            5 => Frame::Ready,
            6 => Frame::Open { request, capability: reader.array()? },
            7 => {
                let (address, bytes, key) = (reader.u64()?, reader.u64()?, reader.u32()?);
                let rights = Rights::from_bits(reader.u8()?).ok_or_else(|| reader.malformed("unknown rights"))?;
                Frame::Opened { request, remote: RemoteRegion { key, rights, address, bytes } }
            }
            8 => {
                let rejection = match reader.u8()? {
                    2 => Rejection::Unauthenticated,
                    3 => Rejection::Unknown,
                    4 => Rejection::Revoked,
                    5 => Rejection::Exhausted,
                    _ => return Err(reader.malformed("an unknown refusal")),
                };
                Frame::Rejected { request, rejection }
            }
            9 => {
                let (region, grant) = (RegionId(reader.u32()?), GrantId(reader.u16()?));
                Frame::Revoke { request, region, grant, generation: reader.u64()? }
            }
            10 => Frame::Drained { request },
            _ => return Err(reader.malformed("a frame of an unknown kind")),
        };
        reader.zeros(reader.left())?;
        // Ignored fields are encoded as zero, so set ones show up here.
        match decoded.encode() == *frame {
            true => Ok(decoded),
            false => Err(reader.malformed("fields that do not belong to the frame")),
        }
    }
}

/// Sends one frame, blocking up to the stream's time limit.
pub fn send(mut stream: &TcpStream, frame: &Frame) -> io::Result<()> {
    stream.write_all(&frame.encode())
}

/// Receives one frame, as [`send`]. An end between two frames is `UnexpectedEof` as well.
pub fn receive(mut stream: &TcpStream) -> io::Result<Frame> {
    let mut frame = [0; FRAME_BYTES];
    stream.read_exact(&mut frame)?;
    Frame::decode(&frame).map_err(|malformed| io::Error::new(io::ErrorKind::InvalidData, malformed))
}

/// All that both ends must agree on before either trusts the other.
#[derive(Clone, Copy)]
pub struct HandshakeTranscript<'a> {
    /// What the client speaks, and the host's answer.
    pub versions: VersionRange,
    pub answer: HelloAnswer,
    pub name: &'a str,
    pub client_nonce: &'a Nonce,
    pub host_nonce: &'a Nonce,
    pub client_pair: &'a PairAddress,
}

impl HandshakeTranscript<'_> {
    fn bytes(&self, role: &[u8; 8]) -> Vec<u8> {
        let mut writer = Writer::onto(role.to_vec());
        writer.put(&self.versions.encode()).put(&self.answer.encode());
        writer.u64(self.name.len() as u64).put(self.name.as_bytes()).put(self.client_nonce).put(self.host_nonce);
        writer.put(&pair_bytes(self.client_pair));
        writer.into_inner()
    }

    fn host_bytes(&self, node: NodeId, pair: &PairAddress) -> Vec<u8> {
        let mut bytes = self.bytes(b"a host: ");
        bytes.extend(node.0.to_le_bytes());
        bytes.extend(pair_bytes(pair));
        bytes
    }

    pub fn client_proof(&self, token: &Token) -> Proof {
        proof(token, &self.bytes(b"a client"))
    }

    pub fn client_proved(&self, token: &Token, given: &Proof) -> bool {
        proved(token, &self.bytes(b"a client"), given)
    }

    pub fn host_proof(&self, token: &Token, node: NodeId, pair: &PairAddress) -> Proof {
        proof(token, &self.host_bytes(node, pair))
    }

    pub fn host_proved(&self, token: &Token, node: NodeId, pair: &PairAddress, given: &Proof) -> bool {
        proved(token, &self.host_bytes(node, pair), given)
    }
}

fn proof(token: &Token, bytes: &[u8]) -> Proof {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, token.bytes()), bytes);
    tag.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// In constant time.
fn proved(token: &Token, bytes: &[u8], given: &Proof) -> bool {
    hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, token.bytes()), bytes, given).is_ok()
}

/// The header in front of the bytes of a message on the queue pair:
///
/// ```text
/// kind:u8 | last:u8 | 0:2 | immediate:u32 | region:u32 | 0:4 | offset:u64 | length:u64
/// ```
pub const HEADER_BYTES: usize = 32;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageHeader {
    /// A piece of a message follows.
    Piece { last: bool },
    /// The preceding write carried immediate data.
    Immediate { immediate: u32, region: RegionId, offset: u64, length: u64 },
}

impl MessageHeader {
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        array(|writer| {
            match self {
                MessageHeader::Piece { last } => writer.u8(1).flag(*last).zeros(30),
                MessageHeader::Immediate { immediate, region, offset, length } => {
                    writer.u8(2).zeros(3).u32(*immediate).u32(region.0).zeros(4).u64(*offset).u64(*length)
                }
            };
        })
    }

    /// The header of a received message, and the bytes behind it.
    pub fn decode(received: &[u8]) -> Result<(MessageHeader, &[u8]), Malformed> {
        let malformed = |what| Malformed { what, at: 0 };
        let (bytes, rest) =
            received.split_first_chunk::<HEADER_BYTES>().ok_or(malformed("a message without a header"))?;
        let header = match bytes[0] {
            1 => MessageHeader::Piece { last: bytes[1] == 1 },
            2 => {
                let (immediate, region) = (u32_at(bytes, 4), RegionId(u32_at(bytes, 8)));
                MessageHeader::Immediate { immediate, region, offset: u64_at(bytes, 16), length: u64_at(bytes, 24) }
            }
            _ => return Err(malformed("a message of an unknown kind")),
        };
        if header.encode() != *bytes || (bytes[0] == 2 && !rest.is_empty()) {
            return Err(malformed("a message with unused bytes set"));
        }
        Ok((header, rest))
    }
}
