//! Errors of Raft groups.

use std::path::PathBuf;

use base::{ErrorKind, Term};

/// An error of a Raft group. [`Error::kind`] says what the caller should do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Invalid options, numbers or addresses.
    #[error("{0}")]
    Invalid(String),
    /// This node of a Raft group is not the leader; nothing was done.
    #[error("this node is not the leader{}", .0.map_or_else(String::new, |leader| format!(": node {leader} is")))]
    NotLeading(Option<u64>),
    /// This node was removed from its Raft group.
    #[error("this node was removed from its group; it may come back under another number")]
    Removed,
    /// Another node of a Raft group remembers a log of this node that this node has lost.
    #[error(
        "node {by} of the group remembers another log of node {node}: its log was lost, and with it what it has voted for and \
         confirmed, so it takes no part any more; restore its data, or remove it from the group (`heddle orderer remove`) and \
         add another one (`heddle orderer add`)"
    )]
    Disowned {
        /// This node.
        node: u64,
        /// The node that reports it.
        by: u64,
    },
    /// After the removal too few of the remaining voting nodes would answer; nothing was done.
    #[error(
        "without it {up} of the {left} nodes with a vote that are left would answer, and {needed} are needed to commit: bring \
         another node back first"
    )]
    WouldStall {
        /// Remaining voting nodes that answer.
        up: usize,
        /// Remaining voting nodes.
        left: usize,
        /// How many are needed.
        needed: usize,
    },
    /// This node does not lead in the term any more.
    #[error("a newer coordinator has replaced the coordinator of term {0}")]
    Fenced(Term),
    /// The leader lost its leadership while the entry was in flight: it may be committed, now or by the next leader.
    #[error("it is unknown whether the write is committed: read before you repeat it")]
    Ambiguous,
    /// Too many callers are waiting already. Nothing was done.
    #[error("too many callers wait for log space or for a lock: retry later")]
    Busy,
    /// The node's log on disk, or the log store of an ordered log on this engine, could not be read or written.
    #[error("the log store failed: {0}")]
    LogStore(String),
    /// Another node, of this process or another one, has the directory.
    #[error("{} is in use by another node: stop that one, or choose another directory", .0.display())]
    Locked(PathBuf),
    /// Invalid bytes in a message or on a disk.
    #[error("corrupt: {0}")]
    Corrupt(&'static str),
    /// A task panicked: it reached a state that this software holds impossible.
    #[error("{0} has panicked")]
    Panicked(&'static str),
    /// The node was stopped.
    #[error("closed")]
    Closed,
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
            Error::Ambiguous => ErrorKind::Ambiguous,
            Error::NotLeading(_) | Error::WouldStall { .. } | Error::Busy => ErrorKind::Retry,
            // Its disk is full or fails; the data that it holds is not in question.
            Error::LogStore(_) | Error::Locked(_) => ErrorKind::Retry,
            Error::Corrupt(_) => ErrorKind::Corrupt,
            Error::Removed | Error::Disowned { .. } | Error::Fenced(_) => ErrorKind::Fenced,
            Error::Panicked(_) | Error::Closed => ErrorKind::Closed,
        }
    }
}
