//! Pages of a region, by number.

use std::fmt;
use std::ops::Range;

/// Bytes of a page: the unit of faults, of dirtiness and of loss.
pub const PAGE_BYTES: usize = 4096;
/// Pages of the largest region: 8 TiB, as much as an address space has.
pub const REGION_PAGES_MAX: u32 = 1 << 31;

/// The number of a page in its region, from 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PageNumber(pub u32);

/// Consecutive pages; never empty.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageRange {
    /// The first page.
    pub first: PageNumber,
    /// How many there are.
    pub pages: u32,
}

impl PageNumber {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }

    /// The page's first byte, counted from the start of its region.
    pub fn offset(self) -> u64 {
        u64::from(self.0) * PAGE_BYTES as u64
    }
}

impl PageRange {
    /// One page.
    pub fn of(page: PageNumber) -> PageRange {
        PageRange { first: page, pages: 1 }
    }

    /// The page behind the last one.
    pub fn end(self) -> u32 {
        self.first.0 + self.pages
    }

    /// The pages, in order.
    pub fn iter(self) -> impl Iterator<Item = PageNumber> {
        (self.first.0..self.end()).map(PageNumber)
    }

    /// Whether all pages of another range are among them.
    pub fn contains(self, other: PageRange) -> bool {
        self.first <= other.first && other.end() <= self.end()
    }

    /// How many bytes they have.
    pub fn bytes(self) -> usize {
        self.pages as usize * PAGE_BYTES
    }

    /// Their bytes, counted from the start of the region.
    pub fn byte_range(self) -> Range<u64> {
        self.first.offset()..u64::from(self.end()) * PAGE_BYTES as u64
    }
}

impl fmt::Debug for PageRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pages {}..{}", self.first.0, self.end())
    }
}

/// Joins pages, which are in order, to ranges of at most `pages_max` pages.
pub fn ranges_of(pages: impl IntoIterator<Item = PageNumber>, pages_max: u32) -> Vec<PageRange> {
    let mut ranges: Vec<PageRange> = Vec::new();
    for page in pages {
        match ranges.last_mut() {
            Some(last) if last.end() == page.0 && last.pages < pages_max => last.pages += 1,
            _ => ranges.push(PageRange::of(page)),
        }
    }
    ranges
}

/// Pages of a group, the unit in which stores place pages and answer reads: 64 KiB, aligned.
pub const GROUP_PAGES: u32 = 16;

/// The number of a group of pages in its region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PageGroup(pub u32);

impl PageGroup {
    /// The group of a page.
    pub fn of(page: PageNumber) -> PageGroup {
        PageGroup(page.0 / GROUP_PAGES)
    }

    /// The pages of the group that its bits stand for: bit 0 for the first page.
    pub fn pages(self, bits: u16) -> impl Iterator<Item = PageNumber> {
        (0..GROUP_PAGES)
            .filter(move |bit| bits & (1 << bit) != 0)
            .map(move |bit| PageNumber(self.0 * GROUP_PAGES + bit))
    }
}

impl PageRange {
    /// The range, split where groups end.
    pub fn by_group(self) -> impl Iterator<Item = (PageGroup, PageRange)> {
        let mut next = self.first.0;
        std::iter::from_fn(move || {
            let group = PageGroup(next / GROUP_PAGES);
            let end = self.end().min((group.0 + 1) * GROUP_PAGES);
            let range = PageRange { first: PageNumber(next), pages: end.checked_sub(next).filter(|pages| *pages > 0)? };
            next = end;
            Some((group, range))
        })
    }

    /// The bits of these pages, which are all of one group.
    pub fn group_bits(self) -> u16 {
        let start = self.first.0 % GROUP_PAGES;
        assert!(start + self.pages <= GROUP_PAGES, "{self:?} crosses the end of a group");
        (((1_u32 << self.pages) - 1) << start) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_split_where_groups_end() {
        let range = PageRange { first: PageNumber(14), pages: 20 };
        let split: Vec<_> = range.by_group().map(|(group, part)| (group.0, part.first.0, part.pages)).collect();
        assert_eq!(split, [(0, 14, 2), (1, 16, 16), (2, 32, 2)]);
        let bits: Vec<u16> = range.by_group().map(|(_, part)| part.group_bits()).collect();
        assert_eq!(bits, [0xc000, 0xffff, 3]);
        assert_eq!(PageGroup(2).pages(5).collect::<Vec<_>>(), [PageNumber(32), PageNumber(34)]);
    }

    #[test]
    fn pages_are_joined_to_ranges() {
        let ranges = ranges_of([1, 2, 3, 7, 9, 10].map(PageNumber), 2);
        let ranges: Vec<_> = ranges.iter().map(|range| (range.first.0, range.pages)).collect();
        assert_eq!(ranges, [(1, 2), (3, 1), (7, 1), (9, 2)]);
    }
}
