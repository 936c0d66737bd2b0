//! A client that writes HTTP/2 frames itself, so that it can send what no library sends.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const CONTINUATION: u8 = 9;
pub const END_STREAM: u8 = 1;
pub const ACK: u8 = 1;
pub const END_HEADERS: u8 = 4;
/// The setting for the window of a stream.
pub const INITIAL_WINDOW_SIZE: u16 = 4;

const TIMEOUT: Duration = Duration::from_secs(20);

pub struct Raw {
    socket: TcpStream,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Raw {
    /// Connects and sends the preface.
    pub async fn connect(address: SocketAddr) -> Raw {
        Raw::connect_with(address, &[]).await
    }

    /// As [`Raw::connect`], with settings.
    pub async fn connect_with(address: SocketAddr, settings: &[(u16, u32)]) -> Raw {
        let mut socket = TcpStream::connect(address).await.expect("a port that listens");
        socket.set_nodelay(true).expect("an open socket");
        socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.expect("room");
        let mut raw = Raw { socket };
        let payload: Vec<u8> = settings
            .iter()
            .flat_map(|(name, value)| [&name.to_be_bytes()[..], &value.to_be_bytes()[..]].concat())
            .collect();
        raw.send(&frame(SETTINGS, 0, 0, &payload)).await.expect("room");
        raw
    }

    /// Writes raw bytes.
    pub async fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.socket.write_all(bytes).await
    }

    /// The next frame; `None` once the server has closed the connection. Acknowledges pings and settings that arrive before
    /// it.
    pub async fn next(&mut self) -> Option<Frame> {
        loop {
            let frame = tokio::time::timeout(TIMEOUT, self.read()).await.expect("a server that says something")?;
            match frame.kind {
                PING | SETTINGS if frame.flags & ACK == 0 => {
                    let payload = if frame.kind == PING { &frame.payload[..] } else { &[] };
                    // The server may have closed the connection.
                    let _ = self.send(&self::frame(frame.kind, ACK, 0, payload)).await;
                }
                PING | SETTINGS => {}
                _ => return Some(frame),
            }
        }
    }

    async fn read(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.socket.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; length];
        self.socket.read_exact(&mut payload).await.ok()?;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        Some(Frame { kind: head[3], flags: head[4], stream, payload })
    }

    /// Reads until the server has ended its side of a stream.
    pub async fn answered(&mut self, stream: u32) {
        loop {
            let frame = self.next().await.expect("a connection that stays");
            assert_ne!(frame.kind, GOAWAY, "{frame:?}");
            if frame.stream == stream && frame.kind == HEADERS && frame.flags & END_STREAM != 0 {
                return;
            }
        }
    }

    /// Waits until the server has closed the connection; true if it sent GOAWAY first.
    pub async fn closed(&mut self) -> bool {
        let mut has_said = false;
        while let Some(frame) = self.next().await {
            has_said |= frame.kind == GOAWAY;
        }
        has_said
    }
}

/// A frame's bytes.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short frame").to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// The headers of a call.
pub fn headers(path: &str) -> Vec<u8> {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    fields.iter().flat_map(|(name, value)| literal(name, value)).collect()
}

/// A header that is not put into the table.
pub fn literal(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0, name.len() as u8];
    bytes.extend(name.as_bytes());
    bytes.push(value.len() as u8);
    bytes.extend(value.as_bytes());
    bytes
}
