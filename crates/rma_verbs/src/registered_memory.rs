//! Pages of this process that are registered with a device, which reads and writes them.

use std::ptr::NonNull;
use std::sync::Arc;
use std::{io, ptr};

use rustix::mm::{MapFlags, ProtFlags};

/// Private pages, zeroed at first. The processor never touches those of a region: the adapter does every access, so that its
/// atomics are the only ones there.
pub struct RegisteredMemory {
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: only the address and the size; each access states who may touch the bytes at that time.
unsafe impl Send for RegisteredMemory {}
// SAFETY: as above.
unsafe impl Sync for RegisteredMemory {}

impl RegisteredMemory {
    pub fn new(bytes: usize) -> io::Result<Arc<RegisteredMemory>> {
        // SAFETY: a new private mapping at an address of the kernel's choosing touches no memory that exists.
        let address = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }?;
        let address: NonNull<u8> = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: the range is the mapping just made. A child of this process would otherwise share its pages by copy on write,
        // and then the adapter's pages would no longer be this process's. A failure of this call has no other effect.
        let _ = unsafe { rustix::mm::madvise(address.as_ptr().cast(), bytes, rustix::mm::Advice::LinuxDontFork) };
        Ok(Arc::new(RegisteredMemory { address, bytes }))
    }

    pub fn address(&self) -> *mut u8 {
        self.address.as_ptr()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for RegisteredMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this object's, and every registration of it has ended or holds an `Arc` of it.
        let unmapped = unsafe { rustix::mm::munmap(self.address.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "a mapping of one's own can be unmapped");
    }
}
