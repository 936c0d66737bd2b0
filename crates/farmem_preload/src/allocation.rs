//! `malloc` and its relatives, by mimalloc. It takes its memory from this library's `mmap`, so from the far heap.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr;

use bare::system_call::{Errno, set_errno};
use libmimalloc_sys as mimalloc;

use crate::startup;

/// Sets `errno` if there is no memory.
fn checked(memory: *mut c_void) -> *mut c_void {
    if memory.is_null() {
        set_errno(Errno(libc::ENOMEM));
    }
    memory
}

/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc(bytes: usize) -> *mut c_void {
    startup::ensure();
    // SAFETY: any size is allowed.
    checked(unsafe { mimalloc::mi_malloc(bytes) })
}

/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn calloc(count: usize, bytes: usize) -> *mut c_void {
    startup::ensure();
    // SAFETY: any size is allowed.
    checked(unsafe { mimalloc::mi_calloc(count, bytes) })
}

/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(memory: *mut c_void, bytes: usize) -> *mut c_void {
    startup::ensure();
    // SAFETY: the caller has the memory from here.
    checked(unsafe { mimalloc::mi_realloc(memory, bytes) })
}

/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn reallocarray(memory: *mut c_void, count: usize, bytes: usize) -> *mut c_void {
    match count.checked_mul(bytes) {
        // SAFETY: the caller promises it.
        Some(bytes) => unsafe { realloc(memory, bytes) },
        None => checked(ptr::null_mut()),
    }
}

/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn free(memory: *mut c_void) {
    // SAFETY: the caller has the memory from here.
    unsafe { mimalloc::mi_free(memory) };
}

/// Programs that were linked against an old C library use this name.
///
/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cfree(memory: *mut c_void) {
    // SAFETY: the caller promises it.
    unsafe { free(memory) };
}

/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(place: *mut *mut c_void, alignment: usize, bytes: usize) -> c_int {
    startup::ensure();
    // SAFETY: the caller says where the address goes.
    unsafe { mimalloc::mi_posix_memalign(place, alignment, bytes) }
}

/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn memalign(alignment: usize, bytes: usize) -> *mut c_void {
    startup::ensure();
    // Any alignment is allowed, and is rounded up, as in the C library.
    let Some(alignment) = alignment.checked_next_power_of_two() else {
        set_errno(Errno(libc::EINVAL));
        return ptr::null_mut();
    };
    // SAFETY: any size is allowed.
    checked(unsafe { mimalloc::mi_malloc_aligned(bytes, alignment) })
}

/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn aligned_alloc(alignment: usize, bytes: usize) -> *mut c_void {
    // SAFETY: the caller promises it.
    unsafe { memalign(alignment, bytes) }
}

/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn valloc(bytes: usize) -> *mut c_void {
    // SAFETY: the caller promises it.
    unsafe { memalign(farmem_control::PAGE_BYTES, bytes) }
}

/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn pvalloc(bytes: usize) -> *mut c_void {
    match bytes.checked_next_multiple_of(farmem_control::PAGE_BYTES) {
        // SAFETY: the caller promises it.
        Some(bytes) => unsafe { valloc(bytes) },
        None => checked(ptr::null_mut()),
    }
}

/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc_usable_size(memory: *mut c_void) -> usize {
    // SAFETY: the caller has the memory from here.
    unsafe { mimalloc::mi_usable_size(memory) }
}
