//! The control messages of two ends, over a TCP connection that lives as long as the queue pair.
//!
//! Every frame has 128 bytes, integers little-endian, unused bytes zero:
//!
//! ```text
//! kind:u8 | 0:3 | request:u32 | body:120
//! ```
//!
//! 1. The client sends `Hello` with its name and a nonce; the host answers `Challenge` with a nonce of its own.
//! 2. The client sends `Join` with its queue pair's address and a proof: HMAC-SHA-256 under the token of its name over both
//!    nonces, the name and the address. So the token is never sent, and an attacker cannot substitute another queue pair.
//! 3. Once the host has checked the proof and connected its own pair, it answers `Welcome` with its pair's address and its own
//!    proof. The client checks the host's proof and sends `Ready`; only then does the host use the connection.
//! 4. `Open` asks for the key of a capability; `Opened` or `Rejected` answers.
//! 5. `Revoke` takes a key away: the holder stops using it, waits for its verbs in flight, and answers `Drained`.
//!
//! Any other frame, or a frame that arrives out of turn, ends the connection.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::io::{self, Read, Write};
use std::net::TcpStream;

use aws_lc_rs::hmac;

use rma::{CAPABILITY_BYTES, GrantId, NodeId, RegionId, Rights, Token};

pub const FRAME_BYTES: usize = 128;
/// Raised with every change of the frames or of the layout of messages.
pub const VERSION: u32 = 1;
/// A first frame that starts differently does not belong to this protocol.
const MAGIC: &[u8; 8] = b"heddlerv";
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
    /// Another version; the body holds the host's version.
    Version(u32),
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
    Hello { version: u32, name: String, nonce: Nonce },
    Challenge { nonce: Nonce },
    Join { pair: PairAddress, proof: Proof },
    Welcome { node: NodeId, pair: PairAddress, proof: Proof },
    Ready,
    Open { request: u32, capability: [u8; CAPABILITY_BYTES] },
    Opened { request: u32, remote: RemoteRegion },
    Rejected { request: u32, rejection: Rejection },
    Revoke { request: u32, region: RegionId, grant: GrantId, generation: u64 },
    Drained { request: u32 },
}

/// A region in the adapter's terms, under one grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteRegion {
    pub key: u32,
    pub rights: Rights,
    pub address: u64,
    pub bytes: u64,
}

/// The bytes do not form a valid frame.
#[derive(Debug)]
pub struct Malformed(pub &'static str);

impl From<Malformed> for io::Error {
    fn from(malformed: Malformed) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, malformed.0)
    }
}

/// Takes fields from a frame, one after the other.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let (head, tail) = self.0.split_first_chunk().expect("the fields of a kind fit into a frame");
        self.0 = tail;
        *head
    }

    fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.bytes())
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.bytes())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }

    fn pair(&mut self) -> PairAddress {
        PairAddress {
            number: self.u32(),
            first_packet: self.u32(),
            gid: self.bytes(),
            lid: self.u16(),
            mtu: self.u8(),
            reads_max: self.u8(),
        }
    }

    fn finished(self) -> Result<(), Malformed> {
        if self.0.iter().all(|byte| *byte == 0) { Ok(()) } else { Err(Malformed("bytes behind the fields of a frame")) }
    }
}

fn pair_bytes(pair: &PairAddress) -> [u8; 28] {
    let mut bytes = [0; 28];
    bytes[0..4].copy_from_slice(&pair.number.to_le_bytes());
    bytes[4..8].copy_from_slice(&pair.first_packet.to_le_bytes());
    bytes[8..24].copy_from_slice(&pair.gid);
    bytes[24..26].copy_from_slice(&pair.lid.to_le_bytes());
    bytes[26] = pair.mtu;
    bytes[27] = pair.reads_max;
    bytes
}

impl Frame {
    pub fn encode(&self) -> [u8; FRAME_BYTES] {
        let mut frame = Vec::with_capacity(FRAME_BYTES);
        let mut begin = |kind: u8, request: u32| {
            frame.extend([kind, 0, 0, 0]);
            frame.extend(request.to_le_bytes());
        };
        match self {
            Frame::Hello { version, name, nonce } => {
                begin(1, 0);
                frame.extend(MAGIC);
                frame.extend(version.to_le_bytes());
                frame.extend(nonce);
                let length = u8::try_from(name.len()).expect("names have 64 bytes at most");
                frame.push(length);
                frame.extend(name.as_bytes());
            }
            Frame::Challenge { nonce } => {
                begin(2, 0);
                frame.extend(nonce);
            }
            Frame::Join { pair, proof } => {
                begin(3, 0);
                frame.extend(pair_bytes(pair));
                frame.extend(proof);
            }
            Frame::Welcome { node, pair, proof } => {
                begin(4, 0);
                frame.extend(node.0.to_le_bytes());
                frame.extend(pair_bytes(pair));
                frame.extend(proof);
            }
            Frame::Ready => begin(5, 0),
            Frame::Open { request, capability } => {
                begin(6, *request);
                frame.extend(capability);
            }
            Frame::Opened { request, remote } => {
                begin(7, *request);
                frame.extend(remote.address.to_le_bytes());
                frame.extend(remote.bytes.to_le_bytes());
                frame.extend(remote.key.to_le_bytes());
                frame.push(remote.rights.bits());
            }
            Frame::Rejected { request, rejection } => {
                begin(8, *request);
                let (code, version) = match rejection {
                    Rejection::Version(version) => (1, *version),
                    Rejection::Unauthenticated => (2, 0),
                    Rejection::Unknown => (3, 0),
                    Rejection::Revoked => (4, 0),
                    Rejection::Exhausted => (5, 0),
                };
                frame.push(code);
                frame.extend(version.to_le_bytes());
            }
            Frame::Revoke { request, region, grant, generation } => {
                begin(9, *request);
                frame.extend(region.0.to_le_bytes());
                frame.extend(grant.0.to_le_bytes());
                frame.extend(generation.to_le_bytes());
            }
            Frame::Drained { request } => begin(10, *request),
        }
        frame.resize(FRAME_BYTES, 0);
        frame.try_into().expect("it has just been given that size")
    }

