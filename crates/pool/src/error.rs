//! Why the pool could not do what it was asked.

use base::{Epoch, ErrorKind};

/// What went wrong. [`Error::kind`] says what the caller is to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The owner's budget, or every donor, has no room for one more section. Nothing took effect.
    #[error("no room for one more section: {0}")]
    Exhausted(String),
    /// No donor is connected. Nothing took effect.
    #[error("no donor can be reached ({0}); check that memory nodes run at these addresses")]
    NoDonor(String),
    /// A holder with a newer epoch, or another one with the same, has taken over this owner's memory.
    #[error("fenced: {owner} is held under epoch {newest}, this holder has {ours}")]
    Fenced {
        /// Whose memory.
        owner: String,
        /// The epoch of this holder.
        ours: Epoch,
        /// The newest that the donor knows.
        newest: Epoch,
    },
    /// The two sides speak different versions.
    #[error(
        "the memory node at {address} speaks version {theirs} of the pool's protocol, this process {ours}; run the same \
         release on both"
    )]
    Version {
        /// The donor.
        address: String,
        /// Our version.
        ours: u32,
        /// The donor's.
        theirs: u32,
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
    /// A budget that no section fits into.
    #[error(
        "a budget of {budget_bytes} bytes does not hold one section of {section_bytes}; raise it or use smaller sections"
    )]
    BudgetTooSmall {
        /// The budget.
        budget_bytes: u64,
        /// One section.
        section_bytes: u64,
    },
    /// Options that make no sense.
    #[error("{0}")]
    Invalid(String),
    /// The donor does not serve this owner.
    #[error("the memory node at {address} refuses {owner}: {reason}")]
    Refused {
        /// The donor.
        address: String,
        /// Who asked.
        owner: String,
        /// What it said.
        reason: String,
    },
    /// No such section: never given, released, or lost.
    #[error("section {0} is not one of this address space; it was released or lost with its donor")]
    UnknownSection(u32),
    /// The donor did not answer in time, or the connection was lost. What was asked may have been done; the background
    /// task finds out and puts it right.
    #[error("the memory node at {address} did not answer: {reason}")]
    NoAnswer {
        /// The donor.
        address: String,
        /// What happened instead.
        reason: String,
    },
    /// The donor could not confirm that a revocation has taken effect.
    #[error("the memory node at {0} could not confirm a revocation; it is tried again")]
    Unconfirmed(String),
    /// Bytes that are no message of the protocol.
    #[error("malformed: {0}")]
    Malformed(&'static str),
    /// The address space or memory node has been closed.
    #[error("closed")]
    Closed,
    /// The memory interconnect refused or failed.
    #[error("{doing}: {error}")]
    Rma {
        /// What was tried.
        doing: String,
        /// Why it failed.
        error: rma::Error,
    },
}

impl Error {
    /// What the caller is to do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Exhausted(_) | Error::NoDonor(_) => ErrorKind::Retry,
            Error::Fenced { .. } => ErrorKind::Fenced,
            Error::Version { .. }
            | Error::SectionSize { .. }
            | Error::BudgetTooSmall { .. }
            | Error::Invalid(_)
            | Error::Refused { .. }
            | Error::UnknownSection(_) => ErrorKind::Rejected,
            Error::NoAnswer { .. } | Error::Unconfirmed(_) => ErrorKind::Ambiguous,
            Error::Malformed(_) => ErrorKind::Corrupt,
            Error::Closed => ErrorKind::Closed,
            Error::Rma { error, .. } => error.kind(),
        }
    }
}
