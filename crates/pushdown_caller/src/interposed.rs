//! Functions of the C library of which the executor must learn.

#![allow(unsafe_code)]

use std::mem;

use bare::system_call::{Outcome, set_errno, system_call};
use pushdown::EXIT_CALL;

use crate::call::is_in_call;
use crate::changes;
use crate::stacks::on_private_stack;
use crate::system_calls::replaced;
use crate::variables;
use crate::wait::{CALLER, is_open};

/// `mprotect(2)`. The kernel does not report it.
///
/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mprotect(address: *mut libc::c_void, bytes: usize, protection: i32) -> i32 {
    let start = address as u64;
    // SAFETY: as the caller answers for.
    let outcome = unsafe {
        // The executor sees the system calls of functions.
        match is_in_call() || !is_open() {
            true => system_call(libc::SYS_mprotect, [address as usize, bytes, protection as usize]),
            false => on_private_stack(move |_, _| changes::protect(start, bytes as u64, protection as u32, true)),
        }
    };
    status(outcome)
}

/// `madvise(2)`. The kernel reports when pages are about to be dropped, and not when they are.
///
/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(address: *mut libc::c_void, bytes: usize, advice: i32) -> i32 {
    let start = address as u64;
    // SAFETY: as the caller answers for.
    let outcome = unsafe {
        match is_in_call() || !is_open() {
            true => system_call(libc::SYS_madvise, [address as usize, bytes, advice as usize]),
            false => on_private_stack(move |_, _| changes::advise(start, bytes as u64, advice)),
        }
    };
    status(outcome)
}

/// What the C library's functions return.
fn status(outcome: Outcome) -> i32 {
    match outcome {
        Ok(_) => 0,
        Err(error) => {
            set_errno(error);
            -1
        }
    }
}

/// `mmap(2)`. A private mapping of a file becomes anonymous, since the kernel reports faults of no other private memory.
///
/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    address: *mut libc::c_void,
    bytes: usize,
    protection: i32,
    flags: i32,
    file: i32,
    offset: libc::off_t,
) -> *mut libc::c_void {
    let arguments =
        [address as usize, bytes, protection as usize, flags as usize, file as isize as usize, offset as usize];
    // SAFETY: as the caller answers for.
    match unsafe { system_call(libc::SYS_mmap, arguments) } {
        Ok(mapped) => {
            if !is_in_call() && is_open() {
                on_private_stack(move |_, _| replaced(mapped as u64, bytes as u64));
                variables::mapped(mapped as u64, arguments.map(|argument| argument as u64));
            }
            mapped as *mut libc::c_void
        }
        Err(error) => {
            set_errno(error);
            libc::MAP_FAILED
        }
    }
}

/// As [`mmap`].
///
/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    address: *mut libc::c_void,
    bytes: usize,
    protection: i32,
    flags: i32,
    file: i32,
    offset: libc::off64_t,
) -> *mut libc::c_void {
    // SAFETY: as the caller answers for.
    unsafe { mmap(address, bytes, protection, flags, file, offset) }
}

/// `munmap(2)`. The kernel does not report it of text and constants.
///
/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(address: *mut libc::c_void, bytes: usize) -> i32 {
    // SAFETY: as the caller answers for.
    match unsafe { system_call(libc::SYS_munmap, [address as usize, bytes]) } {
        Ok(_) => {
            if !is_in_call() && is_open() {
                let start = address as u64;
                on_private_stack(move |_, _| replaced(start, bytes as u64));
            }
            0
        }
        Err(error) => status(Err(error)),
    }
}

/// `dlclose(3)`. What it unmaps is text and constants.
///
/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlclose(library: *mut libc::c_void) -> i32 {
    // SAFETY: the C library has the function; the caller answers for the handle.
    let outcome = unsafe {
        let next = libc::dlsym(libc::RTLD_NEXT, c"dlclose".as_ptr());
        if next.is_null() {
            return -1;
        }
        mem::transmute::<*mut libc::c_void, unsafe extern "C" fn(*mut libc::c_void) -> i32>(next)(library)
    };
    if !is_in_call() && is_open() {
        on_private_stack(|_, _| {
            if let Some(caller) = CALLER.acquire().as_mut() {
                caller.unloaded();
            }
        });
    }
    outcome
}

/// `exit(3)`. In a function it ends the call, and the thread that has made it exits: what is done at the exit needs the whole process.
#[unsafe(no_mangle)]
pub extern "C" fn exit(status: i32) -> ! {
    if is_in_call() {
        loop {
            // SAFETY: no kernel has this call; the executor ends the function.
            let _ = unsafe { system_call(EXIT_CALL as libc::c_long, [status as usize]) };
        }
    }
    // SAFETY: the C library has the function, or has lost it.
    unsafe {
        let next = libc::dlsym(libc::RTLD_NEXT, c"exit".as_ptr());
        if next.is_null() {
            libc::_exit(status)
        }
        mem::transmute::<*mut libc::c_void, extern "C" fn(i32) -> !>(next)(status)
    }
}
