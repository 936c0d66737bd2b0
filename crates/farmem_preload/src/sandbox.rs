//! What the agent may still do when the program gives up its privileges.
//!
//! The C library changes the user of the threads that it knows. So the agent of a program that was started as root, and becomes
//! another user, would remain root in memory which that user can write. Its filter allows the calls that it makes and no
//! others.

#![allow(unsafe_code)]

use bare::filter::allow_only;
use bare::system_call::system_call;

use crate::userfault::MOVE;

/// The calls of the agent, but for `ioctl`, of which it makes one.
const CALLS: [libc::c_long; 9] = [
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_madvise,
    libc::SYS_process_madvise,
    libc::SYS_nanosleep,
    libc::SYS_writev,
    libc::SYS_exit_group,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
];

/// Confines the calling thread, if the program has privileges that it may give up. Kernels without filters have none of this.
pub(crate) fn enter() {
    // SAFETY: the call has no argument.
    if unsafe { system_call(libc::SYS_geteuid, []) } == Ok(0) {
        let _ = allow_only(&CALLS, &[], &[MOVE as u32]);
    }
}
