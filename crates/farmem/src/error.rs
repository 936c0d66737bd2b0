//! Errors of far memory.

use base::ErrorKind;

use crate::page::PageRange;

/// What went wrong. [`Error::kind`] says what the caller should do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Invalid options.
    #[error("{0}")]
    Config(String),
    /// The kernel does not let this process handle page faults.
    #[error(
        "this process may not handle page faults in user space ({0}): far memory needs Linux 6.9 or newer, and read and \
         write access to /dev/userfaultfd, or vm.unprivileged_userfaultfd = 1, or the capability CAP_SYS_PTRACE"
    )]
    NoUserFaults(String),
    /// A call to the operating system failed.
    #[error("{doing}: {reason}")]
    System {
        /// The operation.
        doing: &'static str,
        /// Why it failed.
        reason: String,
    },
    /// Memory is lost.
    #[error(transparent)]
    Lost(#[from] Lost),
}

/// Pages of a region that are lost, with the node that had them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{range:?} of the region {region} were lost with {node}")]
pub struct Lost {
    /// The region's name.
    pub region: String,
    /// The pages.
    pub range: PageRange,
    /// The memory node or storage that had them.
    pub node: String,
}

impl Error {
    /// Of the system call that has just failed.
    pub(crate) fn system(doing: &'static str) -> Error {
        Error::from_io(doing, &std::io::Error::last_os_error())
    }

    pub(crate) fn from_io(doing: &'static str, error: &std::io::Error) -> Error {
        Error::System { doing, reason: error.to_string() }
    }

    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Config(_) | Error::NoUserFaults(_) => ErrorKind::Rejected,
            Error::System { .. } => ErrorKind::Retry,
            Error::Lost(_) => ErrorKind::Closed,
        }
    }
}
