//! Handlers of signals, and system calls that are signals.

#![allow(unsafe_code)]

use std::arch::naked_asm;
use std::ops::Range;

use crate::system_call::{Errno, system_call};

/// `PR_SET_SYSCALL_USER_DISPATCH`: the option of `prctl` that [`stop_system_calls`] uses.
pub const SET_SYSTEM_CALL_DISPATCH: u64 = 59;
/// `SYS_USER_DISPATCH`: the code of a SIGSYS that stands for a stopped system call.
pub const STOPPED_CALL: i32 = 2;

const DISPATCH_OFF: usize = 0;
const DISPATCH_ON: usize = 1;
/// `SA_RESTORER`.
const RESTORER: u64 = 0x0400_0000;

/// What the kernel calls on a signal: its number, what is known of it, and the state of the thread, which goes on with what the handler
/// leaves there.
pub type Handler = unsafe extern "C" fn(i32, &libc::siginfo_t, &mut libc::ucontext_t);

/// `struct sigaction` of the kernel.
#[repr(C)]
struct KernelAction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

const _: () = assert!(size_of::<KernelAction>() == 32, "the kernel's structure has 32 bytes");

/// Has a handler called for a signal, with all signals blocked. `flags` are those of `sigaction`.
///
/// # Errors
/// Of the operating system.
///
/// # Safety
/// Any thread that does not block the signal may run the handler at any moment.
pub unsafe fn set_handler(signal: i32, handler: Handler, flags: i32) -> Result<(), Errno> {
    let action = KernelAction {
        handler: handler as *const () as usize,
        flags: (flags | libc::SA_SIGINFO) as u64 | RESTORER,
        restorer: restore as *const () as usize,
        mask: u64::MAX,
    };
    // SAFETY: the kernel reads the structure; the caller answers for the handler, and the restorer is what the kernel expects.
    unsafe { system_call(libc::SYS_rt_sigaction, [signal as usize, &raw const action as usize, 0, 8]) }.map(|_| ())
}

/// The address of a signal's handler, or `SIG_DFL` or `SIG_IGN`.
///
/// # Errors
/// Of the operating system.
pub fn handler_of(signal: i32) -> Result<usize, Errno> {
    let mut action = KernelAction { handler: 0, flags: 0, restorer: 0, mask: 0 };
    // SAFETY: the kernel writes the structure.
    unsafe { system_call(libc::SYS_rt_sigaction, [signal as usize, 0, &raw mut action as usize, 8]) }?;
    Ok(action.handler)
}

#[unsafe(naked)]
unsafe extern "C" fn restore() {
    naked_asm!("mov eax, 15", "syscall")
}

/// Each system call of the calling thread from an instruction outside of `own` is a SIGSYS with [`STOPPED_CALL`] from now on.
///
/// # Errors
/// Of the operating system.
pub fn stop_system_calls(own: Range<usize>) -> Result<(), Errno> {
    dispatch(DISPATCH_ON, own)
}

/// The kernel carries all system calls of the calling thread out again.
///
/// # Errors
/// Of the operating system.
pub fn let_system_calls_pass() -> Result<(), Errno> {
    dispatch(DISPATCH_OFF, 0..0)
}

fn dispatch(mode: usize, own: Range<usize>) -> Result<(), Errno> {
    let arguments = [SET_SYSTEM_CALL_DISPATCH as usize, mode, own.start, own.end - own.start, 0];
    // SAFETY: the call has no memory argument.
    unsafe { system_call(libc::SYS_prctl, arguments) }.map(|_| ())
}
