//! Drops scattered pages of a mapping with one call.
//!
//! Each `madvise` by itself interrupts the processors on which other threads run: with a second thread a page costs 13 µs, and
//! 0.7 µs as one of 64 in a `process_madvise` on the own process. Kernels before 6.13 refuse that call, and get the other;
//! whatever else that call fails with, the other one is tried, and says why it cannot.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use super::mapping::Mapping;

/// Ranges of one call.
const RANGES_MAX: usize = 512;

/// Drops pages of this process.
pub(crate) struct PageDropper {
    /// This process; none where the kernel refuses the call.
    process: Option<OwnedFd>,
}

impl PageDropper {
    pub(crate) fn new() -> PageDropper {
        // SAFETY: the call has no memory argument.
        let file = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) } as libc::c_int;
        // SAFETY: the kernel has just given this descriptor to us alone.
        PageDropper { process: (file >= 0).then(|| unsafe { OwnedFd::from_raw_fd(file) }) }
    }

    /// Drops ranges of a mapping: offset and length of each in bytes. Their content is gone, and the next access faults.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn drop_ranges(&mut self, mapping: &Mapping, ranges: &[(u64, usize)]) -> io::Result<()> {
        for some in ranges.chunks(RANGES_MAX) {
            if some.len() == 1 || !self.drop_together(mapping, some) {
                some.iter().try_for_each(|(offset, bytes)| mapping.drop_range(*offset, *bytes))?;
            }
        }
        Ok(())
    }

    /// False if the kernel refuses this call, or did only a part of it; dropping the rest again does no harm.
    fn drop_together(&mut self, mapping: &Mapping, ranges: &[(u64, usize)]) -> bool {
        let Some(process) = &self.process else { return false };
        let parts: Vec<libc::iovec> = ranges.iter().map(|(offset, bytes)| mapping.part(*offset, *bytes)).collect();
        let total: usize = ranges.iter().map(|(_, bytes)| bytes).sum();
        // SAFETY: the parts are those of a mapping whose owner, who calls, needs their content no more (`Mapping::part`).
        let done = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                process.as_raw_fd(),
                parts.as_ptr(),
                parts.len(),
                libc::MADV_DONTNEED,
                0,
            )
        };
        if done < 0 {
            let error = io::Error::last_os_error().raw_os_error();
            if matches!(error, Some(libc::EINVAL | libc::EPERM | libc::ENOSYS)) {
                self.process = None;
            }
        }
        done as usize == total
    }
}
