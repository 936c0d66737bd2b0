//! Anonymous private memory at addresses that the kernel chooses.

#![allow(unsafe_code)]

use std::{io, ptr};

use crate::error::Error;

/// A range of anonymous private memory. It is unmapped when this is dropped.
///
/// A child of a fork does not have it, and may have other memory at these addresses. Were it inherited, the child would read
/// zeros where the parent has pages in the store, and the kernel would refuse to move pages that both share.
pub(crate) struct Mapping {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the range belongs to this value, whichever thread has it. Nothing but `Mapping::bytes` reads through the address.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves addresses. Memory is taken when pages are touched or filled.
    ///
    /// # Errors
    /// [`Error::System`].
    pub(crate) fn reserve(bytes: usize) -> Result<Mapping, Error> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice changes no memory that exists.
        let start = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(Error::system("cannot reserve addresses for far memory"));
        }
        let mapping = Mapping { start: start.cast(), bytes };
        // A huge page would be filled, moved and protected as a whole; see ADR 52.
        for advice in [libc::MADV_DONTFORK, libc::MADV_NOHUGEPAGE] {
            // SAFETY: the range is the one that was just mapped, and the advice changes no content.
            let advised = unsafe { libc::madvise(start, bytes, advice) };
            // A kernel without transparent huge pages does not know the second advice, and needs none.
            if advised != 0 && advice == libc::MADV_DONTFORK {
                return Err(Error::system("cannot keep far memory out of child processes"));
            }
        }
        Ok(mapping)
    }

    /// The first address.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    /// The first address, as a number.
    pub(crate) fn address(&self) -> u64 {
        self.start as u64
    }

    /// How many bytes there are.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// The first bytes.
    ///
    /// # Safety
    /// Nothing changes or removes them while the slice exists.
    pub(super) unsafe fn bytes(&self, length: usize) -> &[u8] {
        assert!(length <= self.bytes, "the caller asks for bytes that are there");
        // SAFETY: the range is mapped for as long as `self` lives, and any bytes are valid; the caller promises the rest.
        unsafe { std::slice::from_raw_parts(self.start, length) }
    }

    /// Touches a byte; waits until its fault is served.
    pub(crate) fn touch(&self, offset: usize) {
        assert!(offset < self.bytes, "the caller touches a byte that is there");
        // SAFETY: the byte is mapped for as long as `self` lives.
        let _ = unsafe { self.start.wrapping_add(offset).read_volatile() };
    }

    /// A part of it, for a call of the kernel.
    pub(super) fn part(&self, offset: u64, bytes: usize) -> libc::iovec {
        let end = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(bytes));
        assert!(end.is_some_and(|end| end <= self.bytes), "the caller names bytes that are there");
        libc::iovec { iov_base: self.start.wrapping_add(offset as usize).cast(), iov_len: bytes }
    }

    /// Undoes what `mlockall` did to it: locked pages cannot be dropped.
    pub(crate) fn unlock(&self) {
        // SAFETY: the range belongs to this value, and the call changes no content. If it fails, so will the drop.
        let _ = unsafe { libc::munlock(self.start.cast(), self.bytes) };
    }

    /// Gives the memory of a range back to the kernel. Its content is gone.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn drop_range(&self, offset: u64, bytes: usize) -> io::Result<()> {
        let part = self.part(offset, bytes);
        // SAFETY: the range belongs to this value, and its owner, who calls, needs the content no more.
        match unsafe { libc::madvise(part.iov_base, part.iov_len, libc::MADV_DONTNEED) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `reserve` and is unmapped once; every slice of it has borrowed `self`.
        let unmapped = unsafe { libc::munmap(self.start.cast(), self.bytes) };
        debug_assert_eq!(unmapped, 0, "the kernel knows the range");
    }
}
