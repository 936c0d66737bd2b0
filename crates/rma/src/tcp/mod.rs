//! The `tcp` provider: one-sided verbs over TCP, between any two hosts.
//!
//! 1. A host listens on a port. A client proves that it knows the token of its name ([`handshake`]). Where the link leaves the
//!    trusted network, the handshake runs over mutual TLS ([`TcpTls`]).
//! 2. The client posts verbs; one system call sends many of them ([`client`], [`peer`]).
//! 3. The host's progress thread, one for all of its connections, checks the capability of each verb and executes the verb
//!    ([`server`], [`served`], [`memory`]). No code above `rma` runs at the host. Long payloads go from the socket into the
//!    region, and from the region into the socket, without a copy in between.
//! 4. A waiting thread, at either end, polls the socket for a short time ([`TcpConfig::spin`]) before it sleeps.
//!
//! Invariants:
//! * The check of a capability and the access that it allows happen under one lock of the region; a long transfer is checked
//!   again for each piece. So no write lands after a revocation, and a verb that was half done completes as ambiguous.
//! * Words are written and read whole. The bytes of a verb land from low addresses to high ones. Only the progress thread
//!   executes atomic verbs.
//! * A certificate that [`Denials`] denies gets no connection, and its open connections end.
//! * When a connection is lost, every verb in flight completes as ambiguous, and later verbs fail with [`Error::Closed`].
//! * Every byte from the other end is checked ([`wire`]); bytes that form no valid frame end the connection. Without TLS the
//!   bytes, secrets of capabilities included, are only as safe as the network.
//!
//! The format is in `docs/formats/rma.md`. This module has its own thread, sockets and clock, as a production provider may.

mod arrival;
mod budget;
mod client;
#[doc(hidden)]
pub mod fuzz;
mod handshake;
mod host;
mod landing;
mod memory;
mod peer;
mod pipe;
mod served;
mod server;
mod session;
mod spin;
mod tls;
mod wire;

use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::{Atomicity, Credential, Endpoint, Error, Host, HostConfig, Provider, ProviderProfile, VerbOrdering};

pub use tls::{Denials, TcpTls};

const PROFILE: ProviderProfile = ProviderProfile {
    provider: "tcp",
    atomicity: Atomicity::Adapter,
    ordering: VerbOrdering::Words,
    immediate: true,
    synchronous: false,
    host_progress: true,
};

/// A host drops a connection whose handshake is not complete after this time.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a connection that was closed locally waits until the other end has received all that was sent.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// A live host reads what it receives more often than this, however busy it is.
const KEEPALIVE_TIMEOUT_MIN: Duration = Duration::from_secs(4);
/// Keepalive probes that may go unanswered.
const KEEP_ALIVE_PROBES: u32 = 3;
/// Size of a socket's send buffer, which the kernel doubles: more than the bandwidth-delay product within a data centre, and
/// small enough to stay in the caches.
const SEND_BUFFER_BYTES: usize = 512 << 10;

/// Options of the provider.
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// How long a waiting thread polls the socket before it sleeps. While the other end has probably not yet received what was
    /// written, the thread polls longer, by at most a millisecond. Zero makes it sleep at once, which is slower but saves
    /// processor time.
    pub spin: Duration,
    /// A host that has been silent for about this time, at least four seconds, counts as lost: verbs in flight to it complete
    /// as ambiguous.
    pub dead_after: Duration,
    /// Mutual TLS. `None` only on a network that both ends trust.
    pub tls: Option<TcpTls>,
    /// How long the arrival of a frame may pause, and how much time the frame has before its average rate counts. A host ends a
    /// connection whose frame does not arrive in time.
    pub pause_max: Duration,
    /// Bytes of one name's untaken messages at a host, over all of its connections. A message is untaken from its arrival until
    /// the application receives it. At this limit the host reads no further messages of that name until the application has
    /// taken some. If a connection waits longer than [`TcpConfig::dead_after`] and its socket buffers are full, the other end
    /// counts the connection as lost.
    pub untaken_bytes_max: usize,
    /// Bytes of one name's replies that wait to be sent at a host. At this limit each connection of the name has one reply in
    /// the queue at a time.
    pub reply_bytes_max: usize,
}

/// One connection brings at most a window and the longest message, 192 MiB, so a name with one connection never reaches this
/// limit. With several connections, as between a compute node and a storage node, four windows fill before a sender has to
/// wait.
const UNTAKEN_BYTES_MAX: usize = 256 << 20;
/// Sixteen connections, each with the most replies that it may queue.
const REPLIES_BYTES_MAX: usize = 64 << 20;

impl Default for TcpConfig {
    fn default() -> TcpConfig {
        TcpConfig {
            spin: Duration::from_micros(40),
            dead_after: Duration::from_secs(20),
            tls: None,
            pause_max: Duration::from_secs(30),
            untaken_bytes_max: UNTAKEN_BYTES_MAX,
            reply_bytes_max: REPLIES_BYTES_MAX,
        }
    }
}

/// The provider. See the module's description.
#[derive(Clone, Debug, Default)]
pub struct TcpProvider {
    options: TcpConfig,
}

impl TcpProvider {
    /// With these settings.
    pub fn new(options: TcpConfig) -> TcpProvider {
        TcpProvider { options }
    }
}

#[async_trait]
impl Provider for TcpProvider {
    async fn connect(&self, address: &str, credential: &Credential) -> Result<Endpoint, Error> {
        let (address, credential, options) = (address.to_owned(), credential.clone(), self.options.clone());
        let connected = base::rt::blocking(move || client::connect(&address, &credential, &options)).await?;
        Ok(connected.endpoint(&self.options))
    }

    async fn host(&self, address: &str, options: HostConfig) -> Result<Arc<dyn Host>, Error> {
        let (address, tcp) = (address.to_owned(), self.options.clone());
        let host = base::rt::blocking(move || host::TcpHost::start(&address, options, tcp)).await?;
        Ok(Arc::new(host.watching()))
    }

    fn name(&self) -> &'static str {
        PROFILE.provider
    }
}

/// Sets the socket options: no delay for small frames, a small send buffer, and detection of a lost host.
fn tune(socket: &TcpStream, options: &TcpConfig) -> io::Result<()> {
    use rustix::net::sockopt;
    let probe = (options.dead_after / (KEEP_ALIVE_PROBES + 1)).max(Duration::from_secs(1));
    socket.set_nodelay(true)?;
    // The kernel would let the buffer grow to several MiB, and a long reply would wait there in memory, not in the caches.
    sockopt::set_socket_send_buffer_size(socket, SEND_BUFFER_BYTES)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, probe)?;
    sockopt::set_tcp_keepintvl(socket, probe)?;
    sockopt::set_tcp_keepcnt(socket, KEEP_ALIVE_PROBES)?;
    let dead_after = options.dead_after.max(KEEPALIVE_TIMEOUT_MIN).as_millis();
    sockopt::set_tcp_user_timeout(socket, u32::try_from(dead_after).unwrap_or(u32::MAX))?;
    Ok(())
}

/// Starts a thread for the provider.
#[allow(clippy::disallowed_methods)] // A production provider: its progress must not wait for the tasks of others.
fn start_thread(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body)
}

/// The machine's clock, for time limits and spinning.
#[allow(clippy::disallowed_methods)] // As above: there is no simulation of this provider.
fn clock() -> std::time::Instant {
    std::time::Instant::now()
}
