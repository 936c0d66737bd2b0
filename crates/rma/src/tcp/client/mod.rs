//! The client end of a connection. Verbs are posted into a queue; a thread that waits for a completion sends the queued
//! verbs and reads the replies itself.
//!
//! 1. Posting puts a verb into the queue and into the list of verbs in flight. Nothing is written to the socket yet.
//! 2. A waiter that polls a completion writes the queue to the socket, many verbs with one system call, and reads
//!    replies for a short time ([`TcpConfig::spin`](crate::tcp::TcpConfig::spin)), for itself and for all other
//!    waiters. Replies come in the order of posting.
//! 3. If its reply has not arrived in that time, the waiter [asks](TcpClient::request_wait) a task of the connection to
//!    wait for it through the runtime's reactor. The task stops as soon as that reply has arrived, even if later verbs
//!    are in flight. Otherwise each reply that a polling waiter reads would also wake the task, at the cost of half a
//!    round trip.
//!
//! Invariants: the order of verbs in flight is the order of their frames; a lost connection completes each of them as
//! ambiguous.

mod attend;
mod connect;
mod connection;
mod endpoint;
mod posted;
mod replies;
mod reply_input;

pub use connect::connect;
use connection::TcpClient;
pub use endpoint::total;
use posted::{PendingVerb, PostedVerbs, VerbOutcome};
