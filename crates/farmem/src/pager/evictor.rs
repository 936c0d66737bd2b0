//! The thread that evicts pages and writes them back.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::Bytes;
use base::rt;
use futures_util::future::join_all;

use super::core::PagerCore;
use super::room::EvictionOutcome;
use crate::kernel::userfault::UserFaults;
use crate::page::{PAGE_BYTES, PageNumber, PageRange, ranges_of};
use crate::report::Messages;
use crate::table::{Eviction, SPAN_PAGES_MAX};

/// The pause after a write-back that failed, or an eviction that moved no page.
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// Pages that were taken out of the program's sight.
pub(crate) struct TakenPages {
    pub(crate) range: PageRange,
    pub(crate) bytes: Bytes,
}

/// How pages are taken from the process that has them.
pub(crate) trait EvictionPath: Send {
    /// Waits until pages can be taken. False if the region ends before. No page may leave earlier: the process may need it to get so
    /// far.
    fn is_ready(&mut self) -> bool;

    /// Drops clean pages.
    ///
    /// # Errors
    /// Of the operating system.
    fn drop_pages(&mut self, ranges: &[PageRange]) -> io::Result<()>;

    /// Takes pages out of the program's sight, each atomically for every access, and appends them with their bytes. At most
    /// [`SPAN_PAGES_MAX`] pages in all. Pages that the kernel does not move, since a device is using them, are returned.
    ///
    /// # Errors
    /// Of the operating system.
    fn take(
        &mut self,
        faults: &UserFaults,
        ranges: &[PageRange],
        taken: &mut Vec<TakenPages>,
    ) -> io::Result<Vec<PageNumber>>;
}

/// Evicts pages until the region ends.
pub(super) async fn run(core: Arc<PagerCore>, mut path: Box<dyn EvictionPath>) {
    let mut failures = Messages::default();
    while core.wait_for_work() && path.is_ready() {
        let eviction = core.table().begin_eviction(|page| core.store.holds(page));
        let Some(eviction) = eviction else {
            core.obstacle.set(None);
            core.wait_for_change();
            continue;
        };
        let outcome = evict(&core, &mut *path, &eviction).await;
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

/// Evicts pages, some of which may be resident again afterwards.
async fn evict(core: &PagerCore, path: &mut dyn EvictionPath, eviction: &Eviction) -> EvictionOutcome {
    core.or_end("cannot drop pages", path.drop_pages(&eviction.to_drop));
    {
        let mut table = core.table();
        eviction.to_drop.iter().for_each(|range| table.dropped(*range));
    }
    core.announce_room();
    let mut taken = Vec::new();
    let stayed = path.take(&core.faults, &eviction.to_write, &mut taken);
    let stayed = core.or_end("cannot take pages away", stayed);
    if !stayed.is_empty() {
        let mut table = core.table();
        stayed.iter().for_each(|page| table.stayed(PageRange::of(*page)));
    }
    let mut zeros = Vec::new();
    let mut writes = Vec::new();
    for TakenPages { range, bytes } in taken {
        let page_bytes = |page: PageNumber| &bytes[(page.0 - range.first.0) as usize * PAGE_BYTES..][..PAGE_BYTES];
        let (empty, full): (Vec<PageNumber>, Vec<PageNumber>) =
            range.iter().partition(|page| is_zero(page_bytes(*page)));
        zeros.extend(ranges_of(empty, SPAN_PAGES_MAX));
        for part in ranges_of(full, SPAN_PAGES_MAX) {
            let start = (part.first.0 - range.first.0) as usize * PAGE_BYTES;
            writes.push((part, bytes.slice(start..start + part.bytes())));
        }
    }
    zeros.iter().for_each(|range| core.store.discard(*range));
    let posted = writes.iter().map(|(range, bytes)| core.store.write(*range, bytes.clone()));
    let outcomes = join_all(posted).await;
    for ((range, bytes), _) in writes.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_err()) {
        core.or_end("cannot restore a page", core.faults.copy(core.address(*range), bytes, false));
    }
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

fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks_exact(16).all(|word| word == [0; 16])
}
