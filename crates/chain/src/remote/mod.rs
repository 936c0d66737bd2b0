//! A peer and an orderer as other processes see them.
//!
//! A gateway, a peer and an orderer may run in processes of their own. The gateway then works on [`RemotePeer`] and
//! [`RemoteOrderer`], which ask over links ([`base::rt::net::call`]); [`serve_peer`] and [`serve_orderer`] answer.
//!
//! The protocol of a peer's link, whose messages are in [`messages`]:
//!
//! 1. The caller says hello with the version that it speaks. The answer has the server's version and the channels that
//!    the peer has joined, each with its height. Versions that differ end the link, with both named.
//! 2. For a channel that it does not know yet, the caller asks for block 0, and makes the channel's rules from it.
//! 3. The caller follows each channel from the height it knows. The answer says from which block on notices will come: the
//!    same one, or a later one when that is more than [`FOLLOW_BLOCKS_MAX`] behind. From then on each committed block is
//!    noticed once, in order: its number, and id and code of each transaction; so is the failure of the channel.
//! 4. Only now is the peer shown as reachable, and asked for endorsements, blocks and statuses.
//! 5. When the link ends, whoever waits is told [`crate::Error::Unreachable`], and the caller connects again, waiting
//!    longer after each failure, up to [`BACKOFF_MAX`].
//! 6. A peer with several compute nodes has several addresses. Only at its primary are there channels, so the caller tries one
//!    after the other until some are named, and asks now and then whether they still are. Meanwhile questions and waits for
//!    commits are not told that the peer is away, for up to [`MOVING_MAX`]: they go on at the next primary, which has
//!    every block that the one before has told anybody of.
//!
//! Waiting for a commit: the waiter registers, then asks the peer for the transaction's status. A transaction that was
//! committed by then is in the answer; one committed later is in a notice, because following began before the question.
//!
//! Invariants:
//! * Nothing here changes a peer: asking again after an unknown outcome is always safe, so an answer that was lost is an
//!   error that may be retried. A broadcast whose answer was lost is ambiguous; only [`RemoteOrderers`] repeats it.
//! * A height that is shown was committed at the peer; it never goes back.
//! * Who may ask what is decided by the link's authentication: each address answers the parties that it is for, and
//!   [`Scope::Others`] may have proposals run, which carry signatures of their own, and compare commit hashes ([`compare`]), and
//!   nothing else. The caller in its turn
//!   accepts the peer or orderer that it expects at an address, and nobody else.
//! * All bytes may be hostile and decode into errors; requests, notices and waits are bounded.

mod channel;
pub mod compare;
pub mod messages;
mod orderer;
mod peer;
mod serve;

use std::time::Duration;

pub use channel::RemoteChannel;
pub use compare::Comparison;
pub use orderer::{RemoteOrderer, RemoteOrderers, SUBMIT_MAX, serve_orderer};
pub use peer::{RemotePeer, RemotePeerOptions};
pub use serve::{Scope, serve_peer};

/// The version of the messages.
pub const VERSION: u32 = 1;
/// Blocks that are noticed again to a caller that was away; of earlier ones it learns by asking.
pub const FOLLOW_BLOCKS_MAX: u64 = 64;
/// Requests of one link that are answered at once.
pub const REQUESTS_MAX: usize = 4096;
/// Links that one server serves at once, shared between the organisations that it answers; beyond its share an organisation's
/// newest link takes the place of its oldest.
pub const LINKS_MAX: usize = 64;
/// How long a peer may take to say hello, and to send block 0.
pub const HELLO_MAX: Duration = Duration::from_secs(10);
/// The wait after the first failure to connect.
pub const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// The longest wait between two attempts.
pub const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// The same where a peer has several compute nodes, of which another one may be the primary at any moment.
pub const MOVE_BACKOFF_MAX: Duration = Duration::from_millis(40);
/// How often a primary that may be replaced is asked whether it still is the primary.
pub const PROBE_PERIOD: Duration = Duration::from_millis(250);
/// How long it may take to say so.
pub const PROBE_MAX: Duration = Duration::from_secs(1);
/// How long a question waits for a peer that moves to another compute node.
pub const MOVING_MAX: Duration = Duration::from_secs(5);
