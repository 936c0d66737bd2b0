//! Errors of key-value stores.

use base::{ErrorKind, Term};
use sift::backups::ServeEnd;

/// An error of a key-value store. [`Error::kind`] says what the caller should do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Invalid sizes, numbers or names.
    #[error("{0}")]
    Invalid(String),
    /// A newer coordinator exists.
    #[error("a newer coordinator has replaced the coordinator of term {0}")]
    Fenced(Term),
    /// The coordinator ended while the write was in flight: it may be committed, now or by the next coordinator.
    #[error("it is unknown whether the write is committed: read before you repeat it")]
    Ambiguous,
    /// Too many callers are waiting already. Nothing was done.
    #[error("too many callers wait for log space or for a lock: retry later")]
    Busy,
    /// Every block of the key-value store is in use.
    #[error("the key-value store is full: delete keys, or make a store with more blocks")]
    StoreFull,
    /// The key-value store no longer remembers the requested changes.
    #[error(
        "changes are remembered from version {oldest}, not from {asked}: read the keys again, and watch from now on"
    )]
    Compacted {
        /// The first version that was requested.
        asked: u64,
        /// The first version that is remembered.
        oldest: u64,
    },
    /// Invalid bytes in a message, on a disk or in a region.
    #[error("corrupt: {0}")]
    Corrupt(&'static str),
    /// The store's tables failed. The write in progress may have been stored or not.
    #[error("{doing}: {reason}")]
    Disk {
        /// The operation that failed.
        doing: &'static str,
        /// The system's error.
        reason: String,
    },
    /// A task panicked: it reached a state that this software holds impossible.
    #[error("{0} has panicked")]
    Panicked(&'static str),
    /// The store was stopped.
    #[error("closed")]
    Closed,
    /// Another error of the group that holds the store.
    #[error(transparent)]
    Sift(sift::Error),
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
            Error::Invalid(_) | Error::StoreFull | Error::Compacted { .. } => ErrorKind::Rejected,
            Error::Ambiguous | Error::Disk { .. } => ErrorKind::Ambiguous,
            Error::Busy => ErrorKind::Retry,
            Error::Corrupt(_) => ErrorKind::Corrupt,
            Error::Fenced(_) => ErrorKind::Fenced,
            Error::Panicked(_) | Error::Closed => ErrorKind::Closed,
            Error::Sift(error) => error.kind(),
        }
    }
}

/// Maps each variant that both enums have to this crate's own, so that callers match on one enum.
impl From<sift::Error> for Error {
    fn from(error: sift::Error) -> Error {
        match error {
            sift::Error::Invalid(cause) => Error::Invalid(cause),
            sift::Error::Fenced(cause) => Error::Fenced(cause),
            sift::Error::Ambiguous => Error::Ambiguous,
            sift::Error::Busy => Error::Busy,
            sift::Error::Corrupt(cause) => Error::Corrupt(cause),
            sift::Error::Disk { doing, reason } => Error::Disk { doing, reason },
            sift::Error::Panicked(cause) => Error::Panicked(cause),
            sift::Error::Closed => Error::Closed,
            error => Error::Sift(error),
        }
    }
}

impl From<Error> for ServeEnd {
    fn from(error: Error) -> ServeEnd {
        ServeEnd { kind: error.kind(), reason: error.to_string() }
    }
}
