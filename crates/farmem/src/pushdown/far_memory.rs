//! Far memory of a process, for its closures.

#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;
use std::slice;

use super::error::PushdownError;
use super::failure::Failure;
use super::library::{Library, check};

/// Memory whose home is the executor, zero at first. Closures use it where it is. This process gets a page when it accesses it, and keeps at
/// most its budget; the oldest pages go back. A child made by `fork` must not use it.
#[derive(Debug)]
pub struct FarMemory {
    library: Library,
    start: NonNull<u64>,
    words: usize,
}

// SAFETY: it is memory of its own, with words that are shared and changed as those of a boxed slice are.
unsafe impl Send for FarMemory {}
// SAFETY: as above.
unsafe impl Sync for FarMemory {}

impl FarMemory {
    pub(super) fn map(library: Library, bytes: u64, budget_bytes: u64) -> Result<FarMemory, PushdownError> {
        let too_large = |_| PushdownError::FarMemory(io::Error::from_raw_os_error(libc::ENOMEM));
        let (bytes, budget) = (usize::try_from(bytes).map_err(too_large)?, usize::try_from(budget_bytes));
        // SAFETY: the function takes any numbers, and maps memory that nobody else uses.
        let start = unsafe { (library.far_map)(bytes, budget.unwrap_or(usize::MAX)) };
        match NonNull::new(start.cast()) {
            Some(start) => Ok(FarMemory { library, start, words: bytes / size_of::<u64>() }),
            None => match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::ENOTCONN) => Err(PushdownError::Refused),
                error => Err(PushdownError::FarMemory(error)),
            },
        }
    }

    /// The memory.
    pub fn words(&self) -> &[u64] {
        // SAFETY: the words are mapped, aligned to a page and zero at first, until this is dropped; who changes them has borrowed it.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }

    /// The memory, to be changed.
    pub fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: as in `words`, and nobody else has borrowed it.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.words) }
    }

    /// Evicts all pages that this process has, but for those that are on their way: what it has written goes home, all else is dropped.
    ///
    /// # Errors
    /// [`PushdownError::Lost`], [`PushdownError::Refused`].
    pub fn evict(&self) -> Result<(), PushdownError> {
        // SAFETY: the memory is mapped, and its contents stay what they are.
        let kind = unsafe { (self.library.far_evict)(self.start.as_ptr().cast(), size_of_val(self.words())) };
        check(kind, &Failure::default(), &self.library)
    }
}

impl Drop for FarMemory {
    fn drop(&mut self) {
        // SAFETY: nobody has borrowed the memory any more. The kernel tells the library that it is gone. If it refuses, the memory is leaked.
        let _ = unsafe { libc::munmap(self.start.as_ptr().cast(), size_of_val(self.words())) };
    }
}
