//! Memory that is not far.
//!
//! Usually the kernel is asked directly. In a program whose heap's home is an executor, the library of pushed functions has functions of the
//! same names, by which the executor learns of the changes; this library comes before it, so it passes the calls on.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::mem;
use std::sync::atomic::{AtomicPtr, Ordering};

use bare::system_call::{Errno, Outcome, system_call};

type Map = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, i64) -> *mut c_void;
type Change = unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int;
type Unmap = unsafe extern "C" fn(*mut c_void, usize) -> c_int;

static MAP: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static UNMAP: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static ADVISE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static PROTECT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Passes calls on from now on.
pub(crate) fn pass_on() {
    let next = |name: &CStr| {
        // SAFETY: the name is a string of C.
        unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
    };
    for (place, name) in [(&MAP, c"mmap"), (&UNMAP, c"munmap"), (&ADVISE, c"madvise"), (&PROTECT, c"mprotect")] {
        place.store(next(name), Ordering::Release);
    }
}

/// What a call that has returned -1 says.
fn outcome(value: c_int) -> Outcome {
    if value == -1 { Err(errno()) } else { Ok(0) }
}

fn errno() -> Errno {
    // SAFETY: the number is the thread's own.
    Errno(unsafe { *libc::__errno_location() })
}

/// `mmap(2)`.
///
/// # Errors
/// Of the operating system.
///
/// # Safety
/// That of the system call.
pub(crate) unsafe fn map(
    hint: usize,
    length: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: i64,
) -> Outcome {
    let next = MAP.load(Ordering::Acquire);
    if next.is_null() {
        let arguments = [hint, length, protection as usize, flags as usize, file as usize, offset as usize];
        // SAFETY: as the caller answers for.
        return unsafe { system_call(libc::SYS_mmap, arguments) };
    }
    // SAFETY: the symbol is a function of this type; as the caller answers for.
    let mapped = unsafe {
        let next = mem::transmute::<*mut c_void, Map>(next);
        next(hint as *mut c_void, length, protection, flags, file, offset)
    };
    if mapped == libc::MAP_FAILED { Err(errno()) } else { Ok(mapped as usize) }
}

/// `munmap(2)`.
///
/// # Errors
/// Of the operating system.
///
/// # Safety
/// That of the system call.
pub(crate) unsafe fn unmap(address: usize, bytes: usize) -> Outcome {
    let next = UNMAP.load(Ordering::Acquire);
    // SAFETY: as the caller answers for; the symbol is a function of this type.
    unsafe {
        match next.is_null() {
            true => system_call(libc::SYS_munmap, [address, bytes]),
            false => outcome(mem::transmute::<*mut c_void, Unmap>(next)(address as *mut c_void, bytes)),
        }
    }
}

/// `madvise(2)`.
///
/// # Errors
/// Of the operating system.
///
/// # Safety
/// That of the system call.
pub(crate) unsafe fn advise(address: usize, bytes: usize, advice: c_int) -> Outcome {
    // SAFETY: as the caller answers for.
    unsafe { change(&ADVISE, libc::SYS_madvise, address, bytes, advice) }
}

/// `mprotect(2)`.
///
/// # Errors
/// Of the operating system.
///
/// # Safety
/// That of the system call.
pub(crate) unsafe fn protect(address: usize, bytes: usize, protection: c_int) -> Outcome {
    // SAFETY: as the caller answers for.
    unsafe { change(&PROTECT, libc::SYS_mprotect, address, bytes, protection) }
}

/// # Safety
/// That of the system call, which is that of the symbol.
unsafe fn change(next: &AtomicPtr<c_void>, number: libc::c_long, address: usize, bytes: usize, how: c_int) -> Outcome {
    let next = next.load(Ordering::Acquire);
    // SAFETY: as the caller answers for; the symbol is a function of this type.
    unsafe {
        match next.is_null() {
            true => system_call(number, [address, bytes, how as usize]),
            false => outcome(mem::transmute::<*mut c_void, Change>(next)(address as *mut c_void, bytes, how)),
        }
    }
}
