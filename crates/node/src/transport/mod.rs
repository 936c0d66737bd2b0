//! Transports below [`base::rt::net`] links that leave the process: TCP on a trusted network, mutual TLS anywhere.
//!
//! 1. [`register`] makes them the transports of the schemes "tcp" and "tls": `tls:orderer.example.com:7050`.
//! 2. A listener accepts every connection at once, in a task of its own. A connection that is not a link yet is a stranger:
//!    it must have begun its handshake within [`HELLO_TIME_MAX`] and ended it within [`HANDSHAKE_TIME_MAX`], and beyond
//!    [`STRANGERS_MAX`] the newest takes the place of the oldest, first of all within its own address. What waits for a
//!    stranger holds nothing that a newcomer needs.
//! 3. Links go into a bounded backlog. One that finds it full is closed.
//! 4. Over TLS each side proves with its certificate to be a node of one of the configured organisations: the link's
//!    [`principal`](base::rt::net::Link::principal) is that organisation's name, and the certificate's digest. Users have
//!    certificates of the same authorities; they get no link. A stranger costs one handshake.
//! 5. A host that falls silent is noticed: its links end within [`UNANSWERED_MAX`] and one [`KEEP_ALIVE`], whether messages
//!    are under way or not.
//!
//! Frames and the halves of a link are in [`frames`].

pub mod frames;
mod tls;

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base::admission::{Admission, AdmissionLimits};
use base::rt::AbortOnDrop;
use base::rt::channel::{Closed, Receiver, Sender, TrySendError, bounded};
use base::rt::net::{BACKLOG_LINKS_MAX, BoxFuture, Link, Listen, Transport};
use tokio::net::{TcpListener, TcpStream};

pub use tls::{Organisation, TlsError, TlsIdentity, TlsTransport};

/// Connections at one listener that are not links yet.
const STRANGERS_MAX: usize = 512;
/// Those of one address: a host may run many processes.
const STRANGERS_OF_ADDRESS_MAX: usize = 256;
/// How long a connection may take to say its first bytes: a TLS hello, or the preface of a link.
const HELLO_TIME_MAX: Duration = Duration::from_secs(2);
/// A connection that is not a link by then is dropped.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(5);
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
            let shake = |socket: TcpStream| within(HELLO_TIME_MAX, over_tcp(socket));
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
    let admission = Admission::new(AdmissionLimits {
        strangers_max: STRANGERS_MAX,
        strangers_per_address_max: STRANGERS_OF_ADDRESS_MAX,
        handshake_time_max: HANDSHAKE_TIME_MAX,
        // What becomes a link is accounted where it is served.
        ..AdmissionLimits::in_proportion(STRANGERS_MAX, 0, 1)
    });
    loop {
        let (socket, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                base::rt::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if tune(&socket).is_err() {
            continue;
        }
        let stranger = admission.admit(address.ip());
        let (attempt, links) = (within(HANDSHAKE_TIME_MAX, shake(socket)), links.clone());
        base::rt::spawn(async move {
            let shaken = stranger.displaced().or_stopped(attempt).await;
            drop(stranger);
            match shaken {
                Some(Ok(link)) => {
                    if let Err(TrySendError::Full(_)) = links.try_send(link) {
                        tracing::warn!(%address, "closed a link: {BACKLOG_LINKS_MAX} wait to be accepted");
                    }
                }
                Some(Err(error)) => tracing::debug!(%address, %error, "a connection did not become a link"),
                None => tracing::debug!(%address, "a connection made room for newer ones"),
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
