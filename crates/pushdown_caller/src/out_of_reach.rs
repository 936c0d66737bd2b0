//! Why functions could not have memory, for people.

#![allow(unsafe_code)]

use std::cell::{Cell, UnsafeCell};
use std::ffi::{CStr, c_char};
use std::fmt::Write as _;

use crate::refused_memory::OutOfReach;
use crate::stacks::on_private_stack;
use crate::wait::{CALLER, is_open};

/// Bytes of the longest text.
const TEXT_BYTES: usize = 512;

thread_local! {
    /// What the function of this thread's last call that a signal ended could not have, and why.
    static LAST: Cell<Option<(u64, OutOfReach)>> = const { Cell::new(None) };
    /// The text about it.
    static TEXT: UnsafeCell<Text> = const { UnsafeCell::new(Text { bytes: [0; TEXT_BYTES], length: 0 }) };
}

/// A signal has ended the function of this thread's call, because of an access to this address.
pub(crate) fn note_signalled(address: u64) {
    let why = || on_private_stack(move |_, _| CALLER.acquire().as_ref().and_then(|caller| caller.refused.why(address)));
    LAST.set(if is_open() { why().map(|why| (address, why)) } else { None });
}

/// Why the function of this thread's last call that a signal ended could not access an address, if that was the cause: a string of C that stays
/// until this thread asks again. Nothing is allocated: the allocator is for threads that block signals.
pub(crate) fn reason() -> Option<*const c_char> {
    let (address, why) = LAST.get()?;
    TEXT.with(|text| {
        // SAFETY: it is this thread's, and no other reference to it is left.
        let text = unsafe { &mut *text.get() };
        *text = Text { bytes: [0; TEXT_BYTES], length: 0 };
        // Texts are shorter than there is room.
        let _ = write!(text, "the function accessed {address:#x}, which functions cannot have: it {}", why.text());
        CStr::from_bytes_until_nul(&text.bytes).ok().map(CStr::as_ptr)
    })
}

/// A text of a fixed size, with a zero at its end.
struct Text {
    bytes: [u8; TEXT_BYTES],
    length: usize,
}

impl std::fmt::Write for Text {
    fn write_str(&mut self, part: &str) -> std::fmt::Result {
        let end = self.length + part.len();
        let place = self.bytes.get_mut(self.length..end).filter(|_| end < TEXT_BYTES).ok_or(std::fmt::Error)?;
        place.copy_from_slice(part.as_bytes());
        self.length = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_has_room() {
        for why in [OutOfReach::Shared, OutOfReach::OfFile, OutOfReach::ServedElsewhere] {
            LAST.set(Some((u64::MAX, why)));
            // SAFETY: the string stays until this thread asks again.
            let text = unsafe { CStr::from_ptr(reason().expect("there is one")) };
            assert!(text.to_str().expect("it is text").ends_with(why.text()));
        }
        LAST.set(None);
        assert_eq!(reason(), None);
    }
}
