//! Differences between a page and its twin, byte by byte (weak ordering, and coherence off).
//!
//! ```text
//! lines u64: bit i is set if bytes 64 i to 64 i + 63 have a difference
//! of each such line: mask u64: bit j is set if byte j of the line differs
//!                    the new bytes, as many as the mask has bits
//! ```
//!
//! A line that is named has a difference, so a page and its twin have one difference in bytes; it takes at most
//! [`DIFF_BYTES_MAX`]. Bytes that are equal are never in it: the other side may have written them.

use base::Bytes;
use wire::{Malformed, Reader, Writer};

use crate::page::PAGE_BYTES;

const LINE_BYTES: usize = 64;
const LINES: usize = PAGE_BYTES as usize / LINE_BYTES;
const _: () = assert!(LINES == u64::BITS as usize, "a word has a bit for each line");

/// Bytes of the longest difference.
pub const DIFF_BYTES_MAX: usize = 8 + LINES * 8 + PAGE_BYTES as usize;

/// A page's contents.
pub type Page = [u8; PAGE_BYTES as usize];

/// The difference of a page from its twin.
pub fn diff(twin: &Page, page: &Page) -> Bytes {
    let mut writer = Writer::with_capacity(64);
    let masks: [u64; LINES] = std::array::from_fn(|line| {
        let bytes = line * LINE_BYTES..(line + 1) * LINE_BYTES;
        // Most lines of a page are equal; whole lines are compared fast.
        if twin[bytes.clone()] == page[bytes.clone()] {
            return 0;
        }
        bytes.enumerate().fold(0, |mask, (bit, at)| mask | u64::from(twin[at] != page[at]) << bit)
    });
    let lines = masks.iter().enumerate().fold(0, |lines, (bit, mask)| lines | u64::from(*mask != 0) << bit);
    writer.u64(lines);
    for (line, mask) in masks.iter().enumerate().filter(|(_, mask)| **mask != 0) {
        writer.u64(*mask);
        for bit in (0..LINE_BYTES).filter(|bit| mask >> bit & 1 == 1) {
            writer.u8(page[line * LINE_BYTES + bit]);
        }
    }
    writer.done()
}

/// Writes a difference into a page. A malformed difference changes nothing.
///
/// # Errors
/// [`Malformed`] if the bytes are no difference.
pub fn apply_diff(bytes: &[u8], page: &mut Page) -> Result<(), Malformed> {
    read_diff(bytes, |at, byte| page[at] = byte)
}

/// Tells the bytes of a difference, with the place of each in the page, in order. Of a malformed difference it tells none.
///
/// # Errors
/// As [`apply_diff`].
pub(crate) fn read_diff(bytes: &[u8], change: impl FnMut(usize, u8)) -> Result<(), Malformed> {
    walk(bytes, |_, _| {})?;
    walk(bytes, change)
}

fn walk(bytes: &[u8], mut change: impl FnMut(usize, u8)) -> Result<(), Malformed> {
    let mut reader = Reader::new(bytes);
    let lines = reader.u64()?;
    for line in (0..LINES).filter(|line| lines >> line & 1 == 1) {
        let mask = reader.u64()?;
        if mask == 0 {
            return Err(reader.malformed("a line without a difference is named"));
        }
        let new = reader.bytes(mask.count_ones() as usize)?;
        let bits = (0..LINE_BYTES).filter(|bit| mask >> bit & 1 == 1);
        bits.zip(new).for_each(|(bit, byte)| change(line * LINE_BYTES + bit, *byte));
    }
    reader.end()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn page_of(changes: &[(usize, u8)]) -> Page {
        let mut page = [7; PAGE_BYTES as usize];
        changes.iter().for_each(|(at, byte)| page[*at] = *byte);
        page
    }

    #[test]
    fn the_largest_difference_has_the_named_size_and_an_equal_page_has_none() {
        let (twin, page) = ([0; PAGE_BYTES as usize], [1; PAGE_BYTES as usize]);
        assert_eq!(diff(&twin, &page).len(), DIFF_BYTES_MAX);
        assert_eq!(diff(&twin, &twin)[..], [0; 8]);
    }

    proptest! {
        #[test]
        fn writes_of_both_sides_to_different_bytes_merge(
            mine in prop::collection::vec((0_usize..2048, any::<u8>()), 0..50),
            theirs in prop::collection::vec((0_usize..2048, any::<u8>()), 0..50),
        ) {
            let mine: Vec<(usize, u8)> = mine.into_iter().map(|(at, byte)| (2 * at, byte)).collect();
            let theirs: Vec<(usize, u8)> = theirs.into_iter().map(|(at, byte)| (2 * at + 1, byte)).collect();
            let mut home = page_of(&theirs);
            apply_diff(&diff(&page_of(&[]), &page_of(&mine)), &mut home).expect("it is a difference");
            prop_assert_eq!(home, page_of(&[mine, theirs].concat()));
        }

        #[test]
        fn bytes_that_are_no_difference_change_nothing(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let mut page = page_of(&[]);
            if apply_diff(&bytes, &mut page).is_err() {
                prop_assert_eq!(page, page_of(&[]));
            }
        }
    }
}
