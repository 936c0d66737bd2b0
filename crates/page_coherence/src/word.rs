//! Changes of a page by aligned words, for a page that threads are using: a thread that reads an aligned number never finds half of a
//! change, and what it writes to other bytes of the word stays, if a word is changed by one atomic instruction.

use wire::Malformed;

use crate::diff::{Page, read_diff};

const WORD_BYTES: usize = size_of::<u64>();

/// Some bytes of an aligned word of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WordChange {
    index: usize,
    mask: u64,
    bits: u64,
}

impl WordChange {
    /// The changes of a difference ([`crate::diff()`]), in order.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes are no difference.
    pub fn of_diff(bytes: &[u8]) -> Result<Vec<WordChange>, Malformed> {
        let mut changes = Vec::new();
        read_diff(bytes, |at, byte| add(&mut changes, at, byte))?;
        Ok(changes)
    }

    /// Which word of the page: always one that the page has.
    pub fn index(self) -> usize {
        self.index
    }

    /// The word after the change.
    pub fn applied_to(self, word: u64) -> u64 {
        word & !self.mask | self.bits
    }

    /// Changes a page that nobody else is using.
    pub fn apply(self, page: &mut Page) {
        let word = &mut page[self.index * WORD_BYTES..(self.index + 1) * WORD_BYTES];
        let before = u64::from_le_bytes(word.try_into().expect("a word has eight bytes"));
        word.copy_from_slice(&self.applied_to(before).to_le_bytes());
    }
}

/// Adds a byte behind those that were added before.
fn add(changes: &mut Vec<WordChange>, at: usize, byte: u8) {
    let (index, shift) = (at / WORD_BYTES, at % WORD_BYTES * 8);
    if changes.last().is_none_or(|last| last.index != index) {
        changes.push(WordChange { index, mask: 0, bits: 0 });
    }
    if let Some(last) = changes.last_mut() {
        last.mask |= 0xff << shift;
        last.bits |= u64::from(byte) << shift;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::diff::{apply_diff, diff};
    use crate::page::PAGE_BYTES;

    proptest! {
        #[test]
        fn words_change_a_page_as_its_difference_does(
            places in prop::collection::vec((0_usize..4096, any::<u8>()), 0..80),
            other in any::<u8>(),
        ) {
            let (twin, mut page) = ([7; PAGE_BYTES as usize], [7; PAGE_BYTES as usize]);
            places.iter().for_each(|(at, byte)| page[*at] = *byte);
            let bytes = diff(&twin, &page);
            let (mut by_bytes, mut by_words) = ([other; PAGE_BYTES as usize], [other; PAGE_BYTES as usize]);
            apply_diff(&bytes, &mut by_bytes).expect("it is a difference");
            let changes = WordChange::of_diff(&bytes).expect("it is a difference");
            changes.iter().for_each(|change| change.apply(&mut by_words));
            prop_assert_eq!(by_bytes, by_words);
            prop_assert!(changes.is_sorted_by(|one, next| one.index < next.index), "each word is changed once");
        }
    }
}
