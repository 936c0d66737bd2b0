//! Descriptors of the library, in a process whose program does not know of them. Uses the C library.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

/// Descriptors of the library are at least these, so that a program which closes the low ones does not close them.
const DESCRIPTOR_MIN: i32 = 200;

/// Moves a descriptor out of the program's way.
///
/// # Errors
/// The reason, for people.
pub(crate) fn keep(file: OwnedFd) -> Result<i32, String> {
    // SAFETY: the call has no memory argument.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, DESCRIPTOR_MIN) } {
        -1 => Err(format!("a descriptor: {}", io::Error::last_os_error())),
        kept => Ok(kept),
    }
}
