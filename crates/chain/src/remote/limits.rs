//! What a link between a gateway and a peer or an orderer is bound by: versions, numbers, sizes and times.

use std::time::Duration;

use wire::VersionRange;

/// The versions of the messages that this program speaks.
pub const PROTOCOL_VERSIONS: VersionRange = VersionRange::only(1);
/// The largest number of blocks for which a caller that was away gets notices again; it must ask for earlier ones.
pub const FOLLOW_BLOCKS_MAX: u64 = 64;
/// The largest number of requests of one link that are answered at the same time.
pub const REQUESTS_MAX: usize = 4096;
/// The largest number of links that one server serves at the same time, divided between the organisations that it
/// answers. If an organisation exceeds its part, its newest link replaces its oldest.
pub const LINKS_MAX: usize = 64;
/// The largest number of channels that a gateway learns from one peer.
pub const CHANNELS_MAX: usize = 1000;
/// How long a peer may take to answer a hello, and to send block 0.
pub const HELLO_MAX: Duration = Duration::from_secs(10);
/// The wait after the first failure to connect.
pub const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// The longest wait between two attempts.
pub const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// The same for a peer with several compute nodes, of which another one may become primary at any moment.
pub const MOVE_BACKOFF_MAX: Duration = Duration::from_millis(40);
/// How often the caller checks that the primary of a peer with several compute nodes still is the primary.
pub const PROBE_PERIOD: Duration = Duration::from_millis(250);
/// How long the answer to that check may take.
pub const PROBE_MAX: Duration = Duration::from_secs(1);
/// How long a request waits for a peer during a failover to another compute node.
pub const MOVING_MAX: Duration = Duration::from_secs(5);
