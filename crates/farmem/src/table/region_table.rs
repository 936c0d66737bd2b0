//! The table itself: states, budget, eviction. See [the module](super) for the protocol.

use std::collections::TryReserveError;

use super::entry::{PageAccess, PageEntry, PageState};
use super::span_queue::{SpanNumber, SpanQueue};
use super::stream::{ReadAhead, StreamTable};
use crate::mutant::{Mutant, mutant};
use crate::page::{PageNumber, PageRange, ranges_of};

/// Pages of the smallest span: 64 KiB.
const SPAN_PAGES_MIN: u32 = 16;
/// Pages of the largest span: 2 MiB.
pub const SPAN_PAGES_MAX: u32 = 512;
/// A span is this part of the budget, so that the clock has something to choose from.
const SPANS_OF_BUDGET: u32 = 32;
/// This part of the budget is kept free for faults, which then need not wait for an eviction.
const FREE_PART: u32 = 16;
/// This part of the pages that streams want free is wanted no more after a fault that continues no stream.
const FADE_PART: u32 = 16;
/// Pages of the smallest budget: what a write-back, a stream and some threads need at the same time.
pub const BUDGET_PAGES_MIN: u32 = 64;

/// What the driver does about a fault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FaultPlan {
    /// The page is as the access needs it by now: wake its threads.
    Wake,
    /// The page is in flight. The end of that operation wakes its threads.
    Wait,
    /// The budget is used up: evict, then report the fault again.
    NoRoom,
    /// Lift the write-protection of the page, and wake its threads.
    Unprotect,
    /// Map zeros, writable.
    Zero(PageRange),
    /// Read the page from the store and map it; then the ranges ahead.
    Fill {
        /// Whether the page is mapped writable.
        writable: bool,
        /// Ranges that are read ahead, mapped likewise.
        ahead: Vec<PageRange>,
    },
    /// The page's bytes are gone.
    Lost,
}

/// Pages to evict: some of one span.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Eviction {
    /// Clean pages that the store holds, in order, joined to ranges.
    pub to_drop: Vec<PageRange>,
    /// The other pages, likewise.
    pub to_write: Vec<PageRange>,
}

/// Counts since the region was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RegionStats {
    /// Faults that were served or had to wait.
    pub faults: u64,
    /// Faults on pages that were filled from the store.
    pub fills: u64,
    /// First writes to clean pages.
    pub first_writes: u64,
    /// Pages that were filled with zeros.
    pub zero_pages: u64,
    /// Pages that were read ahead of a stream.
    pub prefetched_pages: u64,
    /// Pages of those that their stream has passed. User space cannot see whether it touched each of them.
    pub prefetch_hits: u64,
    /// Pages that were evicted.
    pub evicted_pages: u64,
    /// Pages that were written back.
    pub written_pages: u64,
    /// Pages whose write-back failed and that are resident again.
    pub restored_pages: u64,
    /// Pages that are lost.
    pub lost_pages: u64,
    /// Pages that count towards the budget now.
    pub resident_pages: u64,
}

impl RegionStats {
    /// Adds the counts of another region.
    pub fn add(&mut self, other: &RegionStats) {
        self.faults += other.faults;
        self.fills += other.fills;
        self.first_writes += other.first_writes;
        self.zero_pages += other.zero_pages;
        self.prefetched_pages += other.prefetched_pages;
        self.prefetch_hits += other.prefetch_hits;
        self.evicted_pages += other.evicted_pages;
        self.written_pages += other.written_pages;
        self.restored_pages += other.restored_pages;
        self.lost_pages += other.lost_pages;
        self.resident_pages += other.resident_pages;
    }
}

/// The page table of one region. The child of a fork begins with a clone of its parent's.
#[derive(Clone)]
pub struct RegionTable {
    pages: Vec<PageEntry>,
    budget: u32,
    span_pages: u32,
    /// Filling, clean, dirty and leaving pages, and those that are discarded while they are resident.
    used: u32,
    filling: u32,
    leaving: u32,
    discarding: u32,
    /// Nothing begins that would change which pages are resident.
    is_frozen: bool,
    queue: SpanQueue,
    streams: StreamTable,
    /// Pages that streams would fetch ahead at once, if there were room; it fades with faults that are no streams'.
    wanted_ahead: u32,
    evictions: u32,
    stats: RegionStats,
}

