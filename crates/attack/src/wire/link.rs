//! Links over TLS: exchange of whole messages in order, and the blocks that an orderer sends.

use std::io;
use std::sync::Arc;

use rustls::ClientConfig;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::{dial, tls};

const MAGIC: &[u8; 7] = b"HDLLINK";
const MESSAGE_BYTES_MAX: usize = 128 << 20;

/// A link.
pub struct LinkConnection {
    pub stream: TlsStream<TcpStream>,
}

impl LinkConnection {
    /// Connects, presents a certificate, and announces the version of the link protocol, which is the server's.
    ///
    /// # Errors
    /// The server refuses.
    pub async fn connect(address: &str, config: &Arc<ClientConfig>) -> io::Result<LinkConnection> {
        let mut stream = tls::connect(config, dial(address).await?).await?;
        let mut greeting = [0; 8];
        stream.write_all(&[MAGIC.as_slice(), &[VERSION]].concat()).await?;
        stream.read_exact(&mut greeting).await?;
        if greeting[..7] != MAGIC[..] {
            return Err(io::Error::other("no link"));
        }
        Ok(LinkConnection { stream })
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The link has ended.
    pub async fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.stream.write_all(&[&head(message.len() as u32), message].concat()).await
    }

    /// The next message.
    ///
    /// # Errors
    /// The link has ended.
    pub async fn receive(&mut self) -> io::Result<Vec<u8>> {
        loop {
            let mut head = [0; 8];
            self.stream.read_exact(&mut head).await?;
            let length = u32::from_le_bytes(head[..4].try_into().expect("four bytes")) as usize;
            if length > MESSAGE_BYTES_MAX {
                return Err(io::Error::other("a message that is too long"));
            }
            let mut message = vec![0; length];
            self.stream.read_exact(&mut message).await?;
            if head[4] == 0 {
                return Ok(message);
            }
        }
    }
}

const VERSION: u8 = 1;

/// The head of a message.
pub fn head(length: u32) -> [u8; 8] {
    let length = length.to_le_bytes();
    [length[0], length[1], length[2], length[3], 0, 0, 0, 0]
}

/// The request to an orderer for the blocks of a channel.
pub fn request_blocks(channel: &str, first: u64) -> Vec<u8> {
    let length = (channel.len() as u16).to_le_bytes();
    [&[1], &length[..], channel.as_bytes(), &first.to_le_bytes()].concat()
}

/// The hello to a peer or an orderer, as request number 1 of calls over links.
pub fn hello() -> Vec<u8> {
    let mut bytes = vec![1, 0, 0, 0];
    let body = b"\x0a\x12\x12\x10HDLRPEER\x01\0\0\0\x01\0\0\0";
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(1u64.to_le_bytes());
    bytes.extend(body);
    bytes
}
