//! Channels between tasks: a bounded queue, a one-shot channel and a watched value. All are independent of the
//! executor, so they behave the same in simulation.

mod bounded;
mod closed;
mod oneshot;
mod watch;

pub use bounded::{Receiver, Sender, TryReceiveError, TrySendError, bounded};
pub use closed::Closed;
pub use oneshot::{OneshotReceiver, OneshotSender, oneshot};
pub use watch::{WatchReceiver, WatchRef, WatchSender, watch};
