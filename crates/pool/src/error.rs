//! Errors of the pool.

use base::{Epoch, ErrorKind};
use wire::hello::VersionMismatch;

/// What went wrong. [`Error::kind`] says what the caller should do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The owner's budget, or every donor, has no memory for one more section. Nothing took effect.
    #[error("no memory for one more section: {0}")]
    Exhausted(String),
    /// No donor is connected. Nothing took effect.
    #[error("no donor can be reached ({0}); check that memory nodes run at these addresses")]
    NoDonor(String),
    /// Another process has taken over this owner's memory, under a newer epoch or under the same one by mistake.
    #[error("fenced: the memory of {owner} is held under epoch {newest}, this process has epoch {ours}")]
    Fenced {
        /// Whose memory.
        owner: String,
        /// The epoch of this process.
        ours: Epoch,
        /// The newest epoch that the donor knows.
        newest: Epoch,
    },
    /// The two sides speak different versions.
    #[error("the memory node at {address} speaks another version of the pool's protocol: {mismatch}")]
    Version {
        /// The donor.
        address: String,
        /// What each side speaks.
        mismatch: VersionMismatch,
    },
    /// The two sides have sections of different sizes.
    #[error(
        "the memory node at {address} gives sections of {theirs} bytes, this owner wants {ours}; configure the same \
         section_bytes on both"
    )]
    SectionSize {
        /// The donor.
        address: String,
        /// Our size.
        ours: u64,
        /// The donor's.
        theirs: u64,
    },
    /// A budget smaller than one section.
    #[error(
        "a budget of {budget_bytes} bytes does not hold one section of {section_bytes}; raise it or use smaller sections"
    )]
    BudgetTooSmall {
        /// The budget.
        budget_bytes: u64,
        /// One section.
        section_bytes: u64,
    },
    /// Invalid options.
    #[error("{0}")]
    Invalid(String),
    /// The donor does not serve this owner.
    #[error("the memory node at {address} refuses {owner}: {reason}")]
    Rejected {
        /// The donor.
        address: String,
        /// The owner that asked.
        owner: String,
        /// The donor's reason.
        reason: String,
    },
    /// No such section: never granted, released, or lost.
    #[error("section {0} is not one of this address space; it was released or lost with its donor")]
    UnknownSection(u32),
    /// The donor did not answer in time, or the connection was lost. The request may have been executed; the background
    /// task finds out and repairs the difference.
    #[error("the memory node at {address} did not answer: {reason}")]
    NoAnswer {
        /// The donor.
        address: String,
        /// What happened instead.
        reason: String,
    },
    /// The donor could not confirm that a revocation has taken effect.
    #[error("the memory node at {0} could not confirm a revocation; it is retried")]
    Unconfirmed(String),
    /// Bytes that are not a message of the protocol.
    #[error("malformed message: {0}")]
    Malformed(&'static str),
    /// The address space or memory node has been closed.
    #[error("the address space or memory node is closed")]
    Closed,
    /// The RMA provider rejected the operation, or it failed.
    #[error("{doing}: {error}")]
    Rma {
        /// The operation that was tried.
        doing: String,
        /// Why it failed.
        error: rma::Error,
    },
}

impl From<wire::Malformed> for Error {
    fn from(malformed: wire::Malformed) -> Error {
        Error::Malformed(malformed.what)
    }
}

impl Error {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Exhausted(_) | Error::NoDonor(_) => ErrorKind::Retry,
            Error::Fenced { .. } => ErrorKind::Fenced,
            Error::Version { .. }
            | Error::SectionSize { .. }
            | Error::BudgetTooSmall { .. }
            | Error::Invalid(_)
            | Error::Rejected { .. }
            | Error::UnknownSection(_) => ErrorKind::Rejected,
            Error::NoAnswer { .. } | Error::Unconfirmed(_) => ErrorKind::Ambiguous,
            Error::Malformed(_) => ErrorKind::Corrupt,
            Error::Closed => ErrorKind::Closed,
            Error::Rma { error, .. } => error.kind(),
        }
    }
}
