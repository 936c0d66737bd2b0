//! Remote memory over TCP, with or without TLS: the handshake with a token, verbs and messages.

use std::io;
use std::sync::Arc;

use aws_lc_rs::hmac;
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{dial, random, tls};

const MAGIC: &[u8; 8] = b"HDLRMATC";
pub const HELLO_BYTES: usize = 116;
const CHALLENGE_BYTES: usize = 88;
/// The only version that these attacks speak; a host of other versions names its own.
pub const VERSION: u32 = 1;

pub const READ: u8 = 1;
pub const WRITE: u8 = 2;
pub const COMPARE_SWAP: u8 = 4;
pub const FETCH_ADD: u8 = 5;
pub const MESSAGE: u8 = 6;
const CREDIT: u8 = 7;
const REPLY: u8 = 0x81;
const LONG_REPLY: u8 = 0x82;

const REPLY_BYTES_MAX: u64 = 256 << 20;

/// A socket with or without TLS.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A name with its token.
#[derive(Clone)]
pub struct Credential {
    pub name: String,
    pub token: Vec<u8>,
}

/// The first bytes that a caller sends.
pub fn hello(version: u32, name: &str, nonce: &[u8; 32]) -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..16].copy_from_slice(&only(version));
    bytes[16..20].copy_from_slice(&(name.len() as u32).to_le_bytes());
    bytes[20..52].copy_from_slice(nonce);
    bytes[52..][..name.len()].copy_from_slice(name.as_bytes());
    bytes
}

/// A range of one version.
pub fn only(version: u32) -> [u8; 8] {
    let mut range = [0; 8];
    range[..4].copy_from_slice(&version.to_le_bytes());
    range[4..].copy_from_slice(&version.to_le_bytes());
    range
}

/// An authenticated connection.
pub struct RmaClient {
    stream: Box<dyn ByteStream>,
    sequence: u32,
    taken: u32,
    taken_bytes: u64,
}

/// A host's answer to a verb.
#[derive(Debug)]
pub struct RmaReply {
    pub status: u8,
    pub bytes: Vec<u8>,
}

/// A frame from a host.
pub enum RmaFrame {
    Reply(RmaReply),
    Message(Vec<u8>),
    Credit,
}

impl RmaClient {
    /// Connects and proves the name, over TLS if a configuration is given.
    ///
    /// # Errors
    /// The host refuses.
    pub async fn connect(
        address: &str,
        tls: Option<&Arc<ClientConfig>>,
        credential: &Credential,
    ) -> io::Result<RmaClient> {
        RmaClient::over(dial(address).await?, tls, credential).await
    }

