//! Requests and replies over a [`Link`](super::Link), many at a time, with notices in between.
//!
//! 1. A caller numbers its requests and sends them; the order of sending is the order of [`Caller::begin`].
//! 2. The server hands each request to its [`Handler`], in that order, and sends what becomes of it under the same number,
//!    in whatever order that is done: bytes, or a [`Refusal`] with the kind and the text of an error.
//! 3. At any time the server may send notices, which nobody answers; see [`Notifier`].
//! 4. Small frames that wait at the same time travel in one message of the link. A large body is copied once, into the
//!    message.
//! 5. When the link ends, each request whose sending had begun ends in [`CallError::Ambiguous`], each other one in
//!    [`CallError::Closed`]: it was never sent and never will be.
//!
//! Invariants:
//! * A caller has at most `in_flight_max` requests that are neither answered nor ended, those included whose callers have
//!   gone. A server runs at most `concurrency_max` of one link; it reads no further until there is room.
//! * Every request that was begun ends: with its answer, or with its link.
//! * All bytes may be hostile. What is no frame, or answers nothing, ends the link and nothing else.
//!
//! ```text
//! message  := frame+
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
mod outbox;
mod server;

#[cfg(test)]
mod tests;

use std::fmt;

use bytes::Bytes;

pub use caller::{Caller, Pending};
pub use server::{Answer, Ended, Handler, Notifier, serve};

use crate::ErrorKind;

/// Bytes of one request, reply or notice.
pub const BODY_BYTES_MAX: usize = 256 << 20;
/// Bytes of the text of a refusal; the rest is cut off.
pub const REFUSAL_BYTES_MAX: usize = 4096;

/// Bytes in parts, sent one after another as one body.
#[derive(Clone, Default)]
pub struct Body(Vec<Bytes>);

impl Body {
    /// Bytes of all parts.
    pub fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All parts in one piece; one part is not copied.
    pub fn concat(&self) -> Bytes {
        match &self.0[..] {
            [one] => one.clone(),
            parts => parts.concat().into(),
        }
    }

    fn parts(&self) -> &[Bytes] {
        &self.0
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Body {
        Body(vec![bytes])
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Body {
        Body(vec![bytes.into()])
    }
}

impl From<Vec<Bytes>> for Body {
    fn from(parts: Vec<Bytes>) -> Body {
        Body(parts)
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Body({} bytes)", self.len())
    }
}

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
