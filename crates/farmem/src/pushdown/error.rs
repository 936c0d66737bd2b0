//! Errors of pushed closures.

use std::io;
use std::ops::Range;

use base::ErrorKind;

use super::panics::PanicReport;

/// How a call failed. [`PushdownError::kind`] says what the caller should do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PushdownError {
    /// This process cannot push closures down: the library cannot be loaded, or has not started the executor.
    #[error("closures cannot be pushed down: {reason}")]
    Unavailable {
        /// Why.
        reason: String,
    },
    /// The closure panicked. What it had done before stays done, as with [`catch_unwind`](std::panic::catch_unwind).
    #[error("a pushed closure panicked: {0}")]
    Panicked(Box<PanicReport>),
    /// A signal ended the closure. What it had written is there; locks that it held are held, memory that it had is leaked.
    #[error(
        "a pushed closure was ended by signal {signal} (code {code}) at {instruction:#x}, for address {address:#x}{}",
        reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default()
    )]
    Signal {
        /// The signal, `SIGSEGV` for example.
        signal: i32,
        /// The signal's code, `SEGV_MAPERR` for example.
        code: i32,
        /// The address that the closure accessed, or 0.
        address: usize,
        /// The address of the instruction.
        instruction: usize,
        /// Why closures cannot have the memory at that address, if that was the cause.
        reason: Option<String>,
    },
    /// The executor was lost.
    #[error(
        "the executor was lost: it is unknown what the pushed closure did, and the memory that the executor had is lost"
    )]
    Lost,
    /// Too many calls wait. The closure has not run.
    #[error("too many calls wait for the executor, so the closure has not run: try again later, or call it here")]
    Busy,
    /// The call was cancelled before its turn came. The closure has not run.
    #[error("the call was cancelled before its turn came, so the closure has not run")]
    Cancelled,
    /// The closure ran for longer than its limit, and was ended in the middle. What it had written is there, wholly or in part; locks that it
    /// held are held, memory that it had is leaked.
    #[error("a pushed closure ran for longer than its limit, and was ended at {instruction:#x}, in the middle")]
    Killed {
        /// The address of the instruction.
        instruction: usize,
        /// Addresses of the memory that may be torn: what this closure, or one that ran beside it, could write while calls were running.
        torn: Vec<Range<usize>>,
    },
    /// The operating system or the library refused far memory: `EBUSY` while closures run.
    #[error("far memory cannot be mapped: {0}")]
    FarMemory(#[source] io::Error),
    /// The list of this process's mappings cannot be read.
    #[error("/proc/self/maps cannot be read: {0}")]
    Mappings(#[source] io::Error),
    /// This process, or this thread, cannot push closures down. The closure has not run.
    #[error(
        "the closure has not run: this is a forked child, or a pushed closure itself, or the library is of another version"
    )]
    Refused,
}

impl PushdownError {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            PushdownError::FarMemory(error) if error.raw_os_error() == Some(libc::EBUSY) => ErrorKind::Retry,
            PushdownError::FarMemory(_) | PushdownError::Mappings(_) => ErrorKind::Rejected,
            PushdownError::Unavailable { .. } | PushdownError::Refused => ErrorKind::Rejected,
            // The same closure would fail again.
            PushdownError::Panicked(_) | PushdownError::Signal { .. } => ErrorKind::Rejected,
            PushdownError::Lost | PushdownError::Killed { .. } => ErrorKind::Ambiguous,
            PushdownError::Busy | PushdownError::Cancelled => ErrorKind::Retry,
        }
    }
}
