//! `malloc` and its relatives, by mimalloc. It takes its memory from this library's `mmap`, so from the far heap. If that cannot be
//! opened yet, blocks lie in [`early`] memory.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr;

use bare::system_call::{Errno, set_errno};
use libmimalloc_sys as mimalloc;

use crate::{early, startup};

/// What the C library aligns blocks to.
const ALIGNMENT: usize = 16;

/// Sets `errno` if there is no memory.
fn checked(memory: *mut c_void) -> *mut c_void {
    if memory.is_null() {
        set_errno(Errno(libc::ENOMEM));
    }
    memory
}

/// An early block of zeros.
fn early(bytes: usize, alignment: usize) -> *mut c_void {
    checked(early::allocate(bytes, alignment).map_or(ptr::null_mut(), ptr::with_exposed_provenance_mut))
}

/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc(bytes: usize) -> *mut c_void {
    if !startup::ensure() {
        return early(bytes, ALIGNMENT);
    }
    // SAFETY: any size is allowed.
    checked(unsafe { mimalloc::mi_malloc(bytes) })
}

/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn calloc(count: usize, bytes: usize) -> *mut c_void {
    if !startup::ensure() {
        return count.checked_mul(bytes).map_or_else(|| checked(ptr::null_mut()), |bytes| early(bytes, ALIGNMENT));
    }
    // SAFETY: any size is allowed.
    checked(unsafe { mimalloc::mi_calloc(count, bytes) })
}

/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(memory: *mut c_void, bytes: usize) -> *mut c_void {
    if !startup::ensure() || early::owns(memory as usize) {
        // SAFETY: the caller has the memory from here.
        return unsafe { grow_early(memory, bytes) };
    }
    // SAFETY: the caller has the memory from here.
    checked(unsafe { mimalloc::mi_realloc(memory, bytes) })
}

/// `realloc` of an early block, or of none while there is no heap.
///
/// # Safety
/// That of `realloc`.
#[cold]
unsafe fn grow_early(memory: *mut c_void, bytes: usize) -> *mut c_void {
    // SAFETY: as the caller answers for. The blocks are two, and as long as is copied.
    unsafe {
        let new = malloc(bytes);
        if !new.is_null() && !memory.is_null() {
            ptr::copy_nonoverlapping(memory.cast::<u8>(), new.cast(), bytes.min(early::bytes_of(memory as usize)));
        }
        new
    }
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
    if early::owns(memory as usize) {
        return;
    }
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
    if !startup::ensure() {
        if !alignment.is_power_of_two() || !alignment.is_multiple_of(size_of::<usize>()) {
            return libc::EINVAL;
        }
        let Some(block) = early::allocate(bytes, alignment) else { return libc::ENOMEM };
        // SAFETY: the caller says where the address goes.
        unsafe { place.write(ptr::with_exposed_provenance_mut(block)) };
        return 0;
    }
    // SAFETY: the caller says where the address goes.
    unsafe { mimalloc::mi_posix_memalign(place, alignment, bytes) }
}

/// # Safety
/// That of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn memalign(alignment: usize, bytes: usize) -> *mut c_void {
    let has_heap = startup::ensure();
    // Any alignment is allowed, and is rounded up, as in the C library.
    let Some(alignment) = alignment.checked_next_power_of_two() else {
        set_errno(Errno(libc::EINVAL));
        return ptr::null_mut();
    };
    if !has_heap {
        return early(bytes, alignment);
    }
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
    if early::owns(memory as usize) {
        // SAFETY: the block was allocated there.
        return unsafe { early::bytes_of(memory as usize) };
    }
    // SAFETY: the caller has the memory from here.
    unsafe { mimalloc::mi_usable_size(memory) }
}