    /// As [`RmaClient::connect`], over an existing connection.
    ///
    /// # Errors
    /// The host refuses.
    pub async fn over(
        socket: TcpStream,
        tls: Option<&Arc<ClientConfig>>,
        credential: &Credential,
    ) -> io::Result<RmaClient> {
        let (mut stream, binding): (Box<dyn ByteStream>, [u8; 32]) = match tls {
            None => (Box::new(socket), [0; 32]),
            Some(config) => {
                let session = tls::connect(config, socket).await?;
                let exported = session.get_ref().1.export_keying_material([0; 32], b"EXPORTER-heddle-rma-tcp", None);
                (Box::new(session), exported.map_err(io::Error::other)?)
            }
        };
        let hello = hello(VERSION, &credential.name, &random());
        stream.write_all(&hello).await?;
        let mut challenge = [0; CHALLENGE_BYTES];
        stream.read_exact(&mut challenge).await?;
        let said = |label: &[u8]| [label, &[0], &hello[..], &challenge[8..56], &binding[..]].concat();
        let key = hmac::Key::new(hmac::HMAC_SHA256, &credential.token);
        if hmac::verify(&key, &said(b"heddle rma tcp host"), &challenge[56..]).is_err() {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "the host does not know the name and its token",
            ));
        }
        stream.write_all(hmac::sign(&key, &said(b"heddle rma tcp client")).as_ref()).await?;
        let mut verdict = [0; 8];
        stream.read_exact(&mut verdict).await?;
        match verdict[0] {
            0 => Ok(RmaClient { stream, sequence: 0, taken: 0, taken_bytes: 0 }),
            1 => Err(io::Error::new(io::ErrorKind::PermissionDenied, "refused")),
            _ => Err(io::Error::other("the host has no free connection")),
        }
    }

    /// Posts a verb; `payload` is the data of a write, or the part of it to send now.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn post(&mut self, kind: u8, verb: &Verb<'_>, payload: &[u8]) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut bytes = frame_head(kind, self.sequence, verb.length);
        bytes.extend_from_slice(verb.capability);
        for word in [verb.offset, verb.first, verb.second] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend_from_slice(payload);
        self.stream.write_all(&bytes).await
    }

    /// Sends raw bytes.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let head = frame_head(MESSAGE, self.sequence, message.len() as u64);
        self.stream.write_all(&[&head, message].concat()).await
    }

    /// The next frame. Returns credit for messages, so that more may come.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn receive(&mut self) -> io::Result<RmaFrame> {
        let mut head = [0; 16];
        self.stream.read_exact(&mut head).await?;
        let length = u64::from_le_bytes(head[8..].try_into().expect("eight bytes"));
        if head[0] == CREDIT {
            return Ok(RmaFrame::Credit);
        }
        if length > REPLY_BYTES_MAX {
            return Err(io::Error::other("a frame that is too long"));
        }
        let mut bytes = vec![0; length as usize];
        self.stream.read_exact(&mut bytes).await?;
        match head[0] {
            REPLY => Ok(RmaFrame::Reply(RmaReply { status: head[1], bytes })),
            LONG_REPLY => {
                self.stream.read_exact(&mut [0; 8]).await?;
                Ok(RmaFrame::Reply(RmaReply { status: head[1], bytes }))
            }
            MESSAGE => {
                self.taken += 1;
                self.taken_bytes += length;
                if self.taken >= CREDIT_EVERY {
                    let credit = frame_head(CREDIT, self.taken, self.taken_bytes);
                    (self.taken, self.taken_bytes) = (0, 0);
                    self.stream.write_all(&credit).await?;
                }
                Ok(RmaFrame::Message(bytes))
            }
            _ => Err(io::Error::other("a frame of an unknown kind")),
        }
    }

    /// The next message.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn message(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let RmaFrame::Message(bytes) = self.receive().await? {
                return Ok(bytes);
            }
        }
    }

    /// The next reply to a verb.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn reply(&mut self) -> io::Result<RmaReply> {
        loop {
            if let RmaFrame::Reply(reply) = self.receive().await? {
                return Ok(reply);
            }
        }
    }

    /// The connection, for a caller that reads and writes concurrently.
    pub fn into_stream(self) -> Box<dyn ByteStream> {
        self.stream
    }

    /// Sends a message of a link, with the byte that marks it as one.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn send_link(&mut self, message: &[u8]) -> io::Result<()> {
        self.send(&[&[0], message].concat()).await
    }

    /// The next message of a link.
    ///
    /// # Errors
    /// The connection or the link has ended.
    pub async fn link_message(&mut self) -> io::Result<Vec<u8>> {
        let mut message = self.message().await?;
        if message.first() != Some(&0) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        message.remove(0);
        Ok(message)
    }
}

/// Credit is returned to the host after this many messages.
const CREDIT_EVERY: u32 = 16;

/// The arguments of a verb.
#[derive(Clone, Copy)]
pub struct Verb<'a> {
    pub capability: &'a [u8; 40],
    pub offset: u64,
    pub length: u64,
    pub first: u64,
    pub second: u64,
}

