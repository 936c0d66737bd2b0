//! A map from pages to values that stores runs of equal values, so that its size follows fragmentation and not memory.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::page::PageNumber;

/// A value for each of some pages. Neighbouring pages with equal values are one run; a run costs as much as a page.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RunMap<V> {
    /// By the first page of a run: the page behind the run, and the value. Runs neither overlap nor could be joined.
    runs: BTreeMap<u64, (u64, V)>,
}

impl<V> Default for RunMap<V> {
    fn default() -> RunMap<V> {
        RunMap { runs: BTreeMap::new() }
    }
}

impl<V: Copy + Eq> RunMap<V> {
    /// The value of a page.
    pub fn get(&self, page: PageNumber) -> Option<V> {
        let (_, (end, value)) = self.runs.range(..=page.0).next_back()?;
        (page.0 < *end).then_some(*value)
    }

    /// Whether a page has a value.
    pub fn contains(&self, page: PageNumber) -> bool {
        self.get(page).is_some()
    }

    /// Gives a page a value.
    pub fn set(&mut self, page: PageNumber, value: V) {
        self.insert(page.0..page.0 + 1, value);
    }

    /// Takes a page's value away; returns whether it had one.
    pub fn take(&mut self, page: PageNumber) -> bool {
        let had = self.contains(page);
        if had {
            self.remove(page.0..page.0 + 1);
        }
        had
    }

    /// Gives all pages of a range a value.
    pub fn insert(&mut self, pages: Range<u64>, value: V) {
        if pages.is_empty() {
            return;
        }
        self.remove(pages.clone());
        let (mut start, mut end) = (pages.start, pages.end);
        let before = self.runs.range(..start).next_back().map(|(first, (behind, value))| (*first, *behind, *value));
        if let Some((first, _, _)) = before.filter(|(_, behind, other)| *behind == start && *other == value) {
            start = first;
        }
        if let Some((behind, _)) = self.runs.get(&end).copied().filter(|(_, other)| *other == value) {
            self.runs.remove(&end);
            end = behind;
        }
        self.runs.insert(start, (end, value));
    }

    /// Takes the values of all pages of a range away.
    pub fn remove(&mut self, pages: Range<u64>) {
        if pages.is_empty() {
            return;
        }
        self.cut(pages.start);
        self.cut(pages.end);
        let inside: Vec<u64> = self.runs.range(pages).map(|(first, _)| *first).collect();
        for first in inside {
            self.runs.remove(&first);
        }
    }

    /// Makes a run begin at `at`, if a run spans it.
    fn cut(&mut self, at: u64) {
        let Some((_, run)) = self.runs.range_mut(..at).next_back() else { return };
        let (end, value) = *run;
        if at < end {
            run.0 = at;
            self.runs.insert(at, (end, value));
        }
    }

    /// The runs that overlap a range, cut to it, in order.
    pub fn runs_in(&self, pages: Range<u64>) -> impl Iterator<Item = (Range<u64>, V)> + '_ {
        let before = self.runs.range(..pages.start).next_back();
        let inside = self.runs.range(pages.start..pages.end.max(pages.start));
        before.into_iter().chain(inside).filter_map(move |(first, (end, value))| {
            let cut = (*first).max(pages.start)..(*end).min(pages.end);
            (!cut.is_empty()).then_some((cut, *value))
        })
    }

    /// All runs, in order.
    pub fn runs(&self) -> impl ExactSizeIterator<Item = (Range<u64>, V)> + '_ {
        self.runs.iter().map(|(first, (end, value))| (*first..*end, *value))
    }

    /// The pages that have a value, in order.
    pub fn pages(&self) -> impl Iterator<Item = PageNumber> + '_ {
        self.runs().flat_map(|(pages, _)| pages.map(PageNumber))
    }

    /// The range from the first to the last page that has a value.
    pub(crate) fn bounds(&self) -> Option<Range<u64>> {
        let (first, (last, _)) = (self.runs.first_key_value()?, self.runs.last_key_value()?.1);
        Some(*first.0..*last)
    }

    /// Whether no page has a value.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
}

impl RunMap<()> {
    /// Adds all pages of another set.
    pub(crate) fn unite(&mut self, other: &RunMap<()>) {
        for (pages, ()) in other.runs() {
            self.insert(pages, ());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_run_map_equals_a_map_of_pages(steps in prop::collection::vec((0_u64..40, 0_u64..12, 0_u8..4), 0..40)) {
            let (mut runs, mut pages) = (RunMap::default(), BTreeMap::new());
            for (start, count, value) in steps {
                if value == 3 {
                    runs.remove(start..start + count);
                    pages.retain(|page, _| !(start..start + count).contains(page));
                } else {
                    runs.insert(start..start + count, value);
                    pages.extend((start..start + count).map(|page| (page, value)));
                }
                prop_assert!((0..60).all(|page| runs.get(PageNumber(page)) == pages.get(&page).copied()));
                let all: Vec<_> = runs.runs().collect();
                prop_assert!(all.windows(2).all(|two| two[0].0.end < two[1].0.start || two[0].1 != two[1].1));
                let cut: u64 = runs.runs_in(7..23).map(|(run, _)| run.end - run.start).sum();
                prop_assert_eq!(cut as usize, pages.range(7..23).count());
            }
        }
    }
}
