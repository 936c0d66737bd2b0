//! Why private data could not be kept, sent or found.

use base::{ErrorKind, MspId, TxId};

/// Why private data could not be kept, sent or found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The tables or the block store failed.
    #[error("storage: {0}")]
    Storage(#[from] storage::Error),
    /// A stored block cannot be read.
    #[error(transparent)]
    Ledger(#[from] ledger::Error),
    /// A peer of another organisation did not do what it was asked, or asks for what it must not have.
    #[error("private data, {organization}: {reason}")]
    Member {
        /// The organisation.
        organization: MspId,
        /// What the caller should do.
        kind: ErrorKind,
        /// The reason.
        reason: String,
    },
    /// Too many different sets of one collection wait for a transaction.
    #[error("private data: {max} different sets of one collection wait for transaction {tx_id}")]
    TooManyVariants {
        /// The transaction.
        tx_id: TxId,
        /// How many may wait.
        max: usize,
    },
    /// Too few peers of other members hold a proposal's private data.
    #[error(
        "private data of collection {contract}/{collection} must be held by {lacking} more peers of other members before they are \
         endorsed, and none of them acknowledged them; see whether their peers run and are known to this one"
    )]
    TooFewPeers {
        /// The contract.
        contract: String,
        /// Its collection.
        collection: String,
        /// How many acknowledgements are lacking.
        lacking: usize,
    },
}

impl Error {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Storage(error) => error.kind(),
            Error::Ledger(error) => error.kind(),
            Error::Member { kind, .. } => *kind,
            Error::TooManyVariants { .. } => ErrorKind::Rejected,
            Error::TooFewPeers { .. } => ErrorKind::Retry,
        }
    }

    /// A request of another organisation that is refused.
    pub(crate) fn refused(organization: &MspId, reason: impl Into<String>) -> Error {
        Error::Member { organization: organization.clone(), kind: ErrorKind::Rejected, reason: reason.into() }
    }
}
