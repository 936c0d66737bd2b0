//! Options of the provider.

use std::time::Duration;

use crate::tcp::tls::TcpTls;

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