impl RegionTable {
    /// The table of a region of `pages` untouched pages, of which `budget` may be resident. The caller has checked both.
    ///
    /// # Errors
    /// There is no memory for the entries.
    pub fn new(pages: u32, budget: u32) -> Result<RegionTable, TryReserveError> {
        assert!(budget >= BUDGET_PAGES_MIN && pages > 0, "the caller has checked both");
        let span_pages = (budget / SPANS_OF_BUDGET).max(1).next_power_of_two().clamp(SPAN_PAGES_MIN, SPAN_PAGES_MAX);
        let mut entries = Vec::new();
        entries.try_reserve_exact(pages as usize)?;
        entries.resize(pages as usize, PageEntry::default());
        Ok(RegionTable {
            pages: entries,
            budget,
            span_pages,
            used: 0,
            filling: 0,
            leaving: 0,
            discarding: 0,
            is_frozen: false,
            queue: SpanQueue::new(pages.div_ceil(span_pages)),
            streams: StreamTable::new(budget / 8),
            wanted_ahead: 0,
            evictions: 0,
            stats: RegionStats::default(),
        })
    }

    /// The state of a page.
    pub fn state(&self, page: PageNumber) -> PageState {
        self.pages[page.index()].state
    }

    /// Counts so far.
    pub fn stats(&self) -> RegionStats {
        RegionStats { resident_pages: u64::from(self.used), ..self.stats }
    }

    /// How many pages more fit into the budget.
    pub fn free(&self) -> u32 {
        self.budget.saturating_sub(self.used)
    }

    /// Whether the pages that are not leaving use up so much of the budget that more should leave: so much that faults would
    /// have to wait for evictions, or streams could not be read ahead.
    pub fn wants_eviction(&self) -> bool {
        let free = (self.budget / FREE_PART).max(SPAN_PAGES_MIN).max(self.wanted_ahead);
        self.used - self.leaving > self.budget - free
    }

    /// Plans what to do about a fault.
    pub fn fault(&mut self, page: PageNumber, access: PageAccess) -> FaultPlan {
        let entry = self.pages[page.index()];
        match (entry.state, access) {
            (PageState::Clean, PageAccess::Read) => FaultPlan::Wake,
            (PageState::Clean, PageAccess::Write) => {
                if !mutant(Mutant::MissFirstWrite) {
                    self.pages[page.index()].state = PageState::Dirty;
                }
                self.stats.faults += 1;
                self.stats.first_writes += 1;
                FaultPlan::Unprotect
            }
            // A page that has just become dirty may still be protected for a thread that faulted before that.
            (PageState::Dirty, _) => FaultPlan::Unprotect,
            (PageState::Leaving, _) if mutant(Mutant::FillWhileLeaving) => {
                FaultPlan::Fill { writable: access == PageAccess::Write, ahead: Vec::new() }
            }
            (PageState::Filling | PageState::Leaving | PageState::Discarding, _) => FaultPlan::Wait,
            (PageState::Lost, _) => FaultPlan::Lost,
            (PageState::Untouched | PageState::Remote, _) => self.fill(page, access, entry),
        }
    }

    fn fill(&mut self, page: PageNumber, access: PageAccess, entry: PageEntry) -> FaultPlan {
        if self.free() == 0 && !mutant(Mutant::FillBeyondBudget) {
            return FaultPlan::NoRoom;
        }
        self.stats.faults += 1;
        // A frozen table stays as it is but for this page.
        let ahead = self.streams.note_fault(page).filter(|_| !self.is_frozen);
        match ahead {
            Some(ahead) => {
                let passed = u64::from(ahead.passed.pages);
                self.stats.prefetch_hits = (self.stats.prefetch_hits + passed).min(self.stats.prefetched_pages);
                // Half of what is free is read ahead (`free_for_ahead`), and a window is at most an eighth of the budget.
                self.wanted_ahead = ahead.range.pages * 2;
            }
            None => self.wanted_ahead -= self.wanted_ahead.div_ceil(FADE_PART),
        }
        if entry.state == PageState::Untouched {
            let end = ahead.map_or(page.0 + 1, |ahead| ahead.range.end()).min(self.pages.len() as u32);
            let count =
                (page.0..end).take_while(|page| self.pages[*page as usize].state == PageState::Untouched).count();
            let range = PageRange { first: page, pages: (count as u32).min(self.free_for_ahead() + 1) };
            range.iter().for_each(|page| self.start_filling(page, true));
            self.stats.zero_pages += u64::from(range.pages);
            return FaultPlan::Zero(range);
        }
        self.stats.fills += 1;
        let writable = access == PageAccess::Write;
        self.start_filling(page, writable);
        let soon = self.evictions.wrapping_sub(entry.evicted_at) < self.budget;
        self.pages[page.index()].is_hot = soon && !mutant(Mutant::NoSecondChance);
        let ahead = ahead.map_or_else(Vec::new, |ahead| self.fill_ahead(&ahead, writable));
        FaultPlan::Fill { writable, ahead }
    }

