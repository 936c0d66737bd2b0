//! The structure in each thread's block to which the kernel writes the thread's processor (`rseq`).
//!
//! The kernel writes there whenever the thread was interrupted. The executor may have the page, and then the kernel waits for it, wherever the
//! thread was: if it held the library's lock, for ever. So a thread has no such structure while it does the library's work.

#![allow(unsafe_code)]

use std::arch::asm;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bare::system_call::system_call;

/// Where the C library has the kernel keep a thread's processor, from the thread block on; 0 if it has none.
pub(crate) static RSEQ_OFFSET: AtomicUsize = AtomicUsize::new(0);
/// How many bytes that are.
pub(crate) static RSEQ_BYTES: AtomicU64 = AtomicU64::new(0);
/// `RSEQ_SIG`, and `RSEQ_FLAG_UNREGISTER`.
const RSEQ_SIGNATURE: usize = 0x5305_3053;
const RSEQ_UNREGISTER: usize = 1;

/// The calling thread has no such structure while this exists, unless the C library gave it none.
pub(crate) struct RseqRemoved {
    thread_block: u64,
    was_there: bool,
}

impl RseqRemoved {
    pub(crate) fn new() -> RseqRemoved {
        let thread_block = thread_block();
        RseqRemoved { thread_block, was_there: rseq(thread_block, RSEQ_UNREGISTER) }
    }
}

impl Drop for RseqRemoved {
    fn drop(&mut self) {
        if self.was_there {
            rseq(self.thread_block, 0);
        }
    }
}

/// The address of the thread block. The executor needs the same instructions, and says so when they are not there.
pub(crate) fn thread_block() -> u64 {
    let address: u64;
    // SAFETY: the instruction reads a register.
    unsafe { asm!("rdfsbase {}", out(reg) address, options(nomem, nostack, preserves_flags)) };
    address
}

/// Registers or unregisters the structure. Whether it was done.
fn rseq(thread_block: u64, flags: usize) -> bool {
    let (offset, bytes) = (RSEQ_OFFSET.load(Ordering::Relaxed), RSEQ_BYTES.load(Ordering::Relaxed));
    let address = (thread_block as usize).wrapping_add(offset);
    // SAFETY: the address is that at which the C library has registered the thread's structure.
    offset != 0 && unsafe { system_call(libc::SYS_rseq, [address, bytes as usize, flags, RSEQ_SIGNATURE]) }.is_ok()
}
