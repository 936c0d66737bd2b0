//! Copies between shared memory, which other processes read and write at the same time, and private memory.
//!
//! Invariants:
//! * Shared memory is accessed only by atomic instructions and by assembly, never through a Rust reference to bytes. So a
//!   concurrent writer is a race of the hardware and not undefined behaviour of the program.
//! * An aligned word that lies entirely within a copy is read or written by one access, never torn. If a copy covers a word in
//!   part, the covered bytes are read or written one by one, so that the word's other bytes stay untouched.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Bytes of a word.
const WORD: usize = crate::WORD_BYTES;

/// From this many bytes on, vector instructions are worth their set-up.
const BULK_BYTES_MIN: usize = 64;
#[cfg(target_arch = "x86_64")]
const _: () =
    assert!(BULK_BYTES_MIN >= VECTOR_BYTES && ALIGNED_BYTES_MIN >= 2 * VECTOR_BYTES, "vector loops run at least once");

/// Bytes of a vector.
#[cfg(target_arch = "x86_64")]
const VECTOR_BYTES: usize = 32;

/// From this many bytes on, it pays to copy words until the target is aligned to vectors: a store that crosses a cache line
/// costs twice, a load that does so less.
#[cfg(target_arch = "x86_64")]
const ALIGNED_BYTES_MIN: usize = 512;

/// How many of `length` bytes come before the first aligned word at or behind `shared`.
#[inline]
fn head(shared: usize, length: usize) -> usize {
    (shared.wrapping_neg() & (WORD - 1)).min(length)
}

/// Copies `length` bytes from shared memory to private memory.
///
/// # Safety
/// `from` is readable and `to` writable for `length` bytes; no other code uses the bytes at `to` meanwhile.
#[inline]
pub(super) unsafe fn load(from: *const u8, to: *mut u8, length: usize) {
    let head = head(from.addr(), length);
    let words = (length - head) / WORD;
    // SAFETY: both ranges are as the caller promises, and every piece below lies within them; `words` whole words start
    // at an aligned address.
    unsafe {
        load_bytes(from, to, head);
        load_words(from.add(head), to.add(head), words);
        let done = head + words * WORD;
        load_bytes(from.add(done), to.add(done), length - done);
    }
}

/// Copies `length` bytes from private memory to shared memory.
///
/// # Safety
/// `from` is readable and `to` writable for `length` bytes; no other code writes the bytes at `from` meanwhile.
#[inline]
pub(super) unsafe fn store(to: *mut u8, from: *const u8, length: usize) {
    let head = head(to.addr(), length);
    let words = (length - head) / WORD;
    // SAFETY: as in `load`.
    unsafe {
        store_bytes(to, from, head);
        store_words(to.add(head), from.add(head), words);
        let done = head + words * WORD;
        store_bytes(to.add(done), from.add(done), length - done);
    }
}

#[inline]
unsafe fn load_bytes(from: *const u8, to: *mut u8, count: usize) {
    for at in 0..count {
        // SAFETY: within the range that the caller promises; a byte is aligned.
        unsafe { to.add(at).write(AtomicU8::from_ptr(from.add(at).cast_mut()).load(Ordering::Relaxed)) };
    }
}

#[inline]
unsafe fn store_bytes(to: *mut u8, from: *const u8, count: usize) {
    for at in 0..count {
        // SAFETY: within the range that the caller promises; a byte is aligned.
        unsafe { AtomicU8::from_ptr(to.add(at)).store(from.add(at).read(), Ordering::Relaxed) };
    }
}

#[inline]
unsafe fn load_words(from: *const u8, to: *mut u8, words: usize) {
    if words * WORD >= BULK_BYTES_MIN {
        // SAFETY: the caller's promise is the same.
        return unsafe { bulk(from, to, words) };
    }
    for at in 0..words {
        // SAFETY: within the range that the caller promises; `from` is aligned to a word, `to` need not be.
        unsafe {
            let word = AtomicU64::from_ptr(from.cast_mut().cast::<u64>().add(at)).load(Ordering::Relaxed);
            to.cast::<u64>().add(at).write_unaligned(word);
        }
    }
}

