//! What this program and its functions may ask the kernel for.

#![allow(unsafe_code)]

use bare::filter::{CheckedCall, allow_only};
use bare::signal;
use bare::system_call::Errno;
use bare::userfault;
use pushdown::STORAGE_FILE;

use crate::limit::LIMIT_SIGNAL;

/// The system calls of this program once it has begun. None opens a file, a connection or a process. Functions make none at all.
const CALLS: [libc::c_long; 15] = [
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_poll,
    libc::SYS_futex,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_exit_group,
    libc::SYS_restart_syscall,
    libc::SYS_sched_yield,
    libc::SYS_clock_gettime,
    libc::SYS_timerfd_settime,
];

unsafe extern "C" {
    /// The linker's: where the program begins and ends.
    static __executable_start: u8;
    #[link_name = "end"]
    static program_end: u8;
}

/// System calls of the calling thread from outside of this program are signals from now on.
///
/// # Errors
/// Of the operating system.
pub(crate) fn stop_system_calls() -> Result<(), Errno> {
    signal::stop_system_calls(&raw const __executable_start as usize..&raw const program_end as usize)
}

/// The calling thread makes no other system calls than this program needs; those for storage if it has a file for it. The service thread may signal threads of its process, whose
/// number it gives, that their function's time is over.
///
/// # Errors
/// Of the operating system.
pub(crate) fn enter(process: Option<u32>, has_storage: bool) -> Result<(), Errno> {
    let (file, end) = ([(0, STORAGE_FILE as u32)], process.map(|process| [(0, process), (2, LIMIT_SIGNAL as u32)]));
    let storage = [libc::SYS_pread64, libc::SYS_pwrite64].map(|call| CheckedCall { call, arguments: &file });
    let end = end.as_ref().map(|arguments| CheckedCall { call: libc::SYS_tgkill, arguments });
    let checked: Vec<CheckedCall> = storage.into_iter().filter(|_| has_storage).chain(end).collect();
    allow_only(&CALLS, &checked, &userfault::REQUESTS)
}
