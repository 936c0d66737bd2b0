//! The kinds of error that cross a crate's boundary.
//!
//! Each crate has one `thiserror` enum with a method `kind()`. The kind tells the caller what to do; the text of the error says
//! what happened.

use std::fmt;

/// What the caller of a failed operation should do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum ErrorKind {
    /// Nothing took effect; the same call may succeed later.
    Retry,
    /// A newer owner exists; stop acting in this role, do not retry.
    Fenced,
    /// The operation may or may not have taken effect; find out before doing anything that depends on it.
    Ambiguous,
    /// The input is wrong or not permitted; the same call will fail again.
    Rejected,
    /// Stored or received bytes are invalid; do not serve them, repair from another copy.
    Corrupt,
    /// The other end, or this component, has stopped.
    Closed,
}

impl ErrorKind {
    const ALL: [ErrorKind; 6] = [
        ErrorKind::Retry,
        ErrorKind::Fenced,
        ErrorKind::Ambiguous,
        ErrorKind::Rejected,
        ErrorKind::Corrupt,
        ErrorKind::Closed,
    ];

    /// The kind's number in messages, from 0 in the order of the variants.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The kind with this number; `None` if there is none.
    pub fn of_number(number: u64) -> Option<ErrorKind> {
        usize::try_from(number).ok().and_then(|number| ErrorKind::ALL.get(number)).copied()
    }

    /// The kind's name in lower case, as logs and metrics show it.
    pub const fn as_str(self) -> &'static str {
        match self {
            ErrorKind::Retry => "retry",
            ErrorKind::Fenced => "fenced",
            ErrorKind::Ambiguous => "ambiguous",
            ErrorKind::Rejected => "rejected",
            ErrorKind::Corrupt => "corrupt",
            ErrorKind::Closed => "closed",
        }
    }

    /// The kind that fits an error of the operating system or of a simulated disk.
    ///
    /// A full disk is `Retry` (space may be freed), a missing or existing name and bad input are `Rejected`, a broken
    /// transport is `Closed`; every other failure of a write or an fsync is `Ambiguous`.
    pub fn of_io(error: &std::io::Error) -> ErrorKind {
        use std::io::ErrorKind as Io;
        match error.kind() {
            Io::StorageFull | Io::QuotaExceeded | Io::Interrupted | Io::WouldBlock | Io::TimedOut => ErrorKind::Retry,
            Io::NotFound | Io::AlreadyExists | Io::InvalidInput | Io::PermissionDenied | Io::AddrInUse => {
                ErrorKind::Rejected
            }
            Io::InvalidData | Io::UnexpectedEof => ErrorKind::Corrupt,
            Io::BrokenPipe | Io::ConnectionReset | Io::ConnectionAborted | Io::NotConnected => ErrorKind::Closed,
            Io::ConnectionRefused => ErrorKind::Retry,
            _ => ErrorKind::Ambiguous,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_keep_their_numbers() {
        let names = ["retry", "fenced", "ambiguous", "rejected", "corrupt", "closed"];
        for (number, name) in names.into_iter().enumerate() {
            let kind = ErrorKind::of_number(number as u64).expect("the number has a kind");
            assert_eq!((kind.number() as usize, kind.as_str()), (number, name));
        }
        assert_eq!(ErrorKind::of_number(6), None);
        assert_eq!(ErrorKind::of_number(u64::MAX), None);
    }
}
