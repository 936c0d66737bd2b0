//! What can go wrong with a peer's channels and an orderer's chains as such.
//!
//! Proposals and messages have errors of their own: [`crate::endorse::EndorseError`], [`crate::order::BroadcastError`].

use base::{ChannelId, ErrorKind};

/// Why a peer or an orderer could not do its work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The channel is not held here.
    #[error("channel {0} is not known here")]
    UnknownChannel(String),
    /// The channel is held here already.
    #[error("channel {0} is held here already")]
    ChannelExists(ChannelId),
    /// A channel name that Fabric does not allow.
    #[error("{0:?} is not a channel name")]
    ChannelName(String),
    /// A block, a configuration or a stored ledger is not what it must be.
    #[error(transparent)]
    Ledger(#[from] ledger::Error),
    /// The block store or the data directory failed.
    #[error("storage: {0}")]
    Storage(#[from] storage::Error),
    /// The world state failed.
    #[error("state: {0}")]
    State(#[from] state::Error),
    /// What orders the channel failed.
    #[error("ordering: {0}")]
    Consensus(#[from] consensus::Error),
    /// A policy or an identity of the configuration cannot be used.
    #[error("identity: {0}")]
    Identity(#[from] identity::Error),
    /// A stored block contradicts what this peer wrote itself.
    #[error("block {block}: {reason}")]
    Stored {
        /// The block.
        block: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// The orderers have lost blocks that this peer was shown, and go on with others.
    #[error(
        "the orderers go on with another block {block} of channel {channel} than the blocks of this peer lead to: they have lost \
         blocks that it was shown, as a volatile group does when all of it loses its power. Stop this peer, move its data of \
         the channel and the `watermarks` of its compute nodes away and start it again: it takes the blocks that the orderers have"
    )]
    OtherChain {
        /// Of which channel.
        channel: ChannelId,
        /// The first block that it cannot have.
        block: u64,
    },
    /// A directory or an address could not be used.
    #[error("{what}: {cause}")]
    Io {
        /// What was tried.
        what: String,
        /// What the operating system said.
        cause: String,
        /// What the caller is to do.
        kind: ErrorKind,
    },
    /// More callers wait than are allowed to.
    #[error("too many callers wait for transactions; at most {0} may")]
    TooManyWaiters(usize),
    /// The peer, in a process of its own, cannot be asked now.
    #[error("{name} cannot be reached at {address}: {reason}; see whether its compute node runs")]
    Unreachable {
        /// Which.
        name: String,
        /// Where.
        address: String,
        /// Why not.
        reason: String,
    },
    /// A peer elsewhere refused, or its answer could not be used.
    #[error("{name}: {reason}")]
    Refused {
        /// Which.
        name: String,
        /// What the caller is to do.
        kind: ErrorKind,
        /// Why.
        reason: String,
    },
    /// A stage came upon something that this software holds impossible.
    #[error("a stage panicked: {0}")]
    Panicked(String),
    /// The channel has stopped, on request or because of an earlier error.
    #[error("the channel has stopped")]
    Stopped,
}

impl Error {
    /// What the caller is to do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::UnknownChannel(_) | Error::ChannelExists(_) | Error::ChannelName(_) => ErrorKind::Rejected,
            Error::Ledger(error) => error.kind(),
            Error::Storage(error) => error.kind(),
            Error::State(error) => error.kind(),
            Error::Consensus(error) => error.kind(),
            Error::Identity(error) => error.kind(),
            Error::Stored { .. } | Error::OtherChain { .. } => ErrorKind::Corrupt,
            Error::Io { kind, .. } | Error::Refused { kind, .. } => *kind,
            Error::TooManyWaiters(_) | Error::Unreachable { .. } => ErrorKind::Retry,
            Error::Panicked(_) | Error::Stopped => ErrorKind::Closed,
        }
    }

    pub(crate) fn io(what: impl Into<String>, error: &std::io::Error) -> Error {
        Error::Io { what: what.into(), cause: error.to_string(), kind: ErrorKind::of_io(error) }
    }
}
