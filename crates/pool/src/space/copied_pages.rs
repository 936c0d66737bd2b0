//! The pages of a section that a [migration](super::migration) has still to copy.

use super::SectionId;

/// The unit in which writes are noted.
const PAGE_BYTES: u64 = 4096;
/// The most bytes of one verb.
const VERB_BYTES_MAX: u64 = 64 << 10;

/// The pages of a section that are still to be copied.
pub(super) struct CopiedPages {
    pub(super) id: SectionId,
    /// The section's first address.
    pub(super) base: u64,
    /// One bit for each page.
    left: Vec<u64>,
    pages: u64,
    /// Pages below this offset are copied by nobody: they are the head.
    head_bytes: u64,
}

impl CopiedPages {
    pub(super) fn new(id: SectionId, base: u64, section_bytes: u64, head_bytes: u64) -> CopiedPages {
        let pages = section_bytes.div_ceil(PAGE_BYTES);
        let mut copied = CopiedPages { id, base, left: vec![0; pages.div_ceil(64) as usize], pages, head_bytes };
        copied.note(0, section_bytes);
        copied
    }

    /// Notes that bytes from `offset` on have to be copied.
    pub(super) fn note(&mut self, offset: u64, length: u64) {
        for page in offset / PAGE_BYTES..(offset + length).div_ceil(PAGE_BYTES) {
            self.left[page as usize / 64] |= 1 << (page % 64);
        }
    }

    fn is_left(&self, page: u64) -> bool {
        page < self.pages && self.left[page as usize / 64] & (1 << (page % 64)) != 0
    }

    pub(super) fn bytes_left(&self) -> u64 {
        self.left.iter().map(|word| u64::from(word.count_ones())).sum::<u64>() * PAGE_BYTES
    }

    /// Takes ranges of at most `bytes_max` bytes together, but of one page at least: offset and length of each.
    pub(super) fn take(&mut self, bytes_max: u64) -> Vec<(u64, u64)> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        let mut pages = (bytes_max / PAGE_BYTES).max(1);
        for page in 0..self.pages {
            if pages == 0 {
                break;
            }
            if !self.is_left(page) {
                continue;
            }
            self.left[page as usize / 64] &= !(1 << (page % 64));
            pages -= 1;
            let start = (page * PAGE_BYTES).max(self.head_bytes);
            let end = (page + 1) * PAGE_BYTES;
            match ranges.last_mut() {
                _ if start >= end => {}
                Some((offset, length)) if *offset + *length == start && *length < VERB_BYTES_MAX => {
                    *length += end - start
                }
                _ => ranges.push((start, end - start)),
            }
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_behind_the_head_is_copied_once_and_again_when_it_was_written() {
        for head in [0, 64, 4096, 8256] {
            let bytes = 40 * PAGE_BYTES;
            let mut copied = CopiedPages::new(SectionId(1), bytes, bytes, head);
            let mut seen = vec![0_u32; bytes as usize];
            while copied.bytes_left() > 0 {
                let ranges = copied.take(10 * PAGE_BYTES);
                assert!(ranges.iter().map(|(_, length)| length).sum::<u64>() <= 10 * PAGE_BYTES);
                for (offset, length) in ranges {
                    assert!(length <= VERB_BYTES_MAX);
                    seen[offset as usize..(offset + length) as usize].iter_mut().for_each(|times| *times += 1);
                }
            }
            let (before, behind) = seen.split_at(head as usize);
            assert!(before.iter().all(|times| *times == 0) && behind.iter().all(|times| *times == 1), "head {head}");
            copied.note(9 * PAGE_BYTES - 1, 2);
            assert_eq!(copied.take(1), [(8 * PAGE_BYTES, PAGE_BYTES)]);
            assert_eq!(copied.take(u64::MAX), [(9 * PAGE_BYTES, PAGE_BYTES)]);
            assert_eq!(copied.bytes_left(), 0);
        }
    }
}
