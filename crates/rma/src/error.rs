//! Why a verb, a message or a host's operation failed.

use base::ErrorKind;

/// What went wrong. [`Error::kind`] says what the caller is to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The connection was lost, or the other side ended, while the verb was in flight.
    #[error("it is unknown whether the verb took effect: {0}")]
    Ambiguous(&'static str),
    /// The capability was revoked. Nothing took effect.
    #[error("the capability was revoked")]
    Revoked,
    /// The capability names a region that the host does not have, or bears a wrong secret. Nothing took effect.
    #[error("the capability is not one of this host's")]
    Unknown,
    /// The capability lacks the right. Nothing took effect.
    #[error("the capability does not allow this")]
    Forbidden,
    /// The range is not within the region. Nothing took effect.
    #[error("bytes {offset} to {offset} + {length} are not within a region of {region_bytes} bytes")]
    OutOfBounds {
        /// First byte.
        offset: u64,
        /// How many.
        length: u64,
        /// The region's size.
        region_bytes: u64,
    },
    /// An atomic verb at an address that is no multiple of [`crate::WORD_BYTES`]. Nothing took effect.
    #[error("offset {0} is not aligned to a word")]
    Misaligned(u64),
    /// More bytes or parts than one verb or message may have. Nothing took effect.
    #[error("{0} is more than one verb or message takes")]
    TooLarge(usize),
    /// Too many verbs in flight. Nothing took effect; post again when some have completed.
    #[error("too many verbs in flight")]
    Busy,
    /// The host has no memory, or no further grant, to give.
    #[error("the host has nothing left to give: {0}")]
    Exhausted(String),
    /// The other side did not prove who it is, or refused us.
    #[error("refused: {0}")]
    Refused(String),
    /// The other side speaks another version of the protocol.
    #[error("the other side speaks version {theirs} of the protocol, this one {ours}; run the same release on both")]
    Version {
        /// Our version.
        ours: u32,
        /// Theirs.
        theirs: u32,
    },
    /// Nobody answers at the address. Nothing took effect.
    #[error("cannot reach {address}: {reason}")]
    Unreachable {
        /// Where.
        address: String,
        /// Why.
        reason: String,
    },
    /// Bytes that are no message of the protocol.
    #[error("malformed: {0}")]
    Malformed(&'static str),
    /// The endpoint or host was closed before the verb was posted. Nothing took effect.
    #[error("closed")]
    Closed,
    /// The operating system refused.
    #[error("{doing}: {reason}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// Why it failed.
        reason: String,
        /// What the caller is to do.
        kind: ErrorKind,
    },
}

impl Error {
    /// What the caller is to do.
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
            | Error::Refused(_)
            | Error::Version { .. } => ErrorKind::Rejected,
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
