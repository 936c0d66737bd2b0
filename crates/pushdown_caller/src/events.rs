//! What the kernel reports of memory, and what the program does with it: faults, discards, moves, protection.

use std::ops::Range;

use bare::PAGE_BYTES;
use bare::userfault::Event;
use page_coherence::{Access, CallerOutput, PageNumber, Right, RunMap};
use pushdown::{MappingKind, ToExecutor};

use crate::caller::{Broken, Caller, FETCHES_MAX, pages_of};
use crate::message::end_program;

/// Pages that are asked for ahead, at most.
const AHEAD_MAX: u64 = 32;
/// How often a moved page is looked for before messages are handled all the same.
const REMAP_TURNS: u32 = 1000;

impl Caller {
    /// Handles what the kernel reports, as far as it has come.
    pub(crate) fn handle_events(&mut self) {
        // Each event is handled to its end before the next one.
        let was_draining = std::mem::replace(&mut self.is_draining, true);
        while let Some(event) = self.pages.next_event() {
            let handled = self.handle_event(event).and_then(|()| self.evict_far_pages());
            self.check(handled);
        }
        self.is_draining = was_draining;
    }

    pub(crate) fn handle_event(&mut self, event: Event) -> Result<(), Broken> {
        self.events_handled += 1;
        match event {
            Event::Fault { address, is_write, is_protected } => {
                // `MADV_FREE` is reported as if the page were dropped.
                if is_protected {
                    self.pages.note_protected(PageNumber(address / PAGE_BYTES as u64));
                }
                self.fault(address, is_write)
            }
            Event::Dropped(start, end) => {
                self.pages.may_be_dropped(pages_of(start, end));
                self.discard(start, end)
            }
            Event::Unmapped(start, end) => self.unmapped(start, end),
            Event::Remapped(from, to, bytes) => self.remapped(from, to, bytes),
            Event::Other => Ok(()),
        }
    }

    fn fault(&mut self, address: u64, is_write: bool) -> Result<(), Broken> {
        let page = PageNumber(address / PAGE_BYTES as u64);
        let access = if is_write { Access::Write } else { Access::Read };
        if self.is_lost && self.side.right(page) == Right::None {
            end_program(&format!(
                "the executor of pushed-down functions is gone, and with it the page at {address:#x}"
            ));
        }
        // The program may read it, and it is not there: it was dropped after the kernel had said so, and after the executor got it.
        if !is_write && self.side.right(page) == Right::Read && self.pages.fill_absent(page)? {
            self.discard(address, address + 1)?;
        }
        let mut out = Vec::new();
        if self.side.right(page) == Right::None && !self.side.is_waiting(page) {
            self.history.note(self.returned_last, page, access);
            self.read_ahead(page, access, &mut out);
        }
        self.side.fault(page, access, &mut out);
        self.carry_out(out, &[])
    }

    /// Asks for the pages behind one that the executor has, if the program goes through memory in order.
    fn read_ahead(&mut self, page: PageNumber, access: Access, out: &mut Vec<CallerOutput>) {
        let (next, last) = self.stream;
        let count = if page.0 == next { (last * 2).clamp(1, AHEAD_MAX) } else { 0 };
        self.stream = (page.0 + count + 1, count);
        for page in (page.0 + 1..=page.0 + count).map(PageNumber) {
            if self.is_away(page) {
                self.side.fault(page, access, out);
            }
        }
    }

    /// The program drops pages.
    fn discard(&mut self, start: u64, end: u64) -> Result<(), Broken> {
        let pages = pages_of(start, end);
        self.pages.dropped(pages.clone());
        for page in self.far.resident_in(&pages) {
            self.far.unmapped(page);
        }
        // Nobody else knows of pages that the program owns.
        let away: Vec<Range<u64>> = self.known_elsewhere(pages);
        for run in away {
            let mut out = Vec::new();
            self.side.discard(run, &mut out);
            if !self.is_lost {
                self.carry_out(out, &[])?;
            }
        }
        Ok(())
    }

    /// The pages of a range that have to be here before a fork: not far memory, which the child does not have.
    pub(crate) fn near_to_bring(&self, pages: Range<u64>) -> Vec<Range<u64>> {
        let mut away = RunMap::default();
        self.to_bring(pages).into_iter().for_each(|run| away.insert(run, ()));
        self.far.leave_out(&mut away);
        away.runs().map(|(run, ())| run).collect()
    }

