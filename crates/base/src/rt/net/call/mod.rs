//! Requests and replies over a [`Link`](super::Link), many at a time, with notices in between.
//!
//! 1. A caller numbers its requests and sends them; the order of sending is the order of [`Caller::begin`].
//! 2. The server hands each request to its [`Handler`], in that order, and sends what becomes of it under the same number,
//!    in whatever order that is done: bytes, or a [`Refusal`] with the kind and the text of an error.
//! 3. At any time the server may send notices, which nobody answers; see [`Notifier`].
//! 4. Small frames that wait at the same time travel in one message of the link. Long parts of bodies
//!    are not copied into it.
//! 5. A caller that has nothing to ask sends a ping, a message without frames, every [`PING_PERIOD`]. A server ends a link whose
//!    first message does not come within [`FIRST_MESSAGE_MAX`], and one on which it hears nothing for [`IDLE_MAX`]
//!    while it has nothing to answer. It ends a link whose other side takes nothing for [`SEND_TIME_MAX`].
//! 6. When the link ends, each request whose sending had begun ends in [`CallError::Ambiguous`], each other one in
//!    [`CallError::Closed`]: it was never sent and never will be.
//!
//! Invariants:
//! * A caller has at most `in_flight_max` requests that are neither answered nor ended, those included whose callers have
//!   gone. A server runs at most `concurrency_max` of one link, and holds at most [`LINK_BYTES_MAX`] of their bodies or one
//!   body; it reads no further until there is room. Where a link has a [`Place`](super::Place), its organisation's budget
//!   bounds the messages that requests came in, until the last of these is answered: beyond it requests are refused.
//! * Every request that was begun ends: with its answer, or with its link.
//! * All bytes may be hostile. What is no frame, or answers nothing, ends the link and nothing else.
//!
//! ```text
//! message  := frame*, without frames a ping
//! offset  bytes  frame (little-endian)
//!  0       1     kind: 1 request, 2 reply, 3 refusal, 4 notice
//!  1       3     0
//!  4       4     length of the body
//!  8       8     number of the request; 0 for a notice
//! 16       …     body; of a refusal: kind of error (1 byte), text
//! ```
//!
//! Who may call, deadlines, and trying again are left to the protocols above.

mod caller;
mod frame;
#[doc(hidden)]
pub mod fuzz;
mod outbox;
mod server;

#[cfg(test)]
mod tests;

pub use caller::{Caller, Pending};
pub use server::{Answer, Ended, Handler, Notifier, serve, serve_in};

use std::time::Duration;

use crate::ErrorKind;

/// Bytes of one request, reply or notice.
pub const BODY_BYTES_MAX: usize = 256 << 20;
/// Bytes of the text of a refusal; the rest is cut off.
pub const REFUSAL_BYTES_MAX: usize = 4096;

/// Bytes of the requests of one link that a server holds; a longer one is taken when it is alone.
pub const LINK_BYTES_MAX: usize = 64 << 20;
/// How often a caller that asks nothing shows that it is there.
pub const PING_PERIOD: Duration = Duration::from_secs(3);
/// How long a caller may take to send something after it has connected.
pub const FIRST_MESSAGE_MAX: Duration = Duration::from_secs(10);
/// How long a server keeps a link on which nothing is asked and nothing comes.
pub const IDLE_MAX: Duration = Duration::from_secs(60);
/// How long a server waits for a caller that takes no answers; longer by a second for each 64 KiB of a message.
pub const SEND_TIME_MAX: Duration = Duration::from_secs(30);

/// What a server says instead of a reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    /// What the caller is to do.
    pub kind: ErrorKind,
    /// What happened.
    pub text: String,
}

impl Refusal {
    /// A refusal; of a long text the beginning.
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Refusal {
        let mut text = text.into();
        if text.len() > REFUSAL_BYTES_MAX {
            let end = (0..=REFUSAL_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            text.truncate(end);
        }
        Refusal { kind, text }
    }
}

/// Why a call has no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The link ended before the request was sent.
    #[error("the link ended before the request was sent")]
    Closed,
    /// The link ended after sending had begun and before an answer came.
    #[error("the link ended before an answer came, so it is unknown whether the request took effect")]
    Ambiguous,
    /// The body is longer than [`BODY_BYTES_MAX`]; nothing was sent.
    #[error("a message of {0} bytes is above the limit of {BODY_BYTES_MAX}")]
    TooLarge(usize),
    /// The server's answer.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl CallError {
    /// What the caller is to do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            CallError::Closed => ErrorKind::Closed,
            CallError::Ambiguous => ErrorKind::Ambiguous,
            CallError::TooLarge(_) => ErrorKind::Rejected,
            CallError::Refused(refusal) => refusal.kind,
        }
    }
}
