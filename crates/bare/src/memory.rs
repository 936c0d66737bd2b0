//! The functions of memory that compilers call by themselves.
//!
//! Those of the C library may read its variables, of which another process may have the page. A program that must not use them is
//! linked with [`LINKER_ARGUMENTS`], which put these in their place for its own code. For long ranges, string instructions do the work:
//! processors of the last ten years copy a page as fast with them as with vectors. They take long to begin, so short ranges, and those
//! that have to be copied backwards, go through registers. No loop here may look like a copy to the compiler, which would call these
//! functions for it.

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

/// Ranges up to this are copied through registers.
const SHORT_BYTES: usize = 128;

/// Copies up to [`SHORT_BYTES`] bytes; the ranges may overlap, since everything is read before anything is written.
///
/// # Safety
/// That of `memmove`.
#[inline(always)]
unsafe fn move_short(target: *mut u8, source: *const u8, bytes: usize) {
    // The first bytes and the last ones overlap when there are fewer than twice as many.
    macro_rules! ends {
        ($unit:ty, $count:literal) => {{
            const BYTES: usize = size_of::<$unit>();
            let last = bytes.wrapping_sub($count * BYTES);
            // SAFETY: the bytes lie in the range, for which the caller answers.
            unsafe {
                let (front, back) = (source.cast::<[$unit; $count]>(), source.add(last).cast::<[$unit; $count]>());
                let (front, back) = (front.read_unaligned(), back.read_unaligned());
                target.cast::<[$unit; $count]>().write_unaligned(front);
                target.add(last).cast::<[$unit; $count]>().write_unaligned(back);
            }
        }};
    }
    match bytes {
        65.. => ends!(u128, 4),
        33..=64 => ends!(u128, 2),
        16..=32 => ends!(u128, 1),
        8..=15 => ends!(u64, 1),
        4..=7 => ends!(u32, 1),
        2..=3 => ends!(u16, 1),
        1 => ends!(u8, 1),
        0 => {}
    }
}

/// Copies bytes between ranges that do not overlap.
///
/// # Safety
/// That of `memcpy`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bare_memory_copy(target: *mut u8, source: *const u8, bytes: usize) -> *mut u8 {
    if bytes <= SHORT_BYTES {
        // SAFETY: as the caller answers for.
        unsafe { move_short(target, source, bytes) };
        return target;
    }
    // SAFETY: as the caller answers for.
    unsafe { copy_forwards(target, source, bytes) };
    target
}

/// # Safety
/// That of `memmove`; the target does not begin within the source.
unsafe fn copy_forwards(target: *mut u8, source: *const u8, bytes: usize) {
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
}

/// Copies bytes between ranges that may overlap.
///
/// # Safety
/// That of `memmove`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bare_memory_move(target: *mut u8, source: *const u8, bytes: usize) -> *mut u8 {
    if (target as usize).wrapping_sub(source as usize) >= bytes && bytes > SHORT_BYTES {
        // SAFETY: as the caller answers; the target does not begin within the source, so going forwards reads each byte first.
        unsafe { copy_forwards(target, source, bytes) };
        return target;
    }
    let mut rest = bytes;
    // Backwards, so that each byte is read before it is overwritten.
    while rest > SHORT_BYTES {
        rest = rest.wrapping_sub(SHORT_BYTES);
        // SAFETY: the part lies in both ranges, for which the caller answers.
        unsafe { move_short(target.add(rest), source.add(rest), SHORT_BYTES) };
    }
    // SAFETY: as above.
    unsafe { move_short(target, source, rest) };
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
        if (16..=64).contains(&bytes) {
            let unit = u128::from_ne_bytes([value as u8; 16]);
            // The four parts overlap when there are fewer than 64 bytes.
            let (second, last) = ((bytes / 2).min(16), bytes.wrapping_sub(16));
            for at in [0, second.min(last), last.wrapping_sub(second.min(last)), last] {
                target.add(at).cast::<u128>().write_unaligned(unit);
            }
            return target;
        }
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
    while bytes.wrapping_sub(at) >= 8 {
        // SAFETY: the caller answers for both ranges.
        let (left, right) =
            unsafe { (one.add(at).cast::<u64>().read_unaligned(), other.add(at).cast::<u64>().read_unaligned()) };
        if left != right {
            return if left.swap_bytes() < right.swap_bytes() { -1 } else { 1 };
        }
        at = at.wrapping_add(8);
    }
    while at < bytes {
        // SAFETY: as above. Volatile, so that the compiler does not call `memcmp` for this loop.
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
    fn every_length_and_overlap_is_as_expected() {
        let pattern: Vec<u8> = (0..1000_u32).map(|n| (n * 7 % 251) as u8).collect();
        for bytes in (0..=140).chain([255, 256, 257, 300]) {
            for (from, to) in
                [(350, 350), (350, 351), (351, 350), (350, 358), (358, 350), (350, 480), (0, 650), (650, 0)]
            {
                let mut expected = pattern.clone();
                expected.copy_within(from..from + bytes, to);
                let mut moved = pattern.clone();
                // SAFETY: all ranges lie in the vector.
                unsafe { bare_memory_move(moved.as_mut_ptr().add(to), moved.as_ptr().add(from), bytes) };
                assert!(moved == expected, "moving {bytes} bytes from {from} to {to}");
            }
            let mut copied = pattern.clone();
            // SAFETY: the ranges lie in the vectors.
            unsafe { bare_memory_copy(copied.as_mut_ptr().add(5), pattern.as_ptr().add(600), bytes) };
            assert_eq!((&copied[..5], &copied[5..5 + bytes]), (&pattern[..5], &pattern[600..600 + bytes]));
            assert_eq!(copied[5 + bytes..], pattern[5 + bytes..]);
            // SAFETY: as above.
            unsafe { bare_memory_set(copied.as_mut_ptr().add(5), 0xee, bytes) };
            assert!(copied[5..5 + bytes].iter().all(|byte| *byte == 0xee));
            assert_eq!((&copied[..5], &copied[5 + bytes..]), (&pattern[..5], &pattern[5 + bytes..]));
            for at in 0..bytes {
                let mut other = pattern.clone();
                other[at] = other[at].wrapping_add(1);
                let order = pattern[..bytes].cmp(&other[..bytes]) as i32;
                // SAFETY: as above.
                let compared = unsafe { bare_memory_compare(pattern.as_ptr(), other.as_ptr(), bytes) };
                assert_eq!(compared.signum(), order, "{bytes} bytes that differ at {at}");
            }
            // SAFETY: as above.
            assert_eq!(unsafe { bare_memory_compare(pattern.as_ptr(), pattern.clone().as_ptr(), bytes) }, 0);
        }
    }

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
