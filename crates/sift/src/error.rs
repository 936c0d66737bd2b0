//! Errors of groups of memory nodes.

use std::path::PathBuf;

use base::{ErrorKind, Term};

/// An error of a group. [`Error::kind`] says what the caller should do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Invalid sizes, numbers or names.
    #[error("{0}")]
    Invalid(String),
    /// The memory node has the group with other sizes, has no such group, or speaks another version.
    #[error("the memory node at {address} rejects the request: {reason}")]
    Rejected {
        /// The node's address.
        address: String,
        /// The reason that it gave.
        reason: String,
    },
    /// A memory node did not answer. The request may have taken effect.
    #[error("the memory node at {address} did not answer: {reason}")]
    NoAnswer {
        /// The node's address.
        address: String,
        /// What happened instead.
        reason: String,
    },
    /// Too few memory nodes answer for now; nothing was changed.
    #[error(
        "only {answering} of {nodes} memory nodes answer with a complete copy, {needed} are needed; start the others, or wait"
    )]
    NoMajority {
        /// Nodes that answer with a complete copy.
        answering: usize,
        /// How many are needed.
        needed: usize,
        /// All memory nodes of the group.
        nodes: usize,
    },
    /// So many memory nodes have lost their memory, or in an erasure-coded group hold only old shards, that committed
    /// data may be lost. Nothing is guessed.
    #[error(
        "{lost} of {nodes} memory nodes have lost their memory, and committed data may be lost: restart those that keep their \
         memory on disk; if too few do, format the group again"
    )]
    MemoryLost {
        /// Nodes that answer and hold nothing of use.
        lost: usize,
        /// All memory nodes of the group.
        nodes: usize,
    },
    /// Another candidate has the term, or the coordinator is alive after all.
    #[error("not elected: another node won the term, or the coordinator is alive")]
    NotElected,
    /// A newer coordinator exists.
    #[error("a newer coordinator has replaced the coordinator of term {0}")]
    Fenced(Term),
    /// The coordinator's lease has run out: it could not reach a majority in time.
    #[error("the coordinator of term {0} has lost its majority")]
    LeaseLost(Term),
    /// The coordinator ended while the write was in flight: it may be committed, now or by the next coordinator.
    #[error("it is unknown whether the write is committed: read before you repeat it")]
    Ambiguous,
    /// Too many callers are waiting already. Nothing was done.
    #[error("too many callers wait for log space or for a lock: retry later")]
    Busy,
    /// The memory node already holds this group.
    #[error("the memory node at {0} already holds this group's data: a group is formatted only once")]
    AlreadyFormatted(String),
    /// The host of a memory node has ended because of a defect, and with it all access to its memory.
    #[error("the memory of this node is not served any more: {0}")]
    HostFailed(String),
    /// Another node, of this process or another one, has the directory.
    #[error("{} is in use by another node: stop that one, or choose another directory", .0.display())]
    Locked(PathBuf),
    /// Invalid bytes in a message, on a disk or in a region.
    #[error("corrupt: {0}")]
    Corrupt(&'static str),
    /// A persistent memory node's disk failed. The write in progress may have been stored or not.
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
    /// The coordinator was stopped.
    #[error("closed")]
    Closed,
    /// The memory interconnect failed or rejected the operation.
    #[error("{doing}: {error}")]
    Rma {
        /// The operation that failed.
        doing: &'static str,
        /// Why it failed.
        error: rma::Error,
    },
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
            Error::Invalid(_) | Error::Rejected { .. } | Error::AlreadyFormatted(_) => ErrorKind::Rejected,
            Error::NoAnswer { .. } | Error::Ambiguous | Error::Disk { .. } => ErrorKind::Ambiguous,
            Error::NoMajority { .. } | Error::NotElected | Error::Busy => ErrorKind::Retry,
            // Its disk is full or fails; the data that it holds is not in question.
            Error::Locked(_) => ErrorKind::Retry,
            Error::MemoryLost { .. } | Error::Corrupt(_) => ErrorKind::Corrupt,
            Error::Fenced(_) | Error::LeaseLost(_) => ErrorKind::Fenced,
            Error::HostFailed(_) | Error::Panicked(_) | Error::Closed => ErrorKind::Closed,
            Error::Rma { error, .. } => error.kind(),
        }
    }

    pub(crate) fn rma(doing: &'static str) -> impl Fn(rma::Error) -> Error {
        move |error| Error::Rma { doing, error }
    }
}
