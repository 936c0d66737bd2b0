//! Eviction from a region in the memory of a program, by its agent.

use std::io;
use std::sync::Arc;

use base::Bytes;
use farmem_control::{RANGES_MAX, command};

use super::link::{CommandPart, Link};
use super::memory::ProgramMemory;
use crate::kernel::userfault::UserFaults;
use crate::page::{PageNumber, PageRange};
use crate::pager::{EvictionPath, TakenPages};

/// Has the agent of a program take pages away.
pub(super) struct AgentEviction {
    memory: Arc<ProgramMemory>,
}

impl AgentEviction {
    pub(super) fn new(memory: Arc<ProgramMemory>) -> AgentEviction {
        AgentEviction { memory }
    }

    fn parts(&self, ranges: &[PageRange]) -> Vec<CommandPart> {
        ranges.iter().map(|range| (self.memory.address_of(range.first), range.pages)).collect()
    }

    /// Has pages moved, and appends them. Of each range that was not moved whole, returns the rest.
    fn take_once(
        &self,
        link: &Link,
        kind: u32,
        ranges: &[PageRange],
        taken: &mut Vec<TakenPages>,
    ) -> io::Result<Vec<PageRange>> {
        let moved = link.command(kind, &self.parts(ranges))?;
        let mut rest = Vec::new();
        let mut place = 0;
        for (range, pages) in ranges.iter().zip(moved) {
            if pages > 0 {
                let bytes = Bytes::from(link.copy_bounce(place, pages));
                taken.push(TakenPages { range: PageRange { first: range.first, pages }, bytes });
            }
            place += range.pages;
            if pages < range.pages {
                rest.push(PageRange { first: PageNumber(range.first.0 + pages), pages: range.pages - pages });
            }
        }
        Ok(rest)
    }

    /// Moves pages that the process may share with a child, or with its parent. Returns those that stay.
    fn take_shared(
        &self,
        link: &Link,
        faults: &UserFaults,
        mut ranges: Vec<PageRange>,
        taken: &mut Vec<TakenPages>,
    ) -> io::Result<Vec<PageNumber>> {
        for range in &ranges {
            // The agent makes pages the process's own by writes, and nobody would serve its faults.
            faults.unprotect(self.memory.address_of(range.first), range.bytes() as u64)?;
        }
        let mut stay = Vec::new();
        while !ranges.is_empty() {
            let rest = self.take_once(link, command::MOVE_SHARED, &ranges, taken)?;
            stay.extend(rest.iter().map(|range| range.first));
            let behind = |range: PageRange| PageRange { first: PageNumber(range.first.0 + 1), pages: range.pages - 1 };
            ranges = rest.into_iter().map(behind).filter(|range| range.pages > 0).collect();
        }
        Ok(stay)
    }
}

impl EvictionPath for AgentEviction {
    fn is_ready(&mut self) -> bool {
        self.memory.wait_for_link().is_ok()
    }

    fn drop_pages(&mut self, ranges: &[PageRange]) -> io::Result<()> {
        let link = self.memory.wait_for_link()?;
        for some in ranges.chunks(RANGES_MAX) {
            link.command(command::DROP, &self.parts(some))?;
        }
        Ok(())
    }

    fn take(
        &mut self,
        faults: &UserFaults,
        ranges: &[PageRange],
        taken: &mut Vec<TakenPages>,
    ) -> io::Result<Vec<PageNumber>> {
        let link = self.memory.wait_for_link()?;
        let shared = self.take_once(link, command::MOVE, ranges, taken)?;
        self.take_shared(link, faults, shared, taken)
    }
}
