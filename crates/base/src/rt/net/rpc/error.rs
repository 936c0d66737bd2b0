//! The errors of a call: the server's rejection, or a failure after which the outcome may be unknown.

use super::limits::REJECTION_BYTES_MAX;
use crate::ErrorKind;
use crate::rt::net::rpc::limits::BODY_BYTES_MAX;

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
