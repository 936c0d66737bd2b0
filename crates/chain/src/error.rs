//! Errors of a peer's channels and of an orderer's chains.
//!
//! Proposals and messages have errors of their own: [`crate::endorse::EndorseError`], [`crate::order::BroadcastError`].

use base::{ChannelId, ErrorKind};

/// Why a peer or an orderer could not do its work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The channel does not exist at this node.
    #[error("channel {0} is not known here")]
    UnknownChannel(String),
    /// The channel exists at this node already.
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
    /// Private data could not be kept, sent or found.
    #[error(transparent)]
    PrivateData(#[from] private_data::Error),
    /// The ordering engine of the channel failed.
    #[error("ordering: {0}")]
    Consensus(#[from] ordered_log::Error),
    /// A policy or an identity of the configuration cannot be used.
    #[error("identity: {0}")]
    Identity(#[from] identity::Error),
    /// A stored block contradicts what this peer itself wrote.
    #[error("block {block}: {reason}")]
    Stored {
        /// The block.
        block: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// The orderers have signed a configuration to which the one in force does not lead.
    #[error(
        "block {block} changes the channel's configuration in a way that its members have not signed ({cause}): somebody with \
         the keys of an orderer may have made it. This peer commits nothing more of the channel; what it has committed can be read"
    )]
    Configuration {
        /// The block.
        block: u64,
        /// What is wrong with the configuration.
        cause: ledger::Error,
    },
    /// The orderers have lost blocks that this peer has received, and continue with others.
    #[error(
        "the orderers go on with another block {block} of channel {channel}, which does not continue the blocks of this peer: they \
         have lost blocks that it had received, as a volatile group does when all of its nodes lose power. Stop this peer, move \
         its data of the channel and the `watermarks` of its compute nodes away, and start it again: it then receives the \
         blocks of the orderers"
    )]
    OtherChain {
        /// The channel.
        channel: ChannelId,
        /// The number of the first block that this peer cannot take.
        block: u64,
    },
    /// A directory or an address could not be used.
    #[error("{what}: {cause}")]
    Io {
        /// The operation that failed.
        what: String,
        /// The operating system's error.
        cause: String,
        /// What the caller should do.
        kind: ErrorKind,
    },
    /// Too many callers wait.
    #[error("too many callers wait for transactions; at most {0} may")]
    TooManyWaiters(usize),
    /// The peer runs in another process that cannot be reached now.
    #[error("{name} cannot be reached at {address}: {reason}; see whether its compute node runs")]
    Unreachable {
        /// The peer.
        name: String,
        /// Its address.
        address: String,
        /// The reason.
        reason: String,
    },
    /// A remote peer rejected the request, or its answer could not be used.
    #[error("{name}: {reason}")]
    Rejected {
        /// The peer.
        name: String,
        /// What the caller should do.
        kind: ErrorKind,
        /// The reason.
        reason: String,
    },
    /// A stage met a state that this software holds impossible.
    #[error("a stage panicked: {0}")]
    Panicked(String),
    /// The channel has stopped, on request or because of an earlier error.
    #[error("the channel has stopped")]
    Stopped,
}

impl From<validation::Error> for Error {
    fn from(error: validation::Error) -> Error {
        match error {
            validation::Error::Storage(error) => Error::Storage(error),
            validation::Error::State(error) => Error::State(error),
        }
    }
}

impl Error {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::UnknownChannel(_) | Error::ChannelExists(_) | Error::ChannelName(_) => ErrorKind::Rejected,
            Error::Ledger(error) => error.kind(),
            Error::Storage(error) => error.kind(),
            Error::State(error) => error.kind(),
            Error::PrivateData(error) => error.kind(),
            Error::Consensus(error) => error.kind(),
            Error::Identity(error) => error.kind(),
            Error::Stored { .. } | Error::OtherChain { .. } | Error::Configuration { .. } => ErrorKind::Corrupt,
            Error::Io { kind, .. } | Error::Rejected { kind, .. } => *kind,
            Error::TooManyWaiters(_) | Error::Unreachable { .. } => ErrorKind::Retry,
            Error::Panicked(_) | Error::Stopped => ErrorKind::Closed,
        }
    }

    pub(crate) fn io(what: impl Into<String>, error: &std::io::Error) -> Error {
        Error::Io { what: what.into(), cause: error.to_string(), kind: ErrorKind::of_io(error) }
    }
}