#[inline]
unsafe fn store_words(to: *mut u8, from: *const u8, words: usize) {
    if words * WORD >= BULK_BYTES_MIN {
        // SAFETY: the caller's promise is the same.
        return unsafe { bulk(from, to, words) };
    }
    for at in 0..words {
        // SAFETY: within the range that the caller promises; `to` is aligned to a word, `from` need not be.
        unsafe {
            let word = from.cast::<u64>().add(at).read_unaligned();
            AtomicU64::from_ptr(to.cast::<u64>().add(at)).store(word, Ordering::Relaxed);
        }
    }
}

/// Copies whole words, at least [`BULK_BYTES_MIN`] bytes; the shared end is aligned to words.
///
/// Vectors are several words wide. The processor splits an access only where it crosses a cache line, and no aligned word does,
/// so words stay whole. Measured on a Zen 4: vectors are as fast as memcpy or faster at every alignment, while `rep movs` is up
/// to three times slower when the target lies a few bytes behind the source modulo 4096.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn bulk(from: *const u8, to: *mut u8, words: usize) {
    let first = words_to_alignment(to.addr(), words);
    // SAFETY: the caller's promise is the same; `first` is less than `words`. Volatile accesses are neither merged nor split;
    // the shared one of the two ranges is aligned to words.
    let (from, to, words) = unsafe {
        volatile_words(from, to, first);
        (from.add(first * WORD), to.add(first * WORD), words - first)
    };
    // SAFETY: the rest lies within the ranges; the processor has the instructions.
    let done = unsafe {
        if std::arch::is_x86_feature_detected!("avx") {
            avx(from, to, words * WORD)
        } else {
            sse(from, to, words * WORD)
        }
    };
    // SAFETY: the rest lies within the ranges; as above.
    unsafe { volatile_words(from.add(done), to.add(done), words - done / WORD) };
}

/// How many of the words come before the first vector that is aligned at the target, if aligning is possible and worth it.
#[cfg(target_arch = "x86_64")]
#[inline]
fn words_to_alignment(to: usize, words: usize) -> usize {
    if words * WORD < ALIGNED_BYTES_MIN || !to.is_multiple_of(WORD) {
        return 0;
    }
    (to.wrapping_neg() & (VECTOR_BYTES - 1)) / WORD
}

/// Copies all whole vectors of 32 bytes; returns the number of bytes copied.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn avx(from: *const u8, to: *mut u8, length: usize) -> usize {
    let (blocks, vectors) = (length / (4 * VECTOR_BYTES), length % (4 * VECTOR_BYTES) / VECTOR_BYTES);
    // SAFETY: the accesses are within the ranges that the caller promises. Assembly may race with others' accesses.
    unsafe {
        std::arch::asm!(
            "test {blocks}, {blocks}",
            "jz 3f",
            "2:",
            "vmovdqu {a}, [{from}]",
            "vmovdqu {b}, [{from} + 32]",
            "vmovdqu {c}, [{from} + 64]",
            "vmovdqu {d}, [{from} + 96]",
            "vmovdqu [{to}], {a}",
            "vmovdqu [{to} + 32], {b}",
            "vmovdqu [{to} + 64], {c}",
            "vmovdqu [{to} + 96], {d}",
            "sub {from}, -128",
            "sub {to}, -128",
            "dec {blocks}",
            "jnz 2b",
            "3:",
            "test {vectors}, {vectors}",
            "jz 5f",
            "4:",
            "vmovdqu {a}, [{from}]",
            "vmovdqu [{to}], {a}",
            "add {from}, 32",
            "add {to}, 32",
            "dec {vectors}",
            "jnz 4b",
            "5:",
            "vzeroupper",
            blocks = inout(reg) blocks => _,
            vectors = inout(reg) vectors => _,
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            a = out(ymm_reg) _,
            b = out(ymm_reg) _,
            c = out(ymm_reg) _,
            d = out(ymm_reg) _,
            options(nostack)
        );
    }
    length / VECTOR_BYTES * VECTOR_BYTES
}

