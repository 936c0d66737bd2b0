//! Why the group could not do what it was asked.

use std::path::PathBuf;

use base::ErrorKind;

use crate::Term;

/// What went wrong. [`Error::kind`] says what the caller is to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Sizes, numbers or names that make no sense.
    #[error("{0}")]
    Invalid(String),
    /// The memory node has the group with other sizes, has no such group, or speaks another version.
    #[error("the memory node at {address} refuses: {reason}")]
    Refused {
        /// Where.
        address: String,
        /// What it said.
        reason: String,
    },
    /// A memory node did not answer. What was asked of it may have been done.
    #[error("the memory node at {address} did not answer: {reason}")]
    NoAnswer {
        /// Where.
        address: String,
        /// What happened instead.
        reason: String,
    },
    /// Too few memory nodes answer for now; nothing was changed.
    #[error(
        "{answering} of {nodes} memory nodes answer with their memory whole, {needed} are needed; the others may come back"
    )]
    NoMajority {
        /// Those that do.
        answering: usize,
        /// How many are needed.
        needed: usize,
        /// All.
        nodes: usize,
    },
    /// So many memory nodes have lost their memory, or in a coded group hold only old shares, that what was committed may be
    /// gone. Nobody guesses what it was.
    #[error(
        "{lost} of {nodes} memory nodes have lost their memory: what was committed cannot be told any more, unless they come \
         back with what their disks kept; else make the group anew"
    )]
    MemoryLost {
        /// Those that answer and hold nothing of use.
        lost: usize,
        /// All.
        nodes: usize,
    },
    /// This node of a Raft group does not lead; nothing was done.
    #[error("this node does not lead{}", .0.map_or_else(String::new, |leader| format!(": node {leader} does")))]
    NotLeading(Option<u64>),
    /// This node was removed from its Raft group.
    #[error("this node was removed from its group; it may come back under another number")]
    Removed,
    /// Another node of a Raft group knows this one with another log, which was lost.
    #[error(
        "node {by} of the group knows node {node} with another log: its log was lost, and with it what it has voted for and \
         confirmed, so it takes no part any more; bring its data back, or remove it from the group (`heddle orderer remove`) and \
         add another one (`heddle orderer add`)"
    )]
    Disowned {
        /// This node.
        node: u64,
        /// Who says so.
        by: u64,
    },
    /// Of the nodes with a vote that would be left in a Raft group too few are heard of; nothing was done.
    #[error(
        "without it {up} of the {left} nodes with a vote that are left would answer, and {needed} are needed: nothing would be \
         agreed on any more; bring another one back first"
    )]
    WouldStall {
        /// Those that answer.
        up: usize,
        /// Those with a vote that are left.
        left: usize,
        /// How many are needed.
        needed: usize,
    },
    /// Another candidate has the term, or the coordinator is alive after all.
    #[error("not elected")]
    NotElected,
    /// A newer coordinator exists.
    #[error("a newer coordinator has taken over from the one of term {0}")]
    Fenced(Term),
    /// The coordinator's lease has run out: it could not reach a majority in time.
    #[error("the coordinator of term {0} has lost its majority")]
    LeaseLost(Term),
    /// The coordinator ended while the write was under way: it may be committed, now or by the next coordinator.
    #[error("it is unknown whether the write is committed")]
    Ambiguous,
    /// Too many callers wait already. Nothing was done.
    #[error("too many callers wait for the log or for a lock")]
    Busy,
    /// Every block of the key-value store is taken.
    #[error("the key-value store is full: delete keys, or make a store with more blocks")]
    NoRoom,
    /// Changes of the key-value store that were asked for are not remembered any more.
    #[error(
        "changes are remembered from version {oldest} on, not from {asked}: read the keys again, and watch from now on"
    )]
    Forgotten {
        /// From which version on they were asked for.
        asked: u64,
        /// From which they are remembered.
        oldest: u64,
    },
    /// The memory node holds a group already.
    #[error("the memory node at {0} holds this group's data; it is formatted once")]
    AlreadyFormatted(String),
    /// A processor's journal could not be read or written.
    #[error("the journal: {0}")]
    Journal(String),
    /// The host of a memory node has ended by a defect of its own, and everybody's way to its memory with it.
    #[error("the memory of this node is not served any more: {0}")]
    HostFailed(String),
    /// Another node, of this process or another, has the directory.
    #[error("{} is in use by another node: stop that one, or choose another directory", .0.display())]
    Locked(PathBuf),
    /// Bytes that are not what they must be.
    #[error("corrupt: {0}")]
    Corrupt(&'static str),
    /// A persistent memory node's disk failed. What was being written may be there or not.
    #[error("{doing}: {reason}")]
    Disk {
        /// What was tried.
        doing: &'static str,
        /// What the system said.
        reason: String,
    },
    /// A task came upon something that this software holds impossible.
    #[error("{0} has panicked")]
    Panicked(&'static str),
    /// The coordinator was stopped.
    #[error("closed")]
    Closed,
    /// The memory interconnect refused or failed.
    #[error("{doing}: {error}")]
    Rma {
        /// What was tried.
        doing: &'static str,
        /// Why it failed.
        error: rma::Error,
    },
}

impl Error {
    /// What the caller is to do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Invalid(_) | Error::Refused { .. } | Error::AlreadyFormatted(_) => ErrorKind::Rejected,
            Error::NoRoom | Error::Forgotten { .. } => ErrorKind::Rejected,
            Error::NoAnswer { .. } | Error::Disk { .. } | Error::Ambiguous => ErrorKind::Ambiguous,
            Error::NoMajority { .. }
            | Error::NotElected
            | Error::NotLeading(_)
            | Error::Busy
            | Error::WouldStall { .. } => ErrorKind::Retry,
            // Its disk is full, or fails: what it holds is not in question.
            Error::Journal(_) | Error::Locked(_) => ErrorKind::Retry,
            Error::MemoryLost { .. } | Error::Corrupt(_) => ErrorKind::Corrupt,
            Error::Fenced(_) | Error::LeaseLost(_) | Error::Removed | Error::Disowned { .. } => ErrorKind::Fenced,
            Error::Panicked(_) | Error::HostFailed(_) | Error::Closed => ErrorKind::Closed,
            Error::Rma { error, .. } => error.kind(),
        }
    }

    pub(crate) fn rma(doing: &'static str) -> impl Fn(rma::Error) -> Error {
        move |error| Error::Rma { doing, error }
    }
}
