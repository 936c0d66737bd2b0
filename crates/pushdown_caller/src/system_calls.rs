//! The system calls of functions, which the caller's waiting threads make.

#![allow(unsafe_code)]

use bare::system_call::{Errno, system_call};

use crate::changes;
use crate::variables;
use crate::wait::CALLER;

/// Bytes of a set of signals.
const SIGNAL_SET_BYTES: u64 = 8;

/// What would not come back to this thread as it should.
const NEVER: [libc::c_long; 8] = [
    libc::SYS_rt_sigreturn,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_arch_prctl,
];

/// Makes a system call; returns what the kernel would. No lock is held: the kernel may have to wait for pages that the executor has.
///
/// `signals` are those that the function has blocked. In truth all are, until the call has ended.
pub(crate) fn make(number: u64, arguments: [u64; 6], signals: &mut u64) -> i64 {
    if number == libc::SYS_rt_sigprocmask as u64 {
        return change_signals(arguments, signals);
    }
    // The executor refuses these by itself, if it is what it should be.
    if NEVER.contains(&(number as libc::c_long)) {
        return -i64::from(libc::EPERM);
    }
    // SAFETY: the function asked for it, and it is a function of this program.
    let outcome = unsafe {
        let [first, second, third, ..] = arguments;
        match number as libc::c_long {
            libc::SYS_madvise => changes::advise(first, second, third as i32),
            // The executor does the same when it has returned.
            libc::SYS_mprotect => changes::protect(first, second, third as u32, false),
            number => system_call(number, arguments.map(|argument| argument as usize)),
        }
    };
    match outcome {
        Ok(value) => {
            match number as libc::c_long {
                libc::SYS_mmap => {
                    replaced(value as u64, arguments[1]);
                    variables::mapped(value as u64, arguments);
                }
                libc::SYS_munmap => replaced(arguments[0], arguments[1]),
                _ => {}
            }
            value as i64
        }
        Err(Errno(error)) => -i64::from(error),
    }
}

/// Memory is gone, or is something else now. On a private stack.
pub(crate) fn replaced(start: u64, bytes: u64) {
    if let Some(caller) = CALLER.acquire().as_mut() {
        caller.replaced(start, start.saturating_add(bytes));
    }
}

/// What `rt_sigprocmask` would do.
fn change_signals([how, set, before, bytes, ..]: [u64; 6], signals: &mut u64) -> i64 {
    if bytes != SIGNAL_SET_BYTES {
        return -i64::from(libc::EINVAL);
    }
    let changed = match set {
        0 => Some(*signals),
        _ => copy_in(set).map(|set| match how as i32 {
            libc::SIG_BLOCK => *signals | set,
            libc::SIG_UNBLOCK => *signals & !set,
            _ => set,
        }),
    };
    let Some(changed) = changed else { return -i64::from(libc::EFAULT) };
    if !(0..=2).contains(&how) && set != 0 {
        return -i64::from(libc::EINVAL);
    }
    if before != 0 && !copy_out(before, *signals) {
        return -i64::from(libc::EFAULT);
    }
    *signals = changed;
    0
}

/// A number of the program, if it is there. The kernel copies it, so that a wrong address is an error.
fn copy_in(address: u64) -> Option<u64> {
    let mut number = 0;
    transfer(libc::SYS_process_vm_readv, &raw mut number, address).then_some(number)
}

fn copy_out(address: u64, mut number: u64) -> bool {
    transfer(libc::SYS_process_vm_writev, &raw mut number, address)
}

fn transfer(call: libc::c_long, number: *mut u64, address: u64) -> bool {
    let local = libc::iovec { iov_base: number.cast(), iov_len: 8 };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: 8 };
    // SAFETY: the kernel copies eight bytes between a number here and memory of the program, which asked for it.
    let copied = unsafe {
        system_call(libc::SYS_getpid, []).and_then(|process| {
            system_call(call, [process, &raw const local as usize, 1, &raw const remote as usize, 1, 0])
        })
    };
    copied == Ok(8)
}
