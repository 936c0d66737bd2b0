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
    #[error("storage: {0}")]
    Storage(#[from] storage::Error),
}

impl Error {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::OutOfOrder { .. } => ErrorKind::Rejected,
            Error::TooOld { .. } => ErrorKind::Retry,
            Error::KeyNotText { .. } => ErrorKind::Corrupt,
            Error::Storage(error) => error.kind(),
        }
    }
}