/// Copies all whole vectors of 16 bytes, of which there is at least one; returns the number of bytes copied.
#[cfg(target_arch = "x86_64")]
unsafe fn sse(from: *const u8, to: *mut u8, length: usize) -> usize {
    // SAFETY: as above.
    unsafe {
        std::arch::asm!(
            "2:",
            "movdqu {a}, [{from}]",
            "movdqu [{to}], {a}",
            "add {from}, 16",
            "add {to}, 16",
            "dec {vectors}",
            "jnz 2b",
            vectors = inout(reg) length / 16 => _,
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            a = out(xmm_reg) _,
            options(nostack)
        );
    }
    length / 16 * 16
}

/// Copies whole words; the shared one of the two ranges is aligned to words.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
unsafe fn bulk(from: *const u8, to: *mut u8, words: usize) {
    // SAFETY: the caller's promise is the same. Volatile accesses are neither merged nor split.
    unsafe { volatile_words(from, to, words) };
}

/// Copies words; the shared one of the two ranges is aligned to words.
#[inline]
unsafe fn volatile_words(from: *const u8, to: *mut u8, words: usize) {
    for at in 0..words {
        // SAFETY: within the ranges that the caller promises.
        unsafe {
            let from = from.cast::<u64>().add(at);
            let word = if from.is_aligned() { from.read_volatile() } else { from.read_unaligned() };
            let to = to.cast::<u64>().add(at);
            if to.is_aligned() { to.write_volatile(word) } else { to.write_unaligned(word) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn vectors_of_either_width_move_the_same_bytes() {
        let source: Vec<u8> = (0..700u32).map(|n| (n * 7 + 3) as u8).collect();
        for length in (32..700).step_by(8) {
            for narrow in [true, false] {
                let mut target = vec![0xEEu8; 700];
                let narrow = narrow || !std::arch::is_x86_feature_detected!("avx");
                let copy: unsafe fn(*const u8, *mut u8, usize) -> usize = if narrow { sse } else { avx };
                // SAFETY: both ranges lie within the vectors, and the processor has the instructions.
                let done = unsafe { copy(source.as_ptr(), target.as_mut_ptr(), length) };
                assert!(done <= length && length - done < 32);
                assert_eq!(target[..done], source[..done]);
                assert!(target[done..].iter().all(|byte| *byte == 0xEE));
            }
        }
    }

    #[test]
    fn copies_move_exactly_their_bytes_at_every_alignment() {
        let source: Vec<u8> = (0..700u32).map(|n| (n * 7 + 3) as u8).collect();
        for length in (0..70).chain([255, 256, 257, 300, 513, 600]) {
            for from in 0..9 {
                for to in (0..9).chain([16, 24, 40]) {
                    let mut target = vec![0xEEu8; 640];
                    // SAFETY: both ranges lie within the vectors.
                    unsafe { load(source.as_ptr().add(from), target.as_mut_ptr().add(to), length) };
                    assert_eq!(target[to..to + length], source[from..from + length]);
                    assert!(target[..to].iter().chain(&target[to + length..]).all(|byte| *byte == 0xEE));
                    let mut target = vec![0xEEu8; 640];
                    // SAFETY: both ranges lie within the vectors.
                    unsafe { store(target.as_mut_ptr().add(to), source.as_ptr().add(from), length) };
                    assert_eq!(target[to..to + length], source[from..from + length]);
                    assert!(target[..to].iter().chain(&target[to + length..]).all(|byte| *byte == 0xEE));
                }
            }
        }
    }
}
