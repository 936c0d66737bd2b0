//! The start of a thread that the C library does not know.
//!
//! It shares the memory and the signal handlers of the process, has a stack and a table of descriptors of its own, and runs on
//! the thread block of the thread that starts it. So it must not use anything there: no thread-local variable, no `errno`.

#![allow(unsafe_code)]

use std::arch::asm;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::PAGE_BYTES;

use crate::system_call::{Errno, Outcome, SignalsBlocked, map_anonymous, map_anonymous_at, system_call};

/// Bytes of a stack.
pub const STACK_BYTES: usize = 128 << 10;
const STACK_ALIGNMENT: usize = 16;

const FLAGS: i32 = libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_SIGHAND | libc::CLONE_THREAD | libc::CLONE_SYSVSEM;

/// The lower end of the stack; 0 as long as there is none. The child of a fork uses its copy.
static STACK: AtomicUsize = AtomicUsize::new(0);

/// Starts the one thread of this kind that a process has. All signals are blocked in it.
///
/// # Errors
/// Of the operating system.
pub fn start<T: Send + 'static>(run: extern "C" fn(&mut T) -> !, value: T) -> Result<(), Errno> {
    let stack = match STACK.load(Ordering::Relaxed) {
        0 => map_stack()?,
        stack => stack,
    };
    STACK.store(stack, Ordering::Relaxed);
    // SAFETY: the stack is the one of this kind of thread, of which the process has only this one.
    unsafe { start_on(stack, run, value) }
}

/// Starts one of several threads of this kind. Its stack is never unmapped.
///
/// # Errors
/// Of the operating system.
pub fn start_another<T: Send + 'static>(run: extern "C" fn(&mut T) -> !, value: T) -> Result<(), Errno> {
    let stack = map_stack()?;
    // SAFETY: the stack was just mapped for this thread.
    unsafe { start_on(stack, run, value) }
}

/// As [`start_another`], with the stack at an address where nothing is mapped.
///
/// # Errors
/// Of the operating system.
pub fn start_at<T: Send + 'static>(stack: usize, run: extern "C" fn(&mut T) -> !, value: T) -> Result<(), Errno> {
    map_anonymous_at(stack, STACK_BYTES)?;
    // SAFETY: the stack was just mapped for this thread.
    unsafe { start_on(stack, run, value) }
}

/// # Safety
/// The stack, from its lower end, is one of [`map_stack`] that no thread uses.
unsafe fn start_on<T: Send + 'static>(stack: usize, run: extern "C" fn(&mut T) -> !, value: T) -> Result<(), Errno> {
    let place = (stack + STACK_BYTES - size_of::<T>()) / align_of::<T>() * align_of::<T>();
    // SAFETY: the place is on the stack, which no thread uses yet, and is aligned.
    unsafe { (place as *mut T).write(value) };
    let _blocked = SignalsBlocked::new();
    // SAFETY: the stack is the thread's alone, below the value; `run` takes a pointer to such a value, and never returns.
    unsafe { clone(place / STACK_ALIGNMENT * STACK_ALIGNMENT, run as *const () as usize, place) }.map(|_| ())
}

/// Maps a stack of 128 KiB, whose last page cannot be accessed. Returns its lower end.
///
/// # Errors
/// Of the operating system.
pub fn map_stack() -> Outcome {
    let stack = map_anonymous(STACK_BYTES)?;
    // SAFETY: the page belongs to the mapping that was just made.
    unsafe { system_call(libc::SYS_mprotect, [stack, PAGE_BYTES, libc::PROT_NONE as usize]) }?;
    Ok(stack)
}

/// # Safety
/// `stack` is the aligned upper end of memory that nobody else uses, and `run` the address of a function of C that takes
/// `argument` and never returns.
unsafe fn clone(stack: usize, run: usize, argument: usize) -> Outcome {
    let result: isize;
    // SAFETY: the new thread leaves this function with the call, so it never sees the frames of this thread; the registers of this
    // thread are as after any system call.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone as isize => result,
            in("rdi") FLAGS as usize,
            in("rsi") stack,
            in("rdx") 0,
            in("r10") 0,
            in("r8") 0,
            in("r12") argument,
            in("r13") run,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    if result < 0 { Err(Errno(-result as i32)) } else { Ok(result as usize) }
}
