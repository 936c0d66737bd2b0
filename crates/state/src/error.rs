use base::ErrorKind;

/// Why the world state could not answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("block {given} cannot be applied: the state is at height {height}")]
    OutOfOrder { given: u64, height: u64 },
    #[error("height {height} is no longer held; read at a newer one")]
    TooOld { height: u64 },
    #[error("namespace {namespace} holds a key that is not UTF-8")]
    KeyNotText { namespace: Box<str> },
    #[error("a newer primary has taken over this state; stop acting as its primary")]
    Fenced,
    #[error("the state could not be read or changed for now; try again")]
    Busy,
    #[error("this compute node does not hear from its primary for now; ask again, or another compute node of the peer")]
    NoLease,
    #[error("version {version} is neither in memory nor in storage, which should hold it; check the storage node")]
    Lost { version: base::Version },
    #[error("a budget of {bytes} bytes is less than one section of remote memory; give it at least {section_bytes}")]
    BudgetTooSmall { bytes: u64, section_bytes: u64 },
    #[error("storage: {0}")]
    Storage(#[from] storage::Error),
}

impl Error {
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