    /// Pages that may be fetched ahead: half of what is free, so that faults do not wait for pages that may never be used.
    fn free_for_ahead(&self) -> u32 {
        self.free() / 2
    }

    fn fill_ahead(&mut self, ahead: &ReadAhead, writable: bool) -> Vec<PageRange> {
        let end = ahead.range.end().min(self.pages.len() as u32);
        let pages: Vec<PageNumber> = (ahead.range.first.0..end)
            .map(PageNumber)
            .filter(|page| Some(*page) != ahead.trigger && self.state(*page) == PageState::Remote)
            .take(self.free_for_ahead() as usize)
            .collect();
        for page in &pages {
            self.start_filling(*page, writable);
        }
        self.stats.prefetched_pages += pages.len() as u64;
        ranges_of(pages, SPAN_PAGES_MAX)
    }

    fn start_filling(&mut self, page: PageNumber, is_dirty: bool) {
        let entry = &mut self.pages[page.index()];
        *entry = PageEntry { state: PageState::Filling, is_dirty, is_hot: false, ..*entry };
        self.used += 1;
        self.filling += 1;
    }

    /// The bytes of these pages are mapped, as the plan said.
    pub fn filled(&mut self, range: PageRange) {
        for page in range.iter() {
            let entry = &mut self.pages[page.index()];
            assert!(entry.state == PageState::Filling || mutant(Mutant::FillWhileLeaving), "a page is filled once");
            entry.state = if entry.is_dirty { PageState::Dirty } else { PageState::Clean };
            self.queue.add(self.span_of(page));
        }
        self.filling -= range.pages;
    }

    /// These pages could not be read now. Nothing is mapped; the store still has them.
    pub fn not_filled(&mut self, range: PageRange) {
        for page in range.iter() {
            self.set_absent(page, PageState::Filling, PageState::Remote);
        }
        self.filling -= range.pages;
    }

    /// The store has lost these pages, which were being filled. Nothing is mapped.
    pub fn lost(&mut self, range: PageRange) {
        for page in range.iter() {
            let now = if mutant(Mutant::LostIsZero) { PageState::Untouched } else { PageState::Lost };
            self.set_absent(page, PageState::Filling, now);
        }
        self.filling -= range.pages;
        self.stats.lost_pages += u64::from(range.pages);
    }

    /// The program is about to drop these pages. False if some are in flight, and nothing was begun: ask again.
    pub fn begin_discard(&mut self, range: PageRange) -> bool {
        let is_in_flight = |page: PageNumber| {
            matches!(self.state(page), PageState::Filling | PageState::Leaving | PageState::Discarding)
        };
        if self.is_frozen || (range.iter().any(is_in_flight) && !mutant(Mutant::DiscardInFlight)) {
            return false;
        }
        for page in range.iter() {
            let entry = &mut self.pages[page.index()];
            entry.is_resident = matches!(entry.state, PageState::Clean | PageState::Dirty);
            entry.state = PageState::Discarding;
            if entry.is_resident {
                self.queue.remove(self.span_of(page));
            }
        }
        self.discarding += range.pages;
        true
    }

    /// The program has dropped these pages, and the store has forgotten them.
    pub fn discarded(&mut self, range: PageRange) {
        for page in range.iter() {
            let entry = &mut self.pages[page.index()];
            assert_eq!(entry.state, PageState::Discarding, "a page is discarded once");
            entry.state = if mutant(Mutant::DiscardedIsRemote) { PageState::Remote } else { PageState::Untouched };
            entry.is_hot = false;
            self.used -= u32::from(entry.is_resident);
        }
        self.discarding -= range.pages;
    }

    /// Whether these pages are being discarded: what a program says about its pages has to be checked.
    pub fn is_discarding(&self, range: PageRange) -> bool {
        range.iter().all(|page| self.state(page) == PageState::Discarding)
    }

    /// From now on nothing begins that changes which pages are resident, but for faults that the driver reports. Returns whether
    /// nothing of it is going on any more.
    pub fn freeze(&mut self) -> bool {
        self.is_frozen = true;
        self.filling + self.leaving + self.discarding == 0
    }

