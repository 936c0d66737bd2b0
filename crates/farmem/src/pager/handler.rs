//! The thread that serves faults.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::BytesMut;
use base::rt;

use super::core::PagerCore;
use crate::kernel::placement::HandlerPlacement;
use crate::page::{PageNumber, PageRange};
use crate::store::{StoreError, StoreFuture};
use crate::table::{FaultPlan, PageAccess};

/// The pause after a read that failed for now, so that the thread which needs the page does not spin.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

/// Serves faults until the doorbell rings.
pub(crate) async fn run(core: Arc<PagerCore>) {
    let mut placement = HandlerPlacement::default();
    let mut arrived = Vec::new();
    let mut handler = Handler { core: &core, buffer: BytesMut::new() };
    loop {
        arrived.clear();
        core.or_end("cannot read page faults", core.faults.wait(&mut arrived));
        for fault in &arrived {
            if core.is_doorbell(fault.address) {
                // Nobody else may ring, or touch the region any more.
                return core.or_end("cannot end", core.answer_doorbell());
            }
            placement.follow(fault.thread);
            // The buffer of evicted pages is registered too, and never touched while a page of it is absent.
            let page = core.page_at(fault.address).expect("only the region's own memory faults");
            let access = if fault.is_write { PageAccess::Write } else { PageAccess::Read };
            handler.serve(page, access).await;
        }
    }
}

struct Handler<'a> {
    core: &'a PagerCore,
    /// Reused, so that a fault allocates no memory for its page.
    buffer: BytesMut,
}

impl Handler<'_> {
    async fn serve(&mut self, page: PageNumber, access: PageAccess) {
        let core = self.core;
        let range = PageRange::of(page);
        let (address, bytes) = (core.address(range), range.bytes() as u64);
        let plan = loop {
            let mut table = core.table();
            match table.fault(page, access) {
                FaultPlan::NoRoom => {}
                FaultPlan::Wait => {
                    core.has_waiting.store(true, Ordering::Relaxed);
                    return;
                }
                plan => break plan,
            }
            drop(table);
            core.wait_for_room();
        };
        match plan {
            FaultPlan::Wake | FaultPlan::Lost => core.or_end("cannot wake a thread", core.faults.wake(address, bytes)),
            FaultPlan::Unprotect => {
                core.or_end("cannot make a page writable", core.faults.unprotect(address, bytes));
            }
            FaultPlan::Zero(range) => {
                core.or_end("cannot map zeros", core.faults.zero(core.address(range), range.bytes() as u64));
                core.table().filled(range);
            }
            FaultPlan::Fill { writable, ahead } => self.fill(range, writable, ahead).await,
            FaultPlan::Wait | FaultPlan::NoRoom => {}
        }
        if core.table().wants_eviction() {
            core.ask_for_room();
        }
    }

    async fn fill(&mut self, range: PageRange, writable: bool, ahead: Vec<PageRange>) {
        let core = self.core;
        self.buffer.clear();
        match core.store.read(range, std::mem::take(&mut self.buffer)).await {
            Ok(bytes) => {
                self.map(range, &bytes, writable);
                self.buffer = bytes;
                self.fill_ahead(&ahead, writable).await;
            }
            Err(error) => {
                {
                    let mut table = core.table();
                    ahead.iter().for_each(|range| table.not_filled(*range));
                }
                self.failed(range, error).await;
            }
        }
    }

    fn map(&self, range: PageRange, bytes: &[u8], writable: bool) {
        let core = self.core;
        assert_eq!(bytes.len(), range.bytes(), "a store returns the pages that it was asked for");
        core.or_end("cannot map a page", core.faults.copy(core.address(range), bytes, !writable));
        core.table().filled(range);
    }

    async fn failed(&self, range: PageRange, error: StoreError) {
        let core = self.core;
        let address = core.address(range);
        match error {
            StoreError::Lost { node, .. } => {
                tracing::error!(region = %core.name, ?range, %node, "pages of far memory are lost");
                core.site.note(range, &node);
                core.table().lost(range);
                core.or_end("cannot poison a lost page", core.faults.poison(address, range.bytes() as u64));
            }
            StoreError::Full(why) | StoreError::Unavailable(why) => {
                tracing::warn!(region = %core.name, ?range, why, "a page could not be read; it is tried again");
                core.table().not_filled(range);
                rt::sleep(RETRY_PAUSE).await;
                core.or_end("cannot wake a thread", core.faults.wake(address, range.bytes() as u64));
            }
        }
    }

    /// Fetches what lies ahead of a stream, one group after the other; the next group is on its way while one is mapped.
    async fn fill_ahead(&self, ahead: &[PageRange], writable: bool) {
        let core = self.core;
        let mut parts = ahead.iter().flat_map(|range| range.by_group()).map(|(_, part)| part);
        let post = |part: PageRange| -> (PageRange, StoreFuture<'_, BytesMut>) {
            (part, core.store.read(part, BytesMut::with_capacity(part.bytes())))
        };
        let mut in_flight = parts.next().map(post);
        while let Some((part, read)) = in_flight {
            in_flight = parts.next().map(post);
            match read.await {
                Ok(bytes) => self.map(part, &bytes, writable),
                // The program may never touch these pages. If it does, the fault finds out what became of them.
                Err(_) => core.table().not_filled(part),
            }
        }
    }
}
