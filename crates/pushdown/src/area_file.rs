//! The file of an area.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use crate::area::AREA_BYTES;

/// Memory for an area. It never changes its size: either side would get SIGBUS.
///
/// # Errors
/// Of the operating system.
pub fn area_file() -> io::Result<File> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a string of C; the kernel gives the descriptor to us alone.
    let file = unsafe {
        let descriptor = libc::memfd_create(c"pushdown".as_ptr(), flags);
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        File::from(OwnedFd::from_raw_fd(descriptor))
    };
    file.set_len(AREA_BYTES as u64)?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: the call has no memory argument.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
        0 => Ok(file),
        _ => Err(io::Error::last_os_error()),
    }
}
