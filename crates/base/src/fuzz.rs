//! What decoders are attacked with: one harness a codec, run as a fuzz target and over its corpus in every test run.
//!
//! 1. Each crate that decodes bytes from outside lists a [`Target`] for each of its decoders in its module `fuzz`.
//! 2. A target has seeds, which the crate's own encoders make, and a harness: a function that takes any bytes and panics
//!    where the decoder breaks a promise. Beside not panicking, a decoder promises that what it accepts has one encoding,
//!    or decodes to the same again.
//! 3. A harness decodes inside [`within`], which holds the decoder to its memory: it may take a multiple of its input.
//! 4. The package `heddle-fuzz` collects the targets, counts allocations, and runs them; see its documentation.
//!
//! Nothing here runs in a node. Without the counting allocator [`within`] is a plain call.

use std::cell::Cell;

/// One decoder under attack.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name: the crate, a dash, what is decoded.
    pub name: &'static str,
    /// How its inputs are built, for mutations that keep them well-formed.
    pub shape: Shape,
    /// Decodes the bytes and checks what came of it.
    pub run: fn(&[u8]),
    /// Inputs that decode, with which a search begins.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// How an input is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Fields at fixed places, and lengths before what they count.
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

/// Notes that this thread took memory; called by the counting allocator.
pub fn note_taken(bytes: usize) {
    // Of a thread whose locals are gone, nothing is measured any more.
    let _ = HELD.try_with(|held| {
        let now = held.get().wrapping_add(bytes);
        held.set(now);
        // What was taken elsewhere and freed here leaves the count below zero, which is no peak.
        let _ = PEAK.try_with(|peak| peak.set(if now as isize > peak.get() as isize { now } else { peak.get() }));
    });
}

/// Notes that this thread gave memory back; called by the counting allocator.
pub fn note_freed(bytes: usize) {
    let _ = HELD.try_with(|held| held.set(held.get().wrapping_sub(bytes)));
}

/// Bytes that a decoder may take beside the multiple of its input: what it needs for the shortest one.
pub const ROOM_BYTES: usize = 64 << 10;

/// What `f` returns, and the most memory that this thread held above what it held before.
pub fn peak_of<T>(f: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    let outer = PEAK.replace(before);
    let value = f();
    let peak = PEAK.get();
    PEAK.set(if outer as isize > peak as isize { outer } else { peak });
    (value, peak.wrapping_sub(before))
}

/// Decodes `input_bytes` bytes with `decode`, and checks that it took at most `times` as many and [`ROOM_BYTES`] of memory.
///
/// # Panics
/// If it took more.
pub fn within<T>(times: usize, input_bytes: usize, decode: impl FnOnce() -> T) -> T {
    let (value, peak) = peak_of(decode);
    let most = times * input_bytes + ROOM_BYTES;
    assert!(peak <= most, "decoding {input_bytes} bytes took {peak} bytes of memory, above {most}");
    value
}

/// Decodes what nobody has vouched for yet: at most twice its size.
pub fn untrusted<T>(input: &[u8], decode: impl FnOnce() -> T) -> T {
    within(2, input.len(), decode)
}

/// Decodes what a party with credentials sent, or what was read from a disk of ours: at most four times its size.
pub fn authenticated<T>(input: &[u8], decode: impl FnOnce() -> T) -> T {
    within(4, input.len(), decode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_counts_what_was_held_at_once_and_nests() {
        note_taken(100);
        let ((_, inner), outer) = peak_of(|| {
            note_taken(50);
            note_freed(50);
            peak_of(|| {
                note_taken(20);
                note_freed(20);
            })
        });
        assert_eq!((inner, outer), (20, 50));
        assert_eq!(peak_of(|| note_freed(100)).1, 0);
    }

    #[test]
    #[should_panic(expected = "above")]
    fn a_decoder_that_takes_too_much_is_caught() {
        untrusted(b"four", || note_taken(8 + ROOM_BYTES + 1));
    }
}
