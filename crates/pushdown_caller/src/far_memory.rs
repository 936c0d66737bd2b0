//! Which pages of far ranges the program has, oldest first.

use std::collections::BTreeMap;
use std::ops::Range;

use page_coherence::{PageNumber, RunMap};

/// A far range.
struct FarRange {
    pages: Range<u64>,
    budget_pages: usize,
    /// The pages that the program has, by the turn at which it got them.
    by_turn: BTreeMap<u64, PageNumber>,
    /// The turn of each of them.
    turns: BTreeMap<PageNumber, u64>,
}

/// All of them.
#[derive(Default)]
pub(crate) struct FarMemory {
    ranges: Vec<FarRange>,
    next_turn: u64,
}

impl FarMemory {
    /// There is another range, of which the program has nothing.
    pub(crate) fn add(&mut self, pages: Range<u64>, budget_pages: usize) {
        self.ranges.push(FarRange { pages, budget_pages, by_turn: BTreeMap::new(), turns: BTreeMap::new() });
    }

    /// Whether a page is one of a far range.
    pub(crate) fn has(&self, page: PageNumber) -> bool {
        self.ranges.iter().any(|range| range.pages.contains(&page.0))
    }

    /// The program has got a page. One that it had already keeps its turn.
    pub(crate) fn mapped(&mut self, page: PageNumber) {
        if let Some(range) = self.ranges.iter_mut().find(|range| range.pages.contains(&page.0))
            && !range.turns.contains_key(&page)
        {
            range.put_last(page, &mut self.next_turn);
        }
    }

    /// The program has a page no more.
    pub(crate) fn unmapped(&mut self, page: PageNumber) {
        if let Some(range) = self.ranges.iter_mut().find(|range| range.pages.contains(&page.0)) {
            range.remove(page);
        }
    }

    /// The program has unmapped memory.
    pub(crate) fn removed(&mut self, pages: &Range<u64>) {
        self.ranges.retain(|range| range.pages.end <= pages.start || range.pages.start >= pages.end);
    }

    /// The oldest page of a range that has more than its budget.
    pub(crate) fn oldest(&self) -> Option<PageNumber> {
        let range = self.ranges.iter().find(|range| range.turns.len() > range.budget_pages)?;
        range.by_turn.first_key_value().map(|(_, page)| *page)
    }

    /// The pages of a range that the program has of far memory.
    pub(crate) fn resident_in(&self, pages: &Range<u64>) -> Vec<PageNumber> {
        let pages = PageNumber(pages.start)..PageNumber(pages.end);
        self.ranges.iter().flat_map(|range| range.turns.range(pages.clone())).map(|(page, _)| *page).collect()
    }

    /// Makes a page the youngest of its range, if the program has it.
    pub(crate) fn spare(&mut self, page: PageNumber) {
        if let Some(range) = self.ranges.iter_mut().find(|range| range.turns.contains_key(&page)) {
            range.remove(page);
            range.put_last(page, &mut self.next_turn);
        }
    }

    /// Removes far pages from a set.
    pub(crate) fn leave_out(&self, set: &mut RunMap<()>) {
        self.ranges.iter().for_each(|range| set.remove(range.pages.clone()));
    }
}

impl FarRange {
    fn put_last(&mut self, page: PageNumber, next_turn: &mut u64) {
        self.by_turn.insert(*next_turn, page);
        self.turns.insert(page, *next_turn);
        *next_turn += 1;
    }

    fn remove(&mut self, page: PageNumber) {
        if let Some(turn) = self.turns.remove(&page) {
            self.by_turn.remove(&turn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: PageNumber = PageNumber(12);

    fn with_range(budget_pages: usize) -> FarMemory {
        let mut far = FarMemory::default();
        far.add(10..20, budget_pages);
        far
    }

    #[test]
    fn the_oldest_page_beyond_the_budget_is_first() {
        let mut far = with_range(2);
        for page in [14, 12, 14, 30, 16] {
            far.mapped(PageNumber(page));
        }
        assert_eq!(far.oldest(), Some(PageNumber(14)));
        far.spare(PageNumber(14));
        assert_eq!(far.oldest(), Some(PAGE));
        far.unmapped(PAGE);
        assert_eq!(far.oldest(), None);
        assert_eq!(far.resident_in(&(0..16)), [PageNumber(14)]);
    }

    #[test]
    fn what_is_kept_is_bounded_by_the_pages_that_the_program_has() {
        let mut far = with_range(1);
        for _ in 0..1000 {
            far.mapped(PAGE);
            far.spare(PAGE);
            far.unmapped(PAGE);
            far.spare(PAGE);
        }
        far.mapped(PAGE);
        assert_eq!((far.ranges[0].by_turn.len(), far.ranges[0].turns.len()), (1, 1));
    }
}
