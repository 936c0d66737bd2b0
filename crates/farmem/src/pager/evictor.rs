//! The thread that evicts pages and writes them back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::Bytes;
use base::rt;
use futures_util::future::join_all;

use super::core::PagerCore;
use super::room::EvictionOutcome;
use crate::kernel::dropping::PageDropper;
use crate::kernel::eviction_buffer::EvictionBuffer;
use crate::page::{PAGE_BYTES, PageNumber, PageRange, ranges_of};
use crate::report::Messages;
use crate::table::{Eviction, SPAN_PAGES_MAX};

/// The pause after a write-back that failed, or an eviction that moved no page.
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// Evicts pages until the region ends.
pub(crate) async fn run(core: Arc<PagerCore>, mut buffer: EvictionBuffer) {
    let mut dropper = PageDropper::new();
    let mut failures = Messages::default();
    while core.wait_for_work() {
        let eviction = core.table().begin_eviction(|page| core.store.holds(page));
        let Some(eviction) = eviction else {
            core.obstacle.set(None);
            core.wait_for_change();
            continue;
        };
        let outcome = evict(&core, &mut dropper, &mut buffer, &eviction).await;
        core.obstacle.set(outcome.obstacle());
        core.announce_room();
        if outcome.failure.is_none() && outcome.left > 0 {
            continue;
        }
        if let Some(failure) = outcome.failure {
            let name = &core.name;
            failures.warn(|| {
                format!("far memory: pages of the region {name} could not be written back, and stay: {failure}")
            });
        }
        rt::sleep(RETRY_PAUSE).await;
    }
}

/// Pages that were moved, and where their bytes are in the buffer.
struct MovedPages {
    range: PageRange,
    offset: usize,
}

/// Evicts pages, some of which may be resident again afterwards.
async fn evict(
    core: &PagerCore,
    dropper: &mut PageDropper,
    buffer: &mut EvictionBuffer,
    eviction: &Eviction,
) -> EvictionOutcome {
    let clean: Vec<(u64, usize)> = eviction.to_drop.iter().map(|range| (range.first.offset(), range.bytes())).collect();
    core.or_end("cannot drop pages", dropper.drop_ranges(&core.memory, &clean));
    {
        let mut table = core.table();
        eviction.to_drop.iter().for_each(|range| table.dropped(*range));
    }
    core.announce_room();
    let mut moved: Vec<MovedPages> = Vec::new();
    for range in &eviction.to_write {
        move_range(core, buffer, *range, &mut moved);
    }
    let bytes = buffer.bytes();
    let mut zeros = Vec::new();
    let mut writes = Vec::new();
    for MovedPages { range, offset } in moved {
        let content = &bytes[offset..offset + range.bytes()];
        let page_bytes = |page: PageNumber| &content[(page.0 - range.first.0) as usize * PAGE_BYTES..][..PAGE_BYTES];
        let (empty, full): (Vec<PageNumber>, Vec<PageNumber>) =
            range.iter().partition(|page| is_zero(page_bytes(*page)));
        zeros.extend(ranges_of(empty, SPAN_PAGES_MAX));
        for part in ranges_of(full, SPAN_PAGES_MAX) {
            let start = (part.first.0 - range.first.0) as usize * PAGE_BYTES;
            writes.push((part, Bytes::copy_from_slice(&content[start..start + part.bytes()])));
        }
    }
    zeros.iter().for_each(|range| core.store.discard(*range));
    let posted = writes.iter().map(|(range, bytes)| core.store.write(*range, bytes.clone()));
    let outcomes = join_all(posted).await;
    for ((range, bytes), _) in writes.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_err()) {
        core.or_end("cannot restore a page", core.faults.copy(core.address(*range), bytes, false));
    }
    core.or_end("cannot empty the buffer", buffer.clear());
    let gone = eviction.to_drop.iter().chain(&zeros).map(|range| range.pages).sum();
    let mut outcome = EvictionOutcome { left: gone, failure: None };
    {
        let mut table = core.table();
        zeros.iter().for_each(|range| table.left_zero(*range));
        for ((range, _), written) in writes.iter().zip(outcomes) {
            match written {
                Ok(()) => {
                    table.written(*range);
                    outcome.left += range.pages;
                }
                Err(error) => {
                    table.restored(*range);
                    outcome.fail(error);
                }
            }
        }
    }
    // A thread that waits was told so while these pages were leaving, so before this point.
    if core.has_waiting.swap(false, Ordering::Relaxed) {
        for range in eviction.to_drop.iter().chain(&eviction.to_write) {
            core.wake(*range);
        }
    }
    outcome
}

/// Moves a range into the buffer, but for the pages that a device is using.
fn move_range(core: &PagerCore, buffer: &mut EvictionBuffer, range: PageRange, moved: &mut Vec<MovedPages>) {
    let mut left = range;
    loop {
        let offset = buffer.used();
        let outcome = buffer.take(&core.faults, core.address(left), left.bytes() as u64);
        let pages = (core.or_end("cannot take pages away", outcome) / PAGE_BYTES as u64) as u32;
        if pages > 0 {
            moved.push(MovedPages { range: PageRange { first: left.first, pages }, offset });
        }
        if pages == left.pages {
            return;
        }
        let busy = PageNumber(left.first.0 + pages);
        core.table().stayed(PageRange::of(busy));
        if busy.0 + 1 == left.end() {
            return;
        }
        left = PageRange { first: PageNumber(busy.0 + 1), pages: left.end() - busy.0 - 1 };
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks_exact(16).all(|word| word == [0; 16])
}
