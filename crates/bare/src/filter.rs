//! A filter of system calls (seccomp) for the calling thread.

#![allow(unsafe_code)]

use std::mem::offset_of;

use crate::system_call::{Errno, system_call};

/// `AUDIT_ARCH_X86_64`.
const ARCHITECTURE: u32 = 0xc000_003e;
/// Most calls and requests together.
pub const ALLOWED_MAX: usize = 48;
/// Most calls whose arguments are checked.
pub const CHECKED_MAX: usize = 4;
/// Most arguments of a call that are checked.
const ARGUMENTS_MAX: usize = 6;
/// Instructions of a call whose arguments are checked: its number, two of each argument, a result.
const CHECKED_LENGTH_MAX: usize = 2 + 2 * ARGUMENTS_MAX;
/// Instructions: two checks of the architecture and a load, one of each call, those of checked calls and of `ioctl`, and two results.
const LENGTH_MAX: usize = 3 + ALLOWED_MAX + CHECKED_MAX * CHECKED_LENGTH_MAX + 2 + 2;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// A system call that is allowed with certain arguments alone.
#[derive(Clone, Copy, Debug)]
pub struct CheckedCall<'a> {
    /// Its number.
    pub call: libc::c_long,
    /// Indices of arguments, and the lower halves of their values: all that the kernel takes of a number of 32 bits.
    pub arguments: &'a [(usize, u32)],
}

/// Lets the calling thread, and those that it starts, make these system calls and these requests of `ioctl`, and no others: any other
/// one kills the process. It cannot be undone. At most [`ALLOWED_MAX`] in all, and [`CHECKED_MAX`] whose arguments are checked.
///
/// # Errors
/// Of the operating system: a kernel without filters.
pub fn allow_only(calls: &[libc::c_long], checked: &[CheckedCall], requests: &[u32]) -> Result<(), Errno> {
    assert!(calls.len() + requests.len() <= ALLOWED_MAX, "a filter has room for {ALLOWED_MAX} calls");
    assert!(checked.len() <= CHECKED_MAX, "a filter checks the arguments of {CHECKED_MAX} calls");
    assert!(checked.iter().all(|call| call.arguments.len() <= ARGUMENTS_MAX), "a call has no more arguments");
    let instruction = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let lengths = checked.iter().map(|call| 2 + 2 * call.arguments.len());
    let ioctl = 3 + calls.len() + lengths.sum::<usize>();
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
    let mut at = 3 + calls.len();
    for CheckedCall { call, arguments } in checked {
        let next = at + 2 + 2 * arguments.len();
        filter[at] = instruction(JUMP_IF_EQUAL, 0, to(next, at), *call as u32);
        for (at, (index, value)) in (at + 1..).step_by(2).zip(*arguments) {
            filter[at] = instruction(LOAD, 0, 0, argument(*index));
            filter[at + 1] = instruction(JUMP_IF_EQUAL, 0, to(kill, at + 1), *value);
        }
        filter[next - 1] = instruction(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW);
        at = next;
    }
    filter[ioctl] = instruction(JUMP_IF_EQUAL, 0, to(kill, ioctl), libc::SYS_ioctl as u32);
    filter[ioctl + 1] = instruction(LOAD, 0, 0, argument(1));
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

/// Where the lower half of an argument is.
fn argument(index: usize) -> u32 {
    (offset_of!(libc::seccomp_data, args) + index * size_of::<u64>()) as u32
}

const _: () = assert!(LENGTH_MAX < u8::MAX as usize, "a jump reaches every instruction");

#[cfg(test)]
mod tests {
    use super::*;

    /// How a forked child ends that may make few calls, and makes this one: its exit status, or the signal that ended it.
    fn end_of_child(call: libc::c_long, arguments: [usize; 3]) -> Result<i32, i32> {
        // SAFETY: the child makes system calls alone.
        match unsafe { libc::fork() } {
            0 => {
                let allowed = [libc::SYS_exit_group, libc::SYS_exit];
                let checked = [
                    CheckedCall { call: libc::SYS_dup2, arguments: &[(0, 1), (1, 1)] },
                    CheckedCall { call: libc::SYS_umask, arguments: &[(0, 7)] },
                ];
                let status = i32::from(allow_only(&allowed, &checked, &[libc::FIONREAD as u32]).is_err());
                // SAFETY: the calls have no argument that leads to memory.
                let _ = unsafe { system_call(call, arguments) };
                crate::system_call::exit_group(status)
            }
            child => {
                let mut status = 0;
                // SAFETY: the kernel writes a number.
                assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                if libc::WIFEXITED(status) { Ok(libc::WEXITSTATUS(status)) } else { Err(libc::WTERMSIG(status)) }
            }
        }
    }

    #[test]
    fn a_call_is_allowed_with_the_arguments_that_it_is_to_have() {
        let killed = Err(libc::SIGSYS);
        assert_eq!(end_of_child(libc::SYS_dup2, [1, 1, 9]), Ok(0));
        assert_eq!(end_of_child(libc::SYS_dup2, [1, 2, 0]), killed);
        assert_eq!(end_of_child(libc::SYS_dup2, [2, 1, 0]), killed);
        assert_eq!(end_of_child(libc::SYS_umask, [7, 0, 0]), Ok(0));
        assert_eq!(end_of_child(libc::SYS_umask, [6, 0, 0]), killed);
        assert_eq!(end_of_child(libc::SYS_ioctl, [99, libc::FIONREAD as usize, 0]), Ok(0));
        assert_eq!(end_of_child(libc::SYS_ioctl, [99, libc::FIONBIO as usize, 0]), killed);
        assert_eq!(end_of_child(libc::SYS_getppid, [0; 3]), killed);
    }
}
