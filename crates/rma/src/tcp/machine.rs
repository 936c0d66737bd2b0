//! The machine's sockets, threads and clock, which a production provider may use.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use crate::tcp::config::TcpConfig;

/// A live host reads what it receives more often than this, however busy it is.
const KEEPALIVE_TIMEOUT_MIN: Duration = Duration::from_secs(4);
/// Keepalive probes that may go unanswered.
const KEEP_ALIVE_PROBES: u32 = 3;
/// Size of a socket's send buffer, which the kernel doubles: more than the bandwidth-delay product within a data centre, and
/// small enough to stay in the caches.
const SEND_BUFFER_BYTES: usize = 512 << 10;

/// Sets the socket options: no delay for small frames, a small send buffer, and detection of a lost host.
pub fn tune(socket: &TcpStream, options: &TcpConfig) -> io::Result<()> {
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
pub fn start_thread(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body)
}

/// The machine's clock, for time limits and spinning.
#[allow(clippy::disallowed_methods)] // As above: there is no simulation of this provider.
pub fn clock() -> std::time::Instant {
    std::time::Instant::now()
}
