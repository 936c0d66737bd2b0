//! The temporary table of the executor, while calls run: the executor's rights and what it wrote.

use std::ops::Range;

use crate::fault::{Mutant, mutant};
use crate::mode::CoherenceMode;
use crate::page::{PageNumber, Right};
use crate::page_list::PageList;
use crate::run_map::RunMap;

/// The temporary table. A page that is not limited may be written.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Context {
    pub(crate) mode: CoherenceMode,
    /// Pages that the executor may only read, or not access.
    limits: RunMap<Right>,
    /// Pages that are mapped writable: written, and newer than the full table says.
    pub(crate) dirty: RunMap<()>,
    /// With partial store order: copies that the caller may have overwritten since.
    pub(crate) stale: RunMap<()>,
    /// Written pages of which the caller has not been told.
    pub(crate) unannounced: RunMap<()>,
    /// All pages that were written since the context began.
    pub(crate) written: RunMap<()>,
}

impl Context {
    /// The table for a caller with these resident pages (figure 8): what the caller may write is absent here, and what it may
    /// read is read-only. With shared writes readable pages may be written on both sides.
    pub(crate) fn new(mode: CoherenceMode, resident: &PageList) -> Context {
        let mut limits = RunMap::default();
        for (pages, right) in resident.runs() {
            match (right, mode) {
                (Right::Read, mode) if mode.shares_writes() => {}
                (Right::Write, mode) if mode.shares_writes() && mutant(Mutant::TakeUnsent) => {}
                (Right::Write, _) => limits.insert(pages, Right::None),
                (_, _) if mutant(Mutant::LeaveWritable) => {}
                (_, _) => limits.insert(pages, Right::Read),
            }
        }
        let empty = RunMap::default;
        Context { mode, limits, dirty: empty(), stale: empty(), unannounced: empty(), written: empty() }
    }

    pub(crate) fn right(&self, page: PageNumber) -> Right {
        self.limits.get(page).unwrap_or(Right::Write)
    }

    pub(crate) fn set_right(&mut self, page: PageNumber, right: Right) {
        match right {
            Right::Write => _ = self.limits.take(page),
            Right::None | Right::Read => self.limits.set(page, right),
        }
    }

    /// Merges the list of another call. In coherent mode the table already says all that a list can say, since each message that
    /// changed the caller's rights came before the list: so merging is comparing. `in_transit` says which pages are on their way,
    /// where the list may be ahead of the table.
    ///
    /// Returns whether the list agrees.
    pub(crate) fn agrees(&self, resident: &PageList, in_transit: impl Fn(PageNumber) -> bool) -> bool {
        if self.mode != CoherenceMode::Coherent {
            return true;
        }
        resident.runs().all(|(pages, right)| {
            let most = if right == Right::Write { Right::None } else { Right::Read };
            let mut at = pages.start;
            let is_right = |from: u64, to: u64| (from..to).all(|page| in_transit(PageNumber(page)));
            for (limited, here) in self.limits.runs_in(pages.clone()) {
                // Stops at the first page that is neither limited enough nor on its way.
                if !is_right(at, limited.start) || (here > most && !is_right(limited.start, limited.end)) {
                    return false;
                }
                at = limited.end;
            }
            is_right(at, pages.end)
        })
    }

    /// The caller has dropped the contents of pages, and has them now.
    pub(crate) fn discard(&mut self, pages: Range<u64>) {
        for set in [&mut self.dirty, &mut self.stale, &mut self.unannounced, &mut self.written] {
            set.remove(pages.clone());
        }
        self.limits.insert(pages, Right::None);
    }

    /// A page was written.
    pub(crate) fn note_write(&mut self, page: PageNumber) {
        self.dirty.set(page, ());
        self.unannounced.set(page, ());
        self.written.set(page, ());
    }
}