    pub fn decode(frame: &[u8; FRAME_BYTES]) -> Result<Frame, Malformed> {
        let mut fields = Fields(frame);
        let kind = fields.u8();
        if fields.bytes() != [0u8; 3] {
            return Err(Malformed("reserved bytes of a frame are set"));
        }
        let request = fields.u32();
        let decoded = match kind {
            1 => {
                if fields.bytes() != *MAGIC {
                    return Err(Malformed("not a connection of this protocol"));
                }
                let (version, nonce) = (fields.u32(), fields.bytes());
                let length = usize::from(fields.u8());
                let name: [u8; NAME_BYTES_MAX] = fields.bytes();
                if length > NAME_BYTES_MAX || name[length..].iter().any(|byte| *byte != 0) {
                    return Err(Malformed("a name of a wrong length"));
                }
                let name = std::str::from_utf8(&name[..length]).map_err(|_| Malformed("a name that is no text"))?;
                Frame::Hello { version, name: name.to_owned(), nonce }
            }
            2 => Frame::Challenge { nonce: fields.bytes() },
            3 => Frame::Join { pair: fields.pair(), proof: fields.bytes() },
            4 => Frame::Welcome { node: NodeId(fields.u32()), pair: fields.pair(), proof: fields.bytes() },
            5 => Frame::Ready,
            6 => Frame::Open { request, capability: fields.bytes() },
            7 => {
                let (address, bytes, key) = (fields.u64(), fields.u64(), fields.u32());
                let rights = Rights::from_bits(fields.u8()).ok_or(Malformed("unknown rights"))?;
                Frame::Opened { request, remote: RemoteRegion { key, rights, address, bytes } }
            }
            8 => {
                let (code, version) = (fields.u8(), fields.u32());
                let rejection = match code {
                    1 => Rejection::Version(version),
                    2 => Rejection::Unauthenticated,
                    3 => Rejection::Unknown,
                    4 => Rejection::Revoked,
                    5 => Rejection::Exhausted,
                    _ => return Err(Malformed("an unknown refusal")),
                };
                Frame::Rejected { request, rejection }
            }
            9 => {
                let (region, grant) = (RegionId(fields.u32()), GrantId(fields.u16()));
                Frame::Revoke { request, region, grant, generation: fields.u64() }
            }
            10 => Frame::Drained { request },
            _ => return Err(Malformed("a frame of an unknown kind")),
        };
        fields.finished()?;
        // Ignored fields are encoded as zero, so set ones show up here.
        if decoded.encode() == *frame { Ok(decoded) } else { Err(Malformed("fields that do not belong to the frame")) }
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
    Ok(Frame::decode(&frame)?)
}

/// All that both ends must agree on before either trusts the other.
#[derive(Clone, Copy)]
pub struct HandshakeTranscript<'a> {
    pub name: &'a str,
    pub client_nonce: &'a Nonce,
    pub host_nonce: &'a Nonce,
    pub client_pair: &'a PairAddress,
}

impl HandshakeTranscript<'_> {
    fn bytes(&self, role: &[u8; 8]) -> Vec<u8> {
        let mut bytes = role.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((self.name.len() as u64).to_le_bytes());
        bytes.extend(self.name.as_bytes());
        bytes.extend(self.client_nonce);
        bytes.extend(self.host_nonce);
        bytes.extend(pair_bytes(self.client_pair));
        bytes
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
        let mut bytes = [0; HEADER_BYTES];
        match self {
            MessageHeader::Piece { last } => {
                bytes[0] = 1;
                bytes[1] = u8::from(*last);
            }
            MessageHeader::Immediate { immediate, region, offset, length } => {
                bytes[0] = 2;
                bytes[4..8].copy_from_slice(&immediate.to_le_bytes());
                bytes[8..12].copy_from_slice(&region.0.to_le_bytes());
                bytes[16..24].copy_from_slice(&offset.to_le_bytes());
                bytes[24..32].copy_from_slice(&length.to_le_bytes());
            }
        }
        bytes
    }

    /// The header of a received message, and the bytes behind it.
    pub fn decode(received: &[u8]) -> Result<(MessageHeader, &[u8]), Malformed> {
        let (bytes, rest) =
            received.split_first_chunk::<HEADER_BYTES>().ok_or(Malformed("a message without a header"))?;
        let mut fields = Fields(bytes);
        let (kind, last, _) = (fields.u8(), fields.u8(), fields.u16());
        let (immediate, region, _) = (fields.u32(), RegionId(fields.u32()), fields.u32());
        let header = match kind {
            1 => MessageHeader::Piece { last: last == 1 },
            2 => MessageHeader::Immediate { immediate, region, offset: fields.u64(), length: fields.u64() },
            _ => return Err(Malformed("a message of an unknown kind")),
        };
        if header.encode() != *bytes || (kind == 2 && !rest.is_empty()) {
            return Err(Malformed("a message with unused bytes set"));
        }
        Ok((header, rest))
    }
}
