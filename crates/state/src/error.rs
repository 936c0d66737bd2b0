//! Errors of the world state: why it cannot answer, and what its caller has to do.

use base::ErrorKind;

/// Why the world state could not answer. [`Error::kind`] says what the caller is to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The caller applied a block other than the next one. The state is unchanged.
    #[error("block {given} cannot be applied: the state is at height {height}")]
    OutOfOrder {
        /// The number of the block that the caller gave.
        given: u64,
        /// The height of the state, which is the number of the block that it expects.
        height: u64,
    },
    /// The snapshot fell too far behind, and versions that it would see may be gone. Take a new one.
    #[error("height {height} is no longer held; read at a newer one")]
    TooOld {
        /// The height of the snapshot.
        height: u64,
    },
    /// The tables hold a key that no block can have written: they are damaged.
    #[error("namespace {namespace} holds a key that is not UTF-8")]
    KeyNotText {
        /// The namespace of the key.
        namespace: Box<str>,
    },
    /// A newer primary has opened this state under a higher epoch. No call of this one succeeds any more.
    #[error("a newer primary has taken over this state; stop acting as its primary")]
    Fenced,
    /// Remote memory did not answer in time, or a limit on concurrent work is reached. The same call may succeed later.
    #[error("the state could not be read or changed for now; try again")]
    Busy,
    /// A follower has no live lease, so that its answer would not count.
    #[error("this compute node has no lease from its primary for now; ask again, or ask another node of the peer")]
    NoLease,
    /// A version that must exist is found nowhere: rows of the storage node are missing.
    #[error("version {version} is neither in memory nor in storage, which should hold it; check the storage node")]
    Lost {
        /// The version that is missing.
        version: base::Version,
    },
    /// The caller set a budget of remote memory in which no section fits. The budget is unchanged.
    #[error("a budget of {bytes} bytes is less than one section of remote memory; give it at least {section_bytes}")]
    BudgetTooSmall {
        /// The budget that the caller asked for, in bytes.
        bytes: u64,
        /// The length of a section in bytes: the smallest budget.
        section_bytes: u64,
    },
    /// The tables or the storage node failed.
    #[error("storage: {0}")]
    Storage(#[from] storage::Error),
}

impl Error {
    /// What the caller is to do: retry, stop as primary, give up, or have the operator repair storage.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::OutOfOrder { .. } | Error::BudgetTooSmall { .. } => ErrorKind::Rejected,
            Error::TooOld { .. } | Error::Busy | Error::NoLease => ErrorKind::Retry,
            Error::Fenced => ErrorKind::Fenced,
            Error::KeyNotText { .. } | Error::Lost { .. } => ErrorKind::Corrupt,
            Error::Storage(error) => error.kind(),
        }
    }
}

impl From<replica::Error> for Error {
    fn from(error: replica::Error) -> Error {
        match error {
            replica::Error::Fenced => Error::Fenced,
            replica::Error::Busy => Error::Busy,
            replica::Error::NoLease => Error::NoLease,
        }
    }
}
