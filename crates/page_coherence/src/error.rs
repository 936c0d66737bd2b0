//! What can go wrong.

use base::ErrorKind;
use wire::Malformed;

use crate::page::{CallId, PageNumber};

/// Why a side refused an operation or a message.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CoherenceError {
    /// The page is on its way between the sides.
    #[error("page {0:?} is on its way between the sides; try again once it has arrived")]
    InTransit(PageNumber),
    /// Calls of another mode run.
    #[error(
        "calls of another mode run, and all calls that run at the same time have one mode; call again when they have ended"
    )]
    OtherMode,
    /// As many calls are open as the settings allow.
    #[error("{0} calls are open, and the settings allow no more; call again when one has ended")]
    TooManyCalls(usize),
    /// The resident pages are too fragmented for one message.
    #[error("the resident pages form more than {0} runs, too many for a request; evict pages and call again")]
    TooFragmented(usize),
    /// The call's number is in use, or is not known.
    #[error("call {0:?} is not open, or was opened before")]
    WrongCall(CallId),
    /// The other side sent what the protocol does not allow; the connection is to be closed.
    #[error("the other side broke the protocol: {0}; close the connection")]
    Protocol(&'static str),
    /// The other side sent bytes that are no message; the connection is to be closed.
    #[error("the other side sent a malformed message: {0}; close the connection")]
    Malformed(#[from] Malformed),
}

impl CoherenceError {
    /// What the caller of the failed operation should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            CoherenceError::InTransit(_)
            | CoherenceError::OtherMode
            | CoherenceError::TooManyCalls(_)
            | CoherenceError::TooFragmented(_) => ErrorKind::Retry,
            CoherenceError::WrongCall(_) => ErrorKind::Rejected,
            CoherenceError::Protocol(_) | CoherenceError::Malformed(_) => ErrorKind::Corrupt,
        }
    }
}