impl<'a> Verb<'a> {
    /// A verb on a range of memory.
    pub fn range(capability: &'a [u8; 40], offset: u64, length: u64) -> Verb<'a> {
        Verb { capability, offset, length, first: 0, second: 0 }
    }

    /// The whole frame, for callers that send many.
    pub fn frame(&self, kind: u8, sequence: u32) -> Vec<u8> {
        let mut bytes = frame_head(kind, sequence, self.length);
        bytes.extend_from_slice(self.capability);
        for word in [self.offset, self.first, self.second] {
            bytes.extend(word.to_le_bytes());
        }
        bytes
    }
}

fn frame_head(kind: u8, sequence: u32, length: u64) -> Vec<u8> {
    let mut bytes = vec![kind, 0, 0, 0];
    bytes.extend(sequence.to_le_bytes());
    bytes.extend(length.to_le_bytes());
    bytes
}

/// An owner at a memory node, after the hello.
pub struct PoolOwner {
    pub caller: RmaClient,
    number: u32,
}

/// Memory that a node has granted.
#[derive(Clone, Copy)]
pub struct GrantedSection {
    pub number: u64,
    pub capability: [u8; 40],
}

impl PoolOwner {
    /// Says hello. It does not fence: that would take the memory from the true owner.
    ///
    /// # Errors
    /// The node refuses.
    pub async fn hello(caller: RmaClient, section_bytes: u64) -> io::Result<PoolOwner> {
        let mut owner = PoolOwner { caller, number: 0 };
        let body = [b"HDLRPOOL".as_slice(), &only(POOL_VERSION), &section_bytes.to_le_bytes()].concat();
        let answer = owner.ask(0x01, &body).await?;
        // The node has chosen version 0 where it speaks other versions.
        match answer.starts_with(&POOL_VERSION.to_le_bytes()) {
            true => Ok(owner),
            false => Err(io::Error::new(io::ErrorKind::PermissionDenied, "the node speaks other versions")),
        }
    }

    /// Takes the owner's memory under an epoch.
    ///
    /// # Errors
    /// The node refuses, because there is a newer epoch.
    pub async fn fence(&mut self, epoch: u64) -> io::Result<()> {
        let holder = u64::from_le_bytes(random());
        // The last word: what the owner left is not kept.
        let body = [epoch.to_le_bytes(), holder.to_le_bytes(), [0; 8]].concat();
        self.ask(0x02, &body).await.map(|_| ())
    }

    /// Asks for a section.
    ///
    /// # Errors
    /// The node refuses.
    pub async fn grant(&mut self, bytes: u64) -> io::Result<GrantedSection> {
        // The owner's own number of the section, which means nothing to the node.
        let answer = self.ask(0x03, &[bytes, 1].map(u64::to_le_bytes).concat()).await?;
        let number = answer.get(8..16).ok_or(io::ErrorKind::InvalidData)?;
        let capability = answer.get(24..64).ok_or(io::ErrorKind::InvalidData)?;
        Ok(GrantedSection {
            number: u64::from_le_bytes(number.try_into().map_err(io::Error::other)?),
            capability: capability.try_into().map_err(io::Error::other)?,
        })
    }

    /// Gives a section back, which revokes its capability.
    ///
    /// # Errors
    /// The node refuses.
    pub async fn release(&mut self, section: u64) -> io::Result<()> {
        self.ask(0x04, &section.to_le_bytes()).await.map(|_| ())
    }

    async fn ask(&mut self, kind: u8, body: &[u8]) -> io::Result<Vec<u8>> {
        self.number += 1;
        let head = [&[kind, 0, 0, 0], &self.number.to_le_bytes()[..]].concat();
        self.caller.send(&[&head, body].concat()).await?;
        loop {
            let answer = self.caller.message().await?;
            let (head, body) = answer.split_at_checked(8).ok_or(io::ErrorKind::InvalidData)?;
            if head[4..] != self.number.to_le_bytes() {
                continue;
            }
            if head[0] == 0xff {
                let text = String::from_utf8_lossy(body.get(16..).unwrap_or_default()).into_owned();
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
            }
            return Ok(body.to_vec());
        }
    }
}

const POOL_VERSION: u32 = 3;
