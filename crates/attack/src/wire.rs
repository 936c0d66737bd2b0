//! Every protocol that Heddle speaks, implemented without Heddle's code.

pub mod fabric;
pub mod grpc;
pub mod http2;
pub mod link;
pub mod protobuf;
pub mod rma;
pub mod tls;

use std::io;
use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream};

/// How long making a connection may take.
const DIAL_TIME_MAX: Duration = Duration::from_secs(10);

/// Makes a TCP connection to `host:port`.
///
/// # Errors
/// The connection is refused, or not made in time.
pub async fn dial(address: &str) -> io::Result<TcpStream> {
    let socket = tokio::time::timeout(DIAL_TIME_MAX, TcpStream::connect(address)).await??;
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// A connection that takes few bytes at a time, however much the other side wants to send.
///
/// # Errors
/// As [`dial`].
pub async fn dial_narrow(address: &str) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(NARROW_BYTES)?;
    let address = address.parse().map_err(io::Error::other)?;
    tokio::time::timeout(DIAL_TIME_MAX, socket.connect(address)).await?
}

/// The kernel's receive buffer of a narrow connection, in bytes.
const NARROW_BYTES: u32 = 128 << 10;

/// Bytes from the operating system's generator.
///
/// # Panics
/// If the system has no generator.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).expect("the system has random bytes");
    bytes
}
