//! The functions of memory that compilers call by themselves.
//!
//! Those of the C library may read its variables, of which another process may have the page. A program that must not use them is
//! linked with [`LINKER_ARGUMENTS`], which put these in their place for its own code. String instructions do the work: processors
//! of the last ten years copy a page as fast with them as with vectors.

#![allow(unsafe_code)]

use std::arch::asm;

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;

/// What a build script passes to the linker.
pub const LINKER_ARGUMENTS: [&str; 5] = [
    "-Wl,--defsym=memcpy=bare_memory_copy",
    "-Wl,--defsym=memmove=bare_memory_move",
    "-Wl,--defsym=memset=bare_memory_set",
    "-Wl,--defsym=memcmp=bare_memory_compare",
    "-Wl,--defsym=bcmp=bare_memory_compare",
];

/// Copies bytes between ranges that do not overlap.
///
/// # Safety
/// That of `memcpy`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bare_memory_copy(target: *mut u8, source: *const u8, bytes: usize) -> *mut u8 {
    // SAFETY: the caller answers for both ranges; the direction flag is clear, as at every call.
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") bytes => _,
            inout("rdi") target => _,
            inout("rsi") source => _,
            options(nostack, preserves_flags),
        );
    }
    target
}

/// Copies bytes between ranges that may overlap.
///
/// # Safety
/// That of `memmove`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bare_memory_move(target: *mut u8, source: *const u8, bytes: usize) -> *mut u8 {
    if (target as usize).wrapping_sub(source as usize) >= bytes {
        // SAFETY: as the caller answers; the target does not begin within the source, so going forwards reads each byte first.
        return unsafe { bare_memory_copy(target, source, bytes) };
    }
    // SAFETY: as the caller answers; going backwards reads each byte before it is overwritten. The direction flag is restored.
    unsafe {
        asm!(
            "std",
            "rep movsb",
            "cld",
            inout("rcx") bytes => _,
            inout("rdi") target.wrapping_add(bytes).wrapping_sub(1) => _,
            inout("rsi") source.wrapping_add(bytes).wrapping_sub(1) => _,
            options(nostack),
        );
    }
    target
}

/// Sets bytes to a value.
///
/// # Safety
/// That of `memset`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bare_memory_set(target: *mut u8, value: i32, bytes: usize) -> *mut u8 {
    // SAFETY: the caller answers for the range.
    unsafe {
        asm!(
            "rep stosb",
            inout("rcx") bytes => _,
            inout("rdi") target => _,
            in("al") value as u8,
            options(nostack, preserves_flags),
        );
    }
    target
}

/// Compares bytes, as unsigned numbers.
///
/// # Safety
/// That of `memcmp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bare_memory_compare(one: *const u8, other: *const u8, bytes: usize) -> i32 {
    let mut at = 0;
    while at < bytes {
        // SAFETY: the caller answers for both ranges. Volatile, so that the compiler does not call `memcmp` for this loop.
        let (left, right) = unsafe { (one.add(at).read_volatile(), other.add(at).read_volatile()) };
        if left != right {
            return i32::from(left) - i32::from(right);
        }
        at = at.wrapping_add(1);
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_copied_moved_set_and_compared() {
        let mut bytes: Vec<u8> = (0..200).collect();
        // SAFETY: all ranges lie in the vectors.
        unsafe {
            bare_memory_move(bytes.as_mut_ptr().add(10), bytes.as_ptr(), 100);
            assert!((0..100).all(|at| bytes[10 + at] == at as u8) && bytes[9] == 9 && bytes[110] == 110);
            bare_memory_move(bytes.as_mut_ptr(), bytes.as_ptr().add(10), 100);
            assert!((0..100).all(|at| bytes[at] == at as u8));
            let mut other = vec![7; 200];
            bare_memory_copy(other.as_mut_ptr(), bytes.as_ptr(), 50);
            assert_eq!((&other[..50], other[50]), (&bytes[..50], 7));
            assert_eq!(bare_memory_compare(other.as_ptr(), bytes.as_ptr(), 50), 0);
            assert!(bare_memory_compare(other.as_ptr(), bytes.as_ptr(), 51) < 0);
            bare_memory_set(other.as_mut_ptr().add(1), 3, 4);
            assert_eq!(other[..6], [0, 3, 3, 3, 3, 5]);
        }
    }
}
