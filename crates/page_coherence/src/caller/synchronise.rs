//! Synchronisation points of the caller: `syncmem`, pulls, and services for functions.

use std::ops::Range;

use super::{CallerSide, SYNC_PAGES_MAX};
use crate::fault::{Mutant, mutant};
use crate::message::ToExecutor;
use crate::mode::CoherenceMode;
use crate::output::{CallerOutput, Output};
use crate::page::{PAGE_BYTES, PAGE_NUMBERS, PageBytes, PageNumber, Right};

impl CallerSide {
    /// A synchronisation point of the caller for `bytes` bytes from `address` (section 4.2), before or during a call. What it wrote
    /// there is home before anything that it sends later, and it drops copies that are older than what the executor has announced.
    /// With coherence off it sends what was written to exactly the bytes of the range, of pages that both sides have; otherwise it
    /// sends the pages that the range touches.
    ///
    /// Returns the address from which to go on, if the range had more than [`SYNC_PAGES_MAX`] dirty pages.
    pub fn syncmem(&mut self, address: u64, bytes: u64, out: &mut Vec<CallerOutput>) -> Option<u64> {
        let (pages, end) = page_range(address, bytes);
        for page in self.stale_in(pages.clone()) {
            self.drop_copy(page, out);
        }
        let dirty = self.dirty.runs_in(pages).flat_map(|(pages, ())| pages).map(PageNumber);
        let mut batch: Vec<PageNumber> = dirty.take(SYNC_PAGES_MAX + 1).collect();
        let rest = (batch.len() > SYNC_PAGES_MAX).then(|| batch.pop()).flatten();
        for page in batch {
            let part = part_of(page, address, end);
            if self.mode == Some(CoherenceMode::Off) && !part.is_whole() && !self.has_alone(page) {
                out.push(Output::Send(ToExecutor::Push(part)));
                self.overtake_pulls(page.0..page.0 + 1);
                continue;
            }
            // With shared writes the caller may go on writing; otherwise both sides may read from now on.
            let is_shared = self.mode.is_some_and(CoherenceMode::shares_writes);
            self.send_home(page, if is_shared { Right::Write } else { Right::Read }, out);
        }
        rest.map(|page| (page.0 * PAGE_BYTES).max(address))
    }

    /// With coherence off, asks for the executor's bytes of a range; they arrive in the caller's copies of the pages, except where
    /// the caller has written bytes itself since it last sent them.
    /// Pages that are not resident need no request: the next access fetches them. Nor do those of which only the caller has the
    /// contents.
    ///
    /// Returns the address from which to go on, if the range had more than [`SYNC_PAGES_MAX`] pages to ask for.
    pub fn pull(&mut self, address: u64, bytes: u64, out: &mut Vec<CallerOutput>) -> Option<u64> {
        let (pages, end) = page_range(address, bytes);
        let resident = self.rights.runs_in(pages).flat_map(|(pages, _)| pages).map(PageNumber);
        let mut shared = resident.filter(|page| !self.has_alone(*page));
        let asked: Vec<PageNumber> = shared.by_ref().take(SYNC_PAGES_MAX).collect();
        let rest = shared.next().map(|page| page.0 * PAGE_BYTES);
        for page in asked {
            self.pulls.push_back((page, false));
            out.push(Output::Send(ToExecutor::Pull(part_of(page, address, end))));
        }
        rest
    }

    /// The caller is about to do for a function what may read the function's memory, and write to it: a system call. Old copies are
    /// dropped.
    pub fn before_service(&mut self, out: &mut Vec<CallerOutput>) {
        for page in self.stale_in(0..u64::MAX) {
            self.drop_copy(page, out);
        }
    }

    /// It is done. What was written for the function, and what threads of the caller wrote beside it, is home before anything that is
    /// sent later.
    pub fn after_service(&mut self, out: &mut Vec<CallerOutput>) {
        if !mutant(Mutant::KeepServed) {
            self.send_differences(out);
        }
    }

    /// Sends home what the caller wrote to pages that both sides may write.
    pub(super) fn send_differences(&mut self, out: &mut Vec<CallerOutput>) {
        let shared: Vec<PageNumber> = self.twins.pages().collect();
        for page in shared {
            self.send_home(page, Right::Write, out);
        }
    }
}

/// The pages that a range of bytes touches, and the address behind it. A range without bytes touches none.
fn page_range(address: u64, bytes: u64) -> (Range<u64>, u64) {
    let end = address.saturating_add(bytes).min(PAGE_NUMBERS * PAGE_BYTES);
    let first = address / PAGE_BYTES;
    (first..if end > address { end.div_ceil(PAGE_BYTES) } else { first }, end)
}

/// The bytes of a page that lie between two addresses.
fn part_of(page: PageNumber, from: u64, to: u64) -> PageBytes {
    let start = page.0 * PAGE_BYTES;
    let offset = from.max(start) - start;
    let end = to.min(start + PAGE_BYTES) - start;
    PageBytes { page, offset: offset as u16, count: (end - offset) as u16 }
}
