//! Errors of a peer's compute nodes.

use base::ErrorKind;

/// Why a compute node of a peer could not act in its role. [`Error::kind`] says what the caller is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// A newer primary has started. No call of this one succeeds any more.
    #[error("a newer primary has taken over; stop acting as the primary")]
    Fenced,
    /// There are too many followers, or joining took too long. The same call may succeed later.
    #[error("the primary cannot serve another follower for now; try again")]
    Busy,
    /// This compute node has no live lease, so that its answer would not count.
    #[error("this compute node has no lease for now; ask again, or ask another node of the peer")]
    NoLease,
}

impl Error {
    /// What the caller is to do: retry, or stop as primary.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Fenced => ErrorKind::Fenced,
            Error::Busy | Error::NoLease => ErrorKind::Retry,
        }
    }
}
