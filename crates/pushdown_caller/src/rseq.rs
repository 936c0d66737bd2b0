//! The structure in each thread's block to which the kernel writes the thread's processor (`rseq`).
//!
//! The kernel writes there whenever the thread was interrupted. The executor may have the page, and then the kernel waits for it, wherever the
//! thread was: if it held the library's lock, for ever. So a thread has no such structure while it does the library's work, and none
//! any more once it has pushed a function down: that would cost two system calls a call. Its processor is unknown there then (-1), as on
//! kernels that have no `rseq`, and libraries ask the kernel.

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

/// Where the processor is in the structure.
const PROCESSOR_OFFSET: usize = 4;

/// The calling thread has no such structure from now on.
pub(crate) fn remove_rseq() {
    std::mem::forget(RseqRemoved::new());
}

/// The calling thread has no such structure while this exists.
pub(crate) struct RseqRemoved {
    thread_block: u64,
    was_there: bool,
}

impl RseqRemoved {
    pub(crate) fn new() -> RseqRemoved {
        let thread_block = thread_block();
        RseqRemoved { thread_block, was_there: is_registered(thread_block) && rseq(thread_block, RSEQ_UNREGISTER) }
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

/// The address of the structure; `None` if the C library has none.
fn structure(thread_block: u64) -> Option<usize> {
    let offset = RSEQ_OFFSET.load(Ordering::Relaxed);
    (offset != 0).then(|| (thread_block as usize).wrapping_add(offset))
}

/// Whether the kernel writes the thread's processor.
fn is_registered(thread_block: u64) -> bool {
    // SAFETY: the structure is part of the thread block, and the kernel writes it only while this thread does not run.
    let processor = structure(thread_block)
        .map(|structure| unsafe { ((structure + PROCESSOR_OFFSET) as *const i32).read_volatile() });
    processor.is_some_and(|processor| processor >= 0)
}

/// Registers or unregisters the structure. Whether it was done.
fn rseq(thread_block: u64, flags: usize) -> bool {
    let Some(structure) = structure(thread_block) else { return false };
    let bytes = RSEQ_BYTES.load(Ordering::Relaxed) as usize;
    // SAFETY: the address is that at which the C library has registered the thread's structure.
    unsafe { system_call(libc::SYS_rseq, [structure, bytes, flags, RSEQ_SIGNATURE]) }.is_ok()
}
