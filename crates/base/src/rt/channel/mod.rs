//! Channels between tasks: a bounded queue, a one-shot channel and a watched value. All are independent of the
//! executor, so they behave the same in simulation.

mod bounded;
mod oneshot;
mod watch;

pub use bounded::{Receiver, Sender, TryReceiveError, TrySendError, bounded};
pub use oneshot::{OneshotReceiver, OneshotSender, oneshot};
pub use watch::{WatchReceiver, WatchRef, WatchSender, watch};

/// The other end of a channel or link was dropped, or this end has been closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("closed")]
pub struct Closed;
