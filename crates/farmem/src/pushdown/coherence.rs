//! How coherent the memory of a pushed closure is.

use std::ffi::c_uint;

/// How coherent memory is while a closure runs; `heddle_pushdown.h` says what each mode guarantees. In every mode the closure sees all that
/// was written before the call, and the caller sees afterwards all that the closure has written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Coherence {
    /// Both sides see one memory.
    #[default]
    Coherent,
    /// Partial store order: one writer of a page at a time; reads may be old.
    Pso,
    /// Weak ordering: both sides write the same pages, and different bytes are merged.
    Weak,
    /// As `Weak`, with synchronisation by ranges of bytes.
    Off,
}

impl Coherence {
    /// The flags of the library.
    pub(super) fn flags(self) -> c_uint {
        match self {
            Coherence::Coherent => 0,
            Coherence::Pso => 1,
            Coherence::Weak => 2,
            Coherence::Off => 3,
        }
    }
}
