//! A filter of system calls (seccomp) for the calling thread.

#![allow(unsafe_code)]

use std::mem::offset_of;

use crate::system_call::{Errno, system_call};

/// `AUDIT_ARCH_X86_64`.
const ARCHITECTURE: u32 = 0xc000_003e;
/// Most calls and requests together.
pub const ALLOWED_MAX: usize = 48;
/// Instructions: two checks of the architecture and a load, one of each call, those of `ioctl`, and two results.
const LENGTH_MAX: usize = 3 + ALLOWED_MAX + 2 + 2;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// Lets the calling thread, and those that it starts, make these system calls and these requests of `ioctl`, and no others: any other
/// one kills the process. It cannot be undone. At most [`ALLOWED_MAX`] in all.
///
/// # Errors
/// Of the operating system: a kernel without filters.
pub fn allow_only(calls: &[libc::c_long], requests: &[u32]) -> Result<(), Errno> {
    assert!(calls.len() + requests.len() <= ALLOWED_MAX, "a filter has room for so many calls");
    let instruction = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let ioctl = 3 + calls.len();
    let kill = ioctl + 2 + requests.len();
    let allow = kill + 1;
    // Jumps are counted from the next instruction.
    let to = |target: usize, from: usize| (target - from - 1) as u8;
    let mut filter = [instruction(RETURN, 0, 0, libc::SECCOMP_RET_KILL_PROCESS); LENGTH_MAX];
    filter[0] = instruction(LOAD, 0, 0, offset_of!(libc::seccomp_data, arch) as u32);
    filter[1] = instruction(JUMP_IF_EQUAL, 0, to(kill, 1), ARCHITECTURE);
    filter[2] = instruction(LOAD, 0, 0, offset_of!(libc::seccomp_data, nr) as u32);
    for (at, call) in (3..).zip(calls) {
        filter[at] = instruction(JUMP_IF_EQUAL, to(allow, at), 0, *call as u32);
    }
    filter[ioctl] = instruction(JUMP_IF_EQUAL, 0, to(kill, ioctl), libc::SYS_ioctl as u32);
    // The lower half of the second argument.
    let request = offset_of!(libc::seccomp_data, args) + size_of::<u64>();
    filter[ioctl + 1] = instruction(LOAD, 0, 0, request as u32);
    for (at, request) in (ioctl + 2..).zip(requests) {
        filter[at] = instruction(JUMP_IF_EQUAL, to(allow, at), 0, *request);
    }
    filter[allow] = instruction(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW);
    let program = libc::sock_fprog { len: allow as u16 + 1, filter: filter.as_mut_ptr() };
    // SAFETY: the kernel reads the program, which lives as long as the calls. Both concern this thread alone.
    unsafe {
        system_call(libc::SYS_prctl, [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0])?;
        let mode = libc::SECCOMP_SET_MODE_FILTER as usize;
        system_call(libc::SYS_seccomp, [mode, 0, &raw const program as usize]).map(|_| ())
    }
}
