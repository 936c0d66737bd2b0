//! Which pages of the region are in use: one bit a page.
//!
//! The bits lie in local memory. Extents are looked for behind the last one that was found (next fit), so memory that was just
//! freed rests for a while before it is used again. A search looks at a candidate from its end: the last page in use there
//! rules out all candidates that contain it.

/// Pages of 64 KiB.
const SMALL_ALIGNMENT: usize = 16;
/// Pages of 2 MiB: from here on an extent is aligned by its length.
const LARGE: usize = 512;
/// Pages of 64 MiB.
pub(crate) const ALIGNMENT_MAX: usize = 16384;

const WORD_BITS: usize = u64::BITS as usize;

/// The pages of a region.
pub(crate) struct Extents<'a> {
    /// A bit is set if the page is in use.
    words: &'a mut [u64],
    pages: usize,
    free: usize,
    /// Where the next search begins.
    next: usize,
}

impl<'a> Extents<'a> {
    /// No pages.
    pub(crate) const fn empty() -> Extents<'a> {
        Extents { words: &mut [], pages: 0, free: 0, next: 0 }
    }

    /// As many free pages as `words` has bits, or fewer. All words are 0.
    pub(crate) fn new(words: &'a mut [u64], pages: usize) -> Extents<'a> {
        let pages = pages.min(words.len() * WORD_BITS);
        Extents { words, pages, free: pages, next: 0 }
    }

    /// Takes neighbouring pages, and returns the first one; aligned if there is such a place. `None` if there is no room.
    pub(crate) fn allocate(&mut self, pages: usize) -> Option<usize> {
        if pages == 0 || pages > self.free {
            return None;
        }
        let alignment = if pages < LARGE { SMALL_ALIGNMENT } else { (1 << pages.ilog2()).min(ALIGNMENT_MAX) };
        let first = self.find(pages, alignment).or_else(|| self.find(pages, 1))?;
        self.mark(first, pages, true);
        self.next = first + pages;
        Some(first)
    }

    /// Takes these pages if all of them are free.
    pub(crate) fn claim(&mut self, first: usize, pages: usize) -> bool {
        let is_free = first <= self.pages && pages <= self.pages - first && self.last_used(first, pages).is_none();
        if is_free {
            self.mark(first, pages, true);
        }
        is_free
    }

    /// Gives pages back; those of them that are free stay so.
    pub(crate) fn release(&mut self, first: usize, pages: usize) {
        let first = first.min(self.pages);
        self.mark(first, pages.min(self.pages - first), false);
    }

    fn find(&self, pages: usize, alignment: usize) -> Option<usize> {
        let next = self.next;
        self.find_within(next, self.pages, pages, alignment).or_else(|| self.find_within(0, next, pages, alignment))
    }

    /// An extent that begins in a range.
    fn find_within(&self, from: usize, to: usize, pages: usize, alignment: usize) -> Option<usize> {
        let mut first = from.next_multiple_of(alignment);
        while first < to && first + pages <= self.pages {
            match self.last_used(first, pages) {
                Some(used) => first = (used + 1).next_multiple_of(alignment),
                None => return Some(first),
            }
        }
        None
    }

    /// The last page in use of a range.
    fn last_used(&self, first: usize, pages: usize) -> Option<usize> {
        parts(first, pages).rev().find_map(|(index, mask)| {
            let used = self.words.get(index).map_or(0, |word| word & mask);
            used.checked_ilog2().map(|bit| index * WORD_BITS + bit as usize)
        })
    }

    fn mark(&mut self, first: usize, pages: usize, is_used: bool) {
        for (index, mask) in parts(first, pages) {
            let Some(word) = self.words.get_mut(index) else { return };
            let before = word.count_ones() as usize;
            *word = if is_used { *word | mask } else { *word & !mask };
            self.free = self.free + before - word.count_ones() as usize;
        }
    }
}

/// The words of a range of pages, and which bits of each belong to the range.
fn parts(first: usize, pages: usize) -> impl DoubleEndedIterator<Item = (usize, u64)> {
    let end = first + pages;
    let indices = if pages == 0 { 0..0 } else { first / WORD_BITS..end.div_ceil(WORD_BITS) };
    indices.map(move |index| {
        let start = index * WORD_BITS;
        let from = first.saturating_sub(start);
        let to = (end - start).min(WORD_BITS);
        (index, (u64::MAX >> (WORD_BITS - (to - from))) << from)
    })
}

#[cfg(test)]
mod tests {
    use super::{ALIGNMENT_MAX, Extents, LARGE, SMALL_ALIGNMENT, parts};

    fn words(pages: usize) -> Vec<u64> {
        vec![0; pages.div_ceil(64)]
    }

