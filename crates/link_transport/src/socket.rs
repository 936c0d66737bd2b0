//! Sockets and their options.

use std::io;
use std::time::Duration;

use tokio::net::TcpStream;

/// Time limit for a connection's first bytes: a TLS hello, or the preface of a link.
pub(super) const HELLO_TIME_MAX: Duration = Duration::from_secs(2);

/// Time limit of a connection attempt.
pub(super) const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);

/// A keepalive probe is sent after this much silence, and repeated at this interval.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Maximum of unanswered probes, where the kernel counts probes instead of time.
const KEEP_ALIVE_PROBES: u32 = 3;
/// A connection is lost when the other side has answered nothing for this long: no probe was answered, sent data was
/// not acknowledged, or the receive window stayed closed. Without this the kernel retries for a quarter of an hour.
pub(super) const UNANSWERED_MAX: Duration = Duration::from_secs(60);

pub(super) async fn within<T>(limit: Duration, attempt: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    base::rt::timeout(limit, attempt).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Connects a socket.
pub(super) async fn dial(address: &str) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(address).await?;
    tune(&socket)?;
    Ok(socket)
}

/// Disables the delay of small messages, and enables detection of a lost host.
pub(super) fn tune(socket: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    socket.set_nodelay(true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEP_ALIVE)?;
    sockopt::set_tcp_keepintvl(socket, KEEP_ALIVE)?;
    sockopt::set_tcp_keepcnt(socket, KEEP_ALIVE_PROBES)?;
    sockopt::set_tcp_user_timeout(socket, UNANSWERED_MAX.as_millis() as u32)?;
    Ok(())
}
