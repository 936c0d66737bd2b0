//! Eviction from a region in the memory of this process.

use std::io;
use std::sync::Arc;

use base::Bytes;

use crate::error::Error;
use crate::kernel::dropping::PageDropper;
use crate::kernel::eviction_buffer::EvictionBuffer;
use crate::kernel::userfault::UserFaults;
use crate::own_memory::OwnMemory;
use crate::page::{PAGE_BYTES, PageNumber, PageRange};
use crate::pager::{EvictionPath, TakenPages};
use crate::table::SPAN_PAGES_MAX;

/// Moves pages into a buffer of this process.
pub(crate) struct OwnEviction {
    own: Arc<OwnMemory>,
    dropper: PageDropper,
    buffer: EvictionBuffer,
}

impl OwnEviction {
    /// Reserves the buffer.
    ///
    /// # Errors
    /// [`Error::System`].
    pub(crate) fn new(own: Arc<OwnMemory>, faults: &UserFaults) -> Result<OwnEviction, Error> {
        let buffer = EvictionBuffer::new(SPAN_PAGES_MAX as usize * PAGE_BYTES, faults)?;
        Ok(OwnEviction { own, dropper: PageDropper::new(), buffer })
    }

    /// Moves a range into the buffer, but for the pages that a device is using.
    fn take_range(
        &mut self,
        faults: &UserFaults,
        range: PageRange,
        taken: &mut Vec<TakenPages>,
        stayed: &mut Vec<PageNumber>,
    ) -> io::Result<()> {
        let mut next = range.first;
        while next.0 < range.end() {
            let left = PageRange { first: next, pages: range.end() - next.0 };
            let start = self.buffer.used();
            let address = self.own.memory.address() + left.first.offset();
            let pages = (self.buffer.take(faults, address, left.bytes() as u64)? / PAGE_BYTES as u64) as u32;
            if pages > 0 {
                let bytes = Bytes::copy_from_slice(&self.buffer.bytes()[start..]);
                taken.push(TakenPages { range: PageRange { first: left.first, pages }, bytes });
            }
            if pages < left.pages {
                stayed.push(PageNumber(left.first.0 + pages));
            }
            next = PageNumber(left.first.0 + pages + 1);
        }
        Ok(())
    }
}

impl EvictionPath for OwnEviction {
    fn is_ready(&mut self) -> bool {
        true
    }

    fn drop_pages(&mut self, ranges: &[PageRange]) -> io::Result<()> {
        let ranges: Vec<(u64, usize)> = ranges.iter().map(|range| (range.first.offset(), range.bytes())).collect();
        self.dropper.drop_ranges(&self.own.memory, &ranges)
    }

    fn take(
        &mut self,
        faults: &UserFaults,
        ranges: &[PageRange],
        taken: &mut Vec<TakenPages>,
    ) -> io::Result<Vec<PageNumber>> {
        let mut stayed = Vec::new();
        for range in ranges {
            self.take_range(faults, *range, taken, &mut stayed)?;
        }
        self.buffer.clear()?;
        Ok(stayed)
    }
}
