//! Memory that this process shares with one program.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use farmem_control::{BOUNCE_OFFSET, BUFFER_PAGES, COMMAND_OFFSET, CommandPage, PAGE_BYTES, RequestPage, SHARED_BYTES};
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

use crate::error::Error;

/// The shared memory of one program: its request page, its command page and its bounce buffer. Whatever is read here may have
/// been written by anybody in the program, at any time.
pub(super) struct SharedMemory {
    start: NonNull<u8>,
    file: OwnedFd,
}

// SAFETY: the mapping belongs to this value. It is accessed by atomics and by copies that allow for changes.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Zeros.
    ///
    /// # Errors
    /// [`Error::System`].
    pub(super) fn new() -> Result<SharedMemory, Error> {
        let failed = |error: rustix::io::Errno| {
            Error::from_io("cannot share memory with a program", &std::io::Error::from(error))
        };
        let name = CString::new("heddle-farmem").expect("it has no zero");
        let file = rustix::fs::memfd_create(&name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(failed)?;
        rustix::fs::ftruncate(&file, SHARED_BYTES as u64).map_err(failed)?;
        // An access behind the end of a file that the program made shorter would end this process.
        let seals = rustix::fs::SealFlags::SHRINK | rustix::fs::SealFlags::GROW | rustix::fs::SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals).map_err(failed)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice changes no memory that exists.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), SHARED_BYTES, protection, MapFlags::SHARED, &file, 0) };
        let start = NonNull::new(start.map_err(failed)?.cast()).expect("the kernel maps nothing at zero");
        Ok(SharedMemory { start, file })
    }

    /// To send it to the program.
    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(super) fn request(&self) -> &RequestPage {
        // SAFETY: the mapping is at least a page, aligned as one, and lives as long as `self`; the structure has atomics only.
        unsafe { self.start.cast().as_ref() }
    }

    pub(super) fn command(&self) -> &CommandPage {
        // SAFETY: as above; the offset is that of a page, and the structure ends before the bounce buffer.
        unsafe { self.start.add(COMMAND_OFFSET).cast().as_ref() }
    }

    /// Copies bytes out of the bounce buffer. If the program writes there meanwhile, the copy has some of each.
    ///
    /// Panics when they are not within the buffer.
    pub(super) fn copy_bounce(&self, offset: usize, bytes: usize) -> Vec<u8> {
        let end = offset.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= BUFFER_PAGES as usize * PAGE_BYTES),
            "the caller names bytes that are there"
        );
        let mut copy: Vec<u8> = Vec::with_capacity(bytes);
        // SAFETY: the source is mapped for as long as `self` lives, and the target has room for as many bytes; after the copy they
        // are initialised. No reference to the source exists, which another process may change.
        unsafe {
            std::ptr::copy_nonoverlapping(self.start.add(BOUNCE_OFFSET + offset).as_ptr(), copy.as_mut_ptr(), bytes);
            copy.set_len(bytes);
        }
        copy
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and is unmapped once; every reference to it has borrowed `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), SHARED_BYTES) };
        debug_assert!(unmapped.is_ok(), "the kernel knows the range");
    }
}
