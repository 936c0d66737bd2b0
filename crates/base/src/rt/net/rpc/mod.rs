//! Requests and replies over a [`Link`](super::Link), many at a time, with notices in between.
//!
//! 1. A client numbers its requests, and sends them in the order in which its calls of [`RpcClient::start`] complete.
//! 2. The server hands the requests to its [`RpcHandler`] in the order of sending. The outcome of a request is bytes,
//!    or a [`Rejection`] with the kind and the text of an error. The server sends each outcome when it is ready, in any
//!    order, with the number of its request.
//! 3. At any time the server may send notices, which have no reply; see [`Notifier`].
//! 4. Small frames that wait at the same time travel in one message of the link. Long bodies are sent without being
//!    copied.
//! 5. A client that has no requests sends a ping, a message without frames, every [`PING_PERIOD`]. A server ends a link
//!    in three cases: the first message does not arrive within [`FIRST_MESSAGE_TIMEOUT`]; the link is silent for
//!    [`IDLE_TIMEOUT`] while no request is open; or the client receives nothing for [`SEND_TIMEOUT`].
//! 6. When the link ends, a request whose sending had started fails with [`RpcError::Ambiguous`]. Any other request
//!    fails with [`RpcError::Closed`]: it was never sent and never will be.
//!
//! Invariants:
//! * A client has at most `in_flight_max` requests in flight. A request stays in flight until its answer arrives or its
//!   link ends, even if no caller waits for the answer any more.
//! * A server runs at most `concurrency_max` requests of one link. It holds at most [`LINK_REQUEST_BYTES_MAX`] of their
//!   bodies, or one longer body, and reads no further until there is space.
//! * If a link has a [`LinkPermit`](super::LinkPermit), each message with requests counts against the budget of the
//!   link's organisation until the last of its requests has an outcome. Requests beyond the budget are rejected.
//! * Every request that was started ends: with its answer, or when its link ends.
//! * All bytes may be hostile. Bytes that form no valid frame, or an answer without a request, end the link and have no other
//!   effect.
//!
//! ```text
//! message  := frame*, without frames a ping
//! offset  bytes  frame (little-endian)
//!  0       1     kind: 1 request, 2 reply, 3 rejection, 4 notice
//!  1       3     0
//!  4       4     length of the body
//!  8       8     number of the request; 0 for a notice
//! 16       …     body; of a rejection: kind of error (1 byte), text
//! ```
//!
//! Left to the protocols that use this module: who may call, deadlines, and retries.

mod client;
mod frame;
#[doc(hidden)]
pub mod fuzz;
mod outbox;
mod server;

#[cfg(test)]
mod tests;

pub use client::{PendingResponse, RpcClient};
pub use server::{Notifier, ResponseFuture, RpcHandler, ServeEnd, serve, serve_admitted};

use std::time::Duration;

use crate::ErrorKind;

/// Bytes of one request, reply or notice.
pub const BODY_BYTES_MAX: usize = 256 << 20;
/// Bytes of the text of a rejection; a longer text is truncated.
pub const REJECTION_BYTES_MAX: usize = 4096;

/// Bytes of the requests of one link that a server holds; a longer request is accepted when it is alone.
pub const LINK_REQUEST_BYTES_MAX: usize = 64 << 20;
/// How often a caller without requests sends a ping.
pub const PING_PERIOD: Duration = Duration::from_secs(3);
/// How long a caller may take to send its first message after it has connected.
pub const FIRST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a server keeps a silent link without open requests.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a server waits for a caller that receives no answers; longer by a second for each 64 KiB of a message.
pub const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// An error that a server sends in place of a reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Rejection {
    /// The kind of the error, which tells the caller what to do.
    pub kind: ErrorKind,
    /// What failed.
    pub text: String,
}

impl Rejection {
    /// A rejection; a long text is truncated.
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Rejection {
        let mut text = text.into();
        if text.len() > REJECTION_BYTES_MAX {
            let end = (0..=REJECTION_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            text.truncate(end);
        }
        Rejection { kind, text }
    }
}

/// Why a call has no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RpcError {
    /// The link ended before the request was sent.
    #[error("the link ended before the request was sent")]
    Closed,
    /// The link ended after sending had started and before an answer came.
    #[error("the link ended before an answer came, so it is unknown whether the request took effect")]
    Ambiguous,
    /// The body is longer than [`BODY_BYTES_MAX`]; nothing was sent.
    #[error("a message of {0} bytes is above the limit of {BODY_BYTES_MAX}")]
    TooLarge(usize),
    /// The server's answer.
    #[error(transparent)]
    Rejected(#[from] Rejection),
}

impl RpcError {
    /// The kind of the error, which tells the caller what to do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            RpcError::Closed => ErrorKind::Closed,
            RpcError::Ambiguous => ErrorKind::Ambiguous,
            RpcError::TooLarge(_) => ErrorKind::Rejected,
            RpcError::Rejected(refusal) => refusal.kind,
        }
    }
}
