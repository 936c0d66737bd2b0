//! Reads the memory of another process.

#![allow(unsafe_code)]

use std::io;

/// Reads memory of the process to which a thread belongs, and returns how many of the bytes there are: fewer than asked for
/// where a page behind them is not mapped.
///
/// The caller waits for the page like a thread of that process: so nobody who serves its page faults may read far memory.
///
/// # Errors
/// Of the operating system: the first page is not mapped, the thread has ended, or this process may not read its memory.
pub(crate) fn read(thread: u32, address: u64, into: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: address as usize as *mut libc::c_void, iov_len: into.len() };
    // SAFETY: the kernel writes at most `iov_len` bytes to `into`, and checks the addresses of the other process itself.
    let read = unsafe { libc::process_vm_readv(thread.cast_signed(), &raw const local, 1, &raw const remote, 1, 0) };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_is_read_and_nothing_else() {
        // SAFETY: the call has no argument.
        let own = unsafe { libc::gettid() } as u32;
        let value = *b"far memory";
        let mut into = [0; 10];
        assert_eq!(read(own, value.as_ptr() as u64, &mut into).ok(), Some(10));
        assert_eq!(into, value);
        assert!(read(own, 8, &mut into).is_err());
    }
}
