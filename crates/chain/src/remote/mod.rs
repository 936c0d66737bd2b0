//! Access to a peer and an orderer in other processes.
//!
//! A gateway, a peer and an orderer may each run in a separate process. The gateway then works on [`RemotePeer`] and
//! [`RemoteOrderer`], which send requests over links ([`base::rt::net::rpc`]); [`serve_peer`] and [`serve_orderer`]
//! answer them.
//!
//! The protocol of a peer's link, whose messages are in [`messages`]:
//!
//! 1. The caller sends a hello with the versions that it speaks ([`wire::hello`]). The answer has the version of the link and
//!    the channels that the peer has joined, each with its height. If the two share no version, the link ends with an error
//!    that names both ranges.
//! 2. For a channel that it does not know yet, the caller asks for the newest configuration, and builds the channel's policies from
//!    it.
//! 3. The caller follows each channel from the height it knows. The answer names the first block for which the server will
//!    send a notice: the block at the caller's height, or a later one if that height is more than [`FOLLOW_BLOCKS_MAX`]
//!    behind. From then on the server sends one notice per committed block, in order: the block's number, and the id and
//!    code of each transaction. It also sends a notice if the channel fails. After the answer, and after each notice of a block that
//!    changed the configuration, the caller asks for the newest configuration again.
//! 4. Only now does the caller show the peer as reachable, and send it proposals and requests for blocks and statuses.
//! 5. When the link ends, waiting callers get [`crate::Error::Unreachable`], and the caller connects again. It waits longer
//!    after each failure, up to [`BACKOFF_MAX`].
//! 6. A peer with several compute nodes is asked at its primary ([`PeerTarget::Primary`]), which is at one of several
//!    addresses. Only the primary names channels in the answer to a hello. So the caller tries the addresses in turn until
//!    a node names channels, and checks periodically whether that node still does. Between attempts it waits at most [`MOVE_BACKOFF_MAX`]. During a failover, for up to [`MOVING_MAX`], requests
//!    and waits for commits do not fail as unreachable: they continue at the next primary, which has every block that the
//!    old primary has reported.
//!
//! Waiting for a commit: the waiter registers, then asks the peer for the transaction's status. If the transaction was
//! committed before the peer reads its status, the answer says so. If it is committed later, a notice says so, because
//! following started before the request.
//!
//! Invariants:
//! * Requests to a peer change nothing there, or nothing more when repeated. So it is always safe to repeat a request whose outcome is unknown, and a lost
//!   answer is an error that may be retried. A broadcast whose answer was lost is ambiguous; only [`RemoteOrderers`]
//!   repeats it.
//! * Every height that the caller shows was committed at the peer, and heights never decrease.
//! * The link's authentication decides who may send which requests. Each address serves only the parties that it is meant
//!   for. With [`ServiceScope::Others`] a party may only run proposals, which carry their own signatures, and compare
//!   commit hashes ([`compare`]). The caller in turn accepts only the peer or orderer that it expects at an address.
//! * Received bytes may be hostile: malformed messages decode into errors, and requests, notices and waits are bounded.

mod channel;
pub mod compare;
mod limits;
mod member;
pub mod messages;
mod orderer;
mod peer;
pub mod private_messages;
mod serve;
mod target;

pub use channel::RemoteChannel;
pub use compare::CommitHashComparison;
pub use limits::{
    BACKOFF_MAX, BACKOFF_MIN, CHANNELS_MAX, FOLLOW_BLOCKS_MAX, HELLO_MAX, LINKS_MAX, MOVE_BACKOFF_MAX, MOVING_MAX,
    PROBE_MAX, PROBE_PERIOD, PROTOCOL_VERSIONS, REQUESTS_MAX,
};
pub use member::RemoteMember;
pub use orderer::{RemoteOrderer, RemoteOrderers, SUBMIT_MAX, serve_orderer};
pub use peer::{RemotePeer, RemotePeerConfig};
pub use serve::{ServiceScope, serve_peer};
pub use target::PeerTarget;
