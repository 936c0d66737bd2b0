//! Transports for [`base::rt::net`] links between processes: TCP on a trusted network, mutual TLS on any network.
//!
//! 1. [`register`] registers the transports for the schemes "tcp" and "tls". An address is, for example,
//!    `tls:orderer.example.com:7050`.
//! 2. A listener accepts every connection at once, each in a separate task. A connection is unauthenticated until its
//!    handshake is complete: it must begin the handshake within [`HELLO_TIME_MAX`] and finish it within
//!    [`HANDSHAKE_TIME_MAX`]. If [`UNAUTHENTICATED_MAX`] such connections exist, a new one displaces the oldest,
//!    preferably one from its own address. So a slow connection cannot keep a new one out.
//! 3. Established links go into a bounded backlog. If the backlog is full, the link is closed.
//! 4. Over TLS each side proves with its certificate that it is a node of a configured organisation. The link's
//!    [`principal`](base::rt::net::Link::principal) is the organisation's name and the certificate's digest. Users have
//!    certificates of the same authorities, but get no link. An unauthenticated connection costs at most one handshake.
//! 5. Silent hosts are detected: their links end within [`UNANSWERED_MAX`] plus one [`KEEP_ALIVE`], whether or not
//!    messages are in flight.
//!
//! [`frames`] has the frames and the two halves of a link.

pub mod frames;
mod tls;

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base::admission::{Admission, AdmissionLimits};
use base::rt::AbortOnDrop;
use base::rt::channel::{Closed, Receiver, Sender, TrySendError, bounded};
use base::rt::net::{BACKLOG_LINKS_MAX, BoxFuture, Link, Transport, TransportListener};
use tokio::net::{TcpListener, TcpStream};

pub use tls::{LinkTlsError, LinkTlsIdentity, OrganizationRoots, TlsTransport};

/// Maximum of connections at one listener that are not links yet.
const UNAUTHENTICATED_MAX: usize = 512;
/// Maximum of them from one address: a host may run many processes.
const UNAUTHENTICATED_PER_ADDRESS_MAX: usize = 256;
/// Time limit for a connection's first bytes: a TLS hello, or the preface of a link.
const HELLO_TIME_MAX: Duration = Duration::from_secs(2);
/// A connection that is not a link after this time is dropped.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(5);
/// Time limit of a connection attempt.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);
/// The pause after `accept` fails, which it does when the process has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// A keepalive probe is sent after this much silence, and repeated at this interval.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Maximum of unanswered probes, where the kernel counts probes instead of time.
const KEEP_ALIVE_PROBES: u32 = 3;
/// A connection is lost when the other side has answered nothing for this long: no probe was answered, sent data was
/// not acknowledged, or the receive window stayed closed. Without this the kernel retries for a quarter of an hour.
const UNANSWERED_MAX: Duration = Duration::from_secs(60);

/// The scheme of [`TcpTransport`].
pub const TCP_SCHEME: &str = "tcp";
/// The scheme of [`TlsTransport`].
pub const TLS_SCHEME: &str = "tls";

/// Links over plain TCP, for a network that both sides trust.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpTransport;

/// Registers [`TcpTransport`] and, if this process has a certificate, `tls` for their schemes.
pub fn register(tls: Option<TlsTransport>) {
    base::rt::net::register(TCP_SCHEME, Arc::new(TcpTransport));
    if let Some(tls) = tls {
        base::rt::net::register(TLS_SCHEME, Arc::new(tls));
    }
}

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

async fn within<T>(limit: Duration, attempt: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    base::rt::timeout(limit, attempt).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Connects a socket.
async fn dial(address: &str) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(address).await?;
    tune(&socket)?;
    Ok(socket)
}

/// Disables the delay of small messages, and enables detection of a lost host.
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

/// A listener and the task that runs its handshakes.
struct AcceptLoop {
    address: String,
    backlog: Receiver<Link>,
    _task: AbortOnDrop<()>,
}

impl AcceptLoop {
    async fn start<F, S>(address: &str, shake: S) -> io::Result<AcceptLoop>
    where
        S: Fn(TcpStream) -> F + Send + 'static,
        F: Future<Output = io::Result<Link>> + Send + 'static,
    {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?.to_string();
        let (links, backlog) = bounded(BACKLOG_LINKS_MAX);
        let task = base::rt::spawn(accept(listener, links, shake)).abort_on_drop();
        Ok(AcceptLoop { address, backlog, _task: task })
    }
}

async fn accept<F, S>(listener: TcpListener, links: Sender<Link>, shake: S)
where
    S: Fn(TcpStream) -> F,
    F: Future<Output = io::Result<Link>> + Send + 'static,
{
    let admission = Admission::new(AdmissionLimits {
        unauthenticated_max: UNAUTHENTICATED_MAX,
        unauthenticated_per_address_max: UNAUTHENTICATED_PER_ADDRESS_MAX,
        handshake_time_max: HANDSHAKE_TIME_MAX,
        // The code that serves a link accounts for it.
        ..AdmissionLimits::in_proportion(UNAUTHENTICATED_MAX, 0, 1)
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
            let shaken = stranger.displaced().run_until_cancelled(attempt).await;
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

impl TransportListener for AcceptLoop {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Link, Closed>> {
        self.backlog.poll_recv(cx).map(|link| link.ok_or(Closed))
    }

    fn address(&self) -> String {
        self.address.clone()
    }
}

#[cfg(test)]
mod tests;
