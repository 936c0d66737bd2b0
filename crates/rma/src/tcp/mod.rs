//! The `tcp` provider: the same verbs between any two hosts.
//!
//! 1. A host listens on a port. Who connects proves to know the token of its name ([`handshake`]), over mutual TLS where
//!    the link leaves the trusted network ([`TcpTls`]).
//! 2. The one that connects posts verbs; many go out with one call ([`client`], [`peer`]).
//! 3. The host's progress thread, one for all of its connections, checks each verb's capability and carries it out
//!    ([`server`], [`served`], [`memory`]); nothing above `rma` runs at the host. Long payloads land in the region, and leave it, without
//!    a copy in between.
//! 4. Whoever waits, on either side, looks at the socket for a short while ([`TcpOptions::spin`]) before it sleeps.
//!
//! Invariants:
//! * A capability is checked, and what it allows is done, under the lock of the region; long transfers are checked again
//!   for each piece. So after a revocation nothing lands, and a verb that was half done completes as ambiguous.
//! * Words land and are read whole; the bytes of a verb land from low addresses to high ones; atomic verbs are the progress
//!   thread's.
//! * A certificate that the caller denies ([`Denials`]) gets no connection, and those that are open end.
//! * A lost connection completes every verb in flight as ambiguous, and later ones fail with [`Error::Closed`].
//! * Everything that the other side sends is checked ([`wire`]); bytes that are no frame end the connection. Without TLS
//!   the bytes, secrets of capabilities included, are as safe as the network is.
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

use crate::{Atomicity, Credential, Endpoint, Error, Fabric, Host, HostOptions, Ordering, Profile};

pub use tls::{Denials, TcpTls};

const PROFILE: Profile = Profile {
    provider: "tcp",
    atomicity: Atomicity::Adapter,
    ordering: Ordering::Words,
    immediate: true,
    synchronous: false,
    host_progress: true,
};

/// A host drops a connection on which both sides have not proved themselves by then.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(2);
/// How long a connection that was closed here waits for the other side to have received what was sent.
const CLOSING_TIME_MAX: Duration = Duration::from_secs(5);
/// A host that lives takes in what comes more often than this, however busy it is.
const DEAD_AFTER_MIN: Duration = Duration::from_secs(4);
/// Signs of life that may be missing.
const KEEP_ALIVE_PROBES: u32 = 3;
/// Bytes that a socket takes before the other host has them, of which the kernel makes twice as many: more than a round trip
/// within a data centre needs, and few enough for the caches.
const SEND_BUFFER_BYTES: usize = 512 << 10;

/// Settings of the provider.
#[derive(Clone, Debug)]
pub struct TcpOptions {
    /// How long whoever waits looks at the socket before it sleeps; longer, by at most a millisecond, while the other side
    /// has probably not taken yet what was written. Zero sleeps at once: slower, and easy on processors.
    pub spin: Duration,
    /// A host that has not been heard of for about so long, at least four seconds, is lost: verbs in flight to it complete as ambiguous.
    pub dead_after: Duration,
    /// Mutual TLS. `None` on a network that both sides trust.
    pub tls: Option<TcpTls>,
    /// For how long a frame that a host has received a part of may pause, and how much time it has before its rate counts. A
    /// connection whose frame does not arrive in time ends.
    pub pause_max: Duration,
    /// Once one name's messages that arrived at a host and were not taken hold so many bytes, over all of its connections, the
    /// host reads no further ones of that name until some were taken. A connection that waits so for longer than
    /// [`TcpOptions::dead_after`], while its sockets are full, is lost to its other side.
    pub untaken_bytes_max: usize,
    /// Once the replies to one name that wait to go out take so many bytes at a host, each of its connections has one reply after
    /// the other.
    pub reply_bytes_max: usize,
}

/// One connection brings at most a window and the longest message, 192 MiB: a name with one connection never fills this. With several,
/// as a compute node has at a storage node, four windows fill before a sender has to wait.
const UNTAKEN_BYTES_MAX: usize = 256 << 20;
/// Sixteen connections, each with as many replies as it may have waiting.
const REPLIES_BYTES_MAX: usize = 64 << 20;

impl Default for TcpOptions {
    fn default() -> TcpOptions {
        TcpOptions {
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
pub struct Tcp {
    options: TcpOptions,
}

impl Tcp {
    /// With these settings.
    pub fn new(options: TcpOptions) -> Tcp {
        Tcp { options }
    }
}

#[async_trait]
impl Fabric for Tcp {
    async fn connect(&self, address: &str, credential: &Credential) -> Result<Endpoint, Error> {
        let (address, credential, options) = (address.to_owned(), credential.clone(), self.options.clone());
        let connected = base::rt::blocking(move || client::connect(&address, &credential, &options)).await?;
        Ok(connected.endpoint(&self.options))
    }

    async fn host(&self, address: &str, options: HostOptions) -> Result<Arc<dyn Host>, Error> {
        let (address, tcp) = (address.to_owned(), self.options.clone());
        let host = base::rt::blocking(move || host::TcpHost::start(&address, options, tcp)).await?;
        Ok(Arc::new(host.watching()))
    }

    fn provider(&self) -> &'static str {
        PROFILE.provider
    }
}

/// No delay for small frames, little between the hosts, and the loss of the other is noticed.
fn tune(socket: &TcpStream, options: &TcpOptions) -> io::Result<()> {
    use rustix::net::sockopt;
    let probe = (options.dead_after / (KEEP_ALIVE_PROBES + 1)).max(Duration::from_secs(1));
    socket.set_nodelay(true)?;
    // The kernel would let it grow to several MiB, and a long reply would wait there in memory, not in the caches.
    sockopt::set_socket_send_buffer_size(socket, SEND_BUFFER_BYTES)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, probe)?;
    sockopt::set_tcp_keepintvl(socket, probe)?;
    sockopt::set_tcp_keepcnt(socket, KEEP_ALIVE_PROBES)?;
    let dead_after = options.dead_after.max(DEAD_AFTER_MIN).as_millis();
    sockopt::set_tcp_user_timeout(socket, u32::try_from(dead_after).unwrap_or(u32::MAX))?;
    Ok(())
}

/// Starts a thread of the provider's own.
#[allow(clippy::disallowed_methods)] // A production provider: its progress must not wait for the tasks of others.
fn start_thread(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body)
}

/// The machine's clock, for time limits and spinning.
#[allow(clippy::disallowed_methods)] // As above: there is no simulation of this provider.
fn clock() -> std::time::Instant {
    std::time::Instant::now()
}
