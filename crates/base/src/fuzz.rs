//! Fuzzing of decoders: one harness per codec, run as a fuzz target and over its corpus in every test run.
//!
//! 1. Each crate that decodes bytes from outside lists a [`FuzzTarget`] for each of its decoders in its module `fuzz`.
//! 2. A target has seeds, which the crate's own encoders produce, and a harness: a function that takes any bytes and
//!    panics if the decoder breaks a guarantee. A decoder guarantees that it never panics. It also guarantees that each
//!    value has only one encoding or, where a format allows several, that encoding and decoding a value again gives the
//!    same value.
//! 3. A harness decodes inside [`within`], which limits the decoder's memory to a multiple of its input.
//! 4. The package `heddle-fuzz` collects the targets, counts allocations, and runs them; see its documentation.
//!
//! Nothing here runs in a node. Without the counting allocator [`within`] just calls the harness.

use std::cell::Cell;

/// One decoder under test.
#[derive(Clone, Copy, Debug)]
pub struct FuzzTarget {
    /// Its name: the crate, a dash, the decoded thing.
    pub name: &'static str,
    /// The structure of its inputs, for mutations that keep them well-formed.
    pub shape: InputShape,
    /// Decodes the bytes and checks the result.
    pub run: fn(&[u8]),
    /// Inputs that decode, from which fuzzing starts.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// The structure of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputShape {
    /// Fields at fixed offsets, and lengths before the data they count.
    Bytes,
    /// Protobuf: fields in fields.
    Protobuf,
    /// ASN.1 in DER: tags and lengths in tags and lengths.
    Der,
}

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

/// Records that this thread allocated memory; called by the counting allocator.
pub fn record_allocated(bytes: usize) {
    // Nothing is measured once the thread's locals are gone.
    let _ = HELD.try_with(|held| {
        let now = held.get().wrapping_add(bytes);
        held.set(now);
        // Memory allocated on another thread and freed here makes the count negative, which is not a peak.
        let _ = PEAK.try_with(|peak| peak.set(if now as isize > peak.get() as isize { now } else { peak.get() }));
    });
}

/// Records that this thread freed memory; called by the counting allocator.
pub fn record_freed(bytes: usize) {
    let _ = HELD.try_with(|held| held.set(held.get().wrapping_sub(bytes)));
}

/// Bytes that a decoder may take in addition to the multiple of its input: enough for the shortest input.
pub const OVERHEAD_BYTES: usize = 64 << 10;

/// The result of `f`, and the most memory that this thread held above what it held before.
pub fn peak_of<T>(f: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    let outer = PEAK.replace(before);
    let value = f();
    let peak = PEAK.get();
    PEAK.set(if outer as isize > peak as isize { outer } else { peak });
    (value, peak.wrapping_sub(before))
}

/// Decodes `input_bytes` bytes with `decode`, and checks that it took at most `times` as much memory plus [`OVERHEAD_BYTES`].
///
/// # Panics
/// If it took more.
pub fn within<T>(times: usize, input_bytes: usize, decode: impl FnOnce() -> T) -> T {
    let (value, peak) = peak_of(decode);
    let most = times * input_bytes + OVERHEAD_BYTES;
    assert!(peak <= most, "decoding {input_bytes} bytes took {peak} bytes of memory, above {most}");
    value
}

/// Decodes bytes of an unauthenticated sender: at most twice their size.
pub fn untrusted<T>(input: &[u8], decode: impl FnOnce() -> T) -> T {
    within(2, input.len(), decode)
}

/// Decodes bytes of an authenticated sender, or bytes read from our own disk: at most four times their size.
pub fn authenticated<T>(input: &[u8], decode: impl FnOnce() -> T) -> T {
    within(4, input.len(), decode)
}

/// The input with a correct checksum, which is in the first eight bytes and covers the ninth up to `end`: an attacker that
/// can compute checksums reaches the code after the check.
pub fn sealed(input: &[u8], end: usize, checksum: impl FnOnce(&[u8]) -> u64) -> Vec<u8> {
    let mut bytes = input.to_vec();
    if bytes.len() >= 8 {
        let end = end.clamp(8, bytes.len());
        let sum = checksum(&bytes[8..end]);
        bytes[..8].copy_from_slice(&sum.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_counts_what_was_held_at_once_and_nests() {
        record_allocated(100);
        let ((_, inner), outer) = peak_of(|| {
            record_allocated(50);
            record_freed(50);
            peak_of(|| {
                record_allocated(20);
                record_freed(20);
            })
        });
        assert_eq!((inner, outer), (20, 50));
        assert_eq!(peak_of(|| record_freed(100)).1, 0);
    }

    #[test]
    #[should_panic(expected = "above")]
    fn a_decoder_that_takes_too_much_is_caught() {
        untrusted(b"four", || record_allocated(8 + OVERHEAD_BYTES + 1));
    }
}
