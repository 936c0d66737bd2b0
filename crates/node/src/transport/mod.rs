//! Transports below [`base::rt::net`] links that leave the process: TCP on a trusted network, mutual TLS anywhere.
//!
//! 1. [`register`] makes them the transports of the schemes "tcp" and "tls": `tls:orderer.example.com:7050`.
//! 2. A listener accepts connections in a task of its own, shakes hands with a bounded number at a time and within a time
//!    limit, and puts the links into a bounded backlog.
//! 3. Over TLS each side proves with its certificate to be of one of the configured organisations; the link's
//!    [`peer`](base::rt::net::Link::peer) is that organisation's name. A stranger gets no link and costs one handshake.
//! 4. A host that falls silent is noticed: its links end within [`UNANSWERED_MAX`] and one [`KEEP_ALIVE`], whether messages
//!    are under way or not.
//!
//! Frames and the halves of a link are in [`frames`].

pub mod frames;
mod tls;

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base::rt::AbortOnDrop;
use base::rt::channel::{Closed, Receiver, Sender, bounded};
use base::rt::net::{BACKLOG_LINKS_MAX, BoxFuture, Link, Listen, Transport};
use base::rt::sync::Semaphore;
use tokio::net::{TcpListener, TcpStream};

pub use tls::{Organisation, TlsError, TlsIdentity, TlsTransport};

/// Handshakes in progress at once at one listener; further connections wait in the kernel.
const HANDSHAKES_MAX: usize = 64;
/// A connection that is not a link by then is dropped.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a connection attempt may take.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);
/// A pause after `accept` failed, which it does when the process has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// A silent connection is asked for a sign of life after this long, and as often again.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Signs of life that may be missing, where the kernel counts them and not the time.
const KEEP_ALIVE_PROBES: u32 = 3;
/// A connection is lost when nothing has answered for so long: no sign of life came, what was sent was not acknowledged,
/// or the other side took none of it. Without this the kernel goes on sending for a quarter of an hour.
const UNANSWERED_MAX: Duration = Duration::from_secs(60);

/// The scheme of [`TcpTransport`].
pub const TCP_SCHEME: &str = "tcp";
/// The scheme of [`TlsTransport`].
pub const TLS_SCHEME: &str = "tls";

/// Links over plain TCP, for a network that both sides trust.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpTransport;

/// Makes [`TcpTransport`] and, when this process has a certificate, `tls` the transports of their schemes.
pub fn register(tls: Option<TlsTransport>) {
    base::rt::net::register(TCP_SCHEME, Arc::new(TcpTransport));
    if let Some(tls) = tls {
        base::rt::net::register(TLS_SCHEME, Arc::new(tls));
    }
}

impl Transport for TcpTransport {
    fn listen<'a>(&'a self, rest: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Listen>>> {
        Box::pin(async move {
            let shake = |socket: TcpStream| async move { over_tcp(socket).await };
            Ok(Box::new(Accepting::start(rest, shake).await?) as Box<dyn Listen>)
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

async fn within<T>(limit: Duration, attempt: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    base::rt::timeout(limit, attempt).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Connects a socket.
async fn dial(address: &str) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(address).await?;
    tune(&socket)?;
    Ok(socket)
}

/// No delay for small messages, and the loss of the other host is noticed.
fn tune(socket: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    socket.set_nodelay(true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEP_ALIVE)?;
    sockopt::set_tcp_keepintvl(socket, KEEP_ALIVE)?;
    sockopt::set_tcp_keepcnt(socket, KEEP_ALIVE_PROBES)?;
    sockopt::set_tcp_user_timeout(socket, UNANSWERED_MAX.as_millis() as u32)?;
    Ok(())
}

/// A listener and the task that shakes hands for it.
struct Accepting {
    address: String,
    backlog: Receiver<Link>,
    _task: AbortOnDrop<()>,
}

impl Accepting {
    async fn start<F, S>(address: &str, shake: S) -> io::Result<Accepting>
    where
        S: Fn(TcpStream) -> F + Send + 'static,
        F: Future<Output = io::Result<Link>> + Send + 'static,
    {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?.to_string();
        let (links, backlog) = bounded(BACKLOG_LINKS_MAX);
        let task = base::rt::spawn(accept(listener, links, shake)).abort_on_drop();
        Ok(Accepting { address, backlog, _task: task })
    }
}

async fn accept<F, S>(listener: TcpListener, links: Sender<Link>, shake: S)
where
    S: Fn(TcpStream) -> F,
    F: Future<Output = io::Result<Link>> + Send + 'static,
{
    let handshakes = Semaphore::new(HANDSHAKES_MAX);
    loop {
        let permit = handshakes.acquire().await;
        let socket = match listener.accept().await {
            Ok((socket, _)) => socket,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                base::rt::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if tune(&socket).is_err() {
            continue;
        }
        let (attempt, links) = (shake(socket), links.clone());
        base::rt::spawn(async move {
            let _permit = permit;
            match within(HANDSHAKE_TIME_MAX, attempt).await {
                Ok(link) => {
                    let _ = links.send(link).await;
                }
                Err(error) => tracing::debug!(%error, "a connection did not become a link"),
            }
        });
    }
}

impl Listen for Accepting {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Link, Closed>> {
        self.backlog.poll_recv(cx).map(|link| link.ok_or(Closed))
    }

    fn address(&self) -> String {
        self.address.clone()
    }
}

#[cfg(test)]
mod tests;
