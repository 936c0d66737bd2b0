//! Private mappings of files that the program may write: its variables and those of its libraries. The kernel does not report faults
//! there, so anonymous memory takes their place.

#![allow(unsafe_code)]

use bare::PAGE_BYTES;
use bare::system_call::{Errno, map_anonymous, system_call, unmap};

use crate::message::print;

/// Threads of a process in which nobody can be writing: the one that asks for it, and the library's.
const ALONE: usize = 2;

/// Puts anonymous memory with the same bytes in the place of a mapping, up to the end of the file. What another thread writes there meanwhile is lost.
///
/// # Errors
/// Of the operating system.
pub(crate) fn make_anonymous(start: u64, end: u64, protection: u32) -> Result<(), Errno> {
    let bytes = (end - start) as usize;
    let new = map_anonymous(bytes)?;
    // SAFETY: the new mapping was just made, of this size.
    let copy = unsafe { std::slice::from_raw_parts_mut(new as *mut u8, bytes) };
    let mut pages = copy.chunks_mut(PAGE_BYTES).zip((start..end).step_by(PAGE_BYTES));
    // What lies behind the end of the file stays an error.
    let there = pages.position(|(page, address)| copy_of_this_process(address, page) == 0);
    let bytes = there.map_or(bytes, |pages| pages * PAGE_BYTES);
    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as usize;
    // SAFETY: the mapping of the program gets the same bytes and the same protection.
    let moved = unsafe {
        system_call(libc::SYS_mprotect, [new, bytes, protection as usize])
            .and_then(|_| system_call(libc::SYS_mremap, [new, bytes, bytes, flags, start as usize]))
    };
    // SAFETY: nobody else knows of it.
    let _ = unsafe {
        match moved {
            Ok(_) => unmap(new + bytes, (end - start) as usize - bytes),
            Err(_) => unmap(new, (end - start) as usize),
        }
    };
    moved.map(|_| ())
}

/// As [`make_anonymous`], unless the process has threads that could be writing. Whether it was done.
pub(crate) fn make_anonymous_if_alone(start: u64, end: u64, protection: u32) -> bool {
    if threads() > ALONE {
        print(&format!(
            "a pushed-down function uses a private mapping of a file at {start:#x} that was made by a library when the program had \
             several threads, and cannot have it"
        ));
        return false;
    }
    make_anonymous(start, end, protection).is_ok()
}

/// How many threads the process has: the links of its folder of threads, less that of the folder itself and its parent's.
pub(crate) fn threads() -> usize {
    let mut status = [0_u64; 18];
    let path = c"/proc/self/task".as_ptr() as usize;
    // SAFETY: the kernel reads a static path, and writes 144 bytes.
    let known = unsafe { system_call(libc::SYS_stat, [path, status.as_mut_ptr() as usize]) };
    match known {
        Ok(_) => (status[2] as usize).saturating_sub(2),
        Err(_) => usize::MAX,
    }
}

/// After `mmap`: a private mapping of a file that may be written becomes anonymous at once, before anybody else knows of it.
pub(crate) fn mapped(result: u64, arguments: [u64; 6]) {
    let [_, bytes, protection, flags, file, _] = arguments;
    let is_file = flags as i32 & libc::MAP_ANONYMOUS == 0 && file as i32 >= 0;
    if is_file && flags as i32 & libc::MAP_PRIVATE != 0 && protection as i32 & libc::PROT_WRITE != 0 {
        let end = (result + bytes).next_multiple_of(PAGE_BYTES as u64);
        // If it fails, the executor does not get it.
        let _ = make_anonymous(result, end, protection as u32);
    }
}

/// Copies memory through the kernel, so that what is not there is no fault of this thread; how many bytes.
pub(crate) fn copy_of_this_process(address: u64, target: &mut [u8]) -> usize {
    let local = libc::iovec { iov_base: target.as_mut_ptr().cast(), iov_len: target.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: target.len() };
    // SAFETY: the kernel writes at most as many bytes as the slice has.
    let copied = unsafe {
        system_call(libc::SYS_getpid, []).and_then(|process| {
            let (local, remote) = (&raw const local as usize, &raw const remote as usize);
            system_call(libc::SYS_process_vm_readv, [process, local, 1, remote, 1, 0])
        })
    };
    copied.unwrap_or(0)
}
