//! Links over plain TCP.

use std::io;

use base::rt::net::{BoxFuture, Link, Transport, TransportListener};
use tokio::net::TcpStream;

use crate::accept::AcceptLoop;
use crate::frames;
use crate::socket::{CONNECT_TIME_MAX, HELLO_TIME_MAX, dial, within};

/// Links over plain TCP, for a network that both sides trust.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpTransport;

impl Transport for TcpTransport {
    fn listen<'a>(&'a self, rest: &'a str) -> BoxFuture<'a, io::Result<Box<dyn TransportListener>>> {
        Box::pin(async move {
            let shake = |socket: TcpStream| within(HELLO_TIME_MAX, over_tcp(socket));
            Ok(Box::new(AcceptLoop::start(rest, shake).await?) as Box<dyn TransportListener>)
        })
    }

    fn connect<'a>(&'a self, rest: &'a str) -> BoxFuture<'a, io::Result<Link>> {
        Box::pin(within(CONNECT_TIME_MAX, async move { over_tcp(dial(rest).await?).await }))
    }
}

async fn over_tcp(socket: TcpStream) -> io::Result<Link> {
    let (reader, writer) = socket.into_split();
    frames::establish(reader, writer, None).await
}