    #[test]
    fn parts_cover_a_range_exactly() {
        for (first, pages) in [(0, 1), (63, 1), (63, 2), (1, 200), (64, 64), (130, 0), (5, 59), (5, 60)] {
            let bits: Vec<usize> = parts(first, pages)
                .flat_map(|(index, mask)| {
                    (0..64).filter(move |bit| mask >> bit & 1 == 1).map(move |bit| index * 64 + bit)
                })
                .collect();
            assert_eq!(bits, (first..first + pages).collect::<Vec<_>>(), "{pages} pages from {first}");
        }
    }

    #[test]
    fn extents_are_disjoint_and_aligned() {
        let mut words = words(4 * ALIGNMENT_MAX);
        let mut extents = Extents::new(&mut words, 4 * ALIGNMENT_MAX);
        let mut taken: Vec<(usize, usize)> = Vec::new();
        for pages in [17, 16, LARGE, LARGE + 1, 1, 2 * LARGE - 1, ALIGNMENT_MAX, ALIGNMENT_MAX + 5, 3] {
            let first = extents.allocate(pages).expect("there is room");
            let alignment = if pages < LARGE { SMALL_ALIGNMENT } else { (1 << pages.ilog2()).min(ALIGNMENT_MAX) };
            assert_eq!(first % alignment, 0, "{pages} pages at {first}");
            assert!(taken.iter().all(|(other, length)| first + pages <= *other || other + length <= first));
            taken.push((first, pages));
        }
    }

    #[test]
    fn unaligned_place_is_better_than_none() {
        let mut words = words(64);
        let mut extents = Extents::new(&mut words, 64);
        assert!(extents.claim(0, 40));
        assert_eq!(extents.allocate(17), Some(40), "the aligned places are 48 and behind, with 16 pages");
    }

    #[test]
    fn full_region_refuses() {
        let mut words = words(100);
        let mut extents = Extents::new(&mut words, 100);
        assert_eq!(extents.allocate(101), None);
        assert_eq!(extents.allocate(100), Some(0));
        assert_eq!(extents.allocate(1), None);
        extents.release(0, 100);
        assert_eq!(extents.allocate(0), None);
        assert_eq!(extents.allocate(100), Some(0));
    }

    #[test]
    fn part_of_an_extent_can_be_freed_and_used_again() {
        let mut words = words(256);
        let mut extents = Extents::new(&mut words, 256);
        assert_eq!(extents.allocate(256), Some(0));
        extents.release(100, 30);
        extents.release(100, 30);
        assert_eq!(extents.free, 30);
        assert_eq!(extents.allocate(31), None);
        assert_eq!(extents.allocate(18), Some(112));
        assert_eq!(extents.allocate(12), Some(100));
        assert_eq!(extents.allocate(1), None);
    }

    #[test]
    fn search_goes_on_behind_the_last_extent_and_wraps() {
        let mut words = words(64);
        let mut extents = Extents::new(&mut words, 64);
        assert_eq!(extents.allocate(16), Some(0));
        assert_eq!(extents.allocate(16), Some(16));
        extents.release(0, 16);
        assert_eq!(extents.allocate(16), Some(32));
        assert_eq!(extents.allocate(16), Some(48));
        assert_eq!(extents.allocate(16), Some(0));
    }

    #[test]
    fn pages_are_claimed_only_if_all_are_free() {
        let mut words = words(64);
        let mut extents = Extents::new(&mut words, 60);
        assert!(extents.claim(10, 5));
        assert!(!extents.claim(14, 2));
        assert!(extents.claim(15, 1));
        assert!(!extents.claim(59, 2), "the region ends at 60");
        assert!(!extents.claim(61, 1));
        assert!(!extents.claim(1, usize::MAX));
        assert!(extents.claim(59, 1));
        assert_eq!(extents.free, 53);
    }

    #[test]
    fn random_calls_agree_with_a_list_of_pages() {
        const PAGES: usize = 700;
        let mut words = words(PAGES);
        let mut extents = Extents::new(&mut words, PAGES);
        let mut model = [false; PAGES];
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        for _ in 0..20_000 {
            let (first, pages) = (random(PAGES), 1 + random(90));
            match random(3) {
                0 => match extents.allocate(pages) {
                    Some(first) => {
                        assert!(model[first..first + pages].iter().all(|used| !used));
                        model[first..first + pages].fill(true);
                    }
                    None => assert!(!model.windows(pages).any(|window| window.iter().all(|used| !used))),
                },
                1 => {
                    let end = PAGES.min(first + pages);
                    let is_free = first + pages <= PAGES && model[first..end].iter().all(|used| !used);
                    assert_eq!(extents.claim(first, pages), is_free);
                    if is_free {
                        model[first..end].fill(true);
                    }
                }
                _ => {
                    extents.release(first, pages);
                    model[first..PAGES.min(first + pages)].fill(false);
                }
            }
            assert_eq!(extents.free, model.iter().filter(|used| !**used).count());
        }
    }
}
