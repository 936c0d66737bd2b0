//! Synchronisation points of this side in the weaker modes of coherence, and what has to be known of the modes.

use std::ops::Range;

use bare::PAGE_BYTES;
use page_coherence::{CoherenceMode, PAGE_NUMBERS, PageNumber, Right};

use crate::caller::{Caller, FETCHES_MAX, pages_of};

/// The mode that flags of `heddle_pushdown` name; `None` if they are unknown.
pub(crate) fn mode_of(flags: u32) -> Option<CoherenceMode> {
    match flags {
        0 => Some(CoherenceMode::Coherent),
        1 => Some(CoherenceMode::Pso),
        2 => Some(CoherenceMode::WeakOrdering),
        3 => Some(CoherenceMode::Off),
        _ => None,
    }
}

/// How far a `heddle_pullmem` is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pulling {
    /// From this address on it goes on.
    From(u64),
    /// It is done with this batch.
    Until(u64),
}

impl Caller {
    /// A synchronisation point for a range: what was written there is sent home, and what is known to be old is given up. Returns
    /// whether it was done; not while the process forks, since the child must find all pages here.
    pub(crate) fn syncmem(&mut self, address: u64, bytes: u64) -> bool {
        // What the executor has said so far counts.
        self.handle_messages(false);
        if self.forks.is_holding() {
            return false;
        }
        let end = address.saturating_add(bytes);
        // Memory for which no function has asked yet goes home too.
        self.introduce(&pages_of(address, end));
        for run in self.registered_bytes(address, end) {
            let mut at = run.start;
            while at < run.end && !self.is_lost {
                let mut out = Vec::new();
                let next = self.side.syncmem(at, run.end - at, &mut out);
                let done = self.carry_out(out, &[]);
                self.check(done);
                at = next.unwrap_or(run.end);
            }
        }
        true
    }

    /// The parts of a range of bytes whose faults the kernel reports. Nothing else can be protected, and the executor has nothing
    /// else.
    fn registered_bytes(&self, start: u64, end: u64) -> Vec<Range<u64>> {
        let page = PAGE_BYTES as u64;
        let runs = self.pages.registered_in(pages_of(start, end)).into_iter();
        let cut = runs.map(|run| (run.start * page).max(start)..(run.end * page).min(end));
        cut.filter(|run| !run.is_empty()).collect()
    }

    /// Whether `heddle_pullmem` has to ask for bytes. In other modes a synchronisation point does what it is for.
    pub(crate) fn has_bytes_to_pull(&self) -> bool {
        self.side.mode() == Some(CoherenceMode::Off) && !self.is_lost
    }

    /// Asks for some of the executor's bytes of a range that ends at `end`. `None`: it has to wait, as long as answers to others are on
    /// their way.
    pub(crate) fn pull(&mut self, at: u64, end: u64) -> Option<Pulling> {
        if !self.has_bytes_to_pull() {
            return Some(Pulling::Until(self.pulls.begun));
        }
        if self.pulls.open > 0 {
            return None;
        }
        let most = (at / PAGE_BYTES as u64 + FETCHES_MAX as u64) * PAGE_BYTES as u64;
        let stop = end.min(most);
        let mut out = Vec::new();
        for run in self.registered_bytes(at, stop) {
            // So few pages are asked for at once.
            let rest = self.side.pull(run.start, run.end - run.start, &mut out);
            debug_assert_eq!(rest, None);
        }
        if !out.is_empty() {
            self.pulls.begun += 1;
        }
        let done = self.carry_out(out, &[]);
        self.check(done);
        Some(if stop < end { Pulling::From(stop) } else { Pulling::Until(self.pulls.begun) })
    }

    /// Whether a batch has come, or none will.
    pub(crate) fn has_pulled(&self, batch: u64) -> bool {
        self.is_lost || self.pulls.done >= batch
    }

    /// A thread is about to make a system call for its function: the kernel has to find what the function wrote. Returns whether it may;
    /// not while the process forks.
    pub(crate) fn before_service(&mut self) -> bool {
        if self.forks.is_holding() {
            return false;
        }
        if !self.is_lost {
            let mut out = Vec::new();
            self.side.before_service(&mut out);
            let done = self.carry_out(out, &[]);
            self.check(done);
        }
        true
    }

    /// The system call has returned. The function finds what the kernel wrote.
    pub(crate) fn after_service(&mut self) {
        if !self.is_lost {
            let mut out = Vec::new();
            self.side.after_service(&mut out);
            let done = self.carry_out(out, &[]);
            self.check(done);
        }
    }

    /// Whether both sides may be writing the same pages.
    pub(crate) fn shares_writes(&self) -> bool {
        self.side.mode().is_some_and(CoherenceMode::shares_writes)
    }

    /// The parts of a range of which the executor has to hear when the program drops them: it may have a copy.
    pub(crate) fn known_elsewhere(&self, pages: Range<u64>) -> Vec<Range<u64>> {
        match self.side.mode() {
            None | Some(CoherenceMode::Coherent) => self.not_owned(pages),
            // In weaker modes a right of this side says nothing about the other's.
            Some(_) => vec![pages],
        }
    }

    /// The pages of a range that have to be brought here before the program can go on without the executor.
    pub(crate) fn to_bring(&self, pages: Range<u64>) -> Vec<Range<u64>> {
        if !self.shares_writes() {
            return self.not_owned(pages);
        }
        // The pages that are here are this side's view of them, which it may write.
        let mut away = page_coherence::RunMap::default();
        away.insert(pages.clone(), ());
        self.side.resident().runs_in(pages).for_each(|(run, _)| away.remove(run));
        away.runs().map(|(run, ())| run).collect()
    }

    /// The pages of a range that both sides have, and may be writing.
    pub(crate) fn shared_in(&self, pages: Range<u64>) -> Vec<PageNumber> {
        if !self.shares_writes() {
            return Vec::new();
        }
        let resident = self.side.resident().runs_in(pages.start..pages.end.min(PAGE_NUMBERS));
        let here = resident.filter(|(_, right)| *right != Right::None).flat_map(|(run, _)| run).map(PageNumber);
        here.filter(|page| !self.side.has_alone(*page)).collect()
    }
}