    /// Memory is about to be registered. All of it is the program's: what the executor has there, because it asked for a page when
    /// the memory was unmapped already, is of memory that was there before.
    pub(crate) fn own_unregistered(&mut self, start: u64, end: u64) -> Result<(), Broken> {
        for run in self.pages.unregistered_in(pages_of(start, end)) {
            self.discard(run.start * PAGE_BYTES as u64, run.end * PAGE_BYTES as u64)?;
        }
        Ok(())
    }

    /// The parts of a range that the program does not own.
    pub(crate) fn not_owned(&self, pages: Range<u64>) -> Vec<Range<u64>> {
        let mut away = RunMap::default();
        away.insert(pages.clone(), ());
        for (run, right) in self.side.resident().runs_in(pages) {
            if right == Right::Write {
                away.remove(run);
            }
        }
        away.runs().map(|(run, ())| run).collect()
    }

    fn unmapped(&mut self, start: u64, end: u64) -> Result<(), Broken> {
        self.discard(start, end)?;
        let pages = pages_of(start, end);
        if self.pages.has_registered(pages.clone()) && !self.is_lost {
            self.tell(&ToExecutor::Unmapped(start, end))?;
        }
        self.far.removed(&pages);
        self.pages.unmapped(pages);
        Ok(())
    }

    /// Memory has moved, and what the executor has of it has to follow: it comes home, to the new place. The kernel reports faults
    /// there, which are not looked at before this is done.
    fn remapped(&mut self, from: u64, to: u64, bytes: u64) -> Result<(), Broken> {
        let pages = pages_of(from, from + bytes);
        self.pages.redirect(pages.clone(), to / PAGE_BYTES as u64);
        self.is_remapping = true;
        // What the executor has at the new place is of memory that was there before.
        let followed = self.follow(&pages).and_then(|()| self.discard(to, to + bytes));
        self.is_remapping = false;
        self.pages.redirect(0..0, 0);
        followed?;
        self.pages.moved(pages, to / PAGE_BYTES as u64);
        self.unmapped(from, from + bytes)
    }

    /// Has all pages of a range come home.
    fn follow(&mut self, pages: &Range<u64>) -> Result<(), Broken> {
        // What both sides wrote merges at the executor, and comes home from there.
        for page in self.shared_in(pages.clone()) {
            let mut out = Vec::new();
            if self.side.evict(page, &mut out).is_ok() {
                self.carry_out(out, &[])?;
            }
        }
        loop {
            let away: Vec<PageNumber> = self.to_bring(pages.clone()).into_iter().flatten().map(PageNumber).collect();
            if away.is_empty() || self.is_lost {
                return Ok(());
            }
            for page in away.into_iter().take(FETCHES_MAX) {
                let mut out = Vec::new();
                self.side.fault(page, Access::Write, &mut out);
                self.carry_out(out, &[])?;
            }
            self.link.attend().look(REMAP_TURNS);
            if !self.link.is_open() {
                self.lose();
            }
            self.handle_messages(false);
            self.tick();
        }
    }

    /// The program has unmapped memory, or mapped something else in its place. The kernel reports it for ordinary memory alone.
    pub(crate) fn replaced(&mut self, start: u64, end: u64) {
        let gone: Vec<Range<u64>> = self.constant.runs_in(pages_of(start, end)).map(|(run, ())| run).collect();
        for run in gone {
            self.constant.remove(run.clone());
            if !self.is_lost {
                let page = PAGE_BYTES as u64;
                let told = self.tell(&ToExecutor::Unmapped(run.start * page, run.end * page));
                self.check(told);
            }
        }
    }

    /// The program has unloaded a library: some constant memory may be gone.
    pub(crate) fn unloaded(&mut self) {
        let runs: Vec<Range<u64>> = self.constant.runs().map(|(run, ())| run).collect();
        for run in runs {
            let (mut at, end) = (run.start * PAGE_BYTES as u64, run.end * PAGE_BYTES as u64);
            while at < end {
                match self.mappings.find(at) {
                    Some(found) if found.kind == MappingKind::Constant => at = found.end,
                    _ => {
                        self.replaced(at, at + PAGE_BYTES as u64);
                        at += PAGE_BYTES as u64;
                    }
                }
            }
        }
    }

    /// The program has changed the protection of memory.
    pub(crate) fn protected(&mut self, start: u64, end: u64, protection: u32) {
        // The executor has copies of constant memory, which may be written now.
        self.replaced(start, end);
        let told = match self.pages.has_registered(pages_of(start, end)) && !self.is_lost {
            true => self.tell(&ToExecutor::Protected { start, end, protection }),
            false => Ok(()),
        };
        self.check(told);
    }
}
