//! Why a block could not be validated. An invalid transaction is no error: it gets a code.

use base::ErrorKind;

/// Why there is no verdict on a block.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The block store failed.
    #[error("storage: {0}")]
    Storage(#[from] storage::Error),
    /// The world state failed.
    #[error("state: {0}")]
    State(#[from] state::Error),
}

impl Error {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Storage(error) => error.kind(),
            Error::State(error) => error.kind(),
        }
    }
}
