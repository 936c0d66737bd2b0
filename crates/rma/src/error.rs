//! Errors of verbs, messages and operations of a host.

use base::ErrorKind;
use wire::hello::VersionMismatch;

/// The failures of this crate. [`Error::kind`] tells the caller what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The connection was lost, or the other end closed it, while the verb was in flight.
    #[error("it is unknown whether the verb took effect: {0}")]
    Ambiguous(&'static str),
    /// The capability was revoked. Nothing took effect.
    #[error("the capability was revoked")]
    Revoked,
    /// The capability names a region that the host does not have, or carries a wrong secret. Nothing took effect.
    #[error("the capability does not belong to this host, or not to this connection's name")]
    Unknown,
    /// The capability lacks the right. Nothing took effect.
    #[error("the capability does not grant this right")]
    Forbidden,
    /// The range is not within the region. Nothing took effect.
    #[error("bytes {offset} to {offset} + {length} are not within a region of {region_bytes} bytes")]
    OutOfBounds {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
        /// The region's size.
        region_bytes: u64,
    },
    /// An atomic verb at an offset that is not a multiple of [`crate::WORD_BYTES`]. Nothing took effect.
    #[error("offset {0} is not aligned to a word")]
    Misaligned(u64),
    /// More bytes or parts than one verb or message may have. Nothing took effect.
    #[error("{0} bytes or parts exceed the limit of one verb or message; split the transfer")]
    TooLarge(usize),
    /// Too many verbs in flight. Nothing took effect; post again when some have completed.
    #[error("too many verbs in flight; post again when some have completed")]
    Busy,
    /// The host has no memory or no grant left.
    #[error("the host is out of resources: {0}")]
    Exhausted(String),
    /// The other end failed to authenticate, or rejected us.
    #[error("refused: {0}")]
    Rejected(String),
    /// The other end speaks another version of the protocol.
    #[error("the two ends speak different versions of the protocol: {0}")]
    Version(VersionMismatch),
    /// No host answers at the address. Nothing took effect.
    #[error("cannot reach {address}: {reason}")]
    Unreachable {
        /// The address.
        address: String,
        /// The reason.
        reason: String,
    },
    /// The bytes do not form a message of the protocol.
    #[error("malformed: {0}")]
    Malformed(&'static str),
    /// The endpoint or host was closed before the verb was posted. Nothing took effect.
    #[error("closed")]
    Closed,
    /// A call to the operating system failed.
    #[error("{doing}: {reason}")]
    System {
        /// The operation.
        doing: &'static str,
        /// The reason why it failed.
        reason: String,
        /// The kind, which tells the caller what to do.
        kind: ErrorKind,
    },
}

impl From<wire::Malformed> for Error {
    fn from(malformed: wire::Malformed) -> Error {
        Error::Malformed(malformed.what)
    }
}

impl From<VersionMismatch> for Error {
    fn from(mismatch: VersionMismatch) -> Error {
        Error::Version(mismatch)
    }
}

impl Error {
    /// The kind of the error, which tells the caller what to do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Ambiguous(_) => ErrorKind::Ambiguous,
            Error::Revoked => ErrorKind::Fenced,
            Error::Busy | Error::Exhausted(_) | Error::Unreachable { .. } => ErrorKind::Retry,
            Error::Unknown
            | Error::Forbidden
            | Error::OutOfBounds { .. }
            | Error::Misaligned(_)
            | Error::TooLarge(_)
            | Error::Rejected(_)
            | Error::Version(_) => ErrorKind::Rejected,
            Error::Malformed(_) => ErrorKind::Corrupt,
            Error::Closed => ErrorKind::Closed,
            Error::System { kind, .. } => *kind,
        }
    }

    /// From an error of the operating system.
    pub fn system(doing: &'static str, error: &std::io::Error) -> Error {
        Error::System { doing, reason: error.to_string(), kind: ErrorKind::of_io(error) }
    }
}
