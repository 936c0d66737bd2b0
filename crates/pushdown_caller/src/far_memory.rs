//! Which pages of far ranges the program has, oldest first.

use std::collections::VecDeque;
use std::ops::Range;

use page_coherence::{PageNumber, RunMap};

/// A far range.
struct FarRange {
    pages: Range<u64>,
    budget_pages: usize,
    /// Pages that the program got, oldest first. Some it has no more.
    queue: VecDeque<PageNumber>,
    /// Those that it has.
    resident: RunMap<()>,
    count: usize,
}

/// All of them.
#[derive(Default)]
pub(crate) struct FarMemory {
    ranges: Vec<FarRange>,
}

impl FarMemory {
    /// There is another range, of which the program has nothing.
    pub(crate) fn add(&mut self, pages: Range<u64>, budget_pages: usize) {
        let (queue, resident) = (VecDeque::new(), RunMap::default());
        self.ranges.push(FarRange { pages, budget_pages, queue, resident, count: 0 });
    }

    fn range_of(&mut self, page: PageNumber) -> Option<&mut FarRange> {
        self.ranges.iter_mut().find(|range| range.pages.contains(&page.0))
    }

    /// The program has got a page.
    pub(crate) fn mapped(&mut self, page: PageNumber) {
        if let Some(range) = self.range_of(page).filter(|range| !range.resident.contains(page)) {
            range.resident.set(page, ());
            range.queue.push_back(page);
            range.count += 1;
        }
    }

    /// The program has a page no more.
    pub(crate) fn unmapped(&mut self, page: PageNumber) {
        if let Some(range) = self.range_of(page).filter(|range| range.resident.contains(page)) {
            range.resident.take(page);
            range.count -= 1;
        }
    }

    /// The program has unmapped memory.
    pub(crate) fn removed(&mut self, pages: &Range<u64>) {
        self.ranges.retain(|range| range.pages.end <= pages.start || range.pages.start >= pages.end);
    }

    /// A page of a range that has more than its budget, and is taken from its queue.
    pub(crate) fn oldest(&mut self) -> Option<PageNumber> {
        let range = self.ranges.iter_mut().find(|range| range.count > range.budget_pages)?;
        while let Some(page) = range.queue.pop_front() {
            if range.resident.contains(page) {
                return Some(page);
            }
        }
        None
    }

    /// The pages of a range that the program has of far memory.
    pub(crate) fn resident_in(&self, pages: &Range<u64>) -> Vec<PageNumber> {
        let runs = self.ranges.iter().flat_map(|range| range.resident.runs_in(pages.clone()));
        runs.flat_map(|(run, ())| run).map(PageNumber).collect()
    }

    /// Forgets the order of pages that the program has no more.
    pub(crate) fn forget_evicted(&mut self) {
        for range in &mut self.ranges {
            let resident = &range.resident;
            range.queue.retain(|page| resident.contains(*page));
        }
    }

    /// Puts a page behind all others that it has got.
    pub(crate) fn spare(&mut self, page: PageNumber) {
        if let Some(range) = self.range_of(page) {
            range.queue.push_back(page);
        }
    }

    /// Removes far pages from a set.
    pub(crate) fn leave_out(&self, set: &mut RunMap<()>) {
        self.ranges.iter().for_each(|range| set.remove(range.pages.clone()));
    }
}
