//! Errors of ordered logs.

use base::{ErrorKind, Term};

/// An error of an ordered log. [`Error::kind`] says what the caller should do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Invalid options, positions or entries.
    #[error("{0}")]
    Invalid(String),
    /// A memory node or another CPU node did not answer. The request may have taken effect.
    #[error("the memory node at {address} did not answer: {reason}")]
    NoAnswer {
        /// The node's address.
        address: String,
        /// What happened instead.
        reason: String,
    },
    /// Too few nodes answer for now; nothing was changed.
    #[error(
        "only {answering} of {nodes} memory nodes answer with a complete copy, {needed} are needed; start the others, or wait"
    )]
    NoMajority {
        /// Nodes that answer with a complete copy.
        answering: usize,
        /// How many are needed.
        needed: usize,
        /// All nodes of the group.
        nodes: usize,
    },
    /// This node does not lead in the term any more.
    #[error("a newer coordinator has replaced the coordinator of term {0}")]
    Fenced(Term),
    /// Too many callers are waiting already. Nothing was done.
    #[error("too many callers wait for log space or for a lock: retry later")]
    Busy,
    /// A CPU node's log store could not be read or written.
    #[error("the log store failed: {0}")]
    LogStore(String),
    /// Invalid bytes in a message, on a disk or in a region.
    #[error("corrupt: {0}")]
    Corrupt(&'static str),
    /// A task panicked: it reached a state that this software holds impossible.
    #[error("{0} has panicked")]
    Panicked(&'static str),
    /// The engine was stopped.
    #[error("closed")]
    Closed,
    /// Another error of the group of memory nodes.
    #[error(transparent)]
    Sift(sift::Error),
    /// Another error of the Raft group.
    #[error(transparent)]
    Raft(raft::Error),
}

impl From<wire::Malformed> for Error {
    fn from(malformed: wire::Malformed) -> Error {
        Error::Corrupt(malformed.what)
    }
}

impl Error {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Invalid(_) => ErrorKind::Rejected,
            Error::NoAnswer { .. } => ErrorKind::Ambiguous,
            Error::NoMajority { .. } | Error::Busy => ErrorKind::Retry,
            // Its disk is full or fails; the data that it holds is not in question.
            Error::LogStore(_) => ErrorKind::Retry,
            Error::Corrupt(_) => ErrorKind::Corrupt,
            Error::Fenced(_) => ErrorKind::Fenced,
            Error::Panicked(_) | Error::Closed => ErrorKind::Closed,
            Error::Sift(error) => error.kind(),
            Error::Raft(error) => error.kind(),
        }
    }
}

/// Maps each variant that both enums have to this crate's own, so that callers match on one enum.
impl From<sift::Error> for Error {
    fn from(error: sift::Error) -> Error {
        match error {
            sift::Error::Invalid(cause) => Error::Invalid(cause),
            sift::Error::NoAnswer { address, reason } => Error::NoAnswer { address, reason },
            sift::Error::NoMajority { answering, needed, nodes } => Error::NoMajority { answering, needed, nodes },
            sift::Error::Fenced(cause) => Error::Fenced(cause),
            sift::Error::Busy => Error::Busy,
            sift::Error::Corrupt(cause) => Error::Corrupt(cause),
            sift::Error::Panicked(cause) => Error::Panicked(cause),
            sift::Error::Closed => Error::Closed,
            error => Error::Sift(error),
        }
    }
}

/// Maps each variant that both enums have to this crate's own, so that callers match on one enum.
impl From<raft::Error> for Error {
    fn from(error: raft::Error) -> Error {
        match error {
            raft::Error::Invalid(cause) => Error::Invalid(cause),
            raft::Error::Fenced(cause) => Error::Fenced(cause),
            raft::Error::Busy => Error::Busy,
            raft::Error::LogStore(cause) => Error::LogStore(cause),
            raft::Error::Corrupt(cause) => Error::Corrupt(cause),
            raft::Error::Panicked(cause) => Error::Panicked(cause),
            raft::Error::Closed => Error::Closed,
            error => Error::Raft(error),
        }
    }
}
