//! What the agent may still do when the program gives up its privileges.
//!
//! The C library changes the user of the threads that it knows. So the agent of a program that was started as root, and becomes
//! another user, would remain root in memory which that user can write. Its filter allows the calls that it makes and no
//! others.

#![allow(unsafe_code)]

use std::mem::offset_of;

use crate::system_call::system_call;
use crate::userfault::MOVE;

/// `AUDIT_ARCH_X86_64`.
const ARCHITECTURE: u32 = 0xc000_003e;

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

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// Instructions: two checks of the architecture, one of each call, those of `ioctl`, and two results.
const LENGTH: usize = 3 + CALLS.len() + 3 + 2;

/// Confines the calling thread, if the program has privileges that it may give up. Kernels without filters have none of this.
pub(crate) fn enter() {
    // SAFETY: the call has no argument.
    if unsafe { system_call(libc::SYS_geteuid, []) } != Ok(0) {
        return;
    }
    let filter = filter();
    let program = libc::sock_fprog { len: LENGTH as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the kernel reads the program, which lives as long as the calls. Both concern this thread alone.
    unsafe {
        let _ = system_call(libc::SYS_prctl, [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0]);
        let mode = libc::SECCOMP_SET_MODE_FILTER as usize;
        let _ = system_call(libc::SYS_seccomp, [mode, 0, &raw const program as usize]);
    }
}

fn filter() -> [libc::sock_filter; LENGTH] {
    let instruction = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let (kill, allow) = (LENGTH - 2, LENGTH - 1);
    // Jumps are counted from the next instruction.
    let to = |target: usize, from: usize| (target - from - 1) as u8;
    let mut filter = [instruction(RETURN, 0, 0, libc::SECCOMP_RET_KILL_PROCESS); LENGTH];
    filter[0] = instruction(LOAD, 0, 0, offset_of!(libc::seccomp_data, arch) as u32);
    filter[1] = instruction(JUMP_IF_EQUAL, 0, to(kill, 1), ARCHITECTURE);
    filter[2] = instruction(LOAD, 0, 0, offset_of!(libc::seccomp_data, nr) as u32);
    for (index, call) in CALLS.iter().enumerate() {
        filter[3 + index] = instruction(JUMP_IF_EQUAL, to(allow, 3 + index), 0, *call as u32);
    }
    let ioctl = 3 + CALLS.len();
    filter[ioctl] = instruction(JUMP_IF_EQUAL, 0, to(kill, ioctl), libc::SYS_ioctl as u32);
    // The lower half of the second argument.
    let request = offset_of!(libc::seccomp_data, args) + size_of::<u64>();
    filter[ioctl + 1] = instruction(LOAD, 0, 0, request as u32);
    filter[ioctl + 2] = instruction(JUMP_IF_EQUAL, to(allow, ioctl + 2), 0, MOVE as u32);
    filter[allow] = instruction(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW);
    filter
}