    /// Ends what [`RegionTable::freeze`] began.
    pub fn thaw(&mut self) {
        self.is_frozen = false;
    }

    /// The table of the child of a fork, in which the same pages are resident. `None` unless the table is frozen and nothing is
    /// going on.
    pub fn fork(&self) -> Option<RegionTable> {
        let is_quiet = self.is_frozen && self.filling + self.leaving + self.discarding == 0;
        is_quiet.then(|| RegionTable { is_frozen: false, stats: RegionStats::default(), ..self.clone() })
    }

    /// Chooses pages to evict, of one span; `None` if no page can leave now. `holds` says whether the store holds a page.
    pub fn begin_eviction(&mut self, holds: impl Fn(PageNumber) -> bool) -> Option<Eviction> {
        if self.is_frozen {
            return None;
        }
        // A span may consist of hot pages or of pages in flight. After one round no page is hot any more.
        for _ in 0..=2 * self.queue.queued() {
            let span = self.queue.next_span()?;
            let start = span.0 * self.span_pages;
            let end = (start + self.span_pages).min(self.pages.len() as u32);
            let (mut to_drop, mut to_write) = (Vec::new(), Vec::new());
            for page in (start..end).map(PageNumber) {
                let entry = &mut self.pages[page.index()];
                entry.is_dirty = match entry.state {
                    PageState::Clean => !holds(page) && !mutant(Mutant::DropUnheld),
                    PageState::Dirty => !mutant(Mutant::DropDirty),
                    PageState::Filling if mutant(Mutant::EvictFilling) => false,
                    _ => continue,
                };
                if std::mem::take(&mut entry.is_hot) {
                    continue;
                }
                entry.state = PageState::Leaving;
                self.leaving += 1;
                self.queue.remove(span);
                if entry.is_dirty { &mut to_write } else { &mut to_drop }.push(page);
            }
            if to_drop.len() + to_write.len() > 0 {
                let [to_drop, to_write] = [to_drop, to_write].map(|pages| ranges_of(pages, SPAN_PAGES_MAX));
                return Some(Eviction { to_drop, to_write });
            }
        }
        None
    }

    /// These clean pages were dropped.
    pub fn dropped(&mut self, range: PageRange) {
        range.iter().for_each(|page| self.leave(page, PageState::Remote));
    }

    /// The kernel refused to move these pages, which a device is using: they stay resident.
    pub fn stayed(&mut self, range: PageRange) {
        // A clean page whose copy was lost stays write-protected, which a dirty page may be.
        range.iter().for_each(|page| self.stay(page, PageState::Dirty));
    }

    /// The store has acknowledged the bytes of these pages.
    pub fn written(&mut self, range: PageRange) {
        range.iter().for_each(|page| self.leave(page, PageState::Remote));
        self.stats.written_pages += u64::from(range.pages);
    }

    /// All bytes of these leaving pages are zero, and the store keeps no copy.
    pub fn left_zero(&mut self, range: PageRange) {
        range.iter().for_each(|page| self.leave(page, PageState::Untouched));
    }

    /// The store did not take these pages. They are mapped again, writable.
    pub fn restored(&mut self, range: PageRange) {
        for page in range.iter() {
            if mutant(Mutant::ForgetFailedWrite) {
                self.leave(page, PageState::Remote);
                continue;
            }
            self.stay(page, PageState::Dirty);
        }
        self.stats.restored_pages += u64::from(range.pages);
    }

    fn stay(&mut self, page: PageNumber, state: PageState) {
        let entry = &mut self.pages[page.index()];
        assert_eq!(entry.state, PageState::Leaving, "a page leaves once");
        entry.state = state;
        self.leaving -= 1;
        self.queue.add(self.span_of(page));
    }

    fn leave(&mut self, page: PageNumber, state: PageState) {
        self.set_absent(page, PageState::Leaving, state);
        self.leaving -= 1;
        self.evictions = self.evictions.wrapping_add(1);
        self.pages[page.index()].evicted_at = self.evictions;
        self.stats.evicted_pages += 1;
    }

    fn set_absent(&mut self, page: PageNumber, from: PageState, to: PageState) {
        let entry = &mut self.pages[page.index()];
        assert_eq!(entry.state, from, "one operation at a time has page {}", page.0);
        entry.state = to;
        self.used -= 1;
    }

    fn span_of(&self, page: PageNumber) -> SpanNumber {
        SpanNumber(page.0 / self.span_pages)
    }
}
